"""Knowledge about providers: reads verdicts from their answers, and has presets for the keys file.

`_headers`, `_bodies`, `_phrases`, `_sdk_objects`, `_command_output` and `_error_lines` collect what an answer says;
`_evidence` concludes the verdict from all of it.

Doors: `verdicts` (reads an answer), `patterns` (reads output by a user's regular expression), `presets` (facts about
each provider).
"""

"""Knowledge about providers: reads verdicts from their answers, and has presets for the keys file.

`_headers`, `_bodies`, `_phrases`, `_sdk_objects` and `_command_output` collect what an answer says; `_evidence`
concludes the verdict from all of it. `_printed_objects` reads objects that programs print for people. Of printed
output, `_error_lines` (agents and SDKs), `_http_lines` (HTTP clients), `_agent_talk` (what is no error) and
`_silent_failures` (failures with exit status 0) decide what counts.

Doors: `verdicts` (reads an answer), `patterns` (reads output by a user's regular expression), `presets` (facts about
each provider), `usage` (reads the tokens that an answer used, and the beginning of a stream), `error_format` (formats
errors as each provider does).
"""

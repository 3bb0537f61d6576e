"""Knowledge about providers: reads verdicts from their answers, and has presets for the keys file.

Doors: `verdicts` (reads an answer), `patterns` (reads output by a user's regular expression), `presets` (facts about
each provider).
"""

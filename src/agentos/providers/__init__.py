"""What providers say and are: their error bodies, headers and texts, and presets for the keys file.

Doors: `verdicts` (reads an answer), `presets` (facts about each provider).
"""

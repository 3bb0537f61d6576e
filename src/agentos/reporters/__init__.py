"""Events of a run as text and as JSON.

Doors: `writers` (the reporters), `sentences` (an event as a text for people), `format` (escape, shorten, align).
"""

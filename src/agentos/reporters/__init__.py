"""Events of a run as text and as JSON.

Doors: `writers` (the reporters), `format` (escape, shorten, align).
"""

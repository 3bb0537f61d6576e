"""Events of a run as text and as JSON.

Doors: `writers` (the reporters), `sentences` (an event as a text for people), `bound_text` (what binds a run as one),
`format` (escape, shorten, align), `unusable_text` (why no credential is usable).
"""

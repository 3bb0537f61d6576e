"""The live display.

Doors: `display`, `screen`, `lines`.
"""

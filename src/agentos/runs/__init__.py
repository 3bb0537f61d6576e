"""One run, from its start to its last result.

Doors: `options`, `streams`, `signals`.
"""

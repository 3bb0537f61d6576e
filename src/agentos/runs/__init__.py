"""One run, from its start to its last result.

Doors: `start` (start_run, RunHandle), `options`, `streams`, `signals`.
"""

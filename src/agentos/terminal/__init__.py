"""The live display of a run, and its progress in lines where there is no terminal.

Doors: `display`, `screen`, `lines`, `safe_output`.
"""

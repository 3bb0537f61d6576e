"""How an attempt is carried out: in a thread, a task, a process, a command or another engine.

Doors: `base` (the protocol), `threads`, `tasks`, `wire`, and the packages `process`, `command` and `engines`.
"""

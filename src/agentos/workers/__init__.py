"""Carry out attempts: in a thread, an asyncio task, a process, a command, or an executor.

Doors: `base` (the protocol), `threads`, `tasks`, `wire`, and the packages `process`, `command` and `engines`.
"""

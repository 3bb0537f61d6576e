"""Carry out attempts: in a thread, an asyncio task, a process, a command, or an executor.

A new kind of worker is a subclass of `base.Workers` here, and a case in `runs.start`; one for executors of a library is
a private module of `engines` and a case in `engines.executor`.

Doors: `base` (the protocol), `threads`, `tasks`, `wire`, `capacity`, `machine`; the packages `process`, `command` and
`engines`.
"""

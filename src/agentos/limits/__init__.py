"""Rate limiting as pure code: what a limit allows, what was used of it, and what was learned about it.

Doors: `declaration` (`Limits`, `Window`), `amounts` (of one request), `pace` and `usage_state` (for the pool),
`backoff` (pauses before retries), `cool_downs` (waits after answers), `concurrency` (learned), `reset_times`. Time is
always an argument.
"""

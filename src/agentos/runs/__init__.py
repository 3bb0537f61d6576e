"""One run, from its start to its last result.

Doors: `start` (start_run, RunHandle), `active_runs`, `checks` and `options` (arguments), `signatures` (their types),
`forecast`, `run_snapshot`, `streams`, `signals`.
"""

"""Clients that do the same job: ours, and its alternatives.

Each module has `prepare(job)`, which returns the function that is measured. `python -m benchmarks.peers NAME JOB` runs
one client in a process of its own: imports of other clients do not slow it down, and its processor time is its own.
"""

"""Clients that do the same job: ours, and what is used instead of it.

One module each, with `prepare(job)`, which returns what is measured. `python -m benchmarks.peers NAME JOB` runs one
in a process of its own: none pays for what another has imported, and the processor time is its own.
"""

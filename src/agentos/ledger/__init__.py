"""The durable record of a run, in an SQLite file: written by one launch at a time, read by any number of processes.

Doors: `reader` (`Ledger`), `recorded` (what it returns), `record` (writes one launch), `resume_filter`,
`recorded_results`, `ownership`.
"""

"""The durable record of a run, in SQLite.

Doors: `reader` (`Ledger`), `record` (writes one launch), `resume_filter`, `recorded_results`, `ownership`.
"""

"""Items, attempts and results: the data that the ledger, the workers and the runs share.

Doors: `item`, `attempt`, `access`, `context`, `results`, `sources`, `duplicates`, `fields`, `file_names`, `codec`,
`parallelism`.
"""

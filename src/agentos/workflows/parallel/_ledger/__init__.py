"""The ledger from inside: how a run is written down, and how it is found again."""

"""Credentials and leases: which credential serves which request, and when.

Doors: `lease_pool` (the pool as runs use it), `lease`, `credential` with `credential_settings` and `references`,
`states` and `pauses`, `order` (which credential first), `simulation`, `store` and `store_url`, `shared_state` (a store
without its credentials).
"""

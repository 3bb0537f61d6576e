"""Credentials and leases: which credential serves which request, and when.

Doors: `lease`, `credential`, `states`, `simulation`, `store`, `store_url`.
"""

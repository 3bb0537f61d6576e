"""The keys file, and what people do with keys.

Doors: `keys_file` (reads it), `check` (calls each provider), `disabled_keys` (keys that a person took out of use),
`reload_requests` (asks executing processes to read their keys again).
"""

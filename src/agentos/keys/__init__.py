"""The keys file, and what people do with keys.

Doors: `keys_file`, `check`, `disabled_keys`.
"""

"""Keys that every proxy has."""

KEYS = [f"sk-bench-key-{number}-0123456789" for number in range(1, 9)]
# Requests of a key at a time, as declared to the pool: the key is never what limits.
CONCURRENT = 1000

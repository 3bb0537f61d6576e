"""Pools that several processes share: each process applies a common log to its own replica of the pool."""

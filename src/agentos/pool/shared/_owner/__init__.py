"""The owner of a shared pool: its decisions, its journal entries, and the process that runs it."""

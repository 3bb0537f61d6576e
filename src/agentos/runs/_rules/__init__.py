"""Pure rules of a run: what becomes of each item."""

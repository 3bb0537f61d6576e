"""Pure rules of the pool: which request gets which credential, and when."""

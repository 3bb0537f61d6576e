"""This process as a member of a shared pool."""

"""The transport of several machines: a journal in Redis or Valkey, and an owner that is reached through the server."""

"""The commands of `agentos`, one module each."""

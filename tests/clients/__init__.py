"""Real agents, unmodified, behind the gateway. `make clients` installs and runs them; `make test` does not."""

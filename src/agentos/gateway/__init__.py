"""The HTTP gateway: clients send it requests with a client token; each request leases a credential and leaves with it.

Doors: `gateway` (the facade), `addresses` (where providers are), `client_tokens` (named clients and their tokens),
`client_settings` (environment and configuration files of each client), `client_versions` (which version of a client is
installed, and whether it is known to fail). Needs the extra `gateway` (aiohttp), which is imported where a gateway
starts. The gateway knows no runs: they meet it as `agentos.items.access.AttemptAccess`.
"""

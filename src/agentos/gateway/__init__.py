"""Settings that make unmodified programs use the gateway instead of a provider.

Doors: `client_settings` (environment and configuration files of each client), `client_versions` (which version of a
client is installed, and whether it is known to fail).
"""

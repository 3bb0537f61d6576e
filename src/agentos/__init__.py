"""AgentOS: run many agent workflows in parallel."""

__version__ = "0.1.0"

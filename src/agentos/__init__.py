"""AgentOS: run many agent workflows in parallel over a pool of rate-limited credentials.

Programs import `agentos.workflows.parallel` and `agentos.testing`: these two are the contract. All other packages are
internal, although their names have no underscore: packages of this distribution use them.
"""

__version__ = "0.1.0"

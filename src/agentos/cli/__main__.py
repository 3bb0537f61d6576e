"""`python -m agentos.cli`."""

from agentos.cli import main

main(prog_name="agentos")

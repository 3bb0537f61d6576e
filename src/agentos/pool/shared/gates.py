"""Make the gate of a shared pool, for the pool of a process: where a member finds, or starts, the owner."""

from __future__ import annotations

from pathlib import Path

from .transport import Gate


def file_gate(path: Path) -> Gate:
    """Return the gate of a pool in a file. Nothing is opened."""
    from ._machine.machine_gate import MachineGate

    return MachineGate(path)


def server_gate(url: str) -> Gate:
    """Return the gate of a pool on a server. Nothing is opened. Raises `ValueError` for an address that the client
    library does not accept, and `StoreError` if that library is not installed."""
    from ._server.server_gate import ServerGate

    return ServerGate(url)

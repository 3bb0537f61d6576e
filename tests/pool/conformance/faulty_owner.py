"""An owner that kills or stops itself at a numbered step of a grant. Over a server there are two steps, because one
script commits and sends the replies.

`python -m tests.pool.conformance.faulty_owner LOG STEPS SIGNALS GRANTS FAULTS …`, where … are the arguments of
`owner_process`. STEPS and SIGNALS are lists with commas, from which each owner chooses. GRANTS: the number of grants
after which the fault comes at the latest. FAULTS: the number of faults of all owners together. It appends a line to LOG
when it begins, and one before the fault.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Hashable
from pathlib import Path

from agentos.pool.shared._machine import machine_endpoint, sqlite_journal
from agentos.pool.shared._owner import entries as kinds
from agentos.pool.shared._owner import owner_process

STEPS = ("before journal", "in journal", "after journal", "before reply", "after reply")
SERVER_STEPS = ("before journal", "after reply")


class Fault:
    """The fault of this owner: which signal it sends to itself, at which step, and after how many grants."""

    def __init__(self, log: str, steps: str, signals: str, grants: str, faults: str) -> None:
        chance = random.SystemRandom()
        self._log = Path(log)
        self.step = chance.choice(steps.split(","))
        self._signal = signal.Signals[chance.choice(signals.split(","))]
        self._grants = chance.randint(1, int(grants))
        if self._log.exists() and self._log.read_text().count("fault ") >= int(faults):
            self._grants = 10**9  # none
        self.is_due = False

    def note(self, what: str) -> None:
        with self._log.open("a") as file:
            file.write(f"{what} {os.getpid()} {self._signal.name} {self.step}\n")

    def count(self, entries: bytes | None) -> None:
        if entries is not None:
            self._grants -= sum(entry[0] == kinds.GRANT for entry in kinds.decode_entries(entries))
        self.is_due = self._grants <= 0

    def reach(self, step: str) -> None:
        if self.is_due and step == self.step:
            self.is_due = False
            self._grants = 10**9  # once
            self.note("fault")
            os.kill(os.getpid(), self._signal)


def install(fault: Fault) -> None:
    """Let the endpoint of this process pass the steps."""
    journal_commit = sqlite_journal.SqliteJournal.commit
    send = machine_endpoint.MachineEndpoint.send

    def commit(self: machine_endpoint.MachineEndpoint, at: float, entries: bytes | None,
               frames: list[tuple[Hashable, bytes]]) -> None:  # fmt: skip
        fault.count(entries)
        fault.reach("before journal")
        if entries is not None:
            if fault.is_due and fault.step == "in journal":
                database = self._journal._database
                assert database is not None
                database.execute("BEGIN IMMEDIATE")
                fault.reach("in journal")
                database.execute("ROLLBACK")
            journal_commit(self._journal, at, entries)
            fault.reach("after journal")
        for n, frame in enumerate(frames):
            if n == len(frames) // 2:
                fault.reach("before reply")
            send(self, [frame])
        fault.reach("after reply")

    machine_endpoint.MachineEndpoint.commit = commit  # type: ignore[method-assign]


def install_on_server(fault: Fault) -> None:
    """Let the endpoint of a pool on a server pass the steps."""
    from agentos.pool.shared._server.server_endpoint import ServerEndpoint

    commit = ServerEndpoint.commit

    def commit_with_fault(self: ServerEndpoint, at: float, entries: bytes | None,
                          frames: list[tuple[Hashable, bytes]]) -> None:  # fmt: skip
        fault.count(entries)
        fault.reach("before journal")
        commit(self, at, entries, frames)
        fault.reach("after reply")

    ServerEndpoint.commit = commit_with_fault  # type: ignore[method-assign]


def main(arguments: list[str]) -> None:
    fault = Fault(*arguments[:5])
    (install if arguments[5] == "machine" else install_on_server)(fault)
    serve = owner_process.serve

    def noted_serve(endpoint: machine_endpoint.MachineEndpoint) -> None:
        fault.note("begin")
        serve(endpoint)

    owner_process.serve = noted_serve  # type: ignore[assignment]
    owner_process.main(arguments[5:])


if __name__ == "__main__":
    main(sys.argv[1:])

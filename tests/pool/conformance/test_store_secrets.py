"""A store knows ids only: no secret reaches it, also if messages of the provider contain one."""

from __future__ import annotations

import base64
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from agentos.pool.shared._machine import owner_lock
from agentos.pool.shared._owner import owner_child
from agentos.workflows.parallel import AuthFailed, Credential, CredentialCoordinator, RateLimited
from tests.conftest import eventually
from tests.support.valkey import Valkey

from .conftest import settle

CANARY = "sk-canary-Zq7Xw9-do-not-show"


def forms(secret: str) -> list[bytes]:
    """Return the secret as it is, in base64 in all three alignments, in hex, and reversed."""
    raw = secret.encode()
    encoded = [base64.b64encode(b"x" * n + raw)[4:-4] for n in range(3)]
    return [raw, *encoded, raw.hex().encode(), raw.hex().upper().encode(), raw[::-1], raw[4:-4]]


def use(url: str) -> None:
    """Do everything that can bring a message or a name into the store."""
    key = Credential(CANARY, provider="openai")
    pool = CredentialCoordinator([key], store=url, lease_ttl=5)
    with pytest.raises(RateLimited), pool.lease(f"me, with {CANARY}") as lease:
        lease.observe({"error": {"message": f"slow down, {CANARY}"}})
        raise RateLimited(f"too fast: {CANARY}", retry_after=0.01)
    with pytest.raises(AuthFailed), pool.lease("other"):
        raise AuthFailed(f"bad key {CANARY}")
    pool.quarantine(key.id, f"the provider refused {CANARY}")
    pool.restore(key.id)
    pool.mark_rate_limited(CANARY, 0.01)
    assert pool.states()[0].requests == 2
    pool.quarantine(key.id, f"again {CANARY}")
    assert CANARY not in str(pool.states())
    pool.close()


def assert_absent(data: bytes) -> None:
    for form in forms(CANARY):
        assert form not in data


@pytest.fixture(autouse=True)
def _snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the owner write snapshots in between."""
    program = (
        "import sys; from agentos.pool.shared._owner import owner_process as owner\n"
        "owner.SNAPSHOT_ENTRIES, owner.SNAPSHOT_ENTRIES_PER_CREDENTIAL = 3, 0\n"
        "owner.main(sys.argv[1:])"
    )
    monkeypatch.setattr(owner_child, "OWNER_COMMAND", [sys.executable, "-c", program])


def test_file_and_journal_hold_no_secret(tmp_path: Path) -> None:  # invariant 29
    path = tmp_path / "pool.db"
    with CredentialCoordinator([CANARY], store=f"sqlite:///{path}"):  # the owner stays until it ends
        use(f"sqlite:///{path}")
        note = owner_lock.read_note(path)
        assert note is not None
        process = Path("/proc", str(note.pid))
        for part in ("cmdline", "environ"):
            assert_absent((process / part).read_bytes())
        files = [file for file in tmp_path.iterdir() if file.is_file()]
        names = {file.name for file in files}
        assert names == {"pool.db", "pool.db-wal", "pool.db-shm", "pool.db-owner", "pool.db-members"}
        for file in files:
            assert_absent(file.read_bytes())
    eventually(lambda: not owner_lock.lock_path(path).exists())
    assert_absent(path.read_bytes())


def test_server_receives_no_secret(own_server: Valkey) -> None:  # invariant 29
    settle(own_server.url())
    with own_server.client() as client:
        lines: list[bytes] = []
        listen_to_all(client, lines)
        use(own_server.url())
        eventually(lambda: client.exists("{agentos:pool}:snapshot"))
        contents = b"".join(
            part
            for name in ("meta", "snapshot")
            for pair in client.hgetall(f"{{agentos:pool}}:{name}").items()
            for part in pair
        )
        assert b"key-" in contents
        assert_absent(contents)
    own_server.stop()
    for path in own_server.folder.rglob("*"):
        if path.is_file():
            assert_absent(path.read_bytes())
    assert any(b"EVALSHA" in line for line in lines)
    assert any(b"PUBLISH" in line for line in lines)
    assert_absent(b"\n".join(lines))


def listen_to_all(client: object, lines: list[bytes]) -> None:
    """Collect all commands of the server with MONITOR, on a separate connection."""
    connection = client.connection_pool.make_connection()  # type: ignore[attr-defined]
    connection.connect()
    connection.send_command("MONITOR")
    connection.read_response()

    def listen(read: Callable[[], bytes]) -> None:
        try:
            while True:
                lines.append(read())
        except Exception:
            connection.disconnect()

    threading.Thread(target=listen, args=(connection.read_response,), daemon=True).start()

"""Where the file of a pool may be, and how it is moved aside."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentos.pool.shared._machine import pool_file
from agentos.pool.shared.transport import StoreRefused

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:26 / /home rw - nfs4 server:/home rw,vers=4.2
31 30 0:27 / /home/me/local rw master:3 - xfs /dev/sdb rw
32 22 0:28 / /mnt/a\\040b rw - fuse.sshfs me@host:/ rw
33 22 0:29 / /over rw - tmpfs tmpfs rw
34 22 0:30 / /over rw - cifs //server/share rw
a line that is none
"""


@pytest.mark.parametrize(
    ("path", "type_"),
    [
        ("/home/you/pool.db", "nfs4"),
        ("/mnt/a b/deep/er/pool.db", "fuse.sshfs"),
        ("/over/pool.db", "cifs"),  # of two mounts in one place the later
    ],
)
def test_network_file_system_is_refused(path: str, type_: str) -> None:
    with pytest.raises(StoreRefused, match=rf"network file system \({type_}\).*use redis://"):
        pool_file.check_place(Path(path), MOUNTS)


@pytest.mark.parametrize("path", ["/pool.db", "/homes/pool.db", "/home/me/local/x/pool.db", "/var/pool.db"])
def test_local_file_system_is_accepted(path: str) -> None:
    pool_file.check_place(Path(path), MOUNTS)


def test_place_of_this_test_is_accepted(tmp_path: Path) -> None:
    pool_file.check_place(tmp_path / "pool.db")


def test_files_move_aside_together_under_free_names(tmp_path: Path) -> None:
    path = tmp_path / "pool.db"
    for number in (1, 2):
        for part in ("", "-wal", "-shm"):
            Path(f"{path}{part}").write_text(f"{part}{number}")
        assert pool_file.set_aside(path) == Path(f"{path}.damaged-{number}")
        assert Path(f"{path}.damaged-{number}-wal").read_text() == f"-wal{number}"
        assert not list(tmp_path.glob("pool.db-*"))


def test_rest_of_removed_file_is_not_read_into_new_one(tmp_path: Path) -> None:
    path = tmp_path / "pool.db"
    Path(f"{path}-wal").write_text("old")
    pool_file.prepare(path)
    assert [file.name for file in tmp_path.iterdir()] == ["pool.db"]
    assert path.stat().st_mode & 0o777 == 0o600

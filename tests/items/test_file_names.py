"""Names of the files and folders that belong to an item."""

from __future__ import annotations

import pytest

from agentos.items.file_names import database_name, folder_name, log_name


@pytest.mark.parametrize("item_id", ["CON.txt", "lpt9.log", "/nul.", "Com1.x/y"])
def test_log_name_is_never_a_windows_device(item_id: str) -> None:
    assert log_name(item_id).partition(".")[0].lower() not in ("con", "lpt9", "nul", "com1")


def test_log_name_begins_with_the_readable_id() -> None:
    assert log_name("src/config.py").startswith("src-config.py-")
    assert log_name("CON").startswith("CON-")


@pytest.mark.parametrize(
    ("item_id", "folder", "digest"),
    [
        ("a/b.py", "a-b.py-d9584a802a2864f0", "d9584a802a2864f0af18e5362eb04b2a8b15bd33a7237167bcfa90be277602b8"),
        ("con.x", "_con.x-9c23cea337f6aa87", "9c23cea337f6aa87699cc00712fa3a8c0186fe3808e369bc1de4728c905f47a2"),
        ("..", "5ec1f7e700f37c3d", "5ec1f7e700f37c3d0b2981d04855fc34b94aaa15457b05ca571817442d228f81"),
        ("\ud800", "91a681b998555fb4", "91a681b998555fb475479817b126c94e57e52011fa1842c5d188795a4a05226b"),
    ],
)
def test_names_on_disk_never_change(item_id: str, folder: str, digest: str) -> None:
    """A later version of the program must find the files of a run that it resumes."""
    assert folder_name(item_id) == folder
    assert log_name(item_id) == f"{folder}.log"
    assert database_name(item_id) == f"{digest}.db"

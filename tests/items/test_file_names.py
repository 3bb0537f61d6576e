"""The names of items' logs."""

from __future__ import annotations

import pytest

from agentos.items.file_names import log_name


@pytest.mark.parametrize("item_id", ["CON.txt", "lpt9.log", "/nul.", "Com1.x/y"])
def test_no_name_begins_with_that_of_a_device_and_a_dot(item_id: str) -> None:
    assert log_name(item_id).partition(".")[0].lower() not in ("con", "lpt9", "nul", "com1")


def test_other_names_stay_as_they_can_be_read() -> None:
    assert log_name("src/config.py").startswith("src-config.py-")
    assert log_name("CON").startswith("CON-")

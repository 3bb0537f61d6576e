"""Output of Python workers, captured by item."""

from __future__ import annotations

from pathlib import Path

from agentos.output.capture import OutputCapture
from agentos.redaction.redactor import Redactor
from agentos.workflows.parallel import ParallelCoordinator


def test_unwritable_log_is_reported_once_and_output_shown(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.write_text("a file, so that no log can be created in it")
    shown: list[tuple[str, str, bytes]] = []
    with OutputCapture(folder, None, lambda *output: shown.append(output)) as capture:
        ParallelCoordinator(1, reporter=None).execute_parallel(["a", "b"], lambda item, _: print(f"hello {item}"))
        for item_id in ("a", "b"):
            capture.item_ended(item_id)
    warnings = [data for item_id, stream, data in shown if (item_id, stream) == ("", "stderr")]
    assert len(warnings) == 1
    assert warnings[0].startswith(b"agentos: logs cannot be written any more: ")
    assert [data for item_id, _, data in shown if item_id] == [b"hello a\n", b"hello b\n"]


def test_key_that_is_added_later_is_redacted_outside_of_items(tmp_path: Path) -> None:
    """The output outside of items lives as long as the run, whose keys may be read again."""
    secrets = ["secret-of-the-start"]
    shown: list[bytes] = []
    with OutputCapture(tmp_path, lambda: Redactor(secrets), lambda _id, _stream, data: shown.append(data)) as capture:
        capture.write("stdout", b"secret-of-the-start\n")
        secrets.append("secret-added-later")
        capture.write("stdout", b"secret-of-the-start secret-added-later\n")
    assert b"".join(shown) == b"****\n**** ****\n"

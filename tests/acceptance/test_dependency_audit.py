"""The audit of dependencies in `make check`."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.dependency_audit import main, read_audit, run_auditor

GOOD = {"name": "click", "version": "8.2.0", "vulns": []}
BAD = {"name": "old", "version": "1.0", "vulns": [{"id": "PYSEC-2026-1", "fix_versions": ["1.1", "2.0"]}]}
UNFIXED = {"name": "older", "version": "0.1", "vulns": [{"id": "GHSA-x", "fix_versions": []}, {"id": "GHSA-y"}]}
UNKNOWN = {"name": "private", "skip_reason": "Dependency not found"}


def printed(*packages: dict[str, Any]) -> str:
    return json.dumps({"dependencies": packages, "fixes": []})


def test_known_vulnerability_fails_and_names_the_fix() -> None:
    audit = read_audit(printed(GOOD, BAD, UNFIXED, UNKNOWN))
    assert not audit.passes
    assert "old 1.0: PYSEC-2026-1, fixed in 1.1, 2.0\n  older 0.1: GHSA-x\n  older 0.1: GHSA-y" in audit.text


def test_clean_audit_passes_and_lists_unknown_packages() -> None:
    assert read_audit(printed(GOOD)) == ("1 packages audited, no known vulnerability", True)
    assert read_audit(printed(GOOD, UNKNOWN)) == (
        "1 packages audited, no known vulnerability; 1 not audited: private",
        True,
    )


def test_unreachable_advisories_are_not_a_clean_audit() -> None:
    assert read_audit(printed(UNKNOWN, UNKNOWN)) == ("not audited: no advisories can be reached from here", True)
    assert read_audit(printed()) == ("not audited: no advisories can be reached from here", True)


@pytest.mark.parametrize("text", ["", "Traceback …", "[]", "{}", '{"dependencies": 5}', '{"dependencies": [{}]}'])
def test_missing_answer_is_reported_and_passes(text: str) -> None:
    assert read_audit(text).passes
    assert "not audited" in read_audit(text).text


@pytest.fixture
def auditor(tmp_path: Path) -> Any:
    def make(script: str) -> str:
        path = tmp_path / "uv"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(stat.S_IRWXU)
        return str(path)

    return make


def test_hanging_or_missing_auditor_is_not_awaited(auditor: Any, tmp_path: Path) -> None:
    assert run_auditor(auditor("sleep 60"), tmp_path / "lock", timeout=0.2) == ""
    assert run_auditor(str(tmp_path / "none"), tmp_path / "lock") == ""


@pytest.mark.parametrize(("package", "status"), [(GOOD, 0), (BAD, 1), (UNKNOWN, 0)])
def test_exit_status_follows_the_findings(
    auditor: Any, capsys: pytest.CaptureFixture[str], package: dict[str, Any], status: int
) -> None:
    # The auditor exits with 1 in every case, for a vulnerability and for a missing network.
    assert main([auditor(f"echo '{printed(package)}'; exit 1"), "the.lock"]) == status
    assert capsys.readouterr().out.startswith("the.lock: ")

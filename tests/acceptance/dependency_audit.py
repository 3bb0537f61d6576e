"""`python -m tests.acceptance.dependency_audit UV LOCK`: known vulnerabilities of the locked versions.

Fails if there is one. Without a network, or without advisories, it says so and succeeds: developers would skip a check
that fails on a train.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

# The auditor is not a dependency: it is fetched when it is needed, in the version that this module can read.
AUDITOR = "pip-audit==2.10.1"
# Seconds for one answer, and for the whole audit: both are short for machines without a network.
ANSWER_SECONDS = 5
AUDIT_SECONDS = 120.0


class Audit(NamedTuple):
    """The text of an audit, and whether the check passes."""

    text: str
    passes: bool


def main(arguments: list[str]) -> int:
    uv, lock = arguments
    audit = read_audit(run_auditor(uv, Path(lock)))
    print(f"{lock}: {audit.text}", flush=True)
    return 0 if audit.passes else 1


def run_auditor(uv: str, lock: Path, timeout: float = AUDIT_SECONDS) -> str:
    """Return the output of the auditor: JSON, unless it failed. Its exit status is the same for a vulnerability and for
    a missing network."""
    command = [uv, "tool", "run", "--quiet", AUDITOR, "--requirement", str(lock), "--require-hashes", "--disable-pip"]
    command += ["--format", "json", "--progress-spinner", "off", "--timeout", str(ANSWER_SECONDS)]
    try:
        # In a group of its own: its children are killed, too, and do not keep its output open.
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
        ) as auditor:
            try:
                return auditor.communicate(timeout=timeout)[0]
            except subprocess.TimeoutExpired:
                os.killpg(auditor.pid, signal.SIGKILL)
    except OSError:
        pass  # uv is missing
    return ""


def read_audit(printed: str) -> Audit:
    try:
        packages = json.loads(printed)["dependencies"]
        skipped = [package["name"] for package in packages if "skip_reason" in package]
        vulnerabilities = [
            f"{package['name']} {package['version']}: {vulnerability['id']}"
            + (f", fixed in {fixed}" if (fixed := ", ".join(vulnerability.get("fix_versions", ()))) else "")
            for package in packages
            if "skip_reason" not in package
            for vulnerability in package["vulns"]
        ]
    except (ValueError, KeyError, TypeError):
        return Audit("not audited: no network, or no answer in time", True)
    if vulnerabilities:
        return Audit("known vulnerabilities (make lock takes newer versions)\n  " + "\n  ".join(vulnerabilities), False)
    if len(skipped) == len(packages):
        return Audit("not audited: no advisories can be reached from here", True)
    unaudited = f"; {len(skipped)} not audited: {', '.join(skipped)}" if skipped else ""
    return Audit(f"{len(packages) - len(skipped)} packages audited, no known vulnerability{unaudited}", True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

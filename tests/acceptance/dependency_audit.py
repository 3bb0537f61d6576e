"""`python -m tests.acceptance.dependency_audit UV LOCK`: known vulnerabilities of the locked versions.

Fails if there is one. Where nobody can be asked (no network, no advisories behind it) it says so and succeeds: a check
that fails on a train is a check that is left out.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

# The auditor itself is no dependency: it is fetched when it is needed, in the version that this was written for.
AUDITOR = "pip-audit==2.10.1"
# For one answer, and for everything: whoever is not connected must not wait for it.
ANSWER_SECONDS = 5
MOST_SECONDS = 120.0


class Audit(NamedTuple):
    """What is told, and whether the check passes."""

    text: str
    passes: bool


def main(arguments: list[str]) -> int:
    uv, lock = arguments
    found = judged(asked(uv, Path(lock)))
    print(f"{lock}: {found.text}", flush=True)
    return 0 if found.passes else 1


def asked(uv: str, lock: Path, most_seconds: float = MOST_SECONDS) -> str:
    """What the auditor prints: JSON, if it came so far. Its exit status is 1 for a vulnerability and for no network."""
    command = [uv, "tool", "run", "--quiet", AUDITOR, "--requirement", str(lock), "--require-hashes", "--disable-pip"]
    command += ["--format", "json", "--progress-spinner", "off", "--timeout", str(ANSWER_SECONDS)]
    try:
        # In a group of its own: what it has started goes with it, and does not keep its output open.
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
        ) as auditor:
            try:
                return auditor.communicate(timeout=most_seconds)[0]
            except subprocess.TimeoutExpired:
                os.killpg(auditor.pid, signal.SIGKILL)
    except OSError:
        pass  # there is no auditor
    return ""


def judged(printed: str) -> Audit:
    try:
        packages = json.loads(printed)["dependencies"]
        skipped = [package["name"] for package in packages if "skip_reason" in package]
        known = [
            f"{package['name']} {package['version']}: {vulnerability['id']}"
            + (f", fixed in {fixed}" if (fixed := ", ".join(vulnerability.get("fix_versions", ()))) else "")
            for package in packages
            if "skip_reason" not in package
            for vulnerability in package["vulns"]
        ]
    except (ValueError, KeyError, TypeError):
        return Audit("not audited: no network, or no answer in time", True)
    if known:
        return Audit("known vulnerabilities (make lock takes newer versions)\n  " + "\n  ".join(known), False)
    if len(skipped) == len(packages):
        return Audit("not audited: no advisories can be reached from here", True)
    rest = f"; {len(skipped)} not audited: {', '.join(skipped)}" if skipped else ""
    return Audit(f"{len(packages) - len(skipped)} packages audited, no known vulnerability{rest}", True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

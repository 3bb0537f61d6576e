"""Runs several `agentos` commands in one process: starting Python for each would take most of the time.

Reads a JSON list of argument lists on stdin; prints a JSON list of [stdout, stderr, exit status], in base64.
"""

import base64
import json
import os
import runpy
import sys
import tempfile


def run(arguments: list[str]) -> tuple[str, str, int]:
    """Run one command as `python -m agentos.cli` would, and return what it wrote and its exit status."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        sys.argv = ["agentos", *arguments]
        status = 0
        try:
            runpy.run_module("agentos.cli", run_name="__main__")
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        sys.stdout.flush()
        sys.stderr.flush()
        texts = [base64.b64encode(os.pread(file.fileno(), 1 << 30, 0)).decode() for file in (out, err)]
    return texts[0], texts[1], status


if __name__ == "__main__":
    calls = json.load(sys.stdin)
    answers = os.dup(1)
    with open("/dev/null") as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
    os.write(answers, json.dumps([run(arguments) for arguments in calls]).encode())

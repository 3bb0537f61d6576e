"""Records the expected outputs again: `python -m tests.golden [NAME...]`; without a name, all of them."""

from __future__ import annotations

import signal
import sys

from .commands import CASES
from .recorded import expected_file, record


def main(names: list[str]) -> int:
    """Record the named cases and return the exit status."""
    unknown = sorted(set(names) - CASES.keys())
    if unknown:
        print(f"no such case: {', '.join(unknown)}; there are {', '.join(CASES)}", file=sys.stderr)
        return 2
    for name in names or CASES:
        path = expected_file(name)
        before = path.read_text() if path.exists() else None
        after = record(name)
        if after != before:
            path.write_text(after)
            print(f"{'changed' if before is not None else 'new'}: {path.name}")
    return 0


if __name__ == "__main__":
    # A shell starts background jobs with SIGINT ignored, and each program would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))

"""Lists the cases: scenarios of a few commands each, as users type them."""

from __future__ import annotations

from .cases_looking import KEYS_AND_PLANS, LOOKS
from .cases_refused import REFUSALS
from .cases_running import RUNS
from .machine import Case
from .screen import ScreenCase
from .shared_files import SECRETS, TWO_KEYS

_KEYS_COMMANDS = ("status", "check", "disable", "enable", "reset", "repair")

_HELP = [
    Case(
        "help-overview",
        """
        agentos --help
        agentos
        agentos --version
        agentos rum
        agentos frobnicate
        agentos --frobnicate
        """,
    ),
    Case(
        "help-running",
        "\n".join(f"agentos {name} --help" for name in ("run", "resume", "retry", "plan")),
        starts_nothing=True,
    ),
    Case("help-looking", "\n".join(f"agentos {name} --help" for name in ("runs", "show", "logs", "export", "stop"))),
    Case("help-others", "\n".join(f"agentos {name} --help" for name in ("report", "completion", "demo"))),
    Case(
        "help-keys",
        "agentos keys --help\n" + "\n".join(f"agentos keys {name} --help" for name in _KEYS_COMMANDS),
    ),
    Case(
        "completion",
        """
        agentos completion bash
        agentos completion zsh
        agentos completion fish
        agentos completion tcsh
        COMP_WORDS='agentos r' COMP_CWORD=1 _AGENTOS_COMPLETE=bash_complete agentos
        COMP_WORDS='agentos export --' COMP_CWORD=2 _AGENTOS_COMPLETE=bash_complete agentos
        """,
    ),
]

_PYTHON = [
    Case("python-objects", "python show_objects.py"),
    Case("python-reporters", "python run_reported.py"),
    Case("python-ledger", "python read_ledger.py"),
]

# One item fails, one meets a limit, goes on with the other key and waits for a file; the others wait for a key.
SHOWN = """\
#!/bin/sh
case $AGENTOS_ITEM_ID in
  failing) echo oh no >&2; exit 7 ;;
  limited) [ $AGENTOS_ATTEMPT = 2 ] || exec agentos report rate-limited --retry-after 45 ;;
esac
echo "$AGENTOS_ITEM_ID begins"
while [ ! -e go ]; do sleep 0.02; done
"""
_SHOWN_RUN = (
    "agentos run --run-id r --keys keys.toml --store memory: --parallel 1"
    " --item failing --item limited --item next --item last -- ./shown"
)
_SHOWN_PATTERNS = (
    "failed .*failing",
    "limited.* other",
    "1 in use, 1 paused",
    " in use 1/4 at once .so far.",
    "to go",
)
_SHOWN_FILES = {"keys.toml": TWO_KEYS, "shown": SHOWN}

_SCREENS = [
    ScreenCase("display", _SHOWN_RUN, _SHOWN_PATTERNS, _SHOWN_FILES, SECRETS),
    ScreenCase(
        "display-narrow",
        _SHOWN_RUN,
        _SHOWN_PATTERNS,
        _SHOWN_FILES,
        {**SECRETS, "NO_COLOR": "1", "PYTHONIOENCODING": "ascii"},
        columns=50,
        rows=12,
    ),
]

CASES: dict[str, Case | ScreenCase] = {
    case.name: case for case in [*_HELP, *RUNS, *REFUSALS, *KEYS_AND_PLANS, *LOOKS, *_PYTHON, *_SCREENS]
}

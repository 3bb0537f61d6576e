"""Lists cases that run items: output, failures, events and keys."""

from __future__ import annotations

from .machine import Case
from .shared_files import (
    ABC,
    FUNCTIONS,
    ISSUES_CSV,
    ISSUES_JSONL,
    LIMITED,
    MIXED,
    ONE_KEY,
    REFUSED,
    SECRETS,
    TWO_KEYS,
)

RUNS = [
    Case(
        "run-items",
        """
        agentos run --parallel 1 --item a --item b --item '{"id": "c", "n": 1}' -- echo hello {id} {} {{x}} {{
        agentos run --run-id quiet --quiet --parallel 1 --item a -- printf 'one\\n\\nno end'
        agentos run --run-id again --item a -- echo once
        agentos run --run-id again --item a -- echo once
        agentos run --run-id again --item a -- echo twice
        agentos run --item a --parallel 12 --quiet -- echo {id}
        agentos run --items empty.jsonl -- echo {id}
        """,
        {"empty.jsonl": ""},
    ),
    Case(
        "run-jsonl",
        """
        agentos run --run-id r --parallel 1 --items issues.jsonl -- echo {id}: {title}, {size}, {owner.name}, {}
        agentos run --run-id s --parallel 1 --items issues.jsonl --id-field owner.name --stdin title --quiet -- cat
        """,
        {"issues.jsonl": ISSUES_JSONL},
    ),
    Case(
        "run-other-formats",
        """
        agentos run --parallel 1 --quiet --items issues.csv -- echo {id}: {title}, {size}
        agentos run --parallel 1 --quiet --items issues.json -- echo {}
        agentos run --parallel 1 --quiet --items lines.txt -- echo {}
        agentos run --parallel 1 --quiet --items data --format csv --id-field title -- echo {size}
        cat lines.txt | agentos run --run-id piped --parallel 1 --items - -- echo {}
        """,
        {
            "issues.csv": ISSUES_CSV,
            "data": ISSUES_CSV,
            "issues.json": '["text", {"id": "object", "x": [1, 2]}]',
            "lines.txt": "a line\n\nanother 'line' with $(date)\n",
        },
    ),
    Case(
        "run-environment",
        """
        agentos run --quiet --item '{"id": "a", "n": 1}' --keys keys.toml -- sh -c 'env | grep -E "^A[GP]" | sort'
        """,
        {"keys.toml": ONE_KEY},
        SECRETS,
    ),
    Case(
        "run-failures",
        f"""
        agentos run --run-id r --parallel 1 {ABC} -- ./mixed {{id}}
        agentos run --run-id tried --parallel 1 --retries 1 --item b -- ./mixed {{id}}
        agentos run --run-id missing --item a -- ./no-such-program
        agentos run --run-id late --timeout 0.25 --item a -- sleep 30
        agentos run --run-id halted --parallel 1 --halt now,fail=1 --item c --item a -- ./mixed {{id}}
        """,
        {"mixed": MIXED},
    ),
    Case(
        "run-functions",
        """
        agentos run --run-id good --parallel 1 --item a --item b functions:greet
        agentos run --run-id bad --parallel 1 --item a functions:refuse
        agentos run --run-id mixed --parallel 1 --item a --item b functions:stumble
        agentos show mixed b
        agentos export mixed --only succeeded
        agentos run --item a functions:nothing
        agentos run --item a functions:number
        agentos run --item a nowhere:work
        """,
        {"functions.py": FUNCTIONS},
    ),
    Case(
        "run-json",
        f"""
        agentos run --json --run-id r --parallel 1 {ABC} -- ./mixed {{id}}
        agentos run --json --run-id tried --retries 1 --item b -- ./mixed {{id}}
        agentos run --json --run-id stopped --parallel 1 --halt soon,fail=1 --item c --item a -- ./mixed {{id}}
        """,
        {"mixed": MIXED},
    ),
    Case(
        "run-json-keys",
        """
        agentos run --json --run-id r --parallel 1 --keys keys.toml --item a -- ./limited
        """,
        {"keys.toml": TWO_KEYS, "limited": LIMITED},
        SECRETS,
    ),
    Case(
        "run-keys",
        """
        agentos run --run-id r --parallel 1 --keys keys.toml --item a --item b -- sh -c 'echo key $API_KEY'
        agentos show r
        agentos run --run-id env --parallel 1 --key-env 'TEAM_*_KEY' --credential-env K --item a -- sh -c 'echo $K'
        agentos keys --keys keys.toml
        """,
        {"keys.toml": TWO_KEYS},
        SECRETS,
    ),
    Case(
        "run-keys-limited",
        """
        agentos run --run-id r --parallel 1 --keys keys.toml --item a -- ./limited
        agentos show r
        agentos show r a
        agentos run --run-id s --quiet --keys one.toml --max-wait 0 --item a -- ./limited
        agentos show s
        """,
        {"keys.toml": TWO_KEYS, "one.toml": ONE_KEY, "limited": LIMITED},
        SECRETS,
    ),
    Case(
        "run-keys-refused",
        """
        agentos run --run-id r --parallel 2 --quiet --keys keys.toml --item a --item b -- ./refused
        agentos keys --keys keys.toml
        agentos run --run-id s --parallel 1 --quiet --keys keys.toml --item a -- echo {id}
        """,
        {"keys.toml": ONE_KEY + "max_concurrent = 2\n", "refused": REFUSED},
        SECRETS,
    ),
    Case(
        "run-limits-without-keys",
        """
        agentos run --run-id r --parallel 1 --item a -- ./limited
        agentos run --run-id told --parallel 1 --item a --retries 3 -- agentos report permanent --message 'no use'
        agentos run --run-id used --parallel 1 --item a -- agentos report usage --tokens 1200 --cost 0.02
        agentos show used a
        """,
        {"limited": "#!/bin/sh\n[ $AGENTOS_ATTEMPT = 2 ] || { echo 'try again in 1 s'; exit 75; }\n"},
    ),
]

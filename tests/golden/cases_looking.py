"""Lists cases that inspect plans, keys and runs, and cases that continue a run."""

from __future__ import annotations

from .machine import Case
from .shared_files import ABC, ISSUES_JSONL, KEYS, KILLS, MIXED, MIXED_RUN, SECRETS, STOPS, TWO_KEYS

KEYS_AND_PLANS = [
    Case(
        "plan",
        """
        agentos plan --count 100
        agentos plan --count 10000 --keys keys.toml --tokens 1500 --item-seconds 20 --parallel auto
        agentos plan --items issues.jsonl --keys keys.toml --tokens size
        agentos plan
        agentos run --dry-run --items issues.jsonl --keys keys.toml --item-seconds 50 -- echo {id} {title}
        agentos run --dry-run --json --item a -- echo {id}
        agentos run --dry-run --item a --item b -- echo
        agentos runs
        """,
        {
            # A limit for a day would make the plan depend on the time of day.
            "keys.toml": KEYS.replace("requests_per_day = 250", "requests_per_minute = 5"),
            "issues.jsonl": ISSUES_JSONL.replace("2.5", "2").replace("null", "3"),
        },
        SECRETS,
    ),
    Case(
        "keys",
        """
        agentos keys
        agentos keys --keys keys.toml
        agentos keys --key-env 'TEAM_*_KEY'
        agentos keys --keys keys.toml --json
        TEAM_A_KEY= agentos keys --keys keys.toml
        """,
        {"keys.toml": KEYS},
        SECRETS,
    ),
    Case(
        "keys-disabled",
        """
        agentos keys disable team-a --keys keys.toml --reason 'the budget is used up'
        agentos keys disable team-c --keys keys.toml
        agentos keys --keys keys.toml
        agentos keys
        agentos keys disable team-b --keys keys.toml
        agentos run --parallel 1 --item a --keys keys.toml -- echo {id}
        agentos keys enable team-a
        agentos keys enable team-a
        agentos keys reset
        agentos keys reset
        agentos keys
        """,
        {"keys.toml": KEYS},
        SECRETS,
    ),
    Case(
        "keys-in-use",
        """
        agentos run --run-id r --quiet --keys keys.toml --item a --tokens 100 -- agentos keys
        agentos run --run-id r2 --quiet --keys keys.toml --item a -- agentos keys --json
        agentos keys --store memory:
        """,
        # One request at once: the slow start of a learned number depends on time.
        {"keys.toml": KEYS.replace("team-a", "team-a-that-has-a-long-name") + "max_concurrent = 1\n"},
        SECRETS,
    ),
    Case(
        "keys-check",
        """
        agentos keys check
        agentos keys check --keys keys.toml
        agentos keys check --keys keys.toml --json
        """,
        {
            "keys.toml": TWO_KEYS.replace('id = "only"', 'id = "only"\nprovider = "openai"')
            + '\n[provider.openai]\nbase_url = "http://127.0.0.1:1/v1"\n'
        },
        SECRETS,
    ),
]

LOOKS = [
    Case("show", f"{MIXED_RUN}\nagentos show\nagentos show r a\nagentos show r b", {"mixed": MIXED}),
    Case("show-json", f"{MIXED_RUN}\nagentos show r --json\nagentos show r b --json", {"mixed": MIXED}),
    Case(
        "runs",
        f"""
        agentos runs
        agentos runs --json
        {MIXED_RUN}
        agentos runs
        agentos runs --json
        agentos runs --prune
        agentos runs --prune --older-than 1d --yes
        agentos runs --prune --yes
        agentos runs --prune --yes
        """,
        {"mixed": MIXED},
    ),
    Case(
        "logs",
        f"""
        {MIXED_RUN}
        agentos logs r --list
        agentos logs r b
        agentos logs r b --follow
        agentos run --run-id silent --quiet --item a -- true
        agentos logs silent a
        agentos logs silent --list
        """,
        {"mixed": MIXED},
    ),
    Case(
        "export",
        f"""
        {MIXED_RUN}
        agentos export r
        agentos export r --format csv
        agentos export r --only failed --format csv
        agentos export r --only unfinished --format csv
        agentos export r --output results.jsonl; wc -l < results.jsonl
        agentos export r --output nowhere/results.jsonl
        """,
        {"mixed": MIXED},
    ),
    Case(
        "resume-interrupted",
        f"""
        agentos run --run-id r --parallel 1 {ABC} -- ./stops {{id}}
        cat told
        agentos runs
        agentos show r
        agentos show r b
        agentos export r --only unfinished
        agentos resume r --parallel 1
        agentos show r
        agentos logs r b
        agentos resume r
        """,
        {"stops": STOPS},
    ),
    Case(
        "resume-killed",
        f"""
        agentos run --run-id r --parallel 1 {ABC} -- ./kills {{id}} > first 2>&1 & echo $! > run.pid; \
            wait $! 2> /dev/null
        agentos runs
        agentos show r
        agentos resume r --parallel 1
        agentos show r b
        """,
        {"kills": KILLS},
    ),
    Case(
        "retry",
        f"""
        {MIXED_RUN}
        agentos resume r
        echo '#!/bin/sh' > mixed; echo 'echo fine now' >> mixed
        agentos retry r --parallel 1
        agentos retry r --json
        agentos show r
        agentos show r b
        """,
        {"mixed": MIXED},
    ),
    Case(
        "resume-changed",
        """
        agentos run --run-id r --quiet --parallel 1 --items items.jsonl -- sh -c 'exit {n}'
        sed -i.old 's/"n": 1/"n": 0/' items.jsonl; agentos retry r --parallel 1
        agentos retry r --parallel 1 --on-changed rerun
        rm items.jsonl; agentos resume r
        """,
        {"items.jsonl": '{"id": "a", "n": 0}\n{"id": "b", "n": 1}\n'},
    ),
]

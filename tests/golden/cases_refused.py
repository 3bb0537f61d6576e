"""Lists cases that are refused before a run starts: items, options, templates, keys and names."""

from __future__ import annotations

from .machine import Case
from .shared_files import ISSUES_JSONL, MIXED, MIXED_RUN, ONE_KEY, SECRETS

_BAD_KEYS = {
    "syntax": '[[credential]]\nid = "a\nsecret = "env:A"\n',
    "name": '[[credential]]\nid = "a"\nsecret = "env:A"\nrequest_per_minute = 5\n',
    "type": '[[credential]]\nid = "a"\nsecret = "env:A"\n\nrequests_per_minute = "many"\n',
    "twice": '[[credential]]\nid = "a"\nsecret = "env:A"\n[[credential]]\nid = "a"\nsecret = "env:B"\n',
    "empty": "",
    "secret": '[[credential]]\nid = "a"\n',
    "unset": '[[credential]]\nid = "a"\nsecret = "env:NOT_SET"\n',
}

REFUSALS = [
    Case(
        "refused-items",
        """
        agentos run -- echo {id}
        agentos run --items nowhere.jsonl -- echo {id}
        agentos run --items . -- echo {id}
        agentos run --items bad.jsonl -- echo {id}
        agentos run --items bad.csv -- echo {id}
        agentos run --items list.jsonl -- echo {id}
        agentos run --items no-id.jsonl -- echo {id}
        agentos run --items twice.jsonl -- echo {id}
        agentos run --item a --item a -- echo {id}
        agentos run --item '' -- echo {id}
        """,
        {
            "bad.jsonl": '{"id": "a"}\n{"id": \n',
            "bad.csv": "id,title\na,b\nc,d,e\n",
            "list.jsonl": "[1]\n",
            "no-id.jsonl": '{"name": "a"}\n',
            "twice.jsonl": '{"id": "a"}\n{"id": "b"}\n{"id": "a"}\n',
        },
        starts_nothing=True,
    ),
    Case(
        "refused-options",
        """
        agentos run --item a
        agentos run --item a --frobnicate -- echo {id}
        agentos run --item a --parallel 0 -- echo {id}
        agentos run --item a --parallel many -- echo {id}
        agentos run --item a --halt often -- echo {id}
        agentos run --item a --json --quiet -- echo {id}
        agentos run --item a --run-id ../up -- echo {id}
        agentos run --item a --timeout -1 -- echo {id}
        agentos run --item a --on moon -- echo {id}
        agentos run --item a workers:ask --retries 0
        """,
        starts_nothing=True,
    ),
    Case(
        "refused-templates",
        """
        agentos run --items issues.jsonl -- echo {titel}
        agentos run --items issues.jsonl -- echo {owner.age}
        agentos run --item a -- echo {title}
        agentos run --items issues.jsonl --stdin body -- cat
        agentos run --items issues.jsonl --tokens body -- cat
        """,
        {"issues.jsonl": ISSUES_JSONL},
        starts_nothing=True,
    ),
    Case(
        "refused-keys",
        "\n".join(f"agentos run --item a --keys {name}.toml -- echo {{id}}" for name in [*_BAD_KEYS, "nowhere"])
        + """
        agentos run --item a --key-env 'NOT_SET*' -- echo {id}
        agentos run --item a --keys good.toml --key-env 'TEAM*' -- echo {id}
        agentos run --item sk-team-a-0123456789 --keys good.toml -- echo {id}
        agentos run --item a --keys good.toml --store ftp://nowhere -- echo {id}
        chmod 644 plain.toml; agentos keys --keys plain.toml
        chmod 600 plain.toml; agentos keys --keys plain.toml
        """,
        {
            **{f"{name}.toml": text for name, text in _BAD_KEYS.items()},
            "good.toml": ONE_KEY,
            "plain.toml": '[[credential]]\nid = "a"\nsecret = "sk-in-plain-0123456789"\n',
        },
        SECRETS,
        starts_nothing=True,
    ),
    Case(
        "refused-looks",
        f"""
        agentos show
        agentos show nothing
        agentos resume nothing
        agentos stop nothing
        agentos logs nothing a
        {MIXED_RUN}
        agentos show s
        agentos show r z
        agentos logs r
        agentos logs r z
        agentos export r --format xml
        agentos stop r
        agentos runs --older-than soon --prune
        """,
        {"mixed": MIXED},
    ),
    Case(
        "refused-reports",
        """
        agentos report rate-limited
        agentos report often
        AGENTOS_REPORT=report agentos report usage
        AGENTOS_REPORT=report agentos report usage --tokens -1
        AGENTOS_REPORT=report agentos report permanent --retry-after 5
        AGENTOS_REPORT=report agentos report rate-limited --until tomorrow
        AGENTOS_REPORT=nowhere agentos report transient
        AGENTOS_REPORT=report agentos report overloaded --until 2030-01-01T00:00:00Z --message 'not now'; cat report
        """,
        {"report": ""},
        starts_nothing=True,
    ),
]

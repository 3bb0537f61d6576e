"""Holds the files, commands and functions that several cases use."""

from __future__ import annotations

ISSUES_JSONL = """\
{"id": "one", "title": "a first issue", "size": 1, "owner": {"name": "Ann"}}
{"id": "two", "title": "a second issue", "size": 2.5, "owner": {"name": "Bob"}}
{"id": 3, "title": "the \\"third\\" issue", "size": null, "owner": {"name": "Zoë"}}
"""
ISSUES_CSV = 'id,title,size\none,a first issue,1\ntwo,"a second, longer issue",2\n'
KEYS = """\
[[credential]]
id = "team-a"
provider = "openai"
secret = "env:TEAM_A_KEY"
requests_per_minute = 500
tokens_per_minute = 200000
max_concurrent = 8

[[credential]]
id = "team-b"
provider = "gemini"
secret = "env:TEAM_B_KEY"
quota_group = "project-7"
requests_per_day = 250
"""
SECRETS = {"TEAM_A_KEY": "sk-team-a-0123456789", "TEAM_B_KEY": "sk-team-b-0123456789"}
# Declared limits that no case reaches: the pool would learn the pace of a key without a limit, which depends on time.
ONE_KEY = """\
[[credential]]
id = "only"
secret = "env:TEAM_A_KEY"
credential_env = "API_KEY"
requests_per_minute = 6000
burst = 100
"""
TWO_KEYS = f"{ONE_KEY}\n{ONE_KEY.replace('only', 'other').replace('TEAM_A', 'TEAM_B')}"
LIMITED = "#!/bin/sh\n[ $AGENTOS_ATTEMPT = 2 ] || agentos report rate-limited --retry-after 300\n"
# The command reports that its key is refused. Only its own run believes it.
REFUSED = """\
#!/bin/sh
echo '{"verdict": "auth_failed", "message": "the key is dead"}' >> $AGENTOS_REPORT
"""
# Item `a` succeeds, `b` fails with a message, `c` fails without one.
MIXED = """\
#!/bin/sh
echo "working on $1"
case $1 in
  b) echo "cannot do $1" >&2; exit 7 ;;
  c) exit 1 ;;
esac
"""
# Item `b` stops its own run at its first launch.
STOPS = """\
#!/bin/sh
echo "$1 begins"
if [ "$1" = b ] && [ ! -e stopped ]; then
  touch stopped
  trap '' TERM  # the run ends its commands as soon as it is told
  agentos stop r > told
  trap - TERM
  kill -TERM $$
fi
echo "$1 ends"
"""
# Item `b` kills the process of its run at its first launch.
KILLS = """\
#!/bin/sh
if [ "$1" = b ] && [ ! -e killed ]; then
  while [ ! -s run.pid ] || [ "$(agentos show r --json | grep -cE '"(succeeded|started)": 1')" != 2 ]; do
    sleep 0.2
  done
  touch killed
  kill -9 "$(cat run.pid)"
  while :; do sleep 0.05; done
fi
echo "$1 ends"
"""
FUNCTIONS = '''\
"""Workers for items."""

from agentos.workflows.parallel import Permanent, current_item


def greet(item, credential):
    print(f"greeting {item}")
    return {"hello": item, "attempt": current_item().attempt}


def refuse(item, credential):
    raise Permanent(f"nothing can be done about {item}")


def stumble(item, credential):
    if item == "b":
        raise ValueError(f"{item} is no good")
    return len(item)


number = 5
'''
ABC = "--item a --item b --item c"
# A run of three items in which one succeeds, to be looked at.
MIXED_RUN = f"agentos run --run-id r --parallel 1 --quiet {ABC} -- ./mixed {{id}} > output 2>&1"

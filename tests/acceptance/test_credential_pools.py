"""Deployments, regions and profile folders as one pool each, with the real program and real commands."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from agentos.testing import DailyQuota, SimulatedProvider
from tests.conftest import eventually

from .program import PATIENCE, Sandbox, all_gone

# Calls a deployment of Azure as its SDK would, and prints which one answered. Exit status 75: a limit.
CALL_AZURE = """
import json, os, sys, urllib.error, urllib.request
url = f"{os.environ['AZURE_OPENAI_ENDPOINT']}/openai/deployments/{os.environ['DEPLOYMENT']}/chat/completions"
body = json.dumps({"messages": [{"role": "user", "content": sys.argv[1]}]}).encode()
headers = {"api-key": os.environ["AZURE_OPENAI_API_KEY"], "content-type": "application/json"}
try:
    with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as answer:
        print("answered by", json.load(answer)["model"])
except urllib.error.HTTPError as error:
    print("status", error.code, error.read().decode())
    sys.exit(75 if error.code == 429 else 1)
"""
# Appends what it sees to a file; two commands in one profile at once would be noticed.
IN_PROFILE = """
mkdir "$CLAUDE_CONFIG_DIR/in-use" || { echo "$CLAUDE_CONFIG_DIR is in use" >> faults; exit 1; }
echo "$1 $AGENTOS_CREDENTIAL_ID $CLAUDE_CONFIG_DIR ${ANTHROPIC_API_KEY-none}" >> seen
while [ -e stop-"$1" ]; do sleep 0.02; done
rmdir "$CLAUDE_CONFIG_DIR/in-use"
"""


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    return Sandbox(tmp_path)


def items(count: int) -> list[str]:
    return [argument for number in range(count) for argument in ("--item", f"item-{number}")]


def files_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_two_azure_deployments_are_one_pool(sandbox: Sandbox) -> None:
    """Each has its own address, key and allowance; neither would accept the key of the other."""
    sandbox.write("call.py", CALL_AZURE)
    keys = {"eu": "azure-key-eu-0123456789", "us": "azure-key-us-0123456789"}
    with (
        SimulatedProvider([keys["eu"]], limits=[DailyQuota(3)], latency=0.0) as eu,
        SimulatedProvider([keys["us"]], limits=[DailyQuota(5)], latency=0.0) as us,
    ):
        text = ""
        for region, provider in (("eu", eu), ("us", us)):
            sandbox.environ[f"KEY_{region.upper()}"] = keys[region]
            text += f"""
                [[credential]]
                id = "azure-{region}"
                secret = "env:KEY_{region.upper()}"
                provider = "azure"
                base_url = "{provider.base_url}"
                command_env = {{ AZURE_OPENAI_ENDPOINT = "{provider.base_url}", DEPLOYMENT = "gpt-{region}" }}
            """
        sandbox.write("keys.toml", text)
        checked = sandbox.agentos("keys", "check", "--keys", "keys.toml")
        assert checked.returncode == 0, checked.stdout + checked.stderr
        eu.reset()
        us.reset()
        done = sandbox.agentos(
            "run", "--keys", "keys.toml", *items(8), "--parallel", "2", "--", sys.executable, "call.py", "{id}"
        )
        assert done.returncode == 0, done.stdout + done.stderr
        for provider, region, count in ((eu, "eu", 3), (us, "us", 5)):
            served = [entry for entry in provider.log if entry.status == 200]
            assert Counter((entry.key, entry.model) for entry in served) == {(keys[region], f"gpt-{region}"): count}
            assert not any(entry.status == 401 for entry in provider.log)


def test_one_key_in_two_regions_is_one_pool(sandbox: Sandbox) -> None:
    """The regions are used at the same time: each command waits for one of the other region."""
    sandbox.environ |= {"SHARED_KEY": "bedrock-key-0123456789", "AWS_REGION": "inherited"}
    sandbox.write(
        "keys.toml",
        "".join(
            f"""
            [[credential]]
            id = "bedrock-{region}"
            secret = "env:SHARED_KEY"
            provider = "bedrock"
            command_env = {{ AWS_REGION = "{region}", OTHER = "{other}" }}
            """
            for region, other in (("eu", "us"), ("us", "eu"))
        ),
    )
    script = sandbox.script(
        'test "$AWS_BEARER_TOKEN_BEDROCK" = "$(printf %s bedrock-key- 0123456789)" || exit 1\n'
        'touch "in-$AWS_REGION"\nwhile [ ! -e "in-$OTHER" ]; do sleep 0.02; done\necho "$AWS_REGION" >> seen\n'
    )
    done = sandbox.agentos("run", "--keys", "keys.toml", *items(4), "--parallel", "2", "--timeout", "30", "--", script)
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(sandbox.lines("seen")) == {"eu", "us"}
    assert len(sandbox.lines("seen")) == 4


def profiles(sandbox: Sandbox) -> None:
    home = Path(sandbox.environ["HOME"])
    for name in ("a", "b"):
        (home / f".claude-{name}").mkdir()
    sandbox.write(
        "keys.toml",
        "".join(
            f"""
            [[credential]]
            id = "claude-{name}"
            provider = "anthropic"
            command_env = {{ CLAUDE_CONFIG_DIR = "~/.claude-{name}" }}
            """
            for name in ("a", "b")
        ),
    )


def test_two_profile_folders_are_one_pool(sandbox: Sandbox) -> None:
    """One command at a time in each, and no inherited key takes the place of the log-in; also after a resume."""
    sandbox.environ["ANTHROPIC_API_KEY"] = "sk-ant-of-the-person-0123456789"
    profiles(sandbox)
    script = sandbox.script(IN_PROFILE)
    sandbox.write("fail-item-5", "")
    failing = sandbox.script(f'{script} "$1" && [ ! -e "fail-$1" ]\n', "failing.sh")
    command = ["--keys", "keys.toml", "--parallel", "4", "--run-id", "r", "--", failing, "{id}"]
    done = sandbox.agentos("run", *items(6), *command)
    assert done.returncode == 1, done.stdout + done.stderr
    assert not sandbox.lines("faults")
    home = sandbox.environ["HOME"]
    seen = [line.split() for line in sandbox.lines("seen")]
    assert {(credential, folder, key) for _, credential, folder, key in seen} == {
        (f"claude-{name}", f"{home}/.claude-{name}", "none") for name in ("a", "b")
    }
    (sandbox.path / "fail-item-5").unlink()
    done = sandbox.agentos("retry", "r")
    assert done.returncode == 0, done.stdout + done.stderr
    item, credential, folder, key = sandbox.lines("seen")[-1].split()
    assert (item, key) == ("item-5", "none")
    assert folder == f"{home}/.{credential}"


def test_killed_run_in_profiles_is_resumed(sandbox: Sandbox) -> None:
    profiles(sandbox)
    script = sandbox.script("echo $$ >> pids\n" + IN_PROFILE)
    for name in ("item-1", "item-2"):
        sandbox.write(f"stop-{name}", "")
    run = ("run", *items(4), "--keys", "keys.toml", "--parallel", "4", "--run-id", "r", "--", script, "{id}")
    with sandbox.start(*run) as program:
        eventually(
            lambda: {line.split()[0] for line in sandbox.lines("seen")} >= {"item-0", "item-1", "item-2"}, PATIENCE
        )
        pids = [int(pid) for pid in sandbox.lines("pids")]
        eventually(lambda: "1 succeeded" in sandbox.agentos("show", "r").stdout, PATIENCE)
        program.kill()
        program.wait()
    eventually(lambda: all_gone(pids))
    for path in [*sandbox.path.glob("stop-*"), *Path(sandbox.environ["HOME"]).glob(".claude-*/in-use")]:
        path.rmdir() if path.is_dir() else path.unlink()
    done = sandbox.agentos("resume", "r")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not sandbox.lines("faults")
    seen = Counter(line.split()[0] for line in sandbox.lines("seen"))
    assert seen == {"item-0": 1, "item-1": 2, "item-2": 2, "item-3": 1}


def test_profile_status_and_plan_need_no_key(sandbox: Sandbox) -> None:
    profiles(sandbox)
    status = sandbox.agentos("keys", "--keys", "keys.toml", "--json")
    records = json.loads(status.stdout)["credentials"]
    assert [(each["id"], each["state"], each["limits"]["max_concurrent"]) for each in records] == [
        ("claude-a", "usable", 1),
        ("claude-b", "usable", 1),
    ]
    dry = sandbox.agentos("run", "--dry-run", *items(3), "--keys", "keys.toml", "--", "true")
    assert dry.returncode == 0, dry.stdout + dry.stderr


def test_referenced_settings_are_in_no_output_and_no_file(sandbox: Sandbox) -> None:
    canary = "hdr-canary/'7Qx9ZpL2"
    sandbox.environ |= {"KEY": "sk-settings-0123456789", "TOKEN_SOURCE": canary}
    sandbox.write(
        "keys.toml",
        """
        [[credential]]
        id = "team-a"
        secret = "env:KEY"
        credential_env = "API_KEY"
        command_env = { TOKEN = "env:TOKEN_SOURCE" }
        [credential.headers]
        X-Token = "env:TOKEN_SOURCE"
        """,
    )
    script = sandbox.script('echo "out $TOKEN"; echo "err $TOKEN" >&2; [ -z "$TOKEN_SOURCE" ]\n')
    done = sandbox.agentos("run", "--keys", "keys.toml", "--run-id", "r", "--item", "a", "--", script)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "out ****" in done.stdout
    shown = sandbox.agentos("show", "r", "--json").stdout + sandbox.agentos("logs", "r").stdout
    assert canary not in done.stdout + done.stderr + shown
    assert canary.encode() not in files_of(sandbox.home)
    leak = sandbox.agentos("run", "--keys", "keys.toml", "--item", "a", "--", "echo", canary)
    assert leak.returncode == 2
    assert "contains the secret of a credential" in leak.stderr
    assert canary not in leak.stderr


def test_unset_reference_of_setting_stops_the_run(sandbox: Sandbox) -> None:
    text = '[[credential]]\nid = "a"\ncommand_env = { TOKEN = "env:NOT_SET" }\n'
    sandbox.write("keys.toml", text)
    done = sandbox.agentos("run", "--keys", "keys.toml", "--item", "a", "--", "true")
    assert done.returncode == 2
    assert "credential a: the environment variable NOT_SET is not set or empty" in done.stderr

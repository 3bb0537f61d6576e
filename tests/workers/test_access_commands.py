"""Commands in a run with a gateway: their environment, their files, and how their ends are classified."""

from __future__ import annotations

import base64
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from agentos.limits import backoff
from agentos.verdict import QUOTA_EXHAUSTED, Verdict
from agentos.workflows.parallel import (
    Command,
    Credential,
    CredentialCoordinator,
    Ledger,
    ParallelCoordinator,
    Pattern,
    WorkerStartError,
)
from tests.conftest import eventually
from tests.support.fake_access import FakeAccess

CANARY = "sk-canary-0123456789abcdef"


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "delay", lambda *_args, **_options: 0.001)


@pytest.fixture
def access() -> FakeAccess:
    return FakeAccess()


def run(access: FakeAccess, code: str, *, folder: Path | None = None, patterns: Any = (), **options: Any) -> Any:
    """Run Python code as the command of one item, and return its result."""
    pool = CredentialCoordinator([Credential(CANARY, id="canary")], reporter=lambda _: None)
    command = Command(
        [sys.executable, "-c", code], credential_env={"canary": "TOOL_KEY"}, folder=folder, patterns=patterns
    )
    coordinator = ParallelCoordinator(1, pool, reporter=None, gateway=access, **options)
    (result,) = coordinator.execute_parallel(["a"], command)[1]
    assert not access.open_tokens
    assert set(access.closed.values()) == {1}
    return result


def test_command_has_token_where_it_looks_for_a_key(
    access: FakeAccess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("INHERITED_KEY", f"Bearer {CANARY}")
    monkeypatch.setenv("RETRY_WATCHDOG", "1")
    access.settings = {"RETRY_WATCHDOG": None, "TELEMETRY": "off"}
    monkeypatch.setenv("OUT", str(tmp_path / "environment"))
    run(access, "import json, os; json.dump(dict(os.environ), open(os.environ['OUT'], 'w'))")
    environment = json.loads((tmp_path / "environment").read_text())
    token = access.token_of("a")
    for name in ("TOOL_KEY", "OPENAI_API_KEY", "AGENTOS_CLIENT_TOKEN"):
        assert environment[name] == token
    assert environment["AGENTOS_GATEWAY_URL"] == access.url
    assert environment["OPENAI_BASE_URL"] == f"{access.url}/v1"
    assert environment["TELEMETRY"] == "off"
    assert "RETRY_WATCHDOG" not in environment
    assert "AGENTOS_CREDENTIAL_ID" not in environment
    assert CANARY not in str(environment)


def test_client_settings_are_removed_with_the_attempt(access: FakeAccess, tmp_path: Path) -> None:
    """What the command itself has saved stays until its item succeeds."""
    code = (
        "import os, pathlib; folder = pathlib.Path(os.environ['AGENTOS_CHECKPOINT_DIR'])\n"
        "(folder / '.client' / 'config.toml').write_text('x'); (folder / 'saved').write_text('y')\n"
        "raise SystemExit(1 if os.environ['AGENTOS_ATTEMPT'] == '1' else 0)"
    )
    assert run(access, code, folder=tmp_path, retries=1).success
    assert len(access.folders) == 2
    eventually(lambda: not any((tmp_path / "checkpoints").rglob("*")))


def test_folder_of_client_settings_exists_and_is_private(access: FakeAccess, tmp_path: Path) -> None:
    modes: list[int] = []
    environment = access.environment

    def look(token: str, arguments: Any, folder: str) -> Any:
        modes.append(Path(folder).stat().st_mode & 0o777)
        assert arguments[0] == sys.executable
        return environment(token, arguments, folder)

    access.environment = look  # type: ignore[method-assign]
    assert run(access, "pass", folder=tmp_path).success
    assert modes == [0o700]


@pytest.mark.parametrize("encode", [str, lambda token: base64.b64encode(token.encode()).decode()])
def test_token_is_redacted_in_output_and_log(access: FakeAccess, tmp_path: Path, encode: Any) -> None:
    code = (
        "import base64, os, sys; t = os.environ['AGENTOS_CLIENT_TOKEN']\n"
        "print(t, base64.b64encode(t.encode()).decode()); print(t, file=sys.stderr)"
    )
    result = run(access, code, folder=tmp_path)
    token = access.token_of("a")
    assert encode(token) not in str(result)
    logs = "".join(path.read_text() for path in (tmp_path / "logs").iterdir())
    assert logs
    assert encode(token)[:-2] not in logs


def test_text_about_limits_says_nothing_without_a_refusal(access: FakeAccess) -> None:
    code = "import sys; print('HTTP 429: rate limit exceeded, retry after 3600 s', file=sys.stderr); sys.exit(1)"
    result = run(access, code, retries=1)
    assert (result.success, result.attempts) == (False, 2)  # an ordinary failure, which spends retries
    assert result.metadata["verdict"] is None


def test_exit_status_zero_is_a_success_without_a_refusal(access: FakeAccess) -> None:
    patterns = [Pattern(re.compile("usage limit reached"), QUOTA_EXHAUSTED)]
    assert run(access, "print('usage limit reached')", patterns=patterns).success


def test_silent_failure_after_a_refusal_returns_the_item(access: FakeAccess) -> None:
    """Some agents print that a limit was reached, and exit with status 0."""
    patterns = [Pattern(re.compile("usage limit reached"), QUOTA_EXHAUSTED)]
    access.on_open = lambda token, _item, attempt: (
        access.refuse(token, Verdict(QUOTA_EXHAUSTED, 0.001)) if attempt == 1 else None
    )
    code = "import os; print('usage limit reached' if os.environ['AGENTOS_ATTEMPT'] == '1' else 'done')"
    result = run(access, code, patterns=patterns, retries=0)
    assert (result.success, result.attempts) == (True, 2)


def test_failed_client_after_a_refusal_returns_the_item(access: FakeAccess, tmp_path: Path) -> None:
    access.on_open = lambda token, _item, attempt: (
        access.refuse(token, Verdict(QUOTA_EXHAUSTED, 0.001)) if attempt == 1 else None
    )
    code = "import os, sys; sys.exit('gave up' if os.environ['AGENTOS_ATTEMPT'] == '1' else 0)"
    result = run(access, code, retries=0, ledger=tmp_path / "run.db")
    assert (result.success, result.attempts) == (True, 2)
    with Ledger.open(tmp_path / "run.db") as ledger:
        assert [attempt.verdict for attempt in ledger.attempts("a")] == [QUOTA_EXHAUSTED, "succeeded"]


def test_killed_command_closes_its_token_and_keeps_usage(access: FakeAccess, tmp_path: Path) -> None:
    access.on_open = lambda token, _item, _attempt: access.use(token, requests=4, input_tokens=9)
    result = run(access, "import time; time.sleep(600)", timeout=0.3, retries=0, ledger=tmp_path / "run.db")
    assert result.metadata["usage"]["requests"] == 4
    with Ledger.open(tmp_path / "run.db") as ledger:
        assert [attempt.requests for attempt in ledger.attempts("a")] == [4]


def test_command_that_cannot_start_closes_its_token(access: FakeAccess) -> None:
    pool = CredentialCoordinator([Credential(CANARY, id="canary")], reporter=lambda _: None)
    coordinator = ParallelCoordinator(1, pool, reporter=None, gateway=access)
    with pytest.raises(WorkerStartError):
        coordinator.execute_parallel(["a"], Command(["/nonexistent/program"]))
    assert set(access.closed.values()) == {1}


def test_usage_reported_by_command_is_not_counted_twice(access: FakeAccess) -> None:
    access.on_open = lambda token, _item, _attempt: access.use(token, requests=2, input_tokens=50, output_tokens=5)
    report = json.dumps({"usage": {"requests": 2, "tokens": 55, "cost": 0.125}})
    code = f"import os; open(os.environ['AGENTOS_REPORT'], 'w').write({report!r} + chr(10))"
    usage = run(access, code).metadata["usage"]
    assert (usage["requests"], usage["tokens"], usage["cost"]) == (2, 55, 0.125)

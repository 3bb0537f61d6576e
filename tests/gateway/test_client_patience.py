"""How long requests are held for clients that wait differently, and how Codex is told of a long wait."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentos.gateway._hold import hold_of, retry_headers
from agentos.gateway._request import ClientRequest
from agentos.gateway._routes import Route
from agentos.gateway.gateway import Gateway
from agentos.pool.credential import Credential
from agentos.pool.lease_pool import LeasePool

CODEX = "codex_exec/0.169.0 (Debian 12.0.0; x86_64)"


def request(family: str) -> ClientRequest:
    return ClientRequest("POST", Route(family, "/", family), "", [], b"")


def test_gemini_requests_are_held_for_less_by_default() -> None:
    assert hold_of(request("gemini"), 280) == 50
    assert hold_of(request("anthropic"), 280) == 280


def test_patient_gemini_client_is_held_for_the_whole_hold() -> None:
    assert hold_of(request("gemini"), 280, is_patient=True) == 280


@pytest.mark.parametrize(("program", "is_patient"), [("gemini", True), ("./script", False)])
def test_attempt_is_patient_by_its_settings(program: str, is_patient: bool, tmp_path: Path) -> None:
    gateway = Gateway(LeasePool([Credential("sk-key-of-a-test", provider="gemini")]))
    token = gateway.open("run", "item", 1)
    gateway.environment(token, [program, "-p", "x"], str(tmp_path))
    client = gateway._tokens.attempt(token)
    assert client is not None
    assert client.is_patient is is_patient


@pytest.mark.parametrize(
    ("user_agent", "wait", "name", "value"),
    [
        (CODEX, "61", "retry-after-ms", "61000"),
        (CODEX, "60", "retry-after", "60"),
        ("claude-cli/2.1.326 (external, sdk-cli)", "7200", "retry-after", "7200"),
        ("", "7200", "retry-after", "7200"),
    ],
)
def test_codex_gets_a_long_wait_in_milliseconds(user_agent: str, wait: str, name: str, value: str) -> None:
    """It would wait out any other in its process, with the worker occupied."""
    headers = retry_headers(user_agent, {"content-type": "application/json", "retry-after": wait})
    assert headers == {"content-type": "application/json", name: value}


def test_refusal_without_a_wait_is_unchanged() -> None:
    assert retry_headers(CODEX, {"content-type": "x"}) == {"content-type": "x"}

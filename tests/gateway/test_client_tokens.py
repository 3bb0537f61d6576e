"""Client tokens: for attempts and named clients (invariant 35), and the file of named clients."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import httpx
import pytest

from agentos.costs.prices import Price, Prices
from agentos.errors import GatewayError
from agentos.gateway.client_tokens import ClientTokens, NamedClients, digest, new_token

from .support import Call, Upstream, chat_answer, chat_body, credentials, running_gateway


async def handler(call: Call) -> None:
    await call.answer(200, chat_answer())


def status(url: str, token: str, header: str = "authorization", prefix: str = "Bearer ") -> int:
    return httpx.post(
        f"{url}/v1/chat/completions", headers={header: prefix + token}, content=chat_body(), timeout=30
    ).status_code


def test_token_works_for_its_attempt_only() -> None:
    with Upstream(handler) as upstream, running_gateway(credentials(upstream.url, "a")) as (gateway, token):
        other = gateway.open("run", "item", 2)
        assert token != other
        assert status(gateway.url, token) == 200
        gateway.close(token)
        assert status(gateway.url, token) == 401
        assert status(gateway.url, other) == 200
        assert status(gateway.url, new_token()) == 401
        assert gateway.usage(other).requests == 1


def test_ended_token_is_forgotten() -> None:
    tokens = ClientTokens()
    token = tokens.open("an attempt")
    client = tokens.close(token)
    assert client is not None
    assert not client.is_open
    assert tokens.find([token]) is tokens.attempt(token) is tokens.close(token) is None


@pytest.mark.parametrize("header", ["x-api-key", "x-goog-api-key", "api-key"])
def test_token_is_accepted_where_the_key_would_be(header: str) -> None:
    with Upstream(handler) as upstream:
        creds = credentials(upstream.url, "a") + credentials(upstream.url, "g", provider="gemini")
        with running_gateway(creds) as (gateway, token):
            assert status(gateway.url, token, header, "") == 200


def test_token_has_prefix_and_32_random_characters() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(token.startswith("agentos-") and len(token) == 40 and token[8:].isalnum() for token in tokens)


def test_file_holds_hashes_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "gateway" / "clients.json"
    token = NamedClients(path).add("laptop")
    assert token not in path.read_text()
    assert json.loads(path.read_text())["clients"]["laptop"]["sha256"] == digest(token)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_running_gateway_notices_changed_file(tmp_path: Path) -> None:
    path = tmp_path / "clients.json"
    now = [0.0]
    clients = NamedClients(path, clock=lambda: now[0])
    tokens = ClientTokens(clients)
    token = NamedClients(path).add("laptop")
    assert tokens.find([token]) is None
    now[0] = 1.5
    found = tokens.find(["other", token])
    assert found is not None
    assert found.name == "laptop"
    second = NamedClients(path).add("laptop")
    now[0] = 3.0
    assert tokens.find([token]) is None
    assert tokens.find([second]) is found  # the same client: what it used goes on
    NamedClients(path).remove("laptop")
    now[0] = 4.5
    assert tokens.find([second]) is None


@pytest.mark.parametrize("damage", ["", '{"clients": 3}', "[" * 100_000])
def test_damaged_file_ends_no_token_of_a_running_gateway(tmp_path: Path, damage: str) -> None:
    """Every request was answered with 500, also those of other clients."""
    path = tmp_path / "clients.json"
    now = [0.0]
    clients = NamedClients(path, clock=lambda: now[0])
    token = clients.add("laptop")
    path.write_text(damage)
    for now[0] in (1.5, 3.0):
        found = clients.find(digest(token))
        assert found is not None
        assert found.name == "laptop"
    path.unlink()
    second = NamedClients(path).add("other")
    now[0] = 4.5
    assert clients.find(digest(token)) is None
    assert clients.find(digest(second)) is not None


def test_tokens_that_are_made_at_once_all_work(tmp_path: Path) -> None:
    """Two programs have read the file before either writes it."""
    path = tmp_path / "clients.json"
    first, second = NamedClients(path), NamedClients(path)
    tokens = [first.add("a"), second.add("b"), first.add("c")]
    clients = NamedClients(path)
    assert [clients.find(digest(token)) is not None for token in tokens] == [True] * 3


def test_named_client_is_served(tmp_path: Path) -> None:
    named = NamedClients(tmp_path / "clients.json")
    token = named.add("laptop")
    with Upstream(handler) as upstream, running_gateway(credentials(upstream.url, "a"), named=named) as (gateway, _):
        assert status(gateway.url, token) == 200


@pytest.mark.parametrize("content", ["", "[]", '{"clients": 3}', '{"clients": {"a": {}}}'])
def test_damaged_file_is_reported(tmp_path: Path, content: str) -> None:
    path = tmp_path / "clients.json"
    path.write_text(content)
    with pytest.raises(GatewayError, match="make the tokens again"):
        NamedClients(path)


@pytest.mark.parametrize("name", ["", "x" * 65, "line\nfeed", "\x1b[31m"])
def test_name_that_cannot_be_shown_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(GatewayError, match="name has 1 to 64"):
        NamedClients(tmp_path / "clients.json").add(name)


def test_unknown_name_cannot_be_removed(tmp_path: Path) -> None:
    with pytest.raises(GatewayError, match="no client is named 'x'"):
        NamedClients(tmp_path / "clients.json").remove("x")


PRICES = Prices({"m": Price(input=2.0, output=10.0)})


def test_usage_of_attempt_has_the_cost_of_its_requests() -> None:
    async def handler(call: Call) -> None:
        await call.answer(200, chat_answer(prompt_tokens=1000, completion_tokens=100))

    with Upstream(handler) as upstream, running_gateway(credentials(upstream.url, "a"), prices=PRICES) as served:
        gateway, token = served
        headers = {"authorization": f"Bearer {token}"}
        assert gateway.usage(token).cost is None
        for _ in range(2):
            httpx.post(f"{gateway.url}/v1/chat/completions", headers=headers, content=chat_body())
        httpx.get(f"{gateway.url}/v1/models", headers=headers)  # has no tokens
        assert gateway.usage(token).cost == pytest.approx(2 * 0.003)
        httpx.post(f"{gateway.url}/v1/chat/completions", headers=headers, content=chat_body(model="of no price"))
        assert gateway.usage(token).cost is None
        assert gateway.close(token).usage.cost is None

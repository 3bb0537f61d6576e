"""Proxies that the environment names, addresses of IPv6, and addresses beside loopback."""

from __future__ import annotations

import socket

import httpx
import pytest

from agentos.cli.commands.gateway import _announce
from agentos.gateway import _upstream

from .support import Call, Upstream, chat_answer, chat_body, credentials, running_gateway


@pytest.mark.parametrize(
    ("variables", "proxy"),
    [
        ({}, None),
        ({"http": "http://proxy.test:1"}, None),
        ({"https": "http://proxy.test:1"}, "http://proxy.test:1"),
        ({"https": "proxy.test:1"}, "http://proxy.test:1"),
        ({"all": "https://user:pass@proxy.test:1"}, "https://user:pass@proxy.test:1"),
        ({"https": "http://proxy.test:1", "no": "provider.test"}, None),
        ({"https": "http://proxy.test:1", "no": "*"}, None),
    ],
)
def test_proxy_is_that_of_the_environment(
    variables: dict[str, str], proxy: str | None, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"{name}_proxy", value)
    host = f"{hash(request.node.name)}.provider.test"  # what was found for another host may be remembered
    assert _upstream._proxy("https", host) == proxy


def test_proxy_of_another_kind_is_named_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be sent requests that it does not understand, with the key in them."""
    monkeypatch.setenv("all_proxy", "socks5://127.0.0.1:9")
    with (
        running_gateway(credentials("http://socks.provider.test", "a")) as (gateway, token),
        httpx.Client(trust_env=False) as client,
    ):
        headers = {"authorization": f"Bearer {token}"}
        answer = client.post(f"{gateway.url}/v1/chat/completions", headers=headers, content=chat_body())
        assert answer.status_code == 502
        assert "a proxy that is not reached by HTTP" in answer.text


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_gateway_and_provider_have_addresses_of_ipv6() -> None:
    async def handler(call: Call) -> None:
        await call.answer(200, chat_answer())

    with (
        Upstream(handler, "::1") as upstream,
        running_gateway(credentials(f"{upstream.url}/v1", "a"), host="::1") as (gateway, token),
    ):
        assert gateway.url.startswith("http://[::1]:")
        headers = {"authorization": f"Bearer {token}"}
        answer = httpx.post(f"{gateway.url}/v1/chat/completions", headers=headers, content=chat_body())
        assert answer.status_code == 200
        assert f"http://{upstream.calls[0].headers['host']}" == upstream.url


@pytest.mark.parametrize(("listen", "is_warned"), [("127.0.0.1:1", False), ("0.0.0.0:1", True), ("192.0.2.1:1", True)])
def test_address_for_other_machines_gives_a_warning(
    listen: str, is_warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    _announce(f"http://{listen}", listen)
    assert ("can be reached from other machines" in capsys.readouterr().err) == is_warned


@pytest.mark.parametrize(
    ("name", "on_loopback", "on_all"),
    [
        ("localhost", True, True), ("127.0.0.1", True, True), ("[::1]", True, True),
        ("host.docker.internal", False, True), ("host.containers.internal", False, True),
        ("192.0.2.7", False, True), ("[2001:db8::1]", False, True), ("evil.example", False, False),
        ("127.0.0.1.evil.example", False, False), ("gateway.internal", True, True),
    ],
)  # fmt: skip
def test_host_names_an_address_of_the_gateway(name: str, on_loopback: bool, on_all: bool) -> None:
    """Containers reach their host by names and addresses that the gateway cannot know. A name that was allowed may be
    reached through a port of its own."""
    with running_gateway(credentials("http://127.0.0.1:9", "a"), allowed_hosts=["gateway.internal"]) as (gateway, _):
        server = gateway._server
        port = gateway.url.rpartition(":")[2]
        for host, is_accepted in (("127.0.0.1", on_loopback), ("0.0.0.0", on_all)):
            server._host = host
            assert server._is_own_name(name) == server._is_own_name(f"{name}:{port}") == is_accepted
            assert server._is_own_name(f"{name}:1") == (name == "gateway.internal")

"""`agentos gateway` as a program: start, tokens, drain on Ctrl-C, and a missing extra."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
import ssl
import stat
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.cli.cli_runs import INTERRUPTIBLE
from tests.conftest import eventually
from tests.support.tls import write_certificate

from .support import CANARY, Call, Upstream, chat_answer, chat_body


class Program:
    def __init__(self, process: subprocess.Popen[str], output: Path, home: Path) -> None:
        self.process = process
        self.output = output
        self.home = home

    @property
    def url(self) -> str:
        lines = [line for line in self.output.read_text().splitlines() if line.startswith("Gateway on ")]
        return lines[0].removeprefix("Gateway on ") if lines else ""

    @property
    def token(self) -> str:
        return (self.home / "gateway" / "default.token").read_text().strip()


def keys_file(folder: Path, url: str, max_concurrent: int = 9) -> Path:
    path = folder / "keys.toml"
    path.write_text(
        f'[provider.openai]\nbase_url = "{url}"\n'
        '[[credential]]\nsecret = "env:MY_KEY"\nid = "one"\nprovider = "openai"\n'
        f"max_concurrent = {max_concurrent}\n"
    )
    return path


def environment(home: Path) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("AGENTOS_")}
    return {**plain, "AGENTOS_HOME": str(home), "MY_KEY": CANARY}


@contextmanager
def running(
    tmp_path: Path, url: str, *options: str, max_concurrent: int = 9, home: Path | None = None,
    terminal: int | None = None,
) -> Iterator[Program]:  # fmt: skip
    """`terminal`: a descriptor of the terminal that controls the program; None: that of this process."""
    output, home = tmp_path / "output.txt", home or tmp_path / "home"
    keys = str(keys_file(tmp_path, url, max_concurrent))
    command = [*INTERRUPTIBLE, "gateway", "--keys", keys, "--listen", "127.0.0.1:0", *options]
    with output.open("w") as file, subprocess.Popen(
        command, env=environment(home), stdin=terminal, stdout=file, stderr=file, text=True,
        start_new_session=terminal is not None,
        preexec_fn=None if terminal is None else lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    ) as process:  # fmt: skip
        program = Program(process, output, home)
        try:
            eventually(lambda: program.url or process.poll() is not None)
            assert program.url, output.read_text()
            yield program
        finally:
            process.kill()


def ask(program: Program) -> httpx.Response:
    headers = {"authorization": f"Bearer {program.token}"}
    return httpx.post(f"{program.url}/v1/chat/completions", headers=headers, content=chat_body(), timeout=60)


def is_cut(program: Program) -> None:
    with pytest.raises(httpx.TransportError):
        ask(program)


async def answer(call: Call) -> None:
    await call.answer(200, chat_answer())


@pytest.mark.parametrize("store", ["memory:", None])
def test_program_serves_and_writes_no_secret(tmp_path: Path, store: str | None) -> None:
    options = () if store is None else ("--store", store)
    with Upstream(answer) as upstream, running(tmp_path, upstream.url, *options) as program:
        assert ask(program).status_code == 200
        assert upstream.calls[0].key == CANARY
        arguments = Path(f"/proc/{program.process.pid}/cmdline")
        if arguments.exists():
            assert CANARY.encode() not in arguments.read_bytes()
        program.process.send_signal(signal.SIGINT)
        assert program.process.wait(30) == 0
        written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
        assert not any(CANARY.encode() in content for content in written)
        token = program.token.encode()
        assert sum(token in content for content in written) == 1  # the file that was announced
        assert f"{program.home}/gateway/default.token" in program.output.read_text()


@pytest.mark.parametrize("is_trusted", [True, False])
def test_certificate_of_the_provider_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_trusted: bool
) -> None:
    certificate, key = write_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    if is_trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with Upstream(answer, tls=context) as upstream, running(tmp_path, upstream.url, "--store", "memory:") as program:
        answered = ask(program)
        assert (answered.status_code, len(upstream.calls)) == ((200, 1) if is_trusted else (502, 0))
        assert is_trusted or "SSL_CERT_FILE" in answered.json()["error"]["message"]


def test_hang_up_drains_however_often_it_comes(tmp_path: Path) -> None:
    """A shell and its terminal may both send SIGHUP; the terminal is gone by then, so that nothing can be printed."""
    terminal, program_side = os.openpty()
    release: list[asyncio.Event] = []

    async def handler(call: Call) -> None:
        release.append(asyncio.Event())
        await release[-1].wait()
        await answer(call)

    with (
        Upstream(handler) as upstream,
        running(tmp_path, upstream.url, "--store", "memory:", "--grace", "60", terminal=program_side) as program,
    ):
        os.close(program_side)
        results: list[httpx.Response] = []
        request = threading.Thread(target=lambda: results.append(ask(program)))
        request.start()
        eventually(lambda: release)
        os.close(terminal)  # the system sends SIGHUP
        eventually(lambda: "Draining" in program.output.read_text())
        program.process.send_signal(signal.SIGHUP)
        upstream.signal(release[0])
        request.join()
        assert results[0].status_code == 200
        assert program.process.wait(30) == 0


def test_first_token_makes_a_private_home(tmp_path: Path) -> None:
    """With umask 002 the home directory was open to the group, and every later command refused to use it."""
    home = tmp_path / "new" / "home"
    command = [*INTERRUPTIBLE, "gateway", "token", "laptop"]
    subprocess.run(command, env=environment(home), umask=0, check=True)
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (home, home / "gateway")] == [0o700, 0o700]


def test_first_interrupt_drains_second_ends_at_once(tmp_path: Path) -> None:
    release: list[asyncio.Event] = []

    async def handler(call: Call) -> None:
        release.append(asyncio.Event())
        await release[-1].wait()
        await answer(call)

    with Upstream(handler) as upstream:
        with running(tmp_path, upstream.url, "--store", "memory:", "--grace", "60") as program:
            results: list[httpx.Response] = []
            request = threading.Thread(target=lambda: results.append(ask(program)))
            request.start()
            eventually(lambda: release)
            program.process.send_signal(signal.SIGINT)
            eventually(lambda: "Draining" in program.output.read_text())
            upstream.signal(release[0])
            request.join()
            assert results[0].status_code == 200
            assert program.process.wait(30) == 0
        with running(tmp_path, upstream.url, "--store", "memory:", "--grace", "60") as program:
            request = threading.Thread(target=is_cut, args=(program,))
            request.start()
            eventually(lambda: len(release) == 2)
            program.process.send_signal(signal.SIGINT)
            eventually(lambda: "Draining" in program.output.read_text())
            program.process.send_signal(signal.SIGINT)
            assert program.process.wait(10) == -signal.SIGINT
            request.join()


def test_token_of_named_client_works_while_the_gateway_runs(tmp_path: Path) -> None:
    with Upstream(answer) as upstream, running(tmp_path, upstream.url, "--store", "memory:") as program:
        made = subprocess.run(
            [*INTERRUPTIBLE, "gateway", "token", "laptop"], env=environment(program.home), capture_output=True,
            text=True, check=True,
        )  # fmt: skip
        headers = {"x-api-key": made.stdout.strip()}

        def status() -> int:
            return httpx.post(f"{program.url}/v1/chat/completions", headers=headers, content=chat_body()).status_code

        eventually(lambda: status() == 200)
        remove = [*INTERRUPTIBLE, "gateway", "token", "laptop", "--remove"]
        subprocess.run(remove, env=environment(program.home), check=True, capture_output=True)
        eventually(lambda: status() == 401)


def test_two_gateways_share_the_limits_of_one_store(tmp_path: Path) -> None:
    """Also while one of them is killed: the other serves on, and the key never has more requests than it may."""
    under_way, most = [0], [0]

    async def handler(call: Call) -> None:
        under_way[0] += 1
        most[0] = max(most[0], under_way[0])
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(call.wait_for_disconnect(), 0.02)
        under_way[0] -= 1
        if not call.is_cancelled.is_set():
            await answer(call)

    (tmp_path / "other").mkdir()
    with (
        Upstream(handler) as upstream,
        running(tmp_path, upstream.url, max_concurrent=2) as first,
        running(tmp_path / "other", upstream.url, max_concurrent=2, home=first.home) as second,
        ThreadPoolExecutor(12) as clients,
    ):
        at_second = [clients.submit(ask, second) for _ in range(30)]
        at_first = [clients.submit(ask, first) for _ in range(30)]
        eventually(lambda: len(upstream.calls) >= 10)
        first.process.kill()
        assert [each.result().status_code for each in at_second] == [200] * 30
        for each in at_first:
            with contextlib.suppress(httpx.TransportError):
                assert each.result().status_code == 200
        assert most[0] == 2


def test_file_of_the_default_token_follows_the_token(tmp_path: Path) -> None:
    """Else it would hold one that has ended, and the start of the next gateway would announce it."""
    home = tmp_path / "home"
    file = home / "gateway" / "default.token"
    command = [*INTERRUPTIBLE, "gateway", "token", "default"]
    for _ in range(2):
        made = subprocess.run(command, env=environment(home), capture_output=True, text=True, check=True)
        assert file.read_text() == made.stdout
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    subprocess.run([*command, "--remove"], env=environment(home), check=True, capture_output=True)
    assert not file.exists()


def test_port_in_use_is_reported_in_one_sentence(tmp_path: Path) -> None:
    keys = str(keys_file(tmp_path, "http://127.0.0.1:9"))
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        ended = subprocess.run(
            [*INTERRUPTIBLE, "gateway", "--keys", keys, "--store", "memory:", "--listen", address],
            env=environment(tmp_path / "home"), capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert ended.returncode == 3
    assert ended.stderr == f"Error: cannot listen on {address}: address already in use\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--listen", "127.0.0.1"], "write HOST:PORT"),
        (["--listen", "127.0.0.1:99999"], "write HOST:PORT"),
        (["--listen", "192.0.2.1:80"], "cannot listen on 192.0.2.1:80"),
    ],
)
def test_address_that_cannot_be_used_is_reported(tmp_path: Path, options: list[str], message: str) -> None:
    keys = str(keys_file(tmp_path, "http://127.0.0.1:9"))
    ended = subprocess.run(
        [*INTERRUPTIBLE, "gateway", "--keys", keys, "--store", "memory:", *options],
        env=environment(tmp_path / "home"), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode in (2, 3)
    assert message in ended.stderr


def test_warnings_of_the_keys_file_are_printed(tmp_path: Path) -> None:
    keys = keys_file(tmp_path, "http://127.0.0.1:9")
    keys.write_text(keys.read_text().replace("env:MY_KEY", CANARY))
    keys.chmod(0o600)  # else it is refused
    ended = subprocess.run(
        [*INTERRUPTIBLE, "gateway", "--keys", str(keys), "--store", "memory:", "--listen", "192.0.2.1:80"],
        env=environment(tmp_path / "home"), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert f"Warning: {keys} holds keys in plain text (one): " in ended.stderr
    assert CANARY not in ended.stderr


def test_missing_extra_is_named_with_its_command(tmp_path: Path) -> None:
    program = "import sys; sys.modules['aiohttp'] = None\nfrom agentos.cli import main\nmain(prog_name='agentos')"
    keys = str(keys_file(tmp_path, "http://127.0.0.1:9"))
    ended = subprocess.run(
        [sys.executable, "-c", program, "gateway", "--keys", keys], env=environment(tmp_path / "home"),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 3
    assert "pip install 'agentos-parallel[gateway]'" in ended.stderr

"""Processes of a benchmark: an upstream and the proxies before it, with the CPU time and memory of each."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Self

from .settings import CONCURRENT, KEYS

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / ".tools"
# The program of TeamClaude: from the package of npm (see the Makefile), or from a copy of its sources.
TEAMCLAUDE = [
    TOOLS / "teamclaude/node_modules/@karpeleslab/teamclaude/src/index.js",
    TOOLS / "teamclaude/source/src/index.js",
]
LITELLM = TOOLS / "litellm/bin/litellm"
START_SECONDS = 120.0
PORT = r"(\d+)\n"


class Proxy:
    """A process with an address and the token that clients show it. A `with` block ends it."""

    def __init__(self, command: list[str], folder: Path, environment: dict[str, str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.output = folder / "output.txt"
        with self.output.open("w") as file:
            self.process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=file, stderr=file,
                env={**os.environ, **(environment or {})},
            )  # fmt: skip
        self.url = ""
        self.token = "bench"

    def wait_for(self, pattern: str) -> str:
        """Return what a pattern finds in the output, as soon as it does. Raises `RuntimeError` if the process ends."""
        deadline = time.monotonic() + START_SECONDS
        while (found := re.search(pattern, self.output.read_text())) is None:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"not started: {self.output.read_text()[-2000:]}")
            time.sleep(0.05)
        return found.group(1)

    def wait_until_served(self, path: str) -> None:
        """Block until a path is answered with any status."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                urllib.request.urlopen(self.url + path, timeout=5).close()
            except urllib.error.HTTPError:
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"not started: {self.output.read_text()[-2000:]}") from None
                time.sleep(0.1)
            else:
                return

    def cpu_seconds(self) -> float:
        """Return the CPU time of all threads of the process."""
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    def memory_mb(self) -> float:
        """Return the resident memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()


def upstream(folder: Path, *certificate: str) -> Proxy:
    """Start the upstream, over TLS with a certificate and its key."""
    proxy = Proxy([sys.executable, "-m", "benchmarks.proxies.upstream", *certificate], folder)
    scheme = "https" if certificate else "http"
    proxy.url = f"{scheme}://localhost:{proxy.wait_for(PORT)}"
    return proxy


def bare(folder: Path, base_url: str, *, with_lease: bool = False, ca_file: str | None = None) -> Proxy:
    """Start an aiohttp proxy without rules."""
    command = [sys.executable, "-m", "benchmarks.proxies.bare", base_url, *(["lease"] if with_lease else [])]
    proxy = Proxy(command, folder, {"SSL_CERT_FILE": ca_file} if ca_file else {})
    proxy.url = f"http://127.0.0.1:{proxy.wait_for(PORT)}"
    return proxy


def ours(
    folder: Path, base_url: str, provider: str = "anthropic", limits: str = f"max_concurrent = {CONCURRENT}",
    ca_file: str | None = None, keys: list[str] = KEYS,
) -> Proxy:  # fmt: skip
    """Start `agentos gateway` with the keys of one provider."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f'[provider.{provider}]\nbase_url = "{base_url}"\n']
    lines += [
        f'[[credential]]\nid = "key-{number}"\nsecret = "env:BENCH_KEY_{number}"\nprovider = "{provider}"\n{limits}\n'
        for number in range(len(keys))
    ]
    (folder / "keys.toml").write_text("".join(lines))
    environment = {f"BENCH_KEY_{number}": key for number, key in enumerate(keys)}
    environment |= {"AGENTOS_HOME": str(folder / "home")} | ({"SSL_CERT_FILE": ca_file} if ca_file else {})
    command = [sys.executable, "-m", "agentos.cli", "gateway", "--keys", str(folder / "keys.toml"), "--store",
               "memory:", "--listen", "127.0.0.1:0"]  # fmt: skip
    proxy = Proxy(command, folder, environment)
    proxy.url = proxy.wait_for(r"Gateway on (\S+)")
    proxy.token = (folder / "home/gateway/default.token").read_text().strip()
    return proxy


def teamclaude(folder: Path, base_url: str, ca_file: str | None = None, keys: list[str] = KEYS) -> Proxy | None:
    """Start TeamClaude with the keys as accounts; return None where it or Node is not installed."""
    program = next((path for path in TEAMCLAUDE if path.exists()), None)
    if program is None or shutil.which("node") is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    token, port = f"tc-{secrets.token_hex(8)}", _free_port()
    accounts = [{"name": f"key-{number}", "type": "apikey", "apiKey": key} for number, key in enumerate(keys)]
    config = {"proxy": {"port": port, "apiKey": token}, "upstream": base_url, "autoUpdate": False,
              "quotaProbeSeconds": 0, "upstreamProxy": False, "accounts": accounts}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    environment = {"TEAMCLAUDE_CONFIG": str(folder / "config.json"), "TEAMCLAUDE_DISABLE_AUTOUPDATE": "1"}
    environment |= {"HOME": str(folder)} | ({"NODE_EXTRA_CA_CERTS": ca_file} if ca_file else {})
    proxy = Proxy(["node", str(program), "server", "--headless"], folder, environment)
    proxy.url, proxy.token = f"http://127.0.0.1:{port}", token
    proxy.wait_until_served("/")
    return proxy


def litellm(
    folder: Path, base_url: str, keys: list[str] = KEYS, requests_per_minute: int | None = None
) -> Proxy | None:
    """Start LiteLLM's proxy with one worker and the keys as deployments; return None where it is not installed."""
    if not LITELLM.exists():
        return None
    folder.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    models = [
        {"model_name": name, "litellm_params": {"model": f"openai/{name}", "api_base": f"{base_url}/v1", "api_key": key}
         | ({"rpm": requests_per_minute} if requests_per_minute else {})}
        for name in ("bench-small", "bench-stream") for key in keys
    ]  # fmt: skip
    settings = {"num_retries": 3, "disable_cooldowns": False}
    (folder / "config.yaml").write_text(json.dumps({"model_list": models, "router_settings": settings}))
    token = f"sk-{secrets.token_hex(32)}"
    environment = {
        "LITELLM_MASTER_KEY": token,
        "LITELLM_LOG": "ERROR",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "HOME": str(folder),
    }
    command = [str(LITELLM), "--config", str(folder / "config.yaml"), "--host", "127.0.0.1", "--port", str(port),
               "--num_workers", "1", "--telemetry", "False"]  # fmt: skip
    proxy = Proxy(command, folder, environment)
    proxy.url, proxy.token = f"http://127.0.0.1:{port}", token
    proxy.wait_until_served("/health/liveliness")
    return proxy


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port

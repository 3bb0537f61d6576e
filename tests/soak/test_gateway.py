"""A gateway under load and faults (`make soak`): clients that leave, slow readers, refusals, resets, hangs, kill -9.

Upstream, gateway and clients are three processes. The upstream keeps a log of its own, by which limits are judged.

A request counts from its last byte until its answer is complete or the end of its connection was read, as in the front
end of a provider: nothing that a client does can be known earlier. A provider whose workers notice a cancelled request
only when they write again counts longer; how far that is above the limit is printed and not judged, because the only
cure is to use less than the limit. Windows count each request when it has come, also those that are refused.

A request has come at some instant since the upstream last looked at its sockets. On a machine that gives it no time
for a second, that instant is not known better; so a window is passed only if it is for any of these instants.

A machine that gives the gateway no time between a lease and its request passes windows, too (docs/gateway.md). How long
the gateway was ready to run without a processor is printed: where that is below the jitter that is allowed for, a
window that was passed is a fault of the gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import httpx

from tests.conftest import eventually
from tests.gateway.test_command import environment

from .shares import seconds

CLIENTS = 200
KEYS = 8
# Requests that each key may have at a time, as declared to the gateway; the upstream's log is the judge.
MAX_CONCURRENT = 10
# WINDOW requests of a key in WINDOW_SECONDS, for the keys below WINDOW_KEYS. The judge looks at slightly shorter
# windows: requests do not all take the same time from their lease to the upstream.
WINDOW, WINDOW_SECONDS, JITTER_SECONDS = 10, 10, 0.5
WINDOW_KEYS = 2
# Seconds that a gateway may take to start on a machine that is under load.
START_SECONDS = 300.0
# Kilobytes by which the gateway's memory may grow between the first and the last quarter of the run.
MAX_GROWTH = 40_000

_numbers = itertools.count()  # of requests: each may take effect once

UPSTREAM = '''
import asyncio, json, random, sys
from collections import Counter, defaultdict, deque

window = float(sys.argv[1])
running, peak, effects = Counter(), Counter(), Counter()
lingering, late_peak = Counter(), Counter()  # counted until their handler has noticed the end
arrivals, most = defaultdict(deque), Counter()  # earliest instants by key; most of them within a window
looks, late = deque([0.0], 3), 0.0  # at the sockets; several, because a new connection takes more than one to be read

async def look():
    while True:
        looks.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0.01)

def arrived(key, earliest):
    global late
    now, times = asyncio.get_running_loop().time(), arrivals[key]
    late = max(late, now - earliest)
    times.append(earliest)
    while times[0] <= now - window:
        times.popleft()
    most[key] = max(most[key], len(times))

class Connection(asyncio.StreamReaderProtocol):
    """A request runs until its answer is complete, or its connection is closed: not until the next write notices."""

    key = None
    earliest = 0.0  # at which the last bytes may have come

    def data_received(self, data):
        self.earliest = looks[0]
        super().data_received(data)

    def begin(self, key):
        self.key = key
        running[key] += 1
        peak[key] = max(peak[key], running[key])

    def end(self):
        if self.key is not None:
            running[self.key] -= 1
            self.key = None

    def eof_received(self):
        self.end()
        return super().eof_received()

    def connection_lost(self, exc):
        self.end()
        super().connection_lost(exc)

async def connected(reader, writer):
    try:
        while True:
            head = (await reader.readuntil(b"\\r\\n\\r\\n")).decode("latin-1")
            fields = dict(line.lower().split(": ", 1) for line in head.split("\\r\\n")[1:] if ": " in line)
            await reader.readexactly(int(fields.get("content-length", 0)))
            if head.startswith("GET /_judge"):
                reply(writer, 200, {"peak": peak, "running": running, "effects": effects, "most": most,
                                    "late_peak": late_peak, "late": late})
                continue
            key = fields["authorization"]
            arrived(key, writer.transport.get_protocol().earliest)
            await asyncio.sleep(0)  # ends of connections that came before this request are in this round of the loop
            connection = writer.transport.get_protocol()
            connection.begin(key)
            lingering[key] += 1
            late_peak[key] = max(late_peak[key], lingering[key])
            try:
                await answer(fields.get("x-effect", "?"), reader, writer)
                await writer.drain()
            finally:
                connection.end()
                lingering[key] -= 1
    except (ConnectionError, TimeoutError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()

def reply(writer, status, body, *lines):
    data = json.dumps(body).encode()
    head = [f"HTTP/1.1 {status} S", "content-type: application/json", f"content-length: {len(data)}", *lines, "", ""]
    writer.write("\\r\\n".join(head).encode() + data)

async def answer(number, reader, writer):
    chance = random.random()
    if chance < 0.05:
        error = {"error": {"message": "Rate limit reached.", "type": "requests", "code": "rate_limit_exceeded"}}
        return reply(writer, 429, error, "retry-after: 0.2")
    effects[number] += 1
    if chance < 0.07:
        writer.transport.abort()
        raise ConnectionResetError
    if chance < 0.09:
        await asyncio.wait_for(reader.read(), 5)
        raise ConnectionResetError
    writer.write(b"HTTP/1.1 200 OK\\r\\ncontent-type: text/event-stream\\r\\ntransfer-encoding: chunked\\r\\n\\r\\n")
    for n in range(random.choice([3, 20, 200])):
        piece = {"choices": [{"index": 0, "delta": {"content": "x" * 200}}]}
        event = b"data: " + json.dumps(piece).encode() + b"\\n\\n"
        writer.write(b"%x\\r\\n%b\\r\\n" % (len(event), event))
        await writer.drain()
        await asyncio.sleep(random.choice([0, 0.002, 0.01]))
        if chance < 0.11 and n == 2:
            writer.transport.abort()
            raise ConnectionResetError
    writer.write(b"%x\\r\\n%b\\r\\n0\\r\\n\\r\\n" % (14, b"data: [DONE]\\n\\n"))

async def main():
    loop = asyncio.get_running_loop()
    looking = loop.create_task(look())
    server = await loop.create_server(lambda: Connection(asyncio.StreamReader(), connected), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
'''


class Served:
    """The gateway's process, which is killed and started again on the same port."""

    def __init__(self, folder: Path, upstream: str) -> None:
        self.folder, self.home, self.port = folder, folder / "home", 0
        self.keys = folder / "keys.toml"
        table = '[[credential]]\nsecret = "env:KEY_{n}"\nid = "k{n}"\nprovider = "openai"\nmax_concurrent = {m}\n'
        window = f'[[credential.window]]\nof = "requests"\namount = {WINDOW}\nevery = "{WINDOW_SECONDS}s"\n'
        self.keys.write_text(
            f'[provider.openai]\nbase_url = "{upstream}"\n'
            + "".join(table.format(n=n, m=MAX_CONCURRENT) + (window if n < WINDOW_KEYS else "") for n in range(KEYS))
        )

    def start(self) -> None:
        keys = {f"KEY_{n}": f"sk-soak-key-{n}-0123456789" for n in range(KEYS)}
        output = self.folder / "output.txt"
        with output.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "agentos.cli", "gateway", "--keys", str(self.keys), "--listen",
                 f"127.0.0.1:{self.port}", "--hold", "20"],
                env=environment(self.home) | keys, stdout=file, stderr=file,
            )  # fmt: skip
        eventually(lambda: "Gateway on" in output.read_text(), START_SECONDS)
        self.url = next(line for line in output.read_text().splitlines() if line.startswith("Gateway")).split()[-1]
        self.port = int(self.url.rpartition(":")[2])
        self.token = (self.home / "gateway" / "default.token").read_text().strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def memory(self) -> int:
        """Return the resident kilobytes; 0 where the system does not tell."""
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
                if line.startswith("VmRSS"):
                    return int(line.split()[1])
        return 0

    def waited(self) -> float:
        """Return the seconds that the loop of the process was ready to run without a processor; 0 if unknown."""
        with contextlib.suppress(OSError):
            return int(Path(f"/proc/{self.process.pid}/schedstat").read_text().split()[1]) / 1e9
        return 0.0

    def live_leases(self) -> int:
        states = httpx.get(f"{self.url}/-/pool", headers={"x-api-key": self.token}).json()["credentials"]
        return sum(state["live_leases"] for state in states)


async def load(served: Served, until: float, outcomes: Counter[str]) -> tuple[list[int], float]:
    """Return the memory of the gateway, second by second, and the most seconds that it waited for a processor between
    two looks."""
    memory, waits = [], [0.0]

    async def watch() -> None:
        waited = served.waited()
        while time.monotonic() < until:
            memory.append(served.memory())
            await asyncio.sleep(1)
            waits.append(served.waited() - waited)
            waited += waits[-1]

    async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=CLIENTS)) as client:
        await asyncio.gather(watch(), *(_client(client, served, until, outcomes) for _ in range(CLIENTS)))
    return memory, max(waits)


async def _client(client: httpx.AsyncClient, served: Served, until: float, outcomes: Counter[str]) -> None:
    while time.monotonic() < until:
        headers = {"authorization": f"Bearer {served.token}", "x-effect": str(next(_numbers))}
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "x" * 1000}]}
        leaves_after = random.choice([None, None, 0, 2, 50])
        pause = random.choice([0, 0, 0, 0.05])
        try:
            async with client.stream("POST", f"{served.url}/v1/chat/completions", json=body, headers=headers) as answer:
                outcomes[str(answer.status_code)] += 1
                parts = 0
                async for _ in answer.aiter_bytes():
                    parts += 1
                    await asyncio.sleep(pause)
                    if leaves_after is not None and parts >= leaves_after:
                        break
        except httpx.HTTPError as failure:
            outcomes[type(failure).__name__] += 1
            await asyncio.sleep(0.1)


def test_gateway_survives_load_faults_and_kills(tmp_path: Path) -> None:
    """No lease leaks, no limit is passed, no request takes effect twice, memory is flat (invariants 1, 33, 34)."""
    length = seconds(2.0)
    outcomes: Counter[str] = Counter()
    command = [sys.executable, "-c", UPSTREAM, str(WINDOW_SECONDS - JITTER_SECONDS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as upstream:
        assert upstream.stdout is not None
        judge = f"http://127.0.0.1:{int(upstream.stdout.readline())}"
        served = Served(tmp_path, judge)
        killer = threading.Timer(length / 6, lambda: (served.kill(), served.start()))  # while clients are served
        try:
            served.start()
            killer.start()
            _, before = asyncio.run(load(served, time.monotonic() + length / 3, outcomes))
            killer.join()
            memory, after = asyncio.run(load(served, time.monotonic() + length * 2 / 3, outcomes))
            eventually(lambda: served.live_leases() == 0)
            counts = httpx.get(f"{judge}/_judge").json()
            quarter = len(memory) // 4
            growth = max(memory[-quarter:]) - max(memory[:quarter]) if quarter else 0
            most = {key: n for key, n in counts["most"].items() if int(key.split("-")[3]) < WINDOW_KEYS}
            print(f"{sum(outcomes.values())} requests: {dict(outcomes)}; memory {memory[-1]} KB, growth {growth} KB; "
                  f"at a time {max(counts['peak'].values())}, with late notice {max(counts['late_peak'].values())}, of "
                  f"{MAX_CONCURRENT}; in a window {max(most.values())} of {WINDOW}, "
                  f"judged with up to {counts['late']:.2f} s of doubt; the gateway waited up to "
                  f"{max(before, after):.2f} s of a second for a processor")  # fmt: skip
            assert max(counts["effects"].values()) == 1
            assert max(counts["peak"].values()) == MAX_CONCURRENT, "passed, or never reached"
            assert len(most) == WINDOW_KEYS
            assert WINDOW / 2 < max(most.values()) <= WINDOW
            assert httpx.get(f"{served.url}/-/health").json() == {"status": "ok", "requests_under_way": 0}
            assert outcomes["200"] > 100
            assert growth < MAX_GROWTH
        finally:
            killer.cancel()
            if killer.ident is not None:
                killer.join()  # a restart that has begun must end first, or its process would be left
            served.kill()
            upstream.kill()

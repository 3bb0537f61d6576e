"""`agentos demo`: a real run of commands with five keys of a simulated provider; two keys are unusable.

The requests go through a gateway where its extra is installed, so that no command has a key. Without it each command
gets a key.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import click

from agentos.errors import GatewayError
from agentos.gateway.gateway import check_installed
from agentos.home.run_folder import DEMO, DEMO_KEYS_FILE, SPEC_VERSION, ItemSource, RunFolder, RunSpec
from agentos.plurals import plural
from agentos.testing import SimulatedProvider
from agentos.testing.answers import LogEntry

from ..console import INTERRUPTED, SUCCEEDED, Command
from ..launch.execute import execute
from ..launch.reporter import OutputMode
from . import _demo_item

ITEMS = 60
KEYS = 5
WORKERS = 8
REQUESTS_PER_SECOND = 2.0
BURST = 3
_KEYS_FILE = """# The keys of a demo. They exist only in the environment of its process.
[provider.demo]
base_url = "{base_url}"

[[credential]]
id = "key-1"
provider = "demo"
secret = "env:DEMO_KEY_1"
credential_env = "DEMO_API_KEY"
requests_per_minute = 120
burst = 3
max_concurrent = 4
"""
_UNDECLARED = """
[[credential]]
id = "key-{number}"
provider = "demo"
secret = "env:DEMO_KEY_{number}"
credential_env = "DEMO_API_KEY"
max_concurrent = 4
"""


@click.command(cls=Command)
@click.option("--no-progress", is_flag=True, help="Print lines instead of the live display.")
@click.pass_context
def demo(context: click.Context, /, no_progress: bool) -> None:
    """Run 60 items over 5 keys of a simulated provider: one key is invalid, one is out of quota, two items fail.

    Needs no key and no network, and takes about 15 seconds. Ctrl-C stops it. The requests go through a gateway if the
    extra [gateway] is installed: the commands then get no key.

    \b
    Example:
      agentos demo
    """
    context.exit(run_demo(OutputMode(no_progress=no_progress)))


def run_demo(mode: OutputMode) -> int:
    """Run the demo and return its exit status: 0 if it went as planned, which includes two failed items."""
    keys = [f"demo-{secrets.token_hex(16)}" for _ in range(KEYS)]
    variables = {f"DEMO_KEY_{number}": key for number, key in enumerate(keys, start=1)}
    has_gateway = _is_gateway_installed()
    provider = _make_provider(keys)
    with provider:
        os.environ.update(variables)
        try:
            folder, spec = _describe_run(provider.base_url, has_gateway=has_gateway)
            click.echo(_introduction(provider.base_url, has_gateway=has_gateway), err=True)
            started = time.monotonic()
            status = execute(folder, spec, mode)
            seconds = time.monotonic() - started
        finally:
            for name in variables:
                os.environ.pop(name, None)
    click.echo(_conclusion(provider.log, keys, seconds, spec.run_id, has_gateway=has_gateway), err=True)
    if status >= INTERRUPTED:
        return status
    # More: without a gateway an item that failed may be tried once more with another key.
    return SUCCEEDED if sum(1 for entry in provider.log if entry.status == 200) >= ITEMS else 1


def _is_gateway_installed() -> bool:
    try:
        check_installed()
    except GatewayError:
        return False
    return True


def _introduction(base_url: str, *, has_gateway: bool) -> str:
    if has_gateway:
        way = "Its requests go through a gateway, which leases a key for each of them: no program gets a key."
    else:
        way = "It gets a key. With pip install 'agentos-parallel[gateway]' it would get none, and never see a limit."
    return (
        f"A simulated provider on {base_url} allows each key a burst of {BURST} requests, then "
        f"{REQUESTS_PER_SECOND:g} per second.\nkey-1 declares this limit, key-2 and key-3 have to learn it; "
        f"key-4 is invalid, and key-5 is out of quota.\nA program runs for each of {ITEMS} documents, "
        f"{WORKERS} at a time. {way}\nPress Ctrl-C to stop.\n"
    )


def _conclusion(log: Iterable[LogEntry], keys: list[str], seconds: float, run_id: str, *, has_gateway: bool) -> str:
    """Return what the provider's log says of the run."""
    served = sum(1 for entry in log if entry.status == 200)
    refused = Counter(entry.key for entry in log if entry.status != 200)
    invalid, without_quota = refused.pop(keys[3], 0), refused.pop(keys[4], 0)
    limit = refused.total()
    unseen = "No command noticed." if has_gateway else "All were retried."
    return (
        f"\n{plural(served, 'request')} were served in {seconds:.1f} s; the limits of three valid keys allow "
        f"{_legal_minimum(keys[:3], served):.1f} s at best.\n"
        f"The provider refused {plural(limit + invalid + without_quota, 'request')}: {limit} for a limit, {invalid} "
        f"with the invalid key, {without_quota} with the key that is out of quota. {unseen}\n"
        f"{' and '.join(_demo_item.EMPTY)} fail in every demo, because they are empty.\n\n"
        f"What happened, and why:   agentos show {run_id}\n"
        f"The output of an item:    agentos logs {run_id} {_demo_item.EMPTY[0]}"
    )


def _make_provider(keys: list[str]) -> SimulatedProvider:
    return SimulatedProvider(
        keys,
        requests_per_second=REQUESTS_PER_SECOND,
        burst=BURST,
        headers="off",
        latency=0.2,
        dead=keys[3:4],
        out_of_quota=keys[4:5],
    )


def _legal_minimum(good_keys: list[str], requests: int) -> float:
    provider = SimulatedProvider(good_keys, requests_per_second=REQUESTS_PER_SECOND, burst=BURST)
    return provider.legal_minimum(requests)


def _describe_run(base_url: str, *, has_gateway: bool) -> tuple[RunFolder, RunSpec]:
    run_id = DEMO + time.strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(2)
    folder = RunFolder(run_id)
    folder.make()
    keys_file = folder.path / DEMO_KEYS_FILE
    text = _KEYS_FILE.format(base_url=base_url)
    keys_file.write_text(text + "".join(_UNDECLARED.format(number=number) for number in range(2, KEYS + 1)))
    host = _demo_item.GATEWAY if has_gateway else base_url.removeprefix("http://")
    spec = RunSpec(
        version=SPEC_VERSION,
        run_id=run_id,
        created_at=time.time(),
        cwd=os.getcwd(),  # noqa: PTH109
        items=[ItemSource("inline", items=[f"document-{number:02d}" for number in range(1, ITEMS + 1)])],
        command=[sys.executable, str(Path(_demo_item.__file__)), host, "{id}"],
        options={"parallel": WORKERS, "keys": str(keys_file), "store": "memory:", "gateway": has_gateway},
    )
    return folder, spec

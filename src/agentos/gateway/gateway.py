"""Gateway: an HTTP server between clients and providers that leases a credential for each request.

It implements `agentos.items.access.AttemptAccess`, so that runs can use it without knowing it; `agentos gateway` runs
one alone.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from agentos.clock import Clock
from agentos.costs.prices import Prices, has_published_prices
from agentos.errors import GatewayError
from agentos.items.access import AttemptEnd, AttemptUsage, RequestMeter
from agentos.pool.lease_pool import LeasePool

from ._agent_homes import PATIENCE_VARIABLE
from ._hold import DEFAULT_HOLD
from .addresses import ProviderAddress, known_addresses
from .client_settings import settings_for
from .client_tokens import Client, ClientTokens, NamedClients

if TYPE_CHECKING:
    from ._server import GatewayServer
    from ._state import GatewayState

# Seconds to wait for the start of the server.
START_SECONDS = 30.0
MISSING = "the gateway needs aiohttp: pip install 'agentos-parallel[gateway]'"


def check_installed() -> None:
    """Raise `GatewayError` if the library that a gateway needs is not installed."""
    try:
        import aiohttp  # noqa: F401
    except ImportError:
        raise GatewayError(MISSING) from None


class Gateway:
    """One gateway. `start` runs it on a thread of its own, `serve` on the caller's event loop.

    `providers` are addresses that differ from the known ones; `hold` is the longest time in seconds that a request is
    held; `prices` are those of models, by default the published ones (extra `prices`); `named` are clients beside the
    attempts of a run; `allowed_hosts` are further names under which clients reach it. All methods but `serve` may be
    called from any thread.
    """

    def __init__(
        self,
        pool: LeasePool,
        *,
        providers: Mapping[str, ProviderAddress] | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        hold: float | None = None,
        clock: Clock | None = None,
        prices: Prices | None = None,
        named: NamedClients | None = None,
        allowed_hosts: Sequence[str] = (),
    ) -> None:
        check_installed()
        from ._server import GatewayServer
        from ._state import GatewayState

        del clock  # that of the pool: leases and holds must agree
        keyless = [credential.id for credential in pool.credentials() if not credential.has_secret]
        if keyless:
            raise GatewayError(f"the credential {keyless[0]} has no key, so that it cannot be used through a gateway")
        self.pool = pool
        self.hold = DEFAULT_HOLD if hold is None else hold
        self.url = ""
        self._tokens = ClientTokens(named)
        self.prices = Prices() if prices is None else prices
        has_published_prices()  # loads the package (0.3 s) here, and not on the loop with the first request
        self._state: GatewayState = GatewayState(
            pool, self._tokens, {**known_addresses(), **(providers or {})}, self.hold, self.prices
        )
        self._server: GatewayServer = GatewayServer(self._state, host, tuple(allowed_hosts))
        self._host, self._port = host, port
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stop: asyncio.Event | None = None
        self._grace = 0.0

    def use_addresses(self, providers: Mapping[str, ProviderAddress]) -> None:
        """Replace the addresses that differ from the known ones, for requests from now on."""
        self._state.addresses = {**known_addresses(), **providers}

    # --- the server ---------------------------------------------------------------------------------------------------

    def start(self) -> str:
        """Start the server on an event-loop thread of its own; return its URL. Raises `GatewayError`."""
        started: Future[str] = Future()
        # Loads the package of prices (0.3 s) before workers run: a thread that imports an SDK at the same time could
        # find modules that both need half initialised.
        has_published_prices()
        self._thread = threading.Thread(target=self._run, args=(started,), name="agentos-gateway", daemon=True)
        self._thread.start()
        return started.result(START_SECONDS)

    def stop(self, grace: float = 10.0) -> None:
        """Drain: refuse new requests, let running ones finish within `grace` seconds, then cancel the rest. Blocks
        until the server has ended. Idempotent."""
        thread, loop, stop = self._thread, self._loop, self._stop
        if thread is None or loop is None or stop is None:
            return
        self._grace = grace
        self._call(stop.set)
        thread.join(grace + 5.0)
        self._thread = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.stop(0.0 if kind is not None else 10.0)

    async def serve(self, on_start: Callable[[str], None] = lambda _url: None, grace: float = 10.0) -> None:
        """Run on the caller's loop until cancelled; then drain for `grace` seconds. Raises `GatewayError`."""
        has_published_prices()  # loads the package: else the first request would
        await self._open()
        on_start(self.url)
        try:
            await asyncio.Event().wait()
        finally:
            await self._shut(grace)

    def _run(self, started: Future[str]) -> None:
        run_on_loop(self._serve_until_closed(started))

    async def _serve_until_closed(self, started: Future[str]) -> None:
        self._stop = asyncio.Event()
        try:
            await self._open()
        except BaseException as failure:
            started.set_exception(failure)
            return
        started.set_result(self.url)
        await self._stop.wait()
        await self._shut(self._grace)

    async def _open(self) -> None:
        from ._upstream import Upstream

        self._loop = asyncio.get_running_loop()
        self._state.upstream = Upstream()
        try:
            port = await self._server.listen(self._port)
        except OSError as error:
            await self._state.upstream.close()
            reason = os.strerror(error.errno).lower() if error.errno else str(error)
            raise GatewayError(f"cannot listen on {self._host}:{self._port}: {reason}") from None
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.url = f"http://{'127.0.0.1' if self._host in ('0.0.0.0', '::') else host}:{port}"  # noqa: S104

    async def _shut(self, grace: float) -> None:
        await self._server.close(grace)
        assert self._state.upstream is not None
        await self._state.upstream.close()

    def _call(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Run a call on the gateway's loop, soon. No-op if the loop has ended."""
        try:
            assert self._loop is not None
            self._loop.call_soon_threadsafe(call, *arguments)
        except (RuntimeError, AssertionError):
            return

    def stalled_seconds(self) -> float:
        """Return for how long requests have waited for a credential without any that was answered; 0 if none waits."""
        return self._state.stall.seconds(self.pool.clock.now())

    # --- attempts of a run: `AttemptAccess` ---------------------------------------------------------------------------

    def open(self, run_id: str, item_id: str, attempt: int, meter: RequestMeter | None = None, /) -> str:
        """Return a client token that is valid until `close`. `meter`: may refuse its requests."""
        del run_id, attempt
        return self._tokens.open(item_id, meter)

    def close(self, token: str, /) -> AttemptEnd:
        """End a token: its requests under way are cancelled and settled. Idempotent."""
        client = self._tokens.close(token)
        if client is None:
            return AttemptEnd(AttemptUsage(), None)
        for account in client.unsettled_requests():
            account.count()
        usage = client.usage_so_far()
        self._call(_cancel_all, client)
        return AttemptEnd(usage, client.verdict)

    def usage(self, token: str, /) -> AttemptUsage:
        """Return a copy of what was used so far. A request under way counts as it is estimated."""
        client = self._tokens.attempt(token)
        return AttemptUsage() if client is None else client.usage_so_far()

    def environment(self, token: str, arguments: Sequence[str], folder: str, /) -> Mapping[str, str | None]:
        """Return the variables that a command needs to use the gateway (None: remove the variable). May write
        configuration files below `folder`, which belongs to the attempt and exists."""
        providers = [credential.provider for credential in self.pool.credentials()]
        settings = settings_for(self.url, token, providers, arguments, folder)
        client = self._tokens.attempt(token)
        if client is not None:
            client.is_patient = PATIENCE_VARIABLE in settings
        return settings


def _cancel_all(client: Client) -> None:
    for exchange in tuple(client.exchanges):
        if exchange.handler is not None:
            exchange.handler.cancel()


def run_on_loop(serving: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine on a new event loop; uvloop's where that is installed. Blocks until it has ended."""
    try:
        factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    except ImportError:
        factory = asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(serving)

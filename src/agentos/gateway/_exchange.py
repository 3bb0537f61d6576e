"""Exchange: one request of a client, from its first lease to its settlement.

A request is sent again only if the provider refused it and no byte of an answer was passed on: `_refused` ends its
lease with the verdict, and the loop in `begin` takes the next credential. An answer that is passed on keeps its lease
until `finish`, which settles exactly once.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from agentos.limits.amounts import Detail
from agentos.pool.credential import Credential
from agentos.pool.references import is_reference
from agentos.pool.store import LeaseHandle
from agentos.providers import verdicts
from agentos.providers.usage import FirstEvents, limit_tokens
from agentos.verdict import AUTH_FAILED, RETRY_ON_OTHER_KEY, TRANSIENT, Verdict

from ._affinity import MIN_BYTES
from ._answers import LocalAnswer, error
from ._hold import hold_of
from ._leasing import Wanted, lease, unreachable
from ._masking import Masks
from ._owned_objects import lists_objects
from ._reader import AnswerReader
from ._request import ClientRequest, decoded
from ._request_account import RequestAccount
from ._state import GatewayState
from ._upstream import NotConnected, Untrusted
from ._upstream_answer import Answer, AnswerLost
from .addresses import join_url
from .client_tokens import Client

if TYPE_CHECKING:
    from asyncio import Task

# Seconds that the events which only open a stream are held back at most.
HANDSHAKE_SECONDS = 2.0
# Bytes of an error of a provider that are read and passed on.
MAX_ERROR_BYTES = 1024 * 1024
# Seconds until the body of an error must have arrived.
ERROR_SECONDS = 30.0
# Seconds from which a wait for a credential is counted as held.
MIN_HELD_SECONDS = 0.01
# Times that one request is sent at most; each time its provider refused it.
MAX_SENDS = 50
# Times that a request which may be carried out twice is sent again after its answer was lost.
MAX_LOST = 2
# Seconds that a credential is not used after its address could not be reached, doubled with each failure in a row.
UNREACHABLE_SECONDS = 1.0
MAX_UNREACHABLE_SECONDS = 30.0


class Exchange:
    """One request. `begin` returns when there is an answer to pass on; `finish` or `abandon` ends it."""

    def __init__(self, state: GatewayState, client: Client, request: ClientRequest) -> None:
        self.state = state
        self.client = client
        self.request = request
        self.task: Task[None] | None = None  # of `begin`, where it may outlive the client's connection
        self.handler: Task[object] | None = None  # that passes the answer on
        self.answer: Answer | None = None  # whose body is passed on as it comes
        self.error_body: bytes | None = None  # instead: of an error of the provider
        self.is_error_cut = False  # the end of that body is missing
        self.first_parts: list[bytes] = []  # of the body, held back until now
        self.reader: AnswerReader | None = None
        self._handle: LeaseHandle | None = None  # the live lease
        self._masks = Masks(())  # of the credential that was used last
        self._account = RequestAccount(state, client, request)
        self._unreachable = 0  # times that no connection was established
        self._address = ""  # to which
        self._lost = 0  # times that an answer was lost after the request was sent
        self.started_at = state.pool.clock.now()
        self.sent_at = self.started_at

    # --- until there is an answer -------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Send the request, again and again while providers refuse it and its hold lasts. Raises `LocalAnswer`."""
        state, request, clock = self.state, self.request, self.state.pool.clock
        wanted = self._wanted()
        deadline = self.started_at + hold_of(request, state.hold, is_patient=self.client.is_patient)
        usable_at = 0.0
        state.stall.begin(self.started_at)
        try:
            await self._send(wanted, deadline)
        except LocalAnswer as answer:
            usable_at = _usable_at(answer, clock.now())
            raise
        finally:
            state.stall.end(usable_at)

    async def _send(self, wanted: Wanted, deadline: float) -> None:
        """Send the request until it has an answer to pass on."""
        state, request, clock = self.state, self.request, self.state.pool.clock
        for _ in range(MAX_SENDS):
            self._account.check()
            waits_since = clock.now()
            try:
                handle = await lease(state.pool, wanted, deadline)
            except LocalAnswer as answer:
                if self._unreachable and answer.status == 429:
                    raise unreachable(request.route.error_shape, self._address) from None
                raise
            finally:
                self._count_held(clock.now() - waits_since)
            self._handle = handle
            state.stall.leased += 1
            try:
                if await self._has_answer(handle):
                    return
            except BaseException:
                self.finish()
                raise
        raise error(
            request.route.error_shape, "overloaded", f"refused by the provider {MAX_SENDS} times", retry_after=5
        )

    def _count_held(self, seconds: float) -> None:
        if seconds >= MIN_HELD_SECONDS:
            self.client.usage.held_seconds += seconds
            self.state.metrics.held(self.request.route.provider, seconds)

    def _wanted(self) -> Wanted:
        state, request, client = self.state, self.request, self.client
        route, facts = request.route, request.facts
        estimate = (0, 0)
        if route.shape is not None:
            estimate = state.estimates.of(request.model, facts.text_bytes, facts.max_tokens)
        self._account.expect(*estimate)
        only = self._owner()
        prefer = None
        if only is None and len(request.body) >= MIN_BYTES:
            prefer = state.affinity.credential(self._conversation(), state.pool.clock.now())
        return Wanted(
            client.name, state.provider_name(route.provider), route.error_shape, request.model,
            self._account.expected, prefer, only,
        )  # fmt: skip

    def _conversation(self) -> tuple[str | None, ...]:
        """Return what identifies the prompt cache of this request. Requests of a named client without a session have
        nothing in common but their sender."""
        session = self.request.facts.session
        token = str(id(self.client)) if session is None else ""
        return self.request.route.provider, self.request.model, session, token

    def _owner(self) -> str | None:
        """Return the one credential that may serve the request, because it names objects of one organisation."""
        state, request = self.state, self.request
        owners, unknown = state.objects.owners(request)
        if len(owners) == 1 and unknown is None:
            return owners.pop()
        if not owners and unknown is None and not lists_objects(request):
            return None
        alone = state.only_credential(request.route.provider)
        if alone is not None:
            return alone
        if len(owners) > 1:
            message = "the request names objects of several organisations, which no single key can use"
        elif unknown is None:
            message = "each key has a list of its own here: ask for single objects, or use a pool with one key"
        else:
            message = "the request names an object that no key of this gateway has made"
        raise error(request.route.error_shape, "not_found", message, is_final=True)

    async def _has_answer(self, handle: LeaseHandle) -> bool:
        """Send the request with a leased credential; return False if it was refused, and its lease has ended."""
        state, request = self.state, self.request
        assert handle.credential_id is not None
        credential = state.pool.credential_of(handle.credential_id)
        self._masks = Masks(credential.request_secrets)
        await self._account.open(handle.credential_id)
        self.sent_at = state.pool.clock.now()
        assert state.upstream is not None
        try:
            answer = await state.upstream.send(request.method, self._url(credential), self._headers(credential),
                                               request.body)  # fmt: skip
        except NotConnected as failure:
            is_secret = is_reference(credential.sources.base_url or "")
            self._address = f"the address of {credential.id}" if is_secret else str(failure)
            self._was_unreachable(handle)
            return False
        except Untrusted as failure:
            self._account.withdraw()
            raise self._failed(f"the request cannot be sent to this provider: {failure}") from None
        except AnswerLost as failure:
            self._lost += 1
            if request.is_idempotent and self._lost <= MAX_LOST:
                self._refused(handle, Verdict(TRANSIENT))
                return False
            raise self._failed(f"the connection to the provider broke after the request was sent ({failure}); it was "
                               "not sent again, because it may have been carried out") from None  # fmt: skip
        self.answer = answer
        if answer.status >= 400:
            return await self._has_error(handle, credential, answer)
        return await self._has_success(handle, credential, answer)

    async def _has_error(self, handle: LeaseHandle, credential: Credential, answer: Answer) -> bool:
        body, is_whole = await _read_all(answer)
        plain = decoded(body, answer.headers.get("Content-Encoding", ""), MAX_ERROR_BYTES)
        verdict = self._verdict(answer, credential, plain)
        is_about_path = verdict.kind == AUTH_FAILED and not self.request.route.is_open_to_every_key(self.request.method)
        if verdict.kind in RETRY_ON_OTHER_KEY and not is_about_path:
            self._refused(handle, verdict)
            return False
        if not is_about_path:
            self.state.pool.observed(handle, verdict)
        self._account.withdraw()
        self.error_body, self.is_error_cut = body, not is_whole
        return True

    async def _has_success(self, handle: LeaseHandle, credential: Credential, answer: Answer) -> bool:
        is_stream = answer.headers.get("Content-Type", "").startswith("text/event-stream")
        is_readable = answer.headers.get("Content-Encoding", "identity").strip().lower() in ("", "identity")
        if is_stream and is_readable and answer.status == 200:
            refusal = await self._first_events(answer)
            if refusal is not None:
                verdict = self._verdict(answer, credential, refusal)
                if verdict.kind in RETRY_ON_OTHER_KEY:
                    self._refused(handle, verdict)
                    return False
        assert handle.credential_id is not None
        self.reader = self._account.reader = AnswerReader(
            self.request, handle.credential_id, self._masks, self.state.objects, is_stream, is_readable
        )
        limits = self._verdict(answer, credential, None)
        if limits.limit_requests is not None or limits.limit_tokens is not None or limits.windows:
            self.state.pool.observed(handle, limits)
        self.state.metrics.first_byte(self.request.route.provider, self.state.pool.clock.now() - self.sent_at)
        return True

    async def _first_events(self, answer: Answer) -> bytes | None:
        """Hold back the events that only open a stream; return the error, if one follows them."""
        first = FirstEvents()
        deadline = asyncio.get_running_loop().time() + HANDSHAKE_SECONDS
        try:
            while first.state == "handshake":
                if answer.has_part:  # no timer is needed
                    part = await answer.read()
                else:
                    async with asyncio.timeout_at(deadline):
                        part = await answer.read()
                if not part:
                    break
                self.first_parts.append(part)
                first.feed(part)
        except TimeoutError:
            pass
        except AnswerLost as failure:
            raise self._failed(f"the connection to the provider broke ({failure})") from None
        return first.error if first.state == "error" else None

    def _verdict(self, answer: Answer, credential: Credential, body: bytes | None) -> Verdict:
        now = self.state.pool.clock.epoch()
        return verdicts.from_response(answer.status, answer.headers, body, provider=credential.provider, now=now)

    def _url(self, credential: Credential) -> str:
        route = self.request.route
        base_url = credential.base_url or self.state.addresses[route.provider].base_url
        if base_url is None:
            raise error(route.error_shape, "not_found", f"no address is known for {route.provider}: give it a base_url "
                        "in the keys file", is_final=True)  # fmt: skip
        url = join_url(base_url, route.path)
        return f"{url}?{self.request.query}" if self.request.query else url

    def _headers(self, credential: Credential) -> list[tuple[str, str]]:
        """Return the headers of the request, with the key in the one that its provider reads. Those of the credential
        replace all others."""
        address = self.state.addresses[self.request.route.provider]
        key = address.key_header, address.key_prefix + credential.secret
        if self.request.route.family == "openai" and address.family == "gemini":
            key = "Authorization", f"Bearer {credential.secret}"
        # Usage is read from the answer on its way, so that it must not be compressed.
        headers = [*self.request.headers, ("Accept-Encoding", "identity"), key]
        if not credential.headers:
            return headers
        own = {name.lower() for name in credential.headers}
        return [header for header in headers if header[0].lower() not in own] + [*credential.headers.items()]

    # --- the end of a lease -------------------------------------------------------------------------------------------

    def _refused(self, handle: LeaseHandle, verdict: Verdict) -> None:
        """End a lease whose request was refused, with its verdict."""
        self._take_back()
        self.state.pool.end(handle, verdict)
        assert handle.credential_id is not None
        self.client.count_refusal(handle.credential_id)
        self.state.metrics.refused(self.request.route.provider, verdict.kind or "other")

    def _was_unreachable(self, handle: LeaseHandle) -> None:
        """End a lease whose provider could not be reached. The credential rests."""
        self._unreachable += 1
        self._take_back()
        self.state.pool.settle(handle, 0, 0)
        seconds = min(UNREACHABLE_SECONDS * 2 ** (self._unreachable - 1), MAX_UNREACHABLE_SECONDS)
        self.state.pool.cool_and_end(handle, seconds, self._address)
        self.state.metrics.refused(self.request.route.provider, "unreachable")

    def _take_back(self) -> None:
        """Forget what was sent and received: the request has no answer, and may be sent again."""
        self._handle = None
        self.state.stall.leased -= 1
        self._account.withdraw()
        self._close_answer()
        self.first_parts.clear()

    def _failed(self, message: str) -> LocalAnswer:
        return error(self.request.route.error_shape, "server_error", message, status=502)

    def finish(self) -> None:
        """Settle from the usage in the answer, else by the estimate, and end the lease. Idempotent."""
        handle, self._handle = self._handle, None
        reader = self.reader
        is_complete = reader is not None and reader.is_complete
        self._close_answer(is_over=is_complete or (self.error_body is not None and not self.is_error_cut))
        if handle is None:
            return
        pool = self.state.pool
        self.state.stall.answered(pool.clock.now())
        shape = self.request.route.shape
        stated = self._account.stated()
        if stated is not None and shape is not None:
            input_tokens, output_tokens = limit_tokens(shape, stated)
            cost = self._account.cost(stated) or 0.0
            pool.settle(handle, None, input_tokens + output_tokens, Detail(input_tokens, output_tokens, cost))
            if is_complete:
                self.state.estimates.learn(self.request.model, self.request.facts.text_bytes, stated)
        elif self._account.is_open or self.error_body is not None:
            pool.settle(handle, None, None)
        else:
            pool.settle(handle, 0, 0)  # it was not sent
        is_answered = reader is not None
        pool.end(handle, None, is_answered)
        self._account.count()
        if is_answered:
            assert handle.credential_id is not None
            if len(self.request.body) >= MIN_BYTES and (self.client.is_attempt or self.request.facts.session):
                self.state.affinity.remember(self._conversation(), handle.credential_id, pool.clock.now())

    def masked(self, body: bytes) -> bytes:
        """Return an error of the provider without the key, which some providers repeat."""
        return self._masks.whole(body)

    def masked_text(self, text: str) -> str:
        """Return the value of a header without the key."""
        return self._masks.text(text)

    def abandon(self) -> None:
        """End the request without passing its answer on: its client has gone, or its token has ended."""
        if self.task is not None and not self.task.done():
            self.task.cancel()  # `begin` settles
        else:
            if self.task is not None and not self.task.cancelled():
                self.task.exception()  # retrieved, so that asyncio does not report it
            self.finish()

    def _close_answer(self, *, is_over: bool = False) -> None:
        answer, self.answer = self.answer, None
        if answer is not None:
            if is_over:
                answer.release()
            else:
                answer.close()


def _usable_at(answer: LocalAnswer, now: float) -> float:
    """Return when a credential will be usable, if a request was refused here because none is; 0 otherwise."""
    verdict = answer.verdict
    if verdict is None or verdict.kind == AUTH_FAILED or verdict.retry_after is None:
        return 0.0
    return now + verdict.retry_after


async def _read_all(answer: Answer) -> tuple[bytes, bool]:
    """Return the body of an error, and whether that is all of it: it may be cut, come too late, or be too long."""
    body = bytearray()
    try:
        async with asyncio.timeout(ERROR_SECONDS):
            while part := await answer.read():
                body += part
                if len(body) > MAX_ERROR_BYTES:
                    return bytes(body), False
    except (AnswerLost, TimeoutError):
        return bytes(body), False
    return bytes(body), True

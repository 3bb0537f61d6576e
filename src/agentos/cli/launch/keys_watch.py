"""KeysWatch: applies changes of the keys to the pool of a run or of a gateway that is going on.

Two things can change: the list of disabled keys, and the keys file, which is read again when a person asks for it, with
SIGHUP or `agentos keys reload`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType

from agentos.errors import AgentosError, HomeError
from agentos.events import DISABLED
from agentos.keys.disabled_keys import disabled
from agentos.keys.keys_file import Keys, load_keys
from agentos.keys.reload_requests import ReloadInbox
from agentos.reporters.sentences import reloaded_text
from agentos.workflows.parallel import CredentialCoordinator

# Seconds between two reads of the list of disabled keys and of the requests. The store alone would not do: `agentos
# keys disable` may have written to another store than that of the run.
POLL_SECONDS = 1.0
FROM_ENVIRONMENT = "its keys come from its environment, which cannot change while it runs: use a keys file (--keys)"


class KeysReload:
    """Reads the keys file of a process again, and changes its pool."""

    def __init__(
        self,
        file: Path | None,
        keys: Keys,
        pool: CredentialCoordinator,
        check: Callable[[Keys], None] = lambda _keys: None,
    ) -> None:
        """`file`: None for keys of the environment. `check`: raises ValueError for keys that the process cannot use."""
        self._file = file
        self._keys = keys
        self._pool = pool
        self._check = check
        self.listeners: list[Callable[[Keys], None]] = []  # called with the keys that are in use now
        self.left_out: frozenset[str] = frozenset()  # ids of the file that the pool does not have

    def __call__(self) -> tuple[bool, str]:
        """Return whether the keys were read, and what has changed, or why nothing has.

        A disabled key that is new, or has a new secret, stays out of the pool until it is enabled: a waiting request
        would be granted the key before a quarantine could follow.
        """
        if self._file is None:
            return False, FROM_ENVIRONMENT
        try:
            keys = load_keys(self._file)
            self._check(keys)
            left_out = self._disabled_news(keys)
            self._keys.variables.update(keys.variables)  # before an item can get one of the new keys
            change = self._pool.reload([key for key in keys.credentials if key.id not in left_out])
        except (AgentosError, ValueError, OSError) as error:
            return False, self._pool.redact(str(error))
        self.left_out = left_out
        for listener in self.listeners:
            listener(keys)
        return True, "; ".join([reloaded_text(change), *(f"{id_} stays disabled" for id_ in sorted(left_out))])

    def _disabled_news(self, keys: Keys) -> frozenset[str]:
        """Return the ids of disabled keys that the pool does not have, or has with another secret. Raise `HomeError` or
        `ValueError` if it cannot be told, or if no key would be left."""
        reasons = disabled()
        fingerprints = {credential.id: credential.fingerprint for credential in self._pool.credentials()}
        ids = {key.id for key in keys.credentials if fingerprints.get(key.id) != key.fingerprint} & reasons.keys()
        if len(ids) == len(keys.credentials):
            raise ValueError(f"all its keys are disabled: use `agentos keys enable {min(ids)}`")
        return frozenset(ids)


class KeysWatch:
    """Watches from a thread of its own. `say`: called with a problem of the keys file."""

    def __init__(
        self,
        pool: CredentialCoordinator | None,
        reload: KeysReload | None = None,
        inbox: ReloadInbox | None = None,
        say: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self._pool = pool
        self._reload = reload
        self._inbox = inbox
        self._say = say
        self._wishes: SimpleQueue[bool] = SimpleQueue()  # True: read the keys again; False: end
        self._thread = threading.Thread(target=self._watch, name="agentos-pool", daemon=True)

    def __enter__(self) -> KeysWatch:
        if self._pool is not None:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        if self._pool is not None:
            self._wishes.put(False)
            self._thread.join(1.0)

    @property
    def can_reload(self) -> bool:
        """Whether there is a pool whose keys can be read again."""
        return self._reload is not None

    def request_reload(self) -> None:
        """Have the keys read again soon. Safe in a signal handler: `SimpleQueue.put` can be interrupted by itself."""
        self._wishes.put(True)

    def _watch(self) -> None:
        assert self._pool is not None
        applied = set(_read_disabled() or ())
        while (is_asked := self._next_wish()) is not False:
            if is_asked:
                self._read_again()
            if self._inbox is not None and (request := self._inbox.request()) is not None:
                is_done, text = self._read_again()
                self._inbox.answer(request, is_done=is_done, text=text)
            applied = self._apply_disabled(self._pool, applied)

    def _next_wish(self) -> bool | None:
        try:
            return self._wishes.get(timeout=POLL_SECONDS)
        except Empty:
            return None

    def _read_again(self) -> tuple[bool, str]:
        if self._reload is None:
            return False, FROM_ENVIRONMENT
        is_done, text = self._reload()
        if not is_done:
            self._say(f"agentos: the keys were not read again, and nothing has changed: {text}")
        return is_done, text

    def _apply_disabled(self, pool: CredentialCoordinator, applied: set[str]) -> set[str]:
        reasons = _read_disabled()
        if reasons is None:
            return applied
        _disable(pool, reasons, reasons.keys() - applied)
        enabled = applied - reasons.keys()
        if self._reload is not None and enabled & self._reload.left_out:
            self._read_again()
        for key_id in enabled:
            with contextlib.suppress(LookupError):
                pool.restore(key_id)
        return set(reasons)


@contextlib.contextmanager
def on_hang_up(stop: Callable[[], None], watch: KeysWatch) -> Iterator[None]:
    """Handle SIGHUP: read the keys again; but stop if the terminal of the process was closed, or if there are no keys.
    No-op where SIGHUP is ignored (nohup) or handled."""
    if signal.getsignal(signal.SIGHUP) != signal.SIG_DFL:
        yield
        return
    answer = hang_up_handler(stop, watch)
    previous_handler = signal.signal(signal.SIGHUP, lambda _signum, _frame: answer())
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, previous_handler)


def hang_up_handler(stop: Callable[[], None], watch: KeysWatch) -> Callable[[], None]:
    """Return what SIGHUP does in a process with the terminal that it has now."""
    had_terminal = _has_terminal()

    def answer() -> None:
        if not watch.can_reload or (had_terminal and not _has_terminal()):
            stop()
        else:
            watch.request_reload()

    return answer


def _has_terminal() -> bool:
    """Return whether this process has a controlling terminal: a system call that does not block."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _disable(pool: CredentialCoordinator, reasons: dict[str, str], key_ids: Iterable[str]) -> None:
    """Quarantine keys that a person disabled; those that the pool does not have are left out."""
    for key_id in key_ids:
        with contextlib.suppress(LookupError):
            pool.quarantine(key_id, DISABLED + reasons[key_id])


def _read_disabled() -> dict[str, str] | None:
    """Return the reasons by id; None if the file is damaged: what is disabled stays disabled."""
    try:
        return disabled()
    except HomeError:
        return None

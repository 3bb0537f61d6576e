"""A pool that the processes of one machine share: an SQLite journal, and an owner behind a unix socket.

The first member starts the owner as a small child process and passes it the lock and a listening socket, so that every
member can connect from then on. The owner ends by itself after the last member.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from agentos.clock import boot_id, wall_time

from .._owner.owner_child import run_owner
from ..messages import is_text
from ..transport import Loaded, StoreLost, StoreRefused
from . import journal_file, owner_lock, pool_file
from .frames import FrameStream
from .member_lock import MemberLock, has_ended
from .owner_lock import Note
from .poller import READABLE, WRITABLE, Poller

# Longest path of a unix socket in bytes, on all systems.
MAX_SOCKET_PATH = 100
# Connections that wait until a new owner accepts them.
BACKLOG = 512
# Seconds between two looks for an owner that another member is starting.
LOOK_SECONDS = 0.003
# Seconds to wait for a place in the queue of an owner that does not accept connections.
QUEUE_SECONDS = 0.5


def is_same_user(connection: socket.socket) -> bool:
    """Return whether the other process belongs to this user, or the system does not tell (the socket is private)."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return True
    credentials = connection.getsockopt(socket.SOL_SOCKET, option, 12)
    return int.from_bytes(credentials[4:8], sys.byteorder) in (os.getuid(), 0)


class SocketLink:
    """A link over a unix socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._stream = FrameStream(sock)
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._descriptor = sock.fileno()
        self._poller = Poller()
        self._poller.register(self._descriptor, READABLE)
        self._poller.register(self._woken.fileno(), READABLE)

    def send(self, frame: bytes, is_flushed: bool = False) -> None:  # noqa: ARG002
        self._stream.send(frame)
        if self._stream.unsent:
            self.wake()

    def flush(self, receives: bool = False) -> None:
        """No-op: a frame is sent at once."""

    def receive(self, timeout: float) -> list[bytes]:
        stream = self._stream
        if stream.unsent:
            stream.flush()
            self._poller.modify(self._descriptor, READABLE | (WRITABLE if stream.unsent else 0))
        frames: list[bytes] = []
        for descriptor, events in self._poller.wait(timeout):
            if descriptor != self._descriptor:
                with contextlib.suppress(OSError):
                    self._woken.recv(4096)
                continue
            if events & ~READABLE:
                stream.flush()
                if not stream.unsent:
                    self._poller.modify(self._descriptor, READABLE)
            if events & ~WRITABLE:
                frames = stream.receive()
        return frames

    @property
    def has_unsent(self) -> bool:
        return bool(self._stream.unsent)

    def wake(self) -> None:
        with contextlib.suppress(OSError):
            self._waker.send(b".")

    def close(self) -> None:
        self._poller.close()
        for sock in (self._stream.socket, self._woken, self._waker):
            sock.close()

    abandon = close  # closing the copy of a socket does not end the parent's connection


def _connected(path: str) -> socket.socket | None:
    """Return a socket that is connected to an owner; None if none listens there."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(QUEUE_SECONDS)
    try:
        sock.connect(path)
    except OSError:
        sock.close()
        return None
    return sock


class MachineGate:
    """Finds or starts the owner of a pool in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()  # the owner has another working directory
        self.name = f"sqlite:///{path}"
        self._nonce = ""  # of the owner that this member was connected to last
        self._member_lock: MemberLock | None = None

    def connect(self, seconds: float) -> SocketLink:
        deadline = time.monotonic() + seconds
        while True:
            note = owner_lock.read_note(self.path)
            link = None if note is None else self._connect_to(note)
            if link is not None:
                return link
            lock = owner_lock.take(self.path)
            if lock is not None:
                self._start_owner(lock)
                continue
            if time.monotonic() >= deadline:
                raise StoreLost(self._no_owner(note))
            time.sleep(LOOK_SECONDS)

    def new_session(self) -> str:
        self.close()
        self._member_lock = MemberLock(self.path)
        return self._member_lock.session_id

    def visit(self) -> SocketLink | None:
        note = owner_lock.read_note(self.path)
        return None if note is None else self._connect_to(note)

    def _connect_to(self, note: Note) -> SocketLink | None:
        """Return a link. The owner may be in a container that has the folder in another place."""
        beside = os.fspath(self.path.with_name(os.path.basename(note.socket)))  # noqa: PTH119
        sock = _connected(note.socket) or (_connected(beside) if beside != note.socket else None)
        if sock is None:
            return None
        if not is_same_user(sock):
            sock.close()
            raise StoreRefused(f"{self.path} is used by another user: choose a store of your own")
        self._nonce = note.nonce
        return SocketLink(sock)

    def _no_owner(self, note: Note | None) -> str:
        if note is None:
            return "the owner of the pool cannot be reached"
        if note.boot == boot_id() and note.host == socket.gethostname():
            return f"the owner of the pool (process {note.pid}) cannot be reached at its socket {note.socket}"
        return (
            f"the owner of the pool runs on {note.host} (process {note.pid}), where this process cannot reach its "
            "socket: use redis:// to share a pool between machines or containers"
        )

    def _start_owner(self, lock: int) -> None:
        """Start the owner in a process that holds the lock and listens on a socket."""
        with _in_transfer(lock):
            pool_file.check_place(self.path)
            try:
                listener, socket_path = _listen(self.path)
            except OSError as error:
                raise StoreLost(f"no socket can be created for the pool's owner: {error}") from None
            with _in_transfer(listener.detach()) as descriptor:
                note = Note(secrets.token_hex(8), socket_path, socket.gethostname(), boot_id(), wall_time())
                try:
                    owner_lock.write_note(lock, note)
                    arguments = ["machine", str(self.path), str(lock), str(descriptor), note.nonce]
                    run_owner(arguments, pass_fds=(lock, descriptor))
                except (OSError, StoreLost) as error:
                    with contextlib.suppress(OSError):
                        os.unlink(socket_path)  # noqa: PTH108
                    raise StoreLost(str(error)) from None

    def depose(self) -> None:
        """Raise the epoch and remove the lock file, unless another member has replaced the owner already.

        All members that notice the silence do this in a transaction of the journal: T1 raises the epoch and removes the
        lock file; T2 comes next, finds another note or none, and changes nothing.
        """
        note = owner_lock.read_note(self.path)
        try:
            with journal_file.raised_epoch(self.path):
                note = owner_lock.read_note(self.path)
                if note is None or note.nonce != self._nonce:
                    raise _AlreadyReplaced
                owner_lock.remove(self.path)
        except _AlreadyReplaced:
            pass
        except StoreLost as error:
            pid = "" if note is None else f" (process {note.pid})"
            raise StoreLost(
                f"the pool's owner{pid} does not answer and holds the journal: let it continue, or end it ({error})"
            ) from None

    def look(self) -> Loaded | None:
        return journal_file.read(self.path)

    def has_ended(self, session_id: str) -> bool:
        return has_ended(self.path, session_id)

    def close(self) -> None:
        if self._member_lock is not None:
            self._member_lock.close()

    abandon = close  # closing the copy of a descriptor does not release the parent's lock


class _AlreadyReplaced(Exception):
    """Another member has replaced the owner."""


# Descriptors that are passed to an owner. A child that another thread forks meanwhile closes its copies: else the lock
# would stay taken, and the socket open, after the owner has ended.
_in_transfer_now: set[int] = set()


@contextlib.contextmanager
def _in_transfer(descriptor: int) -> Iterator[int]:
    """Close a descriptor at the end of the block, and in children that are forked meanwhile."""
    _in_transfer_now.add(descriptor)
    try:
        yield descriptor
    finally:
        _in_transfer_now.discard(descriptor)
        os.close(descriptor)


def _close_in_child() -> None:
    for descriptor in _in_transfer_now:
        os.close(descriptor)
    _in_transfer_now.clear()


os.register_at_fork(after_in_child=_close_in_child)


def _listen(path: Path) -> tuple[socket.socket, str]:
    """Return a listening socket: beside the pool's file, or in a runtime directory if that path is too long for one, is
    no text that the note can hold, or the file system has no sockets. Raises `OSError`."""
    name = f"{_prefix(path)}{secrets.token_hex(4)}"
    beside = str(path.parent.resolve() / name)
    if len(os.fsencode(beside)) <= MAX_SOCKET_PATH and is_text(beside):
        with contextlib.suppress(OSError):
            return _bind(beside)
    return _bind(str(_runtime_directory() / name))


def _bind(path: str) -> tuple[socket.socket, str]:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        mask = os.umask(0o177)
        try:
            listener.bind(path)
        finally:
            os.umask(mask)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener, path


def _runtime_directory() -> Path:
    """Return a private directory with a short path. Raises `OSError`."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and len(base) < MAX_SOCKET_PATH - 50:
        directory = Path(base, "agentos")
    else:
        directory = Path("/tmp" if Path("/tmp").is_dir() else tempfile.gettempdir(), f"agentos-{os.getuid()}")  # noqa: S108
    directory.mkdir(mode=0o700, exist_ok=True)
    status = directory.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(13, f"{directory} is not a private directory of this user", str(directory))
    return directory


def _prefix(path: Path) -> str:
    """Return how the names of a pool's sockets begin."""
    return f".agentos-{hashlib.blake2b(os.fsencode(os.path.realpath(path)), digest_size=8).hexdigest()}-"


def remove_old_sockets(path: Path, own: str) -> None:
    """Remove the sockets of owners that were killed. The caller holds the lock."""
    with contextlib.suppress(OSError):
        folders = {Path(own).parent, path.parent.resolve()}
        for folder in folders:
            for name in folder.glob(f"{_prefix(path)}*"):
                if str(name) != own:
                    name.unlink(missing_ok=True)

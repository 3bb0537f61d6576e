"""The duties of process 1: in a container, the program may be the first process, and inherits all orphans.

No other process reaps them. A program that reaps any child would take exit statuses from its own code, so the program
runs in a child, and process 1 does nothing but reap, pass on signals, and end as the child did.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import NoReturn

# Signals that are passed on. The others cannot be caught, or are about process 1 itself.
_PASSED_ON = {
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH,
    signal.SIGCONT,
}  # fmt: skip
# The origin of a signal that the kernel sends, as a terminal does at Ctrl-C: to the whole group, so to the child, too.
_FROM_KERNEL = 0x80
# Exit status of a program that a signal ended: this plus the number of the signal.
_SIGNALLED = 128


def leave_init() -> None:
    """Return in a child, if this is process 1; process 1 itself never returns. No-op in any other process."""
    if os.getpid() != 1 or threading.active_count() > 1 or not hasattr(signal, "sigwaitinfo"):
        return
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, *_PASSED_ON})
    child = os.fork()
    if child:
        _serve(child)
    signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


def _serve(child: int) -> NoReturn:
    """Reap children and pass on signals until the child has ended; end with its status."""
    while True:
        info = signal.sigwaitinfo({signal.SIGCHLD, *_PASSED_ON})
        if info.si_signo != signal.SIGCHLD:
            if info.si_code != _FROM_KERNEL:
                os.kill(child, info.si_signo)
            continue
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == child:
                code = os.waitstatus_to_exitcode(status)
                os._exit(code if code >= 0 else _SIGNALLED - code)
            if not pid:
                break

"""Back-off: the growing pause before the next try."""

from __future__ import annotations

BASE_SECONDS = 0.5
# Longest pause. A minute is the window of most providers' limits: waiting longer gains nothing.
MAX_SECONDS = 60.0


def delay(failures: int, jitter: float, *, base: float = BASE_SECONDS, maximum: float = MAX_SECONDS) -> float:
    """Return the seconds to wait after the `failures`-th failure in a row, from 1: doubled each time, up to `maximum`.

    `jitter`, from 0 to 1, spreads it over the upper half, so that items that failed together do not return together.
    """
    full: float = min(maximum, base * 2.0 ** min(failures - 1, 32))
    return full * (0.5 + 0.5 * jitter)

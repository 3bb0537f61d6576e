"""How long to wait before the next try."""

from __future__ import annotations

BASE_SECONDS = 0.5
# A minute is the window of most providers' limits: waiting longer than that buys nothing.
MAX_SECONDS = 60.0


def delay(failures: int, jitter: float, *, base: float = BASE_SECONDS, most: float = MAX_SECONDS) -> float:
    """The pause after the `failures`-th failure in a row (1, 2, …): doubled each time, up to `most`.

    `jitter`, from 0 to 1, spreads it over the upper half, so that items that failed together do not come back together.
    """
    full: float = min(most, base * 2.0 ** min(failures - 1, 32))
    return full * (0.5 + 0.5 * jitter)

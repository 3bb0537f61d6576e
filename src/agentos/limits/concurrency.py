"""LearnedConcurrency: how many requests of one credential may be in flight at once, learned from answers.

The limit starts at START and doubles per round of successes until the provider refuses for the first time; a round is
as many successes as the limit. Then it grows by one per round up to the largest number that was never refused. To go
beyond that takes a probe: one more request at once, after MIN_PROBE_SUCCESSES successes at the limit, and after twice
as many each time a probe is refused. Latency is not used: it follows the length of answers.
"""

from __future__ import annotations

# Requests in flight at once before anything is known.
START = 4
# Upper bound of the learned limit: more requests at once than any account allows.
MAX_LEARNED = 1_000
# Successes at the limit before a number that was refused is tried again; doubled with each failed try.
MIN_PROBE_SUCCESSES = 64
MAX_PROBE_SUCCESSES = 4_096


class LearnedConcurrency:
    """The learned limit of one credential. Pure: every call is a fact about one request."""

    __slots__ = ("_changed_at", "_is_probing", "_probe_successes", "_refused", "_successes", "limit")

    def __init__(self, limit: int = START) -> None:
        self.limit = limit
        self._refused: int | None = None  # the smallest number at once that was refused
        self._successes = 0  # at the limit, since it last changed
        self._is_probing = False
        self._probe_successes = MIN_PROBE_SUCCESSES
        self._changed_at = 0.0  # requests that were granted before it say nothing about the present limit

    @property
    def is_met(self) -> bool:
        """Return whether the provider has refused a number of requests at once."""
        return self._refused is not None

    def record_success(self, granted_at: float, in_flight: int, now: float) -> bool:
        """Count a success; `in_flight`: requests of the credential, with this one. Return whether the limit has grown.
        A success while fewer than the limit were in flight proves nothing."""
        if in_flight < self.limit or granted_at < self._changed_at:
            return False
        self._successes += 1
        if self._successes < self._round():
            return False
        if self._is_probing:  # the number that was refused once is served now
            self._is_probing, self._refused = False, None
            self._probe_successes = MIN_PROBE_SUCCESSES
        return self._grow(now)

    def record_refusal(self, granted_at: float, in_flight: int, now: float) -> None:
        """Lower the limit after the provider refused a request for concurrency or overload. Requests that were in
        flight together with an earlier refused one say nothing new."""
        if granted_at < self._changed_at:
            return
        refused = min(self.limit, max(1, in_flight))
        if self._is_probing:
            self._probe_successes = min(2 * self._probe_successes, MAX_PROBE_SUCCESSES)
            self._set(max(1, refused - 1), now)
        else:
            self._set(max(1, self.limit // 2), now)
        self._is_probing = False
        self._refused = refused if self._refused is None else min(self._refused, refused)
        if self._refused <= self.limit:
            self._refused = self.limit + 1

    def _round(self) -> int:
        """Return the successes after which the limit changes."""
        is_at_edge = self._refused is not None and self.limit + 1 >= self._refused
        return self._probe_successes if is_at_edge and not self._is_probing else self.limit

    def _grow(self, now: float) -> bool:
        if self.limit >= MAX_LEARNED:
            self._successes = 0
            return False
        if self._refused is None:
            self._set(min(2 * self.limit, MAX_LEARNED), now)
        else:
            self._is_probing = self.limit + 1 >= self._refused
            self._set(self.limit + 1, now)
        return True

    def _set(self, limit: int, now: float) -> None:
        self.limit = limit
        self._successes = 0
        self._changed_at = now

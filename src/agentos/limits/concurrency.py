"""LearnedConcurrency: how many requests of one credential may be in flight at once, learned from answers.

The limit starts at START and grows by one for every GROWTH_SUCCESSES while that many are in flight. A refusal shows how
many were too many: the limit falls to one less, and to half if that is refused before anything was served. To try a
number again that was refused takes a *probe*: one more request at once, after MIN_PROBE_SUCCESSES, and not before the
wait of the last refusal is earned; each refused probe doubles both. Latency is not used: it follows the length of
answers.

A provider may refuse without a reason. Its limit is on requests at once if it refuses whenever a number is in flight,
and serves hardly any request meanwhile: a limit on the rate refuses and serves the same number.
"""

from __future__ import annotations

# Requests in flight at once before anything is known.
START = 4
# Upper bound of the learned limit: more requests at once than any account allows.
MAX_LEARNED = 1_000
# Successes at the limit until it grows by one, while the next number was not refused.
GROWTH_SUCCESSES = 2
FIRST_SUCCESSES = 4
CAUTIOUS = 8
# Successes at the limit before a number that was refused is tried again; doubled with each refused try.
MIN_PROBE_SUCCESSES = 64
MAX_PROBE_SUCCESSES = 4_096
# A probe may cost the wait of one more refusal. It comes after this many times that wait, doubled likewise,
WAITS_EARNED = 30.0
# but no later than after this many seconds.
MAX_PROBE_SECONDS = 600.0
# Refusals without a reason, one for each wait, after which the number at once counts as their reason; doubled each
# time.
MIN_SUSPICIONS = 3
MAX_SUSPICIONS = 48
# Requests served for each of them with one less at once: a burst is refused, too, and its smaller numbers occur once.
MIN_SERVED_BELOW = 3


class LearnedConcurrency:
    """The learned limit of one credential. Pure: every call is a fact about one request. `at_once`: requests of the
    credential that were in flight when it was sent, with this one."""

    __slots__ = (
        "_has_fallen",
        "_probe_at",
        "_probe_seconds",
        "_probe_successes",
        "_refused",
        "_served_below",
        "_served_suspects",
        "_since",
        "_successes",
        "_suspect",
        "_suspected_at",
        "_suspicions",
        "_suspicions_needed",
        "limit",
    )

    def __init__(self, limit: int = START) -> None:
        self.limit = limit
        self._refused = MAX_LEARNED + 1  # the smallest number at once that was refused; equals `limit` in a probe
        self._successes = 0  # at the limit, since it last changed
        self._since = 0.0  # requests that were granted before it say nothing about the present limit
        self._has_fallen = False  # after a refusal, until the next success
        self._probe_successes = MIN_PROBE_SUCCESSES
        self._probe_seconds = self._probe_at = 0.0
        self._suspect = 0  # the smallest number at once that was refused without a reason; 0: none
        self._suspicions = self._served_suspects = 0  # requests refused, and served, with `_suspect` at once
        self._served_below = 0  # requests served with one less
        self._suspected_at = -1.0  # instant of the last refusal that was counted
        self._suspicions_needed = MIN_SUSPICIONS

    @property
    def is_met(self) -> bool:
        """Return whether the provider has refused a number of requests at once."""
        return self._refused <= MAX_LEARNED

    def record_success(self, granted_at: float, at_once: int, in_flight: int, now: float) -> bool:
        """Count a success; `in_flight`: requests of the credential now, with this one. Return whether the limit may
        grow: then the caller calls `grow`, or `hold` if something else holds requests back. A success while fewer than
        the limit were in flight proves nothing."""
        if self._suspect and at_once + 1 >= self._suspect:
            if at_once >= self._suspect:
                self._served_suspects += 1
            else:
                self._served_below += 1
        if in_flight < self.limit or granted_at < self._since:
            return False
        self._has_fallen = False
        self._successes += 1
        if self.limit + 1 < self._refused:
            return self._successes >= (FIRST_SUCCESSES if self.limit < CAUTIOUS else GROWTH_SUCCESSES)
        if self.limit >= self._refused:  # a probe
            return self._successes >= self.limit
        return self._successes >= self._probe_successes and now >= self._probe_at

    def hold(self) -> None:
        """Keep the limit; count the successes at it anew."""
        self._successes = 0

    def grow(self, now: float) -> None:
        """Raise the limit by one."""
        self._successes = 0
        if self.limit >= MAX_LEARNED:
            return
        if self.limit >= self._refused:  # the number that was refused once is served now
            self._refused = MAX_LEARNED + 1
            self._reset_probes()
        self.limit += 1
        if self.limit == self._refused:
            self._since = now

    def record_refusal(self, granted_at: float, at_once: int, wait: float, now: float) -> None:
        """Lower the limit after the provider refused a request because of the number at once, and asked to wait."""
        refused = max(2, at_once)
        if granted_at < self._since:  # in flight together with one that was refused
            self.limit, self._refused = min(self.limit, refused - 1), min(self._refused, refused)
            return
        if self.limit >= self._refused <= at_once:  # a probe
            self._probe_successes = min(2 * self._probe_successes, MAX_PROBE_SUCCESSES)
            self._probe_seconds *= 2.0
        else:
            self._reset_probes()
        self._probe_seconds = min(max(self._probe_seconds, WAITS_EARNED * wait), MAX_PROBE_SECONDS)
        self._probe_at = now + self._probe_seconds
        self._refused = min(self._refused, refused)
        self._fall_to(refused // 2 if self._has_fallen else refused - 1, now)

    def record_overload(self, granted_at: float, now: float) -> None:
        """Halve the limit after the provider was overloaded. It says nothing about the account's own limit."""
        if granted_at >= self._since:
            self._fall_to(self.limit // 2, now)

    def explains(self, at_once: int) -> bool:
        """Return whether `at_once` requests at once were refused before, and not served since."""
        return at_once >= self._refused

    def suspect(self, granted_at: float, at_once: int, now: float) -> int:
        """Count a refusal that gives no reason. Return the smallest number at once that explains the last ones; 0 if
        none does."""
        if granted_at < self._suspected_at:  # in flight together with one that was counted
            if 1 < at_once < self._suspect:
                self._suspect = at_once
            return 0
        self._suspected_at = now
        if at_once < 2:  # no provider admits none
            self._suspect = self._suspicions = 0
            return 0
        if not 0 < self._suspect <= at_once or self._served_suspects > self._suspicions:
            self._suspect, self._suspicions = at_once, 0
            self._served_suspects = self._served_below = 0
        self._suspicions += 1
        if self._suspicions < self._suspicions_needed or self._served_below < MIN_SERVED_BELOW * self._suspicions:
            return 0
        self._suspicions_needed = min(2 * self._suspicions_needed, MAX_SUSPICIONS)
        self._suspicions = 0
        return self._suspect

    def _reset_probes(self) -> None:
        self._probe_successes, self._probe_seconds = MIN_PROBE_SUCCESSES, 0.0

    def _fall_to(self, limit: int, now: float) -> None:
        self.limit = max(1, min(self.limit, limit))
        self._successes, self._since, self._has_fallen = 0, now, True

"""The states of a lease, from its request to its end."""

from __future__ import annotations

WAITING = "waiting"
LIVE = "live"
ENDED = "ended"  # released, taken back, withdrawn or timed out: it has no further effect
REFUSED = "refused"  # no credential can become usable without a person

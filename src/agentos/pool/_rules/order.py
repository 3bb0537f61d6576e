"""The orders in which usable credentials are granted."""

from __future__ import annotations

from typing import Any

from .records import CredentialRecord

LEAST_LOADED = "least-loaded"  # the smallest share of its leases in use
SOONEST_RESET = "soonest-reset"  # the long window that resets soonest, so that no quota expires unused
LISTED = "listed"  # the first one that joined, as long as it has room
ORDERS = (LEAST_LOADED, SOONEST_RESET, LISTED)


def check_order(order: str) -> None:
    """Raise `ValueError` for a text that is no order."""
    if order not in ORDERS:
        raise ValueError(f"order must be one of {', '.join(ORDERS)}; not {order!r}")


def rank(order: str, credential: CredentialRecord, now: float) -> Any:
    """Return a sort key: the credential with the smallest one is granted first."""
    if order == LISTED:
        return credential.position
    load = len(credential.leases) / credential.max_concurrent
    return (credential.group.pace.resets_at(now), load) if order == SOONEST_RESET else load

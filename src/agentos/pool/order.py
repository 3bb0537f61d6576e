"""The orders in which usable credentials are granted, for keys files and programs."""

from __future__ import annotations

from ._rules.order import LEAST_LOADED, ORDERS, check_order

__all__ = ["LEAST_LOADED", "ORDERS", "check_order"]

"""Counts of things in messages: `1 item`, `2 items`. For every package that writes text."""

from __future__ import annotations


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"

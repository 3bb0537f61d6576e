"""Four processes with 25 threads each over eight keys: never past a limit, and close to it all the time."""

from __future__ import annotations

from itertools import pairwise

from .members import Processes, keys

PROCESSES, THREADS, KEYS = 4, 25, 8
SECONDS = 2.5
RPM, BURST, AT_ONCE = 600, 10, 4
# Share of the legal requests that must be used, on a busy machine.
MIN_SHARE = 0.8


def test_processes_together_keep_and_use_declared_limits(processes: Processes, shared_store: str) -> None:
    # invariants 1, 2, 7, 8, 13
    eight = keys(KEYS, requests_per_minute=RPM, burst=BURST, max_concurrent=AT_ONCE)
    members = [processes.open(shared_store, eight, ttl=10) for _ in range(PROCESSES)]
    for member in members:
        member.do("work", threads=THREADS, seconds=SECONDS, hold=0.005)
    reports = [member.wait_for_event("worked", timeout=60) for member in members]
    granted: dict[str, list[tuple[int, float]]] = {}
    for report in reports:
        for key, fence, at in report["granted"]:
            granted.setdefault(key, []).append((fence, at))
    instants = {}
    for key, grants in granted.items():
        assert len({fence for fence, _ in grants}) == len(grants)  # invariant 13
        grants.sort()
        assert all(earlier[1] <= later[1] for earlier, later in pairwise(grants))
        instants[key] = [at for _, at in grants]
    for ats in instants.values():
        most_in_any_window(ats)
    first = min(ats[0] for ats in instants.values())
    last = max(ats[-1] for ats in instants.values())
    legal = KEYS * (BURST + (last - first) * RPM / 60)
    used = sum(len(ats) for ats in instants.values())
    assert used >= MIN_SHARE * legal, f"{used} of {legal:.0f}"
    # A waiter waits for the requests ahead of it, and not longer.
    round_trip = PROCESSES * THREADS / (KEYS * RPM / 60)
    assert max(report["longest"] for report in reports) < round_trip + 1.0


def most_in_any_window(ats: list[float]) -> None:
    """Assert that no time span has more requests than the bucket holds plus its inflow."""
    for n, start in enumerate(ats):
        for m in range(n, len(ats)):
            allowed = BURST + (ats[m] - start) * RPM / 60
            assert m - n + 1 <= allowed + 1e-3

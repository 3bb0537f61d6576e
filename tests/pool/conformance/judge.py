"""Judge the leases of many processes: `python -I judge.py LOG KEY:MAX_CONCURRENT:REQUESTS_PER_MINUTE …`.

It shares no code with the program. Each line of the log is `begin`, `end` or `lost`, the key, the fence, an instant of
the monotonic clock and the process. It prints what is wrong, a line each, and last the number of leases per key.
"""

from __future__ import annotations

import bisect
import sys


def read(path: str) -> dict[str, dict[int, dict[str, float]]]:
    leases: dict[str, dict[int, dict[str, float]]] = {}
    with open(path) as file:  # noqa: PTH123 - a plain script
        for line in file:
            what, key, fence, at, _process = line.split()
            lease = leases.setdefault(key, {}).setdefault(int(fence), {})
            if what in lease:
                print(f"{key}: the fence {fence} was given twice")
            lease[what] = float(at)
    return leases


def judge(key: str, leases: dict[int, dict[str, float]], max_concurrent: int, per_minute: int) -> None:
    # A lease without an end was that of a killed or stopped process: it ended at an unknown instant after its begin.
    spans = [(lease["begin"], lease.get("end", lease["begin"])) for lease in leases.values()]
    changes = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    live = 0
    for at, change in changes:
        live += change
        if live > max_concurrent:
            print(f"{key}: {live} leases at once at {at:.6f}")
    begins = sorted(begin for begin, _ in spans)
    for n, begin in enumerate(begins):
        in_window = bisect.bisect_left(begins, begin + 60.0) - n
        if per_minute and in_window > per_minute:
            print(f"{key}: {in_window} requests in a minute from {begin:.6f}")
            break
    # A fence is given before its lease begins, and a key with one lease at a time has them in order.
    if max_concurrent == 1:
        fences = [fence for fence, _ in sorted(leases.items(), key=lambda item: item[1]["begin"])]
        if fences != sorted(fences):
            print(f"{key}: fences do not grow")


def main(path: str, *keys: str) -> None:
    leases = read(path)
    for text in keys:
        key, max_concurrent, per_minute = text.split(":")
        judge(key, leases.get(key, {}), int(max_concurrent), int(per_minute))
    print("leases", *(f"{key}={len(found)}" for key, found in sorted(leases.items())))


if __name__ == "__main__":
    main(*sys.argv[1:])

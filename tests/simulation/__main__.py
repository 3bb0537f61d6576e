"""Print the history of a seed, step by step: `python -m tests.simulation SEED [--steps N]`."""

from __future__ import annotations

import argparse
import sys

from .world import World

STEPS = 1500


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("seed", type=int)
    parser.add_argument(
        "--steps",
        type=int,
        default=STEPS,
        help="steps with faults; the history then continues without faults to its end",
    )
    parser.add_argument("--last", type=int, metavar="N", default=None, help="print only the last N steps")
    options = parser.parse_args()
    world = World(options.seed)
    world.history = []
    try:
        world.run(options.steps)
    finally:
        lines = world.history if options.last is None else world.history[-options.last :]
        sys.stdout.write("\n".join([*lines, str(world), f"trace {world.trace.hexdigest()}", ""]))


if __name__ == "__main__":
    main()

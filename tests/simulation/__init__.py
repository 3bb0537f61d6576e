"""Deterministic simulation of pool, runs and providers in virtual time: a seed decides everything that happens.

Simulated processes (`process`) run items with the real `Run` scheduler; a `SimulatedProvider` answers their attempts.
They share a pool through a log (`log_server`), each with the real `Member` and its replica (`member`), or they use one
pool in memory. `scenario` draws keys, limits and runs from the seed; `faults` injects crashes, pauses, disconnections
and losses; `ledger` is a minimal model of the durable record; `world` holds virtual time and the event queue.

`oracle` is an independent model of the pool's promises: `checked_allocator` reports every decision of one more replica,
the *judge* at the end of the log, to it. `invariants` are checked after every step, `digests` compare replicas, and
`situations` counts which situations have occurred.

    python -m tests.simulation SEED [--steps N]

prints the history of a seed, step by step; it is the same each time.
"""

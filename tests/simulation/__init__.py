"""Deterministic simulation of pool, runs and providers in virtual time: a seed decides everything that happens.

Simulated processes (`process`) run items with the real `Run` scheduler; a `SimulatedProvider` answers their attempts.
They share a pool whose owner is a process of its own (`journal_store`, with the real `OwnerLoop` and a journal in
memory), each with the real `MemberSession` (`member`) on a link with the faults of its transport (`links`); or they use
one pool in memory. `scenario` draws keys, limits and runs from the seed; `faults` injects crashes, take-overs, pauses,
disconnections and losses; `ledger` is a minimal model of the durable record; `world` holds virtual time and the event
queue.

`oracle` is an independent model of the pool's promises, to which `checked_allocator` reports every decision of an
owner. `invariants` are checked after every step, whichever owner decided; `situations` counts which situations have
occurred.

    python -m tests.simulation SEED [--steps N]

prints the history of a seed, step by step; it is the same each time.
"""

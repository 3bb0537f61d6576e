"""The pool, runs and providers together, in virtual time. One number, the seed, decides everything that happens.

Processes share a pool through a log (`server`), each with the real `Member` and its copy (`member`), or one pool in
memory; each carries out a run of items with the real `Run` (`process`), whose attempts a `SimulatedProvider` answers.
`faults` crashes, pauses, cuts off and forgets. `watch` sees every decision of one more copy, the *judge*, that stands
at the end of the log; `checks` looks at the whole after every step. `situations` counts what has happened at all.

    python -m tests.simulation SEED [--steps N]

prints the history of a seed, step by step; it is the same each time.
"""

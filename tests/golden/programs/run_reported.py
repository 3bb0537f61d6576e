"""Runs workers with each reporter, all in one process, and prints the results."""

from agentos.workflows.parallel import (
    Credential,
    CredentialCoordinator,
    JsonReporter,
    Limits,
    OutputPrefixer,
    ParallelCoordinator,
    Permanent,
    QuotaExhausted,
    RateLimited,
    Transient,
    current_item,
)

KEYS = ("sk-one-0123456789", "sk-two-0123456789")


def pool() -> CredentialCoordinator:
    """Return a pool of two keys, with limits that no run meets."""
    limits = Limits(requests_per_minute=6000, burst=100)
    return CredentialCoordinator([Credential(key, id=f"key-{n}", limits=limits) for n, key in enumerate(KEYS)])


def work(item: str, key: str | None) -> object:
    """Do what the item's name says, at its first attempt."""
    is_first = current_item().attempt == 1
    if item == "limited" and is_first:
        raise RateLimited("too fast", retry_after=300)
    if item == "shaky" and is_first:
        raise Transient("a lost connection")
    if item == "hopeless":
        raise Permanent(f"never with {key}")
    if item == "broken":
        raise ValueError("a bug")
    current_item().report_usage(tokens=10, cost=0.5)
    return {"item": item, "key": current_item().credential_id}


def results_of(coordinator: ParallelCoordinator, items: list[str], worker: object = work) -> None:
    """Run the items and print their results."""
    stats, results = coordinator.execute_parallel(items, worker, run_id="main")
    for result in results:
        cause = result.metadata.get("error_type")
        print(f"{result.item_id}: {result.success}, {result.value}, {result.error}, {cause}, {result.attempts}")
    print(f"{stats.success_count} of {stats.total}, {stats.failed} failed, stopped: {stats.stopped}")


print("--- the default reporter, with keys ---")
results_of(ParallelCoordinator(1, pool()), ["a", "hopeless", "broken", "limited", "b"])
results_of(ParallelCoordinator(1, pool()), ["shaky"])

print("--- the default reporter, without keys, and too many workers ---")
results_of(ParallelCoordinator(20), [])
results_of(ParallelCoordinator(1, halt="soon,fail=1"), ["hopeless", "a"])


def refuse(_item: str, key: str | None) -> None:
    """Raise the error of a key without quota."""
    raise QuotaExhausted(f"nothing left on {key}")


print("--- no key is left ---")
results_of(ParallelCoordinator(1, CredentialCoordinator([KEYS[0]]), max_wait=0), ["empty"], refuse)

print("--- JSON ---")
results_of(ParallelCoordinator(1, pool(), reporter=JsonReporter()), ["a", "hopeless", "limited"])

print("--- a dry run ---")
print(ParallelCoordinator(1).execute_parallel(["a", "b"], work, dry_run=True)[1])

print("--- prefixed output ---")
print("one\n\ntwo", file=OutputPrefixer("[item]"))

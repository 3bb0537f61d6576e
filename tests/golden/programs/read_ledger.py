"""Writes a ledger with a run that fails, retries and is continued, and reads it back."""

from agentos.workflows.parallel import (
    Credential,
    CredentialCoordinator,
    Ledger,
    LedgerError,
    Limits,
    ParallelCoordinator,
    Permanent,
    RateLimited,
    current_item,
)


def work(item: dict[str, str], _key: str | None) -> object:
    """Succeed, fail, or meet a limit first, by the item's id."""
    here = current_item()
    if item["id"] == "limited" and here.attempt == 1:
        here.checkpoint.save({"step": 1})
        raise RateLimited(retry_after=300)
    if item["id"] == "bad":
        raise Permanent("it is empty")
    if item["id"] == "odd":
        return object
    here.report_usage(tokens=7, cost=0.25)
    return {"was": here.checkpoint.load(), "at": here.credential_id}


def run() -> None:
    """Run the items, or continue with them."""
    limits = Limits(requests_per_minute=6000, burst=100)
    keys = [Credential(f"sk-{name}-0123456789", id=name, limits=limits) for name in ("one", "two")]
    coordinator = ParallelCoordinator(1, CredentialCoordinator(keys), ledger="run.db")
    items = [{"id": name} for name in ("a", "limited", "bad", "odd")]
    _, results = coordinator.execute_parallel(items, work, item_id_func=lambda item: item["id"])
    for result in results:
        recorded = result.metadata.get("recorded")
        print(f"{result.item_id}: {result.success}, {result.value}, {result.error}, recorded: {recorded}")


run()
run()
with Ledger.open("run.db") as ledger:
    print(ledger)
    print(ledger.run_ids(), ledger.counts(), sorted(ledger.ids()))
    for launch in ledger.launches():
        print(launch)
    for item in sorted(ledger.items(), key=lambda item: item.id):
        print(item.id, item.outcome, item.input, item.value, item.error, sorted(item.metadata), item.credential_id)
        print(f"  {item.tokens} tokens, cost {item.cost}, attempts {item.attempts}, launch {item.launch}")
        for attempt in ledger.attempts(item.id):
            print(" ", attempt.launch, attempt.n, attempt.credential_id, attempt.verdict, attempt.error)
    for totals in ledger.credentials():
        print(totals.credential_id, totals.attempts, totals.succeeded, totals.requests, totals.tokens, totals.cost)
    print(ledger.item("nothing"), ledger.standing("a"), ledger.standing("nothing"))
try:
    Ledger.open("run.db", "another")
except LedgerError as error:
    print(error)

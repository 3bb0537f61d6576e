"""Run a LangGraph workflow per item that continues where it was interrupted.

    agentos run --item owls --item moles --item voles --parallel 2 examples.langgraph_resume:worker
    python examples/langgraph_resume.py articles.db

Start either in the folder above this one. Each item's graph (research, write, review) keeps its checkpoints in
`current_item().workflow_db`, a file that stays until the item has succeeded. Interrupt the run with Ctrl-C, or kill it,
and continue with `agentos resume RUN`, or start the program again: an item that was in its second node continues there,
without repeating the first.
"""

from __future__ import annotations

import sys
import time
from typing import Any, TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph

from agentos.workflows.parallel import CredentialCoordinator, Interrupted, ParallelCoordinator, current_item


class Article(TypedDict, total=False):
    topic: str
    notes: str
    text: str
    verdict: str


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")  # one write per line: two items may print at the same time
    sys.stdout.flush()


def research(state: Article) -> Article:
    say(f"  research: {state['topic']}")
    return {"notes": f"notes on {state['topic']}"}


def write(state: Article) -> Article:
    say(f"  write:    {state['topic']}")
    for _ in range(20):  # a long request during which the run may be interrupted
        if current_item().should_stop:
            raise Interrupted
        time.sleep(0.05)
    return {"text": f"an article from {state['notes']}"}


def review(state: Article) -> Article:
    say(f"  review:   {state['topic']}")
    return {"verdict": "fine"}


def workflow() -> StateGraph:
    graph = StateGraph(Article)
    for before, node in ((START, research), ("research", write), ("write", review)):
        graph.add_node(node.__name__, node)
        graph.add_edge(before, node.__name__)
    graph.add_edge("review", END)
    return graph


def worker(topic: str, _key: str | None) -> dict[str, Any]:
    config = {"configurable": {"thread_id": topic}}
    with SqliteSaver.from_conn_string(str(current_item().workflow_db)) as saver:
        graph = workflow().compile(checkpointer=saver)
        has_begun = bool(graph.get_state(config).next)
        # None continues from the last checkpoint; "sync" writes a checkpoint before the next node starts.
        return dict(graph.invoke(None if has_begun else {"topic": topic}, config, durability="sync"))


def main(ledger: str) -> int:
    pool = CredentialCoordinator(["an-example-key", "another-example-key"])
    stats, results = ParallelCoordinator(2, pool, ledger=ledger).execute_parallel(["owls", "moles", "voles"], worker)
    for result in results:
        say(f"{result.item_id}: {result.value['verdict'] if result.success else result.error}")
    return 0 if stats.stopped is None else 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "articles.db"))

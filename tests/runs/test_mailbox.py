"""Mailbox: one handler at a time, on the right thread, and no message left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from agentos.runs._driver.mailbox import Mailbox
from agentos.runs._parts.messages import KillRequested, Message, StopRequested
from tests.conftest import eventually


class LendingWorkers:
    """Workers that lend the thread on which an attempt ended, or do not."""

    can_submit = False

    def __init__(self, *, lends: bool) -> None:
        self.lends_thread = lends

    def run_on_worker_thread(self, _: Callable[[], None]) -> bool:
        return False


class Recorded:
    """A mailbox that notes the reason and the thread of each message, and ends with the first KillRequested."""

    def __init__(self, *, lends: bool = True) -> None:
        self.reasons: list[str] = []
        self.threads: set[str] = set()
        self.errors: list[BaseException] = []
        self.empty_count = 0
        workers: Any = LendingWorkers(lends=lends)
        self.mailbox = Mailbox("run", workers, self._after_messages, self.errors.append)
        self.mailbox.handlers.update({StopRequested: self._note, KillRequested: lambda _: self.mailbox.end()})

    def _note(self, message: StopRequested) -> None:
        self.threads.add(threading.current_thread().name)
        if message.reason == "raise":
            raise ValueError("raised by a handler")
        if message.reason == "nested":
            self.mailbox.post_and_process(StopRequested("inner", None))
            assert "inner" not in self.reasons, "a handler was called inside another one"
        self.reasons.append(message.reason)

    def _after_messages(self) -> None:
        self.empty_count += 1


def stop(reason: str) -> Message:
    return StopRequested(reason, None)


def test_post_lets_the_runs_own_thread_process() -> None:
    recorded = Recorded()
    recorded.mailbox.start()
    for number in range(100):
        recorded.mailbox.post(stop(str(number)))
    eventually(lambda: len(recorded.reasons) == 100)
    assert recorded.reasons == [str(number) for number in range(100)]
    assert recorded.threads == {"run"}
    recorded.mailbox.post(KillRequested())
    recorded.mailbox.join(60)


def test_post_and_process_uses_the_calling_thread_if_lent() -> None:
    recorded = Recorded()
    recorded.mailbox.post_and_process(stop("first"))
    assert recorded.reasons == ["first"]
    assert recorded.threads == {threading.current_thread().name}
    assert recorded.empty_count == 1


def test_post_and_process_wakes_the_own_thread_otherwise() -> None:
    recorded = Recorded(lends=False)
    recorded.mailbox.start()
    recorded.mailbox.post_and_process(stop("first"))
    eventually(lambda: recorded.reasons == ["first"])
    assert recorded.threads == {"run"}
    recorded.mailbox.post(KillRequested())
    recorded.mailbox.join(60)


def test_message_posted_by_a_handler_is_processed_after_it() -> None:
    recorded = Recorded()
    recorded.mailbox.post_and_process(stop("nested"))
    assert recorded.reasons == ["nested", "inner"]


def test_handler_that_raises_is_reported_and_the_next_runs() -> None:
    recorded = Recorded()
    recorded.mailbox.post_and_process(stop("raise"))
    recorded.mailbox.post_and_process(stop("next"))
    assert [str(error) for error in recorded.errors] == ["raised by a handler"]
    assert recorded.reasons == ["next"]


def test_messages_after_the_end_stay_unprocessed() -> None:
    recorded = Recorded()
    recorded.mailbox.post_and_process(KillRequested())
    recorded.mailbox.post_and_process(stop("late"))
    assert recorded.mailbox.unprocessed() == [stop("late")]
    assert recorded.reasons == []


def test_many_threads_lose_no_message() -> None:
    recorded = Recorded()
    recorded.mailbox.start()

    def post(number: int) -> None:
        for index in range(200):
            send = recorded.mailbox.post if (index + number) % 2 else recorded.mailbox.post_and_process
            send(stop(f"{number}-{index}"))

    threads = [threading.Thread(target=post, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    eventually(lambda: len(recorded.reasons) == 800)
    assert len(set(recorded.reasons)) == 800
    recorded.mailbox.post(KillRequested())
    recorded.mailbox.join(60)

"""Messages of a run: every type has one handler."""

from __future__ import annotations

from agentos.runs._parts import messages
from agentos.workflows.parallel import ParallelCoordinator


def test_driver_has_a_handler_for_every_message() -> None:
    classes = (value for value in vars(messages).values() if isinstance(value, type))
    types = {cls for cls in classes if cls.__module__ == messages.__name__}
    with ParallelCoordinator(reporter=None).stream([], lambda item, key: item) as stream:
        assert set(stream._run._driver._mailbox.handlers) == types - {messages.Message}
    assert all(issubclass(kind, messages.Message) for kind in types)

"""`agentos keys reload`: has executing runs and gateways read their keys again, and prints what each has changed."""

from __future__ import annotations

import time

import click

from agentos.keys import reload_requests
from agentos.keys.reload_requests import GATEWAY, Answer, Process

from ..completion import run_ids
from ..console import FAILED, Command, Failure
from ..find import find_run

# Seconds to wait for the answers: a process looks every second, and reading keys may run commands (cmd:).
MAX_WAIT = 30.0
POLL_SECONDS = 0.05


@click.command(cls=Command, short_help="Have executing runs read their keys again.")
@click.argument("run_id", metavar="[RUN]", required=False, shell_complete=run_ids)
@click.pass_context
def reload(context: click.Context, run_id: str | None) -> None:
    """Have executing runs and gateways read their keys file again; RUN: only that run. Keys are added, changed (another
    secret, other limits) or retired without a restart; what is in use finishes. If a file cannot be used, nothing
    changes.

    SIGHUP does the same for one process, except where it is ignored (nohup).

    \b
    Examples:
      agentos keys reload
      agentos keys reload 20261116-093012-1f3a5c

    Exit status: 0 all have read their keys, 2 wrong usage, 3 a process has not, or nothing is executing.
    """
    name = None if run_id is None else find_run(run_id).run_id
    processes = [process for process in reload_requests.processes() if name in (None, process.name)]
    if not processes:
        what = (
            "no run or gateway with keys is executing" if name is None else f"the run {name} is not executing with keys"
        )
        raise Failure(f"{what}: the next one reads its keys when it starts")
    answers = _ask(processes)
    for process in processes:
        click.echo(f"{_name(process)}: {_text(answers.get(process.name))}")
    context.exit(
        0 if all(process.name in answers and answers[process.name].is_done for process in processes) else FAILED
    )


def _ask(processes: list[Process]) -> dict[str, Answer]:
    """Return the answers that came in time, by name."""
    requests = {process: reload_requests.request_reload(process) for process in processes}
    answers: dict[str, Answer] = {}
    deadline = time.monotonic() + MAX_WAIT
    while len(answers) < len(requests) and time.monotonic() < deadline:
        for process, request in requests.items():
            answer = reload_requests.answer_to(process, request)
            if answer is not None:
                answers[process.name] = answer
            elif process.has_ended:
                answers[process.name] = Answer(request, True, "has ended")
        time.sleep(POLL_SECONDS)
    return answers


def _name(process: Process) -> str:
    return f"gateway (pid {process.pid})" if process.kind == GATEWAY else f"run {process.name}"


def _text(answer: Answer | None) -> str:
    if answer is None:
        return f"has not answered within {MAX_WAIT:.0f} s"
    return answer.text if answer.is_done else f"nothing has changed: {answer.text}"

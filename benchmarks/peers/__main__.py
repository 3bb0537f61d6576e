"""`python -m benchmarks.peers NAME JOB`: one client does one job, given as JSON; prints what it did, as JSON."""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time

from .job import Job, Tally


def main(name: str, text: str) -> None:
    job = Job(**json.loads(text))
    prepare = importlib.import_module(f"benchmarks.peers.{name}").prepare
    run = prepare(job)  # imports and clients, at nobody's cost
    tally = Tally()
    start, used = time.monotonic(), time.process_time()
    thread = threading.Thread(target=run, args=(tally,), daemon=True)
    thread.start()
    thread.join(job.cap)
    outcome = {
        "succeeded": tally.succeeded,
        "failed": tally.failed,
        "first_error": tally.first_error,
        "cpu": time.process_time() - used,
        "seconds": time.monotonic() - start,
        "was_stopped": thread.is_alive(),
    }
    print(json.dumps(outcome), flush=True)
    os._exit(0)  # whatever still waits for a key


if __name__ == "__main__":
    main(*sys.argv[1:])

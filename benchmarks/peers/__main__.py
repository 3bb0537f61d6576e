"""Run one client: `python -m benchmarks.peers NAME JOB`. The job comes as JSON; the outcome is printed as JSON."""

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
    run = prepare(job)  # imports and clients: not measured
    tally = Tally()
    start, cpu_start = time.monotonic(), time.process_time()
    thread = threading.Thread(target=run, args=(tally,), daemon=True)
    thread.start()
    thread.join(job.cap)
    outcome = {
        "succeeded": tally.succeeded,
        "failed": tally.failed,
        "first_error": tally.first_error,
        "cpu": time.process_time() - cpu_start,
        "seconds": time.monotonic() - start,
        "was_stopped": thread.is_alive(),
    }
    print(json.dumps(outcome), flush=True)
    os._exit(0)  # without joining threads that still wait for a key


if __name__ == "__main__":
    main(*sys.argv[1:])

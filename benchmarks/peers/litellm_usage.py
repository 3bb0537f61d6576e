"""`litellm.Router` with `usage-based-routing-v2`: the deployment with the least use of its minute.

It is not told how many may be sent at once: told that, it still chooses deployments that have no place left, and more
than a quarter of the items fail.
"""

from __future__ import annotations

from collections.abc import Callable

from .job import Job, Tally
from .litellm_router import prepare_router


def prepare(job: Job) -> Callable[[Tally], None]:
    return prepare_router(job, "usage-based-routing-v2")

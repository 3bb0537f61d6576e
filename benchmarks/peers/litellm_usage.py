"""`litellm.Router` with `usage-based-routing-v2`: the deployment with the least usage in the current minute.

Without `max_parallel_requests`: with it, the router still chooses deployments that are full, and more than a quarter of
the items fail.
"""

from __future__ import annotations

from collections.abc import Callable

from .job import Job, Tally
from .litellm_router import prepare_router


def prepare(job: Job) -> Callable[[Tally], None]:
    return prepare_router(job, "usage-based-routing-v2")

"""The option `--gateway`: a gateway inside the run, which leases a credential for each request of its items."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import click

from agentos.costs.prices import Prices
from agentos.errors import GatewayError
from agentos.keys.keys_file import Keys
from agentos.pool.lease_pool import LeasePool

from ..console import Failure

if TYPE_CHECKING:
    from agentos.gateway.gateway import Gateway

# Seconds that the end of a run waits for requests: its attempts have ended, and with them their requests.
GRACE = 1.0


def check_gateway(options: dict[str, Any], keys: Keys | None, *, has_engine: bool) -> bool:
    """Return whether a run with these options has a gateway. Raise `click.UsageError` if it cannot have one."""
    if not options.get("gateway"):
        return False
    from agentos.gateway.gateway import check_installed

    try:
        check_installed()
    except GatewayError as error:
        raise click.UsageError(f"--gateway: {error}") from None
    if keys is None:
        raise click.UsageError("--gateway needs keys: give --keys FILE or --key-env PATTERN")
    if has_engine:
        raise click.UsageError(
            "--gateway listens on this machine only, where the workers of a cluster cannot reach it: omit one of --on "
            "and --gateway"
        )
    return True


def start_gateway(
    options: dict[str, Any], keys: Keys, pool: LeasePool, prices: Prices, resources: contextlib.ExitStack
) -> Gateway:
    """Return a gateway that was started; `resources` stops it. Raise `Failure` if it cannot be started."""
    from agentos.gateway.addresses import known_addresses
    from agentos.gateway.gateway import Gateway

    try:
        gateway = Gateway(pool, providers=known_addresses(keys.base_urls), hold=options.get("hold"), prices=prices)
        gateway.start()
    except GatewayError as error:
        raise Failure(str(error)) from None
    resources.callback(gateway.stop, GRACE)
    return gateway

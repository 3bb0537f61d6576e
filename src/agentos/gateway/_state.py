"""GatewayState: what all requests of a gateway share. Used on the gateway's event loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from agentos.costs.prices import Prices
from agentos.pool.lease_pool import LeasePool
from agentos.providers.presets import preset_of

from ._affinity import Affinity
from ._estimates import Estimates
from ._joined_requests import JoinableRequests
from ._metrics import Metrics
from ._owned_objects import OwnedObjects
from ._stall import Stall
from .addresses import ProviderAddress
from .client_tokens import ClientTokens

if TYPE_CHECKING:
    from ._upstream import Upstream

# Seconds between two looks at the credentials of the pool.
_LOOK_SECONDS = 5.0


@dataclass(slots=True)
class GatewayState:
    """The parts of one gateway."""

    pool: LeasePool
    tokens: ClientTokens
    addresses: Mapping[str, ProviderAddress]
    hold: float
    prices: Prices
    metrics: Metrics = field(default_factory=Metrics)
    upstream: Upstream | None = None  # made when the loop runs
    estimates: Estimates = field(default_factory=Estimates)
    affinity: Affinity = field(default_factory=Affinity)
    objects: OwnedObjects = field(default_factory=OwnedObjects)
    joinable: JoinableRequests = field(default_factory=JoinableRequests)
    stall: Stall = field(default_factory=Stall)
    is_draining: bool = False
    under_way: int = 0  # requests that have a client token and are not answered yet
    buffered: int = 0  # bytes of request bodies in memory
    _names: dict[str, tuple[str, list[str]]] = field(default_factory=dict)  # canonical name -> the pool's name, ids
    _names_until: float = -inf

    def provider_name(self, provider: str) -> str:
        """Return a provider's name as the pool's credentials spell it."""
        return self._credentials().get(provider, (provider, []))[0]

    def only_credential(self, provider: str) -> str | None:
        """Return the id of a provider's credential, if it has exactly one."""
        ids = self._credentials().get(provider, (provider, []))[1]
        return ids[0] if len(ids) == 1 else None

    def _credentials(self) -> dict[str, tuple[str, list[str]]]:
        now = self.pool.clock.now()
        if now >= self._names_until:
            self._names_until = now + _LOOK_SECONDS
            self._names = {}
            for credential in self.pool.credentials():
                if credential.provider is not None:
                    preset = preset_of(credential.provider)
                    name = credential.provider if preset is None else preset.name
                    self._names.setdefault(name, (credential.provider, []))[1].append(credential.id)
        return self._names

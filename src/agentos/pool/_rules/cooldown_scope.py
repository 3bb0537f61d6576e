"""Cool-downs: how long an answer makes us wait, and where that wait is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentos.limits.pace import Pace

if TYPE_CHECKING:
    from .records import CredentialRecord


class CooldownScope:
    """What cools down together: a quota group, a provider, or one credential; per scope, `None` being all of them.

    `cooling` holds only what has not ended yet: the pool removes an entry at its instant, before it decides anything.
    """

    __slots__ = ("cooled_by", "cooling", "kind", "members", "name", "overloads", "pace")

    def __init__(self, kind: str, name: str | None) -> None:
        self.kind = kind  # "group", "provider" or "credential"
        self.name = name  # None: the provider of credentials that name none
        self.members: dict[str, CredentialRecord] = {}
        self.cooling: dict[str | None, float] = {}
        self.cooled_by: dict[str | None, str] = {}  # the verdict behind each of them
        self.pace = Pace(name or "")  # of a group, or of groups that seem to share a limit
        self.overloads: dict[str | None, tuple[int, float]] = {}  # by scope: how often in a row, and since when

    def usable_at(self, scope: str | None) -> float:
        """The instant from which this domain no longer forbids `scope`; 0 when it does not."""
        if not self.cooling:
            return 0.0
        whole = self.cooling.get(None, 0.0)
        return whole if scope is None else max(whole, self.cooling.get(scope, 0.0))

"""CooldownScope: the credentials that cool down together, and the cool-downs that are running."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentos.limits.pace import Pace

if TYPE_CHECKING:
    from .guessed_cool_downs import Guess
    from .records import CredentialRecord


class CooldownScope:
    """A quota group, a provider, one credential or the whole store. Cool-downs are kept per model scope; None: all.

    `cooling` holds running cool-downs only: the allocator removes an entry when its instant comes, before any decision.
    """

    __slots__ = ("cooled_by", "cooling", "guesses", "kind", "members", "name", "overloads", "pace")

    def __init__(self, kind: str, name: str | None) -> None:
        self.kind = kind  # "group", "provider", "credential" or "store"
        self.name = name  # None: the provider of credentials that name none
        self.members: dict[str, CredentialRecord] = {}
        self.cooling: dict[str | None, float] = {}  # scope -> the instant of its end
        self.cooled_by: dict[str | None, str] = {}  # scope -> kind of the verdict behind the cool-down
        self.pace = Pace()  # used by groups
        self.guesses: dict[str | None, Guess] = {}  # scope -> its cool-downs whose end is a guess
        self.overloads: dict[str | None, tuple[int, float]] = {}  # scope -> overloads in a row, instant of the last

    def usable_at(self, scope: str | None) -> float:
        """Return the instant from which no cool-down here forbids `scope`; 0 if none does now."""
        if not self.cooling:
            return 0.0
        whole = self.cooling.get(None, 0.0)
        return whole if scope is None else max(whole, self.cooling.get(scope, 0.0))

    def start_cooldown(self, scope: str | None, until: float, verdict: str) -> None:
        """Start or prolong a cool-down."""
        if scope not in self.cooling:
            for member in self.members.values():
                member.cooled += 1
        self.cooling[scope] = until
        self.cooled_by[scope] = verdict

    def end_cooldown(self, scope: str | None) -> None:
        """End a running cool-down."""
        del self.cooling[scope]
        del self.cooled_by[scope]
        for member in self.members.values():
            member.cooled -= 1

"""What plugins and queues see of gangs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

GANG_PLUGIN: Final = "GangScheduling"
"""The plugin by whose events gangs are woken, also where no plugin refused a member. Profiles without it know no gangs."""


class GangView(Protocol):
    """Read access to the roster of gangs. A key is namespace/name."""

    def key_of(self, uid: str) -> str | None:
        """The gang of a pod; None for a pod without one."""
        ...

    def together_with(self, key: str) -> Sequence[str]:
        """Gangs that start with this one, itself among them."""
        ...

    def why_not_yet(self, key: str) -> str:
        """Why members of the gang cannot be tried now; empty: they can, or it has started."""
        ...


class NoGangs:
    """Where nobody belongs to a gang."""

    def key_of(self, uid: str) -> str | None:
        return None

    def together_with(self, key: str) -> Sequence[str]:
        return (key,)

    def why_not_yet(self, key: str) -> str:
        return ""

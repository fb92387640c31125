"""The view of gangs for preemption: the placed members, and how many of them each gang can lose.

A gang below its minimum is useless, so a preemption that takes more members than the gang can spare takes all of them. Source:
kube-scheduler 1.37, workload-aware preemption; KAI and Volcano do the same.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol


class PlacedGangMembers(Protocol):
    """The gangs of the cluster and their placed members. A key is namespace/name.

    A Protocol because only the state (`GangRoster`), which implements it, knows which labels or objects define a gang.
    """

    @property
    def version(self) -> int:
        """Raised whenever a result changes."""
        ...

    def __len__(self) -> int:
        """Number of gangs; 0: callers need not look up any pod."""
        ...

    def key_of(self, uid: str) -> str | None:
        """Returns the gang of a pod; None for a pod without one. It changes only with the pod's version."""
        ...

    def placed_members(self, key: str) -> Collection[str]:
        """Returns the uids of members that are bound or assumed and not leaving (`Pod.is_leaving`).

        Empty for an unknown gang.
        """
        ...

    def surplus(self, key: str) -> int:
        """Returns how many of those can be removed before the gang falls below its minimum. Never negative; 0 for an unknown gang."""
        ...

    def needs(self, key: str) -> int:
        """Returns how many more members must start together; 0: each may start alone, or the gang is unknown."""
        ...

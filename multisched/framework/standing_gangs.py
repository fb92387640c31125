"""What preemption asks of gangs: who of a gang stands, and how many of those it needs.

A gang that falls below its minimum is of no use to anybody. So whoever takes more members than it can spare takes all of
them. Source: kube-scheduler 1.37, workload-aware preemption; KAI and Volcano do the same.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol


class StandingGangs(Protocol):
    """The gangs of the cluster as far as members of them stand on nodes. A key is namespace/name.

    Border: the state keeps them, and neither plugins nor cycles know by which labels or objects a gang is one.
    """

    @property
    def version(self) -> int:
        """Raised at each change of an answer."""
        ...

    def __len__(self) -> int:
        """Gangs that there are; 0: nobody need be asked."""
        ...

    def key_of(self, uid: str) -> str | None:
        """The gang of a pod; None for a pod without one. Another answer comes only with another version of the pod."""
        ...

    def standing(self, key: str) -> Collection[str]:
        """uids of the members that are on a node, or assumed on one, and are not leaving (`Pod.is_leaving`).

        Empty for an unknown gang.
        """
        ...

    def surplus(self, key: str) -> int:
        """How many of those may go singly: beyond them the gang falls below its minimum. Never negative; 0 for an unknown gang."""
        ...

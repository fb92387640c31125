"""Pending pods grouped by reason: the document of `/api/v1/pending`. Values only.

`/api/v1/queue` lists single pods for a terminal; this one counts all of them for a page, which then shows a group.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from multisched.framework.leading import NotLedHere
from multisched.observe.queue_view import WaitingPod

GROUPS_SHOWN: Final = 50
"""The largest groups; others are counted only."""
PODS_PER_GROUP: Final = 100
"""The longest waiting pods of each group."""


class PendingGroup(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Pods of one domain in one state that the same plugins refused."""

    key: str
    """Names the group in `?group=`."""
    domain: str
    state: str
    """One of `queue_view.STATES`."""
    plugins: tuple[str, ...]
    count: int
    longest_s: float
    """How long its first pod has waited."""
    message: str
    """The message of its longest waiting pod, as an example."""


class PendingView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The whole document."""

    groups: tuple[PendingGroup, ...]
    """The largest first."""
    groups_left_out: int
    pods_total: int
    age_s: float
    """Since the pods were counted; counting 100,000 of them is shared by all pages."""
    pods: tuple[WaitingPod, ...] = ()
    """Pods of the requested group, the longest waiting first."""
    pods_left_out: int = 0
    elsewhere: tuple[NotLedHere, ...] = ()
    """Domains led by other replicas."""


class PendingSource(Protocol):
    """Counts the queues in steps of a millisecond.

    A Protocol because `observe` does not import the shell; implemented there (`ProgramPending`).
    """

    async def pending(self, *, group: str) -> PendingView:
        """Returns the groups, and the pods of the group with this key; empty: no pods."""
        ...

"""The last look before a bind is sent: does the node still take the pod, and is it still the domain's?

A bind may wait for seconds: at Permit, at PreBind, for a bind worker, for a 429 to pass. Owns nothing; `BindingCycle`
notes what a decision has seen, and `BindSender` asks right before each POST. Only changes by others count: a changed node, pods that
came by no decision of ours, a resize of the pod itself. Where rules reach over other nodes, pods that came or left
there count too (`PodNews`). Then the domain's filters are asked again, with the pod itself taken out. One that answers
from outside, or from a thread or process of its own, cannot be: of a changed node its answer holds no more.
"""

from __future__ import annotations

from typing import Final

import msgspec

from multisched.cycle.results import Placed
from multisched.cycle.scheduling_cycle import SchedulingCycle
from multisched.framework.status import Status
from multisched.model.objects import Node, Pod, differ_in_version_only
from multisched.state.cluster_cache import NO_ROW, ClusterCache
from multisched.state.domain_rows import DomainRows
from multisched.state.pod_news import keeps_away

NEWS_READ_MAX: Final = 64
"""Pods that came or left elsewhere that are held against a pod's rules one by one; past it the filters are asked at once."""


class Seen(msgspec.Struct, frozen=True):
    """What a decision was made of."""

    cycle: SchedulingCycle
    """Which made it. A pod keeps its profile till its bind has ended, also when the domain has another one since."""
    pod: Pod
    """As it was assumed: with what its binding writes."""
    node: Node
    generation: int
    """Of the domain's rows."""
    intrusions: int
    """Of the row (`ClusterCache.intrusions`)."""
    news: int
    """Of all rows (`PodNews.end`)."""


class SendCheck:
    """For the placed pods of one domain."""

    def __init__(self, cache: ClusterCache, rows: DomainRows) -> None:
        self._cache = cache
        self._rows = rows

    def note(self, placed: Placed, cycle: SchedulingCycle) -> Seen:
        """To be called in the step in which the cycle assumed the pod."""
        entry = self._cache.placed(placed.pod.uid)
        assert entry is not None, "a placed pod is assumed"
        row = entry.row
        cache, generation = self._cache, self._rows.generation
        return Seen(cycle, entry.pod, cache.nodes.node(row), generation, cache.intrusions(row), cache.news.end)

    def is_at_home(self, placed: Placed, seen: Seen) -> bool:
        """True if the pod's row has been the domain's ever since the decision."""
        entry = self._cache.placed(placed.pod.uid)
        if entry is None or entry.row == NO_ROW or entry.is_uprooted:
            return False
        return self._rows.has_stayed(entry.row, seen.generation)

    def refusal(self, placed: Placed, seen: Seen) -> Status | None:
        """Why nothing may be sent for the pod any more; None: it may."""
        entry = self._cache.placed(placed.pod.uid)
        if entry is None or entry.row == NO_ROW or entry.is_uprooted:
            return Status.error("its node went away before it was bound")
        if entry.node != placed.node:
            return Status.error(f"somebody else bound it to {entry.node} meanwhile")
        row = entry.row
        if not self._rows.has(row):
            return Status.error(f"node {placed.node} left the domain before the pod was bound")  # I8
        node = self._cache.nodes.node(row)
        if node.uid != seen.node.uid:  # and the watch had confirmed the bind before
            return Status.error("its node went away before it was bound")
        is_as_seen = (
            (node is seen.node or differ_in_version_only(seen.node, node))
            and entry.pod is seen.pod
            and self._cache.intrusions(row) == seen.intrusions
            and self._rows.has_stayed(row, seen.generation)
            and not self._is_concerned(placed, entry.pod, seen)
        )
        return None if is_as_seen else self._refusal_now(entry.pod, seen, node)

    def _is_concerned(self, placed: Placed, pod: Pod, seen: Seen) -> bool:
        """Whether pods came or left on any node that the pod's rules may be about, or whose rules may be about the pod."""
        news = self._cache.news
        if (news.end if placed.relates else news.demanding) <= seen.news:
            return False
        others = news.since(seen.news)
        if others is not None and not placed.relates:
            others = [other for other in others if keeps_away(other)]
        return others is None or len(others) > NEWS_READ_MAX or seen.cycle.is_concerned(placed, pod, others)

    def _refusal_now(self, pod: Pod, seen: Seen, node: Node) -> Status | None:
        before = seen.node
        if node.allocatable != before.allocatable and self._cache.ledgers.concern(pod):
            # Devices that were chosen by number may be the ones that went.
            return Status.error(f"what node {node.name} offers changed before the pod was bound")
        asking = seen.cycle.plugins.remote_filter
        if asking and not (node is before or differ_in_version_only(before, node)):
            return Status.error(f"node {node.name} changed after {asking[0].name} was asked about it")
        refusal = seen.cycle.refusal_of_move(pod, pod, node.name)
        return (
            Status.error(f"node {node.name} takes the pod no more, as things changed before it was bound: {refusal}")
            if refusal
            else None
        )

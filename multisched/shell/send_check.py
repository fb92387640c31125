"""The last look before a bind is sent: does the node still take the pod, and is it still the domain's?

A bind may wait for seconds: at Permit, at PreBind, for a bind worker, for a 429 to pass. Owns nothing; `DomainWorker` notes what
a decision has seen and asks right before each POST. Only what others change counts: a changed node, pods that came by no
decision of ours, a resize of the pod itself. Then the domain's filters are asked again, with the pod itself taken out. One that
answers from outside, or from a thread or process of its own, cannot be: of a changed node its answer holds no more.
"""

from __future__ import annotations

import msgspec

from multisched.cycle.scheduling_cycle import Placed, SchedulingCycle
from multisched.framework.status import Status
from multisched.model.objects import Node, Pod, differ_in_version_only
from multisched.state.cluster_cache import NO_ROW, ClusterCache


class Seen(msgspec.Struct, frozen=True):
    """What a decision was made of."""

    pod: Pod
    """As it was assumed: with what its binding writes."""
    node: Node
    generation: int
    """Of the domain's rows."""
    intrusions: int
    """Of the row (`ClusterCache.intrusions`)."""


class SendCheck:
    """For the placed pods of one domain."""

    def __init__(self, cache: ClusterCache, cycle: SchedulingCycle) -> None:
        self._cache = cache
        self._cycle = cycle

    def note(self, placed: Placed) -> Seen:
        """To be called in the step that assumed the pod."""
        entry = self._cache.placed(placed.pod.uid)
        assert entry is not None, "a placed pod is assumed"
        row = entry.row
        return Seen(entry.pod, self._cache.nodes.node(row), self._cycle.rows.generation, self._cache.intrusions(row))

    def is_at_home(self, placed: Placed, seen: Seen) -> bool:
        """True if the pod's row has been the domain's ever since the decision."""
        entry = self._cache.placed(placed.pod.uid)
        if entry is None or entry.row == NO_ROW or entry.is_uprooted:
            return False
        return self._cycle.rows.has_stayed(entry.row, seen.generation)

    def refusal(self, placed: Placed, seen: Seen) -> Status | None:
        """Why nothing may be sent for the pod any more; None: it may."""
        entry = self._cache.placed(placed.pod.uid)
        if entry is None or entry.row == NO_ROW or entry.is_uprooted:
            return Status.error("its node went away before it was bound")
        row = entry.row
        if not self._cycle.rows.has(row):
            return Status.error(f"node {placed.node} left the domain before the pod was bound")  # I8
        node = self._cache.nodes.node(row)
        is_as_seen = (
            (node is seen.node or differ_in_version_only(seen.node, node))
            and entry.pod is seen.pod
            and self._cache.intrusions(row) == seen.intrusions
            and self._cycle.rows.has_stayed(row, seen.generation)
        )
        return None if is_as_seen else self._refusal_now(entry.pod, seen.node, node)

    def _refusal_now(self, pod: Pod, before: Node, node: Node) -> Status | None:
        if node.allocatable != before.allocatable and self._cache.ledgers.concern(pod):
            # Devices that were chosen by number may be the ones that went.
            return Status.error(f"what node {node.name} offers changed before the pod was bound")
        asking = self._cycle.plugins.asking_filter
        if asking and not (node is before or differ_in_version_only(before, node)):
            return Status.error(f"node {node.name} changed after {asking[0].name} was asked about it")
        refusal = self._cycle.refusal_of_move(pod, pod, node.name)
        return (
            Status.error(f"node {node.name}, or the pod, changed before it was bound: {refusal}") if refusal else None
        )

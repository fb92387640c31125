"""The last check before a bind is sent: the pod must still fit on the node, and the node must still belong to the domain.

A bind may wait for seconds: at Permit, at PreBind, for a bind worker, or after a 429. `BindingCycle` records the state that a
decision was based on, and `BindSender` runs the check right before each POST. Only changes that this domain did not make are
relevant: a changed node, pods that others placed there, a resize of the pod itself. If the pod's rules refer to other nodes,
pods that were placed or removed there are relevant too (`ExternalPodChanges`). After such a change the domain's filters run
again, without counting the pod itself. Remote filters, and filters in a thread or process, cannot be run again here, so their
answer about a changed node is invalid. The lock annotation that PreBind writes on the node does not invalidate their answer.
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
from multisched.state.external_pod_changes import keeps_away

CHANGES_READ_MAX: Final = 64
"""Maximum number of external pod changes that are matched with the pod's rules one by one; beyond it the filters run again."""


class DecisionState(msgspec.Struct, frozen=True):
    """The state that a decision was based on."""

    cycle: SchedulingCycle
    """The cycle that made the decision. The pod keeps its profile until its bind has ended, even if the domain's changes."""
    pod: Pod
    """The pod as assumed, with the annotations that its binding writes."""
    node: Node
    generation: int
    """Generation of the domain's rows."""
    external_changes: int
    """Count of external changes of the row (`ClusterCache.external_changes`)."""
    pod_changes_end: int
    """Position in the log of pod changes (`ExternalPodChanges.end`)."""


class SendCheck:
    """The last check of one domain's placed pods."""

    def __init__(self, cache: ClusterCache, rows: DomainRows) -> None:
        self._cache = cache
        self._rows = rows

    def note(self, placed: Placed, cycle: SchedulingCycle) -> DecisionState:
        """Returns the state that the decision was based on. Must be called in the step in which the cycle assumed the pod."""
        entry = self._cache.placed(placed.pod.uid)
        assert entry is not None, "a placed pod is assumed"
        row = entry.row
        cache, generation = self._cache, self._rows.generation
        return DecisionState(
            cycle, entry.pod, cache.nodes.node(row), generation, cache.external_changes(row), cache.pod_changes.end
        )

    def is_at_home(self, placed: Placed, seen: DecisionState) -> bool:
        """Reports whether the pod's row has belonged to the domain ever since the decision."""
        entry = self._cache.placed(placed.pod.uid)
        if entry is None or entry.row == NO_ROW or entry.node_was_deleted:
            return False
        return self._rows.has_stayed(entry.row, seen.generation)

    def refusal(self, placed: Placed, seen: DecisionState) -> Status | None:
        """Returns the reason why the bind must not be sent, or None if it may be sent."""
        entry = self._cache.placed(placed.pod.uid)
        if entry is None:
            return Status.error(f"the pod was removed from node {placed.node} before it was bound")
        if entry.row == NO_ROW or entry.node_was_deleted:
            return self._deleted(placed.node)
        if entry.node != placed.node:
            return Status.error(f"another client bound it to {entry.node}")
        row = entry.row
        if not self._rows.has(row):
            return Status.error(f"node {placed.node} left the domain before the pod was bound")  # I8
        node = self._cache.nodes.node(row)
        if node.uid != seen.node.uid:  # deleted and created again after the watch had confirmed the bind
            return self._deleted(placed.node)
        is_as_seen = (
            (node is seen.node or differ_in_version_only(seen.node, node))
            and entry.pod is seen.pod
            and self._cache.external_changes(row) == seen.external_changes
            and self._rows.has_stayed(row, seen.generation)
            and not self._is_affected(placed, entry.pod, seen)
        )
        return None if is_as_seen else self._refusal_now(entry.pod, seen, node)

    def _deleted(self, node: str) -> Status:
        """Returns the refusal for a node that was deleted. A new node of the same name was never checked."""
        again = "" if self._cache.nodes.row_of(node) is None else " and created again"
        return Status.error(f"node {node} was deleted{again} before the pod was bound")

    def _is_affected(self, placed: Placed, pod: Pod, seen: DecisionState) -> bool:
        """Reports whether pods changed on any node that the pod's rules may refer to, or whose rules may refer to the pod."""
        changes = self._cache.pod_changes
        if (changes.end if placed.relates else changes.demanding) <= seen.pod_changes_end:
            return False
        others = changes.since(seen.pod_changes_end)
        if others is not None and not placed.relates:
            others = [other for other in others if keeps_away(other)]
        return others is None or len(others) > CHANGES_READ_MAX or seen.cycle.is_affected(placed, pod, others)

    def _unlocked(self, node: Node) -> Node:
        """Returns the node without lock annotations: PreBind writes one itself, after the filters have answered."""
        locks = self._cache.ledgers.lock_annotations
        if locks.isdisjoint(node.annotations):
            return node
        others = {key: text for key, text in node.annotations.items() if key not in locks}
        return msgspec.structs.replace(node, annotations=others)

    def _refusal_now(self, pod: Pod, seen: DecisionState, node: Node) -> Status | None:
        before = seen.node
        if node.allocatable != before.allocatable and self._cache.ledgers.has_ledger(pod):
            # Devices are chosen by index, and the chosen ones may be those that were removed.
            return Status.error(f"the allocatable resources of node {node.name} changed before the pod was bound")
        asking = seen.cycle.plugins.remote_filter
        if asking and not (node is before or differ_in_version_only(self._unlocked(before), self._unlocked(node))):
            return Status.error(f"node {node.name} changed after {asking[0].name} had responded for it")
        refusal = seen.cycle.refusal_of_move(pod, pod, node.name)
        return (
            Status.error(f"the pod no longer fits node {node.name}, as the cluster changed before the bind: {refusal}")
            if refusal
            else None
        )

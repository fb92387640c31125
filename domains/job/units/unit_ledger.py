"""UnitLedger: how many pods of each group are in each unit of a ResourcePolicy, and how many are terminating. All domains share it.

No unit exceeds its max (I1's rule for `max`): commit calls `fits` and `take` in one step. The unit in which a pod counts follows from its
labels, its node and the annotation `multisched.io/unit` of its binding, so that a restarted process and the audit count the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Final, NamedTuple

from msgspec.structs import replace

from domains.job.units.policy import Policy, Unit
from domains.job.units.policy_table import Match, PolicyTable
from domains.job.units.reading import DELETION_COST
from multisched.framework.context import Ledgers
from multisched.model.cluster_objects import ClusterObject
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Node, Pod

UNIT: Final = "multisched.io/unit"
"""Annotation of bound pods: key of the policy, `#`, number of the unit from 0."""
NOTHING: Final[Mapping[str, str]] = {}
COUNTED_MAX: Final = 1_000
"""Maximum number of pods counted in one step after policies have changed, about 25 us each."""


class UnitGroup(NamedTuple):
    """One group in one unit of one policy. The unit's max applies to each group separately."""

    policy: str
    unit: int
    group: tuple[str, ...]


class Share(NamedTuple):
    """How one pod counts in one unit."""

    unit_group: UnitGroup
    is_counted: bool
    """It counts for max."""
    is_terminating: bool
    amounts: tuple[tuple[str, int], ...]


class Count:
    """The pods of one group that count in a unit."""

    __slots__ = ("amounts", "pods")

    def __init__(self) -> None:
        self.pods = 0
        self.amounts: dict[str, int] = {}

    def add(self, share: Share, sign: int) -> None:
        self.pods += sign
        for resource, amount in share.amounts:
            self.amounts[resource] = self.amounts.get(resource, 0) + sign * amount


class Held(NamedTuple):
    """A placed pod that a policy selects."""

    pod: Pod
    row: int
    shares: tuple[Share, ...]
    annotations: Mapping[str, str]
    """The annotations of its binding, if this process placed it; else empty."""


class UnitLedger:
    """Implements `AnnotatedLedger`, `ObservingLedger` and `TimedAnnotationLedger` of `framework.ledger`."""

    name = "resource-policy-units"
    annotations = frozenset({UNIT, DELETION_COST})
    written = frozenset({UNIT})
    reported: frozenset[str] = frozenset()
    node_annotations: frozenset[str] = frozenset()
    lock_annotations: frozenset[str] = frozenset()
    reads_objects = (ObjectKind.RESOURCE_POLICY,)
    counts_bound_pods = True

    def __init__(self, table: PolicyTable, hold: Ledgers | None) -> None:
        """`hold`: finds the pods that a new policy selects; None for a copy, which its owner fills."""
        self.table = table
        self._hold = hold
        self._version = 0
        self._held: dict[str, Held] = {}
        self._on_row: dict[int, set[str]] = {}
        self._nodes: dict[int, Node] = {}
        self._row_of_node: dict[str, int] = {}
        self._counts: dict[UnitGroup, Count] = {}
        self._terminating: dict[tuple[str, int], int] = {}
        self.is_counted_in_background = False
        """Whether a background task calls `count_some` while `is_counting`. If not, `refresh` counts all pods at once."""
        self._uncounted: deque[str] = deque()
        """uids of pods on nodes that are not yet counted by the current policies."""
        self._stale: dict[str, int] = {}
        """Key of a changed policy whose pods are not all counted yet -> generation of the table with the change."""
        self._counted_generation = 0
        """Once `_uncounted` is empty, all pods are counted by the policies of this generation of the table."""
        self.served: set[str] = set()
        """The schedulerNames whose pods are placed by units: those of profiles with the plugin. Others are only counted."""

    def refresh(self) -> None:
        """Counts again if policies have changed, at most COUNTED_MAX pods if `is_counted_in_background`. Cheap if no object has changed."""
        if self.table.refresh():
            self._stale.update(dict.fromkeys(self.table.changed, self.table.generation))
            if not self._uncounted:
                self._begin_counting()
            if len(self._uncounted) <= COUNTED_MAX:
                self.count_some()
        while self._stale and not self.is_counted_in_background:
            self.count_some()

    @property
    def is_counting(self) -> bool:
        return bool(self._stale)

    def count_some(self) -> None:
        """Counts up to COUNTED_MAX pods by the current policies. If policies change meanwhile, all pods are counted again later."""
        for _ in range(min(COUNTED_MAX, len(self._uncounted))):
            self._count(self._uncounted.popleft())
        if not self._uncounted:
            counted = [key for key, generation in self._stale.items() if generation <= self._counted_generation]
            for key in counted:
                del self._stale[key]
            self._version += 1
            if self._stale:
                self._begin_counting()

    def match(self, pod: Pod) -> Match | None:
        """Returns the pod's policy, as `PolicyTable.match`, with a `problem` while pods of the policy are being counted."""
        match = self.table.match(pod)
        if match is None or match.problem or match.policy.key not in self._stale:
            return match
        return match._replace(
            problem=f"{match.policy.name} has changed, and its pods are being counted", is_counted=False
        )

    # -- Ledger ----------------------------------------------------------------------------------------------------

    def is_used_by(self, pod: Pod) -> bool:
        self.refresh()
        if self.table.is_empty:
            return False
        return (bool(pod.node) or pod.spec.scheduler_name in self.served) and bool(self.table.selecting(pod))

    def version(self, row: int) -> int:
        self.refresh()
        return self._version

    def fits(self, pod: Pod, row: int) -> str:
        """Returns why no unit of the row takes the pod; empty if one does, or if the row has no unit."""
        match, held = self.match(pod), self._held.get(pod.uid)
        if match is None or (held is not None and held.row == row):
            return ""
        if match.problem:
            return match.problem
        units = self._units_of_row(match.policy, row)
        if not units or self._first_not_full(match, units, pod) is not None:
            return ""
        return f"{match.policy.name}: {self.why_full(match, units[0])}"

    def take(self, pod: Pod, row: int) -> Mapping[str, str]:
        """Counts the pod in the first unit of the row that is not full. Returns the annotations of the binding: UNIT, those of the
        unit, and, for a pod of a ReplicaSet, the unit's deletion cost if the pod has none of its own.
        """
        held = self._held.get(pod.uid)
        if held is not None and held.row == row:
            return held.annotations
        refusal = self.fits(pod, row)
        assert not refusal, f"pod {pod.key} does not fit into a unit of its row: {refusal}"
        match = self.table.match(pod)
        units = () if match is None else self._units_of_row(match.policy, row)
        unit = None if match is None else self._first_not_full(match, units, pod)
        if match is None or unit is None:
            self._set(_bound(pod, NOTHING), row, (), NOTHING)
            return NOTHING
        annotations = {**unit.annotations, UNIT: f"{match.policy.key}#{unit.index}"}
        own = pod.annotations.get(DELETION_COST)
        is_replica = pod.owner is not None and pod.owner.kind == "ReplicaSet"
        if own is not None or not is_replica:
            annotations.pop(DELETION_COST, None)
        else:
            annotations.setdefault(DELETION_COST, str(unit.cost))
        self._set(_bound(pod, annotations), row, (_share(match.policy, unit, pod),), annotations)
        return annotations

    def restore(self, pod: Pod, row: int) -> None:
        held = self._held.get(pod.uid)
        annotations = held.annotations if held is not None and held.row == row else NOTHING
        self._set(pod, row, self._shares(pod, row), annotations)

    def release(self, uid: str) -> None:
        held = self._held.pop(uid, None)
        if held is not None:
            self._on_row[held.row].discard(uid)
            if not self._on_row[held.row]:
                del self._on_row[held.row]
            self._add(held.shares, -1)

    def set_node(self, row: int, node: Node | None) -> None:
        before = self._nodes.pop(row, None)
        if before is not None:
            self._row_of_node.pop(before.name, None)
        if node is not None:
            self._nodes[row] = node
            self._row_of_node[node.name] = row
        is_same = (
            before is not None and node is not None and (before.labels, before.taints) == (node.labels, node.taints)
        )
        if not is_same:
            for uid in tuple(self._on_row.get(row, ())):
                self.restore(self._held[uid].pod, row)

    def held(self) -> Mapping[str, object]:
        """Returns uid -> (row, shares). Raises RuntimeError while pods are being counted: the next audit compares them."""
        self.refresh()
        if self.is_counting:
            raise RuntimeError("policies have changed, and pods are being counted")
        return {uid: (one.row, one.shares) for uid, one in self._held.items()}

    def empty_copy(self) -> UnitLedger:
        copied = UnitLedger(self.table.copy(), None)
        copied.served = set(self.served)
        return copied

    def timed_annotations(self, annotations: Mapping[str, str], now: datetime) -> Mapping[str, str]:
        return NOTHING

    def binding_labels(self, annotations: Mapping[str, str]) -> Mapping[str, str]:
        """Returns the labels of the unit that the annotations name."""
        self.refresh()
        key, _, number = annotations.get(UNIT, "").partition("#")
        policy = self.table.named(key) if number else None
        unit = None if policy is None else _numbered(policy, number)
        return NOTHING if unit is None else unit.labels

    def object_changed(self, kind: ObjectKind, changed: ClusterObject) -> Collection[int]:
        self.refresh()
        return ()

    # -- reading ---------------------------------------------------------------------------------------------------

    def is_full(self, match: Match, unit: Unit, pod: Pod) -> bool:
        """Reports whether the pod's group would exceed the unit's max or maxResources with one more pod like this one."""
        if not unit.has_max:
            return False
        count = self._counts.get(UnitGroup(match.policy.key, unit.index, match.group))
        if unit.max_pods is not None and count is not None and count.pods >= unit.max_pods:
            return True
        return any(
            (0 if count is None else count.amounts.get(resource, 0)) + pod.requests.get(resource, 0) > limit
            for resource, limit in unit.max_resources.items()
        )

    def why_full(self, match: Match, unit: Unit) -> str:
        """Returns which limit of the full unit the group has reached, as text for users."""
        count = self._counts.get(UnitGroup(match.policy.key, unit.index, match.group)) or Count()
        group = f" of group {'/'.join(match.group)}" if match.group else ""
        if unit.max_pods is not None and count.pods >= unit.max_pods:
            return f"units[{unit.index}] has its max of {unit.max_pods} pods{group}"
        return f"units[{unit.index}] has no room within maxResources{group}"

    def terminating(self, policy: Policy, unit: Unit) -> int:
        """Returns how many pods of all groups in the unit are terminating."""
        return self._terminating.get((policy.key, unit.index), 0)

    def counted(self) -> Mapping[UnitGroup, int]:
        """Returns the number of pods that count for max, by unit and group."""
        return {unit_group: count.pods for unit_group, count in self._counts.items() if count.pods}

    # -- internal --------------------------------------------------------------------------------------------------

    def _units_of_row(self, policy: Policy, row: int) -> tuple[Unit, ...]:
        node = self._nodes.get(row)
        return () if node is None else tuple(unit for unit in policy.units if unit.has_node(node))

    def _first_not_full(self, match: Match, units: tuple[Unit, ...], pod: Pod) -> Unit | None:
        return next((unit for unit in units if not self.is_full(match, unit, pod)), None)

    def _shares(self, pod: Pod, row: int) -> tuple[Share, ...]:
        """Returns how the pod counts for each policy that selects it: in the unit of its binding, else in the first unit whose labels it
        has.
        """
        key, _, number = pod.annotations.get(UNIT, "").partition("#")
        found: list[Share] = []
        for policy in self.table.selecting(pod):
            units = self._units_of_row(policy, row)
            bound = _numbered(policy, number) if policy.key == key else None
            unit = bound if bound in units else next((one for one in units if one.is_carried_by(pod)), None)
            if unit is not None:
                found.append(_share(policy, unit, pod))
        return tuple(found)

    def _set(self, pod: Pod, row: int, shares: tuple[Share, ...], annotations: Mapping[str, str]) -> None:
        before = self._held.get(pod.uid)
        self._held[pod.uid] = Held(pod, row, shares, annotations)
        if before is not None and before.row != row:
            self._on_row[before.row].discard(pod.uid)
        self._on_row.setdefault(row, set()).add(pod.uid)
        if before is None or before.shares != shares:
            self._add(() if before is None else before.shares, -1)
            self._add(shares, 1)

    def _add(self, shares: tuple[Share, ...], sign: int) -> None:
        for share in shares:
            self._version += 1
            if share.is_counted:
                self._counts.setdefault(share.unit_group, Count()).add(share, sign)
                if not self._counts[share.unit_group].pods:
                    del self._counts[share.unit_group]
            if share.is_terminating:
                unit = share.unit_group.policy, share.unit_group.unit
                self._terminating[unit] = self._terminating.get(unit, 0) + sign
                if not self._terminating[unit]:
                    del self._terminating[unit]

    def _begin_counting(self) -> None:
        self._version += 1
        self._counted_generation = self.table.generation
        self._uncounted.extend(self._held if self._hold is None else [pod.uid for pod in self._hold.pods()])

    def _count(self, uid: str) -> None:
        """Counts one pod by the current policies, if it is still on a node."""
        held = self._held.get(uid)
        if self._hold is None:
            assert held is not None, "a copy counts what it holds"
            pod, row = held.pod, held.row
        else:
            placed = self._hold.placed(uid)
            at = None if placed is None else self._row_of_node.get(placed.node)
            if placed is None or at is None:
                return
            pod, row = placed.pod, at
        if not self.table.selecting(pod):
            self.release(uid)
        else:
            self._set(pod, row, self._shares(pod, row), held.annotations if held is not None else NOTHING)


def _bound(pod: Pod, written: Mapping[str, str]) -> Pod:
    """Returns the pod as the cache will have it: with the unit of its binding, not with one that other clients wrote."""
    annotations = {key: text for key, text in pod.annotations.items() if key != UNIT}
    if UNIT in written:
        annotations[UNIT] = written[UNIT]
    return replace(pod, annotations=annotations)


def _numbered(policy: Policy, number: str) -> Unit | None:
    is_number = number.isascii() and number.isdigit() and len(number) <= 3
    return policy.units[int(number)] if is_number and int(number) < len(policy.units) else None


def _share(policy: Policy, unit: Unit, pod: Pod) -> Share:
    is_previous = policy.ignores_previous and pod.created_s < policy.created_s
    is_counted = not is_previous and (policy.counts_terminating or not pod.is_deleting)
    amounts = tuple((resource, pod.requests.get(resource, 0)) for resource in unit.max_resources)
    return Share(UnitGroup(policy.key, unit.index, policy.group_of(pod)), is_counted, pod.is_deleting, amounts)

"""QuotaLedger: usage per level of the quota tree. The commits of all domains check it, so that no max is exceeded.

Owns the usage of every level of the tree in force, and the set of pods of each leaf. Pods of one leaf with the same amounts
share one `_Holding`, so that a further pod needs memory for its uid only.

Before a new tree comes into force, all placed pods are counted under it in a second ledger. With many pods, this takes several
steps (`catch_up`). Until the last step, the previous tree stays in force, and changes of pods are written to both ledgers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from copy import copy
from itertools import pairwise
from typing import Final, Protocol

from multisched.framework.context import Placed
from multisched.framework.device_demand import DeviceDemands
from multisched.framework.object_status import ObjectStatus
from multisched.model.decode_quotas import annotation_key
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod
from multisched.model.quota_tree import QuotaNode, QuotaTree, shown_amount
from multisched.model.quotas.koordinator import POD_LABEL
from multisched.plugins.quota.pod_amounts import Items, PodAmounts
from multisched.plugins.quota.quota_source import InForce, QuotaSource

QUOTA: Final = "ElasticQuota"
"""Name of the plugin and of its ledger."""

EXCEEDED: Final = "QuotaExceeded"
"""Reason in PodScheduled for a pod that exceeds a max. It is not Unschedulable, so cluster autoscalers add no useless nodes."""

PODS_AT_ONCE: Final = 1_000
"""Pods that are counted under a new tree in one step, which takes about ten milliseconds."""

REMOVED_PODS_MAX: Final = 256
"""Number of recently removed pods that `removed_since` can count; older ones are forgotten."""


class Labelled(Protocol):
    """A pod, or a label set shared by many pods. Namespace and labels determine its leaf."""

    @property
    def namespace(self) -> str: ...

    @property
    def labels(self) -> Mapping[str, str]: ...


class ObjectStatuses(Protocol):
    """The part of `QuotaStatuses` that plugins use. A Protocol, since `QuotaStatuses` itself depends on the ledger."""

    def status_of(self, kind: ObjectKind, namespace: str, name: str) -> ObjectStatus | None: ...

    def trouble_text(self) -> str: ...

    def pending_changed(self, pod: Pod) -> None: ...

    def mark_all(self) -> None: ...

    def kept_tree(self) -> bytes:
        """Returns the tree in force as a manifest; empty if its limits end with the deletion of its object."""
        ...


class Level:
    """One level of the tree in force, with its usage."""

    __slots__ = ("at", "guarantee", "kept", "max", "min", "name", "path", "reserved", "reserved_below", "used")

    def __init__(self, at: int, node: QuotaNode) -> None:
        self.at = at
        self.name = node.name
        self.path = node.path
        self.min = node.min
        self.max = node.max
        self.guarantee = node.guarantee
        self.used: dict[str, int] = {}
        """Resource -> total amount of its pods."""
        self.kept: dict[str, int] = {}
        """Resource -> unused amount that is kept for domains of other processes (`quota/shared`)."""
        self.reserved_below: dict[str, int] = {}
        """Resource -> unused amount that the guarantees of lower levels reserve."""
        self.reserved: dict[str, int] = {}
        """Resource -> unused amount that the guarantees of this and lower levels reserve; part of the parent's `reserved_below`."""

    def copy(self) -> Level:
        """Returns an independent copy."""
        other = copy(self)
        other.used, other.reserved_below, other.reserved = (
            dict(self.used),
            dict(self.reserved_below),
            dict(self.reserved),
        )
        return other

    def has_min_or_max(self, resource: str) -> bool:
        """Reports whether the level has a min or a max of the resource."""
        return resource in self.min or resource in self.max

    def used_and_reserved(self, resource: str) -> int:
        """Returns the used amount plus the amount that the guarantees of lower levels reserve. The max limits this sum."""
        return self.used.get(resource, 0) + self.reserved_below.get(resource, 0)

    def update_reserve(self, resource: str) -> int:
        """Recomputes `reserved` after a change of the usage or of `reserved_below`. Returns the difference to the old value."""
        below = self.reserved_below.get(resource, 0)
        used = self.used.get(resource, 0) + (self.kept.get(resource, 0) if self.kept else 0)
        reserve = max(below, self.guarantee.get(resource, 0) - used)
        more = reserve - self.reserved.get(resource, 0)
        self.reserved[resource] = reserve
        return more

    def counted_at_parent(self, items: Items, nominated: Mapping[str, int]) -> Items:
        """Returns the part of a request that is new at the parent. The rest is already reserved there by this level's guarantee."""
        return tuple((resource, max(0, amount - self._idle(resource, nominated))) for resource, amount in items)

    def _idle(self, resource: str, nominated: Mapping[str, int]) -> int:
        """Returns the unused part of the level's own guarantee, without nominated amounts."""
        own = self.reserved.get(resource, 0) - self.reserved_below.get(resource, 0)
        return max(0, own - nominated.get(resource, 0))

    def refusal(self, items: Items, nominated: Mapping[str, int], kept: Mapping[str, int]) -> str:
        """Returns why the request would exceed the level's max; empty if it would not.

        `kept`: `Level.kept`; empty for a pod of a borrower, which may use the kept amounts.
        """
        bounds, used, reserved = self.max, self.used, self.reserved_below
        for resource, amount in items:
            most = bounds.get(resource)
            if most is None or not amount:
                continue
            others = nominated.get(resource, 0) if nominated else 0
            unused = kept.get(resource, 0) if kept else 0
            if used.get(resource, 0) + reserved.get(resource, 0) + others + unused + amount > most:
                return self._sentence(resource, others, unused, amount)
        return ""

    def _sentence(self, resource: str, nominated: int, kept: int, amount: int) -> str:
        guaranteed = self.reserved_below.get(resource, 0)
        parts = [f"{shown_amount(resource, self.used.get(resource, 0))} used"]
        parts += [f"{shown_amount(resource, nominated)} nominated"] if nominated else []
        parts += [f"{shown_amount(resource, guaranteed)} guaranteed to others"] if guaranteed else []
        parts += [f"{shown_amount(resource, kept)} offered to other processes"] if kept else []
        asked, most = shown_amount(resource, amount), shown_amount(resource, self.max[resource])
        return f"quota {self.path}: {resource} {' and '.join(parts)}, {asked} requested, max {most}"


def add_usage(levels: Sequence[Level], items: Items, count: int, *, has_guarantees: bool) -> None:
    """Adds the amounts of `count` pods to a leaf and all levels above it (`levels`); a negative count subtracts them."""
    for level in levels:
        used = level.used
        for resource, amount in items:
            used[resource] = used.get(resource, 0) + count * amount
    if has_guarantees:
        for lower, upper in pairwise(levels):
            for resource, _ in items:
                upper.reserved_below[resource] = upper.reserved_below.get(resource, 0) + lower.update_reserve(resource)


def add_kept(levels: Sequence[Level], more: Mapping[str, int], *, has_guarantees: bool) -> None:
    """Adds amounts, which may be negative, to `Level.kept` of a leaf and all levels above it (`levels`)."""
    for level in levels:
        for resource, amount in more.items():
            level.kept[resource] = level.kept.get(resource, 0) + amount
    if has_guarantees:
        add_usage(levels, tuple((resource, 0) for resource in more), 1, has_guarantees=True)


def recompute_reserves(levels: Sequence[Level], tree: QuotaTree, *, has_guarantees: bool) -> None:
    """Recomputes `reserved` and `reserved_below` of all levels, from the leaves upward."""
    for level in levels:
        level.reserved_below, level.reserved = {}, {}
    for level in reversed(levels if has_guarantees else ()):
        above = tree.nodes[level.at].parent
        for resource in {**level.guarantee, **level.reserved_below} if above >= 0 else ():
            upper = levels[above]
            upper.reserved_below[resource] = upper.reserved_below.get(resource, 0) + level.update_reserve(resource)


def refusal_of_max(
    levels: Sequence[Level],
    items: Items,
    nominated: Mapping[int, Mapping[str, int]],
    *,
    has_guarantees: bool,
    with_kept: bool,
) -> str:
    """Returns why these amounts would exceed the max of a level; empty if they would not.

    `with_kept`: the amounts kept for other processes (`Level.kept`) count as used.
    """
    for level in levels:
        others = nominated.get(level.at, NO_AMOUNTS)
        why = level.refusal(items, others, level.kept if with_kept else NO_AMOUNTS)
        if why:
            return why
        if has_guarantees:
            items = level.counted_at_parent(items, others)
    return ""


class CrossProcessRoom(Protocol):
    """The amounts of the tree that are kept for, or offered by, other processes (`quota.shared.QuotaRoom`)."""

    def is_of_borrower(self, pod: Pod) -> bool:
        """Reports whether the pod's domain is a borrower: it uses what the lender offers, and ignores `Level.kept`."""
        ...

    def refusal(self, pod: Pod, levels: tuple[Level, ...], items: Items) -> str:
        """Returns why the pod may not be placed although its levels' max would allow it; empty if it may."""
        ...

    def added(self, pod: Pod, levels: tuple[Level, ...], items: Items) -> None: ...

    def bound(self, uid: str) -> None: ...

    def removed(self, uid: str) -> None: ...

    def counts(self) -> Counts:
        """Returns empty counts for a tree that is not in force yet."""
        ...

    def adopt(self, counts: Counts) -> None:
        """Replaces the counts when the tree that they belong to comes into force."""
        ...


class Counts(Protocol):
    """Usage by domains of other processes in a tree that is not in force yet."""

    def added(self, pod: Pod, levels: tuple[Level, ...], items: Items) -> None: ...

    def bound(self, uid: str) -> None: ...

    def removed(self, uid: str) -> None: ...


class _RemovedPods:
    """The most recently removed pods."""

    def __init__(self) -> None:
        self._removed: OrderedDict[str, tuple[tuple[Level, ...], Items]] = OrderedDict()
        """uid of a removed pod -> its levels and amounts; the most recently removed is last."""

    def add(self, uid: str, levels: tuple[Level, ...], items: Items) -> None:
        self._removed[uid] = levels, items
        self._removed.move_to_end(uid)
        if len(self._removed) > REMOVED_PODS_MAX:
            self._removed.popitem(last=False)

    def clear(self) -> None:
        self._removed.clear()

    def since(self, pod: Pod, own: int, level: Level, resource: str) -> int:
        """Returns the total amount of the pods removed from the level since this pod's removal, including this pod.

        `own`: the amount of this pod. It is the result if the removal has been forgotten.
        """
        together = 0
        for uid, (levels, items) in reversed(self._removed.items()) if pod.uid in self._removed else ():
            together += dict(items).get(resource, 0) if level in levels else 0
            if uid == pod.uid:
                break
        return max(own, together)


class _Holding:
    """Pods of one leaf with the same amounts."""

    __slots__ = ("items", "levels", "uids")

    def __init__(self, items: Items, levels: tuple[Level, ...]) -> None:
        self.items = items
        self.levels = levels
        self.uids: set[str] = set()


NO_LEVELS: Final[tuple[Level, ...]] = ()
NO_AMOUNTS: Final[Mapping[str, int]] = {}
NO_NOMINATIONS: Final[Mapping[int, Mapping[str, int]]] = {}


class _NextTree:
    """A tree that comes into force once all placed pods are counted under it."""

    __slots__ = ("in_force", "ledger", "uncounted")

    def __init__(self, in_force: InForce | None, ledger: QuotaLedger, uncounted: list[str]) -> None:
        self.in_force = in_force
        self.ledger = ledger
        """The ledger of the pods counted so far. Changes of all pods are written to it, also of pods not counted yet."""
        self.uncounted = uncounted
        """uids of placed pods that `catch_up` has not counted yet. Some may have been counted because of a change, or deleted."""


class QuotaLedger:
    """Implements `framework.ledger.ClusterLedger`."""

    name = QUOTA
    plugin = QUOTA
    fixed_labels = frozenset((POD_LABEL,))
    condition_reason = EXCEEDED

    def __init__(
        self,
        source: QuotaSource | None,
        placed: Callable[[], Iterable[Pod]],
        demands: DeviceDemands | None = None,
        find: Callable[[str], Placed | None] | None = None,
    ) -> None:
        """`source`: None for a copy, whose tree does not change. `placed`: returns all placed pods.

        `demands`: device demands of pods in addition to their requests; None: no such demands.
        `find`: returns a placed pod by its uid. If it is given, a count of more than PODS_AT_ONCE pods is left to `catch_up`; if it
        is None, every count takes one step.
        """
        self.amounts = PodAmounts(demands or DeviceDemands())
        self._seen = (-1, -1)
        """(sequence number of the quota objects, that of the device demands) at the last check. Most checks find no change."""
        self._counted_by = (0, 0)
        """(generation of the source, sequence number of the device demands) at the last count."""
        self._source = source
        self._placed = placed
        self._find = find
        self._next: _NextTree | None = None
        self._generation = 0
        self._version = 0
        self.in_force: InForce | None = None
        """The tree in force with its origin; None if there is no tree, and in a copy."""
        self.tree: QuotaTree | None = None
        self.levels: list[Level] = []
        self.paths: list[tuple[Level, ...]] = []
        """Position of a level -> the level and all levels above it."""
        self.has_guarantees = False
        """Whether some level has a guarantee, which reserves part of its min."""
        self.guaranteed: frozenset[str] = frozenset()
        """Resources of which some level has a min."""
        self._levels_of: dict[str, tuple[Level, ...]] = {}
        self._levels_named: dict[str, tuple[Level, ...]] = {}
        self._holding_of: dict[str, _Holding] = {}
        """uid of a counted pod -> the holding that contains it."""
        self._holdings: dict[int, dict[Items, _Holding]] = {}
        """Position of a leaf -> amounts -> its pods with these amounts."""
        self._terminating: set[str] = set()
        self._removed = _RemovedPods()
        self.room: CrossProcessRoom | None = None
        """None if one process leads all domains, and in a copy."""
        self._counts: Counts | None = None
        """Usage by domains of other processes while this is the ledger of a `_NextTree`; else None."""
        self.statuses: ObjectStatuses | None = None
        """The statuses of quota objects, shared by the plugins of all domains."""
        self.on_change: Callable[[tuple[Level, ...]], None] = _ignore
        """Called with the levels whose usage changed, from the leaf upward."""
        self.on_counted: Callable[[], None] = _nothing
        """Called when `catch_up` has put a tree in force, which is some time after the event of its object."""

    # -- the tree --------------------------------------------------------------------------------------------------

    def renew(self) -> None:
        """If the tree or the rules for device demands have changed, counts all pods again, and puts the tree in force.

        With many pods, this only begins the count, and `catch_up` continues it. If the tree changes again during the count, the count is
        completed first, and its tree comes into force, so that frequent edits cannot delay every tree. Cheap if nothing changed.
        """
        source, demands = self._source, self.amounts.demands
        if source is None or self._next is not None:
            return
        sequence = source.objects.sequence, demands.sequence
        if sequence == self._seen:
            return
        self._seen = sequence
        source.renew()
        counted_by = source.generation, demands.sequence
        if counted_by == self._counted_by:
            self.in_force = source.in_force
            return
        self._counted_by = counted_by
        self._begin_count(source)

    def _begin_count(self, source: QuotaSource) -> None:
        counted = QuotaLedger(None, tuple, self.amounts.demands)
        counted._put_in_force(source.tree)
        counted._counts = None if self.room is None else self.room.counts()
        pods = [] if source.tree is None else list(self._placed())
        if self._find is not None and len(pods) > PODS_AT_ONCE:
            self._next = _NextTree(source.in_force, counted, [pod.uid for pod in pods])
            return
        for pod in pods:
            counted.restore(pod)
        self._adopt(counted, source.in_force)

    def catch_up(self) -> bool:
        """Counts the next PODS_AT_ONCE pods under a new tree, and puts it in force after the last one. Returns False when done."""
        self.renew()
        next_tree = self._next
        if next_tree is None or self._find is None:
            return False
        for _ in range(min(PODS_AT_ONCE, len(next_tree.uncounted))):
            found = self._find(next_tree.uncounted.pop())
            if found is not None:
                next_tree.ledger.restore(found.pod)
        if not next_tree.uncounted:
            self._next = None
            self._adopt(next_tree.ledger, next_tree.in_force)
            self.on_counted()
            self.renew()
        return self._next is not None

    def _adopt(self, counted: QuotaLedger, in_force: InForce | None) -> None:
        """Puts the tree of another ledger in force, with that ledger's usage."""
        self.in_force = in_force
        self.tree, self.levels, self.paths = counted.tree, counted.levels, counted.paths
        self.has_guarantees, self.guaranteed = counted.has_guarantees, counted.guaranteed
        self._levels_of, self._levels_named = counted._levels_of, counted._levels_named
        self._holding_of, self._holdings = counted._holding_of, counted._holdings
        self._terminating = counted._terminating
        self._removed.clear()
        self._generation += 1
        self._version += 1
        if self.room is not None and counted._counts is not None:
            self.room.adopt(counted._counts)
        for leaf in self._holdings:
            self.on_change(self.paths[leaf])

    def _put_in_force(self, tree: QuotaTree | None) -> None:
        """Replaces the tree, without any pods."""
        self.tree = tree
        self._version += 1
        self._holding_of, self._holdings, self._terminating = {}, {}, set()
        nodes = () if tree is None else tree.nodes
        self.levels = [Level(at, node) for at, node in enumerate(nodes)]
        self.has_guarantees = any(node.guarantee for node in nodes)
        self.guaranteed = frozenset(name for node in nodes for name, amount in node.min.items() if amount)
        self._levels_of, self._levels_named, self.paths = {}, {}, []
        if tree is not None:
            paths = self.paths = [tuple(self.levels[at] for at in path) for path in tree.paths]
            self._levels_of = {namespace: paths[leaf] for namespace, leaf in tree.leaf_of.items()}
            self._levels_named = {name: paths[leaf] for name, leaf in tree.leaf_named.items()}
            recompute_reserves(self.levels, tree, has_guarantees=self.has_guarantees)

    @property
    def generation(self) -> int:
        """A number that increases when another tree comes into force, or when the rules for device demands change."""
        self.renew()
        return self._generation

    def levels_of(self, one: Labelled) -> tuple[Level, ...]:
        """Returns the leaf of a pod or label set, and all levels above it; empty if it has no quota."""
        self.renew()
        by_namespace = self._levels_of.get(one.namespace, NO_LEVELS)
        return self._named_by(one, by_namespace) if self._levels_named else by_namespace

    def _named_by(self, one: Labelled, otherwise: tuple[Level, ...]) -> tuple[Level, ...]:
        assert self.tree is not None
        name = one.labels.get(self.tree.pod_label, "")
        return self._levels_named[name] if one.namespace in self.tree.named_in.get(name, ()) else otherwise

    def label_problem(self, one: Labelled) -> str:
        """Returns why a pod may not use the quota that its label names; empty if the label is valid or missing.

        A placed pod with an invalid label counts in the quota of its namespace.
        """
        self.renew()
        if not self._levels_named or self.tree is None:
            return ""
        label = self.tree.pod_label
        name = one.labels.get(label, "")
        namespaces = self.tree.named_in.get(name)
        if namespaces is None or one.namespace in namespaces:
            return ""
        fix = (
            f"list {one.namespace} in the annotation {annotation_key('namespaces')} of that quota, or remove the label"
        )
        return f"label {label} names quota {name}, which does not list namespace {one.namespace}; {fix}"

    # -- ClusterLedger ---------------------------------------------------------------------------------------------

    def is_used_by(self, pod: Pod) -> bool:
        """Reports whether the pod has a quota in the tree in force, or in the one that comes into force next."""
        return bool(self.levels_of(pod)) or (self._next is not None and self._next.ledger.is_used_by(pod))

    def version(self) -> int:
        return self._version

    def fits(self, pod: Pod) -> str:
        return self.refusal(pod)

    def refusal(self, pod: Pod, nominated: Mapping[int, Mapping[str, int]] = NO_NOMINATIONS) -> str:
        """Returns why the pod would exceed the max of a level; empty if it would not.

        `nominated`: position of a level -> resource -> amount of nominated pods.
        """
        why = self.label_problem(pod)
        if why:
            return why
        levels, room = self.levels_of(pod), self.room
        is_lender = room is None or not room.is_of_borrower(pod)
        items = self.amounts.items(pod)
        why = refusal_of_max(levels, items, nominated, has_guarantees=self.has_guarantees, with_kept=is_lender)
        return why if why or room is None or not levels else room.refusal(pod, levels, items)

    def nominated_amounts(self, pods: Iterable[Pod]) -> dict[int, dict[str, int]]:
        """Returns position of a level -> resource -> total amount of these nominated pods."""
        nominated: dict[int, dict[str, int]] = {}
        for pod in pods:
            items = self.amounts.items(pod)
            for level in self.levels_of(pod):
                own = nominated.setdefault(level.at, {})
                above = level.counted_at_parent(items, own) if self.has_guarantees else items
                for resource, amount in items:
                    own[resource] = own.get(resource, 0) + amount
                items = above
        return nominated

    def holders(self) -> Container[str]:
        """Returns the uids of the counted pods."""
        return self._holding_of

    @property
    def names_leaves_by_label(self) -> bool:
        """Whether a label of the pod may select its leaf; otherwise only the namespace does."""
        return bool(self._levels_named)

    def holds(self, uid: str) -> bool:
        return uid in self._holding_of

    def take(self, pod: Pod) -> None:
        if self._next is not None:
            self._next.ledger.restore(pod)
        levels = self.levels_of(pod)
        if levels and pod.uid not in self._holding_of:
            self._take(pod, levels, self.amounts.items(pod))

    def restore(self, pod: Pod) -> None:
        if self._next is not None:
            self._next.ledger.restore(pod)
        levels, items = self.levels_of(pod), self.amounts.items(pod)
        holding = self._holding_of.get(pod.uid)
        if holding is not None and not (holding.levels is levels and holding.items == items):
            self._release(pod.uid)
            holding = None
        if not levels:  # the pod has a quota in the next tree only
            return
        if holding is None:
            self._take(pod, levels, items)
        if pod.node and (counts := self.room or self._counts) is not None:
            counts.bound(pod.uid)
        if pod.is_leaving:
            self._terminating.add(pod.uid)
        else:
            self._terminating.discard(pod.uid)

    def release(self, uid: str) -> None:
        if self._next is not None:
            self._next.ledger.release(uid)
        self._release(uid)

    def _release(self, uid: str) -> None:
        holding = self._holding_of.pop(uid, None)
        if holding is None:
            return
        self._terminating.discard(uid)
        holding.uids.remove(uid)
        self._removed.add(uid, holding.levels, holding.items)
        add_usage(holding.levels, holding.items, -1, has_guarantees=self.has_guarantees)
        if not holding.uids:
            of_leaf = self._holdings[holding.levels[0].at]
            del of_leaf[holding.items]
        if (counts := self.room or self._counts) is not None:
            counts.removed(uid)
        self._version += 1
        self.on_change(holding.levels)

    def removed_since(self, pod: Pod, level: Level, resource: str) -> int:
        """Returns the total amount of the pods removed from the level since this pod's removal, including this pod."""
        return self._removed.since(pod, dict(self.amounts.items(pod)).get(resource, 0), level, resource)

    def held(self) -> Mapping[str, object]:
        self.renew()
        return {uid: (holding.levels[0].path, holding.items) for uid, holding in self._holding_of.items()}

    def changed(self) -> None:
        """Records that the results of `fits` may have changed."""
        self._version += 1

    def levels_and_amounts_of(self, uid: str) -> tuple[tuple[Level, ...], Items]:
        """Returns the levels and amounts with which a pod is counted."""
        holding = self._holding_of[uid]
        return holding.levels, holding.items

    def largest_amount(self, leaf: int, resource: str) -> int:
        """Returns the largest amount that one pod of the leaf holds."""
        return max((dict(items).get(resource, 0) for items in self._holdings.get(leaf, ())), default=0)

    def leaves_with_pods(self) -> list[int]:
        """Returns the positions of leaves with pods, ascending."""
        return sorted(leaf for leaf, holdings in self._holdings.items() if holdings)

    def uids_of(self, leaf: int) -> Iterator[str]:
        """Yields the uids of the leaf's pods, in no particular order."""
        for holding in self._holdings.get(leaf, {}).values():
            yield from holding.uids

    @property
    def terminating(self) -> Collection[str]:
        """uids of counted pods that are terminating (`Pod.is_leaving`)."""
        return self._terminating

    def sums(self) -> object:
        return {level.path: {k: v for k, v in level.used.items() if v} for level in self.levels}

    def recount(self) -> None:
        self._version += 1
        for level in self.levels:
            level.used = {}
        for holding in [one for of_leaf in self._holdings.values() for one in of_leaf.values()]:
            add_usage(holding.levels, holding.items, len(holding.uids), has_guarantees=False)
        if self.tree is not None:
            recompute_reserves(self.levels, self.tree, has_guarantees=self.has_guarantees)

    def empty_copy(self) -> QuotaLedger:
        copy = QuotaLedger(None, tuple, self.amounts.demands)
        copy._put_in_force(self.tree)
        return copy

    # -- internal --------------------------------------------------------------------------------------------------

    def _take(self, pod: Pod, levels: tuple[Level, ...], items: Items) -> None:
        of_leaf = self._holdings.setdefault(levels[0].at, {})
        holding = of_leaf.get(items)
        if holding is None:
            holding = of_leaf[items] = _Holding(items, levels)
        holding.uids.add(pod.uid)
        self._holding_of[pod.uid] = holding
        add_usage(levels, items, 1, has_guarantees=self.has_guarantees)
        if (counts := self.room or self._counts) is not None:
            counts.added(pod, levels, items)
        self._version += 1
        self.on_change(levels)


def _ignore(levels: tuple[Level, ...]) -> None:
    """The default of `on_change`: does nothing."""


def _nothing() -> None:
    """The default of `on_counted`: does nothing."""

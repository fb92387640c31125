"""ClusterCache: all pods assumed or confirmed on a node.

States of a pod: unassumed -> assumed -> confirmed -> removed. There is no timer. A definite bind outcome (forget) or
the watch (confirm, remove) ends the assumed state; before the bind is sent, unreserve (forget) may end it too. A
forbidden transition means a corrupted cache and raises: the process must not go on placing pods with it.

The annotations and labels that ledgers depend on (`LedgerRegistry.annotations`, `fixed_labels`) are fixed at the bind:
they keep the values they had when the pod was assumed, or first seen on its node, and later versions are ignored.
Otherwise a user who may edit a running pod could free what it still uses, or take what it was never given.

Pods whose node is unknown (not yet listed, or deleted) are *strays*. They are kept by node name, on no row, until the
node is added or they are deleted. So a deleted node's pods remain until the API server deletes them. Strays keep their
holds in cluster ledgers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum, auto
from typing import Final

import msgspec

from multisched.framework.ledger import NO_CHOICES, Choices, Ledger
from multisched.model.cluster_objects import ClusterObject
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Node, Pod, reported_values_differ
from multisched.model.version import Version
from multisched.state.binding_labels import BindingLabels, differ_only_by_binding
from multisched.state.domain_rows import DomainRows
from multisched.state.external_pod_changes import ExternalPodChanges
from multisched.state.gang_roster import GangRoster
from multisched.state.ledgers import LedgerRegistry, PodLedgers, RowlessLedger
from multisched.state.node_table import NodeTable
from multisched.state.object_store import ObjectStore
from multisched.state.pods_by_priority import PodsByPriority

NO_ROW = -1
_NO_ANNOTATIONS: Mapping[str, str] = {}


class CacheCorruptedError(AssertionError):
    """The cache was asked for an impossible transition; its content can no longer be trusted."""


class PodState(Enum):
    """The state of a pod on a node."""

    ASSUMED = auto()
    CONFIRMED = auto()


_ASSUMED: Final = PodState.ASSUMED
"""A constant, because in Python 3.11 looking up an enum member takes as long as three calls."""


class PlacedPod(msgspec.Struct):
    """A pod on a node. `row` is NO_ROW while its node is unknown."""

    pod: Pod
    node: str
    row: int
    state: PodState
    annotations: Mapping[str, str] = _NO_ANNOTATIONS
    """The annotations that the binding of an assumed pod carries."""
    node_was_deleted: bool = False
    """The node it was assumed on was deleted. A new one may have the same name, but the pod was never checked against it."""
    ledgers: PodLedgers | None = None
    """The ledgers that an assumed pod holds something in, as long as it has not changed; None: unknown."""
    answered_s: float = math.inf
    """When the API server confirmed that an assumed pod is bound; infinite before."""


class Assumption(msgspec.Struct, frozen=True):
    """The result of assuming a pod, with the annotations that its binding must carry."""

    node: str
    annotations: Mapping[str, str]


class ClusterCache:
    """Nodes and the pods on them. All writes are synchronous and complete; readers hold `nodes` as a view."""

    def __init__(self, ledgers: LedgerRegistry | None = None) -> None:
        self.nodes = NodeTable()
        self.pods_by_priority = PodsByPriority(self.nodes)
        """The pods on every row in columns; empty until a preemption reads it."""
        self.ledgers = ledgers if ledgers is not None else LedgerRegistry()
        self.objects = ObjectStore()
        self._binding_labels = BindingLabels()
        self.gangs = GangRoster()
        """Gangs and their members; ingest writes the members, the cache their nodes."""
        self._domains: list[DomainRows] = []
        self._placed: dict[str, PlacedPod] = {}
        self.ledgers.pods, self.ledgers.placed = self._pods, self._placed.get
        self._strays: dict[str, set[str]] = {}
        self._intrusions: dict[int, int] = {}
        self.pod_changes = ExternalPodChanges()
        """Pods that were added, changed or removed without an assumption of this process."""

    def add_domain(self, domain: DomainRows) -> None:
        """Adds a domain and keeps its rows up to date from now on."""
        self._domains.append(domain)
        for row, node in self.nodes.live_rows():
            domain.set_node(row, node)

    def drop(self) -> None:
        """Frees what it keeps of pods, item by item: no other thread runs while one container is cleared. It is not used after that."""
        owners = (self.nodes.pod_counts, self.nodes, self.gangs, self.pods_by_priority)
        for items in (self._placed, *map(vars, owners)):
            while items:
                items.popitem()

    # -- nodes -----------------------------------------------------------------------------------------------------

    def set_node(self, node: Node) -> Node | None:
        """Adds or updates a node. Returns its previous version, if known.

        A node with the same name and another uid is a different node: the old one is removed first, and the new one
        gets a new row.
        """
        node = self.ledgers.with_elastic(node)
        row = self.nodes.row_of(node.name)
        before = self.nodes.node(row) if row is not None else None
        if before is not None and before.uid != node.uid:
            self.remove_node(node.name)
        elif before is not None and before.labels != node.labels:
            self._note_all(before.name)  # they are in another zone now
        row = self.nodes.set_node(node)
        self.ledgers.set_node(row, node)
        for domain in self._domains:
            domain.set_node(row, node)
        for uid in sorted(self._strays.pop(node.name, ())):
            entry = self._placed[uid]
            entry.row = row
            self.pod_changes.log_added(entry.pod)
            self.nodes.add_pod(row, entry.pod)
            self.ledgers.restore(entry.pod, row)
        return before

    def remove_node(self, name: str) -> Node | None:
        """Removes a node; its pods become strays until they are deleted. Returns the node, if known."""
        row = self.nodes.row_of(name)
        if row is None:
            return None
        node = self.nodes.node(row)
        self._note_all(name)
        for uid in list(self.nodes.pods_by_uid(row)):
            self.nodes.remove_pod(row, uid)
            self.ledgers.release_row(uid)
            entry = self._placed[uid]
            entry.row = NO_ROW
            entry.node_was_deleted = entry.state is PodState.ASSUMED
            self._strays.setdefault(name, set()).add(uid)
        self.nodes.remove_node(name)
        self.ledgers.set_node(row, None)
        for domain in self._domains:
            domain.set_node(row, None)
        return node

    def nodes_listed(self, version: Version) -> None:
        """Records that all nodes were listed at this version; their changes since the last watch event are unknown."""
        for domain in self._domains:
            domain.listed(version)

    # -- pods ------------------------------------------------------------------------------------------------------

    def assume(
        self,
        pod: Pod,
        row: int,
        choices: Choices = NO_CHOICES,
        pod_ledgers: PodLedgers | None = None,
        *,
        is_tentative: bool = False,
    ) -> Assumption:
        """Accounts for an unbound pod on a row. Called only by `transaction.assume`, after checking that it fits (I1).

        `pod_ledgers`: as `LedgerRegistry.ledgers_for` returned it in this step. `is_tentative`: as in `GangMember`.
        """
        if pod.uid in self._placed:
            raise CacheCorruptedError(f"pod {pod.key} ({pod.uid}) is assumed while {self._placed[pod.uid].state.name}")
        node = self.nodes.node(row).name
        annotations = self.ledgers.take(pod, row, choices, pod_ledgers)
        pod = self.bound_with(pod, annotations, row)
        self.nodes.add_pod(row, pod)
        self._placed[pod.uid] = PlacedPod(pod, node, row, _ASSUMED, annotations, ledgers=pod_ledgers)
        self.gangs.set_member_node(pod.uid, node, is_tentative=is_tentative)
        return Assumption(node, annotations)

    def revise(self, pod: Pod) -> bool:
        """Updates an assumed pod to the version that the watch shows, whether it still fits or not.

        Returns False if a ledger holds something for it based on its old version, which only a new decision can change.
        """
        entry = self._placed[pod.uid]
        before = entry.pod
        entry.pod, entry.ledgers = _with_mark_of(before, self.bound_with(pod, entry.annotations, entry.row)), None
        if entry.row != NO_ROW:
            self._changed(before, entry.pod, entry.row)
            self.nodes.remove_pod(entry.row, pod.uid)
            self.nodes.add_pod(entry.row, entry.pod)
        if pod.is_deleting:
            self.ledgers.restore_cluster(entry.pod)  # reclaim counts what leaving pods hold
        return not (self.ledgers.has_ledger(before) or self.ledgers.has_ledger(entry.pod))

    def forget(self, uid: str) -> bool:
        """Undoes an assumption whose bind certainly did not happen. False if the watch has confirmed or removed the pod."""
        entry = self._placed.get(uid)
        if entry is None or entry.state is not PodState.ASSUMED:
            return False
        self._drop(entry)
        return True

    def answered(self, uid: str, now_s: float) -> None:
        """Records that the API server called an assumed pod bound; only the watch, or a read that disagrees, ends the assumption."""
        entry = self._placed.get(uid)
        if entry is not None:
            entry.answered_s = now_s

    def answered_before(self, uids: Iterable[str], moment_s: float) -> list[PlacedPod]:
        """Returns those of the pods that are still assumed although the API server called them bound before that moment."""
        entries = (self._placed.get(uid) for uid in uids)
        return [e for e in entries if e is not None and e.state is PodState.ASSUMED and e.answered_s < moment_s]

    def place(self, pod: Pod) -> PlacedPod | None:
        """Places the pod on `pod.node`, as the API server shows it: confirms an assumption, adds, moves or updates the pod.

        Returns the entry before the change, if there was one.
        """
        known = self._placed.get(pod.uid)
        if known is None:
            self._add(pod)
            return None
        before = msgspec.structs.replace(known)
        if known.state is PodState.CONFIRMED and known.node != pod.node:
            raise CacheCorruptedError(f"pod {pod.key} ({pod.uid}) moved from {known.node} to {pod.node}")
        if known.node != pod.node:
            # Another scheduler bound the pod first: drops the assumption and uses the actual node.
            self._drop(known)
            self._add(pod)
            return before
        if known.state is PodState.ASSUMED and known.row != NO_ROW and known.pod.labels is not pod.labels:
            self._binding_labels.confirmed(pod, self.nodes.node(known.row))
        pod = _with_mark_of(known.pod, self._settled(known.pod, pod))
        known.state = PodState.CONFIRMED
        if known.row != NO_ROW and _differs(known.pod, pod):
            self._changed(known.pod, pod, known.row)
            self.nodes.remove_pod(known.row, pod.uid)
            self.nodes.add_pod(known.row, pod)
        elif known.row != NO_ROW:
            if known.pod.labels is not pod.labels and not differ_only_by_binding(known.pod.labels, pod.labels):
                self._changed(known.pod, pod, known.row)
            elif pod.is_deleting and not known.pod.is_deleting:
                self.pod_changes.log_removed(pod)  # spreading no longer counts it
            self.nodes.replace_pod(known.row, pod)
            if known.pod.phase != pod.phase and reported_values_differ(known.pod, pod, self.ledgers.reported):
                self.nodes.touch(known.row)
        if known.row != NO_ROW:
            self.ledgers.restore(pod, known.row, _held_in(known, pod))
        else:
            self.ledgers.restore_cluster(pod)
        known.pod, known.ledgers = pod, None
        self.gangs.set_member_node(pod.uid, pod.node, is_bound=True)
        return before

    def set_victim(self, uid: str, *, is_victim: bool) -> None:
        """Records that this process decided to evict a placed pod, or no longer evicts it.

        Later versions of the pod keep the mark until one shows the deletion. Unknown pods, and those already being
        deleted, are ignored. Called by `shell.removals.Removals` only.
        """
        entry = self._placed.get(uid)
        if entry is None or entry.pod.is_deleting or entry.pod.is_victim == is_victim:
            return
        entry.pod = msgspec.structs.replace(entry.pod, is_victim=is_victim)
        if entry.row != NO_ROW:
            self.nodes.replace_pod(entry.row, entry.pod)
        self.ledgers.restore_cluster(entry.pod)
        self.gangs.set_victim(uid, is_victim=is_victim)

    def remove(self, uid: str) -> PlacedPod | None:
        """Removes a pod that was deleted, or has ended and holds nothing any more. Returns its entry."""
        entry = self._placed.get(uid)
        if entry is not None:
            self._drop(entry)
        return entry

    def object_changed(self, kind: ObjectKind, changed: ClusterObject) -> None:
        """Handles an added, updated or deleted object of a kind that ledgers read: what is computed from its rows may have changed."""
        for row in self.ledgers.object_changed(kind, changed):
            self.nodes.touch(row)

    def repair_row(self, row: int) -> None:
        """Rebuilds a row, its columns and its pods from the entries, after the audit found a difference.

        Decisions based on the old row, and on counts of its pods, must be checked again.
        """
        self._count_external_change(row)
        self.pod_changes.log_unknown()
        self.nodes.recount(row, {uid: entry.pod for uid, entry in self._placed.items() if entry.row == row})

    def _add(self, pod: Pod) -> None:
        row = self.nodes.row_of(pod.node)
        self._placed[pod.uid] = PlacedPod(pod, pod.node, NO_ROW if row is None else row, PodState.CONFIRMED)
        self.gangs.set_member_node(pod.uid, pod.node, is_bound=True)
        if row is None:
            self._strays.setdefault(pod.node, set()).add(pod.uid)
            self.ledgers.restore_cluster(pod)
            return
        self._count_external_change(row)
        self.pod_changes.log_added(pod)
        self.nodes.add_pod(row, pod)
        self.ledgers.restore(pod, row)

    def bound_with(self, pod: Pod, annotations: Mapping[str, str], row: int) -> Pod:
        """Returns the pod as a bind to the row's node will leave it: with the binding's annotations and the labels copied from the node.

        Values that others wrote for annotations that only bindings write are replaced. `row`: NO_ROW for an unknown node.
        """
        if row != NO_ROW:
            pod = self._binding_labels.on_node(pod, self.nodes.node(row))
        if not annotations and not pod.annotations:
            return pod
        written = self.ledgers.written
        carried = {key: text for key, text in annotations.items() if key in written}
        if not carried and written.isdisjoint(pod.annotations):
            return pod
        own = {key: text for key, text in pod.annotations.items() if key not in written}
        return msgspec.structs.replace(pod, annotations={**own, **carried})

    def _settled(self, before: Pod, after: Pod) -> Pod:
        """Returns a newer version of a placed pod, with the annotations and labels that are fixed at the bind taken from the old one."""
        annotations = _kept(before.annotations, after.annotations, self.ledgers.annotations)
        labels = _kept(before.labels, after.labels, self.ledgers.fixed_labels)
        if labels == before.labels:
            labels = before.labels
        if annotations is after.annotations and labels is after.labels:
            return after
        return msgspec.structs.replace(after, annotations=annotations, labels=labels)

    def _pods(self) -> Iterator[Pod]:
        return (entry.pod for entry in self._placed.values())

    def _count_external_change(self, row: int) -> None:
        self._intrusions[row] = self._intrusions.get(row, 0) + 1

    def _note_all(self, node: str) -> None:
        row = self.nodes.row_of(node)
        on_row = {} if row is None else self.nodes.pods_by_uid(row)
        self.pod_changes.log_moved(on_row.values(), len(on_row))

    def _changed(self, before: Pod, after: Pod, row: int) -> None:
        self._count_external_change(row)
        self.pod_changes.log_removed(before)
        self.pod_changes.log_added(after)

    def _drop(self, entry: PlacedPod) -> None:
        uid = entry.pod.uid
        if entry.row == NO_ROW:
            strays = self._strays[entry.node]
            strays.discard(uid)
            if not strays:
                del self._strays[entry.node]
        else:
            self.pod_changes.log_removed(entry.pod)
            self.nodes.remove_pod(entry.row, uid)
        self.ledgers.release(uid)
        del self._placed[uid]
        self.gangs.set_member_node(uid, "")

    # -- reading ---------------------------------------------------------------------------------------------------

    def placed(self, uid: str) -> PlacedPod | None:
        return self._placed.get(uid)

    def external_changes(self, row: int) -> int:
        """Returns how often pods were added to the row, or changed on it, without an assumption of this process."""
        return self._intrusions.get(row, 0)

    def assumed_on(self, node: str) -> list[Pod]:
        """Returns the pods assumed on the node and not yet confirmed, even if the node is unknown."""
        row = self.nodes.row_of(node)
        uids = self._strays.get(node, ()) if row is None else self.nodes.pods_by_uid(row)
        return [self._placed[uid].pod for uid in sorted(uids) if self._placed[uid].state is PodState.ASSUMED]

    def holders(self, ledger: Ledger) -> list[tuple[Pod, int]]:
        """Returns the pods that may hold something in the ledger, with their rows; for a cluster ledger including strays (NO_ROW)."""
        with_strays = isinstance(ledger, RowlessLedger)
        return [(entry.pod, entry.row) for entry in self._placed.values() if with_strays or entry.row != NO_ROW]

    def stray_uids(self) -> list[str]:
        """Returns the uids of pods whose node is unknown."""
        return [uid for uids in self._strays.values() for uid in uids]

    def uids(self) -> list[str]:
        """Returns the uids of all placed pods; a copy."""
        return list(self._placed)

    def is_assumed(self, uid: str) -> bool:
        entry = self._placed.get(uid)
        return entry is not None and entry.state is PodState.ASSUMED

    def __iter__(self) -> Iterator[PlacedPod]:
        return iter(self._placed.values())

    def __len__(self) -> int:
        return len(self._placed)

    def stray_count(self) -> int:
        """Returns the number of pods whose node is unknown."""
        return sum(map(len, self._strays.values()))

    def assumed_count(self) -> int:
        return sum(entry.state is PodState.ASSUMED for entry in self._placed.values())

    def validate(self) -> None:
        """Checks every cross-index and every sum. Raises CacheCorruptedError. For tests and the audit."""
        for uid, entry in self._placed.items():
            if entry.row == NO_ROW:
                is_indexed = uid in self._strays.get(entry.node, ())
            else:
                is_indexed = self.nodes.pods_by_uid(entry.row).get(uid) is entry.pod
            if not is_indexed:
                raise CacheCorruptedError(f"pod {entry.pod.key} ({uid}) is not where its entry says: row {entry.row}")
        on_rows = sum(len(self.nodes.pods_by_uid(row)) for row, _ in self.nodes.live_rows())
        strays = sum(len(uids) for uids in self._strays.values())
        if on_rows + strays != len(self._placed):
            raise CacheCorruptedError(f"{on_rows} pods on rows and {strays} strays, but {len(self._placed)} entries")
        self.nodes.validate()


def _kept(was: Mapping[str, str], now: Mapping[str, str], keys: frozenset[str]) -> Mapping[str, str]:
    """Returns labels or annotations as they are now, with these keys as they were."""
    if was is now or keys.isdisjoint(key for key, _ in was.items() ^ now.items()):
        return now
    kept = {key: text for key, text in now.items() if key not in keys}
    kept.update((key, was[key]) for key in keys if key in was)
    # Reuses the old object if equal: otherwise each version of the pod would look like a change to readers.
    return was if kept == was else kept


def _with_mark_of(before: Pod, after: Pod) -> Pod:
    """Returns a newer version of a placed pod that keeps its victim mark until its deletion is shown."""
    is_victim = before.is_victim and not after.is_deleting
    return msgspec.structs.replace(after, is_victim=True) if is_victim else after


def _held_in(known: PlacedPod, after: Pod) -> PodLedgers | None:
    """Returns the ledgers that hold something for an assumed pod that has not changed in what ledgers read; None: any may."""
    before = known.pod
    is_as_assumed = (
        known.ledgers is not None
        and before.labels == after.labels
        and before.annotations == after.annotations
        and before.phase == after.phase
        and before.started_s == after.started_s
        and before.is_deleting == after.is_deleting
        and before.is_victim == after.is_victim
        and not _differs(before, after)
    )
    return known.ledgers if is_as_assumed else None


def _differs(before: Pod, after: Pod) -> bool:
    return before.spec is not after.spec or before.held != after.held or before.held_scoring != after.held_scoring

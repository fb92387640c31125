"""The ledgers of the process: registered once by the plugins that own them, read by commit, updated by the cache.

A ledger is a plugin's code. If it raises while a pod is being decided, that pod's attempt fails. If it raises while it
is updated, it can no longer be trusted: it is *broken*. A broken ledger refuses every pod that uses it until the audit
has compared and repaired it. Updates from the watch never fail because of a ledger.

Cluster ledgers are kept among the others, wrapped as ledgers whose answers are the same for all rows (`RowlessLedger`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeVar, cast

from msgspec.structs import replace

from multisched.framework.context import Placed
from multisched.framework.device_demand import DeviceDemands
from multisched.framework.ledger import (
    NO_CHOICES,
    AnnotatedLedger,
    BoundPodLedger,
    ChoiceLedger,
    Choices,
    ClusterLedger,
    DeviceLedger,
    ElasticLedger,
    LabelledLedger,
    Ledger,
    ObservingLedger,
    TimedAnnotationLedger,
)
from multisched.framework.registry import implements
from multisched.framework.runner import PluginFailure
from multisched.framework.status import Code, Status
from multisched.model.cluster_objects import ClusterObject
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Node, Pod

logger = logging.getLogger(__name__)

L = TypeVar("L", bound=Ledger)

LEDGERS_MAX = 32
UNKNOWN_VERSION = -1
ANY_ROW = 0
"""The row passed to a cluster ledger, which ignores it."""


class RowlessLedger:
    """Adapts a ClusterLedger to Ledger and SummingLedger: its answers are the same for every row."""

    def __init__(self, cluster: ClusterLedger) -> None:
        self.cluster = cluster
        self.name = cluster.name
        self.plugin = cluster.plugin
        self.condition_reason = cluster.condition_reason
        self.is_used_by: Callable[[Pod], bool] = cluster.is_used_by
        self.release: Callable[[str], None] = cluster.release

    def version(self, row: int) -> int:
        return self.cluster.version()

    def fits(self, pod: Pod, row: int) -> str:
        return self.cluster.fits(pod)

    def take(self, pod: Pod, row: int) -> Mapping[str, str]:
        self.cluster.take(pod)
        return {}

    def restore(self, pod: Pod, row: int) -> None:
        self.cluster.restore(pod)

    def set_node(self, row: int, node: Node | None) -> None:
        """Does nothing: the ledger does not depend on nodes."""

    def held(self) -> Mapping[str, object]:
        return self.cluster.held()

    def sums(self, row: int) -> object:
        return self.cluster.sums()

    def recount(self, row: int) -> None:
        self.cluster.recount()

    def empty_copy(self) -> RowlessLedger:
        return RowlessLedger(self.cluster.empty_copy())


class ClusterRefusal(NamedTuple):
    """A cluster ledger's refusal of a pod, with the plugin that owns the ledger; empty if no ledger refuses."""

    reason: str = ""
    plugin: str = ""
    condition_reason: str = ""


_NO_REFUSAL: Final = ClusterRefusal()


class PodLedgers(NamedTuple):
    """The ledgers that hold something for pods like one."""

    of_rows: tuple[Ledger, ...]
    of_cluster: tuple[RowlessLedger, ...]


class LedgerRegistry:
    """All ledgers by name; implements `framework.context.Ledgers`."""

    def __init__(self) -> None:
        self._ledgers: dict[str, Ledger] = {}
        self._of_rows: tuple[Ledger, ...] = ()
        self._of_cluster: tuple[RowlessLedger, ...] = ()
        self._with_timed_annotations: tuple[TimedAnnotationLedger, ...] = ()
        self._observing: tuple[ObservingLedger, ...] = ()
        self._of_bound: tuple[Ledger, ...] = ()
        self._elastic: tuple[ElasticLedger, ...] = ()
        self.annotations: frozenset[str] = frozenset()
        """Keys of the pod annotations that ledgers depend on."""
        self.written: frozenset[str] = frozenset()
        """Those that only bindings write."""
        self.reported: frozenset[str] = frozenset()
        """Those that other programs write to bound pods; not fixed at the bind."""
        self.node_annotations: frozenset[str] = frozenset()
        """Keys of the node annotations that ledgers depend on."""
        self.lock_annotations: frozenset[str] = frozenset()
        """Those that schedulers write to lock a node."""
        self.fixed_labels: frozenset[str] = frozenset()
        """Keys of the pod labels that ledgers depend on."""
        self.demands = DeviceDemands()
        self.pods: Callable[[], Iterable[Pod]] = tuple
        """Returns every pod that may hold something; set by the cache."""
        self.placed: Callable[[str], Placed | None] = lambda uid: None
        """Returns one of them by its uid."""
        self.broken: dict[str, str] = {}
        """Ledgers whose amounts cannot be trusted -> what they raised."""

    def register(self, ledger: Ledger | ClusterLedger) -> Ledger | ClusterLedger:
        """Adds the ledger, or returns the one already registered under its name, because domains share ledgers."""
        if ledger.name not in self._ledgers and len(self._ledgers) >= LEDGERS_MAX:
            raise ValueError(f"ledger {ledger.name}: more than {LEDGERS_MAX} ledgers")
        if implements(ledger, AnnotatedLedger):
            self.annotations |= ledger.annotations
            self.written |= ledger.written
        if implements(ledger, ObservingLedger):
            self.reported |= ledger.reported
            self.node_annotations |= ledger.node_annotations
            self.lock_annotations |= ledger.lock_annotations
        if isinstance(ledger, LabelledLedger):
            self.fixed_labels |= ledger.fixed_labels
        if implements(ledger, DeviceLedger):
            self.demands.add(ledger.name, ledger.device_demand)
        if ledger.name not in self._ledgers:
            self._keep(ledger if isinstance(ledger, Ledger) else RowlessLedger(ledger))
        kept = self._ledgers[ledger.name]
        return kept.cluster if isinstance(kept, RowlessLedger) else kept

    def _keep(self, ledger: Ledger) -> None:
        self._ledgers[ledger.name] = ledger
        if isinstance(ledger, RowlessLedger):
            self._of_cluster += (ledger,)
        else:
            self._of_rows += (ledger,)
        if implements(ledger, TimedAnnotationLedger):
            self._with_timed_annotations += (ledger,)
        if implements(ledger, ObservingLedger):
            self._observing += (ledger,)
        if implements(ledger, BoundPodLedger):
            self._of_bound += (ledger,)
        if implements(ledger, ElasticLedger):
            self._elastic += (ledger,)

    @property
    def read_annotations(self) -> frozenset[str]:
        """The keys of all annotations of pods that ledgers read."""
        return self.annotations | self.written | self.reported

    def __iter__(self) -> Iterator[Ledger]:
        return iter(self._ledgers.values())

    def ledgers_for(self, pod: Pod) -> PodLedgers:
        """Returns the ledgers that hold something for pods like this one. Raises PluginFailure.

        A decision asks once and passes the answer to `fits_cluster`, `fits` and `take`: most pods use none or one of
        the ledgers. The answer is valid in this step only.
        """
        return PodLedgers(_used_by(self._of_rows, pod), _used_by(self._of_cluster, pod))

    def fits(self, pod: Pod, row: int, choices: Choices = NO_CHOICES, pod_ledgers: PodLedgers | None = None) -> str:
        """Returns the first reason why a ledger of rows refuses the pod there; empty if none does. Raises PluginFailure."""
        return self._first_reason((pod_ledgers or self.ledgers_for(pod)).of_rows, pod, row, choices)

    def fits_cluster(self, pod: Pod, pod_ledgers: PodLedgers | None = None) -> ClusterRefusal:
        """Returns the first refusal by a cluster ledger, which applies to every row. Raises PluginFailure."""
        for ledger in (pod_ledgers or self.ledgers_for(pod)).of_cluster:
            reason = self._first_reason((ledger,), pod, ANY_ROW, NO_CHOICES)
            if reason:
                return ClusterRefusal(reason, ledger.plugin, ledger.condition_reason)
        return _NO_REFUSAL

    def _first_reason(self, ledgers: Sequence[Ledger], pod: Pod, row: int, choices: Choices) -> str:
        """Returns the first reason of these ledgers, all of which the pod uses."""
        for ledger in ledgers:
            try:
                reason = _fits(ledger, pod, row, choices)
            except Exception as error:
                raise _failure(ledger, f"{type(error).__name__}: {error}") from error
            if ledger.name in self.broken:
                what = self.broken[ledger.name]
                raise _failure(ledger, f"its state is inconsistent after an error ({what}); the next audit repairs it")
            if reason:
                return reason
        return ""

    def has_cluster_ledger(self, pod: Pod) -> bool:
        """Reports whether a cluster ledger holds something for pods like this one. Raises PluginFailure."""
        return bool(_used_by(self._of_cluster, pod))

    def has_ledger(self, pod: Pod) -> bool:
        """Reports whether any ledger holds something for pods like this one."""
        return bool(self.versions(pod, ANY_ROW))

    def take(
        self, pod: Pod, row: int, choices: Choices = NO_CHOICES, pod_ledgers: PodLedgers | None = None
    ) -> Mapping[str, str]:
        """Takes from every ledger; returns the annotations that the binding carries. After a PluginFailure nothing is held."""
        annotations: dict[str, str] = {}
        of_rows, of_cluster = pod_ledgers or self.ledgers_for(pod)
        for ledger in (*of_rows, *of_cluster):
            try:
                annotations.update(_take(ledger, pod, row, choices))
            except Exception as error:
                self.release(pod.uid)
                raise _failure(ledger, f"{type(error).__name__}: {error}") from error
        return annotations

    def restore(self, pod: Pod, row: int, pod_ledgers: PodLedgers | None = None) -> None:
        """Restores a pod with a node. `pod_ledgers`: those that held something for it without a node, if nothing else has changed."""
        if pod_ledgers is None:
            self._restore(self._ledgers.values(), pod, row)
            return
        held_in = (*pod_ledgers.of_rows, *pod_ledgers.of_cluster)
        self._restore((*held_in, *[ledger for ledger in self._of_bound if ledger not in held_in]), pod, row)

    def _restore(self, ledgers: Iterable[Ledger], pod: Pod, row: int) -> None:
        for ledger in ledgers:
            try:
                if ledger.is_used_by(pod):
                    ledger.restore(pod, row)
                else:
                    ledger.release(pod.uid)  # an earlier version of the pod may have held something
            except Exception as error:  # noqa: BLE001 - a plugin's failure must not corrupt the cache's own state
                self._broke(ledger, "restore", error)

    def timed_annotations(self, annotations: Mapping[str, str], now: datetime) -> Mapping[str, str]:
        """Returns the annotations that a binding with these carries in addition because it is sent at `now`. Raises PluginFailure."""
        found: dict[str, str] = {}
        for ledger in self._with_timed_annotations if annotations else ():
            try:
                found.update(ledger.timed_annotations(annotations, now))
            except Exception as error:
                raise _failure(ledger, f"{type(error).__name__}: {error}") from error
        return found

    def binding_labels(self, annotations: Mapping[str, str]) -> Mapping[str, str]:
        """Returns the labels that a binding with these annotations carries. Raises PluginFailure."""
        found: dict[str, str] = {}
        for ledger in self._with_timed_annotations if annotations else ():
            try:
                found.update(ledger.binding_labels(annotations))
            except Exception as error:
                raise _failure(ledger, f"{type(error).__name__}: {error}") from error
        return found

    def restore_cluster(self, pod: Pod) -> None:
        """Restores the pod in cluster ledgers only: its node is unknown, or its holds there are unchanged."""
        self._restore(self._of_cluster, pod, ANY_ROW)

    def release(self, uid: str) -> None:
        for ledger in self._ledgers.values():
            self._notify(ledger, "release", ledger.release, uid)

    def release_row(self, uid: str) -> None:
        """Releases what the pod held on its node, which was deleted; its holds in cluster ledgers remain."""
        for ledger in self._of_rows:
            self._notify(ledger, "release", ledger.release, uid)

    def suspend(self, pod: Pod, *, is_settled: bool) -> None:
        """Releases the pod's holds until `resume`, which restores the same holds.

        `is_settled`: the API server has the annotations it was bound with. For an unconfirmed pod, holds that were
        chosen and are not recorded on the pod itself are kept, because they could not be restored.
        """
        for ledger in self._ledgers.values():
            if _is_restorable(ledger, is_settled=is_settled):
                self._notify(ledger, "release", ledger.release, pod.uid)

    def resume(self, pod: Pod, row: int, *, is_settled: bool) -> None:
        """Undoes `suspend`. `row`: NO_ROW for a pod whose node is unknown, which holds only in cluster ledgers."""
        ledgers = self._ledgers.values() if row >= 0 else self._of_cluster
        self._restore((one for one in ledgers if _is_restorable(one, is_settled=is_settled)), pod, row)

    def suspend_cluster(self, plugins: Collection[str], pod: Pod) -> None:
        """Like `suspend`, for the cluster ledgers that these plugins own."""
        for ledger in self._of_cluster:
            if ledger.plugin in plugins:
                self._notify(ledger, "release", ledger.release, pod.uid)

    def resume_cluster(self, plugins: Collection[str], pod: Pod) -> None:
        """Undoes `suspend_cluster`."""
        self._restore((ledger for ledger in self._of_cluster if ledger.plugin in plugins), pod, ANY_ROW)

    def set_node(self, row: int, node: Node | None) -> None:
        for ledger in self._of_rows:
            self._notify(ledger, "set_node", ledger.set_node, row, node)

    def with_elastic(self, node: Node) -> Node:
        """Returns the node with the resources that are elastic there; without those of a ledger that fails."""
        found: frozenset[str] = frozenset()
        for ledger in self._elastic:
            try:
                found |= ledger.elastic(node)
            except Exception as error:  # noqa: BLE001 - a plugin's failure must not corrupt the cache's own state
                self._broke(ledger, "elastic", error)
        return node if node.elastic == found else replace(node, elastic=found)

    def object_changed(self, kind: ObjectKind, changed: ClusterObject) -> set[int]:
        """Passes a changed object to the ledgers that read its kind. Returns the rows whose answers may have changed."""
        rows: set[int] = set()
        for ledger in self._observing:
            if kind in ledger.reads_objects:
                try:
                    rows.update(ledger.object_changed(kind, changed))
                except Exception as error:  # noqa: BLE001 - a plugin's failure must not corrupt the cache's own state
                    self._broke(ledger, "object_changed", error)
        return rows

    def versions(self, pod: Pod, row: int) -> tuple[int, ...]:
        """Returns the ledger versions that a decision about this pod on this row depends on."""
        found = []
        for ledger in self._ledgers.values():
            try:
                if ledger.is_used_by(pod):
                    found.append(ledger.version(row))
            except Exception as error:  # noqa: BLE001 - a plugin's failure must not propagate
                self._broke(ledger, "version", error)
                found.append(UNKNOWN_VERSION)
        return tuple(found)

    def trust(self, name: str) -> None:
        """Ends the broken state of a ledger, after the audit has compared it with the pods and found it correct."""
        self.broken.pop(name, None)

    def _notify(self, ledger: Ledger, what: str, function: Callable[..., object], *args: Any) -> None:
        try:
            function(*args)
        except Exception as error:  # noqa: BLE001 - a plugin's failure must not corrupt the cache's own state
            self._broke(ledger, what, error)

    def _broke(self, ledger: Ledger, what: str, error: Exception) -> None:
        if ledger.name not in self.broken:
            logger.error(
                "ledger failed; it refuses its pods until the audit has repaired it", extra={"ledger": ledger.name}
            )
        self.broken[ledger.name] = f"{what}: {type(error).__name__}: {error}"


def _used_by(ledgers: Iterable[L], pod: Pod) -> tuple[L, ...]:
    """Returns the ledgers that hold something for pods like this one. Raises PluginFailure."""
    used: tuple[L, ...] = ()
    for ledger in ledgers:
        try:
            if ledger.is_used_by(pod):
                used += (ledger,)
        except Exception as error:
            raise _failure(ledger, f"{type(error).__name__}: {error}") from error
    return used


def _fits(ledger: Ledger, pod: Pod, row: int, choices: Choices) -> str:
    """Returns the ledger's answer. A ledger without choices raises if one was made."""
    if ledger.name in choices:
        return cast(ChoiceLedger, ledger).fits(pod, row, choices[ledger.name])
    return ledger.fits(pod, row)


def _take(ledger: Ledger, pod: Pod, row: int, choices: Choices) -> Mapping[str, str]:
    if ledger.name in choices:
        return cast(ChoiceLedger, ledger).take(pod, row, choices[ledger.name])
    return ledger.take(pod, row)


def _is_restorable(ledger: Ledger, *, is_settled: bool) -> bool:
    """Reports whether `restore` would recreate exactly what the pod holds now."""
    return is_settled or isinstance(ledger, RowlessLedger | AnnotatedLedger)


def _failure(ledger: Ledger, what: str) -> PluginFailure:
    """Returns the failure of a ledger, which fails the pod's attempt like a plugin's."""
    return PluginFailure(Status(Code.ERROR, ledger.name, (f'running Ledger "{ledger.name}": {what}',)))

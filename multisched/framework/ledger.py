"""Ledger: accounts for anything other than plain resources, per row (GPU devices, volumes, loans) or per cluster (quota).

A plugin owns its ledger; commit checks and takes, the cache releases, the audit rebuilds and compares. If a row offers
alternatives, a plugin chooses one (`ChoosingPlugin`), and the ledger takes the choice or refuses it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Final, Protocol, runtime_checkable

from multisched.framework.points import CycleView, Plugin
from multisched.model.cluster_objects import ClusterObject
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Node, Pod

Choices = Mapping[str, object]
"""Ledger -> what a plugin chose from it for one pod on one row."""
NO_CHOICES: Final[Choices] = {}


class LedgerSettingsError(ValueError):
    """A ledger's settings cannot change while the program runs; the message says why. Raised when plugins are built."""


@runtime_checkable
class Ledger(Protocol):
    """The amounts that pods hold per row. `version(row)` increases with each change that could alter `fits` for the row."""

    name: str

    def is_used_by(self, pod: Pod) -> bool:
        """Reports whether this pod takes anything from the ledger; no other method is called for other pods.

        Within one step, the result is the same for all pods that are alike (`model.objects.are_alike`).
        """
        ...

    def version(self, row: int) -> int: ...

    def fits(self, pod: Pod, row: int) -> str:
        """Returns why `take` would fail on the row now, as a message for users; empty if it would succeed."""
        ...

    def take(self, pod: Pod, row: int) -> Mapping[str, str]:
        """Takes what the pod needs and returns the annotations its binding must carry. Called only after `fits`.

        Taking again for the same uid on the same row is a no-op that returns the same annotations.
        """
        ...

    def restore(self, pod: Pod, row: int) -> None:
        """Accounts for a pod that is already bound, by its spec and annotations; never refuses: the API server is authoritative."""
        ...

    def release(self, uid: str) -> None:
        """Releases what the pod held; ignores unknown uids."""
        ...

    def set_node(self, row: int, node: Node | None) -> None:
        """Sets the node of the row; None: the node was removed. Pods keep what they hold there."""
        ...

    def held(self) -> Mapping[str, object]:
        """Returns everything held, uid -> a comparable value: the audit compares it with a rebuilt copy."""
        ...

    def empty_copy(self) -> Ledger:
        """Returns an empty ledger of the same kind and configuration, which the audit fills.

        Overlays do not use it: the plugin that owns a ledger updates its state there in AddPod and RemovePod.
        """
        ...


class ClusterLedger(Protocol):
    """A ledger of the cluster instead of rows, for instance the capacity of a quota.

    A pod holds its amount from its assumption until its removal, even while its node is unknown. What it holds follows
    from the pod alone, so `restore` has the same effect as `take`. If the ledger refuses a pod, no row is tried.
    """

    name: str
    plugin: str
    """Name of the plugin that owns it. A pod refused at commit waits for the events that this plugin has registered."""
    condition_reason: str
    """`Status.condition_reason` of a pod that the ledger refuses at commit."""

    def is_used_by(self, pod: Pod) -> bool:
        """The same as `Ledger.is_used_by`."""
        ...

    def version(self) -> int:
        """Returns a counter that rises at each change that could alter `fits`."""
        ...

    def fits(self, pod: Pod) -> str:
        """Returns why `take` would fail now, as a message for users; empty if it would succeed."""
        ...

    def take(self, pod: Pod) -> None:
        """Takes what the pod needs. Called only after `fits`; taking again for the same uid is a no-op."""
        ...

    def restore(self, pod: Pod) -> None:
        """Accounts for a pod that is already bound, or has changed since; never refuses: the API server is authoritative."""
        ...

    def release(self, uid: str) -> None:
        """Releases what the pod held; ignores unknown uids."""
        ...

    def held(self) -> Mapping[str, object]:
        """Returns everything held, uid -> a comparable value: the audit compares it with a rebuilt copy."""
        ...

    def sums(self) -> object:
        """Returns the sums over all holds: a comparable value that later changes do not alter, equal for the same holds (I4)."""
        ...

    def recount(self) -> None:
        """Recomputes the sums from the holds. Called in each audit, in one step."""
        ...

    def empty_copy(self) -> ClusterLedger:
        """Returns an empty ledger of the same kind and configuration; see `Ledger.empty_copy`."""
        ...


class ChoiceLedger(Ledger, Protocol):
    """A ledger whose rows offer alternatives, for instance several devices. Exactly the chosen one is taken.

    A Protocol because the state imports no domain; implemented by a domain (`GpuLedger`).
    """

    def fits(self, pod: Pod, row: int, choice: object = None) -> str:
        """Like `Ledger.fits`, for this choice. None: no plugin of the pod's profile chooses, so the ledger does."""
        ...

    def take(self, pod: Pod, row: int, choice: object = None) -> Mapping[str, str]:
        """Takes exactly the choice. Raises if it does not fit, or differs from what the pod already holds there."""
        ...


@runtime_checkable
class ChoosingPlugin(Plugin, Protocol):
    """Chooses what a pod gets from a ledger, by the same rule as its Score. A profile has at most one per ledger.

    Called once for each placement, in the step that takes the choice; the earlier pods of a transaction are already
    placed. A row that has changed since it was scored has passed Filter again. So a choice is never kept for later and is
    made only once.
    """

    choice_ledger: ChoiceLedger
    """The ledger from which it chooses."""

    def choose(self, cycle: CycleView, pod: Pod, row: int) -> object | None:
        """Returns what the pod gets on the row; None if it requests nothing or nothing fits. The row may not have been scored.

        A choice based on an external response (`cycle.responses`) may be stale: the ledger then refuses it, and the
        next row is tried.
        """
        ...


@runtime_checkable
class LabelledLedger(Protocol):
    """A cluster ledger that depends on labels of pods. They are fixed at the bind like the annotations of an `AnnotatedLedger`.

    A Protocol because the state imports no plugin; implemented by a plugin (`QuotaLedger`).
    """

    fixed_labels: frozenset[str]
    """The label keys. Once a pod is placed, this process ignores later changes of these labels."""


@runtime_checkable
class AnnotatedLedger(Ledger, Protocol):
    """A ledger that depends on annotations of pods: what they request, and what their bindings carry.

    The decoder keeps these annotations even if a pod's annotations exceed its size limit. They are fixed once a pod is placed: the
    cache keeps the values that it was bound with, and no later version of the pod changes what it holds.

    A Protocol because the state imports no domain; implemented by a domain (`GpuLedger`).
    """

    annotations: frozenset[str]
    """The annotation keys."""
    written: frozenset[str]
    """The keys that bindings carry: ignored on a pending pod."""


@runtime_checkable
class TimedAnnotationLedger(Ledger, Protocol):
    """A ledger whose bindings carry labels, and annotations that depend on the time at which they are sent.

    A Protocol because the state imports no domain; implemented by a domain (`GpuLedger`).
    """

    def timed_annotations(self, annotations: Mapping[str, str], now: datetime) -> Mapping[str, str]:
        """Returns the annotations to add to a binding that carries these, when it is sent at `now` (UTC)."""
        ...

    def binding_labels(self, annotations: Mapping[str, str]) -> Mapping[str, str]:
        """Returns the labels of a binding that carries these annotations. API servers before Kubernetes 1.35 ignore them."""
        ...


@runtime_checkable
class ObservingLedger(Ledger, Protocol):
    """A ledger that reads what other programs write: about a node's devices, and to bound pods.

    A Protocol because the state imports no domain; implemented by a domain (`GpuLedger`).
    """

    reads_objects: tuple[ObjectKind, ...]
    """Kinds of objects that describe devices of a node: the node of the same name, or one that the object names."""
    node_annotations: frozenset[str]
    """Keys of annotations of nodes that describe devices, read up to `model.decode.DESCRIPTION_BYTES_MAX` bytes each."""
    lock_annotations: frozenset[str]
    """The node annotations with which a scheduler locks a node before a bind. Results of remote filters do not depend on them."""
    reported: frozenset[str]
    """Keys of annotations that other programs write to a bound pod, for instance a device plugin that has allocated its devices.

    They may be among `AnnotatedLedger.written`, but not among its `annotations`, which are fixed. The ledger is restored for
    each new value."""

    def object_changed(self, kind: ObjectKind, changed: ClusterObject) -> Collection[int]:
        """Reads an added, updated or deleted object of these kinds again. Returns the rows for which `fits` may have changed.

        `changed`: its last version.
        """
        ...


@runtime_checkable
class BoundPodLedger(Ledger, Protocol):
    """A ledger that counts some pods only once they have a node: `is_used_by` may differ before and after.

    A Protocol because the state imports no domain; implemented by a domain (`UnitLedger`).
    """

    counts_bound_pods: bool
    """Always True: this attribute marks such a ledger."""


@runtime_checkable
class ElasticLedger(Ledger, Protocol):
    """A ledger that names resources of nodes whose allocatable amount does not limit the requests of pods.

    A Protocol because the state imports no domain; implemented by a domain (`SandboxLedger`).
    """

    def elastic(self, node: Node) -> frozenset[str]:
        """Returns the resources that are elastic on the node (`Node.elastic`), by its labels alone."""
        ...


@runtime_checkable
class DeviceLedger(Ledger, Protocol):
    """A ledger of countable devices that pods request by other means than resource requests: an entry of `DeviceDemands`.

    A Protocol because plugins that count devices (quotas) import no domain; implemented by a domain (`GpuLedger`).
    """

    def device_demand(self, pod: Pod) -> Mapping[str, int]:
        """Returns resource -> thousandths of one device that the pod demands in addition to its requests, or holds if it has a node.

        It follows from the pod alone, and is the same before and after its bind: a caller that counts it must release
        the same amount.
        """
        ...


@runtime_checkable
class SummingLedger(Ledger, Protocol):
    """A ledger that also keeps sums by row, because filters read them."""

    def sums(self, row: int) -> object:
        """Returns the sums of the row: a comparable value, equal for the same node and the same holds (I4)."""
        ...

    def recount(self, row: int) -> None:
        """Recomputes the row's sums from its holds, after the audit found a difference."""
        ...


def rebuild(ledger: Ledger, nodes: Iterable[tuple[int, Node]], pods: Iterable[tuple[Pod, int]]) -> Ledger:
    """Returns a copy that holds exactly what these nodes and placed pods imply."""
    fresh = ledger.empty_copy()
    for row, node in nodes:
        fresh.set_node(row, node)
    for pod, row in pods:
        if fresh.is_used_by(pod):
            fresh.restore(pod, row)
    return fresh

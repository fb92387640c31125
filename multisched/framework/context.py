"""PluginContext: the objects that a plugin gets when it is built, and may keep."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

import msgspec

from multisched.framework.device_demand import DeviceDemands
from multisched.framework.events import ClusterEvent
from multisched.framework.gangs import GangView, NoGangs
from multisched.framework.ledger import ClusterLedger, Ledger
from multisched.framework.measures import Measures
from multisched.framework.node_view import NodeView, Rows
from multisched.framework.object_status import NoStatusMarks, StatusMarks
from multisched.framework.objects_view import ObjectsView
from multisched.framework.ports import NodeLocks, VolumeWriter
from multisched.framework.preemption import NoPreemptions, NoVictims, PreemptionsInProgress, Victims
from multisched.model.objects import Pod

S = TypeVar("S")


class WaitingPods(Protocol):
    """Pods held by Permit, for plugins that decide about several pods at once (coscheduling).

    A Protocol because no plugin imports the cycle; implemented by the cycle (`WaitingPodTable`).
    """

    def waiting(self) -> Sequence[Pod]:
        """Returns the pods of this domain that wait at Permit now."""
        ...

    def allow(self, uid: str, plugin: str) -> bool:
        """Ends this plugin's wait for the pod; False if the pod does not wait. Binding starts when no plugin waits."""
        ...

    def reject(self, uid: str, plugin: str, reason: str) -> bool:
        """Unreserves, forgets and requeues the pod; False if it does not wait."""
        ...


class Placed(Protocol):
    """A pod, and the node it is assumed on or bound to.

    A Protocol because no plugin imports the state; implemented by the state (`PlacedPod`).
    """

    pod: Pod
    node: str


class Ledgers(Protocol):
    """The ledgers of the process, shared by all domains.

    A Protocol because no plugin imports the state; implemented by the state (`LedgerRegistry`).
    """

    demands: DeviceDemands
    """The demands of pods for the devices of all ledgers, in addition to their resource requests."""

    def register(self, ledger: Ledger | ClusterLedger) -> Ledger | ClusterLedger:
        """Adds the ledger, or returns the one already registered under its name."""
        ...

    def pods(self) -> Iterable[Pod]:
        """Returns every pod that may hold something in a ledger now: assumed, bound, or with an unknown node."""
        ...

    def placed(self, uid: str) -> Placed | None:
        """Returns one of these pods with its node; None for any other pod."""
        ...


class OwnQueue(Protocol):
    """The queue of the plugin's domain, for a QueueSort whose keys depend on more than the pod.

    A Protocol because no plugin imports the shell, which forwards calls to the queue.
    """

    def pods(self) -> Sequence[Pod]:
        """Returns the pods of the queue, including gated pods and pods in flight, in the order in which they were added."""
        ...

    def sort_anew(self, uids: Iterable[str]) -> None:
        """Asks QueueSort for the keys of these pods again; unknown pods are ignored. About 5 us per pod."""
        ...

    def try_again(self, pods: Iterable[Pod], why: str) -> None:
        """Requeues those of the pods that are parked, after their backoff, without hints. `why`: event name for metrics and logs.

        For a plugin whose answer has changed for these pods only: an event would requeue all pods of a class, or its first.
        """
        ...


class NoQueue:
    """An `OwnQueue` without pods."""

    def pods(self) -> Sequence[Pod]:
        return ()

    def sort_anew(self, uids: Iterable[str]) -> None:
        """Does nothing."""

    def try_again(self, pods: Iterable[Pod], why: str) -> None:
        """Does nothing."""


class Nominations(Protocol):
    """Nominated pods of all domains."""

    sequence: int
    """Rises at each change."""

    def pods(self) -> Sequence[Pod]: ...

    def node_of(self, uid: str) -> str:
        """Returns the node the pod is nominated to; empty if there is none."""
        ...


class NoNominations:
    """A `Nominations` without any pod."""

    sequence = 0

    def pods(self) -> Sequence[Pod]:
        return ()

    def node_of(self, uid: str) -> str:
        return ""


class SharedObjects:
    """Objects through which plugins of one domain exchange data without importing one another: one object of each class."""

    def __init__(self) -> None:
        self._objects: dict[type, object] = {}

    def of(self, kind: type[S]) -> S:
        """Returns the domain's object of this class, made without arguments by the first call."""
        if kind not in self._objects:
            self._objects[kind] = kind()
        found = self._objects[kind]
        assert isinstance(found, kind), "made of this class"
        return found


def _no_queues(event: ClusterEvent) -> None:
    """The default of `PluginContext.notify`: does nothing."""


class PluginContext(msgspec.Struct, frozen=True):
    """The objects that a plugin gets when it is built: read views, and interfaces to act on other pods."""

    domain: str
    nodes: NodeView
    waiting_pods: WaitingPods
    hold: Ledgers
    """Where a plugin registers the ledgers it owns."""
    objects: ObjectsView
    """Services, volumes, claims, …: the kinds that enabled plugins declare by `Traits.reads_objects`; see objects_view.
    """
    volume_writer: VolumeWriter | None = None
    """Writes of VolumeBinding's PreBind; None if nothing may be written (what-if, conformance)."""
    preemptions: PreemptionsInProgress = msgspec.field(default_factory=NoPreemptions)
    """The pods whose preemptions are in progress."""
    victims: Victims = msgspec.field(default_factory=NoVictims)
    """Pods that this process has decided to evict, by any plan."""
    nominations: Nominations = msgspec.field(default_factory=NoNominations)
    """Nominated pods and their nodes."""
    gangs: GangView = msgspec.field(default_factory=NoGangs)
    """Gangs and their members."""
    measures: Measures | None = None
    """Access to measured values; None if none may be queried (what-if, conformance)."""
    rows: Callable[[], Rows] | None = None
    """Returns the domain's current rows, ascending; None: all rows of the table."""
    scheduler_names: frozenset[str] | None = None
    """The schedulerNames that all domains of this program serve; None: every name."""
    statuses: StatusMarks = msgspec.field(default_factory=NoStatusMarks)
    """Where a `StatusPlugin` marks objects whose status may have changed."""
    pending: Callable[[], Iterable[Pod]] = tuple
    """Returns the pods of all domains without a node in the API server, including gated pods and pods being bound."""
    notify: Callable[[ClusterEvent], None] = _no_queues
    """Passes an event to the queues of all domains. For a plugin that applies a change later than the change's own event."""
    node_locks: Callable[[], NodeLocks] | None = None
    """Returns the writer of GpuShare's PreBind, made at the first call; None if nothing may be written (what-if, conformance)."""
    queue: OwnQueue = msgspec.field(default_factory=NoQueue)
    """The domain's own queue."""
    shared: SharedObjects = msgspec.field(default_factory=SharedObjects)
    """Objects that the plugins of the domain share; the same instance after a reload of the profile."""

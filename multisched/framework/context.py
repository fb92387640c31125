"""What a plugin may keep from its construction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from multisched.framework.device_demand import DeviceDemands
from multisched.framework.gangs import GangView, NoGangs
from multisched.framework.ledger import ClusterLedger, Ledger
from multisched.framework.measures import Measures
from multisched.framework.node_view import NodeView, Rows
from multisched.framework.object_status import NoStatusMarks, StatusMarks
from multisched.framework.objects_view import ObjectsView
from multisched.framework.ports import VolumeWriter
from multisched.framework.preemption import NoPreemptions, NoVictims, PreemptionsUnderWay, Victims
from multisched.model.objects import Pod


class WaitingPods(Protocol):
    """Pods held by Permit, for plugins that decide about several at once (coscheduling).

    Border: the cycle has them (`WaitingPodTable`), and no plugin sees the cycle.
    """

    def waiting(self) -> Sequence[Pod]:
        """Pods of this domain that wait now."""
        ...

    def allow(self, uid: str, plugin: str) -> bool:
        """This plugin's wait for that pod is over; False if it does not wait. Binding starts when no plugin waits."""
        ...

    def reject(self, uid: str, plugin: str, reason: str) -> bool:
        """The pod is unreserved, forgotten and requeued; False if it does not wait."""
        ...


class Placed(Protocol):
    """A pod, and the node it is assumed on or bound to.

    Border: the state keeps them (`PlacedPod`), and no plugin sees the state.
    """

    pod: Pod
    node: str


class Ledgers(Protocol):
    """The ledgers of the process, shared by all domains.

    Border: the state keeps them (`LedgerRegistry`), and no plugin sees the state.
    """

    demands: DeviceDemands
    """What pods demand of the devices of all ledgers, besides their resource requests."""

    def register(self, ledger: Ledger | ClusterLedger) -> Ledger | ClusterLedger:
        """Adds the ledger, or returns the one already registered under its name."""
        ...

    def pods(self) -> Iterable[Pod]:
        """Every pod that may hold of ledgers at this moment: assumed, bound, and those whose node is unknown."""
        ...

    def placed(self, uid: str) -> Placed | None:
        """One of these pods, with its node."""
        ...


class Nominations(Protocol):
    """Pods that are nominated to a node, over all domains."""

    sequence: int
    """Rises at each change."""

    def pods(self) -> Sequence[Pod]: ...

    def node_of(self, uid: str) -> str:
        """The node the pod is nominated to; empty for none."""
        ...


class NoNominations:
    """Where nobody nominates."""

    sequence = 0

    def pods(self) -> Sequence[Pod]:
        return ()

    def node_of(self, uid: str) -> str:
        return ""


class PluginContext(msgspec.Struct, frozen=True):
    """What a plugin may keep from its construction: read views, and the ways to act on others."""

    domain: str
    nodes: NodeView
    waiting_pods: WaitingPods
    hold: Ledgers
    """Where a plugin registers the ledgers it owns."""
    objects: ObjectsView
    """Services, volumes, claims, …: the kinds that enabled plugins declare by `Traits.reads_objects`; see objects_view."""
    volume_writer: VolumeWriter | None = None
    """How VolumeBinding's PreBind writes; None where nothing may be written (what-if, conformance)."""
    preemptions: PreemptionsUnderWay = msgspec.field(default_factory=NoPreemptions)
    """Whose victims are being removed at this moment."""
    victims: Victims = msgspec.field(default_factory=NoVictims)
    """Pods whose removal is decided, by whatever plan."""
    nominations: Nominations = msgspec.field(default_factory=NoNominations)
    """Whose place others leave them."""
    gangs: GangView = msgspec.field(default_factory=NoGangs)
    """Who belongs to which gang."""
    measures: Measures | None = None
    """How a plugin comes to what is measured; None where nobody may be asked (what-if, conformance)."""
    rows: Callable[[], Rows] | None = None
    """The domain's rows as they are now, ascending; None: all rows of the table."""
    scheduler_names: frozenset[str] | None = None
    """The schedulerNames that the domains of this program serve, all together; None: every name is one of them."""
    statuses: StatusMarks = msgspec.field(default_factory=NoStatusMarks)
    """Where a `StatusPlugin` marks objects whose status may have changed."""
    pending: Callable[[], Iterable[Pod]] = tuple
    """The pods of all domains that the API server has on no node: those that are being bound, and gated ones, too."""

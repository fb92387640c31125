"""Ledger: how anything besides plain resources is held, on rows (GPU devices, volumes, loans) or of the cluster (quota room).

A plugin owns its ledger; commit asks and takes, the cache releases, audit rebuilds and compares. Where a row offers a pod one thing
or another, a plugin chooses (`ChoosingPlugin`), and the ledger takes what was chosen or refuses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Protocol, runtime_checkable

from multisched.framework.points import CycleView, Plugin
from multisched.model.objects import Node, Pod

Choices = Mapping[str, object]
"""Ledger -> what a plugin chose from it for one pod on one row."""
NO_CHOICES: Final[Choices] = {}


class LedgerSettingsError(ValueError):
    """A ledger cannot be had as it is wanted while the program runs; the message says why. Raised where plugins are built."""


@runtime_checkable
class Ledger(Protocol):
    """Versioned like rows: `version(row)` rises at each change that could alter `fits` there."""

    name: str

    def concerns(self, pod: Pod) -> bool:
        """True if this pod takes anything from the ledger; others are never asked about."""
        ...

    def version(self, row: int) -> int: ...

    def fits(self, pod: Pod, row: int) -> str:
        """Empty if `take` would succeed on the row now, else the reason, as users should read it."""
        ...

    def take(self, pod: Pod, row: int) -> Mapping[str, str]:
        """Holds what the pod needs and returns the annotations its binding must carry. Called only after `fits`.

        Taking again for the same uid on the same row is a no-op that returns the same annotations.
        """
        ...

    def restore(self, pod: Pod, row: int) -> None:
        """Accounts a pod that is bound already, by its spec and annotations; never refuses: the API is the truth."""
        ...

    def release(self, uid: str) -> None:
        """Returns what the pod held; unknown uids are ignored."""
        ...

    def set_node(self, row: int, node: Node | None) -> None:
        """A node appeared or changed in the row, or (None) left it. What pods hold there stays held."""
        ...

    def held(self) -> Mapping[str, object]:
        """Everything held, uid -> a comparable value: what audit compares with a rebuilt copy."""
        ...

    def empty_copy(self) -> Ledger:
        """An empty ledger of the same kind and configuration: the audit rebuilds in it.

        Overlays do not: the plugin that owns a ledger keeps it true there by AddPod and RemovePod.
        """
        ...


class ClusterLedger(Protocol):
    """A ledger about the cluster and no row of it, for instance the room of a quota.

    A pod holds of it from the moment it is assumed until it is gone, also while nobody knows its node. What it holds follows
    from the pod alone, so that `restore` makes the same of it as `take` did. What the cluster refuses, no row is tried for.
    """

    name: str
    plugin: str
    """Name of the plugin that owns it. A pod that the ledger refuses at commit waits for the events that this plugin has registered."""
    condition_reason: str
    """As `Status.condition_reason`, of a pod that the ledger refuses at commit."""

    def concerns(self, pod: Pod) -> bool:
        """True if this pod takes anything from the ledger; others are never asked about."""
        ...

    def version(self) -> int:
        """Rises at each change that could alter `fits`."""
        ...

    def fits(self, pod: Pod) -> str:
        """Empty if `take` would succeed now, else the reason, as users should read it."""
        ...

    def take(self, pod: Pod) -> None:
        """Holds what the pod needs. Called only after `fits`; taking again for the same uid is a no-op."""
        ...

    def restore(self, pod: Pod) -> None:
        """Accounts a pod that is bound already, or has changed since; never refuses: the API is the truth."""
        ...

    def release(self, uid: str) -> None:
        """Returns what the pod held; unknown uids are ignored."""
        ...

    def held(self) -> Mapping[str, object]:
        """Everything held, uid -> a comparable value: what audit compares with a rebuilt copy."""
        ...

    def sums(self) -> object:
        """What is summed up of all holds: a comparable value that later changes leave alone, equal for the same holds (I4)."""
        ...

    def recount(self) -> None:
        """Makes the sums anew from the holds. Asked in each audit, in one step."""
        ...

    def empty_copy(self) -> ClusterLedger:
        """An empty ledger of the same kind and configuration, as `Ledger.empty_copy`; for overlays the same holds, too."""
        ...


class ChoiceLedger(Ledger, Protocol):
    """A ledger of which a row offers one thing or another, for instance several devices. What is chosen is taken, and nothing else.

    Border: a domain has one (`GpuLedger`), and the state knows no domain.
    """

    def fits(self, pod: Pod, row: int, choice: object = None) -> str:
        """As `Ledger.fits`, of this choice. None: no plugin of the pod's profile chooses, and the ledger picks by itself."""
        ...

    def take(self, pod: Pod, row: int, choice: object = None) -> Mapping[str, str]:
        """Holds exactly the choice. Raises for one that does not fit, or that is not what the pod holds there already."""
        ...


@runtime_checkable
class ChoosingPlugin(Plugin, Protocol):
    """Chooses what a pod gets from a ledger, by the rule of its Score. A profile has one for each ledger at most.

    Asked once for each placement, in the step that takes what it says. The pods before this one in a transaction stand
    already. A row that has moved since it was scored has passed Filter again. So a choice never waits and is never made
    twice.
    """

    chooses_from: ChoiceLedger

    def choose(self, cycle: CycleView, pod: Pod, row: int) -> object | None:
        """What the pod gets on the row; None if it asks for nothing or nothing fits. May be asked about a row that was not scored.

        A choice that came from outside (`cycle.responses`) may be outdated: the ledger then refuses it, and the next row is tried.
        """
        ...


@runtime_checkable
class LabelledLedger(Protocol):
    """A ledger about the cluster that goes by labels of pods. They are settled as the annotations of an `AnnotatedLedger` are.

    Border: a plugin has one (`QuotaLedger`), and the state knows no plugin.
    """

    settled_labels: frozenset[str]
    """Their keys. Once a pod stands on a node, no later version of it changes them for anybody in this process."""


@runtime_checkable
class AnnotatedLedger(Ledger, Protocol):
    """A ledger that goes by annotations of pods: what they ask for, and what its bindings carry.

    These are read of every pod, however many others it has. Once a pod stands on a node they are settled. The cache
    keeps those it was bound with; no later version of the pod changes what it holds.

    Border: a domain has one (`GpuLedger`), and the state knows no domain.
    """

    annotations: frozenset[str]
    """Their keys."""
    written: frozenset[str]
    """Those of them that bindings carry: on a pod that waits they say nothing."""


@runtime_checkable
class DeviceLedger(Ledger, Protocol):
    """A ledger of countable devices that pods ask for by other means than resource requests: an entry of `DeviceDemands`.

    Border: a domain has one (`GpuLedger`), and plugins that count devices (quotas) see no domain.
    """

    def device_demand(self, pod: Pod) -> Mapping[str, int]:
        """Returns resource -> thousandths of one device that the pod asks for besides its requests; if it has a node, that it holds.

        It follows from the pod alone, and is the same before its bind and after: whoever counts it must release what it took.
        """
        ...


@runtime_checkable
class SummingLedger(Ledger, Protocol):
    """A ledger that keeps sums of each row beside what single pods hold, because filters read those."""

    def sums(self, row: int) -> object:
        """What is kept of the row: a comparable value, equal for the same node and the same holds (I4)."""
        ...

    def recount(self, row: int) -> None:
        """Makes the row's sums anew from its holds: the audit found them at odds."""
        ...


def rebuild(ledger: Ledger, nodes: Iterable[tuple[int, Node]], pods: Iterable[tuple[Pod, int]]) -> Ledger:
    """A copy that holds exactly what these nodes and placed pods say."""
    fresh = ledger.empty_copy()
    for row, node in nodes:
        fresh.set_node(row, node)
    for pod, row in pods:
        if fresh.concerns(pod):
            fresh.restore(pod, row)
    return fresh

"""The ledgers of the process: registered once by the plugins that own them, asked by commit, updated by the cache.

A ledger is a plugin's code. One that raises while a pod is decided costs that pod its attempt. One that raises while it
is updated cannot be trusted any more: it is *broken*. A broken ledger refuses every pod it concerns until the audit has
compared and mended it. What the watch says is never lost to it.

Ledgers about the cluster are kept among the others, as ledgers to which all rows are the same (`RowlessLedger`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from multisched.framework.context import Placed
from multisched.framework.device_demand import DeviceDemands
from multisched.framework.ledger import (
    NO_CHOICES,
    AnnotatedLedger,
    ChoiceLedger,
    Choices,
    ClusterLedger,
    DeviceLedger,
    LabelledLedger,
    Ledger,
)
from multisched.framework.runner import PluginFailure
from multisched.framework.status import Code, Status
from multisched.model.objects import Node, Pod

logger = logging.getLogger(__name__)

LEDGERS_MAX = 32
UNKNOWN_VERSION = -1
ANY_ROW = 0
"""Which row a ledger about the cluster is asked about makes no difference."""


class RowlessLedger:
    """A ClusterLedger as a Ledger, and a SummingLedger: what it says of one row is true of each."""

    def __init__(self, cluster: ClusterLedger) -> None:
        self.cluster = cluster
        self.name = cluster.name
        self.plugin = cluster.plugin
        self.condition_reason = cluster.condition_reason

    def concerns(self, pod: Pod) -> bool:
        return self.cluster.concerns(pod)

    def version(self, row: int) -> int:
        return self.cluster.version()

    def fits(self, pod: Pod, row: int) -> str:
        return self.cluster.fits(pod)

    def take(self, pod: Pod, row: int) -> Mapping[str, str]:
        self.cluster.take(pod)
        return {}

    def restore(self, pod: Pod, row: int) -> None:
        self.cluster.restore(pod)

    def release(self, uid: str) -> None:
        self.cluster.release(uid)

    def set_node(self, row: int, node: Node | None) -> None:
        """Nodes are nothing to it."""

    def held(self) -> Mapping[str, object]:
        return self.cluster.held()

    def sums(self, row: int) -> object:
        return self.cluster.sums()

    def recount(self, row: int) -> None:
        self.cluster.recount()

    def empty_copy(self) -> RowlessLedger:
        return RowlessLedger(self.cluster.empty_copy())


class ClusterRefusal(NamedTuple):
    """What a ledger about the cluster has against a pod, and the plugin that owns it; empty where none has anything."""

    reason: str = ""
    plugin: str = ""
    condition_reason: str = ""


_NO_REFUSAL: Final = ClusterRefusal()


class LedgerRegistry:
    """All ledgers by name; implements `framework.context.Ledgers`."""

    def __init__(self) -> None:
        self._ledgers: dict[str, Ledger] = {}
        self._of_rows: tuple[Ledger, ...] = ()
        self._of_cluster: tuple[RowlessLedger, ...] = ()
        self.annotations: frozenset[str] = frozenset()
        """Keys of the pod annotations that some ledger goes by."""
        self.written: frozenset[str] = frozenset()
        """Those that only bindings write."""
        self.settled_labels: frozenset[str] = frozenset()
        """Keys of the pod labels that some ledger goes by."""
        self.demands = DeviceDemands()
        self.pods: Callable[[], Iterable[Pod]] = tuple
        """Every pod that may hold something; the cache says which."""
        self.placed: Callable[[str], Placed | None] = lambda uid: None
        """One of them by its uid."""
        self.broken: dict[str, str] = {}
        """Ledgers whose amounts cannot be trusted -> what they raised."""

    def register(self, ledger: Ledger | ClusterLedger) -> Ledger | ClusterLedger:
        """Adds the ledger, or returns the one that is already registered under its name: domains share ledgers."""
        if ledger.name not in self._ledgers and len(self._ledgers) >= LEDGERS_MAX:
            raise ValueError(f"ledger {ledger.name}: more than {LEDGERS_MAX} ledgers")
        if isinstance(ledger, AnnotatedLedger):
            self.annotations |= ledger.annotations
            self.written |= ledger.written
        if isinstance(ledger, LabelledLedger):
            self.settled_labels |= ledger.settled_labels
        if isinstance(ledger, DeviceLedger):
            self.demands.add(ledger.name, ledger.device_demand)
        kept = self._ledgers.setdefault(ledger.name, ledger if isinstance(ledger, Ledger) else RowlessLedger(ledger))
        every = self._ledgers.values()
        self._of_cluster = tuple(one for one in every if isinstance(one, RowlessLedger))
        self._of_rows = tuple(one for one in every if not isinstance(one, RowlessLedger))
        return kept.cluster if isinstance(kept, RowlessLedger) else kept

    def __iter__(self) -> Iterator[Ledger]:
        return iter(self._ledgers.values())

    def fits(self, pod: Pod, row: int, choices: Choices = NO_CHOICES) -> str:
        """Empty if every ledger of rows could take the pod there, else the first reason. PluginFailure for one that fails."""
        return self._first_reason(self._of_rows, pod, row, choices)

    def fits_cluster(self, pod: Pod) -> ClusterRefusal:
        """The same of the ledgers about the cluster: for what they say no row is any better."""
        for ledger in self._of_cluster:
            reason = self._first_reason((ledger,), pod, ANY_ROW, NO_CHOICES)
            if reason:
                return ClusterRefusal(reason, ledger.plugin, ledger.condition_reason)
        return _NO_REFUSAL

    def _first_reason(self, ledgers: Sequence[Ledger], pod: Pod, row: int, choices: Choices) -> str:
        for ledger in ledgers:
            try:
                is_concerned = ledger.concerns(pod)
                reason = _fits(ledger, pod, row, choices) if is_concerned else ""
            except Exception as error:
                raise _failure(ledger, f"{type(error).__name__}: {error}") from error
            if is_concerned and ledger.name in self.broken:
                what = self.broken[ledger.name]
                raise _failure(ledger, f"its books are wrong since it failed ({what}); the next audit mends them")
            if reason:
                return reason
        return ""

    def concern_cluster(self, pod: Pod) -> bool:
        """True if some ledger about the cluster holds something for pods like this one. PluginFailure for one that fails."""
        for ledger in self._of_cluster:
            try:
                if ledger.concerns(pod):
                    return True
            except Exception as error:
                raise _failure(ledger, f"{type(error).__name__}: {error}") from error
        return False

    def concern(self, pod: Pod) -> bool:
        """True if some ledger holds something for pods like this one."""
        return bool(self.versions(pod, ANY_ROW))

    def take(self, pod: Pod, row: int, choices: Choices = NO_CHOICES) -> Mapping[str, str]:
        """Holds in every ledger; returns the annotations that the binding carries. After a PluginFailure none holds it."""
        annotations: dict[str, str] = {}
        for ledger in self._ledgers.values():
            try:
                annotations.update(_take(ledger, pod, row, choices) if ledger.concerns(pod) else {})
            except Exception as error:
                self.release(pod.uid)
                raise _failure(ledger, f"{type(error).__name__}: {error}") from error
        return annotations

    def restore(self, pod: Pod, row: int) -> None:
        for ledger in self._ledgers.values():
            self._notify(ledger, "restore", _restore, ledger, pod, row)

    def restore_cluster(self, pod: Pod) -> None:
        """In the ledgers about the cluster alone: nobody knows the pod's node, or what it holds there stays as it is."""
        for ledger in self._of_cluster:
            self._notify(ledger, "restore", _restore, ledger, pod, ANY_ROW)

    def release(self, uid: str) -> None:
        for ledger in self._ledgers.values():
            self._notify(ledger, "release", ledger.release, uid)

    def release_row(self, uid: str) -> None:
        """The pod's node is gone, the pod is not: what it held of the cluster stays held."""
        for ledger in self._of_rows:
            self._notify(ledger, "release", ledger.release, uid)

    def lift(self, pod: Pod, *, is_settled: bool) -> None:
        """The pod holds nothing until `set_down`, which makes the same holds of it again.

        `is_settled`: the API server knows what it was bound with. What a pod on its way holds by a choice that it does not
        bear itself stays held: nobody could make it again.
        """
        for ledger in self._ledgers.values():
            if _can_be_made_again(ledger, is_settled=is_settled):
                self._notify(ledger, "release", ledger.release, pod.uid)

    def set_down(self, pod: Pod, row: int, *, is_settled: bool) -> None:
        """Undoes `lift`. `row`: NO_ROW for a pod whose node nobody knows, which holds of the cluster alone."""
        for ledger in self._ledgers.values() if row >= 0 else self._of_cluster:
            if _can_be_made_again(ledger, is_settled=is_settled):
                self._notify(ledger, "restore", _restore, ledger, pod, row)

    def lift_from(self, plugins: Collection[str], pod: Pod) -> None:
        """As `lift`, of the ledgers about the cluster that these plugins own."""
        for ledger in self._of_cluster:
            if ledger.plugin in plugins:
                self._notify(ledger, "release", ledger.release, pod.uid)

    def set_down_in(self, plugins: Collection[str], pod: Pod) -> None:
        """Undoes `lift_from`."""
        for ledger in self._of_cluster:
            if ledger.plugin in plugins:
                self._notify(ledger, "restore", _restore, ledger, pod, ANY_ROW)

    def set_node(self, row: int, node: Node | None) -> None:
        for ledger in self._ledgers.values():
            self._notify(ledger, "set_node", ledger.set_node, row, node)

    def versions(self, pod: Pod, row: int) -> tuple[int, ...]:
        """What a decision about this pod on this row has read of the ledgers."""
        found = []
        for ledger in self._ledgers.values():
            try:
                if ledger.concerns(pod):
                    found.append(ledger.version(row))
            except Exception as error:  # noqa: BLE001 - a plugin ends here
                self._broke(ledger, "version", error)
                found.append(UNKNOWN_VERSION)
        return tuple(found)

    def trust(self, name: str) -> None:
        """The audit has compared this ledger with the pods and found it true."""
        self.broken.pop(name, None)

    def _notify(self, ledger: Ledger, what: str, function: Callable[..., object], *args: Any) -> None:
        try:
            function(*args)
        except Exception as error:  # noqa: BLE001 - a plugin ends here; the cache's own state must stay whole
            self._broke(ledger, what, error)

    def _broke(self, ledger: Ledger, what: str, error: Exception) -> None:
        if ledger.name not in self.broken:
            logger.error("ledger failed; it takes no pod until the audit has mended it", extra={"ledger": ledger.name})
        self.broken[ledger.name] = f"{what}: {type(error).__name__}: {error}"


def _fits(ledger: Ledger, pod: Pod, row: int, choices: Choices) -> str:
    """A ledger that knows no choices raises for one."""
    if ledger.name in choices:
        return cast(ChoiceLedger, ledger).fits(pod, row, choices[ledger.name])
    return ledger.fits(pod, row)


def _take(ledger: Ledger, pod: Pod, row: int, choices: Choices) -> Mapping[str, str]:
    if ledger.name in choices:
        return cast(ChoiceLedger, ledger).take(pod, row, choices[ledger.name])
    return ledger.take(pod, row)


def _restore(ledger: Ledger, pod: Pod, row: int) -> None:
    if ledger.concerns(pod):
        ledger.restore(pod, row)
    else:
        ledger.release(pod.uid)  # an earlier version of it may have been concerned


def _can_be_made_again(ledger: Ledger, *, is_settled: bool) -> bool:
    """True if `restore` makes the same of the pod as it holds now."""
    return is_settled or isinstance(ledger, RowlessLedger | AnnotatedLedger)


def _failure(ledger: Ledger, what: str) -> PluginFailure:
    """A ledger is its plugin's code: what it raises costs the pod its attempt."""
    return PluginFailure(Status(Code.ERROR, ledger.name, (f'running Ledger "{ledger.name}": {what}',)))

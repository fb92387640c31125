"""Ledger: how anything besides plain resources is held on rows (GPU devices, volumes, quota room, loans).

A plugin owns its ledger; commit asks and takes, the cache releases, audit rebuilds and compares.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, runtime_checkable

from multisched.model.objects import Node, Pod


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


@runtime_checkable
class AnnotatedLedger(Ledger, Protocol):
    """A ledger that goes by annotations of pods: what they ask for, and what its bindings carry.

    These are read of every pod, however many others it has. Once a pod stands on a node they are settled: the cache keeps
    those it was bound with, and no later version of the pod changes what it holds.
    """

    annotations: frozenset[str]
    """Their keys."""
    written: frozenset[str]
    """Those of them that bindings carry: on a pod that waits they say nothing."""


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

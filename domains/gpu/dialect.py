"""Dialect: one way in which pods request GPUs, nodes publish cards, and device plugins find what the scheduler chose.

A dialect is one module in `dialects/` and one entry of `dialects.DIALECTS`. It is pure: all state is in the ledger.

A device plugin never learns which pod it serves: the kubelet calls Allocate with device ids only, and the plugin guesses the pod
from annotations. So the answer that a binding carries is not enough. Until the plugin has allocated the pod's cards
(`Hold.awaits`), the ledger keeps every pod off the node that the plugin could confuse with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final, Protocol

from domains.gpu.cards import Mode, NodeCards
from domains.gpu.demand import GpuDemand
from domains.gpu.hold import Hold
from domains.gpu.node_lock import NodeLockKey
from multisched.framework.objects_view import ObjectsView
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Node, Pod

Choice = tuple[int, ...]
"""Card indices, ascending within each part of a demand, part after part."""

NO_ANNOTATIONS: Final[Mapping[str, str]] = {}
NO_LABELS: Final[Mapping[str, str]] = {}


class Dialect(Protocol):
    """One GPU dialect. All methods depend on their arguments only."""

    name: str
    """In messages, for example `gpushare`."""
    modes: frozenset[Mode]
    """The modes of nodes that can run its pods."""
    requested: frozenset[str]
    """Annotations by which a pod's author requests GPUs or cards. They are fixed once the pod is bound."""
    written: frozenset[str]
    """Annotations that only a scheduler may write, and that bindings carry. Ignored on a pending pod."""
    labels: Mapping[str, str]
    """Label that bindings carry -> the annotation in `written` with its value. Other programs list the pods by it."""
    reported: frozenset[str]
    """Annotations that the device plugin writes to a bound pod, which confirm its hold. A hold without any of them is confirmed."""
    node_annotations: frozenset[str]
    """Annotations of nodes that `cards` reads."""
    node_lock: NodeLockKey | None
    """The lock of its nodes; None if they have none."""
    reads_objects: tuple[ObjectKind, ...]
    """Kinds whose objects `cards` reads; see `framework.ledger.ObservingLedger`."""
    resources: frozenset[str]
    """Extended resources by which a pod requests GPUs or parts of them."""

    def demand(self, pod: Pod) -> GpuDemand | None:
        """Returns the pod's demand, with a `problem` if it is invalid; None if the pod requests nothing in this dialect."""
        ...

    def cards(self, node: Node, objects: ObjectsView | None) -> NodeCards | None:
        """Returns the node's cards; None if the node does not publish GPUs in this dialect.

        Node data is untrusted: what cannot be read is left out and named in `problems`. Never raises.
        """
        ...

    def answer(self, pod: Pod, demand: GpuDemand, node: str, cards: NodeCards, choice: Choice) -> Mapping[str, str]:
        """Returns the annotations of the binding, from which `hold` reads the same cards again."""
        ...

    def timed_annotations(self, now: datetime) -> Mapping[str, str]:
        """Returns further annotations of the binding, which depend on the time at which it is sent."""
        ...

    def hold(self, pod: Pod, *, is_ours: bool) -> Hold | None:
        """Returns what a placed pod holds; None if nothing. `is_ours`: it has one of this program's schedulerNames.

        It depends on the pod's spec, phase, and the annotations in `requested`, `written` and `reported`.
        """
        ...


class NoTimedAnnotations:
    """A dialect whose answers do not depend on the time and have no labels, and whose nodes have no lock."""

    labels: Mapping[str, str] = NO_LABELS
    node_lock: NodeLockKey | None = None

    def timed_annotations(self, now: datetime) -> Mapping[str, str]:
        return NO_ANNOTATIONS

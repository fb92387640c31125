"""The GPU dialects, in the order in which nodes are recognised: the first that reads a node decides its mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from domains.gpu.cards import NO_CARDS, Mode, NodeCards
from domains.gpu.demand import GpuDemand, invalid
from domains.gpu.dialect import Dialect
from domains.gpu.dialects.fgd import FgdDialect
from domains.gpu.dialects.gpushare import GpushareDialect
from domains.gpu.dialects.hami import HamiDialect
from domains.gpu.dialects.kai import KaiDialect
from domains.gpu.dialects.koordinator import KoordinatorDialect
from domains.gpu.dialects.own import OwnDialect
from domains.gpu.dialects.volcano import VolcanoDialect
from domains.gpu.dialects.whole import GPU, CountedDialect, WholeDialect, is_counted_unit
from domains.gpu.hold import Hold
from multisched.framework.device_demand import NO_DEMAND
from multisched.framework.objects_view import ObjectsView
from multisched.model.objects import Node, Pod

DIALECTS: Final[tuple[Dialect, ...]] = (
    KoordinatorDialect(),
    HamiDialect(),
    VolcanoDialect(),
    GpushareDialect(),
    CountedDialect(),
    OwnDialect(),
    FgdDialect(),
    KaiDialect(),
    WholeDialect(),
)
"""Also the order in which a placed pod's hold is read: the first dialect that finds one decides."""


class PodDemands(msgspec.Struct, frozen=True):
    """A pod's demand in each mode of nodes that serves it. False if the pod requests no GPU."""

    by_mode: Mapping[Mode, GpuDemand] = {}
    number: int = 0
    """Equal for equal demands that one ledger has read, for signatures: hashing demands in each attempt costs more."""

    def __bool__(self) -> bool:
        return bool(self.by_mode)

    @property
    def first(self) -> GpuDemand:
        return next(iter(self.by_mode.values()))

    @property
    def problem(self) -> str:
        """The problem of an invalid demand; empty if it is valid."""
        return self.first.problem if self.by_mode else ""

    def on(self, mode: Mode) -> tuple[GpuDemand, frozenset[Mode]]:
        """Returns the demand on nodes of this mode, with the modes that serve its dialect; the first demand if none does."""
        demand = self.by_mode.get(mode) or self.first
        return demand, frozenset(one for one, other in self.by_mode.items() if other.dialect == demand.dialect)

    def thousandths(self, pod: Pod, hold: Hold | None) -> Mapping[str, int]:
        """See `framework.ledger.DeviceLedger.device_demand`. `hold`: of a placed pod."""
        demand = self.first if self and not self.problem else None
        found = hold if pod.node else demand
        return {GPU: found.quota_milli} if found is not None and found.quota_milli else NO_DEMAND


NO_DEMANDS: Final = PodDemands()


def demands_of(pod: Pod, dialects: tuple[Dialect, ...] = DIALECTS) -> PodDemands:
    """Returns the pod's demands. A pod that uses the names of two dialects has a demand with a problem."""
    found = [(dialect, demand) for dialect in dialects if (demand := dialect.demand(pod)) is not None]
    specific = [(dialect, demand) for dialect, demand in found if demand.is_specific]
    if len(specific) > 1:
        names = " and ".join(sorted({dialect.name for dialect, _ in specific}))
        problem = f"the pod requests GPUs in two ways, {names}; write only one of them"
        demands = [demand for _, demand in specific if demand.problem]
        found = [(specific[0][0], demands[0] if demands else invalid(names, problem))]
    elif specific:
        found = specific
    return PodDemands({mode: demand for dialect, demand in found for mode in sorted(dialect.modes)})


def node_cards(node: Node, objects: ObjectsView | None, dialects: Sequence[Dialect] = DIALECTS) -> NodeCards:
    """Returns the node's cards by the first dialect that reads it."""
    for dialect in dialects:
        found = dialect.cards(node, objects)
        if found is not None:
            return found
    return NO_CARDS


def dialect_named(name: str, dialects: Sequence[Dialect] = DIALECTS) -> Dialect:
    return next(dialect for dialect in dialects if dialect.name == name)


class GpuKeys(msgspec.Struct, frozen=True):
    """The names by which a pod may request or hold GPUs."""

    annotations: frozenset[str]
    resources: frozenset[str]

    def concern(self, pod: Pod) -> bool:
        """Reports whether the pod requests GPUs in any way, valid or not, or has annotations with allocated ones."""
        if pod.spec.extended and not self.resources.isdisjoint(pod.requests):
            return True
        if pod.annotations and not self.annotations.isdisjoint(pod.annotations):
            return True
        return bool(pod.spec.extended) and any(is_counted_unit(name) for name in pod.requests)


def gpu_keys(dialects: Sequence[Dialect] = DIALECTS) -> GpuKeys:
    """Returns the names of all dialects together."""
    requested, written, _ = all_keys(dialects)
    return GpuKeys(requested | written, frozenset().union(*(one.resources for one in dialects)))


def all_keys(dialects: Sequence[Dialect] = DIALECTS) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Returns the union of `requested`, `written` and `reported` annotations."""
    return (
        frozenset().union(*(one.requested for one in dialects)),
        frozenset().union(*(one.written for one in dialects)),
        frozenset().union(*(one.reported for one in dialects)),
    )

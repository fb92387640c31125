"""The GPU dialects, in the order in which nodes are recognised: the first that reads a node decides its mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from domains.gpu.cards import NO_CARDS, Mode, NodeCards
from domains.gpu.demand import GpuDemand, invalid
from domains.gpu.dialect import Dialect
from domains.gpu.dialects import gpushare, hami, volcano
from domains.gpu.dialects.dra import DraDialect
from domains.gpu.dialects.fgd import FgdDialect
from domains.gpu.dialects.gpushare import GpushareDialect
from domains.gpu.dialects.hami import HamiDialect
from domains.gpu.dialects.kai import KaiDialect
from domains.gpu.dialects.koordinator import KoordinatorDialect
from domains.gpu.dialects.own import OwnDialect
from domains.gpu.dialects.volcano import VolcanoDialect
from domains.gpu.dialects.whole import GPU, CountedDialect, WholeDialect, is_counted_unit, whole_resource
from domains.gpu.hold import Hold
from multisched.framework.device_demand import NO_DEMAND
from multisched.framework.objects_view import ObjectsView
from multisched.model.objects import Node, Pod

DIALECTS: Final[tuple[Dialect, ...]] = (
    DraDialect(),
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
NOT_LISTED_BY_NODES: Final = frozenset({hami.MEMORY, hami.MEMORY_PERCENT, hami.CORES, volcano.MEMORY_PERCENT})
"""Extended resources that device plugins read of pods, and that no node has allocatable."""


class PodDemands(msgspec.Struct, frozen=True):
    """A pod's demand in each mode of nodes that serves it. False if the pod requests no GPU."""

    by_mode: Mapping[Mode, GpuDemand] = {}
    modes: Mapping[str, frozenset[Mode]] = {}
    """Dialect -> the modes of nodes that serve the pod by it."""
    are_of_one_card: bool = False
    """The first part of each demand is of one card."""
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
        """Returns the demand on nodes of this mode, or else that for whole cards, with the modes that serve its dialect."""
        demand = self.by_mode.get(mode) or self.by_mode.get(Mode.WHOLE) or self.first
        return demand, self.modes[demand.dialect]

    def thousandths(self, pod: Pod, hold: Hold | None) -> Mapping[str, int]:
        """See `framework.ledger.DeviceLedger.device_demand`. `hold`: of a placed pod."""
        demand = self.first if self and not self.problem else None
        found = hold if pod.node else demand
        return {GPU: found.quota_milli} if found is not None and found.quota_milli else NO_DEMAND


NO_DEMANDS: Final = PodDemands()
PLAIN_MODES: Final = (Mode.MIG, Mode.SHARED, Mode.WHOLE)
"""Modes of nodes with the device plugin of the GPU's vendor."""
CARDS_FIELDS: Final[Mapping[Mode, str]] = {
    Mode.KOORDINATOR: "Device spec.devices",
    Mode.HAMI: f"annotation {hami.REGISTER}",
    Mode.VOLCANO: f"annotation {volcano.REGISTER}",
    Mode.GPUSHARE: f"status.allocatable[{gpushare.GPU_COUNT}]",
    Mode.WHOLE: f"status.allocatable[{GPU}]",
}
"""Where nodes of a mode publish their cards."""
SOURCES: Final[Mapping[Mode, str]] = {
    Mode.DRA: "the DRA driver",
    **dict.fromkeys(PLAIN_MODES, "the vendor's device plugin"),
}
"""Mode -> the component that publishes the cards of its nodes; in other modes, it is the system with the mode's name."""


def demands_of(pod: Pod, dialects: tuple[Dialect, ...] = DIALECTS) -> PodDemands:
    """Returns the pod's demands. A pod that uses the names of two dialects has a demand with a problem."""
    found = [(dialect, demand) for dialect in dialects if (demand := dialect.demand(pod)) is not None]
    specific = [(dialect, demand) for dialect, demand in found if demand.is_specific]
    used_names = {dialect.name for dialect, _ in specific}
    whole = whole_resource(pod)
    if whole and specific and all(whole not in dialect.resources for dialect, _ in specific):
        used_names.add(WholeDialect.name)
    if len(used_names) > 1:
        names = " and ".join(sorted(used_names))
        problem = f"the pod requests GPUs in two ways, {names}; write only one of them"
        demands = [demand for _, demand in specific if demand.problem]
        found = [(specific[0][0], demands[0] if demands else invalid(names, problem))]
    elif specific:
        found = specific
    by_mode = {mode: demand for dialect, demand in found for mode in sorted(dialect.modes)}
    used = {demand.dialect for demand in by_mode.values()}
    modes = {name: frozenset(mode for mode, demand in by_mode.items() if demand.dialect == name) for name in used}
    return PodDemands(by_mode, modes, all(demand.parts[0].count == 1 for demand in by_mode.values()))


def node_cards(node: Node, objects: ObjectsView | None, dialects: Sequence[Dialect] = DIALECTS) -> NodeCards:
    """Returns the node's cards by the first dialect that reads it."""
    for dialect in dialects:
        found = dialect.cards(node, objects)
        if found is not None:
            return found
    return NO_CARDS


def sources_problem(node: Node, objects: ObjectsView | None, dialects: Sequence[Dialect] = DIALECTS) -> str:
    """Returns the problem of a node whose cards two programs describe; empty if one does. The first one counts alone."""
    found = {one.name: cards for one in dialects if (cards := one.cards(node, objects)) is not None}
    if HamiDialect.name in found:  # its device plugin reports its slots under the plain name
        found.pop(WholeDialect.name, None)
        found.pop(CountedDialect.name, None)
    modes = list({cards.mode: None for cards in found.values()})
    names = [SOURCES.get(mode, mode.value) for mode in modes]
    others = sorted(set(names[1:]) - set(names[:1]))
    if not others:
        return ""
    return f"{names[0]} and {' and '.join(others)} describe the same cards; only those of {names[0]} count. Let one program serve the node"


class GpuKeys(msgspec.Struct, frozen=True):
    """The names by which a pod may request or hold GPUs."""

    annotations: frozenset[str]
    resources: frozenset[str]

    def are_used_by(self, pod: Pod) -> bool:
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

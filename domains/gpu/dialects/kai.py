"""The demand of KAI-Scheduler: a decimal fraction or MiB of a card by annotation, answered with multisched's own annotations.

KAI's reservation pods, its ConfigMaps and the label `runai-gpu-group` belong to its own binder and are never written here.
Source: reference gpu 1.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Final

from domains.gpu.cards import CARD_MILLI, CARDS_MAX, MEMORY_MAX, Amount, Mode, NodeCards
from domains.gpu.demand import ANY_CARD, GpuDemand, Part, integer_within, invalid, shown
from domains.gpu.dialect import Choice, NoTimedAnnotations
from domains.gpu.dialects.own import OwnDialect
from domains.gpu.dialects.whole import MILLI_SCALE, whole_resource
from domains.gpu.hold import Hold
from multisched.framework.objects_view import ObjectsView
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Node, Pod

FRACTION: Final = "gpu-fraction"
MEMORY: Final = "gpu-memory"
COUNT: Final = "gpu-fraction-num-devices"
TEXT_MAX: Final = 16


class KaiDialect(NoTimedAnnotations):
    """Implements `Dialect`."""

    name = "kai"
    modes = frozenset({Mode.WHOLE})
    requested = frozenset({FRACTION, MEMORY, COUNT})
    written: frozenset[str] = frozenset()
    reported: frozenset[str] = frozenset()
    node_annotations: frozenset[str] = frozenset()
    reads_objects: tuple[ObjectKind, ...] = ()
    resources: frozenset[str] = frozenset()

    def demand(self, pod: Pod) -> GpuDemand | None:
        fraction_text, memory_text = pod.annotations.get(FRACTION), pod.annotations.get(MEMORY)
        count_text = pod.annotations.get(COUNT)
        if fraction_text is None and memory_text is None:
            if count_text is None:
                return None
            return invalid(
                self.name, f"annotation {COUNT}: requires {FRACTION} or {MEMORY}; write how much of each card"
            )
        milli = _milli(fraction_text) if fraction_text is not None else 0
        memory = integer_within(memory_text, MEMORY_MAX // MILLI_SCALE) if memory_text is not None else 0
        count = 1 if count_text is None else integer_within(count_text, CARDS_MAX)
        problem = ""
        if whole_resource(pod):
            problem = f"annotation {FRACTION if fraction_text is not None else MEMORY}: the pod also requests whole "
            problem += f"{whole_resource(pod)}; remove one of them"
        elif fraction_text is not None and memory_text is not None:
            problem = f"annotations {FRACTION} and {MEMORY}: write only one of them"
        elif milli is None:
            problem = f"annotation {FRACTION}: {shown(fraction_text or '')} is not a decimal number between 0 and 1 with at most 3"
            problem += " digits after the point; write for example 0.5"
        elif memory is None:
            problem = (
                f"annotation {MEMORY}: {shown(memory_text or '')} is not a positive integer; write MiB of one card"
            )
        elif count is None:
            problem = f"annotation {COUNT}: {shown(count_text or '')} is not an integer of 1..{CARDS_MAX}"
            problem += "; write the number of cards"
        amount = Amount(milli=milli or 0, memory=memory or 0) if not problem else Amount(milli=CARD_MILLI)
        part = Part(count or 1, amount)
        return GpuDemand(
            self.name,
            (part,),
            FRACTION if fraction_text is not None else MEMORY,
            amount_key=MEMORY if memory else "",
            count_key=COUNT,
            filter=ANY_CARD,
            quota_milli=0 if problem else part.count * (amount.milli or CARD_MILLI),
            problem=problem,
        )

    def cards(self, node: Node, objects: ObjectsView | None) -> NodeCards | None:
        return None  # `WholeDialect` reads them

    def answer(self, pod: Pod, demand: GpuDemand, node: str, cards: NodeCards, choice: Choice) -> Mapping[str, str]:
        return OwnDialect().answer(pod, demand, node, cards, choice)

    def hold(self, pod: Pod, *, is_ours: bool) -> Hold | None:
        return OwnDialect().hold(pod, is_ours=is_ours)


def _milli(text: str) -> int | None:
    """Returns the fraction in thousandths; None if it is not between 0 and 1, or finer than thousandths."""
    if len(text) > TEXT_MAX or not text.isascii():
        return None
    try:
        milli = Decimal(text) * CARD_MILLI
    except InvalidOperation:
        return None
    return int(milli) if milli.is_finite() and milli == int(milli) and 0 < milli < CARD_MILLI else None

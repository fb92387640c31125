"""FGD and the openb trace (alibabacloud.com): thousandths of cards by annotation, and accepted card models.

No device plugin exists; the pod reads `gpu-index` through the downward API. Source: reference gpu 1.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from domains.gpu.cards import CARD_MILLI, CARDS_MAX, Amount, Mode, NodeCards
from domains.gpu.demand import GpuDemand, Part, card_filter, indices_in, indices_text, integer_within, shown
from domains.gpu.dialect import NO_LABELS, Choice
from domains.gpu.dialects.own import GPU_ALLOCATED
from domains.gpu.dialects.whole import FGD_COUNT, FGD_MODEL, whole_resource
from domains.gpu.hold import Hold, even_shares
from domains.gpu.node_lock import NodeLockKey
from multisched.framework.objects_view import ObjectsView
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Node, Pod

MILLI: Final = "alibabacloud.com/gpu-milli"
INDEX: Final = "alibabacloud.com/gpu-index"
ASSUME_TIME: Final = "alibabacloud.com/assume-time"
SEPARATOR: Final = "-"
MODELS_SEPARATOR: Final = "|"


class FgdDialect:
    """Implements `Dialect`."""

    name = "alibabacloud.com"
    modes = frozenset({Mode.WHOLE})
    requested = frozenset({MILLI, FGD_COUNT, FGD_MODEL})
    written = frozenset({INDEX, ASSUME_TIME})
    labels = NO_LABELS
    reported: frozenset[str] = frozenset()
    node_annotations: frozenset[str] = frozenset()
    node_lock: NodeLockKey | None = None
    reads_objects: tuple[ObjectKind, ...] = ()
    resources: frozenset[str] = frozenset()

    def demand(self, pod: Pod) -> GpuDemand | None:
        used = [key for key in (MILLI, FGD_COUNT, FGD_MODEL) if key in pod.annotations]
        if not used:
            return None
        milli_text, count_text = pod.annotations.get(MILLI), pod.annotations.get(FGD_COUNT)
        milli = CARD_MILLI if milli_text is None else integer_within(milli_text, CARD_MILLI)
        count = 1 if count_text is None else integer_within(count_text, CARDS_MAX)
        problem = ""
        if whole_resource(pod):
            problem = f"annotation {used[0]}: the pod also requests whole {whole_resource(pod)}; remove one of them"
        elif used == [FGD_MODEL]:
            problem = (
                f"annotation {FGD_MODEL}: requires {MILLI} or {FGD_COUNT}; write how much of each card the pod takes"
            )
            problem += ", or remove the annotation"
        elif milli is None:
            problem = f"annotation {MILLI}: {shown(milli_text or '')} is not an integer of 1..{CARD_MILLI}"
            problem += "; write thousandths of one card"
        elif count is None:
            problem = f"annotation {FGD_COUNT}: {shown(count_text or '')} is not an integer of 1..{CARDS_MAX}"
            problem += "; write the number of cards"
        models = tuple(filter(None, pod.annotations.get(FGD_MODEL, "").split(MODELS_SEPARATOR)))
        part = Part(count or 1, Amount(milli=milli or CARD_MILLI))
        return GpuDemand(
            self.name,
            (part,),
            "gpu-milli",
            amount_key=MILLI,
            count_key=FGD_COUNT,
            filter=card_filter(models=models),
            quota_milli=0 if problem else part.count * part.amount.milli,
            problem=problem,
        )

    def cards(self, node: Node, objects: ObjectsView | None) -> NodeCards | None:
        return None  # `WholeDialect` reads them

    def answer(self, pod: Pod, demand: GpuDemand, node: str, cards: NodeCards, choice: Choice) -> Mapping[str, str]:
        return {INDEX: indices_text(choice, SEPARATOR), GPU_ALLOCATED: str(demand.amount.milli)}

    def timed_annotations(self, now: datetime) -> Mapping[str, str]:
        return {ASSUME_TIME: str(int(now.timestamp() * 1_000_000) * 1_000)}

    def hold(self, pod: Pod, *, is_ours: bool) -> Hold | None:
        """Returns what was allocated at bind, for this program's pods; the author's amount if another program wrote `gpu-index`."""
        if not is_ours or not pod.annotations.get(INDEX) or whole_resource(pod):
            return None
        cards = indices_in(pod.annotations[INDEX], SEPARATOR)
        texts = pod.annotations.get(GPU_ALLOCATED), pod.annotations.get(MILLI)
        milli = integer_within(texts[0], CARD_MILLI) or integer_within(texts[1], CARD_MILLI) or CARD_MILLI
        amount, count = Amount(milli=milli), len(cards) or 1
        shares = even_shares(cards, amount)
        return Hold(self.name, count, amount, shares, quota_milli=milli * count, modes=self.modes)

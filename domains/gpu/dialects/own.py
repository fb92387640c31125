"""multisched's own annotations: thousandths of cards, answered by card indices, which a pod reads through the downward API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from domains.gpu.cards import CARD_MILLI, CARDS_MAX, MEMORY_MAX, Amount, Mode, NodeCards
from domains.gpu.demand import GpuDemand, Part, indices_in, indices_text, integer_within, shown
from domains.gpu.dialect import Choice, NoTimedAnnotations
from domains.gpu.dialects.whole import GPU, MILLI_SCALE, whole_resource
from domains.gpu.hold import Hold, even_shares
from multisched.framework.objects_view import ObjectsView
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Node, Pod

GPU_MILLI: Final = "multisched.io/gpu-milli"
GPU_COUNT: Final = "multisched.io/gpu-count"
GPU_DEVICES: Final = "multisched.io/gpu-devices"
GPU_ALLOCATED: Final = "multisched.io/gpu-allocated-milli"
GPU_ALLOCATED_MIB: Final = "multisched.io/gpu-allocated-mib"
"""In place of `GPU_ALLOCATED` for a pod that requests MiB (dialect kai)."""
TIDE_NOTICE: Final = "multisched.io/tide-notice"
TIDE_HOOK: Final = "multisched.io/tide-hook"
"""Only the tide writes these two, to bound pods (`tide/notices.py`). On a pending pod they are ignored."""


class OwnDialect(NoTimedAnnotations):
    """Implements `Dialect`."""

    name = "multisched"
    modes = frozenset({Mode.WHOLE})
    requested = frozenset({GPU_MILLI, GPU_COUNT})
    written = frozenset({GPU_DEVICES, GPU_ALLOCATED, GPU_ALLOCATED_MIB, TIDE_NOTICE, TIDE_HOOK})
    reported = frozenset({TIDE_NOTICE, TIDE_HOOK})
    node_annotations: frozenset[str] = frozenset()
    reads_objects: tuple[ObjectKind, ...] = ()
    resources: frozenset[str] = frozenset()

    def demand(self, pod: Pod) -> GpuDemand | None:
        milli_text, count_text = pod.annotations.get(GPU_MILLI), pod.annotations.get(GPU_COUNT)
        if milli_text is None and count_text is None:
            return None
        milli = integer_within(milli_text, CARD_MILLI)
        count = 1 if count_text is None else integer_within(count_text, CARDS_MAX)
        problem = _problem(pod, milli, count)
        part = Part(count or 1, Amount(milli=milli or CARD_MILLI))
        quota = 0 if problem else (milli or 0) * (count or 0)
        return GpuDemand(
            self.name,
            (part,),
            "gpu-milli",
            amount_key=GPU_MILLI,
            count_key=GPU_COUNT,
            quota_milli=quota,
            problem=problem,
        )

    def cards(self, node: Node, objects: ObjectsView | None) -> NodeCards | None:
        return None

    def answer(self, pod: Pod, demand: GpuDemand, node: str, cards: NodeCards, choice: Choice) -> Mapping[str, str]:
        amount = demand.amount
        allocated = {GPU_ALLOCATED_MIB: str(amount.memory)} if amount.memory else {GPU_ALLOCATED: str(amount.milli)}
        return {GPU_DEVICES: indices_text(choice), **allocated}

    def hold(self, pod: Pod, *, is_ours: bool) -> Hold | None:
        """Returns what the annotations name. A fraction is known only to its scheduler, so only those of this program's pods count."""
        if not is_ours or not pod.annotations.get(GPU_DEVICES) or whole_resource(pod):
            return None
        devices = indices_in(pod.annotations[GPU_DEVICES])
        count, amount = len(devices) or 1, _allocated(pod)
        quota = count * (amount.milli or CARD_MILLI)
        return Hold(self.name, count, amount, even_shares(devices, amount), quota_milli=quota, modes=self.modes)


def _problem(pod: Pod, milli: int | None, count: int | None) -> str:
    milli_text, count_text = pod.annotations.get(GPU_MILLI), pod.annotations.get(GPU_COUNT)
    whole = whole_resource(pod)
    if whole:
        extra = GPU_MILLI if milli_text is not None else GPU_COUNT
        return f"annotation {extra}: the pod also requests whole {whole}; remove the annotation or the request"
    if milli_text is None:
        return f"annotation {GPU_COUNT}: requires {GPU_MILLI}; write how much of each device the pod takes"
    if milli is None:
        problem = f"annotation {GPU_MILLI}: {shown(milli_text)} is not an integer of 1..{CARD_MILLI}"
        return problem + f"; write thousandths of one device, or request {GPU} for several whole ones"
    if count is None:
        problem = f"annotation {GPU_COUNT}: {shown(count_text or '')} is not an integer of 1..{CARDS_MAX}"
        return problem + "; write the number of devices"
    return ""


def _allocated(pod: Pod) -> Amount:
    """Returns the amount written at bind; if it is invalid, the requested amount; if that is invalid, too, a whole device."""
    memory = integer_within(pod.annotations.get(GPU_ALLOCATED_MIB), MEMORY_MAX // MILLI_SCALE)
    if memory is not None and not pod.annotations.get(GPU_ALLOCATED):
        return Amount(memory=memory)
    written = integer_within(pod.annotations.get(GPU_ALLOCATED), CARD_MILLI)
    return Amount(milli=written or integer_within(pod.annotations.get(GPU_MILLI), CARD_MILLI) or CARD_MILLI)

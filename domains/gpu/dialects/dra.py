"""Nodes whose GPUs a DRA driver publishes in ResourceSlices. Pods with resource claims are refused, so nothing is allocated here.

Without the right to list ResourceSlices, or if the server does not serve them, no node has this mode. Source: reference gpu 1.7, 1.8.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from domains.gpu.cards import Mode, NodeCards
from domains.gpu.demand import GpuDemand
from domains.gpu.dialect import Choice, NoTimedAnnotations
from domains.gpu.hold import Hold
from multisched.framework.objects_view import ObjectsView
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Node, Pod

GPU_DRIVER: Final = "gpu"
"""First part of the name of a driver of GPUs, up to the first point: `gpu.nvidia.com`, `gpu.amd.com`, `gpu.intel.com`."""
GPU_DRIVER_END: Final = "-gpu"
"""End of that part: `hami-core-gpu.project-hami.io`."""


def is_gpu_driver(name: str) -> bool:
    """Reports whether a DRA driver serves GPUs, by its name: slices do not say what their devices are."""
    first = name.partition(".")[0]
    return first == GPU_DRIVER or first.endswith(GPU_DRIVER_END)


class DraDialect(NoTimedAnnotations):
    """Implements `Dialect` for nodes only: no pod has a demand in it."""

    name = "dra"
    modes = frozenset({Mode.DRA})
    requested: frozenset[str] = frozenset()
    written: frozenset[str] = frozenset()
    reported: frozenset[str] = frozenset()
    node_annotations: frozenset[str] = frozenset()
    reads_objects: tuple[ObjectKind, ...] = (ObjectKind.RESOURCE_SLICE,)
    resources: frozenset[str] = frozenset()

    def demand(self, pod: Pod) -> GpuDemand | None:
        return None

    def cards(self, node: Node, objects: ObjectsView | None) -> NodeCards | None:
        slices = () if objects is None else objects.slices_on(node.name)
        is_found = any(one.devices and is_gpu_driver(one.driver) for one in slices)
        return NodeCards(Mode.DRA) if is_found else None

    def answer(self, pod: Pod, demand: GpuDemand, node: str, cards: NodeCards, choice: Choice) -> Mapping[str, str]:
        return {}

    def hold(self, pod: Pod, *, is_ours: bool) -> Hold | None:
        return None

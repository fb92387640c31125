"""Whole GPUs by resource request, of all vendors; and counted units: time-sliced or MPS replicas, and MIG instances.

The kubelet chooses the cards of whole GPUs and the units. Sources: reference gpu 1.7; NVIDIA k8s-device-plugin README.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from domains.gpu.cards import CARDS_MAX, MEMORY_MAX, Card, Mode, NodeCards
from domains.gpu.demand import GpuDemand, indices_in, indices_text, integer_within, whole_cards
from domains.gpu.dialect import Choice, NoTimedAnnotations
from domains.gpu.hold import Hold, whole_hold
from multisched.framework.objects_view import ObjectsView
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Node, Pod

GPU: Final = "nvidia.com/gpu"
WHOLE_GPUS: Final = (GPU, "amd.com/gpu", "gpu.intel.com/i915", "gpu.intel.com/xe")
SHARED_GPU: Final = "nvidia.com/gpu.shared"
"""The name of time-sliced or MPS replicas with the plugin's option renameByDefault."""
NVIDIA_PREFIX: Final = "nvidia.com/"
MIG_PREFIX: Final = "nvidia.com/mig-"
GPU_DEVICES: Final = "multisched.io/gpu-devices"
GPU_INDICES: Final = "multisched.io/gpu-indices"
"""Node label. Its value `honoured` means that the node's device plugin allocates the devices in the pod's annotation."""
HONOURED: Final = "honoured"
FGD_COUNT: Final = "alibabacloud.com/gpu-count"
FGD_MODEL: Final = "alibabacloud.com/gpu-card-model"

REPLICAS_LABEL: Final = "nvidia.com/gpu.replicas"
SHARING_LABEL: Final = "nvidia.com/gpu.sharing-strategy"
MEMORY_LABEL: Final = "nvidia.com/gpu.memory"
CLIQUE_LABEL: Final = "nvidia.com/gpu.clique"
MIG_STRATEGY_LABEL: Final = "nvidia.com/mig.strategy"
MODEL_LABELS: Final = (FGD_MODEL, "nvidia.com/gpu.product", "amd.com/gpu.product-name", "gpu.intel.com/product")
MILLI_SCALE: Final = 1000
"""Thousandths of a card and MiB are both integers in 1/1000 MiB."""


def whole_resource(pod: Pod) -> str:
    """Returns the resource of the whole GPUs that the pod requests; empty if it requests none."""
    requests = pod.requests
    return next((name for name in WHOLE_GPUS if requests.get(name, 0) > 0), "")


def is_counted_unit(name: str) -> bool:
    return name == SHARED_GPU or name.startswith(MIG_PREFIX)


class WholeDialect(NoTimedAnnotations):
    """Implements `Dialect` for whole GPUs on nodes that share none by a system of their own."""

    name = "whole-GPU"
    modes = frozenset({Mode.WHOLE})
    requested: frozenset[str] = frozenset()
    written = frozenset({GPU_DEVICES})
    reported: frozenset[str] = frozenset()
    node_annotations: frozenset[str] = frozenset()
    reads_objects: tuple[ObjectKind, ...] = ()
    resources = frozenset(WHOLE_GPUS)

    def demand(self, pod: Pod) -> GpuDemand | None:
        resource = whole_resource(pod)
        return whole_cards(self.name, resource, pod.requests[resource]) if resource else None

    def cards(self, node: Node, objects: ObjectsView | None) -> NodeCards | None:
        """Returns one card per allocatable GPU. The kubelet's device plugin reports healthy cards only."""
        resource = next((name for name in (*WHOLE_GPUS, FGD_COUNT) if node.allocatable.get(name, 0) > 0), "")
        is_indexed = node.labels.get(GPU_INDICES) == HONOURED
        if not resource and not is_indexed:
            return None
        count = min(CARDS_MAX, node.allocatable.get(resource, 0))
        memory = integer_within(node.labels.get(MEMORY_LABEL), MEMORY_MAX // MILLI_SCALE) or 1
        model = next((node.labels[key] for key in MODEL_LABELS if key in node.labels), "")
        link = node.labels.get(CLIQUE_LABEL, "")
        cards = tuple(Card(index, memory, MILLI_SCALE, model=model, link=link) for index in range(count))
        return NodeCards(Mode.WHOLE, cards, is_indexed)

    def answer(self, pod: Pod, demand: GpuDemand, node: str, cards: NodeCards, choice: Choice) -> Mapping[str, str]:
        return {GPU_DEVICES: indices_text(choice)}

    def hold(self, pod: Pod, *, is_ours: bool) -> Hold | None:
        """Returns whole cards for pods of any scheduler, because the kubelet allocates them by the request."""
        resource = whole_resource(pod)
        if not resource:
            return None
        count = min(pod.requests[resource], CARDS_MAX + 1)
        return whole_hold(self.name, count, indices_in(pod.annotations.get(GPU_DEVICES, "")))


class CountedDialect(NoTimedAnnotations):
    """Implements `Dialect` for units whose card only the kubelet knows: replicas and MIG instances."""

    name = "counted-GPU"
    modes = frozenset({Mode.SHARED, Mode.MIG})
    requested: frozenset[str] = frozenset()
    written: frozenset[str] = frozenset()
    reported: frozenset[str] = frozenset()
    node_annotations: frozenset[str] = frozenset()
    reads_objects: tuple[ObjectKind, ...] = ()
    resources = frozenset({SHARED_GPU, *WHOLE_GPUS})

    def demand(self, pod: Pod) -> GpuDemand | None:
        units = [name for name in pod.requests if is_counted_unit(name)]
        resource = units[0] if units else whole_resource(pod)
        if not resource:
            return None
        whole = whole_cards(self.name, resource, pod.requests[resource])
        return GpuDemand(self.name, whole.parts, resource, is_counted=True, is_specific=bool(units))

    def cards(self, node: Node, objects: ObjectsView | None) -> NodeCards | None:
        names = [name for name, amount in node.allocatable.items() if amount > 0 and name.startswith(NVIDIA_PREFIX)]
        if not names:
            return None
        if any(name.startswith(MIG_PREFIX) for name in names) or _is_mig_single(node.labels, names):
            return NodeCards(Mode.MIG)
        replicas = integer_within(node.labels.get(REPLICAS_LABEL), CARDS_MAX) or 1
        sharing = node.labels.get(SHARING_LABEL, "none")
        is_shared = GPU in names and (replicas > 1 or sharing not in ("none", ""))
        return NodeCards(Mode.SHARED) if SHARED_GPU in names or is_shared else None

    def answer(self, pod: Pod, demand: GpuDemand, node: str, cards: NodeCards, choice: Choice) -> Mapping[str, str]:
        return {}

    def hold(self, pod: Pod, *, is_ours: bool) -> Hold | None:
        return None


def _is_mig_single(labels: Mapping[str, str], names: Iterable[str]) -> bool:
    """Reports whether every GPU of the node is one MIG instance under the plain name (strategy `single`)."""
    return (
        labels.get(MIG_STRATEGY_LABEL) == "single"
        and "-MIG-" in labels.get("nvidia.com/gpu.product", "")
        and GPU in names
    )

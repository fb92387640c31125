"""Labels, annotations and resources by which the parts of a simulation know each other's objects."""

from __future__ import annotations

from typing import Final

HOSTNAME: Final = "kubernetes.io/hostname"
ZONE: Final = "zone"
DOMAIN: Final = "multisched.io/domain"
GPU: Final = "nvidia.com/gpu"
GPU_MILLI: Final = "multisched.io/gpu-milli"
GPU_COUNT: Final = "multisched.io/gpu-count"
GPU_DEVICES: Final = "multisched.io/gpu-devices"
GPU_INDICES: Final = "multisched.io/gpu-indices"
HONOURED: Final = "honoured"
"""The value of the label GPU_INDICES where a node's device plugin gives each pod the devices that its annotation names."""
LICENCE: Final = "example.com/licence"
"""What virtual nodes have a few of; an extender may look after it (`settings.configurations`)."""
ODD: Final = "odd-volumes"
"""The label of pods with volumes of other sorts (`disks`)."""
CARDS: Final = "sim/cards"
"""The label of nodes that share GPUs and of their pods, whose value is the mode; and these nodes' taint (`gpu_nodes`)."""
GUEST: Final = "sim/guest"
"""A label of pods that some hosts bear or not by labels of their namespaces, of which checkers know nothing."""

"""Labels, annotations and resources that several parts of a simulation use."""

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
"""The value of the label GPU_INDICES if the node's device plugin gives each pod the devices in its annotation."""
LICENCE: Final = "example.com/licence"
"""A resource of which virtual nodes have a few; an extender may manage it (`settings.configurations`)."""
ODD_VOLUMES: Final = "odd-volumes"
"""The label of pods with volumes of `disks`."""
CARDS: Final = "sim/cards"
"""The label of nodes that share GPUs and of their pods, whose value is the mode; also the key of these nodes' taint
(`gpu_nodes`).
"""
TIDE: Final = "sim/tide"
"""The label of pods that share GPU nodes by the tide, whose value is their role (`tide_workloads`)."""
LOAN: Final = "sim/loan"
"""The label of nodes on loan, and of the pods of lenders and borrowers on them, whose value is their role (`loan_workloads`)."""
UNIT: Final = "sim/unit"
"""The label of nodes of a unit, whose value is its name, and of pods of `unit_workloads`, whose value is their workload."""
ELASTIC_UNITS: Final = frozenset({"vk-e"})
"""Units with `capacity: elastic`."""
GUEST: Final = "sim/guest"
"""The label of pods that others exclude by labels of namespaces, which the checkers do not know."""

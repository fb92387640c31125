"""Profile and policy of the gpu domain. Read by the configuration; has no state."""

from __future__ import annotations

from collections.abc import Mapping

from domains.gpu.demand import GPU, GPU_MILLI
from domains.gpu.gpu_share import GpuShare
from multisched.framework.default_profile import default_with
from multisched.framework.registry import Factory, PluginUse
from multisched.model.limited_toleration import LimitedToleration, PodRule
from multisched.model.selectors import NO_SCHEDULE

SCHEDULER_NAME = "gpu-scheduler"

NODES = "gpu"
"""Default node rule of the configuration: nodes with allocatable GPUs."""

NEEDS_GPUS = PodRule(requests=(GPU,), annotations=(GPU_MILLI,))
TOLERATIONS = (LimitedToleration(GPU, "Exists", "", NO_SCHEDULE, NEEDS_GPUS),)
"""GPU nodes are often tainted against other pods. Kubernetes' admission adds this toleration to pods with whole GPUs, but not
to fractional ones, since they request no GPU resource. Pods that need no GPU do not get it."""

POLICY: Mapping[str, object] = {
    "tolerations": [
        {
            "key": t.key,
            "operator": t.operator,
            "effect": t.effect,
            "pods": {"requests": t.pods.requests, "annotations": t.pods.annotations},
        }
        for t in TOLERATIONS
    ]
}
"""The domain's policy, in the form of the configuration file."""

PLUGINS: Mapping[str, Factory] = {GpuShare.name: GpuShare}

PACKING: Mapping[str, object] = {
    "scoringStrategy": {
        "type": "MostAllocated",
        "resources": [{"name": "cpu", "weight": 1}, {"name": "memory", "weight": 1}],
    }
}
"""CPU and memory are packed like the GPUs: full nodes first, so that whole nodes stay free for large pods."""

PROFILE = default_with(
    PluginUse("NodeResourcesFit", args=PACKING),
    before={"DynamicResources": PluginUse("GpuShare", weight=10)},
)

"""What the gpu domain runs. Read by the configuration; nothing here has state."""

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
"""GPU nodes are often tainted to keep other pods off. Pods with whole GPUs are given this toleration by admission,
fractional ones are not, since they request no GPU of the kubelet. Pods that need no GPU stay off."""

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
"""The domain's policy, as a configuration file would say it."""

PLUGINS: Mapping[str, Factory] = {GpuShare.name: GpuShare}

PACKING: Mapping[str, object] = {
    "scoringStrategy": {
        "type": "MostAllocated",
        "resources": [{"name": "cpu", "weight": 1}, {"name": "memory", "weight": 1}],
    }
}
"""CPU and memory follow the GPUs: full nodes first, so that whole nodes stay free for large pods."""

PROFILE = default_with(
    PluginUse("NodeResourcesFit", args=PACKING),
    before={"DynamicResources": PluginUse("GpuShare", weight=10)},
)

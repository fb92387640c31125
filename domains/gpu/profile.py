"""Profile and policy of the gpu domain. Read by the configuration; has no state."""

from __future__ import annotations

from collections.abc import Mapping

from domains.gpu.dialects import fgd, gpushare, kai, koordinator, own, volcano
from domains.gpu.dialects.whole import GPU
from domains.gpu.gpu_share import GpuShare
from domains.gpu.gpu_topology import GpuTopology
from domains.gpu.settings import gpu_settings
from domains.gpu.tide.gpu_tide import GpuTide
from domains.gpu.tide.settings import tide_settings
from multisched.framework.default_profile import default_with
from multisched.framework.plugin_args import ArgsReader
from multisched.framework.registry import Factory, PluginUse
from multisched.model.limited_toleration import LimitedToleration, PodRule
from multisched.model.selectors import NO_SCHEDULE

SCHEDULER_NAME = "gpu-scheduler"

NODES = "gpu"
"""Default node rule of the configuration: nodes with allocatable GPUs."""

NEEDS_GPUS = PodRule(
    requests=(
        GPU,
        gpushare.GPU_MEMORY,
        volcano.NUMBER,
        koordinator.PERCENT,
        koordinator.MEMORY,
        koordinator.RATIO,
    ),
    annotations=(own.GPU_MILLI, fgd.MILLI, kai.FRACTION, kai.MEMORY),
)
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

PLUGINS: Mapping[str, Factory] = {GpuShare.name: GpuShare, GpuTopology.name: GpuTopology, GpuTide.name: GpuTide}
"""GpuTide is not in PROFILE: a configuration enables it with its args, and otherwise it costs nothing."""

ARGS_READERS: Mapping[str, ArgsReader] = {GpuShare.name: gpu_settings, GpuTide.name: tide_settings}

PROFILE = default_with(
    # CPU and memory only filter: on the openb trace their scores cost five of the points that GpuShare's policy gains.
    PluginUse("NodeResourcesFit", weight=0),
    # For a gang, one clique outweighs the highest score of GpuShare; one link group weighs nearly as much, one NUMA node less than half.
    before={
        "DynamicResources": PluginUse("GpuShare", weight=10),
        "ElasticQuota": PluginUse("GpuTopology", weight=20),
    },
    without=("NodeResourcesBalancedAllocation",),
)

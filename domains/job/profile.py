"""What the job domain runs. Read by the configuration; nothing here has state, and the domain has no plugins of its own."""

from __future__ import annotations

from collections.abc import Mapping

from multisched.framework.default_profile import default_with
from multisched.framework.registry import Factory, PluginUse
from multisched.model.selectors import NO_SCHEDULE, Toleration

SCHEDULER_NAME = "job-scheduler"

NODES = "virtual"
"""Default node rule of the configuration: nodes with virtual-kubelet's taint or the label `type=virtual-kubelet`."""

VIRTUAL_TAINT_KEY = "virtual-kubelet.io/provider"

TOLERATIONS: tuple[Toleration, ...] = (Toleration(VIRTUAL_TAINT_KEY, "Exists", "", NO_SCHEDULE),)
"""Virtual nodes carry this taint to keep other pods off; the pods of this domain are meant for them."""

POLICY: Mapping[str, object] = {
    "tolerations": [{"key": t.key, "operator": t.operator, "effect": t.effect} for t in TOLERATIONS]
}
"""The domain's policy, as a configuration file would say it."""

PLUGINS: Mapping[str, Factory] = {}

PROFILE = default_with(
    PluginUse("PodTopologySpread", weight=0),
    PluginUse("InterPodAffinity", weight=0),
    without=("NodeResourcesBalancedAllocation", "ImageLocality"),
)
"""Every filter, few scores: short jobs gain nothing from balance or image locality, and a burst pays for each score."""

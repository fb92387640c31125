"""Profile and policy of the job domain. Read by the configuration; has no state."""

from __future__ import annotations

from collections.abc import Mapping

from domains.job.deadlines.deadline_sort import DeadlineSort
from domains.job.deadlines.settings import deadline_settings
from domains.job.providers.serverless_units import ServerlessUnits
from domains.job.providers.settings import provider_settings
from domains.job.units.reading import configured_policies
from domains.job.units.resource_policy import ResourcePolicy
from domains.job.virtual_nodes import TAINT_KEY
from multisched.framework.default_profile import default_with
from multisched.framework.plugin_args import ArgsReader
from multisched.framework.registry import Factory, PluginUse
from multisched.model.selectors import NO_SCHEDULE, Toleration

SCHEDULER_NAME = "job-scheduler"

NODES = "virtual"
"""Default node rule of the configuration: nodes with virtual-kubelet's taint or the label `type=virtual-kubelet`."""

TOLERATIONS: tuple[Toleration, ...] = (Toleration(TAINT_KEY, "Exists", "", NO_SCHEDULE),)
"""Virtual nodes have this taint against other pods; pods of this domain may use them."""

POLICY: Mapping[str, object] = {
    "tolerations": [{"key": t.key, "operator": t.operator, "effect": t.effect} for t in TOLERATIONS]
}
"""The domain's policy, in the form of the configuration file."""

PLUGINS: Mapping[str, Factory] = {
    DeadlineSort.name: DeadlineSort,
    ResourcePolicy.name: ResourcePolicy,
    ServerlessUnits.name: ServerlessUnits,
}
"""ServerlessUnits is not in PROFILE: it does nothing without units in its args."""

ARGS_READERS: Mapping[str, ArgsReader] = {
    DeadlineSort.name: deadline_settings,
    ResourcePolicy.name: configured_policies,
    ServerlessUnits.name: provider_settings,
}

PROFILE = default_with(
    PluginUse("PodTopologySpread", weight=0),
    PluginUse("InterPodAffinity", weight=0),
    before={
        "QOSSort": PluginUse("DeadlineSort"),
        # after DefaultPreemption, whose failure lets a pod go on to the next unit
        "DefaultBinder": PluginUse("ResourcePolicy"),
    },
    without=("QOSSort", "NodeResourcesBalancedAllocation", "ImageLocality"),
)
"""All filters, few scores: short jobs gain nothing from balance or image locality, and each score costs time in a burst."""

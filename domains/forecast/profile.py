"""What the forecast domain runs. Read by the configuration; nothing here has state."""

from __future__ import annotations

from collections.abc import Mapping

from domains.forecast.peak_forecast import PeakForecast, peak_forecast
from domains.forecast.settings.args import args_problems
from multisched.framework.registry import ArgsCheck, Factory, PluginUse, Profile
from multisched.model.selectors import Toleration

SCHEDULER_NAME = "forecast-scheduler"

NODES = "rest"
"""Default node rule of the configuration: Work nodes are all that no other domain claims."""

TOLERATIONS: tuple[Toleration, ...] = ()
POLICY: Mapping[str, object] = {"tolerations": []}
"""The domain's policy, as a configuration file would say it: pods are taken as they are."""

PLUGINS: Mapping[str, Factory] = {PeakForecast.name: peak_forecast}

ARGS_CHECKS: Mapping[str, ArgsCheck] = {PeakForecast.name: args_problems}

PROFILE = Profile(
    plugins=(
        PluginUse("SchedulingGates"),
        PluginUse("GangScheduling"),
        PluginUse("QOSSort"),
        PluginUse("NodeUnschedulable"),
        PluginUse("NodeName"),
        PluginUse("TaintToleration", weight=3),
        PluginUse("NodeAffinity", weight=2),
        PluginUse("NodePorts"),
        PluginUse("NodeResourcesFit", weight=0),
        PluginUse("VolumeRestrictions"),
        PluginUse("NodeVolumeLimits"),
        PluginUse("VolumeBinding"),
        PluginUse("VolumeZone"),
        PluginUse("PodTopologySpread", weight=2),
        PluginUse("InterPodAffinity", weight=2),
        PluginUse("DynamicResources"),
        PluginUse("ElasticQuota"),
        PluginUse("DefaultPreemption"),
        PluginUse("ImageLocality"),
        PluginUse("PeakForecast", weight=10),
        PluginUse("DefaultBinder"),
        PluginUse("NodeDeclaredFeatures"),
    )
)

"""Profile of the forecast domain: its plugins and their args. Constants, read by the configuration."""

from __future__ import annotations

from collections.abc import Mapping

from domains.forecast.peak_forecast import PeakForecast, peak_forecast, peak_forecast_class
from domains.forecast.settings.args import checked_settings, settings_notes
from multisched.framework.default_profile import default_with
from multisched.framework.plugin_args import ArgsNotes, ArgsReader, ClassChooser
from multisched.framework.registry import Factory, PluginUse
from multisched.model.selectors import Toleration

SCHEDULER_NAME = "forecast-scheduler"

NODES = "rest"
"""Default node rule: all nodes that no other domain claims."""

TOLERATIONS: tuple[Toleration, ...] = ()
POLICY: Mapping[str, object] = {"tolerations": []}
"""The domain's policy in the form of the configuration file: pods are not changed."""

PLUGINS: Mapping[str, Factory] = {PeakForecast.name: peak_forecast}

ARGS_READERS: Mapping[str, ArgsReader] = {PeakForecast.name: checked_settings}

NOTES: Mapping[str, ArgsNotes] = {PeakForecast.name: settings_notes}

CLASSES: Mapping[str, ClassChooser] = {PeakForecast.name: peak_forecast_class}

PROFILE = default_with(
    PluginUse("NodeResourcesFit", weight=0),
    # The default weight of 2 would put as many replicas on a small node as on a large one, which contradicts the forecast.
    PluginUse("PodTopologySpread", weight=1),
    before={"DefaultBinder": PluginUse("PeakForecast", weight=10)},
    without=("NodeResourcesBalancedAllocation",),
)

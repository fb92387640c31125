"""The default profile, which follows kube-scheduler's, and profiles with a few changes to it.

Names only: the registry finds the plugins. A domain lists only its changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from multisched.framework.registry import PluginUse, Profile

DEFAULT_PROFILE: Final = Profile(
    plugins=(
        PluginUse("SchedulingGates"),
        PluginUse("QOSSort"),
        PluginUse("NodeUnschedulable"),
        PluginUse("NodeName"),
        PluginUse("TaintToleration", weight=3),
        PluginUse("NodeAffinity", weight=2),
        PluginUse("NodePorts"),
        PluginUse("NodeResourcesFit"),
        PluginUse("VolumeRestrictions"),
        PluginUse("NodeVolumeLimits"),
        PluginUse("VolumeBinding"),
        PluginUse("VolumeZone"),
        PluginUse("PodTopologySpread", weight=2),
        PluginUse("InterPodAffinity", weight=2),
        PluginUse("DynamicResources"),
        PluginUse("ElasticQuota"),
        PluginUse("DefaultPreemption"),
        PluginUse("NodeResourcesBalancedAllocation"),
        PluginUse("ImageLocality"),
        PluginUse("DefaultBinder"),
        PluginUse("NodeDeclaredFeatures"),
        PluginUse("GangScheduling"),
    )
)
"""The base profile of a user-defined domain: kube-scheduler's plugins, order and weights, but with QOSSort as the queue order, and with
ElasticQuota.
"""

_NONE: Final[Mapping[str, PluginUse]] = MappingProxyType({})


def default_with(
    *changed: PluginUse, before: Mapping[str, PluginUse] = _NONE, without: Collection[str] = ()
) -> Profile:
    """Returns the default profile with plugins of the same name replaced by `changed`, and without those in `without`.

    `before`: plugin of the default profile -> plugin inserted before it. Raises ValueError for a name that the default
    profile lacks.
    """
    known = {use.name for use in DEFAULT_PROFILE.plugins}
    named = {*(use.name for use in changed), *before, *without}
    if not named <= known:
        raise ValueError(f"not in the default profile: {sorted(named - known)}")
    in_place = {use.name: use for use in changed}

    def uses() -> Iterator[PluginUse]:
        for use in DEFAULT_PROFILE.plugins:
            if use.name in before:
                yield before[use.name]
            if use.name not in without:
                yield in_place.get(use.name, use)

    return Profile(tuple(uses()))

"""Readers of plugin arguments, by plugin: they check the configuration before any plugin is built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

from multisched.framework.plugin_args import ArgsNotes, ArgsReader, ClassChooser, PluginArgsError
from multisched.plugins.default_preemption_args import DefaultPreemptionArgs
from multisched.plugins.dynamic_resources_args import DynamicResourcesArgs
from multisched.plugins.gang.gang_scheduling import GangScheduling
from multisched.plugins.gang.gang_scheduling_args import GangSchedulingArgs
from multisched.plugins.gang.reserving import ReservingGangScheduling
from multisched.plugins.node_affinity import NodeAffinityArgs
from multisched.plugins.node_resources_balanced_allocation import NodeResourcesBalancedAllocationArgs
from multisched.plugins.node_resources_fit import NodeResourcesFitArgs
from multisched.plugins.quota.elastic_quota import ElasticQuota
from multisched.plugins.quota.elastic_quota_args import ElasticQuotaArgs
from multisched.plugins.quota.shared.terms import SHARING_ARG
from multisched.plugins.topology.inter_pod_affinity_args import InterPodAffinityArgs
from multisched.plugins.topology.pod_topology_spread_args import PodTopologySpreadArgs
from multisched.plugins.volumes.volume_binding import volume_binding_class
from multisched.plugins.volumes.volume_binding_args import VolumeBindingArgs


def _refuse_args(args: Mapping[str, Any], path: str) -> None:
    """Raises PluginArgsError: the args of Loans come from the `loans` of domains."""
    if args:
        raise PluginArgsError.at(path, "takes no args; remove them")


def _loans_class(args: Mapping[str, Any]) -> type:
    from multisched.plugins.loans.parts import loans_class

    return loans_class(args)


def _quota_class(args: Mapping[str, Any]) -> type:
    if SHARING_ARG not in args:
        return ElasticQuota
    from multisched.plugins.quota.shared.shared_quota import SharedQuota

    return SharedQuota


ARGS_READERS: Final[Mapping[str, ArgsReader]] = {
    "DefaultPreemption": DefaultPreemptionArgs.from_config,
    "DynamicResources": DynamicResourcesArgs.from_config,
    "ElasticQuota": ElasticQuotaArgs.from_config,
    "GangScheduling": GangSchedulingArgs.from_config,
    "InterPodAffinity": InterPodAffinityArgs.from_config,
    "Loans": _refuse_args,
    "NodeAffinity": NodeAffinityArgs.from_config,
    "NodeResourcesBalancedAllocation": NodeResourcesBalancedAllocationArgs.from_config,
    "NodeResourcesFit": NodeResourcesFitArgs.from_config,
    "PodTopologySpread": PodTopologySpreadArgs.from_config,
    "VolumeBinding": VolumeBindingArgs.from_config,
}
"""Plugin -> reader of its arguments, for all plugins that have arguments in the v1 configuration."""

CLASSES: Final[Mapping[str, ClassChooser]] = {
    "GangScheduling": lambda args: (
        ReservingGangScheduling if GangSchedulingArgs.from_config(args).reserve else GangScheduling
    ),
    "ElasticQuota": _quota_class,
    "Loans": _loans_class,
    "VolumeBinding": lambda args: volume_binding_class(VolumeBindingArgs.from_config(args)),
}
"""Plugin -> function that chooses its class, for plugins whose arguments decide which extension points they implement."""

WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    "DefaultPreemption": "no effect: every candidate node is examined, as upstream does at 100 percent",
    "DynamicResources": "no effect: pods with resource claims are refused before they are queued",
}
"""Plugins whose arguments are checked for compatibility with upstream's files, but ignored -> why they have no effect."""


def _without_effect(plugin: str, args: Mapping[str, Any]) -> Iterator[str]:
    yield f"{', '.join(args)}: {WITHOUT_EFFECT[plugin]}"


NOTES: Final[Mapping[str, ArgsNotes]] = {name: partial(_without_effect, name) for name in WITHOUT_EFFECT}
"""Plugin -> function that yields notes about valid arguments, for plugins that have such notes."""

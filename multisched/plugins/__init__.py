"""The in-tree plugins by name, for the registry.

If the plugin has arguments, its factory takes `args`, a mapping from the configuration. If `args` is invalid, the
factory raises a `PluginArgsError` that names the field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from multisched.framework.context import PluginContext
from multisched.framework.points import Plugin
from multisched.plugins.default_binder import DefaultBinder
from multisched.plugins.default_preemption import DefaultPreemption
from multisched.plugins.default_preemption_args import DefaultPreemptionArgs
from multisched.plugins.dynamic_resources import DynamicResources
from multisched.plugins.dynamic_resources_args import DynamicResourcesArgs
from multisched.plugins.gang.gang_scheduling import GangScheduling
from multisched.plugins.gang.gang_scheduling_args import GangSchedulingArgs
from multisched.plugins.gang.reserving import ReservingGangScheduling
from multisched.plugins.image_locality import ImageLocality
from multisched.plugins.node_affinity import NodeAffinity, NodeAffinityArgs
from multisched.plugins.node_declared_features import NodeDeclaredFeatures
from multisched.plugins.node_name import NodeName
from multisched.plugins.node_ports import NodePorts
from multisched.plugins.node_resources_balanced_allocation import (
    NodeResourcesBalancedAllocation,
    NodeResourcesBalancedAllocationArgs,
)
from multisched.plugins.node_resources_fit import NodeResourcesFit, NodeResourcesFitArgs
from multisched.plugins.node_unschedulable import NodeUnschedulable
from multisched.plugins.priority_sort import PrioritySort
from multisched.plugins.qos_sort import QOSSort
from multisched.plugins.quota.elastic_quota import ElasticQuota
from multisched.plugins.quota.elastic_quota_args import ElasticQuotaArgs
from multisched.plugins.quota.shared.terms import SHARING_ARG
from multisched.plugins.scheduling_gates import SchedulingGates
from multisched.plugins.taint_toleration import TaintToleration
from multisched.plugins.topology.inter_pod_affinity import InterPodAffinity
from multisched.plugins.topology.inter_pod_affinity_args import InterPodAffinityArgs
from multisched.plugins.topology.pod_topology_spread import PodTopologySpread
from multisched.plugins.topology.pod_topology_spread_args import PodTopologySpreadArgs
from multisched.plugins.volumes.node_volume_limits import NodeVolumeLimits
from multisched.plugins.volumes.volume_binding import VolumeBinding, volume_binding_of
from multisched.plugins.volumes.volume_binding_args import VolumeBindingArgs
from multisched.plugins.volumes.volume_restrictions import VolumeRestrictions
from multisched.plugins.volumes.volume_zone import VolumeZone


def make_node_affinity(args: Mapping[str, Any]) -> NodeAffinity:
    return NodeAffinity(NodeAffinityArgs.from_config(args))


def make_node_resources_fit(args: Mapping[str, Any]) -> NodeResourcesFit:
    return NodeResourcesFit(NodeResourcesFitArgs.from_config(args))


def make_node_resources_balanced_allocation(args: Mapping[str, Any]) -> NodeResourcesBalancedAllocation:
    return NodeResourcesBalancedAllocation(NodeResourcesBalancedAllocationArgs.from_config(args))


def make_default_preemption(args: Mapping[str, Any], context: PluginContext) -> DefaultPreemption:
    return DefaultPreemption(context, DefaultPreemptionArgs.from_config(args))


def make_gang_scheduling(args: Mapping[str, Any], context: PluginContext) -> GangScheduling:
    reserve = GangSchedulingArgs.from_config(args).reserve
    return GangScheduling(context) if reserve is None else ReservingGangScheduling(context, reserve)


def make_elastic_quota(args: Mapping[str, Any], context: PluginContext) -> ElasticQuota:
    rest = {name: value for name, value in args.items() if name != SHARING_ARG}
    read = ElasticQuotaArgs.from_config(rest)
    if SHARING_ARG not in args:
        return ElasticQuota(context, read)
    from multisched.plugins.quota.shared.shared_quota import SharedQuota

    return SharedQuota(context, read, args[SHARING_ARG])


def make_pod_topology_spread(args: Mapping[str, Any], context: PluginContext) -> PodTopologySpread:
    return PodTopologySpread(PodTopologySpreadArgs.from_config(args), context)


def make_inter_pod_affinity(args: Mapping[str, Any], context: PluginContext) -> InterPodAffinity:
    return InterPodAffinity(InterPodAffinityArgs.from_config(args), context)


def make_dynamic_resources(args: Mapping[str, Any]) -> DynamicResources:
    return DynamicResources(DynamicResourcesArgs.from_config(args))


def make_volume_binding(args: Mapping[str, Any], context: PluginContext) -> VolumeBinding:
    return volume_binding_of(VolumeBindingArgs.from_config(args), context)


IN_TREE: Mapping[str, Callable[..., Plugin]] = {
    SchedulingGates.name: SchedulingGates,
    PrioritySort.name: PrioritySort,
    QOSSort.name: QOSSort,
    NodeUnschedulable.name: NodeUnschedulable,
    NodeName.name: NodeName,
    TaintToleration.name: TaintToleration,
    NodeAffinity.name: make_node_affinity,
    NodePorts.name: NodePorts,
    NodeResourcesFit.name: make_node_resources_fit,
    VolumeRestrictions.name: VolumeRestrictions,
    NodeVolumeLimits.name: NodeVolumeLimits,
    VolumeBinding.name: make_volume_binding,
    VolumeZone.name: VolumeZone,
    PodTopologySpread.name: make_pod_topology_spread,
    InterPodAffinity.name: make_inter_pod_affinity,
    DynamicResources.name: make_dynamic_resources,
    ElasticQuota.name: make_elastic_quota,
    GangScheduling.name: make_gang_scheduling,
    DefaultPreemption.name: make_default_preemption,
    NodeResourcesBalancedAllocation.name: make_node_resources_balanced_allocation,
    ImageLocality.name: ImageLocality,
    DefaultBinder.name: DefaultBinder,
    NodeDeclaredFeatures.name: NodeDeclaredFeatures,
}
"""Plugin name -> factory, for `Registry.add_all(IN_TREE, "in-tree")`."""

"""Arguments of plugins as kubescheduler.config.k8s.io/v1 has them: defaults, values, and what is refused with which words."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from multisched.framework.gangs import ReservePolicy
from multisched.framework.plugin_args import PluginArgsError
from multisched.plugins.default_preemption_args import DefaultPreemptionArgs
from multisched.plugins.dynamic_resources_args import DynamicResourcesArgs
from multisched.plugins.gang.gang_scheduling_args import GangSchedulingArgs
from multisched.plugins.node_affinity import NodeAffinityArgs
from multisched.plugins.node_resources_balanced_allocation import NodeResourcesBalancedAllocationArgs
from multisched.plugins.node_resources_fit import NodeResourcesFitArgs
from multisched.plugins.quota.elastic_quota_args import ElasticQuotaArgs
from multisched.plugins.topology.inter_pod_affinity_args import InterPodAffinityArgs
from multisched.plugins.topology.pod_topology_spread_args import (
    SYSTEM_CONSTRAINTS,
    DefaultConstraint,
    PodTopologySpreadArgs,
)
from multisched.plugins.volumes.volume_binding_args import VolumeBindingArgs

Read = Callable[[dict[str, Any]], object]
ZONE = "topology.kubernetes.io/zone"


def constraint(**changes: object) -> dict[str, object]:
    return {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "ScheduleAnyway", **changes}


def listed(*constraints: object, kind: str = "List") -> dict[str, Any]:
    return {"defaultingType": kind, "defaultConstraints": list(constraints)}


@pytest.mark.parametrize(
    ("read", "document", "expected"),
    [
        (InterPodAffinityArgs.from_config, {}, InterPodAffinityArgs(1, False)),
        (InterPodAffinityArgs.from_config, {"hardPodAffinityWeight": 0}, InterPodAffinityArgs(0, False)),
        (
            InterPodAffinityArgs.from_config,
            {"hardPodAffinityWeight": 100, "ignorePreferredTermsOfExistingPods": True},
            InterPodAffinityArgs(100, True),
        ),
        (DefaultPreemptionArgs.from_config, {}, DefaultPreemptionArgs(10, 100)),
        (ElasticQuotaArgs.from_config, {}, ElasticQuotaArgs(math.inf)),
        (ElasticQuotaArgs.from_config, {"maxEvictedOverNeeded": 1}, ElasticQuotaArgs(1.0)),
        (GangSchedulingArgs.from_config, {}, GangSchedulingArgs(None)),
        (GangSchedulingArgs.from_config, {"reserveAfter": "10m"}, GangSchedulingArgs(ReservePolicy(600.0, 300.0))),
        (
            GangSchedulingArgs.from_config,
            {"reserveAfter": "1m", "reserveFor": "30s"},
            GangSchedulingArgs(ReservePolicy(60.0, 30.0)),
        ),
        (DefaultPreemptionArgs.from_config, {"minCandidateNodesPercentage": 0}, DefaultPreemptionArgs(0, 100)),
        (DefaultPreemptionArgs.from_config, {"minCandidateNodesAbsolute": 0}, DefaultPreemptionArgs(10, 0)),
        (VolumeBindingArgs.from_config, {}, VolumeBindingArgs(600)),
        (DynamicResourcesArgs.from_config, {}, DynamicResourcesArgs(10.0, 600.0)),
        (
            DynamicResourcesArgs.from_config,
            {"filterTimeout": "0", "bindingTimeout": "1m1.5s"},
            DynamicResourcesArgs(0.0, 61.5),
        ),
        (VolumeBindingArgs.from_config, {"bindTimeoutSeconds": 0}, VolumeBindingArgs(0)),
        (PodTopologySpreadArgs.from_config, {}, PodTopologySpreadArgs(SYSTEM_CONSTRAINTS, True)),
        (PodTopologySpreadArgs.from_config, {"defaultingType": ""}, PodTopologySpreadArgs(SYSTEM_CONSTRAINTS, True)),
        (PodTopologySpreadArgs.from_config, listed(), PodTopologySpreadArgs((), False)),
        (
            PodTopologySpreadArgs.from_config,
            listed(constraint(nodeAffinityPolicy="Ignore", nodeTaintsPolicy="Honor")),
            PodTopologySpreadArgs((DefaultConstraint(1, ZONE, "ScheduleAnyway", None, "Ignore", "Honor"),), False),
        ),
        (
            PodTopologySpreadArgs.from_config,
            listed(constraint(), constraint(whenUnsatisfiable="DoNotSchedule", minDomains=2, matchLabelKeys=["rev"])),
            PodTopologySpreadArgs(
                (
                    DefaultConstraint(1, ZONE, "ScheduleAnyway"),
                    DefaultConstraint(1, ZONE, "DoNotSchedule", min_domains=2, match_label_keys=("rev",)),
                ),
                False,
            ),
        ),
    ],
)
def test_args_are_read_with_upstreams_defaults(read: Read, document: dict[str, Any], expected: object) -> None:
    typed = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "Args", **document}
    assert read(document) == read(typed) == expected


@pytest.mark.parametrize(
    ("read", "document", "message"),
    [
        (
            InterPodAffinityArgs.from_config,
            {"hardPodAffinityWeight": 101},
            "args.hardPodAffinityWeight: 101 is not within 0..100",
        ),
        (
            InterPodAffinityArgs.from_config,
            {"ignorePreferredTermsOfExistingPods": 1},
            "args.ignorePreferredTermsOfExistingPods: is a number; write true or false",
        ),
        (
            InterPodAffinityArgs.from_config,
            {"ignorePreferredTermsOfExistingPods": 0.5},
            "args.ignorePreferredTermsOfExistingPods: is a number; write true or false",
        ),
        (
            InterPodAffinityArgs.from_config,
            {"hardPodAffinityWeigth": 1},
            "args.hardPodAffinityWeigth: unknown field; did you mean hardPodAffinityWeight?",
        ),
        (
            NodeResourcesFitArgs.from_config,
            {"scoringStrategy": {"resources": [{"name": "cpuu"}]}},
            "args.scoringStrategy.resources[0].name: cpuu does not count in scores; did you mean cpu?",
        ),
        (
            NodeResourcesBalancedAllocationArgs.from_config,
            {"resources": [{"name": "fpga"}]},
            "args.resources[0].name: fpga does not count in scores; write one of cpu, memory, ephemeral-storage, or DOMAIN/NAME",
        ),
        (
            DefaultPreemptionArgs.from_config,
            {"minCandidateNodesPercentage": 0, "minCandidateNodesAbsolute": 0},
            "args.minCandidateNodesPercentage: is 0 while minCandidateNodesAbsolute is 0 too; raise one of them",
        ),
        (
            GangSchedulingArgs.from_config,
            {"reserveFor": "1m"},
            "args.reserveFor: has no effect without reserveAfter; write both, or neither",
        ),
        (
            GangSchedulingArgs.from_config,
            {"reserveAfter": "0s"},
            "args.reserveAfter: 0s is too short; write at least 1s",
        ),
        (
            DefaultPreemptionArgs.from_config,
            {"minCandidateNodesAbsolute": -1},
            "args.minCandidateNodesAbsolute: -1 is not within 0..2147483647",
        ),
        (
            VolumeBindingArgs.from_config,
            {"bindTimeoutSeconds": -1},
            "args.bindTimeoutSeconds: -1 is not within 0..2147483647",
        ),
        (
            DynamicResourcesArgs.from_config,
            {"filterTimeout": "5"},
            'args.filterTimeout: \'5\' is not a duration; write for example "5s", "500ms" or "1m30s"',
        ),
        (
            DynamicResourcesArgs.from_config,
            {"bindingTimeout": "999ms"},
            "args.bindingTimeout: 999ms is too short; write at least 1s",
        ),
        (
            VolumeBindingArgs.from_config,
            {"shape": []},
            "args.shape: is empty; write at least one point with utilization and score",
        ),
        (
            PodTopologySpreadArgs.from_config,
            listed(constraint(), kind="System"),
            "args.defaultingType: is System, which has its own constraints; write List, or remove defaultConstraints",
        ),
        (
            PodTopologySpreadArgs.from_config,
            {"defaultingType": "list"},
            "args.defaultingType: 'list' is not known; did you mean List?",
        ),
        (
            PodTopologySpreadArgs.from_config,
            listed({"maxSkew": 1, "topologyKey": ZONE}),
            "args.defaultConstraints[0].whenUnsatisfiable: is missing; it is required for each constraint",
        ),
        (
            PodTopologySpreadArgs.from_config,
            listed(constraint(maxSkew=0)),
            "args.defaultConstraints[0].maxSkew: 0 is not within 1..2147483647",
        ),
        (
            PodTopologySpreadArgs.from_config,
            listed(constraint(topologyKey="no key")),
            "args.defaultConstraints[0].topologyKey: 'no key' is not a label key; write for example " + ZONE,
        ),
        (
            PodTopologySpreadArgs.from_config,
            listed(constraint(labelSelector={})),
            "args.defaultConstraints[0].labelSelector: is derived for each pod from its services and controller; remove it",
        ),
        (
            PodTopologySpreadArgs.from_config,
            listed(constraint(), constraint(maxSkew=2)),
            "args.defaultConstraints[1]: {topology.kubernetes.io/zone, ScheduleAnyway} is listed twice; remove one",
        ),
    ],
)
def test_bad_args_are_refused_with_path_value_and_fix(read: Read, document: dict[str, Any], message: str) -> None:
    with pytest.raises(PluginArgsError) as refused:
        read(document)
    assert str(refused.value) == message


REQUIRED, PREFERRED = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)
NO_TERM = "is not a valid node selector term; check its operators, the number of values and their characters"


@pytest.mark.parametrize(
    ("read", "document", "told"),
    [
        (
            InterPodAffinityArgs.from_config,
            {"hardPodAffinityWeight": 101, "ignorePreferredTermsOfExistingPods": 1, "other": {}},
            ["args.other", "args.hardPodAffinityWeight", "args.ignorePreferredTermsOfExistingPods"],
        ),
        (
            DefaultPreemptionArgs.from_config,
            {"minCandidateNodesPercentage": 101, "minCandidateNodesAbsolute": "1"},
            ["args.minCandidateNodesPercentage", "args.minCandidateNodesAbsolute"],
        ),
        (
            ElasticQuotaArgs.from_config,
            {"maxEvictedOverNeeded": 0.9, "maxEvicted": 2},
            ["args.maxEvicted", "args.maxEvictedOverNeeded"],
        ),
        (
            DynamicResourcesArgs.from_config,
            {"filterTimeout": "5", "bindingTimeout": "1ms"},
            ["args.filterTimeout", "args.bindingTimeout"],
        ),
        (
            VolumeBindingArgs.from_config,
            {"bindTimeoutSeconds": -1, "shape": [{"utilization": 101, "score": 11}, {"utilisation": 1}]},
            [
                "args.bindTimeoutSeconds",
                "args.shape[1].utilisation",
                "args.shape[0].utilization",
                "args.shape[0].score",
            ],
        ),
        (
            PodTopologySpreadArgs.from_config,
            listed(constraint(maxSkew=0, topologyKey="no key"), {"maxSkew": "1"}, kind="Lisst"),
            [
                "args.defaultingType",
                "args.defaultConstraints[0].topologyKey",
                "args.defaultConstraints[0].maxSkew",
                "args.defaultConstraints[1].topologyKey",
                "args.defaultConstraints[1].whenUnsatisfiable",
                "args.defaultConstraints[1].maxSkew",
            ],
        ),
        (
            NodeResourcesFitArgs.from_config,
            {
                "ignoredResources": ["a b", 3],
                "ignoredResourceGroups": ["a/b"],
                "scoringStrategy": {"type": "LeastAlocated", "resources": [{"weight": 101}, {"name": 1}]},
            },
            [
                "args.ignoredResources[1]",
                "args.ignoredResources[0]",
                "args.ignoredResourceGroups[0]",
                "args.scoringStrategy.type",
                "args.scoringStrategy.resources[0].name",
                "args.scoringStrategy.resources[0].weight",
                "args.scoringStrategy.resources[1].name",
            ],
        ),
        (
            NodeResourcesBalancedAllocationArgs.from_config,
            {"resources": [{"name": "cpu", "weight": 2}, {"name": "cpu"}]},
            ["args.resources[0].weight", "args.resources[1].name"],
        ),
        (
            NodeAffinityArgs.from_config,
            {
                "addedAffinity": {
                    REQUIRED: {"nodeSelectorTerms": [{"matchExpresions": []}, {"matchFields": [{"key": "a"}]}]},
                    PREFERRED: [
                        {"weight": 1, "preference": {"matchExpressions": [{"key": "a", "operator": "Is"}]}},
                        {"weight": 1, "preference": {"matchLabels": {}}},
                    ],
                },
            },
            [
                f"args.addedAffinity.{REQUIRED}.nodeSelectorTerms[0].matchExpresions",
                f"args.addedAffinity.{PREFERRED}[1].preference.matchLabels",
                f"args.addedAffinity.{REQUIRED}.nodeSelectorTerms[1]",
                f"args.addedAffinity.{PREFERRED}[0].preference",
            ],
        ),
    ],
)
def test_all_args_problems_are_reported_at_once(read: Read, document: dict[str, Any], told: list[str]) -> None:
    with pytest.raises(PluginArgsError) as refused:
        read(document)
    assert [problem.path for problem in refused.value.problems] == told
    assert str(refused.value).splitlines() == [str(problem) for problem in refused.value.problems]


@pytest.mark.parametrize(
    ("read", "document", "told"),
    [
        (PodTopologySpreadArgs.from_config, listed(5), ["args.defaultConstraints[0]"]),
        (PodTopologySpreadArgs.from_config, listed(constraint(), kind="Sistem"), ["args.defaultingType"]),
        (
            PodTopologySpreadArgs.from_config,
            listed(constraint(maxSkew=0), constraint(maxSkew=0)),
            ["args.defaultConstraints[0].maxSkew", "args.defaultConstraints[1].maxSkew"],
        ),
        (
            NodeResourcesFitArgs.from_config,
            {"scoringStrategy": {"type": "RequestedToCapacityRatoi", "requestedToCapacityRatio": 1}},
            ["args.scoringStrategy.type", "args.scoringStrategy.requestedToCapacityRatio"],
        ),
        (
            VolumeBindingArgs.from_config,
            {"shape": [{"utilization": -5, "score": 1}, {"utilization": 0}]},
            ["args.shape[0].utilization"],
        ),
        (VolumeBindingArgs.from_config, {"shape": ["5"]}, ["args.shape[0]"]),
    ],
)
def test_consequences_of_a_problem_are_not_reported(read: Read, document: dict[str, Any], told: list[str]) -> None:
    with pytest.raises(PluginArgsError) as refused:
        read(document)
    assert [problem.path for problem in refused.value.problems] == told


def test_refusal_crosses_the_process_boundary_unchanged() -> None:
    with pytest.raises(PluginArgsError) as refused:
        InterPodAffinityArgs.from_config({"hardPodAffinityWeight": 101, "other": {}})
    assert pickle.loads(pickle.dumps(refused.value)).problems == refused.value.problems

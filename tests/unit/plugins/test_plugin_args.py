"""Arguments of plugins as kubescheduler.config.k8s.io/v1 has them: defaults, values, and what is refused with which words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from multisched.plugins.config_fields import PluginArgsError
from multisched.plugins.default_preemption_args import DefaultPreemptionArgs
from multisched.plugins.dynamic_resources_args import DynamicResourcesArgs
from multisched.plugins.inter_pod_affinity_args import InterPodAffinityArgs
from multisched.plugins.pod_topology_spread_args import SYSTEM_CONSTRAINTS, DefaultConstraint, PodTopologySpreadArgs
from multisched.plugins.volume_binding_args import VolumeBindingArgs

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
            {"hardPodAffinityWeigth": 1},
            "args.hardPodAffinityWeigth: unknown field; did you mean hardPodAffinityWeight?",
        ),
        (
            DefaultPreemptionArgs.from_config,
            {"minCandidateNodesPercentage": 0, "minCandidateNodesAbsolute": 0},
            "args.minCandidateNodesPercentage: is 0 while minCandidateNodesAbsolute is 0 too; raise one of them",
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
            'args.filterTimeout: \'5\' is no duration; write for instance "5s", "500ms" or "1m30s"',
        ),
        (
            DynamicResourcesArgs.from_config,
            {"bindingTimeout": "999ms"},
            "args.bindingTimeout: 999ms is too short; write at least 1s",
        ),
        (
            VolumeBindingArgs.from_config,
            {"shape": []},
            "args.shape: is empty; write at least one point of utilization and score",
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
            "args.defaultConstraints[0].whenUnsatisfiable: is missing; each constraint needs it",
        ),
        (
            PodTopologySpreadArgs.from_config,
            listed(constraint(maxSkew=0)),
            "args.defaultConstraints[0].maxSkew: 0 is not within 1..2147483647",
        ),
        (
            PodTopologySpreadArgs.from_config,
            listed(constraint(topologyKey="no key")),
            "args.defaultConstraints[0].topologyKey: 'no key' is no label key; write for example " + ZONE,
        ),
        (
            PodTopologySpreadArgs.from_config,
            listed(constraint(labelSelector={})),
            "args.defaultConstraints[0].labelSelector: is deduced for each pod from what it belongs to; remove it",
        ),
        (
            PodTopologySpreadArgs.from_config,
            listed(constraint(), constraint(maxSkew=2)),
            "args.defaultConstraints[1]: {topology.kubernetes.io/zone, ScheduleAnyway} stands above already; remove one",
        ),
    ],
)
def test_bad_args_are_refused_with_path_value_and_fix(read: Read, document: dict[str, Any], message: str) -> None:
    with pytest.raises(PluginArgsError) as refused:
        read(document)
    assert str(refused.value) == message

"""Configurations of simulated runs: three domains whose cycles conflict, and settings that a user may add, drawn from a seed.

Arguments are drawn from what each plugin accepts. None restricts the nodes of a pod more than the pod and its node do, so that
placements are judged by these alone.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from multisched.config import loading
from multisched.config.document import ConfigError
from tests.kit.world.labels import LICENCE

ARGS_SHARE: Final = 0.5
"""Share of plugins with arguments that get some."""
EDGE_PLUGINS: Final = (
    "tests.kit.plugins.slow_oracle:SlowOracle",
    "tests.kit.plugins.reserve_tally:ReserveTally",
)
"""Plugins of the domain EDGE."""
FAULTY_SHARE, MOVING_SHARE, EXTENDED_SHARE, SORTED_SHARE = 0.5, 0.8, 0.8, 0.3
"""Shares of drawn configurations with a faulty plugin, with a plugin that moves pods, with extenders, and with PrioritySort."""
THRIFTY_SHARE: Final = 0.3
"""Share of drawn configurations with so few writes per second that writes have to wait."""
SELECTING_SHARE: Final = 0.5
"""Share of drawn configurations in which two domains select nodes by label, and both claim one node."""
VERIFYING_SHARE, ALONE_SHARE = 0.5, 0.15
"""Shares of drawn configurations with the judge enabled, and with a single process without leases."""
EDGE: Final = "edge"
"""The additional domain if domains select nodes by label."""
EDGE_RANKS: Final = ("14", "26", "29")
"""Nodes that it claims; the job domain also claims the last one."""
APART_SHARE: Final = 0.3
"""Share of drawn domains in which one plugin runs in a thread."""
APART: Final = ("TaintToleration", "ImageLocality", "NodeAffinity")

QUEUES: Final[Sequence[Mapping[str, str]]] = (
    {},
    {"initialBackoff": "500ms", "maxBackoff": "3s", "unschedulableFlush": "12s"},
    {"initialBackoff": "100ms", "maxBackoff": "1s", "unschedulableFlush": "8s"},
)
SHAPE: Final = [{"utilization": 0, "score": 2}, {"utilization": 40, "score": 10}, {"utilization": 100, "score": 0}]
RESOURCES: Final = [{"name": "cpu", "weight": 3}, {"name": "memory", "weight": 1}]
MANY_RESOURCES: Final = [
    {"name": "cpu", "weight": 1},
    {"name": "memory", "weight": 1},
    {"name": "nvidia.com/gpu", "weight": 5},
    {"name": LICENCE, "weight": 2},
]


def _strategies() -> Sequence[Mapping[str, Any]]:
    ratio = {"requestedToCapacityRatio": {"shape": SHAPE}}
    return [
        {"scoringStrategy": {"type": "MostAllocated", "resources": RESOURCES}},
        {"scoringStrategy": {"type": "LeastAllocated", "resources": MANY_RESOURCES}},
        {"scoringStrategy": {"type": "RequestedToCapacityRatio", "resources": MANY_RESOURCES} | ratio},
        {"scoringStrategy": {"type": "RequestedToCapacityRatio", "resources": RESOURCES} | ratio},
        {"ignoredResources": ["example.com/nothing"], "ignoredResourceGroups": ["nobody.example.com"]},
    ]


def _spread_defaults() -> Sequence[Mapping[str, Any]]:
    constraint = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    other = {**constraint, "topologyKey": "kubernetes.io/hostname", "maxSkew": 3, "nodeTaintsPolicy": "Honor"}
    return [
        {"defaultingType": "System"},
        {"defaultingType": "List", "defaultConstraints": [constraint]},
        {"defaultingType": "List", "defaultConstraints": [constraint, other]},
    ]


def _added_affinity() -> Sequence[Mapping[str, Any]]:
    """Returns added affinities: one that every node meets, and one that some nodes prefer."""
    anywhere = {"matchExpressions": [{"key": "sim/nowhere", "operator": "DoesNotExist"}]}
    rather = {"weight": 7, "preference": {"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["z2"]}]}}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [anywhere]}}
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [rather]}
    return [{"addedAffinity": required}, {"addedAffinity": preferred}, {"addedAffinity": required | preferred}]


ARGS: Final[Mapping[str, Sequence[Mapping[str, Any]]]] = {
    "DefaultPreemption": [
        {"minCandidateNodesPercentage": 30, "minCandidateNodesAbsolute": 3},
        {"minCandidateNodesPercentage": 0, "minCandidateNodesAbsolute": 1},
    ],
    "DynamicResources": [{"filterTimeout": "5s", "bindingTimeout": "1m30s"}, {"bindingTimeout": "10s"}],
    "InterPodAffinity": [
        {"hardPodAffinityWeight": 50, "ignorePreferredTermsOfExistingPods": True},
        {"hardPodAffinityWeight": 0},
    ],
    "NodeAffinity": _added_affinity(),
    "NodeResourcesBalancedAllocation": [
        {"resources": [{"name": one["name"], "weight": 1} for one in RESOURCES]},
        {"resources": [{"name": one["name"], "weight": 1} for one in MANY_RESOURCES]},
    ],
    "NodeResourcesFit": _strategies(),
    "PodTopologySpread": _spread_defaults(),
    "VolumeBinding": [{"bindTimeoutSeconds": 20, "shape": SHAPE}, {"shape": SHAPE}, {"bindTimeoutSeconds": 60}],
}
"""Plugin -> arguments that it accepts."""

REFUSED: Final[Sequence[tuple[str, object]]] = (
    ("DefaultPreemption", {"minCandidateNodesPercentage": 0, "minCandidateNodesAbsolute": 0}),
    ("DefaultPreemption", {"minCandidateNodesPercentage": "ten"}),
    ("DefaultPreemption", {"minCandidateNodesPercentage": 101}),
    ("DefaultPreemption", {"minCandidates": 3}),
    ("DynamicResources", {"bindingTimeout": "soon", "filterTimeout": "-1s"}),
    ("DynamicResources", {"bindingTimeout": "1ms"}),
    ("InterPodAffinity", {"hardPodAffinityWeight": None, "ignorePreferredTermsOfExistingPods": 1.5}),
    ("NodeAffinity", {"addedAffinity": []}),
    (
        "NodeAffinity",
        {
            "addedAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "Near", "values": ["z0"]}]}]
                }
            }
        },
    ),
    (
        "NodeAffinity",
        {
            "addedAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "weight": 1,
                        "preference": {"matchExpressions": [{"key": "zone", "operator": "Exists", "values": ["z"]}]},
                    }
                ]
            }
        },
    ),
    ("NodeResourcesBalancedAllocation", {"resources": [{"name": "cpu", "weight": 1}, {"name": "cpu", "weight": 1}]}),
    ("NodeResourcesBalancedAllocation", {"resources": {"cpu": 1}}),
    ("NodeResourcesFit", {"scoringStrategy": {"type": "MostAlocated"}}),
    ("NodeResourcesFit", {"scoringStrategy": {"type": "RequestedToCapacityRatio", "resources": RESOURCES}}),
    (
        "NodeResourcesFit",
        {"scoringStrategy": {"type": "LeastAllocated", "resources": [{"name": "a b", "weight": 900}]}},
    ),
    (
        "NodeResourcesFit",
        {
            "scoringStrategy": {
                "type": "RequestedToCapacityRatio",
                "resources": RESOURCES,
                "requestedToCapacityRatio": {"shape": [SHAPE[1], SHAPE[0], {"utilization": 900, "score": 90}]},
            }
        },
    ),
    ("NodeResourcesFit", {"ignoredResources": ["no name"], "ignoredResourceGroups": ["with/slash"]}),
    ("NodeResourcesFit", {"ignoredResources": "cpu", "ignoredResourceGroups": [7]}),
    ("PodTopologySpread", {"defaultingType": "List", "defaultConstraints": [{"maxSkew": 1}]}),
    (
        "PodTopologySpread",
        {
            "defaultingType": "System",
            "defaultConstraints": [
                {"maxSkew": 1, "topologyKey": "no key", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}},
                {"maxSkew": 2, "topologyKey": "no key", "whenUnsatisfiable": "ScheduleAnyway", "minDomains": True},
            ],
        },
    ),
    ("VolumeBinding", {"bindTimeoutSeconds": -1, "shape": []}),
    ("VolumeBinding", {"shape": "steep"}),
)
"""Plugin and arguments that the program must refuse before it starts."""


def drawn(rng: random.Random, asking: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the domains of `asking` with other settings that a user may configure."""
    document = copy.deepcopy(dict(asking))
    for domain in document["domains"]:
        _draw_domain(rng, domain)
    if rng.random() < THRIFTY_SHARE:
        document["client"] = {"writesPerSecond": rng.choice((25, 60))}
    if rng.random() < EXTENDED_SHARE:
        _draw_extenders(rng, {domain["name"]: domain for domain in document["domains"]})
    if rng.random() < SELECTING_SHARE:
        _select_nodes(document["domains"])
    if rng.random() < VERIFYING_SHARE:
        document["verify"] = {"every": "10s"}
    if rng.random() < ALONE_SHARE:
        document["lease"] = {"enabled": False}
    return document


def fault_of_refusal(asking: Mapping[str, Any], plugin: str, args: object) -> str:
    """Returns what is wrong with the response to a configuration that must be refused; empty for nothing."""
    document = copy.deepcopy(dict(asking))
    document["domains"][0]["profile"]["plugins"]["enabled"].append({"name": plugin, "args": args})
    try:
        loading.parse(orjson.dumps(document).decode(), "broken")
    except ConfigError as error:
        return "" if "args" in str(error) else f"{plugin} with {args} is refused without naming them: {error}"
    return f"{plugin} with {args} is taken"


def _draw_domain(rng: random.Random, domain: dict[str, Any]) -> None:
    enabled = domain["profile"]["plugins"]["enabled"]
    for name, choices in ARGS.items():
        if rng.random() < ARGS_SHARE:
            enabled.append({"name": name, "args": rng.choice(choices)})
    if rng.random() < FAULTY_SHARE:
        enabled.append({"name": "tests.kit.plugins.faulty:Faulty"})
        domain["profile"]["points"] = {"bind": ["tests.kit.plugins.faulty:Faulty", "DefaultBinder"]}
    if rng.random() < APART_SHARE:
        name = rng.choice(APART)
        entry = next((one for one in enabled if one["name"] == name), None)
        if entry is None:
            enabled.append(entry := {"name": name})
        entry |= {"isolation": "thread", "timeout": "200ms"}
    if domain["name"] != "gpu" and rng.random() < MOVING_SHARE:
        enabled.append({"name": "tests.kit.plugins.restless:Restless"})
    domain["queue"] = rng.choice(QUEUES)
    if rng.random() < SORTED_SHARE:
        domain["profile"]["queueSort"] = "PrioritySort"


def _select_nodes(domains: list[dict[str, Any]]) -> None:
    """Lets the job domain and an additional domain select nodes by different labels, so that the shared node can only be found on
    the node itself.
    """
    job = next(domain for domain in domains if domain["name"] == "job")
    job["nodes"] = {"selector": {"matchLabels": {"type": "virtual-kubelet"}}}
    ranks = {"key": "rank", "operator": "In", "values": list(EDGE_RANKS)}
    plugins = {"enabled": [{"name": name, "weight": 1} for name in EDGE_PLUGINS]}
    nodes = {"selector": {"matchExpressions": [ranks]}}
    domains.append({"name": EDGE, "nodes": nodes, "profile": {"base": "default", "plugins": plugins}})


def _draw_extenders(rng: random.Random, domains: Mapping[str, dict[str, Any]]) -> None:
    """Adds an ignorable extender, and one that is not, to one of two domains; and one that binds pods with licences."""
    advisor = {
        "urlPrefix": "http://advisor.sim/v1",
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "preemptVerb": "preempt",
        "weight": rng.randint(1, 5),
        "nodeCacheCapable": rng.random() < 0.5,
        "ignorable": True,
    }
    judge = {
        "urlPrefix": "http://judge.sim/v1",
        "filterVerb": "filter",
        "preemptVerb": "preempt",
        "nodeCacheCapable": rng.random() < 0.5,
    }
    licences = {
        "urlPrefix": "http://licences.sim/v1",
        "filterVerb": "filter",
        "bindVerb": "bind",
        "nodeCacheCapable": True,
        "managedResources": [{"name": LICENCE, "ignoredByScheduler": False}],
        "httpTimeout": "3s",
        "ignorable": rng.random() < 0.3,
    }
    domains["forecast"]["extenders"] = [advisor] if rng.random() < 0.5 else [judge, advisor]
    domains["job"]["extenders"] = [licences]

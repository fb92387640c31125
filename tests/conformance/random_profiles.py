"""Random KubeSchedulerConfigurations with one profile: arguments, weights, plugins left out."""

from __future__ import annotations

from tests.conformance.random_cluster import HOST, ZONE, Draw, Json

API = "kubescheduler.config.k8s.io/v1"
SCORED = ("ImageLocality", "NodeResourcesBalancedAllocation", "TaintToleration", "NodeAffinity", "InterPodAffinity")
FILTERS = ("InterPodAffinity", "PodTopologySpread", "NodePorts", "NodeResourcesFit", "NodeAffinity", "VolumeBinding")
SHAPES = (
    [{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}],
    [{"utilization": 0, "score": 10}, {"utilization": 50, "score": 3}, {"utilization": 100, "score": 0}],
    [{"utilization": 20, "score": 2}, {"utilization": 70, "score": 9}],
)


def make_profile(draw: Draw) -> Json:
    configured = draw.some((_fit, _balanced, _node_affinity, _pod_affinity, _spread), 3) or [_fit]
    profile: Json = {
        "schedulerName": "default-scheduler",
        "pluginConfig": [
            {"name": name, "args": _args(name, args)} for name, args in (make(draw) for make in configured)
        ],
    }
    kind = draw.random()
    if kind < 0.4:
        name = draw.choice(SCORED)
        enabled = [{"name": name, "weight": draw.choice((1, 7, 100))}] if draw.chance(0.5) else []
        profile["plugins"] = {"score": {"disabled": [{"name": name}], "enabled": enabled}}
    elif kind < 0.55:
        profile["plugins"] = {"multiPoint": {"disabled": [{"name": draw.choice(SCORED)}]}}
    elif kind < 0.65:
        profile["plugins"] = {"multiPoint": {"enabled": [{"name": draw.choice(SCORED), "weight": 4}]}}
    elif kind < 0.7:
        enabled = [{"name": "NodeResourcesFit", "weight": 2}, {"name": "ImageLocality", "weight": 3}]
        profile["plugins"] = {"score": {"disabled": [{"name": "*"}], "enabled": enabled}}
    elif kind < 0.78:
        left_out = draw.choice(("TaintToleration", "NodeUnschedulable", "PodTopologySpread", "NodeResourcesFit"))
        profile["plugins"] = {"filter": {"disabled": [{"name": left_out}]}}
    elif kind < 0.88:
        order = draw.sample(FILTERS, draw.randint(1, 4))
        profile["plugins"] = {"filter": {"enabled": [{"name": name} for name in order]}}
    elif kind < 0.92:
        profile["plugins"] = {"score": {"enabled": [{"name": draw.choice(SCORED), "weight": 9}]}}
    elif kind < 0.96:
        profile["plugins"] = {"postFilter": {"disabled": [{"name": "*"}]}}
    return {"apiVersion": API, "kind": "KubeSchedulerConfiguration", "profiles": [profile]}


def _args(plugin: str, args: Json) -> Json:
    return {"apiVersion": API, "kind": f"{plugin}Args", **args}


def _fit(draw: Draw) -> tuple[str, Json]:
    strategy: Json = {"type": draw.choice(("LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"))}
    strategy["resources"] = _weighted(draw)
    if strategy["type"] == "RequestedToCapacityRatio":
        strategy["requestedToCapacityRatio"] = {"shape": draw.choice(SHAPES)}
    args: Json = {"scoringStrategy": strategy}
    if draw.chance(0.2):
        args["ignoredResources"] = ["example.com/fpga"]
    if draw.chance(0.2):
        args["ignoredResourceGroups"] = ["nvidia.com"]
    return "NodeResourcesFit", args


def _weighted(draw: Draw) -> list[Json]:
    resources = [{"name": "cpu", "weight": draw.choice((1, 3))}, {"name": "memory", "weight": draw.choice((1, 2))}]
    if draw.chance(0.5):
        resources.append({"name": "nvidia.com/gpu", "weight": 5})
    return resources


def _balanced(draw: Draw) -> tuple[str, Json]:
    names = ["cpu", "memory", *draw.some(("nvidia.com/gpu", "ephemeral-storage"), 2)]
    return "NodeResourcesBalancedAllocation", {"resources": [{"name": name, "weight": 1} for name in names]}


def _node_affinity(draw: Draw) -> tuple[str, Json]:
    added: Json = {}
    if draw.chance(0.7):
        expression = {"key": "disk", "operator": "In", "values": ["ssd"]}
        added["requiredDuringSchedulingIgnoredDuringExecution"] = {
            "nodeSelectorTerms": [{"matchExpressions": [expression]}]
        }
    if not added or draw.chance(0.4):
        preference = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["z1"]}]}
        added["preferredDuringSchedulingIgnoredDuringExecution"] = [{"weight": 10, "preference": preference}]
    return "NodeAffinity", {"addedAffinity": added}


def _pod_affinity(draw: Draw) -> tuple[str, Json]:
    args: Json = {"hardPodAffinityWeight": draw.choice((0, 1, 10, 100))}
    if draw.chance(0.4):
        args["ignorePreferredTermsOfExistingPods"] = True
    return "InterPodAffinity", args


def _spread(draw: Draw) -> tuple[str, Json]:
    if draw.chance(0.2):
        return "PodTopologySpread", {"defaultingType": draw.choice(("System", "List"))}
    constraints = [
        {"maxSkew": draw.choice((1, 2)), "topologyKey": key, "whenUnsatisfiable": action}
        for key, action in draw.sample(
            [(ZONE, "ScheduleAnyway"), (ZONE, "DoNotSchedule"), (HOST, "ScheduleAnyway")], draw.randint(1, 2)
        )
    ]
    return "PodTopologySpread", {"defaultingType": "List", "defaultConstraints": constraints}


# -- profiles of the odd family ----------------------------------------------------------------------------------------


def make_odd_profile(draw: Draw) -> Json:
    """Arguments at their bounds, plugins left out of one point only, all points turned off and some on again."""
    configured = draw.some(
        (_odd_fit, _odd_balanced, _odd_node_affinity, _odd_pod_affinity, _odd_spread, _preemption), 6
    )
    arguments = [{"name": name, "args": _args(name, args)} for name, args in (make(draw) for make in configured)]
    profile: Json = {"schedulerName": "default-scheduler", "pluginConfig": arguments}
    plugins: Json = {}
    for point, names in POINTS.items():
        kind = draw.random()
        if kind < 0.2:
            plugins[point] = {"disabled": [{"name": draw.choice(names)}]}
        elif kind < 0.25:
            kept = draw.some(names, 4)
            plugins[point] = {"disabled": [{"name": "*"}], "enabled": [_with_weight(draw, point, one) for one in kept]}
    if draw.chance(0.15):
        kept = draw.sample(POINTS["filter"], 5)
        enabled = [_with_weight(draw, "score", one) for one in (*kept, "PrioritySort", "DefaultBinder")]
        plugins = {"multiPoint": {"disabled": [{"name": "*"}], "enabled": enabled}}
    if plugins:
        profile["plugins"] = plugins
    return {"apiVersion": API, "kind": "KubeSchedulerConfiguration", "profiles": [profile]}


POINTS = {
    "filter": (*FILTERS, "TaintToleration", "NodeUnschedulable", "NodeName", "VolumeZone", "NodeVolumeLimits"),
    "score": (*SCORED, "NodeResourcesFit", "PodTopologySpread"),
    "postFilter": ("DefaultPreemption",),
}
"""Where a plugin may be left out: one without its PreScore alone fails upstream, for every pod."""


def _with_weight(draw: Draw, point: str, name: str) -> Json:
    return (
        {"name": name, "weight": draw.choice((1, 2, 50, 100))}
        if point == "score" and draw.chance(0.7)
        else {"name": name}
    )


def _odd_fit(draw: Draw) -> tuple[str, Json]:
    strategy: Json = {"type": draw.choice(("LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"))}
    names = (
        "cpu",
        "memory",
        "ephemeral-storage",
        "nvidia.com/gpu",
        "example.com/fpga",
        "hugepages-2Mi",
        "example.com/none",
    )
    chosen = draw.some(names, 5)
    if chosen:
        strategy["resources"] = [{"name": name, "weight": draw.choice((1, 2, 99, 100))} for name in chosen]
    if strategy["type"] == "RequestedToCapacityRatio":
        utilizations = sorted(draw.sample(range(101), draw.randint(1, 6)))
        shape = [{"utilization": one, "score": draw.randint(0, 10)} for one in utilizations]
        strategy["requestedToCapacityRatio"] = {"shape": shape}
    args: Json = {"scoringStrategy": strategy}
    if draw.chance(0.3):
        args["ignoredResources"] = draw.some(("example.com/fpga", "nvidia.com/gpu", "example.com/none"), 3)
    if draw.chance(0.3):
        args["ignoredResourceGroups"] = draw.some(("nvidia.com", "example.com", "other.io"), 2)
    return "NodeResourcesFit", args


def _odd_balanced(draw: Draw) -> tuple[str, Json]:
    names = draw.some(("cpu", "memory", "nvidia.com/gpu", "ephemeral-storage", "example.com/fpga"), 5) or ["memory"]
    return "NodeResourcesBalancedAllocation", {"resources": [{"name": name, "weight": 1} for name in names]}


def _odd_node_affinity(draw: Draw) -> tuple[str, Json]:
    terms: list[Json] = [
        {"matchExpressions": [{"key": "gen", "operator": draw.choice(("Gt", "Lt")), "values": ["5"]}]},
        {"matchFields": [{"key": "metadata.name", "operator": draw.choice(("In", "NotIn")), "values": ["n1"]}]},
        {"matchExpressions": [{"key": "pool", "operator": draw.choice(("Exists", "DoesNotExist", "NotIn"))}]},
    ]
    for expression in terms[2]["matchExpressions"]:
        if expression["operator"] == "NotIn":
            expression["values"] = ["a"]
    added: Json = {}
    if draw.chance(0.6):
        required = draw.sample(terms, draw.randint(1, 2))
        added["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": required}
    if not added or draw.chance(0.5):
        added["preferredDuringSchedulingIgnoredDuringExecution"] = [
            {"weight": draw.choice((1, 100)), "preference": term} for term in draw.sample(terms, draw.randint(1, 3))
        ]
    return "NodeAffinity", {"addedAffinity": added}


def _odd_pod_affinity(draw: Draw) -> tuple[str, Json]:
    is_ignored = draw.chance(0.5)
    return "InterPodAffinity", {
        "hardPodAffinityWeight": draw.choice((0, 1, 33, 100)),
        "ignorePreferredTermsOfExistingPods": is_ignored,
    }


def _odd_spread(draw: Draw) -> tuple[str, Json]:
    if draw.chance(0.3):
        return "PodTopologySpread", {"defaultingType": "List", "defaultConstraints": []}
    keys = draw.sample((ZONE, HOST, "pool", "nowhere"), draw.randint(1, 3))
    constraints = [
        {
            "maxSkew": draw.choice((1, 3)),
            "topologyKey": key,
            "whenUnsatisfiable": draw.choice(("DoNotSchedule", "ScheduleAnyway")),
        }
        for key in keys
    ]
    return "PodTopologySpread", {"defaultingType": "List", "defaultConstraints": constraints}


def _preemption(draw: Draw) -> tuple[str, Json]:
    return "DefaultPreemption", {
        "minCandidateNodesPercentage": draw.choice((1, 10, 100)),
        "minCandidateNodesAbsolute": draw.choice((1, 100)),
    }

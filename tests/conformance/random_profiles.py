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

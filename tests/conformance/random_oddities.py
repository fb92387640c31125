"""Rare values and forms that the API server takes: each is a change to a problem that is whole without it.

`add_oddities` makes a few of them. None is an invalid object, and each has been seen in some cluster or could be: absent
fields, empty strings, amounts in every notation, labels that are no numbers, selectors that match nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.conformance.random_cluster import (
    APPS,
    EFFECTS,
    GPU,
    HOST,
    IMAGES,
    NAMESPACES,
    POOL,
    ZONE,
    Draw,
    Json,
)
from tests.conformance.random_profiles import make_odd_profile

CPUS = ("0", "1m", "0.1", "1500m", "1e0", "2.5", "0.0005", "3")
MEMORIES = ("0", "1", "1k", "1e9", "1.5Gi", "0.5Gi", "128974848", "129e6", "300M", "100m", "5Gi")
NUMBERS = ("0", "00007", "9223372036854775807", "4", "10")
UNREADABLE = ("9223372036854775808", "abc", "1.5", "", "-5", "+3", "-9223372036854775809", "x" * 64, "_" * 64)
"""Values of Gt and Lt; the API server does not mind those that are no numbers, of preferences not even those that are no labels."""
LABEL_NUMBERS = ("0", "007", "9223372036854775807", "99999999999999999999", "", "1.5", "3")
HOST_IPS = ("::", "::1", "127.0.0.1", "10.0.0.7", "0.0.0.0", "")
TERMS = "requiredDuringSchedulingIgnoredDuringExecution", "preferredDuringSchedulingIgnoredDuringExecution"


def add_oddities(draw: Draw, problem: Json, *, most: int = 5) -> None:
    """One to `most` kinds of changes."""
    for change in draw.sample(CHANGES, draw.randint(1, most)):
        change(draw, problem)


def _pods(draw: Draw, problem: Json, most: int = 6) -> list[Json]:
    """The pending pod more often than not, and some of the others."""
    return [*draw.some(problem["pods"], most), *([problem["pod"]] if draw.chance(0.8) else [])]


# -- nodes -------------------------------------------------------------------------------------------------------------


def _images(draw: Draw, problem: Json) -> None:
    """Nodes with no image, with fifty, with images of many names or of none, and sizes from nothing to 20 GB."""
    for node in problem["nodes"]:
        kind = draw.random()
        if kind < 0.2:
            node["status"]["images"] = []
        elif kind < 0.3:
            node["status"]["images"] = [
                {"names": [f"registry.example/many:v{i}"], "sizeBytes": 10_000_000 * i} for i in range(50)
            ]
        elif kind < 0.8:
            node["status"]["images"] = [
                {"names": _names(draw, image), "sizeBytes": draw.choice((0, 1, IMAGES[image], 20_000_000_000))}
                for image in draw.some(list(IMAGES), 4)
            ]
    for container in problem["pod"]["spec"]["containers"]:
        container["image"] = draw.choice((*IMAGES, *_FORMS, "registry.example/many:v49"))


_FORMS = (
    "registry.example/web",
    "registry.example/web:latest",
    "registry.example/db@sha256:dbdbdbdb",
    "registry.example:5000/web",
    "web",
    "Registry.example/web:v1",
)


def _names(draw: Draw, image: str) -> list[str]:
    tags = [image, image.replace(":v1", ":v2"), image.replace(":v1", ":latest"), *_FORMS[:5]]
    return draw.some(tags, 4) or draw.choice(([], [image]))


def _amounts(draw: Draw, problem: Json) -> None:
    """Room in every notation, and resources that a node does not tell, or has none of."""
    for node in problem["nodes"]:
        if draw.chance(0.5):
            continue
        allocatable = node["status"]["allocatable"]
        allocatable["cpu"] = draw.choice((*CPUS, "7.91", "8e3", "4k"))
        allocatable["memory"] = draw.choice((*MEMORIES, "900Ti", "31.25Gi"))
        for resource in draw.some(list(allocatable), 2):
            if draw.chance(0.3):
                del allocatable[resource]
        allocatable[draw.choice((GPU, "example.com/fpga", "hugepages-1Gi"))] = draw.choice(("0", "1", "3Gi"))
    if draw.chance(0.1):
        draw.choice(problem["nodes"])["status"].pop("allocatable")


def _requests(draw: Draw, problem: Json) -> None:
    """Requests in every notation, of nothing, and of several resources at once."""
    for pod in _pods(draw, problem):
        for container in pod["spec"]["containers"]:
            requests = {"cpu": draw.choice(CPUS), "memory": draw.choice(MEMORIES)}
            for resource, amounts in ((GPU, "012"), ("example.com/fpga", "01"), ("hugepages-1Gi", ("1Gi", "0"))):
                if draw.chance(0.2):
                    requests[resource] = draw.choice(amounts)
            for resource in draw.some(list(requests), 2):
                del requests[resource]
            container["resources"] = {"requests": requests}


def _exact_fit(draw: Draw, problem: Json) -> None:
    """Nodes that the pending pod fills to the last bit, or misses by one."""
    wanted = problem["pod"]["spec"]["containers"][0].setdefault("resources", {})
    wanted["requests"] = {"cpu": "1120m", "memory": "256Mi"}
    for node in problem["nodes"]:
        allocatable = node["status"].setdefault("allocatable", {"pods": "110"})
        allocatable["cpu"] = draw.choice(("1119m", "1120m", "1121m", "2240m"))
        allocatable["memory"] = draw.choice(("268435456", "268435455", "1Gi"))
        if draw.chance(0.2):
            on_node = [p for p in problem["pods"] if p["spec"].get("nodeName") == node["metadata"]["name"]]
            allocatable["pods"] = str(len(on_node) + draw.choice((0, 1)))


def _taints(draw: Draw, problem: Json) -> None:
    """One key with several effects, values of digits, spec.unschedulable without its taint and the taint without it."""
    for node in problem["nodes"]:
        if draw.chance(0.4):
            effects = draw.some(EFFECTS, 3)
            value = draw.choice(("", "10", "007", "a"))
            taints = [{"key": "flaky", "effect": effect, **({"value": value} if value else {})} for effect in effects]
            node["spec"]["taints"] = [*node["spec"].get("taints", ()), *taints]
            _one_of_each(node["spec"])
        kind = draw.random()
        if kind < 0.1:
            node["spec"]["unschedulable"] = True
        elif kind < 0.2:
            taint = {"key": "node.kubernetes.io/unschedulable", "effect": draw.choice(EFFECTS)}
            node["spec"]["taints"] = [*node["spec"].get("taints", ()), taint]
            _one_of_each(node["spec"])
    for pod in _pods(draw, problem, 1):
        pod["spec"]["tolerations"] = [*pod["spec"].get("tolerations", ()), *(_toleration(draw) for _ in range(2))]


def _one_of_each(spec: Json) -> None:
    """The API server refuses two taints of one key and effect."""
    spec["taints"] = list({(taint["key"], taint["effect"]): taint for taint in spec["taints"]}.values())


def _toleration(draw: Draw) -> Json:
    return draw.choice(
        (
            {"operator": "Exists", "effect": draw.choice(EFFECTS)},
            {"key": "flaky", "value": draw.choice(("", "10", "a"))},
            {"key": "flaky", "operator": "", "value": "007"},
            {"key": "flaky", "operator": "Equal"},
            {"key": "flaky", "operator": "Exists", "effect": ""},
            {"key": "flaky", "operator": draw.choice(("Gt", "Lt")), "value": draw.choice(("5", "15"))},
            {
                "key": "flaky",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": draw.choice((0, -1, 60)),
            },
            {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"},
            {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
        )
    )


def _labels(draw: Draw, problem: Json) -> None:
    """Host names that are not the node's name or are shared, labels that are empty or barely numbers."""
    for node in problem["nodes"]:
        labels = node["metadata"]["labels"]
        kind = draw.random()
        if kind < 0.2:
            labels[HOST] = draw.choice(("other", "n0", ""))
        elif kind < 0.3:
            labels[ZONE] = ""
        elif kind < 0.6:
            labels["gen"] = draw.choice(LABEL_NUMBERS)
        elif kind < 0.65:
            del node["metadata"]["labels"]
        elif kind < 0.7:
            node["metadata"]["deletionTimestamp"] = "2026-01-01T01:00:00Z"


# -- pods --------------------------------------------------------------------------------------------------------------


def _bare_pods(draw: Draw, problem: Json) -> None:
    """Pods without labels, priority, start or tolerations, or with ones at the edge."""
    for pod in _pods(draw, problem):
        for part, field in (("metadata", "labels"), ("spec", "priority"), ("spec", "tolerations")):
            if draw.chance(0.15):
                pod[part].pop(field, None)
        if draw.chance(0.3):
            pod["status"].pop("startTime", None)
        if draw.chance(0.2):
            pod["spec"]["priority"] = draw.choice((-2147483648, 2147483647, 2000001000, 1000000000))
        if draw.chance(0.1):
            pod["spec"].pop("preemptionPolicy", None)
        if draw.chance(0.1) and pod is not problem["pod"] and pod["spec"].get("nodeName"):
            pod["status"]["phase"] = draw.choice(("Succeeded", "Failed", "Unknown", "Pending"))


def _pod_level(draw: Draw, problem: Json) -> None:
    """Requests of the whole pod beside, above and without those of its containers, some of them being resized."""
    for pod in _pods(draw, problem):
        requests = {"cpu": draw.choice(CPUS), "memory": draw.choice(MEMORIES), "hugepages-2Mi": "64Mi"}
        for resource in draw.some(list(requests), 2):
            del requests[resource]
        pod["spec"]["resources"] = {"requests": requests} if requests else {}
        if draw.chance(0.3):
            pod["spec"]["overhead"] = {"cpu": draw.choice(CPUS)}
        if draw.chance(0.3) and pod["spec"].get("nodeName"):
            told = {"cpu": draw.choice(CPUS), "memory": draw.choice(MEMORIES)}
            pod["status"]["resources"] = {"requests": told}
            pod["status"]["allocatedResources"] = told if draw.chance(0.7) else {"cpu": draw.choice(CPUS)}
            if draw.chance(0.3):
                _refuse_resize(draw, pod)


def _resizes(draw: Draw, problem: Json) -> None:
    """Resizes of init containers and of several containers, with half of what a status may tell."""
    for pod in draw.some(problem["pods"], 8):
        for kind, field in (("containers", "containerStatuses"), ("initContainers", "initContainerStatuses")):
            statuses = [_resized(draw, container) for container in pod["spec"].get(kind, ()) if draw.chance(0.7)]
            if statuses and pod["spec"].get("nodeName"):  # the kubelet writes them: a pod that waits has none
                pod["status"][field] = statuses
        if draw.chance(0.3):
            _refuse_resize(draw, pod)


def _resized(draw: Draw, container: Json) -> Json:
    status: Json = {
        "name": container["name"] if draw.chance(0.95) else "renamed",
        "image": container["image"],
        "imageID": "",
        "ready": True,
        "restartCount": 0,
    }
    if draw.chance(0.8):
        status["allocatedResources"] = _resize_amounts(draw)
    if draw.chance(0.8):
        status["resources"] = {"requests": _resize_amounts(draw)} if draw.chance(0.9) else {}
    return status


def _resize_amounts(draw: Draw) -> Json:
    amounts = {"cpu": draw.choice(("100m", "1", "2500m")), "memory": draw.choice(("128Mi", "3Gi")), GPU: "1"}
    return {name: amounts[name] for name in draw.some(list(amounts), 3)}


def _refuse_resize(draw: Draw, pod: Json) -> None:
    condition = {
        "type": draw.choice(("PodResizePending", "PodResizePending", "PodResizeInProgress")),
        "status": draw.choice(("True", "True", "False")),
        "reason": draw.choice(("Infeasible", "Infeasible", "Deferred", "")),
    }
    pod["status"].setdefault("conditions", []).append(condition)


def _ports(draw: Draw, problem: Json) -> None:
    """Ports of one number on several addresses and protocols; on containers that start before the others, too."""
    for pod in _pods(draw, problem, 12):
        for number, container in enumerate((*pod["spec"]["containers"], *pod["spec"].get("initContainers", ()))):
            port: Json = {"containerPort": 9000 + number, "hostPort": draw.choice((9000, 9001)) + 2 * number}
            if draw.chance(0.7):
                port["hostIP"] = draw.choice(HOST_IPS)
            if draw.chance(0.8):
                port["protocol"] = draw.choice(("TCP", "UDP", "SCTP"))
            container["ports"] = [port]
    _keep_holders_apart(problem)


def _keep_holders_apart(problem: Json) -> None:
    """Two pods on one node never hold one port (generate.py says why)."""
    taken: set[tuple[str, str, int, str]] = set()
    for pod in problem["pods"]:
        node = pod["spec"].get("nodeName") or pod["status"].get("nominatedNodeName", "")
        for container in (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())):
            for port in container.get("ports", ()):
                address = port.get("hostIP") or "0.0.0.0"
                held = (node, port.get("protocol", "TCP"), port.get("hostPort", 0), address)
                if held in taken:
                    container.pop("ports")
                    break
                taken.add(held)


# -- relations ---------------------------------------------------------------------------------------------------------


def _node_affinity(draw: Draw, problem: Json) -> None:
    """Terms that are empty or narrow the search, comparisons with what is no number, selectors of an empty value."""
    spec = problem["pod"]["spec"]
    affinity: Json = {}
    if draw.chance(0.8):
        affinity[TERMS[0]] = {"nodeSelectorTerms": [_node_term(draw, problem) for _ in range(draw.randint(1, 3))]}
    if draw.chance(0.5):
        affinity[TERMS[1]] = [
            {"weight": draw.randint(1, 100), "preference": _node_term(draw, problem)} for _ in range(draw.randint(1, 3))
        ]
    spec.setdefault("affinity", {})["nodeAffinity"] = affinity
    if draw.chance(0.2):
        spec["nodeSelector"] = draw.choice(({}, {POOL: ""}, {"kubernetes.io/os": "linux"}, {ZONE: "z1", "disk": "hdd"}))


def _node_term(draw: Draw, problem: Json) -> Json:
    kind = draw.random()
    if kind < 0.1:
        return {}
    names = [node["metadata"]["name"] for node in problem["nodes"]]
    if kind < 0.4:
        fields = [
            {
                "key": "metadata.name",
                "operator": draw.choice(("In", "In", "NotIn")),
                "values": [draw.choice((*names, "gone"))],
            }
            for _ in range(draw.choice((1, 1, 2)))
        ]
        return {"matchFields": fields, **({"matchExpressions": [_node_expression(draw)]} if draw.chance(0.3) else {})}
    return {"matchExpressions": [_node_expression(draw) for _ in range(draw.randint(1, 2))]}


def _node_expression(draw: Draw) -> Json:
    kind = draw.random()
    if kind < 0.5:
        values = [draw.choice(NUMBERS if draw.chance(0.9) else UNREADABLE)]
        return {"key": draw.choice(("gen", "gen", "disk")), "operator": draw.choice(("Gt", "Lt")), "values": values}
    key = draw.choice((POOL, ZONE, "nowhere", "disk", HOST))
    if kind < 0.8:
        values = draw.sample(("a", "", "z0", "ssd", "n1"), 2)
        return {"key": key, "operator": draw.choice(("In", "NotIn")), "values": values}
    return {"key": key, "operator": draw.choice(("Exists", "DoesNotExist"))}


def _spread(draw: Draw, problem: Json) -> None:
    """Keys that few nodes have, selectors of nothing and of all, keys of labels that the pod lacks, large numbers."""
    constraints: dict[tuple[str, str], Json] = {}
    for _ in range(draw.randint(1, 4)):
        constraint: Json = {
            "maxSkew": draw.choice((1, 1, 2, 2147483647)),
            "topologyKey": draw.choice((ZONE, HOST, POOL, "kubernetes.io/os", "nowhere")),
            "whenUnsatisfiable": draw.choice(("DoNotSchedule", "ScheduleAnyway")),
        }
        selector: Json | None = draw.choice(
            (
                None,
                {},
                {"matchLabels": {"app": draw.choice(APPS)}},
                {"matchExpressions": [{"key": "rev", "operator": "NotIn", "values": ["1"]}]},
                {"matchLabels": {"app": ""}},
            )
        )
        if selector is not None:
            constraint["labelSelector"] = selector
            keys = draw.some(("rev", "app", "tier", "missing"), 2)
            if keys and draw.chance(0.5):
                constraint["matchLabelKeys"] = [key for key in keys if key not in str(selector)]
        if constraint["whenUnsatisfiable"] == "DoNotSchedule" and draw.chance(0.4):
            constraint["minDomains"] = draw.choice((1, 2, 4, 2147483647))
        for policy in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
            if draw.chance(0.4):
                constraint[policy] = draw.choice(("Honor", "Ignore"))
        constraints[(constraint["topologyKey"], constraint["whenUnsatisfiable"])] = constraint
    for pod in (problem["pod"], *draw.some(problem["pods"], 2)):
        pod["spec"]["topologySpreadConstraints"] = list(constraints.values())


def _pod_affinity(draw: Draw, problem: Json) -> None:
    """Terms about keys that few nodes have, about pods without a label, and about namespaces by every way to say which."""
    for pod in _pods(draw, problem):
        affinity = pod["spec"].setdefault("affinity", {})
        for kind in draw.some(("podAffinity", "podAntiAffinity"), 2):
            terms: Json = {}
            if draw.chance(0.5):
                terms[TERMS[0]] = [_pod_term(draw) for _ in range(draw.randint(1, 3))]
            if draw.chance(0.6):
                terms[TERMS[1]] = [
                    {"weight": draw.choice((1, 37, 100)), "podAffinityTerm": _pod_term(draw)}
                    for _ in range(draw.randint(1, 3))
                ]
            affinity[kind] = terms


def _pod_term(draw: Draw) -> Json:
    term: Json = {"topologyKey": draw.choice((ZONE, HOST, POOL, "kubernetes.io/os", "nowhere"))}
    selector: Json | None = draw.choice(
        (
            None,
            {},
            {"matchLabels": {"app": draw.choice(APPS)}},
            {"matchExpressions": [{"key": "rev", "operator": "NotIn", "values": ["1"]}]},
            {"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]},
            {"matchLabels": {"app": draw.choice(APPS)}, "matchExpressions": [{"key": "tier", "operator": "Exists"}]},
        )
    )
    if selector is not None or draw.chance(0.5):
        term["labelSelector"] = selector
    if draw.chance(0.4):
        term["namespaceSelector"] = draw.choice(
            (
                None,
                {},
                {"matchLabels": {"team": "b"}},
                {"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]},
                {"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["a"]}]},
                {"matchLabels": {"kubernetes.io/metadata.name": "default"}},
            )
        )
    if draw.chance(0.3):
        term["namespaces"] = draw.choice(([], ["nowhere"], list(NAMESPACES), ["default", "default"]))
    return term


def _budgets(draw: Draw, problem: Json) -> None:
    """Several budgets of one pod, of nothing, of all, and some whose controller has not come by yet."""
    problem["pod"]["spec"]["priority"] = 1_000_000
    problem["pdbs"] = [
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": f"budget-{index}", "namespace": draw.choice(NAMESPACES)},
            "spec": {"maxUnavailable": 1, **_budget_selector(draw)},
            "status": _budget_status(draw, problem),
        }
        for index in range(draw.randint(1, 6))
    ]


def _budget_selector(draw: Draw) -> Json:
    selector: Json | None = draw.choice(
        (
            None,
            {},
            {"matchLabels": {"app": draw.choice(APPS)}},
            {"matchExpressions": [{"key": "rev", "operator": "DoesNotExist"}]},
            {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": [draw.choice(APPS)]}]},
        )
    )
    return {} if selector is None else {"selector": selector}


def _budget_status(draw: Draw, problem: Json) -> Json:
    if draw.chance(0.1):
        return {}
    status: Json = {"disruptionsAllowed": draw.choice((-1, 0, 0, 1, 2, 5)), "currentHealthy": 1, "desiredHealthy": 1}
    if problem["pods"] and draw.chance(0.3):
        names = [pod["metadata"]["name"] for pod in draw.some(problem["pods"], 3)]
        status["disruptedPods"] = dict.fromkeys(names, "2026-01-01T00:30:00Z")
    return status


def _same_pods(draw: Draw, problem: Json) -> None:
    """Nodes and pods that differ in nothing but their names, so that all that preemption compares is tied."""
    nodes = problem["nodes"]
    for node in nodes:
        node["status"]["allocatable"] = dict(nodes[0]["status"].get("allocatable", {"pods": "110"}))
    for pod in problem["pods"]:
        pod["spec"]["priority"] = draw.choice((0, 0, 0, 1))
        pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
        if "startTime" in pod["status"]:
            pod["status"]["startTime"] = draw.choice(
                ("2026-01-01T00:05:00Z", "2026-01-01T00:05:00Z", "2026-01-01T00:06:00Z")
            )
    problem["pod"]["spec"]["priority"] = draw.choice((0, 1, 1000))
    problem["pod"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": draw.choice(("1", "2", "4", "64"))}}


def _promises(draw: Draw, problem: Json) -> None:
    """Pending pods with a nominated node: some going, some on nodes that are gone, some as urgent as the pod or less."""
    names = [node["metadata"]["name"] for node in problem["nodes"]]
    for index in range(draw.randint(1, 3)):
        pod: Json = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"promised-{index}",
                "namespace": draw.choice(NAMESPACES),
                "uid": f"uid-promised-{index}",
                "labels": {"app": draw.choice(APPS)},
                "creationTimestamp": "2026-01-01T00:07:00Z",
            },
            "spec": {
                "schedulerName": draw.choice(("default-scheduler", "default-scheduler", "another")),
                "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": draw.choice(CPUS)}}}],
                "priority": draw.choice((problem["pod"]["spec"].get("priority", 0), 5000, -7)),
                "tolerations": [],
            },
            "status": {"phase": "Pending", "nominatedNodeName": draw.choice((*names, "gone"))},
        }
        if draw.chance(0.2):
            pod["metadata"] |= {"deletionTimestamp": "2026-01-01T01:00:00Z", "deletionGracePeriodSeconds": 30}
        problem["pods"].append(pod)
    if draw.chance(0.4):
        problem["pod"]["status"]["nominatedNodeName"] = draw.choice((*names, "gone"))


def _owners(draw: Draw, problem: Json) -> None:
    """Owners that are no controllers, of another kind or version, and workloads whose selectors say less or nothing."""
    metadata = problem["pod"]["metadata"]
    kind, version, field = draw.choice(
        (
            ("ReplicaSet", "apps/v1", "replicaSets"),
            ("StatefulSet", "apps/v1", "statefulSets"),
            ("ReplicationController", "v1", "replicationControllers"),
            ("ReplicaSet", "apps/v1beta1", "replicaSets"),
            ("Job", "batch/v1", "replicaSets"),
        )
    )
    owner: Json = {"apiVersion": version, "kind": kind, "name": "own", "uid": "own-uid"}
    if draw.chance(0.8):
        owner["controller"] = draw.chance(0.9)
    metadata["ownerReferences"] = [{"apiVersion": "v1", "kind": "Other", "name": "o", "uid": "o"}, owner]
    plain = {"app": draw.choice(APPS)}
    selector: Json = draw.choice(
        (
            {"matchLabels": plain},
            {"matchLabels": plain, "matchExpressions": [{"key": "rev", "operator": "DoesNotExist"}]},
            {"matchExpressions": [{"key": "tier", "operator": "In", "values": ["front", "back"]}]},
        )
    )
    spec: Json = {
        "selector": plain if kind == "ReplicationController" else selector,
        "template": {"spec": {"containers": []}},
    }
    place = metadata["namespace"] if draw.chance(0.9) else "default"
    made = {"metadata": {"name": "own", "namespace": place, "uid": draw.choice(("own-uid", "later-uid"))}, "spec": spec}
    problem[field] = [{"apiVersion": version if kind != "Job" else "apps/v1", "kind": kind, **made}]
    problem["pod"]["spec"].pop("topologySpreadConstraints", None)


def _profile(draw: Draw, problem: Json) -> None:
    problem["profile"] = make_odd_profile(draw)


CHANGES: tuple[Callable[[Draw, Json], None], ...] = (
    _images,
    _amounts,
    _requests,
    _exact_fit,
    _taints,
    _labels,
    _bare_pods,
    _pod_level,
    _resizes,
    _ports,
    _node_affinity,
    _spread,
    _pod_affinity,
    _budgets,
    _same_pods,
    _promises,
    _owners,
    _profile,
)

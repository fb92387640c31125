"""Random relations between pods, nodes and objects: node and pod affinity, spread, owners, services, budgets."""

from __future__ import annotations

from typing import Any

from tests.conformance.random_cluster import APPS, HOST, NAMESPACES, POOL, REGION, ZONE, Draw, Json

TOPOLOGIES = (HOST, HOST, ZONE, POOL, REGION)


# -- node affinity -----------------------------------------------------------------------------------------------------


def add_node_affinity(draw: Draw, pod: Json, nodes: int) -> None:
    affinity: Json = {}
    if draw.chance(0.6):
        affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {
            "nodeSelectorTerms": [_node_term(draw, nodes) for _ in range(draw.randint(1, 2))]
        }
    if draw.chance(0.7):
        affinity["preferredDuringSchedulingIgnoredDuringExecution"] = [
            {"weight": draw.choice((1, 5, 20, 50, 100)), "preference": _node_term(draw, nodes)}
            for _ in range(draw.randint(1, 3))
        ]
    if affinity:
        pod["spec"].setdefault("affinity", {})["nodeAffinity"] = affinity


def _node_term(draw: Draw, nodes: int) -> Json:
    term: Json = {}
    if draw.chance(0.8):
        term["matchExpressions"] = [_node_expression(draw) for _ in range(draw.randint(1, 2))]
    if not term or draw.chance(0.15):
        names = [f"n{draw.randrange(nodes + 1)}"]
        term["matchFields"] = [{"key": "metadata.name", "operator": draw.choice(("In", "NotIn")), "values": names}]
    return term


def _node_expression(draw: Draw) -> Json:
    key = draw.choice((ZONE, "disk", "kubernetes.io/arch", POOL, "gen"))
    values = {ZONE: ["z0", "z1", "z2"], "disk": ["ssd", "hdd"], POOL: ["a", "b", "c"], "gen": ["1", "7", "10"]}
    operator = draw.choice(("In", "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"))
    if operator in ("Gt", "Lt"):
        return {"key": "gen", "operator": operator, "values": [draw.choice(("1", "2", "5", "9"))]}
    if operator in ("Exists", "DoesNotExist"):
        return {"key": key, "operator": operator}
    known = values.get(key, ["amd64", "arm64"])
    return {"key": key, "operator": operator, "values": draw.sample(known, draw.randint(1, min(2, len(known))))}


def add_required_features(draw: Draw, problem: Json) -> None:
    """Something in the pod that only newer kubelets can do, and nodes that say whether they can."""
    spec = problem["pod"]["spec"]
    features = ("RestartAllContainersOnContainerExits", "UserNamespacesHostNetworkSupport")
    if draw.chance(0.5):
        rule = {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}
        spec["containers"][0] |= {"restartPolicy": "Never", "restartPolicyRules": [rule]}
    else:
        spec |= {"hostNetwork": True, "hostUsers": False}
        for container in spec["containers"]:
            container.pop("ports", None)
    for node in problem["nodes"]:
        if draw.chance(0.8):
            node["status"]["declaredFeatures"] = draw.some((*features, "Unheard"), 3)


# -- pod affinity and spread -------------------------------------------------------------------------------------------


def pod_selector(draw: Draw) -> Json:
    """A label selector over the labels of make_pod; an empty one selects everything."""
    kind = draw.random()
    if kind < 0.6:
        return {"matchLabels": {"app": draw.choice(APPS)}}
    if kind < 0.75:
        return {"matchLabels": {"tier": draw.choice(("front", "back"))}}
    if kind < 0.78:
        return {}
    operator = draw.choice(("In", "NotIn", "Exists", "DoesNotExist"))
    if operator in ("Exists", "DoesNotExist"):
        return {"matchExpressions": [{"key": draw.choice(("app", "tier", "rev")), "operator": operator}]}
    return {"matchExpressions": [{"key": "app", "operator": operator, "values": draw.sample(APPS, draw.randint(1, 3))}]}


def add_pod_affinity(draw: Draw, pod: Json, *, required: float = 0.4, preferred: float = 0.4) -> None:
    affinity = pod["spec"].setdefault("affinity", {})
    for kind in ("podAffinity", "podAntiAffinity"):
        terms: Json = {}
        if draw.chance(required):
            terms["requiredDuringSchedulingIgnoredDuringExecution"] = [
                _pod_term(draw, pod) for _ in range(draw.choice((1, 1, 2)))
            ]
        if draw.chance(preferred):
            terms["preferredDuringSchedulingIgnoredDuringExecution"] = [
                {"weight": draw.choice((1, 10, 50, 100)), "podAffinityTerm": _pod_term(draw, pod)}
                for _ in range(draw.choice((1, 1, 2)))
            ]
        if terms:
            affinity[kind] = terms
    if not affinity:
        del pod["spec"]["affinity"]


def _pod_term(draw: Draw, pod: Json) -> Json:
    term: Json = {"topologyKey": draw.choice(TOPOLOGIES)}
    if draw.chance(0.97):
        term["labelSelector"] = pod_selector(draw)
    kind = draw.random()
    if kind < 0.2:
        term["namespaces"] = draw.sample(NAMESPACES, draw.randint(1, 2))
    elif kind < 0.27:
        term["namespaceSelector"] = {}
    elif kind < 0.34:
        term["namespaceSelector"] = {"matchLabels": {"team": "a"}}
    elif kind < 0.42:
        term["namespaceSelector"] = {"matchExpressions": [{"key": "team", "operator": draw.choice(("Exists", "In"))}]}
        if term["namespaceSelector"]["matchExpressions"][0]["operator"] == "In":
            term["namespaceSelector"]["matchExpressions"][0]["values"] = ["a", "c"]
        if draw.chance(0.3):
            term["namespaces"] = ["default"]
    if "labelSelector" in term and draw.chance(0.08):
        _merge_label_key(draw, term, pod)
    return term


def _merge_label_key(draw: Draw, term: Json, pod: Json) -> None:
    """matchLabelKeys and mismatchLabelKeys as the API server leaves them: merged into the selector."""
    field, operator = draw.choice((("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")))
    value = pod["metadata"]["labels"].get("rev")
    term[field] = ["rev"]
    if value is not None:
        expressions = term["labelSelector"].setdefault("matchExpressions", [])
        expressions.append({"key": "rev", "operator": operator, "values": [value]})


def add_spread(draw: Draw, pod: Json, *, own_label: float = 0.7) -> None:
    constraints: dict[tuple[str, str], Json] = {}
    for _ in range(draw.randint(1, 3)):
        key = draw.choice((HOST, ZONE, ZONE, POOL, REGION))
        action = draw.choice(("DoNotSchedule", "ScheduleAnyway"))
        selector: Json = pod_selector(draw)
        if draw.chance(own_label):
            selector = {"matchLabels": {"app": pod["metadata"]["labels"]["app"]}}
        constraint: Json = {
            "maxSkew": draw.choice((1, 1, 2, 5)),
            "topologyKey": key,
            "whenUnsatisfiable": action,
            "labelSelector": selector,
        }
        if draw.chance(0.05):
            del constraint["labelSelector"]
        if action == "DoNotSchedule" and draw.chance(0.2):
            constraint["minDomains"] = draw.choice((1, 2, 3, 5))
        if draw.chance(0.4):
            constraint["nodeAffinityPolicy"] = draw.choice(("Honor", "Ignore"))
        if draw.chance(0.5):
            constraint["nodeTaintsPolicy"] = draw.choice(("Honor", "Ignore"))
        if "labelSelector" in constraint and draw.chance(0.1):
            constraint["matchLabelKeys"] = ["rev"]
        constraints[(key, action)] = constraint
    pod["spec"]["topologySpreadConstraints"] = list(constraints.values())


# -- owners, services, budgets -----------------------------------------------------------------------------------------


def workload_objects(draw: Draw, problem: Json) -> None:
    """Services and the pod's owner, from which PodTopologySpread takes its default selectors."""
    pod = problem["pod"]
    namespace, app = pod["metadata"]["namespace"], pod["metadata"]["labels"]["app"]
    if draw.chance(0.6):
        problem["services"] = [
            _service(f"svc-{one}-{place}", place, {"app": one}) for one in draw.some(APPS, 4) for place in NAMESPACES
        ]
        if draw.chance(0.3):
            problem["services"].append(_service("svc-empty", namespace, {}))
    kind = draw.random()
    if kind < 0.25:
        _own(problem, "replicaSets", "apps/v1", "ReplicaSet", "rs", {"matchLabels": {"app": app}})
    elif kind < 0.5:
        _own(problem, "statefulSets", "apps/v1", "StatefulSet", "sts", {"matchLabels": {"app": app}})
    elif kind < 0.65:
        _own(problem, "replicationControllers", "v1", "ReplicationController", "rc", {"app": app})
    elif kind < 0.7:  # an owner that is not there (any more)
        _own(problem, "replicaSets", "apps/v1", "ReplicaSet", "gone", {"matchLabels": {"app": app}})
        problem["replicaSets"] = []


def _service(name: str, namespace: str, selector: Json) -> Json:
    spec: Json = {"ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}]}
    if selector:
        spec["selector"] = selector
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": namespace}, "spec": spec}


def _own(problem: Json, field: str, version: str, kind: str, name: str, selector: Json) -> None:
    metadata = problem["pod"]["metadata"]
    uid = f"{name}-uid"
    owner: Any = {"apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": True}
    metadata["ownerReferences"] = [owner]
    template = {"metadata": {"labels": dict(metadata["labels"])}, "spec": {"containers": []}}
    problem[field] = [
        {
            "apiVersion": version,
            "kind": kind,
            "metadata": {"name": name, "namespace": metadata["namespace"], "uid": uid},
            "spec": {"replicas": 3, "selector": selector, "template": template},
        }
    ]


def disruption_budgets(draw: Draw, pods: list[Json]) -> list[Json]:
    budgets = []
    for app in draw.some(APPS, 4):
        for namespace in NAMESPACES:
            selector: Json = {"matchLabels": {"app": app}}
            if draw.chance(0.1):
                selector = draw.choice(({}, {"matchExpressions": [{"key": "tier", "operator": "Exists"}]}))
            status: Json = {
                "disruptionsAllowed": draw.choice((0, 0, 1, 2)),
                "currentHealthy": 3,
                "desiredHealthy": 1,
                "expectedPods": 3,
            }
            theirs = [p["metadata"]["name"] for p in pods if p["metadata"]["namespace"] == namespace]
            if theirs and draw.chance(0.15):
                status["disruptedPods"] = {draw.choice(theirs): "2026-01-01T00:30:00Z"}
            budgets.append(
                {
                    "apiVersion": "policy/v1",
                    "kind": "PodDisruptionBudget",
                    "metadata": {"name": f"pdb-{app}-{namespace}", "namespace": namespace},
                    "spec": {"selector": selector},
                    "status": status,
                }
            )
    return budgets

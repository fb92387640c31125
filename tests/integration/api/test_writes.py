"""Creates, updates, patches, deletes and what refuses them: the same on both servers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.integration.api.conftest import Api, pod

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Asks again until it holds: a real server learns of some objects through informers, a moment after they are stored."""
    async with asyncio.timeout(60):
        while not await holds():  # noqa: ASYNC110 -- another process
            await asyncio.sleep(0.05)


async def _served(api: Api, path: str) -> bool:
    return (await api.ask("GET", path))[0] == 200


async def _accepts(api: Api, path: str, body: dict[str, Any], status: int) -> bool:
    return (await api.ask("POST", path, body))[0] == status


def deployment(name: str, replicas: int = 1, **container: Any) -> dict[str, Any]:
    """A small Deployment."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "c", "image": "x", **container}]},
            },
        },
    }


def _with(name: str, **changes: Any) -> dict[str, Any]:
    document = pod(name)
    container = document["spec"]["containers"][0]
    for key, value in changes.items():
        if key in ("labels", "annotations", "finalizers"):
            document["metadata"][key] = value
        elif key in ("resources", "ports", "image"):
            container[key] = value
        else:
            document["spec"][key] = value
    return document


INVALID = [
    ("name", _with("Bad_Name"), 422, ["metadata.name"]),
    ("label", _with("a", labels={"k": "a b"}), 422, ["metadata.labels"]),
    ("label key", _with("a", labels={"a b": "v"}), 422, ["metadata.labels"]),
    ("quantity", _with("a", resources={"requests": {"cpu": "abc"}}), 400, None),
    ("negative", _with("a", resources={"requests": {"cpu": "-1"}}), 422, ["spec.containers[0].resources.requests[cpu]"]),
    (
        "over limit", _with("a", resources={"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}),
        422, ["spec.containers[0].resources.requests"],
    ),
    ("no image", _with("a", image=""), 422, ["spec.containers[0].image"]),
    ("no containers", _with("a", containers=[]), 422, ["spec.containers"]),
    ("restart policy", _with("a", restartPolicy="Sometimes"), 422, ["spec.restartPolicy"]),
    ("port", _with("a", ports=[{"containerPort": 70000}]), 422, ["spec.containers[0].ports[0].containerPort"]),
    ("gated and bound", _with("a", nodeName="n", schedulingGates=[{"name": "x.y/z"}]), 422, ["spec.nodeName"]),
    ("toleration", _with("a", tolerations=[{"key": "k", "operator": "Exists", "value": "v"}]), 422, ["spec.tolerations[0].operator"]),
    ("priority class", _with("a", priorityClassName="missing"), 403, None),
    ("fraction of a device", _with("a", resources={"limits": {"example.com/d": "1500m"}}), 422, None),
    (
        "spread", _with("a", topologySpreadConstraints=[{"maxSkew": 0, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule"}]),
        422, ["spec.topologySpreadConstraints[0].maxSkew"],
    ),
    (
        "weight",
        _with("a", affinity={"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 200, "preference": {}}]}}),
        422, ["spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "status", "fields"), [entry[1:] for entry in INVALID], ids=[entry[0] for entry in INVALID]
)
async def test_an_invalid_pod_is_refused(
    api: Api, namespace: str, body: dict[str, Any], status: int, fields: list[str] | None
) -> None:
    actual, answer = await api.ask("POST", f"/api/v1/namespaces/{namespace}/pods", body)
    assert actual == status, answer
    if fields is not None:
        assert [cause["field"] for cause in answer["details"]["causes"]] == fields, answer["message"]


async def test_match_label_keys_of_a_new_pod_are_merged_into_their_selectors(api: Api, namespace: str) -> None:
    def term(**fields: Any) -> dict[str, Any]:
        return {"topologyKey": "zone", "matchLabelKeys": ["rev", "absent"], "mismatchLabelKeys": ["tier"], **fields}

    required = "requiredDuringSchedulingIgnoredDuringExecution"
    selector = {"matchExpressions": [{"key": "app", "operator": "Exists"}]}
    spread = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    body = _with("a", affinity={"podAntiAffinity": {required: [term(labelSelector=selector)]}})
    body["spec"]["topologySpreadConstraints"] = [{**spread, "labelSelector": {}, "matchLabelKeys": ["rev"]}]
    body["metadata"]["labels"] = {"rev": "1", "tier": "x"}
    created = (await api.must("POST", f"/api/v1/namespaces/{namespace}/pods", body))["spec"]

    same_rev = {"key": "rev", "operator": "In", "values": ["1"]}
    other_tier = {"key": "tier", "operator": "NotIn", "values": ["x"]}
    found = created["affinity"]["podAntiAffinity"][required][0]["labelSelector"]["matchExpressions"]
    assert found == [{"key": "app", "operator": "Exists"}, same_rev, other_tier]
    assert created["topologySpreadConstraints"][0]["labelSelector"] == {"matchExpressions": [same_rev]}


async def test_generated_names_are_unique_and_existing_names_refused(api: Api, namespace: str) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    body = pod("x")
    body["metadata"] = {"generateName": "gen-"}
    created = await api.must("POST", pods, body)
    assert created["metadata"]["name"].startswith("gen-")
    assert len(created["metadata"]["name"]) == len("gen-") + 5
    await api.must("POST", pods, pod("a"))
    status, answer = await api.ask("POST", pods, pod("a"))
    assert (status, answer["reason"], answer["message"]) == (409, "AlreadyExists", 'pods "a" already exists')


async def test_a_missing_namespace_is_named(api: Api) -> None:
    status, answer = await api.ask("POST", "/api/v1/namespaces/nowhere/pods", pod("a"))
    assert (status, answer["message"]) == (404, 'namespaces "nowhere" not found')


async def test_dry_run_stores_nothing(api: Api, namespace: str) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    created = await api.must("POST", f"{pods}?dryRun=All", pod("a"))
    assert created["status"]["qosClass"] == "Burstable"
    assert (await api.ask("GET", f"{pods}/a"))[0] == 404


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({}, "BestEffort"),
        ({"requests": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed"),
        ({"requests": {"cpu": "1000m", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1024Mi"}}, "Guaranteed"),
    ],
)
async def test_a_pod_gets_its_qos_class(api: Api, namespace: str, resources: dict[str, Any], expected: str) -> None:
    created = await api.must("POST", f"/api/v1/namespaces/{namespace}/pods", _with("a", resources=resources))
    assert created["status"]["qosClass"] == expected


async def test_pod_spec_is_mostly_immutable(api: Api, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods/a"
    await api.must("POST", path.removesuffix("/a"), pod("a", schedulingGates=[{"name": "x.y/z"}]))
    image = {"spec": {"containers": [{"name": "c", "image": "y"}]}}
    changed = await api.must("PATCH", path, image, STRATEGIC)
    assert changed["metadata"]["generation"] == 2
    status, answer = await api.ask("PATCH", path, {"spec": {"schedulerName": "other"}}, MERGE)
    assert (status, answer["details"]["causes"][0]["field"]) == (422, "spec")
    opened = await api.must("PATCH", path, {"spec": {"schedulingGates": None}}, MERGE)
    assert "schedulingGates" not in opened["spec"]
    status, answer = await api.ask("PATCH", path, {"spec": {"schedulingGates": [{"name": "x.y/w"}]}}, MERGE)
    assert (status, answer["details"]["causes"][0]["field"]) == (422, "spec.schedulingGates[0].name")


async def test_stale_update_is_refused_and_an_equal_one_keeps_the_version(api: Api, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    created = await api.must("POST", path, {"metadata": {"name": "c"}, "data": {"a": "1"}})
    same = await api.must("PUT", f"{path}/c", created)
    assert same["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]
    await api.must("PUT", f"{path}/c", {**created, "data": {"a": "2"}})
    status, answer = await api.ask("PUT", f"{path}/c", {**created, "data": {"a": "3"}})
    assert (status, answer["reason"]) == (409, "Conflict")
    status, answer = await api.ask("PUT", f"{path}/other", {"metadata": {"name": "c"}})
    assert status == 400, answer


async def test_each_patch_type_merges_by_its_rules(api: Api, namespace: str) -> None:
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    await api.must("POST", path, deployment("d", env=[{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]))
    body = {
        "spec": {
            "template": {
                "spec": {
                    "containers": [
                        {"name": "c", "env": [{"name": "A", "$patch": "delete"}, {"name": "Z", "value": "9"}]}
                    ]
                }
            }
        }
    }
    changed = await api.must("PATCH", f"{path}/d", body, STRATEGIC)
    container = changed["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == "x"
    assert container["env"] == [{"name": "Z", "value": "9"}, {"name": "B", "value": "2"}]
    assert changed["metadata"]["generation"] == 2
    changed = await api.must(
        "PATCH", f"{path}/d", [{"op": "replace", "path": "/spec/replicas", "value": 4}], JSON_PATCH
    )
    assert changed["spec"]["replicas"] == 4
    status, answer = await api.ask(
        "PATCH", f"{path}/d", [{"op": "test", "path": "/spec/replicas", "value": 9}], JSON_PATCH
    )
    assert status == 422, answer
    changed = await api.must(
        "PATCH", f"{path}/d", {"metadata": {"labels": {"a": "b"}}, "spec": {"paused": True}}, MERGE
    )
    assert (changed["metadata"]["labels"], changed["spec"]["paused"]) == ({"a": "b"}, True)
    status, answer = await api.ask("PATCH", f"{path}/d", {}, "application/json")
    assert status == 415, answer


async def test_applied_list_has_the_order_of_the_patch(api: Api, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    await api.must("POST", path, pod("a"))
    conditions = {"status": {"conditions": [{"type": "B", "status": "True"}, {"type": "A", "status": "True"}]}}
    await api.must("PATCH", f"{path}/a/status", conditions, STRATEGIC)
    order = {
        "status": {
            "$setElementOrder/conditions": [{"type": "A"}, {"type": "B"}],
            "conditions": [{"type": "A", "status": "False"}],
        }
    }
    changed = await api.must("PATCH", f"{path}/a/status", order, STRATEGIC)
    assert [(entry["type"], entry["status"]) for entry in changed["status"]["conditions"]] == [
        ("A", "False"),
        ("B", "True"),
    ]


async def test_server_side_apply_owns_fields_and_reports_conflicts(api: Api, namespace: str) -> None:
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/s"
    body = deployment("s", 2, env=[{"name": "A", "value": "1"}])
    status, created = await api.ask("PATCH", f"{path}?fieldManager=one", body, APPLY)
    assert status == 201, created
    assert [(entry["manager"], entry["operation"]) for entry in created["metadata"]["managedFields"]] == [
        ("one", "Apply")
    ]
    status, answer = await api.ask("PATCH", f"{path}?fieldManager=two", deployment("s", 3, env=[]), APPLY)
    assert status == 409
    assert answer["message"] == 'Apply failed with 1 conflict: conflict with "one": .spec.replicas'
    assert answer["details"]["causes"][0]["field"] == ".spec.replicas"
    forced = await api.must("PATCH", f"{path}?fieldManager=two&force=true", deployment("s", 3), APPLY)
    assert forced["spec"]["replicas"] == 3
    without = deployment("s", 3)
    removed = await api.must("PATCH", f"{path}?fieldManager=one", without, APPLY)
    assert "env" not in removed["spec"]["template"]["spec"]["containers"][0]
    status, answer = await api.ask("PATCH", path, body, APPLY)
    assert status == 422, answer


async def test_unknown_fields_are_refused_when_strict(api: Api, namespace: str) -> None:
    body = deployment("d")
    body["spec"]["replicsa"] = 3
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments?fieldValidation="
    status, answer = await api.ask("POST", path + "Strict", body)
    assert status == 400
    assert 'strict decoding error: unknown field "spec.replicsa"' in answer["message"]
    created = await api.must("POST", path + "Warn", body)
    assert "replicsa" not in created["spec"]


async def test_finalizers_delay_deletion_and_preconditions_are_checked(api: Api, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps/c"
    created = await api.must(
        "POST", path.removesuffix("/c"), {"metadata": {"name": "c", "finalizers": ["example.com/x"]}}
    )
    status, answer = await api.ask("DELETE", path, {"preconditions": {"uid": "11111111-1111-1111-1111-111111111111"}})
    assert status == 409, answer
    marked = await api.must("DELETE", path, {"preconditions": {"uid": created["metadata"]["uid"]}})
    assert marked["metadata"]["deletionTimestamp"]
    status, answer = await api.ask(
        "PATCH", path, {"metadata": {"finalizers": ["example.com/x", "example.com/y"]}}, MERGE
    )
    assert status == 422, answer
    await api.must("PATCH", path, {"metadata": {"finalizers": None}}, MERGE)
    assert (await api.ask("GET", path))[0] == 404


async def test_bound_pod_is_deleted_after_its_grace_period(api: Api, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods/a"
    await api.must("POST", path.removesuffix("/a"), pod("a", nodeName="n"))
    marked = await api.must("DELETE", f"{path}?gracePeriodSeconds=20")
    assert marked["metadata"]["deletionGracePeriodSeconds"] == 20
    status, answer = await api.ask("POST", f"{path}/binding", {"metadata": {"name": "a"}, "target": {"name": "m"}})
    assert (status, "being deleted" in answer["message"]) == (409, True)
    gone = await api.must("DELETE", f"{path}?gracePeriodSeconds=0")
    assert gone["metadata"]["uid"] == marked["metadata"]["uid"]
    assert (await api.ask("GET", path))[0] == 404


async def test_bound_pod_gets_zone_and_region_of_its_node(api: Api, namespace: str) -> None:
    zone, region = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
    pods, node = f"/api/v1/namespaces/{namespace}/pods", f"n-{namespace}"
    labels = {zone: "z1", region: "r1", "disk": "ssd"}
    await api.must("POST", "/api/v1/nodes", {"metadata": {"name": node, "labels": labels}})
    await api.must("POST", pods, pod("a") | {"metadata": {"name": "a", "labels": {"app": "web", zone: "mine"}}})
    target = {"kind": "Node", "name": node}
    binding = {"metadata": {"name": "a", "labels": {region: "mine", "of": "binding"}}, "target": target}
    await api.must("POST", f"{pods}/a/binding", binding)
    bound = await api.must("GET", f"{pods}/a")
    assert bound["metadata"]["labels"] == {"app": "web", "of": "binding", zone: "z1", region: "r1"}
    created = await api.must("POST", pods, pod("b", nodeName=node))
    assert created["metadata"]["labels"] == {"app": "x", zone: "z1", region: "r1"}
    await api.must("DELETE", f"/api/v1/nodes/{node}")


async def test_a_scale_changes_replicas(api: Api, namespace: str) -> None:
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    await api.must("POST", path, deployment("d", 2))
    scale = await api.must("GET", f"{path}/d/scale")
    assert (scale["spec"], scale["status"]) == ({"replicas": 2}, {"replicas": 0, "selector": "app=d"})
    scaled = await api.must("PATCH", f"{path}/d/scale", {"spec": {"replicas": 5}}, MERGE)
    assert scaled["spec"]["replicas"] == 5
    assert (await api.must("GET", f"{path}/d"))["metadata"]["generation"] == 2


def told_event(namespace: str, *, name: str, note: str) -> dict[str, Any]:
    """In the shape of events.k8s.io/v1."""
    return {
        "metadata": {"name": name},
        "eventTime": "2026-11-21T08:00:00.000000Z",
        "reportingController": "x",
        "reportingInstance": "x-0",
        "action": "Binding",
        "reason": "Scheduled",
        "regarding": {"kind": "Pod", "name": "c", "namespace": namespace},
        "type": "Normal",
        "note": note,
    }


async def test_event_is_one_object_in_two_api_versions(api: Api, namespace: str) -> None:
    body = told_event(namespace, name="e", note="assigned")
    await api.must("POST", f"/apis/events.k8s.io/v1/namespaces/{namespace}/events", body)
    core = await api.must("GET", f"/api/v1/namespaces/{namespace}/events/e")
    assert (core["message"], core["involvedObject"]["name"], core["reportingComponent"]) == ("assigned", "c", "x")
    chosen = await api.must(
        "GET", f"/api/v1/namespaces/{namespace}/events?fieldSelector=involvedObject.name=c,reason=Scheduled"
    )
    assert len(chosen["items"]) == 1
    fresh = await api.must("GET", f"/apis/events.k8s.io/v1/namespaces/{namespace}/events/e")
    assert (fresh["note"], fresh["regarding"]["name"]) == ("assigned", "c")


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("note", "\u00e9" * 513, 'message: Invalid value: "": can have at most 1024 characters'),
        ("reason", "R" * 129, 'reason: Invalid value: "": can have at most 128 characters'),
        ("action", "", "action: Required value"),
        ("reportingInstance", "i" * 129, 'reportingInstance: Invalid value: "": can have at most 128 characters'),
        ("reportingController", "", "reportingController: Required value"),
    ],
)
async def test_event_needs_a_reporter_and_a_short_note(
    api: Api, namespace: str, field: str, value: str, told: str
) -> None:
    body = told_event(namespace, name="long", note="\u00e9" * 512)
    path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
    status, answer = await api.ask("POST", path, body | {field: value})
    assert (status, told in answer["message"]) == (422, True), answer["message"]
    await api.must("POST", path, body)


async def test_limit_ranges_default_and_limit_pods(api: Api, namespace: str) -> None:
    item = {"type": "Container", "default": {"cpu": "500m"}, "defaultRequest": {"cpu": "200m"}, "max": {"cpu": "1"}}
    await api.must(
        "POST", f"/api/v1/namespaces/{namespace}/limitranges", {"metadata": {"name": "l"}, "spec": {"limits": [item]}}
    )
    path = f"/api/v1/namespaces/{namespace}/pods"
    await until(lambda: _accepts(api, path + "?dryRun=All", _with("b", resources={"limits": {"cpu": "2"}}), 403))
    created = await api.must("POST", path, _with("a", resources={}))
    [container] = created["spec"]["containers"]
    assert container["resources"] == {"limits": {"cpu": "500m"}, "requests": {"cpu": "200m"}}
    name = container["name"]
    assert created["metadata"]["annotations"] == {
        "kubernetes.io/limit-ranger": f"LimitRanger plugin set: cpu request for container {name}; cpu limit for container {name}"
    }
    status, answer = await api.ask("POST", path, _with("b", resources={"limits": {"cpu": "2"}}))
    assert (status, answer["message"]) == (
        403,
        'pods "b" is forbidden: maximum cpu usage per Container is 1, but limit is 2',
    )


async def test_priority_classes_apply_to_pods(api: Api, namespace: str) -> None:
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    body = {"metadata": {"generateName": "api-test-"}, "value": 77, "preemptionPolicy": "Never"}
    name = (await api.must("POST", classes, body))["metadata"]["name"]
    path = f"/api/v1/namespaces/{namespace}/pods"
    await until(lambda: _accepts(api, path + "?dryRun=All", _with("a", priorityClassName=name), 201))
    created = await api.must("POST", f"/api/v1/namespaces/{namespace}/pods", _with("a", priorityClassName=name))
    assert (created["spec"]["priority"], created["spec"]["preemptionPolicy"]) == (77, "Never")
    status, _answer = await api.ask("PATCH", f"{classes}/{name}", {"value": 78}, MERGE)
    assert status == 422
    await api.must("DELETE", f"{classes}/{name}")


async def test_zero_budget_blocks_evictions(api: Api, namespace: str) -> None:
    budgets, pods = (
        f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets",
        f"/api/v1/namespaces/{namespace}/pods",
    )
    await api.must("POST", pods, pod("a", nodeName="n"))
    await api.must(
        "PATCH",
        f"{pods}/a/status",
        {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}},
        MERGE,
    )
    await api.must(
        "POST",
        budgets,
        {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}}},
    )
    status, answer = await api.ask("POST", f"{pods}/a/eviction", {"metadata": {"name": "a"}})
    assert (status, answer["reason"]) == (429, "TooManyRequests")
    await api.must("DELETE", f"{budgets}/b")
    status, answer = await api.ask("POST", f"{pods}/a/eviction", {"metadata": {"name": "a"}})
    assert status == 201, answer
    evicted = await api.must("GET", f"{pods}/a")
    assert evicted["metadata"]["deletionGracePeriodSeconds"] == 30
    assert evicted["status"]["conditions"][-1]["type"] == "DisruptionTarget"


async def test_eviction_checks_the_uid(api: Api, namespace: str) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    made = (await api.must("POST", pods, pod("a", nodeName="n")))["metadata"]

    async def evict(name: str, **preconditions: str) -> tuple[int, str]:
        body = {"metadata": {"name": name}, "deleteOptions": {"preconditions": preconditions}}
        status, answer = await api.ask("POST", f"{pods}/a/eviction", body)
        return status, answer.get("reason", "")

    assert await evict("b", uid=made["uid"]) == (400, "BadRequest")
    assert await evict("a", uid="another") == (409, "Conflict")
    assert await evict("a", resourceVersion="1") == (409, "Conflict")
    assert "deletionTimestamp" not in (await api.must("GET", f"{pods}/a"))["metadata"]
    assert (await evict("a", uid=made["uid"], resourceVersion=made["resourceVersion"]))[0] == 201
    assert (await evict("a", uid=made["uid"]))[0] == 201


async def test_lease_update_needs_a_version(api: Api, namespace: str) -> None:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    lease = await api.must(
        "POST", path, {"metadata": {"name": "l"}, "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15}}
    )
    status, answer = await api.ask("PUT", f"{path}/l", {"metadata": {"name": "l"}, "spec": {"holderIdentity": "b"}})
    assert status == 422, answer
    taken = {**lease, "spec": {**lease["spec"], "holderIdentity": "b"}}
    assert (await api.must("PUT", f"{path}/l", taken))["spec"]["holderIdentity"] == "b"
    assert (await api.ask("PUT", f"{path}/l", taken))[0] == 409


async def test_custom_kind_is_served_until_its_definition_is_deleted(api: Api, namespace: str) -> None:
    spec = {
        "type": "object",
        "properties": {"size": {"type": "integer", "minimum": 1}, "color": {"type": "string", "default": "red"}},
    }
    version = {
        "name": "v1", "served": True, "storage": True, "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": {"type": "object"}}}},
    }  # fmt: skip
    names = {"plural": "gadgets", "kind": "Gadget", "singular": "gadget", "listKind": "GadgetList"}
    definition = {"group": "test.multisched.io", "scope": "Namespaced", "names": names, "versions": [version]}
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    await api.must("POST", definitions, {"metadata": {"name": "gadgets.test.multisched.io"}, "spec": definition})
    path = f"/apis/test.multisched.io/v1/namespaces/{namespace}/gadgets"
    kind = {"apiVersion": "test.multisched.io/v1", "kind": "Gadget"}
    try:
        await until(lambda: _served(api, path))
        created = await api.must("POST", path, {**kind, "metadata": {"name": "g"}, "spec": {"size": 2, "odd": 1}})
        assert created["spec"] == {"size": 2, "color": "red"}
        status, answer = await api.ask("POST", path, {**kind, "metadata": {"name": "h"}, "spec": {"size": 0}})
        assert (status, answer["details"]["causes"][0]["field"]) == (422, "spec.size")
        changed = await api.must("PATCH", f"{path}/g/status", {"status": {}, "spec": {"size": 9}}, MERGE)
        assert changed["spec"]["size"] == 2
        listed = await api.must("GET", path)
        assert listed["items"][0]["kind"] == "Gadget"
    finally:
        await api.must("DELETE", f"{definitions}/gadgets.test.multisched.io")


async def test_permissions_come_only_from_roles(api: Api, namespace: str) -> None:
    review = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

    async def may(verb: str, resource: str) -> bool:
        asked = {"namespace": namespace, "verb": verb, "resource": resource}
        answer = await api.must("POST", review, {"spec": {"user": "bob", "resourceAttributes": asked}})
        return bool(answer["status"]["allowed"])

    assert not await may("list", "pods")
    group = "rbac.authorization.k8s.io"
    binding = {
        "metadata": {"name": "bob"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "view"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "bob"}],
    }
    await api.must("POST", f"/apis/{group}/v1/namespaces/{namespace}/rolebindings", binding)
    await until(lambda: may("list", "pods"))
    assert not await may("create", "pods")
    assert not await may("list", "secrets")


async def test_service_account_token_identifies_its_account(api: Api, namespace: str) -> None:
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    await api.must("POST", accounts, {"metadata": {"name": "robot"}})
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    token = (await api.must("POST", f"{accounts}/robot/token", asked))["status"]["token"]
    review = await api.must("POST", "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": token}})
    assert review["status"]["user"]["username"] == f"system:serviceaccount:{namespace}:robot"
    assert f"system:serviceaccounts:{namespace}" in review["status"]["user"]["groups"]

    async with api.session.get(f"{api.url}/api/v1/nodes", headers={"Authorization": f"Bearer {token}"}) as answer:
        status, body = answer.status, await answer.json()
    # A client certificate wins over a token where both are shown; without one the token's own rights count.
    if status != 200:
        sentence = f'nodes is forbidden: User "system:serviceaccount:{namespace}:robot" cannot list resource "nodes"'
        assert (status, body["message"].startswith(sentence)) == (403, True)

    review = await api.must("POST", "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": token + "x"}})
    assert not review["status"].get("authenticated")


async def test_all_workload_errors_are_reported_at_once(api: Api, namespace: str) -> None:
    spec = {
        "replicas": -1,
        "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "c"}}, "spec": {"containers": [{"name": "a", "image": "b"}]}},
    }
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    status, answer = await api.ask("POST", path, {"metadata": {"name": "d"}, "spec": spec})
    assert status == 422
    assert [cause["field"] for cause in answer["details"]["causes"]] == [
        "spec.replicas",
        "spec.template.metadata.labels",
    ]


async def test_exists_toleration_has_no_value(api: Api, namespace: str) -> None:
    wrong = _with("a", tolerations=[{"key": "a", "operator": "Exists", "value": "x"}])
    status, answer = await api.ask("POST", f"/api/v1/namespaces/{namespace}/pods", wrong)
    assert (status, answer["details"]["causes"]) == (
        422,
        [
            {
                "reason": "FieldValueInvalid",
                "message": "Invalid value: \"x\": value must be empty when `operator` is 'Exists'",
                "field": "spec.tolerations[0].operator",
            }
        ],
    )

"""What StatefulSets become: names, order, claims, rolling updates; in process and on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from multisched.cluster.api.server import Answer
from multisched.cluster.base.request import ApiRequest
from multisched.cluster.client.object_client import (
    CLAIMS,
    CONTROLLER_REVISIONS,
    EVENTS,
    PODS,
    STATEFUL_SETS,
    Document,
)
from multisched.model.wire import STRATEGIC_MERGE_PATCH, Response
from tests.unit.cluster.cluster_kit import Fleet, a_cluster, a_node, a_pod_spec, condition_of

pytestmark = pytest.mark.looptime

CREATED, DELETED = "created", "deleted"


def a_stateful_set(
    name: str, replicas: int, *, image: str = "app:1", claims: tuple[str, ...] = (), **spec: Any
) -> Document:
    pod = a_pod_spec()
    pod["containers"][0]["image"] = image
    templates = [
        {
            "metadata": {"name": claim},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": "none",
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }
        for claim in claims
    ]
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "replicas": replicas,
            "serviceName": name,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": pod},
            **({"volumeClaimTemplates": templates} if templates else {}),
            **spec,
        },
    }


def has_settled(replicas: int) -> Callable[[Document], bool]:
    """As `kubectl rollout status` judges, and of the wanted size."""

    def holds(stateful_set: Document) -> bool:
        status = stateful_set.get("status") or {}
        return bool(
            status.get("observedGeneration") == stateful_set["metadata"]["generation"]
            and status.get("replicas", 0) == replicas
            and status.get("availableReplicas", 0) == replicas
            and status.get("currentRevision") == status.get("updateRevision")
        )

    return holds


async def settle(cluster: Fleet, name: str, replicas: int) -> Document:
    return await cluster.wait_until(STATEFUL_SETS, name, has_settled(replicas))


def names(documents: list[Document]) -> list[str]:
    return sorted(document["metadata"]["name"] for document in documents)


def image_of(pod: Document) -> str:
    return str(pod["spec"]["containers"][0]["image"])


class Steps:
    """The pods that were made and asked to go, in this order, and how many were Ready then."""

    def __init__(self, cluster: Fleet) -> None:
        self._cluster = cluster
        self.taken: list[tuple[str, str, int]] = []
        self._seen: set[tuple[str, str]] = set()
        cluster.server.interceptors.append(self)

    def before(self, request: ApiRequest) -> Response | None:
        return None

    def after(self, request: ApiRequest, answer: Answer) -> Answer:
        is_pod = request.path.startswith("/api/v1/namespaces/default/pods")
        if is_pod and request.method in ("POST", "DELETE") and isinstance(answer, Response) and answer.status < 300:
            stored = self._cluster.server.store.collection("pods").objects.values()
            ready = sum(condition_of(entry.document(), "Ready").get("status") == "True" for entry in stored)
            metadata = orjson.loads(answer.body)["metadata"]
            verb = CREATED if request.method == "POST" else DELETED
            if (verb, metadata["uid"]) not in self._seen:  # a kubelet deletes a stopped pod once more
                self._seen.add((verb, metadata["uid"]))
                self.taken.append((verb, metadata["name"], ready))
        return answer


async def test_pods_are_created_in_order_after_the_previous_one_is_ready() -> None:
    async with a_cluster(a_node()) as cluster:
        steps = Steps(cluster)
        await cluster.create(STATEFUL_SETS, a_stateful_set("db", 3))
        stateful_set = await settle(cluster, "db", 3)
        pod = await cluster.get(PODS, "db-1")

        assert steps.taken == [(CREATED, f"db-{n}", n) for n in range(3)]
        assert pod is not None
        revision = stateful_set["status"]["currentRevision"]
        assert pod["metadata"]["labels"] == {
            "app": "db",
            "statefulset.kubernetes.io/pod-name": "db-1",
            "apps.kubernetes.io/pod-index": "1",
            "controller-revision-hash": revision,
        }
        assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == ("db-1", "db")
        counts = {k: stateful_set["status"][k] for k in ("readyReplicas", "currentReplicas", "updatedReplicas")}
        assert counts == {"readyReplicas": 3, "currentReplicas": 3, "updatedReplicas": 3}


async def test_parallel_pods_are_created_at_once() -> None:
    async with a_cluster(a_node()) as cluster:
        stateful_set = a_stateful_set("db", 4, podManagementPolicy="Parallel", ordinals={"start": 7})
        stateful_set["spec"]["template"]["spec"]["nodeName"] = ""
        await cluster.create(STATEFUL_SETS, stateful_set)
        pods = await cluster.wait_listed(PODS, lambda pods: len(pods) == 4)

        assert names(pods) == ["db-10", "db-7", "db-8", "db-9"]

        await cluster.patch(STATEFUL_SETS, "db", {"spec": {"replicas": 1}})
        await cluster.wait_listed(PODS, lambda pods: names(pods) == ["db-7"])


async def test_scale_down_deletes_last_pods_singly_and_waits_for_unready_ones() -> None:
    async with a_cluster(a_node()) as cluster:
        await cluster.create(STATEFUL_SETS, a_stateful_set("db", 4))
        await settle(cluster, "db", 4)
        steps = Steps(cluster)
        await cluster.patch(STATEFUL_SETS, "db", {"spec": {"replicas": 2}})
        await settle(cluster, "db", 2)

        assert steps.taken == [(DELETED, "db-3", 4), (DELETED, "db-2", 3)]

        not_ready = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        await cluster.patch(PODS, "db-0", {"status": {"conditions": [not_ready]}}, subresource="status")
        await cluster.wait_until(STATEFUL_SETS, "db", lambda found: found["status"].get("readyReplicas") == 1)
        await cluster.patch(STATEFUL_SETS, "db", {"spec": {"replicas": 1}})
        await asyncio.sleep(30)

        assert names(await cluster.list_all(PODS)) == ["db-0", "db-1"]


async def test_lost_and_failed_pods_are_recreated_with_their_names() -> None:
    async with a_cluster(a_node()) as cluster:
        await cluster.create(STATEFUL_SETS, a_stateful_set("db", 3))
        await settle(cluster, "db", 3)
        before = {p["metadata"]["name"]: p["metadata"]["uid"] for p in await cluster.list_all(PODS)}
        await cluster.delete(PODS, "db-0", grace_s=0)
        await cluster.patch(PODS, "db-2", {"status": {"phase": "Failed"}}, subresource="status")

        def all_are_well(pods: list[Document]) -> bool:
            well = [p for p in pods if condition_of(p, "Ready").get("status") == "True"]
            return {"db-0", "db-2"} == {n for n in names(well) if n != "db-1"} and all(
                (p["metadata"]["uid"] == before[p["metadata"]["name"]]) == (p["metadata"]["name"] == "db-1")
                for p in well
            )

        await cluster.wait_listed(PODS, all_are_well)


async def test_rolling_update_proceeds_from_the_last_pod_to_the_partition() -> None:
    async with a_cluster(a_node()) as cluster:
        strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}
        await cluster.create(STATEFUL_SETS, a_stateful_set("db", 4, updateStrategy=strategy))
        first = (await settle(cluster, "db", 4))["status"]["updateRevision"]
        steps = Steps(cluster)
        template = a_stateful_set("db", 4, image="app:2")["spec"]["template"]
        await cluster.patch(STATEFUL_SETS, "db", {"spec": {"template": template}})
        stateful_set = await cluster.wait_until(
            STATEFUL_SETS,
            "db",
            lambda found: found["status"].get("updatedReplicas") == 2 == found["status"]["availableReplicas"] - 2,
        )

        assert [step[:2] for step in steps.taken] == [
            (DELETED, "db-3"),
            (CREATED, "db-3"),
            (DELETED, "db-2"),
            (CREATED, "db-2"),
        ]
        assert min(ready for _, _, ready in steps.taken) >= 3
        assert stateful_set["status"]["currentRevision"] == first != stateful_set["status"]["updateRevision"]
        assert {p["metadata"]["name"]: image_of(p) for p in await cluster.list_all(PODS)} == {
            "db-0": "app:1", "db-1": "app:1", "db-2": "app:2", "db-3": "app:2",
        }  # fmt: skip

        await cluster.delete(PODS, "db-1", grace_s=0)
        lost = await cluster.wait_until(PODS, "db-1", lambda pod: condition_of(pod, "Ready").get("status") == "True")
        assert image_of(lost) == "app:1"  # below the partition the old revision stays

        await cluster.patch(STATEFUL_SETS, "db", {"spec": {"updateStrategy": {"rollingUpdate": {"partition": 0}}}})
        await settle(cluster, "db", 4)
        assert {image_of(p) for p in await cluster.list_all(PODS)} == {"app:2"}


async def test_on_delete_strategy_replaces_no_running_pod() -> None:
    async with a_cluster(a_node()) as cluster:
        await cluster.create(STATEFUL_SETS, a_stateful_set("db", 2, updateStrategy={"type": "OnDelete"}))
        await cluster.wait_until(STATEFUL_SETS, "db", lambda found: found["status"].get("readyReplicas") == 2)
        template = a_stateful_set("db", 2, image="app:2")["spec"]["template"]
        await cluster.patch(STATEFUL_SETS, "db", {"spec": {"template": template}})
        await asyncio.sleep(30)
        assert {image_of(p) for p in await cluster.list_all(PODS)} == {"app:1"}

        await cluster.delete(PODS, "db-1", grace_s=0)
        await cluster.wait_until(PODS, "db-1", lambda pod: image_of(pod) == "app:2")


async def test_rollback_renumbers_the_old_revision_and_drops_the_oldest() -> None:
    async with a_cluster(a_node()) as cluster:
        await cluster.create(STATEFUL_SETS, a_stateful_set("db", 1, revisionHistoryLimit=1))
        await settle(cluster, "db", 1)
        for image in ("app:2", "app:1", "app:3", "app:4"):
            template = a_stateful_set("db", 1, image=image)["spec"]["template"]
            await cluster.patch(STATEFUL_SETS, "db", {"spec": {"template": template}})
            await settle(cluster, "db", 1)
        revisions = await cluster.wait_listed(CONTROLLER_REVISIONS, lambda found: len(found) == 2)

        assert sorted(r["revision"] for r in revisions) == [4, 5]

        previous = min(revisions, key=lambda revision: int(revision["revision"]))["data"]
        answer = await cluster.client.patch(
            STATEFUL_SETS, "default", "db", body=previous, content_type=STRATEGIC_MERGE_PATCH
        )  # as `kubectl rollout undo` does
        assert answer.expect().document["spec"]["template"]["spec"]["containers"][0]["image"] == "app:3"
        await settle(cluster, "db", 1)
        assert sorted(r["revision"] for r in await cluster.list_all(CONTROLLER_REVISIONS)) == [5, 6]


async def test_every_pod_has_its_claims_and_they_outlive_it() -> None:
    async with a_cluster(a_node()) as cluster:
        await cluster.create(STATEFUL_SETS, a_stateful_set("db", 2, claims=("data", "log")))
        pods = await cluster.wait_listed(PODS, lambda pods: len(pods) >= 1)
        claims = await cluster.wait_listed(CLAIMS, lambda claims: len(claims) >= 2)

        volumes = {v["name"]: v["persistentVolumeClaim"]["claimName"] for v in pods[0]["spec"]["volumes"]}
        assert volumes == {"data": "data-db-0", "log": "log-db-0"}
        assert names(claims)[:1] == ["data-db-0"]
        assert claims[0]["metadata"]["labels"] == {"app": "db"}
        assert "ownerReferences" not in claims[0]["metadata"]

        await cluster.delete(STATEFUL_SETS, "db", propagation="Background")
        await cluster.wait_listed(PODS, lambda pods: not pods)
        assert {"data-db-0", "log-db-0"} <= set(names(await cluster.list_all(CLAIMS)))


@pytest.mark.parametrize(
    ("when_scaled", "when_deleted", "after_scaling", "after_deletion"),
    [
        ("Retain", "Retain", {0, 1, 2}, {0, 1, 2}),
        ("Delete", "Retain", {0}, {0}),
        ("Retain", "Delete", {0, 1, 2}, set()),
        ("Delete", "Delete", {0}, set()),
    ],
)
async def test_claims_follow_the_retention_policy(
    when_scaled: str, when_deleted: str, after_scaling: set[int], after_deletion: set[int]
) -> None:
    def claims(ordinals: set[int]) -> Callable[[list[Document]], bool]:
        return lambda found: names(found) == [f"data-db-{n}" for n in sorted(ordinals)]

    async with a_cluster(a_node()) as cluster:
        policy = {"whenScaled": when_scaled, "whenDeleted": when_deleted}
        stateful_set = a_stateful_set("db", 3, claims=("data",), persistentVolumeClaimRetentionPolicy=policy)
        await cluster.create(STATEFUL_SETS, stateful_set)
        await settle(cluster, "db", 3)
        await asyncio.sleep(1)
        await cluster.patch(STATEFUL_SETS, "db", {"spec": {"replicas": 1}})
        await settle(cluster, "db", 1)
        await cluster.wait_listed(CLAIMS, claims(after_scaling))
        await asyncio.sleep(30)
        assert claims(after_scaling)(await cluster.list_all(CLAIMS))

        await cluster.patch(STATEFUL_SETS, "db", {"spec": {"replicas": 2}})  # a claim that went is made anew
        await settle(cluster, "db", 2)
        assert "data-db-1" in names(await cluster.list_all(CLAIMS))

        await cluster.delete(STATEFUL_SETS, "db", propagation="Background")
        await cluster.wait_listed(PODS, lambda pods: not pods)
        await cluster.wait_listed(CLAIMS, claims(after_deletion | ({1} if when_deleted == "Retain" else set())))


async def test_orphaned_pods_are_adopted_and_a_foreign_pod_blocks_its_name() -> None:
    async with a_cluster(a_node()) as cluster:
        await cluster.create(STATEFUL_SETS, a_stateful_set("db", 2))
        await settle(cluster, "db", 2)
        before = {p["metadata"]["uid"] for p in await cluster.list_all(PODS)}
        await cluster.delete(STATEFUL_SETS, "db", propagation="Orphan")
        await cluster.wait_gone(STATEFUL_SETS, "db")
        stranger = {"metadata": {"name": "db-2", "namespace": "default"}, "spec": a_pod_spec()}
        await cluster.create(PODS, stranger)
        made = await cluster.create(STATEFUL_SETS, a_stateful_set("db", 3))
        await cluster.wait_until(STATEFUL_SETS, "db", lambda found: found["status"].get("readyReplicas") == 2)

        owned = [p for p in await cluster.list_all(PODS) if p["metadata"].get("ownerReferences")]
        assert {p["metadata"]["ownerReferences"][0]["uid"] for p in owned} == {made["metadata"]["uid"]}
        assert {p["metadata"]["uid"] for p in owned} == before

        await cluster.delete(PODS, "db-2", grace_s=0)
        await settle(cluster, "db", 3)


async def test_stateful_set_writes_events() -> None:
    async with a_cluster(a_node()) as cluster:
        await cluster.create(STATEFUL_SETS, a_stateful_set("db", 1, claims=("data",)))
        await settle(cluster, "db", 1)
        await cluster.patch(STATEFUL_SETS, "db", {"spec": {"replicas": 0}})
        await settle(cluster, "db", 0)
        events = await cluster.wait_listed(
            EVENTS, lambda events: len([e for e in events if e["involvedObject"]["kind"] == "StatefulSet"]) == 3
        )

        told = {(e["reason"], e["message"]) for e in events if e["involvedObject"]["kind"] == "StatefulSet"}
        assert told == {
            ("SuccessfulCreate", "Create Claim data-db-0 Pod db-0 in StatefulSet db success"),
            ("SuccessfulCreate", "Create Pod db-0 in StatefulSet db successful"),
            ("SuccessfulDelete", "Delete Pod db-0 in StatefulSet db successful"),
        }

"""What Deployments, ReplicaSets and Jobs become, in process and on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest

from multisched.cluster.api.server import Answer
from multisched.cluster.base.request import ApiRequest
from multisched.cluster.client.object_client import DEPLOYMENTS, EVENTS, JOBS, PODS, REPLICA_SETS, Document
from multisched.cluster.controllers.events import BURST_PER_OBJECT
from multisched.cluster.kubelet.stages_builtin import CHAOS_LABEL
from multisched.model.api_time import parse_timestamp
from multisched.model.wire import Response
from tests.unit.cluster.cluster_kit import (
    Fleet,
    a_cluster,
    a_deployment,
    a_job,
    a_node,
    a_pod,
    a_replica_set,
    condition_of,
    phases,
)

pytestmark = pytest.mark.looptime

FAILING = {CHAOS_LABEL: "container-failed"}


def has_rolled_out(replicas: int) -> Callable[[Document], bool]:
    """As `kubectl rollout status` judges."""

    def holds(deployment: Document) -> bool:
        status = deployment.get("status") or {}
        return bool(
            status.get("observedGeneration") == deployment["metadata"]["generation"]
            and status.get("updatedReplicas", 0) == replicas
            and status.get("replicas", 0) == replicas
            and status.get("availableReplicas", 0) == replicas
        )

    return holds


async def roll_out(cluster: Fleet, name: str, replicas: int) -> Document:
    return await cluster.wait_until(DEPLOYMENTS, name, has_rolled_out(replicas))


class PodExtremes:
    """Watches how many pods of a label there are, and how few of them are Ready, at every change."""

    def __init__(self, cluster: Fleet) -> None:
        self._cluster = cluster
        self.most = 0
        self.fewest_ready = 10**6

    def before(self, request: ApiRequest) -> Response | None:
        return None

    def after(self, request: ApiRequest, answer: Answer) -> Answer:
        stored = self._cluster.server.store.collection("pods").objects.values()
        pods = [entry.document() for entry in stored]
        living = [p for p in pods if "deletionTimestamp" not in p["metadata"]]
        self.most = max(self.most, len(living))
        ready = sum(condition_of(p, "Ready").get("status") == "True" for p in living)
        self.fewest_ready = min(self.fewest_ready, ready)
        return answer


async def test_a_replica_set_keeps_its_number_of_pods() -> None:
    async with a_cluster(a_node()) as cluster:
        await cluster.create(REPLICA_SETS, a_replica_set("web", 5))
        await cluster.wait_until(REPLICA_SETS, "web", lambda rs: rs["status"].get("readyReplicas") == 5)
        lost = (await cluster.list_all(PODS))[0]["metadata"]["name"]
        await cluster.delete(PODS, lost, grace_s=0)

        pods = await cluster.wait_listed(PODS, lambda pods: phases(pods) == ["Running"] * 5)

        assert lost not in {p["metadata"]["name"] for p in pods}
        assert all(p["metadata"]["ownerReferences"][0]["kind"] == "ReplicaSet" for p in pods)


async def test_replica_set_deletes_unassigned_pods_first() -> None:
    async with a_cluster(a_node()) as cluster:
        await cluster.create(REPLICA_SETS, a_replica_set("web", 6, node=""))
        pods = await cluster.wait_listed(PODS, lambda pods: len(pods) == 6)
        bound = [p["metadata"]["name"] for p in pods[2:5]]
        for name in bound:
            await cluster.bind(name, "n")
        await cluster.wait_until(REPLICA_SETS, "web", lambda rs: rs["status"].get("readyReplicas") == 3)

        await cluster.patch(REPLICA_SETS, "web", {"spec": {"replicas": 3}})
        left = await cluster.wait_listed(PODS, lambda pods: len(pods) == 3)

        assert sorted(p["metadata"]["name"] for p in left) == sorted(bound)


async def test_large_replica_set_reaches_its_size_despite_refused_creates() -> None:
    class RefuseEveryThirdCreate:
        seen = 0

        def before(self, request: ApiRequest) -> Response | None:
            if request.method != "POST" or not request.path.endswith("/pods"):
                return None
            self.seen += 1
            return Response(429, b"{}", {"retry-after": "1"}) if self.seen % 3 == 0 else None

        def after(self, request: ApiRequest, answer: Answer) -> Answer:
            return answer

    async with a_cluster(a_node()) as cluster:
        cluster.server.interceptors.append(RefuseEveryThirdCreate())
        await cluster.create(REPLICA_SETS, a_replica_set("web", 40))
        await cluster.wait_until(REPLICA_SETS, "web", lambda rs: rs["status"].get("readyReplicas") == 40)
        await asyncio.sleep(60)

        assert len(await cluster.list_all(PODS)) == 40


async def test_pod_deleted_before_a_relist_is_replaced() -> None:
    async with a_cluster(a_node()) as cluster:
        await cluster.create(REPLICA_SETS, a_replica_set("web", 1))
        await cluster.wait_until(REPLICA_SETS, "web", lambda rs: rs["status"].get("readyReplicas") == 1)
        first = (await cluster.list_all(PODS))[0]["metadata"]["name"]
        await cluster.patch(REPLICA_SETS, "web", {"spec": {"replicas": 2}})
        pods = await cluster.wait_listed(PODS, lambda pods: len(pods) == 2)
        [second] = {p["metadata"]["name"] for p in pods} - {first}

        cluster.server.drop_watches()  # the cache may have seen neither the second pod nor its end
        for name in (first, second):
            await cluster.delete(PODS, name, grace_s=0)
        cluster.server.compact()

        pods = await cluster.wait_listed(PODS, lambda pods: phases(pods) == ["Running"] * 2)
        assert {p["metadata"]["name"] for p in pods}.isdisjoint({first, second})


async def test_rolling_update_stays_within_surge_and_unavailability() -> None:
    async with a_cluster(a_node()) as cluster:
        await cluster.create(DEPLOYMENTS, a_deployment("web", 8))
        await roll_out(cluster, "web", 8)
        water = PodExtremes(cluster)
        cluster.server.interceptors.append(water)

        template = a_deployment("web", 8, image="registry.k8s.io/pause:3.11")["spec"]["template"]
        await cluster.patch(DEPLOYMENTS, "web", {"spec": {"template": template}})
        deployment = await roll_out(cluster, "web", 8)
        pods = await cluster.wait_listed(PODS, lambda pods: len(pods) == 8)

        assert {p["spec"]["containers"][0]["image"] for p in pods} == {"registry.k8s.io/pause:3.11"}
        assert water.most <= 10  # 25 % surge
        assert water.fewest_ready >= 6  # 25 % unavailable
        assert deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "2"
        assert condition_of(deployment, "Progressing")["reason"] == "NewReplicaSetAvailable"
        sizes = sorted(rs["spec"]["replicas"] for rs in await cluster.list_all(REPLICA_SETS))
        assert sizes == [0, 8]


async def test_rollback_reuses_the_old_replica_set() -> None:
    async with a_cluster(a_node()) as cluster:
        old, new = (a_deployment("web", 3, image=f"registry.k8s.io/pause:{v}") for v in ("1", "2"))
        await cluster.create(DEPLOYMENTS, old)
        await roll_out(cluster, "web", 3)
        for manifest in (new, old):
            await cluster.patch(DEPLOYMENTS, "web", {"spec": {"template": manifest["spec"]["template"]}})
            deployment = await roll_out(cluster, "web", 3)

        assert len(await cluster.list_all(REPLICA_SETS)) == 2
        assert deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "3"


async def test_recreate_deletes_all_old_pods_before_it_creates_new_ones() -> None:
    async with a_cluster(a_node()) as cluster:
        await cluster.create(DEPLOYMENTS, a_deployment("web", 4, strategy={"type": "Recreate"}))
        await roll_out(cluster, "web", 4)
        water = PodExtremes(cluster)
        cluster.server.interceptors.append(water)
        template = a_deployment("web", 4, image="registry.k8s.io/pause:3.11")["spec"]["template"]
        await cluster.patch(DEPLOYMENTS, "web", {"spec": {"template": template}})
        await roll_out(cluster, "web", 4)

        assert water.fewest_ready == 0
        assert water.most == 4


async def test_old_replica_sets_beyond_the_history_limit_are_deleted() -> None:
    async with a_cluster(a_node()) as cluster:
        await cluster.create(DEPLOYMENTS, a_deployment("web", 1, revisionHistoryLimit=1))
        for version in range(4):
            template = a_deployment("web", 1, image=f"registry.k8s.io/pause:{version}")["spec"]["template"]
            await cluster.patch(DEPLOYMENTS, "web", {"spec": {"template": template}})
            await roll_out(cluster, "web", 1)

        await cluster.wait_listed(REPLICA_SETS, lambda sets: len(sets) == 2)


async def test_paused_deployment_keeps_its_template_but_can_be_scaled() -> None:
    async with a_cluster(a_node()) as cluster:
        await cluster.create(DEPLOYMENTS, a_deployment("web", 2))
        await roll_out(cluster, "web", 2)
        template = a_deployment("web", 2, image="registry.k8s.io/pause:3.11")["spec"]["template"]
        await cluster.patch(DEPLOYMENTS, "web", {"spec": {"paused": True, "template": template}})
        await cluster.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 4}})
        pods = await cluster.wait_listed(PODS, lambda pods: phases(pods) == ["Running"] * 4)
        assert {p["spec"]["containers"][0]["image"] for p in pods} == {"registry.k8s.io/pause:3.10"}

        await cluster.patch(DEPLOYMENTS, "web", {"spec": {"paused": False}})
        await roll_out(cluster, "web", 4)


async def test_a_deployment_whose_pods_never_start_misses_its_progress_deadline() -> None:
    async with a_cluster() as cluster:
        await cluster.create(DEPLOYMENTS, a_deployment("web", 1, progressDeadlineSeconds=30))
        deployment = await cluster.wait_until(
            DEPLOYMENTS, "web", lambda d: condition_of(d, "Progressing").get("status") == "False"
        )

        assert condition_of(deployment, "Progressing")["reason"] == "ProgressDeadlineExceeded"
        assert 30 <= cluster.clock.monotonic() <= 40


async def test_a_job_runs_no_more_than_its_parallelism_and_completes() -> None:
    async with a_cluster(a_node()) as cluster:
        water = PodExtremes(cluster)
        cluster.server.interceptors.append(water)
        await cluster.create(JOBS, a_job("batch", parallelism=3, completions=10))
        job = await cluster.wait_until(JOBS, "batch", lambda j: condition_of(j, "Complete"))

        assert job["status"]["succeeded"] == 10
        assert job["status"].get("active", 0) == 0
        assert phases(await cluster.list_all(PODS)) == ["Succeeded"] * 10
        started, ended = (parse_timestamp(job["status"][f]) for f in ("startTime", "completionTime"))
        assert timedelta(seconds=4) <= ended - started <= timedelta(seconds=8)  # four waves of one second


async def test_job_fails_at_its_backoff_limit_with_growing_delays() -> None:
    async with a_cluster(a_node()) as cluster:
        await cluster.create(JOBS, a_job("bad", labels=FAILING, parallelism=1, completions=1, backoffLimit=2))
        job = await cluster.wait_until(JOBS, "bad", lambda j: condition_of(j, "Failed"))

        assert condition_of(job, "Failed")["reason"] == "BackoffLimitExceeded"
        assert job["status"]["failed"] == 3
        created = sorted(p["metadata"]["creationTimestamp"] for p in await cluster.list_all(PODS))
        first, second, third = (parse_timestamp(text) for text in created)
        assert timedelta(seconds=9) <= second - first <= timedelta(seconds=12)
        assert timedelta(seconds=19) <= third - second <= timedelta(seconds=22)


async def test_suspended_job_deletes_its_pods_and_recreates_them_when_resumed() -> None:
    async with a_cluster(a_node()) as cluster:
        slow = {"multisched.io/run-seconds": "20"}
        await cluster.create(JOBS, a_job("batch", annotations=slow, parallelism=4, completions=4))
        await cluster.wait_until(JOBS, "batch", lambda j: j["status"].get("active") == 4)
        await cluster.patch(JOBS, "batch", {"spec": {"suspend": True}})
        await cluster.wait_listed(PODS, lambda pods: not pods)
        job = await cluster.wait_until(JOBS, "batch", lambda j: condition_of(j, "Suspended").get("status") == "True")
        assert "startTime" not in job["status"]

        await cluster.patch(JOBS, "batch", {"spec": {"suspend": False}})
        job = await cluster.wait_until(JOBS, "batch", lambda j: condition_of(j, "Complete"))

        assert job["status"]["succeeded"] == 4
        assert condition_of(job, "Suspended")["status"] == "False"


async def test_job_past_its_deadline_fails_and_its_pods_are_deleted() -> None:
    async with a_cluster(a_node()) as cluster:
        slow = {"multisched.io/run-seconds": "500"}
        await cluster.create(JOBS, a_job("slow", annotations=slow, activeDeadlineSeconds=15))
        job = await cluster.wait_until(JOBS, "slow", lambda j: condition_of(j, "Failed"))

        assert condition_of(job, "Failed")["reason"] == "DeadlineExceeded"
        await cluster.wait_listed(PODS, lambda pods: not pods)


async def test_an_indexed_job_runs_each_index_once_to_success() -> None:
    async with a_cluster(a_node()) as cluster:
        await cluster.create(JOBS, a_job("parts", completionMode="Indexed", parallelism=2, completions=5))
        job = await cluster.wait_until(JOBS, "parts", lambda j: condition_of(j, "Complete"))

        index = "batch.kubernetes.io/job-completion-index"
        pods = await cluster.list_all(PODS)
        assert sorted(p["metadata"]["annotations"][index] for p in pods) == ["0", "1", "2", "3", "4"]
        assert job["status"]["completedIndexes"] == "0-4"


async def test_finished_job_is_deleted_after_its_time_to_live() -> None:
    async with a_cluster(a_node()) as cluster:
        await cluster.create(JOBS, a_job("brief", ttlSecondsAfterFinished=30))
        await cluster.wait_until(JOBS, "brief", lambda j: condition_of(j, "Complete"))
        ended = cluster.clock.monotonic()
        await cluster.wait_gone(JOBS, "brief")

        assert 29 <= cluster.clock.monotonic() - ended <= 33


def events_about(events: list[Document], kind: str) -> list[tuple[str, str]]:
    return [(e["reason"], e["message"]) for e in events if e["involvedObject"]["kind"] == kind]


async def test_controllers_write_events() -> None:
    async with a_cluster(a_node()) as cluster:
        await cluster.create(DEPLOYMENTS, a_deployment("web", 1))
        await roll_out(cluster, "web", 1)
        [replica_set] = await cluster.list_all(REPLICA_SETS)
        await cluster.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 0}})
        await cluster.wait_until(DEPLOYMENTS, "web", lambda found: not found["status"].get("replicas"))
        await cluster.create(JOBS, a_job("done"))
        events = await cluster.wait_listed(EVENTS, lambda events: len(events_about(events, "Job")) == 2)

        name = replica_set["metadata"]["name"]
        assert set(events_about(events, "Deployment")) == {
            ("ScalingReplicaSet", f"Scaled up replica set {name} from 0 to 1"),
            ("ScalingReplicaSet", f"Scaled down replica set {name} from 1 to 0"),
        }
        assert {reason for reason, _ in events_about(events, "ReplicaSet")} == {"SuccessfulCreate", "SuccessfulDelete"}
        assert ("Completed", "Job completed") in events_about(events, "Job")


async def test_number_of_events_per_object_is_limited() -> None:
    async with a_cluster(a_node()) as cluster:
        await cluster.create(REPLICA_SETS, a_replica_set("web", 3 * BURST_PER_OBJECT))
        await cluster.wait_until(
            REPLICA_SETS, "web", lambda rs: rs["status"].get("readyReplicas") == 3 * BURST_PER_OBJECT
        )
        await asyncio.sleep(10)
        assert len(events_about(await cluster.list_all(EVENTS), "ReplicaSet")) == BURST_PER_OBJECT


async def test_changed_annotations_raise_the_generation_of_deployments_only() -> None:
    async with a_cluster(a_node()) as cluster:
        await cluster.create(DEPLOYMENTS, a_deployment("web", 1))
        deployment = await roll_out(cluster, "web", 1)
        assert deployment["metadata"]["generation"] == 1  # the controller's own annotation is no change of a user's
        note = {"metadata": {"annotations": {"note": "x"}}}
        assert (await cluster.patch(DEPLOYMENTS, "web", note))["metadata"]["generation"] == 2
        [replica_set] = await cluster.list_all(REPLICA_SETS)
        before, name = replica_set["metadata"]["generation"], replica_set["metadata"]["name"]
        assert (await cluster.patch(REPLICA_SETS, name, note))["metadata"]["generation"] == before


async def test_replica_set_adopts_matching_live_pods_without_a_controller() -> None:
    async with a_cluster(a_node()) as cluster:
        labels = {"labels": {"app": "web"}}
        theirs = {"apiVersion": "v1", "kind": "Owner", "name": "o", "uid": "elsewhere", "controller": True}
        await cluster.create(PODS, a_pod("orphan", metadata=labels))
        await cluster.create(PODS, a_pod("other", metadata={"labels": {"app": "other"}}))
        await cluster.create(PODS, a_pod("owned", metadata={**labels, "ownerReferences": [theirs]}))
        await cluster.create(PODS, a_pod("ended", node="", metadata=labels))
        await cluster.patch(PODS, "ended", {"status": {"phase": "Failed"}}, subresource="status")

        made = await cluster.create(REPLICA_SETS, a_replica_set("web", 3))
        await cluster.wait_until(REPLICA_SETS, "web", lambda found: found["status"].get("readyReplicas") == 3)

        owners = {
            pod["metadata"]["name"]: reference["uid"]
            for pod in await cluster.list_all(PODS)
            for reference in pod["metadata"].get("ownerReferences") or ()
        }
        assert owners.pop("owned") == "elsewhere"
        assert owners.pop("orphan") == made["metadata"]["uid"]
        assert set(owners.values()) == {made["metadata"]["uid"]}
        assert len(owners) == 2
        assert not owners.keys() & {"other", "ended"}


async def test_terminating_owner_adopts_no_pods() -> None:
    async with a_cluster(a_node()) as cluster:
        made = a_replica_set("web", 1)
        made["metadata"]["finalizers"] = ["tests.example.com/hold"]
        await cluster.create(REPLICA_SETS, made)
        await cluster.wait_until(REPLICA_SETS, "web", lambda found: found["status"].get("readyReplicas") == 1)
        await cluster.delete(REPLICA_SETS, "web")
        await cluster.create(PODS, a_pod("orphan", metadata={"labels": {"app": "web"}}))
        await asyncio.sleep(5.0)
        orphan = await cluster.get(PODS, "orphan")
        assert orphan is not None
        assert "ownerReferences" not in orphan["metadata"]


async def test_pod_with_changed_labels_is_released_and_replaced() -> None:
    async with a_cluster(a_node()) as cluster:
        await cluster.create(REPLICA_SETS, a_replica_set("web", 2))
        await cluster.wait_until(REPLICA_SETS, "web", lambda found: found["status"].get("readyReplicas") == 2)
        sick, *_ = [pod["metadata"]["name"] for pod in await cluster.list_all(PODS)]
        await cluster.patch(PODS, sick, {"metadata": {"labels": {"app": "quarantine"}}})
        freed = await cluster.wait_until(PODS, sick, lambda pod: not pod["metadata"].get("ownerReferences"))
        assert freed["metadata"]["labels"]["app"] == "quarantine"
        await cluster.wait_listed(PODS, lambda pods: len(pods) == 3)
        await cluster.wait_until(REPLICA_SETS, "web", lambda found: found["status"].get("readyReplicas") == 2)


async def test_job_adopts_the_pods_of_its_selector() -> None:
    async with a_cluster(a_node()) as cluster:
        await cluster.create(PODS, a_pod("orphan", metadata={"labels": {"run": "it"}}, restartPolicy="Never"))
        selector = {"matchLabels": {"run": "it"}}
        job = a_job("it", labels={"run": "it"}, manualSelector=True, selector=selector, completions=1, parallelism=1)
        made = await cluster.create(JOBS, job)
        found = await cluster.wait_until(PODS, "orphan", lambda pod: pod["metadata"].get("ownerReferences"))
        assert found["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]
        await asyncio.sleep(2.0)
        assert [pod["metadata"]["name"] for pod in await cluster.list_all(PODS)] == ["orphan"]

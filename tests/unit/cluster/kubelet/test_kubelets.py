"""What fake kubelets do to pods and nodes, in process and on virtual time."""

from __future__ import annotations

import asyncio
from random import Random
from typing import cast

import pytest

from multisched.cluster.api.server import Answer
from multisched.cluster.base.request import ApiRequest
from multisched.cluster.client.object_client import LEASES, NODES, PODS
from multisched.cluster.kubelet.kubelets import Kubelets
from multisched.cluster.kubelet.stages_builtin import builtin_stages
from multisched.model.api_time import parse_timestamp
from multisched.model.wire import Response
from tests.unit.cluster.cluster_kit import Cluster, a_cluster, a_node, a_pod, condition_of

pytestmark = pytest.mark.looptime


async def test_a_bound_pod_runs_with_addresses_conditions_and_container_states() -> None:
    async with a_cluster(a_node(), controllers=False) as cluster:
        await cluster.create(PODS, a_pod("p", node=""))
        await asyncio.sleep(5)
        unbound = await cluster.get(PODS, "p")
        assert unbound is not None
        assert unbound["status"]["phase"] == "Pending"

        await cluster.bind("p", "n")
        pod = await cluster.wait_until(PODS, "p", lambda p: p["status"]["phase"] == "Running")

        assert condition_of(pod, "Ready")["status"] == "True"
        assert condition_of(pod, "PodScheduled")["status"] == "True"
        assert pod["status"]["podIP"].startswith("10.")
        assert pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
        assert cluster.kubelets.statistics().started == 1


async def test_a_pod_beyond_allocatable_is_failed_as_out_of_cpu_and_counted() -> None:
    async with a_cluster(a_node(cpu="1"), controllers=False) as cluster:
        for name in ("first", "second"):
            await cluster.create(PODS, a_pod(name, cpu="600m", node=""))
            await cluster.bind(name, "n")
        pods = await cluster.wait_listed(PODS, lambda pods: all(p["status"]["phase"] != "Pending" for p in pods))

        by_name = {p["metadata"]["name"]: p["status"] for p in pods}
        assert by_name["first"]["phase"] == "Running"
        assert by_name["second"]["phase"] == "Failed"
        assert by_name["second"]["reason"] == "OutOfcpu"
        assert "requested: 600, used: 600, capacity: 1000" in by_name["second"]["message"]
        assert cluster.kubelets.statistics().rejected == {"OutOfcpu": 1}


async def test_pods_beyond_the_pod_limit_of_a_node_are_rejected() -> None:
    async with a_cluster(a_node(pods="2"), controllers=False) as cluster:
        for name in ("a", "b", "c"):
            await cluster.create(PODS, a_pod(name))
        await cluster.wait_listed(PODS, lambda pods: all(p["status"]["phase"] != "Pending" for p in pods))

        assert cluster.kubelets.statistics().rejected == {"OutOfpods": 1}


async def test_resources_of_a_finished_pod_are_reused() -> None:
    async with a_cluster(a_node(cpu="1"), controllers=False) as cluster:
        await cluster.create(
            PODS,
            a_pod(
                "short",
                cpu="1",
                metadata={"annotations": {"multisched.io/run-seconds": "3"}},
                restartPolicy="Never",
            ),
        )
        await cluster.wait_until(PODS, "short", lambda p: p["status"]["phase"] == "Succeeded")
        await cluster.create(PODS, a_pod("next", cpu="1"))
        await cluster.wait_until(PODS, "next", lambda p: p["status"]["phase"] == "Running")

        assert cluster.kubelets.statistics().rejected == {}


async def test_a_node_that_shrinks_below_its_pods_is_reported_as_overcommitted() -> None:
    async with a_cluster(a_node(cpu="4"), controllers=False) as cluster:
        await cluster.create(PODS, a_pod("p", cpu="3"))
        await cluster.wait_until(PODS, "p", lambda p: p["status"]["phase"] == "Running")
        assert cluster.kubelets.statistics().overcommitted == 0

        await cluster.patch(NODES, "n", {"status": {"allocatable": {"cpu": "2"}}}, subresource="status")
        await asyncio.sleep(1)

        assert cluster.kubelets.statistics().overcommitted == 1


async def test_deleted_running_pod_ends_within_its_grace_period() -> None:
    async with a_cluster(a_node(), controllers=False, stages=builtin_stages("general")) as cluster:
        await cluster.create(PODS, a_pod("p", terminationGracePeriodSeconds=4))
        await cluster.wait_until(PODS, "p", lambda p: p["status"]["phase"] == "Running")
        began = cluster.clock.monotonic()
        await cluster.delete(PODS, "p")
        marked = await cluster.get(PODS, "p")
        assert marked is not None
        assert marked["metadata"]["deletionGracePeriodSeconds"] == 4

        await cluster.wait_gone(PODS, "p")

        assert 1.0 <= cluster.clock.monotonic() - began <= 4.5
        assert cluster.kubelets.statistics().deleted == 1
        assert cluster.kubelets.statistics().pods == 0


async def test_pod_bound_before_its_node_exists_starts_after_the_node_is_created() -> None:
    async with a_cluster(controllers=False) as cluster:
        await cluster.create(PODS, a_pod("p", node="late"))
        await asyncio.sleep(5)
        assert cluster.kubelets.statistics().started == 0

        await cluster.create(NODES, a_node("late"))

        await cluster.wait_until(PODS, "p", lambda p: p["status"]["phase"] == "Running")


async def test_pods_deleted_before_a_relist_are_forgotten() -> None:
    async with a_cluster(a_node(cpu="1"), controllers=False) as cluster:
        await cluster.create(PODS, a_pod("old", cpu="1"))
        await cluster.wait_until(PODS, "old", lambda p: p["status"]["phase"] == "Running")

        cluster.server.drop_watches()  # while nobody watches: the old pod goes, and history with it
        await cluster.delete(PODS, "old", grace_s=0)
        cluster.server.compact()
        await cluster.create(PODS, a_pod("new", cpu="1"))
        await cluster.wait_until(PODS, "new", lambda p: p["status"]["phase"] == "Running")

        statistics = cluster.kubelets.statistics()
        assert statistics.relists == 2
        assert statistics.pods == 1
        assert statistics.rejected == {}


async def test_expired_watch_is_relisted_and_continues() -> None:
    async with a_cluster(a_node(), controllers=False) as cluster:
        for number in range(5):
            await cluster.create(PODS, a_pod(f"p{number}"))
            assert cluster.server.expire_watches() == 2 or number
        pods = await cluster.wait_listed(PODS, lambda pods: all(p["status"]["phase"] == "Running" for p in pods))

        assert len(pods) == 5
        assert cluster.kubelets.statistics().started == 5


async def test_nodes_become_ready_and_their_leases_are_renewed_every_ten_seconds() -> None:
    async with a_cluster(a_node(), a_node("m"), controllers=False) as cluster:
        node = await cluster.wait_until(NODES, "n", lambda n: condition_of(n, "Ready").get("status") == "True")
        assert node["status"]["nodeInfo"]["kubeletVersion"] == "v1.36.3"
        before = await cluster.wait_until(LEASES, "n", lambda _: True, "kube-node-lease")
        await asyncio.sleep(100)
        after = await cluster.get(LEASES, "n", "kube-node-lease")

        assert after is not None
        moved = parse_timestamp(after["spec"]["renewTime"]) - parse_timestamp(before["spec"]["renewTime"])
        assert 85 <= moved.total_seconds() <= 100
        assert 18 <= cluster.kubelets.statistics().lease_renewals <= 26


async def test_only_selected_nodes_are_simulated() -> None:
    cluster = Cluster(1)
    for node in (a_node("mine", played="yes"), a_node("other")):
        await cluster.create(NODES, node)
    kubelets = Kubelets(
        cluster.transport,
        clock=cluster.clock,
        rng=Random(1),
        stages=builtin_stages("fast"),
        node_selector="played=yes",
    )
    for name in ("mine", "other"):
        await cluster.create(PODS, a_pod(f"on-{name}", node=name))
    task = asyncio.create_task(kubelets.run())
    await cluster.wait_until(PODS, "on-mine", lambda p: p["status"]["phase"] == "Running")
    await asyncio.sleep(5)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    other = await cluster.get(PODS, "on-other")
    assert other is not None
    assert other["status"]["phase"] == "Pending"


class RefuseSome:
    """Answers 503 to every second status write of a pod, before or after it took effect."""

    def __init__(self, *, applied: bool) -> None:
        self.applied = applied
        self.seen = 0

    def _refuses(self, request: ApiRequest) -> bool:
        return request.method == "PATCH" and "/pods/" in request.path and self.seen % 2 == 1

    def before(self, request: ApiRequest) -> Response | None:
        self.seen += request.method == "PATCH" and "/pods/" in request.path
        return Response(503, b"{}") if not self.applied and self._refuses(request) else None

    def after(self, request: ApiRequest, answer: Answer) -> Answer:
        return Response(503, b"{}") if self.applied and self._refuses(request) else answer


@pytest.mark.parametrize("applied", [False, True])
async def test_refused_or_unanswered_status_writes_are_retried(applied: bool) -> None:
    async with a_cluster(a_node(), controllers=False) as cluster:
        cluster.server.interceptors.append(RefuseSome(applied=applied))
        for number in range(10):
            await cluster.create(PODS, a_pod(f"p{number}"))
        await cluster.wait_listed(PODS, lambda pods: all(p["status"]["phase"] == "Running" for p in pods))

        assert cluster.kubelets.statistics().rejected == {}


async def test_the_same_seed_gives_the_same_run() -> None:
    async def run() -> list[tuple[str, str, str]]:
        began = asyncio.get_running_loop().time()
        async with a_cluster(a_node(), controllers=False, stages=builtin_stages("chaos"), seed=7) as cluster:
            for number in range(20):
                await cluster.create(PODS, a_pod(f"p{number}"))
            await asyncio.sleep(30)
            pods = await cluster.list_all(PODS)
        offset = began

        def at(pod: dict[str, object]) -> str:
            started = parse_timestamp(str(cast(dict[str, object], pod["status"]).get("startTime")))
            return str(round(started.timestamp() - offset))

        return [(p["metadata"]["name"], p["status"]["phase"], at(p)) for p in pods]

    first = await run()
    assert {phase for _, phase, _ in first} == {"Running", "Failed"}
    assert [entry[:2] for entry in await run()] == [entry[:2] for entry in first]


@pytest.mark.parametrize(
    ("requests", "init", "needs_cpu"),
    [
        pytest.param(["1", "500m"], [], "1500m", id="containers add up"),
        pytest.param(["1"], [("2", None)], "2", id="an init container raises the peak"),
        pytest.param(["1"], [("500m", "Always"), ("1", None)], "1500m", id="a sidecar stays beside what follows"),
    ],
)
async def test_requests_are_counted_as_the_kubelet_does(
    requests: list[str], init: list[tuple[str, str | None]], needs_cpu: str
) -> None:
    def container(name: str, cpu: str, restart: str | None = None) -> dict[str, object]:
        made: dict[str, object] = {"name": name, "image": "i", "resources": {"requests": {"cpu": cpu}}}
        return {**made, "restartPolicy": restart} if restart else made

    spec = {
        "containers": [container(f"c{i}", cpu) for i, cpu in enumerate(requests)],
        "initContainers": [container(f"i{i}", cpu, restart) for i, (cpu, restart) in enumerate(init)],
        "nodeName": "exact",
    }
    async with a_cluster(a_node("exact", cpu=needs_cpu), a_node("small", cpu="1"), controllers=False) as cluster:
        await cluster.create(PODS, {"metadata": {"name": "fits"}, "spec": spec})
        await cluster.create(PODS, {"metadata": {"name": "not"}, "spec": {**spec, "nodeName": "small"}})

        await cluster.wait_until(PODS, "fits", lambda p: p["status"]["phase"] == "Running")
        await cluster.wait_until(PODS, "not", lambda p: p["status"].get("reason") == "OutOfcpu")

"""The client against the embedded API server: in process, and over TLS with a kubeconfig."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest

from multisched.client.binder import ApiBinder
from multisched.client.condition_writer import ApiConditionWriter
from multisched.client.event_sink import ApiEventSink
from multisched.client.lease import LeaseKeeper, LeaseSettings
from multisched.client.limits import WriteLimiter
from multisched.client.reflector import Reflector
from multisched.client.transport import connect
from multisched.cluster.embedded import EmbeddedCluster
from multisched.framework.ports import BindAnswer, BindRequest, Condition, Event, ObjectRef
from multisched.model.wire import Transport
from tests.unit.client.scripted import Mirror

PODS = "/api/v1/namespaces/default/pods"


class WallClock:
    """Real time: sockets are real here."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def now(self) -> datetime:
        return datetime.now(UTC)


@pytest.fixture(params=["in process", "over TLS"])
def is_tls(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "over TLS")


@asynccontextmanager
async def cluster_and_transport(is_tls: bool, folder: Path) -> AsyncIterator[tuple[EmbeddedCluster, Transport]]:
    async with EmbeddedCluster.start(WallClock()) as cluster:
        if not is_tls:
            yield cluster, cluster.transport()
            return
        kubeconfig = folder / "kubeconfig"
        cluster.write_kubeconfig(kubeconfig)
        async with connect(kubeconfig) as transport:
            yield cluster, transport


async def create_pod(transport: Transport, name: str, **spec: Any) -> str:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "i"}], **spec},
    }
    response = await transport.request("POST", PODS, body=orjson.dumps(pod))
    assert response.status == 201, response.body
    uid = orjson.loads(response.body)["metadata"]["uid"]
    assert isinstance(uid, str)
    return uid


async def create_node(transport: Transport, name: str) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
    assert (await transport.request("POST", "/api/v1/nodes", body=orjson.dumps(node))).status == 201


@asynccontextmanager
async def reflecting(transport: Transport, page_items: int = 3) -> AsyncIterator[tuple[Reflector, Mirror]]:
    mirror = Mirror()
    rng, clock = random.Random(1), WallClock()
    reflector = Reflector(transport, "/api/v1/pods", handler=mirror, clock=clock, rng=rng, page_items=page_items)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(reflector.run())
        try:
            await reflector.wait_synced()
            yield reflector, mirror
        finally:
            task.cancel()


async def settle(mirror: Mirror, expected: set[str]) -> None:
    """Until the mirror has exactly these keys; pytest's own limit ends it otherwise."""
    async with asyncio.timeout(20):
        while set(mirror.objects) != expected:  # noqa: ASYNC110 -- the mirror is written by a callback
            await asyncio.sleep(0.01)


async def test_a_reflector_follows_the_cluster_through_drops_expiries_and_deletions(
    is_tls: bool, tmp_path: Path
) -> None:
    async with cluster_and_transport(is_tls, tmp_path) as (cluster, transport):
        for number in range(10):
            await create_pod(transport, f"p{number}")
        async with reflecting(transport) as (reflector, mirror):
            keys = {f"default/p{number}" for number in range(10)}
            assert set(mirror.objects) == keys
            await create_pod(transport, "late")
            await settle(mirror, keys | {"default/late"})

            cluster.server.drop_watches()
            await transport.request("DELETE", f"{PODS}/late")
            await settle(mirror, keys)
            assert reflector.statistics().lists == 1

            cluster.server.expire_watches()
            await transport.request("DELETE", f"{PODS}/p0")
            await settle(mirror, keys - {"default/p0"})
            listed = orjson.loads((await transport.request("GET", "/api/v1/pods")).body)["items"]
            assert mirror.objects == {
                f"default/{pod['metadata']['name']}": pod["metadata"]["resourceVersion"] for pod in listed
            }


async def test_each_bind_answer_means_what_the_pod_says(is_tls: bool, tmp_path: Path) -> None:
    async with cluster_and_transport(is_tls, tmp_path) as (_, transport):
        await create_node(transport, "n1")
        uid = await create_pod(transport, "a")
        gated = await create_pod(transport, "gated", schedulingGates=[{"name": "g"}])
        binder = ApiBinder(transport, WriteLimiter(WallClock()))
        request = BindRequest("default", "a", uid, "n1", {"multisched.io/score": "97"})

        async def answer_to(bind: BindRequest) -> BindAnswer:
            return (await binder.post(bind, timeout_s=5)).answer

        assert await answer_to(replace(request, uid="another")) is BindAnswer.CONFLICT
        assert await answer_to(replace(request, name="nope")) is BindAnswer.NOT_FOUND
        assert await answer_to(replace(request, name="gated", uid=gated)) is BindAnswer.CONFLICT
        assert await answer_to(request) is BindAnswer.CREATED
        assert await answer_to(request) is BindAnswer.CONFLICT
        truth = await binder.read("default", "a", timeout_s=5)
        assert truth is not None
        assert (truth.uid, truth.node, truth.is_gated, truth.is_deleting) == (uid, "n1", False, False)
        pod = orjson.loads((await transport.request("GET", f"{PODS}/a")).body)
        assert pod["metadata"]["annotations"]["multisched.io/score"] == "97"
        assert (await binder.read("default", "nope", timeout_s=5)) is None
        gated_truth = await binder.read("default", "gated", timeout_s=5)
        assert gated_truth is not None
        assert gated_truth.is_gated


async def test_two_keepers_hand_a_lease_over(is_tls: bool, tmp_path: Path) -> None:
    async with cluster_and_transport(is_tls, tmp_path) as (_, transport):
        settings = LeaseSettings(duration_s=2, renew_deadline_s=1, retry_period_s=0.2, bind_deadline_s=0.5)
        keepers = [
            LeaseKeeper(
                transport,
                namespace="kube-system",
                name="multisched-job",
                identity=identity,
                clock=WallClock(),
                rng=random.Random(identity),
                settings=settings,
            )
            for identity in ("first", "second")
        ]
        async with asyncio.TaskGroup() as group:
            group.create_task(keepers[0].run())
            await keepers[0].wait_held()
            group.create_task(keepers[1].run())
            await asyncio.sleep(1.5)
            assert [keeper.may_bind() for keeper in keepers] == [True, False]
            await keepers[0].release()
            await keepers[1].wait_held()
            assert [keeper.may_bind() for keeper in keepers] == [False, True]
            assert not keepers[1].acquired_after_expiry
            await keepers[1].release()
        path = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/multisched-job"
        lease = orjson.loads((await transport.request("GET", path)).body)
        assert lease["spec"].get("holderIdentity", "") == ""


async def test_events_are_valid_counted_and_patched(is_tls: bool, tmp_path: Path) -> None:
    async with cluster_and_transport(is_tls, tmp_path) as (_, transport):
        uid = await create_pod(transport, "a")
        clock = WallClock()
        sink = ApiEventSink(transport, WriteLimiter(clock), clock, instance="test-0")
        pod = ObjectRef("Pod", "default", "a", uid)
        failed = Event(pod, "Warning", "FailedScheduling", "Scheduling", "0/1 nodes are available", "job-scheduler")
        async with asyncio.TaskGroup() as group:
            task = group.create_task(sink.run())
            sink.record(failed)
            sink.record(failed)
            sink.record(replace(failed, regarding=ObjectRef("Node", "", "n1", "uid-n1")))
            assert await sink.drain(10)
            sink.record(failed)
            assert await sink.drain(10)
            task.cancel()
        statistics = sink.statistics()
        assert (statistics.stored, statistics.patched, statistics.dropped_refused) == (2, 1, 0)
        listed = await transport.request("GET", "/apis/events.k8s.io/v1/namespaces/default/events")
        events = {event["regarding"]["kind"]: event for event in orjson.loads(listed.body)["items"]}
        assert events["Pod"]["series"]["count"] == 3
        assert events["Node"]["note"] == "0/1 nodes are available"


async def test_a_condition_lands_on_the_right_pod_only(is_tls: bool, tmp_path: Path) -> None:
    async with cluster_and_transport(is_tls, tmp_path) as (_, transport):
        uid = await create_pod(transport, "a")
        clock = WallClock()
        writer = ApiConditionWriter(transport, WriteLimiter(clock), clock)
        condition = Condition("False", "Unschedulable", "0/1 nodes are available")
        async with asyncio.TaskGroup() as group:
            task = group.create_task(writer.run())
            writer.write(ObjectRef("Pod", "default", "a", "uid-of-its-predecessor"), condition)
            assert await writer.drain(10)
            assert writer.statistics().dropped_refused == 1
            writer.write(ObjectRef("Pod", "default", "a", uid), condition)
            assert await writer.drain(10)
            task.cancel()
        pod = orjson.loads((await transport.request("GET", f"{PODS}/a")).body)
        (found,) = [entry for entry in pod["status"]["conditions"] if entry["type"] == "PodScheduled"]
        assert (found["status"], found["reason"], found["message"]) == (
            "False",
            "Unschedulable",
            "0/1 nodes are available",
        )

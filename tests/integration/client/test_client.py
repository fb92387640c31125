"""The client against a whole API server; `scene` says which, and how it is reached."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import anyio
import orjson
import pytest
from msgspec.structs import replace

from multisched.client.binder import ApiBinder
from multisched.client.condition_writer import ApiConditionWriter
from multisched.client.event_sink import ApiEventSink
from multisched.client.lease import LeaseKeeper
from multisched.client.lease_term import LeaseSettings, LeaseState
from multisched.client.limits import WriteLimiter
from multisched.client.reflector import Reflector
from multisched.framework.ports import BindAnswer, BindRequest, Condition, Event, ObjectRef
from tests.integration.client.conftest import Scene, WallClock
from tests.real.admin import until
from tests.unit.client.scripted import Lease, Mirror

LIMIT_S = 40.0


async def create_pod(scene: Scene, name: str, **spec: Any) -> str:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "i"}], **spec},
    }
    response = await scene.transport.request("POST", scene.pods, body=orjson.dumps(pod))
    assert response.status == 201, response.body
    uid = orjson.loads(response.body)["metadata"]["uid"]
    assert isinstance(uid, str)
    return uid


async def create_node(scene: Scene, name: str) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
    assert (await scene.transport.request("POST", "/api/v1/nodes", body=orjson.dumps(node))).status == 201


async def delete_pod(scene: Scene, name: str) -> None:
    assert (await scene.transport.request("DELETE", f"{scene.pods}/{name}")).status == 200


@asynccontextmanager
async def reflecting(scene: Scene, page_items: int = 3) -> AsyncIterator[tuple[Reflector, Mirror]]:
    mirror = Mirror()
    rng, clock = random.Random(1), WallClock()
    reflector = Reflector(scene.watched, scene.pods, handler=mirror, clock=clock, rng=rng, page_items=page_items)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(reflector.run())
        try:
            await reflector.wait_synced()
            yield reflector, mirror
        finally:
            task.cancel()


async def settle(mirror: Mirror, expected: set[str]) -> None:
    """Until the mirror has exactly these keys."""

    async def is_settled() -> bool:
        return set(mirror.objects) == expected

    await until(is_settled, LIMIT_S)


@pytest.mark.timeout(120)  # on the real control plane the API server is started anew
async def test_a_reflector_follows_the_cluster_through_drops_expiries_and_deletions(scene: Scene) -> None:
    for number in range(10):
        await create_pod(scene, f"p{number}")
    async with reflecting(scene) as (reflector, mirror):
        keys = {f"{scene.namespace}/p{number}" for number in range(10)}
        assert set(mirror.objects) == keys
        await create_pod(scene, "late")
        await settle(mirror, keys | {f"{scene.namespace}/late"})

        scene.faults.drop_watches()
        await delete_pod(scene, "late")
        await settle(mirror, keys)
        assert reflector.statistics().lists == 1

        async with scene.faults.lost_history():
            await delete_pod(scene, "p0")
        await settle(mirror, keys - {f"{scene.namespace}/p0"})
        assert reflector.statistics().lists == 2
        listed = orjson.loads((await scene.transport.request("GET", scene.pods)).body)["items"]
        assert mirror.objects == {
            f"{scene.namespace}/{pod['metadata']['name']}": pod["metadata"]["resourceVersion"] for pod in listed
        }


async def test_each_bind_response_matches_the_state_of_the_pod(scene: Scene) -> None:
    node = f"node-of-{scene.namespace}"
    await create_node(scene, node)
    uid = await create_pod(scene, "a")
    gated = await create_pod(scene, "gated", schedulingGates=[{"name": "g"}])
    binder = ApiBinder(scene.watched, WriteLimiter(WallClock()))
    request = BindRequest(scene.namespace, "a", uid, node, {"multisched.io/score": "97"})

    async def answer_to(bind: BindRequest) -> BindAnswer:
        return (await binder.post(bind, timeout_s=5)).answer

    assert await answer_to(replace(request, uid="another")) is BindAnswer.CONFLICT
    assert await answer_to(replace(request, name="nope")) is BindAnswer.NOT_FOUND
    assert await answer_to(replace(request, name="gated", uid=gated)) is BindAnswer.CONFLICT
    assert await answer_to(request) is BindAnswer.CREATED
    assert await answer_to(request) is BindAnswer.CONFLICT
    truth = await binder.read(scene.namespace, "a", timeout_s=5)
    assert truth is not None
    assert (truth.uid, truth.node, truth.is_gated, truth.is_deleting) == (uid, node, False, False)
    pod = orjson.loads((await scene.transport.request("GET", f"{scene.pods}/a")).body)
    assert pod["metadata"]["annotations"]["multisched.io/score"] == "97"
    assert (await binder.read(scene.namespace, "nope", timeout_s=5)) is None
    gated_truth = await binder.read(scene.namespace, "gated", timeout_s=5)
    assert gated_truth is not None
    assert gated_truth.is_gated
    await scene.transport.request("DELETE", f"/api/v1/nodes/{node}")


async def test_two_keepers_hand_over_a_lease(scene: Scene) -> None:
    settings = LeaseSettings(duration_s=2, renew_deadline_s=1, retry_period_s=0.2, bind_deadline_s=0.5)
    path = f"/apis/coordination.k8s.io/v1/namespaces/{scene.namespace}/leases/multisched-job"
    keepers = [
        LeaseKeeper(
            scene.watched,
            namespace=scene.namespace,
            name="multisched-job",
            identity=identity,
            clock=WallClock(),
            rng=random.Random(identity),
            settings=settings,
        )
        for identity in ("first", "second")
    ]

    async def lease() -> dict[str, Any]:
        spec = orjson.loads((await scene.transport.request("GET", path)).body)["spec"]
        assert isinstance(spec, dict)
        return spec

    def leads(keeper: LeaseKeeper) -> Callable[[], Awaitable[bool]]:
        async def is_leading() -> bool:
            return keeper.term.state is LeaseState.LEADING

        return is_leading

    async def outlived_its_first_term() -> bool:
        spec = await lease()
        held = datetime.fromisoformat(spec["renewTime"]) - datetime.fromisoformat(spec["acquireTime"])
        return held.total_seconds() > settings.duration_s

    async with asyncio.TaskGroup() as group:
        group.create_task(keepers[0].run())
        await until(leads(keepers[0]), LIMIT_S)
        group.create_task(keepers[1].run())
        await until(outlived_its_first_term, LIMIT_S)
        assert [keeper.term.may_bind() for keeper in keepers] == [True, False]
        await keepers[0].release()
        await until(leads(keepers[1]), LIMIT_S)
        assert [keeper.term.may_bind() for keeper in keepers] == [False, True]
        await keepers[1].release()
    assert (await lease()).get("holderIdentity", "") == ""


async def test_events_are_valid_counted_and_patched(scene: Scene) -> None:
    uid = await create_pod(scene, "a")
    clock = WallClock()
    sink = ApiEventSink(scene.watched, WriteLimiter(clock), clock, instance="test-0")
    pod = ObjectRef("Pod", scene.namespace, "a", uid)
    node = ObjectRef("Node", "", f"node-of-{scene.namespace}", "uid-of-a-node")
    failed = Event(pod, "Warning", "FailedScheduling", "Scheduling", "0/1 nodes are available", "job-scheduler")
    async with asyncio.TaskGroup() as group:
        task = group.create_task(sink.run())
        sink.record(failed)
        sink.record(failed)
        sink.record(replace(failed, regarding=node))
        assert await sink.drain(10)
        sink.record(failed)
        assert await sink.drain(10)
        task.cancel()
    statistics = sink.statistics()
    assert (statistics.stored, statistics.patched, statistics.dropped_refused) == (2, 1, 0)
    (about_pod,) = await events_about(scene, scene.namespace, pod.name)
    (about_node,) = await events_about(
        scene, "default", node.name
    )  # where the API server keeps those of cluster objects
    assert about_pod["series"]["count"] == 3
    assert about_node["note"] == "0/1 nodes are available"


async def events_about(scene: Scene, namespace: str, name: str) -> list[dict[str, Any]]:
    listed = await scene.transport.request("GET", f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")
    return [event for event in orjson.loads(listed.body)["items"] if event["regarding"]["name"] == name]


async def written(writer: ApiConditionWriter) -> None:
    """Returns once nothing waits to be written."""
    with anyio.fail_after(10):
        while writer.statistics().backlog:  # noqa: ASYNC110 - what is written goes over a network
            await anyio.sleep(0.01)


async def test_condition_is_written_to_the_right_pod_only(scene: Scene) -> None:
    uid = await create_pod(scene, "a")
    clock = WallClock()
    writer = ApiConditionWriter(scene.watched, WriteLimiter(clock), clock)
    condition = Condition("False", "Unschedulable", "0/1 nodes are available")
    async with asyncio.TaskGroup() as group:
        task = group.create_task(writer.run())
        writer.write(ObjectRef("Pod", scene.namespace, "a", "uid-of-its-predecessor"), condition, Lease())
        await written(writer)
        assert writer.statistics().dropped_refused == 1
        writer.write(ObjectRef("Pod", scene.namespace, "a", uid), condition, Lease())
        await written(writer)
        task.cancel()
    pod = orjson.loads((await scene.transport.request("GET", f"{scene.pods}/a")).body)
    (found,) = [entry for entry in pod["status"]["conditions"] if entry["type"] == "PodScheduled"]
    assert (found["status"], found["reason"], found["message"]) == (
        "False",
        "Unschedulable",
        "0/1 nodes are available",
    )

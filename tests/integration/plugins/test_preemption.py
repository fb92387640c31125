"""The whole program preempts: victims marked and deleted, budgets kept through the disruption controller, nodes promised."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import orjson

from multisched.cluster.api.direct import DirectTransport
from multisched.model.wire import MERGE_PATCH, Response, Transport
from tests.integration.plugins.house import House, controlled, in_virtual_time, one_domain, open_house

PODS = "/api/v1/namespaces/default/pods"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
Json = dict[str, Any]


async def request(house: House, method: str, path: str, body: Json | None = None, kind: str = MERGE_PATCH) -> Json:
    encoded = None if body is None else orjson.dumps(body)
    answer = await DirectTransport(house.server).request(method, path, body=encoded, content_type=kind)
    assert answer.status in (200, 201), answer.body
    found: Json = orjson.loads(answer.body)
    return found


async def pod(house: House, name: str, cpu: str, priority: str, *, grace_s: int = 0, **labels: str) -> None:
    await house.pod(name, cpu=cpu, priority=priority, labels=labels, terminationGracePeriodSeconds=grace_s)


async def read(house: House, name: str) -> Json:
    return await request(house, "GET", f"{PODS}/{name}")


async def end(house: House, name: str) -> None:
    """What its kubelet does in the end."""
    await request(house, "DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")


def attempts(house: House, name: str) -> int:
    """How often a waiting pod has been tried."""
    waiting = house.waiting(name)
    assert waiting is not None, f"{name} waits no more: {house.bound_at}"
    return waiting.attempts


def condition(found: Json, kind: str) -> Json:
    return next((c for c in found["status"].get("conditions", ()) if c["type"] == kind), {})


async def notes(house: House, reason: str) -> dict[str, str]:
    """Pod -> note of its event."""
    events = await request(house, "GET", EVENTS)
    return {e["regarding"]["name"]: e["note"] for e in events["items"] if e["reason"] == reason}


@asynccontextmanager
async def cluster(
    *nodes: str, controllers: bool = False, behind: Callable[[Transport], Transport] | None = None
) -> AsyncIterator[House]:
    """Nodes of four CPUs each, and the classes low (1), middle (10) and high (100)."""

    async def before(house: House) -> None:
        for name in nodes:
            await house.node(name, cpu="4")
        for name, value in (("low", 1), ("middle", 10), ("high", 100)):
            await house.priority_class(name, value)

    async with (
        open_house(one_domain(), before=before, behind=behind) as house,
        controlled(house) if controllers else nullcontext(),
    ):
        yield house
        await house.at_rest()


def play(story: Callable[[], Awaitable[None]]) -> None:
    in_virtual_time(story)


def test_high_priority_pod_preempts_and_events_are_written() -> None:
    async def story() -> None:
        async with cluster("n") as house:
            await pod(house, "low", "3", "low", grace_s=30)
            await house.bound("low")
            await pod(house, "high", "3", "high")
            await asyncio.sleep(1.0)

            victim, preemptor = await read(house, "low"), await read(house, "high")
            target = condition(victim, "DisruptionTarget")
            assert victim["metadata"]["deletionTimestamp"]
            assert (target["status"], target["reason"], target["message"]) == (
                "True",
                "PreemptionByScheduler",
                "tests-scheduler: preempting to accommodate a higher priority pod",
            )
            assert preemptor["status"]["nominatedNodeName"] == "n"
            assert condition(preemptor, "PodScheduled")["message"] == "0/1 nodes are available: 1 Insufficient cpu."
            uid = preemptor["metadata"]["uid"]
            assert await notes(house, "Preempted") == {"low": f"Preempted by pod {uid} on node n"}

            await asyncio.sleep(20.0)
            assert "high" not in house.bound_at, "its victim is still there"
            await end(house, "low")
            await house.bound("high")
            assert house.node_of("high") == "n"

    play(story)


def test_preemptor_selects_no_further_victims_while_they_are_deleting() -> None:
    async def story() -> None:
        async with cluster("n", "m") as house:
            for name in ("low-1", "low-2"):
                await pod(house, name, "3", "low", grace_s=30)
            await house.bound("low-1", "low-2")
            await pod(house, "high", "3", "high")
            await asyncio.sleep(1.0)
            await pod(house, "woken", "1m", "high")
            await house.bound("woken")
            await request(house, "DELETE", f"{PODS}/woken?gracePeriodSeconds=0")
            await asyncio.sleep(3.0)
            going = [n for n in ("low-1", "low-2") if (await read(house, n))["metadata"].get("deletionTimestamp")]
            assert len(going) == 1
            message = condition(await read(house, "high"), "PodScheduled")["message"]
            assert message.endswith("preemption: not eligible due to a terminating pod on the nominated node.")
            await end(house, going[0])
            await house.bound("high")

    play(story)


def test_each_ended_victim_requeues_its_preemptor() -> None:
    """As upstream, whose NodeResourcesFit hint queues the pod at each Pod/Delete; that a victim begins to end wakes nobody."""

    async def story() -> None:
        async with cluster("n") as house:
            lows = [f"low-{number}" for number in range(3)]
            for name in lows:
                await pod(house, name, "1", "low", grace_s=30)
            await house.bound(*lows)
            await pod(house, "high", "4", "high")
            await asyncio.sleep(2.0)
            assert all([(await read(house, name))["metadata"].get("deletionTimestamp") for name in lows])
            tries = [attempts(house, "high")]
            for name in lows[:-1]:
                await end(house, name)
                await asyncio.sleep(12.0)
                tries.append(attempts(house, "high"))
            assert tries == [1, 2, 3]
            await end(house, lows[-1])
            await house.bound("high", within_s=0.1)

    play(story)


def test_first_ended_victim_requeues_the_preemptor() -> None:
    async def story() -> None:
        async with cluster("n") as house:
            for name, grace_s in (("brief", 0), ("long-1", 30), ("long-2", 30)):
                await pod(house, name, "1", "low", grace_s=grace_s)
            await house.bound("brief", "long-1", "long-2")
            await pod(house, "high", "4", "high")
            await asyncio.sleep(12.0)
            assert attempts(house, "high") == 2
            await end(house, "long-1")
            await asyncio.sleep(12.0)
            assert attempts(house, "high") == 3
            await end(house, "long-2")
            await house.bound("high", within_s=0.1)

    play(story)


def test_preemptor_takes_room_elsewhere_while_victims_are_deleting() -> None:
    async def story() -> None:
        async with cluster("n", "m") as house:
            for name, priority in (("low", "low"), ("equal", "high")):
                await pod(house, name, "3", priority, grace_s=30)
                await house.bound(name)
            await pod(house, "high", "4", "high")
            await asyncio.sleep(2.0)
            promised, other = house.node_of("low"), house.node_of("equal")
            assert (await read(house, "high"))["status"]["nominatedNodeName"] == promised
            await end(house, "equal")
            await house.bound("high", within_s=0.1)
            assert house.node_of("high") == other

    play(story)


def test_freed_room_is_kept_for_the_preemptor() -> None:
    async def story() -> None:
        async with cluster("n") as house:
            await pod(house, "low", "4", "low", grace_s=30)
            await house.bound("low")
            await pod(house, "high", "3", "high")
            await asyncio.sleep(1.0)
            for number in range(3):
                await pod(house, f"middle-{number}", "1", "middle")
            await asyncio.sleep(1.0)
            await end(house, "low")
            await house.bound("high", "middle-0")
            await asyncio.sleep(2.0)
            assert set(house.bound_at) == {"low", "high", "middle-0"}
            message = condition(await read(house, "middle-1"), "PodScheduled")["message"]
            assert message.startswith("0/1 nodes are available: 1 Insufficient cpu.")

    play(story)


def test_disruption_budget_decides_the_victims() -> None:
    async def story() -> None:
        async with cluster("n", "m", controllers=True) as house:
            for number in range(2):
                await pod(house, f"kept-{number}", "2", "low", app="kept")
            await house.bound("kept-0", "kept-1")
            for number in range(2):
                await pod(house, f"free-{number}", "2", "middle", app="free")
            await house.bound("free-0", "free-1")
            for name in ("kept-0", "kept-1"):
                ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
                await request(house, "PATCH", f"{PODS}/{name}/status", {"status": ready})
            budget = {"selector": {"matchLabels": {"app": "kept"}}, "minAvailable": 2}
            path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
            await house.post(path, "kept", {}, spec=budget)
            await asyncio.sleep(2.0)

            await pod(house, "high", "2", "high")
            await house.bound("high")
            left = {one["metadata"]["name"] for one in (await request(house, "GET", PODS))["items"]}
            assert {"kept-0", "kept-1"} <= left
            assert len(left & {"free-0", "free-1"}) == 1

    play(story)


class NoDeletes:
    """An API server that lets nobody delete pods, for a while."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.is_on = True
        self.refused = 0

    async def request(self, method: str, path: str, **rest: Any) -> Response:
        if self.is_on and method == "DELETE":
            self.refused += 1
            return Response(403, orjson.dumps({"kind": "Status", "message": "not yours", "code": 403}))
        return await self._inner.request(method, path, **rest)

    def stream(self, path: str, **rest: Any) -> Any:
        return self._inner.stream(path, **rest)


def test_preemptor_with_undeletable_victims_retries_with_backoff() -> None:
    async def story() -> None:
        transports: list[NoDeletes] = []

        def behind(inner: Transport) -> Transport:
            transports.append(NoDeletes(inner))
            return transports[0]

        async with cluster("n", behind=behind) as house:
            await pod(house, "low", "4", "low")
            await house.bound("low")
            await pod(house, "high", "4", "high")
            await asyncio.sleep(20.0)
            assert 2 <= transports[0].refused <= 21
            assert "nominatedNodeName" not in (await read(house, "high"))["status"]
            transports[0].is_on = False
            await house.bound("high", within_s=60.0)

    play(story)


def test_burst_of_preemptors_frees_only_the_needed_room() -> None:
    async def story() -> None:
        names = [f"n{number}" for number in range(20)]
        async with cluster(*names) as house:
            lows = [f"low-{number}" for number in range(80)]
            for name in lows:
                await pod(house, name, "1", "low")
            await house.bound(*lows)
            highs = [f"high-{number}" for number in range(30)]
            for name in highs:
                await pod(house, name, "2", "high")
            await house.bound(*highs, within_s=120.0)
            left = [one for one in (await request(house, "GET", PODS))["items"] if one["metadata"]["name"] in lows]
            assert len(left) == 80 - 2 * len(highs)

    play(story)

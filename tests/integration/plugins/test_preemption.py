"""The whole program preempts: victims marked and deleted, budgets kept through the disruption controller, nodes promised."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import orjson

from multisched.cluster.api.direct import DirectTransport
from multisched.model.wire import MERGE_PATCH, Response, Transport
from multisched.shell.page.preemptions import ProgramPreemptions
from tests.integration.plugins.program_cluster import (
    ProgramCluster,
    in_virtual_time,
    one_domain,
    open_cluster,
    with_controllers,
)

PODS = "/api/v1/namespaces/default/pods"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
Json = dict[str, Any]


async def request(
    cluster: ProgramCluster, method: str, path: str, body: Json | None = None, kind: str = MERGE_PATCH
) -> Json:
    encoded = None if body is None else orjson.dumps(body)
    answer = await DirectTransport(cluster.server).request(method, path, body=encoded, content_type=kind)
    assert answer.status in (200, 201), answer.body
    found: Json = orjson.loads(answer.body)
    return found


async def pod(cluster: ProgramCluster, name: str, cpu: str, priority: str, *, grace_s: int = 0, **labels: str) -> None:
    await cluster.pod(name, cpu=cpu, priority=priority, labels=labels, terminationGracePeriodSeconds=grace_s)


async def read(cluster: ProgramCluster, name: str) -> Json:
    return await request(cluster, "GET", f"{PODS}/{name}")


async def end(cluster: ProgramCluster, name: str) -> None:
    """What its kubelet does in the end."""
    await request(cluster, "DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")


def attempts(cluster: ProgramCluster, name: str) -> int:
    """How often a waiting pod has been tried."""
    waiting = cluster.waiting(name)
    assert waiting is not None, f"{name} waits no more: {cluster.bound_at}"
    return waiting.attempts


def condition(found: Json, kind: str) -> Json:
    return next((c for c in found["status"].get("conditions", ()) if c["type"] == kind), {})


async def notes(cluster: ProgramCluster, reason: str) -> dict[str, str]:
    """Pod -> note of its event."""
    events = await request(cluster, "GET", EVENTS)
    return {e["regarding"]["name"]: e["note"] for e in events["items"] if e["reason"] == reason}


@asynccontextmanager
async def prepared_cluster(
    *nodes: str, controllers: bool = False, behind: Callable[[Transport], Transport] | None = None
) -> AsyncIterator[ProgramCluster]:
    """Nodes of four CPUs each, and the classes low (1), middle (10) and high (100)."""

    async def before(cluster: ProgramCluster) -> None:
        for name in nodes:
            await cluster.node(name, cpu="4")
        for name, value in (("low", 1), ("middle", 10), ("high", 100)):
            await cluster.priority_class(name, value)

    async with (
        open_cluster(one_domain(), before=before, behind=behind) as cluster,
        with_controllers(cluster) if controllers else nullcontext(),
    ):
        yield cluster
        await cluster.at_rest()


def play(main: Callable[[], Awaitable[None]]) -> None:
    in_virtual_time(main)


def test_high_priority_pod_preempts_and_events_are_written() -> None:
    async def main() -> None:
        async with prepared_cluster("n") as cluster:
            await pod(cluster, "low", "3", "low", grace_s=30)
            await cluster.bound("low")
            await pod(cluster, "high", "3", "high")
            await asyncio.sleep(1.0)

            victim, preemptor = await read(cluster, "low"), await read(cluster, "high")
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
            assert await notes(cluster, "Preempted") == {"low": f"Preempted by pod {uid} on node n"}

            await asyncio.sleep(20.0)
            assert "high" not in cluster.bound_at, "its victim is still there"
            await end(cluster, "low")
            await cluster.bound("high")
            assert cluster.node_of("high") == "n"

    play(main)


def test_preemptor_selects_no_further_victims_while_they_are_deleting() -> None:
    async def main() -> None:
        async with prepared_cluster("n", "m") as cluster:
            for name in ("low-1", "low-2"):
                await pod(cluster, name, "3", "low", grace_s=30)
            await cluster.bound("low-1", "low-2")
            await pod(cluster, "high", "3", "high")
            await asyncio.sleep(1.0)
            await pod(cluster, "woken", "1m", "high")
            await cluster.bound("woken")
            await request(cluster, "DELETE", f"{PODS}/woken?gracePeriodSeconds=0")
            await asyncio.sleep(3.0)
            going = [n for n in ("low-1", "low-2") if (await read(cluster, n))["metadata"].get("deletionTimestamp")]
            assert len(going) == 1
            message = condition(await read(cluster, "high"), "PodScheduled")["message"]
            assert message.endswith("preemption: not eligible due to a terminating pod on the nominated node.")
            await end(cluster, going[0])
            await cluster.bound("high")

    play(main)


def test_each_ended_victim_requeues_its_preemptor() -> None:
    """As upstream, whose NodeResourcesFit hint queues the pod at each Pod/Delete; that a victim begins to end wakes nobody."""

    async def main() -> None:
        async with prepared_cluster("n") as cluster:
            lows = [f"low-{number}" for number in range(3)]
            for name in lows:
                await pod(cluster, name, "1", "low", grace_s=30)
            await cluster.bound(*lows)
            await pod(cluster, "high", "4", "high")
            await asyncio.sleep(2.0)
            assert all([(await read(cluster, name))["metadata"].get("deletionTimestamp") for name in lows])
            tries = [attempts(cluster, "high")]
            for name in lows[:-1]:
                await end(cluster, name)
                await asyncio.sleep(12.0)
                tries.append(attempts(cluster, "high"))
            assert tries == [1, 2, 3]
            await end(cluster, lows[-1])
            await cluster.bound("high", within_s=0.1)

    play(main)


def test_first_ended_victim_requeues_the_preemptor() -> None:
    async def main() -> None:
        async with prepared_cluster("n") as cluster:
            for name, grace_s in (("brief", 0), ("long-1", 30), ("long-2", 30)):
                await pod(cluster, name, "1", "low", grace_s=grace_s)
            await cluster.bound("brief", "long-1", "long-2")
            await pod(cluster, "high", "4", "high")
            await asyncio.sleep(12.0)
            assert attempts(cluster, "high") == 2
            await end(cluster, "long-1")
            await asyncio.sleep(12.0)
            assert attempts(cluster, "high") == 3
            await end(cluster, "long-2")
            await cluster.bound("high", within_s=0.1)

    play(main)


def test_preemptor_takes_room_elsewhere_while_victims_are_deleting() -> None:
    async def main() -> None:
        async with prepared_cluster("n", "m") as cluster:
            for name, priority in (("low", "low"), ("equal", "high")):
                await pod(cluster, name, "3", priority, grace_s=30)
                await cluster.bound(name)
            await pod(cluster, "high", "4", "high")
            await asyncio.sleep(2.0)
            promised, other = cluster.node_of("low"), cluster.node_of("equal")
            assert (await read(cluster, "high"))["status"]["nominatedNodeName"] == promised
            await end(cluster, "equal")
            await cluster.bound("high", within_s=0.1)
            assert cluster.node_of("high") == other

    play(main)


def test_freed_room_is_kept_for_the_preemptor() -> None:
    async def main() -> None:
        async with prepared_cluster("n") as cluster:
            await pod(cluster, "low", "4", "low", grace_s=30)
            await cluster.bound("low")
            await pod(cluster, "high", "3", "high")
            await asyncio.sleep(1.0)
            for number in range(3):
                await pod(cluster, f"middle-{number}", "1", "middle")
            await asyncio.sleep(1.0)
            await end(cluster, "low")
            await cluster.bound("high", "middle-0")
            await asyncio.sleep(2.0)
            assert set(cluster.bound_at) == {"low", "high", "middle-0"}
            message = condition(await read(cluster, "middle-1"), "PodScheduled")["message"]
            assert message.startswith("0/1 nodes are available: 1 Insufficient cpu.")

    play(main)


def test_disruption_budget_decides_the_victims() -> None:
    async def main() -> None:
        async with prepared_cluster("n", "m", controllers=True) as cluster:
            for number in range(2):
                await pod(cluster, f"kept-{number}", "2", "low", app="kept")
            await cluster.bound("kept-0", "kept-1")
            for number in range(2):
                await pod(cluster, f"free-{number}", "2", "middle", app="free")
            await cluster.bound("free-0", "free-1")
            for name in ("kept-0", "kept-1"):
                ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
                await request(cluster, "PATCH", f"{PODS}/{name}/status", {"status": ready})
            budget = {"selector": {"matchLabels": {"app": "kept"}}, "minAvailable": 2}
            path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
            await cluster.post(path, "kept", {}, spec=budget)
            await asyncio.sleep(2.0)

            await pod(cluster, "high", "2", "high")
            await cluster.bound("high")
            left = {one["metadata"]["name"] for one in (await request(cluster, "GET", PODS))["items"]}
            assert {"kept-0", "kept-1"} <= left
            assert len(left & {"free-0", "free-1"}) == 1

    play(main)


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


@asynccontextmanager
async def undeletable_pods() -> AsyncIterator[tuple[ProgramCluster, NoDeletes]]:
    """A cluster of one node, and the transport that refuses deletions while it is on."""
    transports: list[NoDeletes] = []

    def behind(inner: Transport) -> Transport:
        transports.append(NoDeletes(inner))
        return transports[0]

    async with prepared_cluster("n", behind=behind) as cluster:
        yield cluster, transports[0]


def test_preemptor_with_undeletable_victims_retries_with_backoff() -> None:
    async def main() -> None:
        async with undeletable_pods() as (cluster, transport):
            await pod(cluster, "low", "4", "low")
            await cluster.bound("low")
            await pod(cluster, "high", "4", "high")
            await asyncio.sleep(20.0)
            assert 2 <= transport.refused <= 21
            assert "nominatedNodeName" not in (await read(cluster, "high"))["status"]
            transport.is_on = False
            await cluster.bound("high", within_s=60.0)

    play(main)


def test_burst_of_preemptors_frees_only_the_needed_room() -> None:
    async def main() -> None:
        names = [f"n{number}" for number in range(20)]
        async with prepared_cluster(*names) as cluster:
            lows = [f"low-{number}" for number in range(80)]
            for name in lows:
                await pod(cluster, name, "1", "low")
            await cluster.bound(*lows)
            highs = [f"high-{number}" for number in range(30)]
            for name in highs:
                await pod(cluster, name, "2", "high")
            await cluster.bound(*highs, within_s=120.0)
            left = [one for one in (await request(cluster, "GET", PODS))["items"] if one["metadata"]["name"] in lows]
            assert len(left) == 80 - 2 * len(highs)

    play(main)


def test_page_shows_the_result_of_each_preemption() -> None:
    async def main() -> None:
        async with undeletable_pods() as (cluster, transport):
            page = ProgramPreemptions(cluster.program)

            async def told() -> tuple[str, list[tuple[str, str]]]:
                latest = (await page.preemptions(plugin="", limit=1)).preemptions[0]
                return latest.state, [(victim.pod, victim.state) for victim in latest.victims]

            assert (await page.preemptions(plugin="", limit=1)).preemptions == ()
            await pod(cluster, "low", "4", "low", grace_s=30)
            await cluster.bound("low")
            await pod(cluster, "high", "4", "high")
            await cluster.until(
                lambda: transport.refused == 1 and len(cluster.program.preemptor) == 0, look_max_s=0.005
            )
            assert await told() == ("not carried out", [("default/low", "present")])
            transport.is_on = False
            await asyncio.sleep(20.0)
            assert await told() == ("in progress", [("default/low", "terminating")])
            await end(cluster, "low")
            await cluster.bound("high")
            found = (await page.preemptions(plugin="DefaultPreemption", limit=9)).preemptions
            assert await told() == ("done", [("default/low", "deleted")])
            assert [(one.pod, one.node) for one in found[0].pods] == [("default/high", "n")]
            assert (found[0].domain, found[0].freed["cpu"], found[0].plugin) == ("tests", 4_000, "DefaultPreemption")
            assert sorted(one.at_seconds for one in found) == [one.at_seconds for one in reversed(found)]
            assert (await page.preemptions(plugin="ElasticQuota", limit=9)).preemptions == ()

    play(main)

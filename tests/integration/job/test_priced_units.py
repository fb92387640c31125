"""Units with `waitFirst` in the whole program, in virtual time: which pods pay, when, and what it costs."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

import orjson

from domains.job.providers.serverless_units import ServerlessUnits
from multisched.cluster.kubelet.provider import ProviderSettings
from multisched.framework.views import ViewQuery
from multisched.shell.plugin_views import ProgramViews
from multisched.testing.builders import Document, container, node_document, pod_document
from tests.integration.gpu.gpu_cluster import PODS, GpuCluster
from tests.integration.gpu.tide_cluster import at_once
from tests.integration.job.serverless_cluster import OWNER, Story, nodes_of, play_units

PROVIDER = ProviderSettings(burst=100, perSecond=20.0, startupSeconds=2.0, syncBurst=1000, syncPerSecond=1000.0)
WAIT = {"waitFirst": {"maxWait": "1m"}}
PER_SECOND = 2 * 0.5 / 3600.0
"""One CPU is rounded up to two."""


def play(
    story: Story, *, cpu: int = 1, wait: Document = WAIT, burst: int = 50, quota: int = 1000, **options: Any
) -> None:
    own = node_document("own", cpu=cpu, memory="1Ti", pods=1000)
    first = {
        "rate": {"burst": burst, "perSecond": 10},
        "quota": {"pods": quota},
        "roundTo": {"cpu": "2", "memory": "1Gi"},
        "price": {"cpu": 0.5},
        **wait,
    }

    async def after_a_while(cluster: GpuCluster) -> None:
        await asyncio.sleep(5.0)
        await story(cluster)
        await asyncio.sleep(2.0)  # until the answers to the last binds and their watch events have arrived
        assert cluster.differences() == []

    play_units(after_a_while, {"first": first}, own, *nodes_of("first", PROVIDER, 1), **options)


async def create(cluster: GpuCluster, name: str, run_s: float, deadline: str = "") -> None:
    document = pod_document(name, container("c", cpu="1"), schedulerName="job-scheduler", restartPolicy="Never")
    deadlines = {"multisched.io/deadline": deadline} if deadline else {}
    document["metadata"] |= {
        "annotations": {"multisched.io/run-seconds": f"{run_s:g}"} | deadlines,
        "ownerReferences": [OWNER],
    }
    await cluster.send("POST", PODS, document)


async def ended(cluster: GpuCluster, *names: str) -> None:
    async def holds() -> bool:
        found = await cluster.pods()
        return all(found[name]["status"]["phase"] == "Succeeded" for name in names)

    await cluster.until(holds, 600.0)


async def learn(cluster: GpuCluster, run_s: float) -> None:
    await create(cluster, "learned", run_s)
    await ended(cluster, "learned")
    await asyncio.sleep(5.0)


def places(cluster: GpuCluster) -> dict[str, str]:
    return {one.pod: "own" if one.node == "own" else "priced" for one in cluster.bound}


async def unit(cluster: GpuCluster) -> Document:
    program = cluster.replicas[0].program
    found: Document = orjson.loads(await ProgramViews(program, at_once).document("units", ViewQuery("now")))
    first: Document = found["units"][0]
    return first


def plugin_of(cluster: GpuCluster) -> ServerlessUnits:
    built = cluster.replicas[0].program.router.workers()[0].plugins.built
    return next(one.plugin for one in built if isinstance(one.plugin, ServerlessUnits))


async def condition(cluster: GpuCluster, name: str) -> str:
    conditions = (await cluster.pods())[name]["status"].get("conditions", [])
    return next((str(one.get("reason")) for one in conditions if one["type"] == "PodScheduled"), "")


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def test_only_pods_that_would_miss_their_deadline_pay() -> None:
    async def story(cluster: GpuCluster) -> None:
        await learn(cluster, 20.0)
        await create(cluster, "runs", 20.0)
        await asyncio.sleep(2.0)
        for number in range(4):
            await create(cluster, f"soon-{number}", 20.0, "75s")
        for number in range(4):
            await create(cluster, f"late-{number}", 20.0, "15m")
        names = [f"{kind}-{number}" for kind in ("soon", "late") for number in range(4)]
        await ended(cluster, "runs", *names)
        found, where = await cluster.pods(), places(cluster)
        assert {where[f"late-{number}"] for number in range(4)} == {"own"}
        paid = [name for name in names if where[name] == "priced"]
        assert 1 <= len(paid) <= 3, "own nodes run two of the four in time"
        for name in names[:4]:
            status = found[name]["status"]["containerStatuses"][0]["state"]["terminated"]
            took_s = _seconds(status["finishedAt"]) - _seconds(found[name]["metadata"]["creationTimestamp"])
            assert took_s <= 75.0 + 1.0, name
        cost = (await unit(cluster))["cost"]
        assert abs(cost["spent"] - len(paid) * 20.0 * PER_SECOND) <= 3.0 * len(paid) * PER_SECOND
        saved = len(names) - len(paid)
        assert abs(cost["saved"] - saved * 20.0 * PER_SECOND) <= 3.0 * saved * PER_SECOND

    play(story)


def test_a_pod_without_a_deadline_pays_after_max_wait() -> None:
    async def story(cluster: GpuCluster) -> None:
        await create(cluster, "runs", 3_000.0)
        await asyncio.sleep(2.0)
        await create(cluster, "waits", 10.0)
        began_s = cluster.loop.time()
        await asyncio.sleep(30.0)
        assert "waits" not in places(cluster)
        assert await condition(cluster, "waits") == "WaitingForUnit", "an autoscaler adds no node"
        pod = cluster.replicas[0].program.router.workers()[0].queue.sorting.pods()[0]
        note = plugin_of(cluster).note_on_pending(pod, cluster.clock.now().timestamp())
        assert note.startswith("serverless unit first costs 1 per hour for this pod; the pod waits for other nodes")
        assert "maxWait is over in" in note

        async def is_bound() -> bool:
            return "waits" in places(cluster)

        await cluster.until(is_bound, 60.0)
        assert 55.0 <= cluster.loop.time() - began_s <= 60.0 + 3.0 + 10.0 + 1.0, "the period, and the backoff"
        assert places(cluster)["waits"] == "priced"

    play(story)


def test_a_pod_that_may_pay_uses_its_own_nodes_if_they_have_room() -> None:
    async def story(cluster: GpuCluster) -> None:
        await create(cluster, "runs", 20.0)
        await asyncio.sleep(1.0)
        await create(cluster, "urgent", 1.0, "1s")
        await ended(cluster, "urgent")
        assert places(cluster)["urgent"] == "priced"
        await ended(cluster, "runs")
        await asyncio.sleep(2.0)
        await create(cluster, "again", 1.0, "1s")
        await ended(cluster, "again")
        assert places(cluster)["again"] == "own"

    play(story)


def test_pods_that_may_pay_are_woken_as_the_unit_has_room() -> None:
    async def story(cluster: GpuCluster) -> None:
        await create(cluster, "runs", 3_000.0)
        await asyncio.sleep(2.0)
        for number in range(30):
            await create(cluster, f"patient-{number}", 10.0, "2h")
        for number in range(12):
            await create(cluster, f"urgent-{number}", 10.0, "5s")
        urgent = [f"urgent-{number}" for number in range(12)]
        await ended(cluster, *urgent)
        where = places(cluster)
        assert {where[name] for name in urgent} == {"priced"}
        assert cluster.loop.time() < 200.0

    play(story, quota=3)


def test_without_the_setting_a_price_keeps_no_pod() -> None:
    async def story(cluster: GpuCluster) -> None:
        await create(cluster, "runs", 3_000.0)
        await create(cluster, "other", 10.0)
        await ended(cluster, "other")
        assert "priced" in places(cluster).values()
        assert (await unit(cluster))["waitFirst"] is None

    play(story, wait={})


def test_a_pod_that_waits_for_the_rate_has_its_own_reason() -> None:
    async def story(cluster: GpuCluster) -> None:
        for number in range(40):
            await create(cluster, f"pod-{number}", 100.0)
        await asyncio.sleep(1.5)
        waiting = [name for name, pod in (await cluster.pods()).items() if not pod["spec"].get("nodeName")]
        reasons = {await condition(cluster, name) for name in waiting}
        assert reasons == {"WaitingForUnit"}

        async def all_bound() -> bool:
            return len(cluster.bound) == 40

        await cluster.until(all_bound, 60.0)
        await asyncio.sleep(2.0)

    play(story, wait={}, burst=2)

"""Loans with the whole program on the embedded cluster, in virtual time: limits, recalls, and what the API server shows of both sides."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import orjson
import pytest
import yaml

from multisched.framework.views import NoViewError, ViewQuery
from multisched.model.wire import MERGE_PATCH, Response
from multisched.shell.page.overview import ProgramOverview
from multisched.shell.plugin_views import ProgramViews
from multisched.shell.telemetry import ProgramQueues
from multisched.testing.builders import Document, container, node_document, pod_document
from multisched.testing.sim_loop import EPOCH, SimLoop, simulate
from tests.integration.gpu.gpu_cluster import PODS, GpuCluster, open_gpu_cluster
from tests.integration.gpu.tide_cluster import at_once

Story = Callable[[GpuCluster], Awaitable[None]]
NOTICE_S = 20.0
SLACK_S = 5.0


METRICS = "/apis/metrics.k8s.io/v1beta1/pods"


def play(story: Story, *nodes: Document, loan: Document | None = None, **options: Any) -> None:
    """Plays the story in a cluster whose domain gpu lends its nodes to job. `loan`: its settings besides the lender."""
    terms = {"return": {"notice": f"{NOTICE_S:g}s", "grace": "10s"}} if loan is None else loan
    document = {
        "apiVersion": "multisched.io/v1",
        "kind": "MultischedConfiguration",
        "domains": [
            {"name": "gpu", "nodes": {"rule": "rest"}},
            {"name": "job", "nodes": {"rule": "labelled"}, "loans": [{"from": "gpu", **terms}]},
        ],
        "client": {"bindTimeout": "900ms"},
        "lease": {"duration": "2s", "renewDeadline": "1s", "retryPeriod": "200ms"},
    }
    loop = SimLoop(1)

    async def main() -> None:
        async with open_gpu_cluster(loop, *nodes, configuration=yaml.safe_dump(document), **options) as cluster:
            await story(cluster)

    simulate(main(), loop)


def node(name: str = "n", cpu: int = 16) -> Document:
    return node_document(name, cpu=cpu, memory="64Gi", pods=110)


async def create(cluster: GpuCluster, name: str, scheduler: str, *, cpu: str = "1", **more: Any) -> None:
    spec = {"schedulerName": f"{scheduler}-scheduler", "restartPolicy": "Never", "terminationGracePeriodSeconds": 1}
    document = pod_document(name, container("c", cpu=cpu), **spec | more.pop("spec", {}))
    document["metadata"] |= more
    await cluster.send("POST", PODS, document)


def test_overview_drops_a_remark_as_soon_as_its_cause_is_gone() -> None:
    async def story(cluster: GpuCluster) -> None:
        program = cluster.replicas[0].program
        overview = ProgramOverview(program, ProgramQueues(program, "me"), "me")
        assert "the loan from gpu lends no node" in (await overview.overview()).remarks
        await cluster.send("POST", "/api/v1/nodes", node())
        await asyncio.sleep(1.0)
        assert (await overview.overview()).remarks == ""

    play(story)


async def on_node(cluster: GpuCluster, prefix: str) -> list[str]:
    """Returns the pods with this prefix that hold capacity of a node now."""
    return [
        name
        for name, pod in (await cluster.pods()).items()
        if name.startswith(prefix) and pod["spec"].get("nodeName") and pod["status"]["phase"] in ("Pending", "Running")
    ]


async def settled(cluster: GpuCluster) -> None:
    await asyncio.sleep(3.0)


async def loans(cluster: GpuCluster, document: str = "now", **options: str) -> Document:
    replica = cluster.leader()
    assert replica is not None
    found: Document = orjson.loads(
        await ProgramViews(replica.program, at_once).document("loans", ViewQuery(document, options))
    )
    return found


def clock_of(cluster: GpuCluster, after_s: float) -> str:
    """Returns the time of day, in UTC, so many seconds from now."""
    return f"{EPOCH + timedelta(seconds=cluster.loop.time() + after_s):%H:%M}"


def test_borrower_gets_the_share_that_the_lender_leaves_and_no_more() -> None:
    async def story(cluster: GpuCluster) -> None:
        await create(cluster, "own", "gpu", cpu="4")
        await settled(cluster)
        for number in range(12):
            await create(cluster, f"job-{number}", "job")
        await settled(cluster)
        assert len(await on_node(cluster, "job-")) == 6  # half of 16 - 4
        (state, message), *_ = [v for name, v in cluster.waiting().items() if name.startswith("job-")]
        assert (state, "Insufficient cpu on loan from gpu" in message) == ("unschedulable", True), message
        for shown in (await loans(cluster), await loans(cluster, "node", name="n")):
            assert shown["loans"][0]["held"]["cpuMilli"] == 6000
            assert shown["loans"][0]["room"]["cpuMilli"] == 0
        assert (shown["loans"][0]["from"], shown["loans"][0]["onLoan"]["pods"]) == ("gpu", 6)
        with pytest.raises(NoViewError, match="there is no node m"):
            await loans(cluster, "node", name="m")
        await cluster.delete_pod("own")
        await settled(cluster)
        assert len(await on_node(cluster, "job-")) == 8
        assert cluster.differences() == []

    play(story, node(), loan={"sharePercent": 50})


def test_headroom_and_resources_that_are_not_lent() -> None:
    async def story(cluster: GpuCluster) -> None:
        for number in range(16):
            await create(cluster, f"job-{number}", "job")
        extended = container("c", cpu="1") | {
            "resources": {"requests": {"cpu": "1", "nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}}
        }
        await cluster.send("POST", PODS, pod_document("card", extended, schedulerName="job-scheduler"))
        await settled(cluster)
        assert len(await on_node(cluster, "job-")) == 12
        assert "gpu does not lend nvidia.com/gpu" in cluster.waiting()["card"][1]

    play(
        story,
        node_document("n", cpu=16, memory="64Gi", pods=110, extra={"nvidia.com/gpu": 8}),
        loan={"headroom": {"cpu": "4"}},
    )


def test_pod_of_the_lender_gets_lent_capacity_back_after_the_notice() -> None:
    async def story(cluster: GpuCluster) -> None:
        high = {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "high"},
            "value": 1000,
        }
        await cluster.send("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", high)
        for number in range(16):
            await create(cluster, f"job-{number}", "job", spec={"priorityClassName": "high"})
        await settled(cluster)
        assert len(await on_node(cluster, "job-")) == 16
        began_s = cluster.loop.time()
        await create(cluster, "own", "gpu", cpu="5")
        await settled(cluster)
        pod = (await cluster.pods())["own"]
        assert pod["status"].get("nominatedNodeName") == "n"
        with_notice = [
            one
            for one in (await cluster.pods()).values()
            if "multisched.io/loan-notice" in (one["metadata"].get("annotations") or {})
        ]
        assert len(with_notice) == 5
        assert len(await on_node(cluster, "job-")) == 16  # none before its notice

        async def bound() -> bool:
            return "own" in await on_node(cluster, "own")

        await cluster.until(bound, NOTICE_S + SLACK_S)
        assert NOTICE_S <= cluster.loop.time() - began_s <= NOTICE_S + SLACK_S
        await settled(cluster)
        assert len(await on_node(cluster, "job-")) == 11
        shown = await loans(cluster)
        assert (shown["recalls"]["evicted"], shown["recalls"]["late"], shown["recalls"]["open"]) == (5, 0, 0)
        assert cluster.differences() == []

    play(story, node())


@pytest.mark.parametrize(("is_saved", "expected"), [(False, "small"), (True, "saved")])
def test_pod_of_the_lender_takes_the_node_where_the_least_work_is_lost(is_saved: bool, expected: str) -> None:
    """A minute of 4 cores is more than ten minutes of a quarter, and a checkpoint saves all before it."""

    async def story(cluster: GpuCluster) -> None:
        async def job(name: str, node: str, cpu: str) -> None:
            await create(cluster, name, "job", cpu=cpu, spec={"nodeSelector": {"kubernetes.io/hostname": node}})

        await job("job-old", "small", "250m")
        await job("job-saved", "saved", "4")
        await asyncio.sleep(540.0)
        await job("job-new", "large", "4")
        await settled(cluster)
        await asyncio.sleep(60.0)
        if is_saved:
            at = f"{EPOCH + timedelta(seconds=cluster.loop.time()):%Y-%m-%dT%H:%M:%SZ}"
            note = {"metadata": {"annotations": {"multisched.io/checkpoint": at}}}
            await cluster.send("PATCH", f"{PODS}/job-saved", note, content_type=MERGE_PATCH)
        await create(cluster, "own", "gpu", cpu="4")
        await settled(cluster)
        assert (await cluster.pods())["own"]["status"].get("nominatedNodeName") == expected

    play(story, *(node(name, 4) for name in ("large", "saved", "small")))


def test_jobs_that_end_by_themselves_are_not_evicted() -> None:
    async def story(cluster: GpuCluster) -> None:
        for number in range(16):
            seconds = "15" if number < 6 else "1000"
            await create(cluster, f"job-{number}", "job", annotations={"multisched.io/run-seconds": seconds})
        await settled(cluster)
        await create(cluster, "own", "gpu", cpu="6")
        await asyncio.sleep(NOTICE_S + SLACK_S)
        assert await on_node(cluster, "own") == ["own"]
        shown = await loans(cluster)
        assert shown["recalls"]["evicted"] == 0
        marked = [
            name
            for name, one in (await cluster.pods()).items()
            if one["status"]["phase"] == "Running"
            and "multisched.io/loan-notice" in (one["metadata"].get("annotations") or {})
        ]
        assert marked == []

    play(story, node())


def test_loan_closes_at_the_end_of_its_hours_and_opens_again() -> None:
    async def story(cluster: GpuCluster) -> None:
        for number in range(4):
            await create(cluster, f"job-{number}", "job")
        await settled(cluster)
        assert len(await on_node(cluster, "job-")) == 4
        await asyncio.sleep(600.0 - cluster.loop.time() - 200.0)
        assert len(await on_node(cluster, "job-")) == 4
        await asyncio.sleep(200.0)
        assert await on_node(cluster, "job-") == []
        await create(cluster, "late", "job")
        await settled(cluster)
        assert "the loan from gpu is closed at this time" in cluster.waiting()["late"][1]
        await asyncio.sleep(120.0)
        assert await on_node(cluster, "late") == ["late"]

    assert (EPOCH.hour, EPOCH.minute) == (0, 0)
    play(
        story,
        node(),
        loan={"hours": [{"from": "00:12", "to": "00:10"}], "return": {"notice": "20s", "grace": "10s"}},
    )


def test_failover_in_a_recall_keeps_the_time_of_the_notice() -> None:
    async def story(cluster: GpuCluster) -> None:
        for number in range(16):
            await create(cluster, f"job-{number}", "job")
        await settled(cluster)
        began_s = cluster.loop.time()
        await create(cluster, "own", "gpu", cpu="5")
        await asyncio.sleep(8.0)
        leader = cluster.leader()
        assert leader is not None
        await cluster.kill(leader)
        cluster.start()

        async def bound() -> bool:
            return "own" in await on_node(cluster, "own")

        await cluster.until(bound, NOTICE_S)
        assert NOTICE_S <= cluster.loop.time() - began_s <= NOTICE_S + SLACK_S
        assert len(await on_node(cluster, "job-")) == 11

    play(story, node(), replicas=2)


def test_budget_protects_pods_until_the_deadline() -> None:
    async def story(cluster: GpuCluster) -> None:
        for number in range(16):
            await create(cluster, f"job-{number}", "job", labels={"app": "job"})
        budget = {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "all", "namespace": "default"},
            "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "job"}}},
        }
        await cluster.send("POST", "/apis/policy/v1/namespaces/default/poddisruptionbudgets", budget)
        await settled(cluster)
        began_s = cluster.loop.time()
        await create(cluster, "own", "gpu", cpu="5")
        await asyncio.sleep(NOTICE_S + SLACK_S)
        assert len(await on_node(cluster, "job-")) == 16

        async def bound() -> bool:
            return "own" in await on_node(cluster, "own")

        await cluster.until(bound, 60.0)
        assert 50.0 <= cluster.loop.time() - began_s <= 60.0 + SLACK_S  # deadline - grace
        assert (await loans(cluster))["recalls"]["deleted"] == 5

    play(story, node(), loan={"return": {"notice": f"{NOTICE_S:g}s", "grace": "10s", "deadline": "1m"}})


def test_gang_is_evicted_whole() -> None:
    async def story(cluster: GpuCluster) -> None:
        gang = {"pod-group.scheduling.sigs.k8s.io/name": "g", "pod-group.scheduling.sigs.k8s.io/min-available": "4"}
        for number in range(4):
            await create(cluster, f"gang-{number}", "job", cpu="4", labels=gang)
        await settled(cluster)
        assert len(await on_node(cluster, "gang-")) == 4
        await create(cluster, "own", "gpu", cpu="3")
        await asyncio.sleep(NOTICE_S + SLACK_S)
        assert await on_node(cluster, "own") == ["own"]
        assert await on_node(cluster, "gang-") == []

    play(story, node())


def use_of(cluster: GpuCluster, cores: dict[str, float]) -> None:
    """Lets the metrics API answer this use of pods; empty: it does not answer."""
    items = [
        {
            "metadata": {"name": name, "namespace": "default"},
            "containers": [{"name": "c", "usage": {"cpu": f"{one}", "memory": "0"}}],
        }
        for name, one in cores.items()
    ]
    found = Response(200, orjson.dumps({"metadata": {}, "items": items})) if cores else Response(503, b"")
    cluster.answer = lambda path: found if path == METRICS else None


def test_idle_capacity_follows_the_measured_use_of_the_lender() -> None:
    async def story(cluster: GpuCluster) -> None:
        await create(cluster, "own", "gpu", cpu="16")
        use_of(cluster, {"own": 2.0})
        await asyncio.sleep(40.0)
        for number in range(12):
            await create_idle(cluster, f"job-{number}")
        await create(cluster, "plain", "job", cpu="0")
        await asyncio.sleep(40.0)
        assert (
            len(await on_node(cluster, "job-")) == 6
        )  # 12 of 16 may be used; 2 are, and 3.2 more are expected at first
        assert "lends only idle capacity" in cluster.waiting()["plain"][1]
        use_of(cluster, {"own": 6.0})
        await asyncio.sleep(40.0 + NOTICE_S + SLACK_S)
        assert len(await on_node(cluster, "job-")) == 4
        use_of(cluster, {})
        await asyncio.sleep(400.0)
        assert (
            len(await on_node(cluster, "job-")) == 4
        )  # without a measurement nothing new is lent, and what is held stays
        await cluster.delete_pod(next(iter(await on_node(cluster, "job-"))))
        await asyncio.sleep(60.0)
        assert len(await on_node(cluster, "job-")) == 3

    play(story, node(), loan={"kind": "idle", "return": {"notice": f"{NOTICE_S:g}s", "grace": "10s"}})


async def create_idle(cluster: GpuCluster, name: str, cpu: str = "1") -> None:
    spec: Document = {"schedulerName": "job-scheduler", "restartPolicy": "Never", "terminationGracePeriodSeconds": 1}
    document = pod_document(name, container("c"), **spec)
    document["metadata"]["annotations"] = {"multisched.io/idle-request": f"cpu={cpu}"}
    await cluster.send("POST", PODS, document)

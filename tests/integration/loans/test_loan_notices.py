"""Notices of loans when writes fail, leaders change, or needs end: no pod is evicted without one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from multisched.model.wire import MERGE_PATCH, Response
from multisched.testing.builders import Document
from tests.integration.gpu.gpu_cluster import PODS, GpuCluster
from tests.integration.loans.test_loans import NOTICE_S, SLACK_S, create, node, on_node, play, settled

NOTICE = "multisched.io/loan-notice"
GANG = {"pod-group.scheduling.sigs.k8s.io/name": "g", "pod-group.scheduling.sigs.k8s.io/min-available": "2"}
FAILED = Response(500, b'{"kind":"Status","status":"Failure","code":500}')


def on_loan_until(pod: Document) -> str | None:
    found: str | None = (pod["metadata"].get("annotations") or {}).get(NOTICE)
    return found


async def with_notice(cluster: GpuCluster) -> list[str]:
    """Returns the pods on nodes that have a notice."""
    return [
        name
        for name, pod in (await cluster.pods()).items()
        if on_loan_until(pod) and pod["spec"].get("nodeName") and pod["status"]["phase"] in ("Pending", "Running")
    ]


async def fill(cluster: GpuCluster, count: int = 16, **more: Any) -> None:
    for number in range(count):
        await create(cluster, f"job-{number}", "job", **more)
    await settled(cluster)
    assert len(await on_node(cluster, "job-")) == count


async def kill_leader(cluster: GpuCluster) -> None:
    leader = cluster.leader()
    assert leader is not None
    await cluster.kill(leader)
    cluster.start()


def test_notice_that_the_server_refuses_for_a_while_runs_from_when_it_is_written() -> None:
    async def story(cluster: GpuCluster) -> None:
        await fill(cluster)
        cluster.answer = lambda path: FAILED if path.endswith("/status") and "/job-" in path else None
        await create(cluster, "own", "gpu", cpu="5")
        await asyncio.sleep(NOTICE_S + SLACK_S)
        assert len(await on_node(cluster, "job-")) == 16
        cluster.answer = lambda path: None
        await settled(cluster)
        assert len(await with_notice(cluster)) == 5
        await asyncio.sleep(NOTICE_S - 2 * SLACK_S)
        assert len(await on_node(cluster, "job-")) == 16
        await asyncio.sleep(3 * SLACK_S)
        assert await on_node(cluster, "own") == ["own"]

    play(story, node())


def test_standby_process_gives_no_notice_by_itself() -> None:
    """The lender takes free capacity, which each process sees. The leader cannot write, and is killed when a notice would be over."""

    async def story(cluster: GpuCluster) -> None:
        await fill(cluster, 8)
        cluster.answer = lambda path: FAILED if path.endswith("/status") and "/job-" in path else None
        await create(cluster, "own", "gpu", cpu="8")
        await asyncio.sleep(NOTICE_S + SLACK_S)
        await kill_leader(cluster)
        cluster.answer = lambda path: None
        await asyncio.sleep(NOTICE_S - SLACK_S)
        assert (len(await on_node(cluster, "job-")), len(await with_notice(cluster))) == (8, 4)

    play(story, node(), loan={"sharePercent": 50, "return": {"notice": f"{NOTICE_S:g}s", "grace": "10s"}}, replicas=2)


@pytest.mark.parametrize("is_withdrawal_refused", [False, True])
def test_notices_of_a_killed_leader_are_withdrawn_when_the_need_has_ended(is_withdrawal_refused: bool) -> None:
    async def story(cluster: GpuCluster) -> None:
        await fill(cluster)
        await create(cluster, "own", "gpu", cpu="5")
        await settled(cluster)
        assert len(await with_notice(cluster)) == 5
        await kill_leader(cluster)
        await cluster.delete_pod("own")
        if is_withdrawal_refused:
            cluster.answer = lambda path: FAILED if path.endswith("/status") and "/job-" in path else None
        await asyncio.sleep(2 * NOTICE_S)
        cluster.answer = lambda path: None
        await settled(cluster)
        assert await with_notice(cluster) == []
        await create(cluster, "later", "gpu", cpu="5")
        await asyncio.sleep(NOTICE_S - SLACK_S)
        assert len(await on_node(cluster, "job-")) == 16
        await asyncio.sleep(2 * SLACK_S)
        assert await on_node(cluster, "later") == ["later"]

    play(story, node(), replicas=2)


def test_notice_that_a_user_wrote_does_not_shorten_the_real_one() -> None:
    async def story(cluster: GpuCluster) -> None:
        await fill(cluster)
        forged = {"metadata": {"annotations": {NOTICE: "2020-01-01T00:00:00Z"}}}
        for number in range(16):
            await cluster.send("PATCH", f"{PODS}/job-{number}", forged, content_type=MERGE_PATCH)
        await asyncio.sleep(NOTICE_S)
        await create(cluster, "own", "gpu", cpu="5")
        await asyncio.sleep(NOTICE_S - SLACK_S)
        assert len(await on_node(cluster, "job-")) == 16
        await asyncio.sleep(2 * SLACK_S)
        assert await on_node(cluster, "own") == ["own"]

    play(story, node())


def test_new_leader_finishes_a_gang_of_which_one_member_was_evicted() -> None:
    async def story(cluster: GpuCluster) -> None:
        for name in ("gang-0", "gang-1"):
            await create(cluster, name, "job", cpu="16", labels=GANG)
        await settled(cluster)
        assert len(await on_node(cluster, "gang-")) == 2
        cluster.answer = lambda path: FAILED if path.endswith("gang-1/eviction") else None
        await create(cluster, "own", "gpu", cpu="3", spec={"nodeName": None})
        await asyncio.sleep(NOTICE_S + SLACK_S)
        if len(await on_node(cluster, "gang-")) == 2:  # the first one was refused: none is evicted alone
            cluster.answer = lambda path: FAILED if path.endswith("gang-0/eviction") else None
            await asyncio.sleep(SLACK_S)
        assert len(await on_node(cluster, "gang-")) == 1
        await kill_leader(cluster)
        cluster.answer = lambda path: None
        await asyncio.sleep(SLACK_S)
        assert await on_node(cluster, "gang-") == []

    play(story, node("a"), node("b"), replicas=2)


def test_pods_refused_for_a_need_are_tried_again_when_it_ends() -> None:
    async def story(cluster: GpuCluster) -> None:
        await fill(cluster, 15)
        await create(cluster, "own", "gpu", cpu="2")
        await settled(cluster)
        await create(cluster, "job-late", "job")
        await settled(cluster)
        assert await on_node(cluster, "job-late") == []
        await cluster.delete_pod("own")
        await asyncio.sleep(2 * SLACK_S)
        assert await on_node(cluster, "job-late") == ["job-late"]

    play(story, node())


def test_gang_of_the_lender_keeps_what_it_needs_on_each_of_its_nodes() -> None:
    """One of its nodes has room already; another pod of the borrower waits for it."""

    async def story(cluster: GpuCluster) -> None:
        for name in ("a", "b"):
            for number in range(7):
                await create(
                    cluster,
                    f"job-{name}-{number}",
                    "job",
                    cpu="2",
                    spec={"nodeSelector": {"kubernetes.io/hostname": name}},
                )
        await settled(cluster)
        await create(cluster, "job-b-last", "job", cpu="2", spec={"nodeSelector": {"kubernetes.io/hostname": "b"}})
        await settled(cluster)
        assert len(await on_node(cluster, "job-")) == 15
        for name in ("own-0", "own-1"):
            await create(cluster, name, "gpu", cpu="2", labels=GANG)
        await settled(cluster)
        for number in range(3):
            await create(cluster, f"job-late-{number}", "job", cpu="2")
        await asyncio.sleep(NOTICE_S + 3 * SLACK_S)
        assert len(await on_node(cluster, "own-")) == 2
        assert len(await on_node(cluster, "job-")) == 14

    play(story, node("a"), node("b"))

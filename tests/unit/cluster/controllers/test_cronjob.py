"""What CronJobs start, keep and clear away; in process and on virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from multisched.cluster.client.object_client import CRON_JOBS, JOBS, PODS, Document
from multisched.cluster.kubelet.stages_builtin import CHAOS_LABEL
from tests.unit.cluster.cluster_kit import Fleet, a_cluster, a_job, a_node, condition_of

pytestmark = pytest.mark.looptime

SLOW = {"multisched.io/run-seconds": "150"}


async def a_cron_job(cluster: Fleet, *, job: Document | None = None, **spec: Any) -> Document:
    """Every minute; the first is due one minute after the epoch of virtual time."""
    template = {"metadata": {"labels": {"from": "cron"}}, "spec": (job or a_job("x"))["spec"]}
    body = {"metadata": {"name": "tick"}, "spec": {"schedule": "* * * * *", "jobTemplate": template, **spec}}
    return await cluster.create(CRON_JOBS, body)


async def test_job_starts_every_minute_and_the_oldest_are_deleted_with_their_pods() -> None:
    async with a_cluster(a_node()) as cluster:
        await a_cron_job(cluster)
        await asyncio.sleep(5 * 60 + 10)

        jobs = await cluster.list_all(JOBS)
        assert [j["metadata"]["annotations"]["batch.kubernetes.io/cronjob-scheduled-timestamp"] for j in jobs] == [
            f"2026-01-01T00:0{minute}:00Z" for minute in (3, 4, 5)
        ]
        assert all(condition_of(job, "Complete") and job["metadata"]["labels"] == {"from": "cron"} for job in jobs)
        assert len(await cluster.list_all(PODS)) == 3
        status = (await cluster.wait_until(CRON_JOBS, "tick", lambda c: True))["status"]
        assert status["lastScheduleTime"] == "2026-01-01T00:05:00Z"
        assert status["lastSuccessfulTime"] >= "2026-01-01T00:05:01Z"
        assert not status.get("active")


@pytest.mark.parametrize(
    ("policy", "most_active", "started"),
    [("Allow", 3, 4), ("Forbid", 1, 2), ("Replace", 1, 4)],
)
async def test_concurrency_policy_decides_about_a_job_that_still_runs(
    policy: str, most_active: int, started: int
) -> None:
    async with a_cluster(a_node()) as cluster:
        await a_cron_job(cluster, job=a_job("x", annotations=SLOW), concurrencyPolicy=policy)
        seen: set[str] = set()
        most = 0
        async with asyncio.timeout(1000):
            while cluster.clock.monotonic() < 4 * 60 + 5:
                jobs = await cluster.list_all(JOBS)
                seen |= {job["metadata"]["uid"] for job in jobs}
                most = max(most, sum(not condition_of(job, "Complete") for job in jobs))
                await asyncio.sleep(1)

        assert (most, len(seen)) == (most_active, started)


async def test_resumed_cron_job_starts_one_missed_job() -> None:
    async with a_cluster(a_node()) as cluster:
        await a_cron_job(cluster, suspend=True)
        await asyncio.sleep(10 * 60 + 30)
        assert await cluster.list_all(JOBS) == []

        await cluster.patch(CRON_JOBS, "tick", {"spec": {"suspend": False}})
        await asyncio.sleep(5)

        assert len(await cluster.list_all(JOBS)) == 1


async def test_time_missed_beyond_the_starting_deadline_is_skipped() -> None:
    async with a_cluster(a_node()) as cluster:
        await a_cron_job(cluster, suspend=True, startingDeadlineSeconds=10)
        await asyncio.sleep(10 * 60 + 30)
        await cluster.patch(CRON_JOBS, "tick", {"spec": {"suspend": False}})
        await asyncio.sleep(5)
        assert await cluster.list_all(JOBS) == []

        await asyncio.sleep(30)
        assert len(await cluster.list_all(JOBS)) == 1


async def test_failed_jobs_have_a_separate_history_limit() -> None:
    async with a_cluster(a_node()) as cluster:
        failing = a_job("x", labels={CHAOS_LABEL: "container-failed"}, backoffLimit=0)
        await a_cron_job(cluster, job=failing, failedJobsHistoryLimit=2)
        await asyncio.sleep(5 * 60 + 20)

        jobs = await cluster.list_all(JOBS)
        assert len(jobs) == 2
        assert all(condition_of(job, "Failed") for job in jobs)


async def test_unreadable_schedule_affects_no_other_cron_job() -> None:
    async with a_cluster(a_node()) as cluster:
        answer = await cluster.client.create(
            CRON_JOBS,
            "default",
            {
                "apiVersion": "batch/v1",
                "kind": "CronJob",
                "metadata": {"name": "odd"},
                "spec": {"schedule": "61 * * * *", "jobTemplate": {"spec": a_job("x")["spec"]}},
            },
        )
        assert answer.status in (201, 422)  # a server may refuse it; the controller must live with one that does not
        await a_cron_job(cluster)
        await asyncio.sleep(70)

        assert [job["metadata"]["name"].split("-")[0] for job in await cluster.list_all(JOBS)] == ["tick"]


async def test_manually_created_job_does_not_count_as_active() -> None:
    async with a_cluster(a_node()) as cluster:
        cron_job = await a_cron_job(cluster, job=a_job("x", annotations=SLOW), concurrencyPolicy="Forbid")
        by_hand = a_job("by-hand", annotations=SLOW)
        owner = {"apiVersion": "batch/v1", "kind": "CronJob", "name": "tick", "uid": cron_job["metadata"]["uid"]}
        by_hand["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
        await cluster.create(JOBS, by_hand)
        ticked = await cluster.wait_until(CRON_JOBS, "tick", lambda found: (found.get("status") or {}).get("active"))

        assert [reference["name"] for reference in ticked["status"]["active"]] != ["by-hand"]
        assert len(ticked["status"]["active"]) == 1

"""Deadlines with the whole program: run times are learned from Jobs, kept across a restart, and order the queue."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest

from domains.job.commands.answers import tables
from domains.job.deadlines.deadline_sort import DeadlineSort
from multisched.cluster.controllers.run import run_controllers
from multisched.framework.views import NoViewError, ViewQuery
from multisched.shell.plugin_views import ProgramViews
from multisched.testing.builders import Document, node_document
from multisched.testing.sim_loop import SimLoop, simulate
from tests.integration.gpu.gpu_cluster import GpuCluster, Replica, open_gpu_cluster
from tests.integration.gpu.tide_cluster import at_once

CONFIGURATION = """
apiVersion: multisched.io/v1
kind: MultischedConfiguration
domains:
- {name: job}
client: {bindTimeout: 900ms}
lease: {duration: 2s, renewDeadline: 1s, retryPeriod: 200ms}
"""
JOBS, CRON_JOBS = "/apis/batch/v1/namespaces/default/jobs", "/apis/batch/v1/namespaces/default/cronjobs"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
STORED_S = 70.0
"""Run times are stored once a minute."""


def run(story: Callable[[GpuCluster], Awaitable[None]], *, cpu: int, seed: int = 1) -> None:
    """Runs the story in a cluster of one virtual node."""
    loop = SimLoop(seed)
    node = node_document("n", cpu=cpu, memory="1Ti", pods=1000, labels={"type": "virtual-kubelet"})

    async def main() -> None:
        async with open_gpu_cluster(loop, node, seed=seed, configuration=CONFIGURATION) as cluster:
            controllers = asyncio.ensure_future(
                run_controllers(cluster.api, clock=cluster.clock, rng=random.Random(seed))
            )
            try:
                await story(cluster)
                assert cluster.differences() == []
            finally:
                controllers.cancel()
                await asyncio.gather(controllers, return_exceptions=True)

    simulate(main(), loop)


def job_spec(run_s: float, pods: int, deadline: str = "", **spec: Any) -> Document:
    annotations = {"multisched.io/run-seconds": f"{run_s:g}"} | (
        {"multisched.io/deadline": deadline} if deadline else {}
    )
    container = {"name": "c", "image": "worker", "resources": {"requests": {"cpu": "1"}}}
    template = {
        "metadata": {"annotations": annotations},
        "spec": {"schedulerName": "job-scheduler", "restartPolicy": "Never", "containers": [container]},
    }
    return {"completions": pods, "parallelism": pods, "template": template, **spec}


async def add_job(cluster: GpuCluster, name: str, run_s: float, pods: int = 1, deadline: str = "", **spec: Any) -> None:
    await cluster.send("POST", JOBS, {"metadata": {"name": name}, "spec": job_spec(run_s, pods, deadline, **spec)})


async def ended(cluster: GpuCluster, name: str, pods: int = 1) -> None:
    async def holds() -> bool:
        return bool((await cluster.send("GET", f"{JOBS}/{name}"))["status"].get("succeeded", 0) == pods)

    await cluster.until(holds, 300.0)


def plugin_of(replica: Replica) -> DeadlineSort:
    built = replica.program.router.workers()[0].plugins.built
    return next(one.plugin for one in built if isinstance(one.plugin, DeadlineSort))


async def view(cluster: GpuCluster) -> Document:
    program = cluster.replicas[0].program
    found: Document = orjson.loads(await ProgramViews(program, at_once).document("jobs", ViewQuery("now")))
    return found


def test_limit_of_the_document_is_that_of_pods_and_owners() -> None:
    async def story(cluster: GpuCluster) -> None:
        await add_job(cluster, "first", 1000.0, pods=5)
        await asyncio.sleep(10.0)
        views = ProgramViews(cluster.replicas[0].program, at_once)
        for limit, shown in (("2", 2), ("100", 4)):
            found = orjson.loads(await views.document("jobs", ViewQuery("now", {"limit": limit})))
            assert (found["waiting"], len(found["pods"])) == (4, shown)
        for limit in ("0", "-1", "many", "20001", "9" * 50):
            with pytest.raises(NoViewError, match=r"write a number within 1\.\.20000"):
                await views.document("jobs", ViewQuery("now", {"limit": limit}))

    run(story, cpu=1)


def owner_of(found: Document, name: str) -> Document:
    return next(one for one in found["owners"] if one["owner"] == name)


def test_run_times_are_learned_and_a_restart_keeps_them() -> None:
    async def story(cluster: GpuCluster) -> None:
        await add_job(cluster, "report", 30.0, pods=3)
        await ended(cluster, "report", 3)
        await asyncio.sleep(STORED_S)
        before = owner_of(await view(cluster), "Job/report")
        assert before["runs"] == 3
        assert 29.0 <= before["p90Seconds"] <= 33.0
        await cluster.send("DELETE", f"{JOBS}/report?propagationPolicy=Background")
        await asyncio.sleep(5.0)  # its pods are deleted, so that only the document has their run times
        await cluster.kill(cluster.replicas[0])
        cluster.start()
        await asyncio.sleep(10.0)
        after = owner_of(await view(cluster), "Job/report")
        assert {**after, "ageSeconds": 0} == {**before, "ageSeconds": 0}

    run(story, cpu=8)


def test_a_restart_learns_no_run_twice() -> None:
    async def story(cluster: GpuCluster) -> None:
        await add_job(cluster, "report", 5.0, pods=2)
        await ended(cluster, "report", 2)
        await asyncio.sleep(STORED_S)
        await cluster.kill(cluster.replicas[0])
        cluster.start()
        await asyncio.sleep(10.0)
        assert owner_of(await view(cluster), "Job/report")["runs"] == 2

    run(story, cpu=8)


def test_jobs_of_one_cron_job_are_one_owner_with_the_next_run_as_deadline() -> None:
    async def story(cluster: GpuCluster) -> None:
        spec = {"schedule": "*/5 * * * *", "jobTemplate": {"spec": job_spec(400.0, 2)}}
        await cluster.send("POST", CRON_JOBS, {"metadata": {"name": "settle"}, "spec": spec})

        async def waits() -> bool:
            return len((await view(cluster))["pods"]) == 1

        await cluster.until(waits, 600.0)
        found = await view(cluster)
        assert [one["deadlineFrom"] for one in found["pods"]] == ["next run"]
        assert found["pods"][0]["deadline"].endswith(("0:00Z", "5:00Z"))
        assert "next run" in tables(found | {"units": []}, is_wide=False)
        pod = cluster.replicas[0].program.router.workers()[0].queue.sorting.pods()[0]
        assert plugin_of(cluster.replicas[0]).starts.run_key_of(pod).owner == "CronJob/settle"

    run(story, cpu=1)


def test_the_queue_is_in_the_order_of_latest_starts() -> None:
    async def story(cluster: GpuCluster) -> None:
        await add_job(cluster, "first", 20.0)
        await cluster.until(lambda: _is_bound(cluster, 1))
        await add_job(cluster, "patient", 1.0)
        await add_job(cluster, "late", 1.0, deadline="30m")
        await add_job(cluster, "soon", 1.0, deadline="10m")
        await add_job(cluster, "active", 1.0, activeDeadlineSeconds=300)
        await asyncio.sleep(8.0)
        plugin = plugin_of(cluster.replicas[0])
        queued = cluster.replicas[0].program.router.workers()[0].queue.sorting.pods()
        active = next(pod for pod in queued if pod.name.startswith("active"))
        note = plugin.note_on_pending(active, cluster.clock.now().timestamp())
        assert "deadline (activeDeadlineSeconds) in" in note
        for name in ("first", "patient", "late", "soon", "active"):
            await ended(cluster, name)
        bound = [one.pod.rsplit("-", 1)[0] for one in cluster.bound]
        assert bound == ["first", "active", "soon", "late", "patient"]

    run(story, cpu=1)


async def _is_bound(cluster: GpuCluster, count: int) -> bool:
    return len(cluster.bound) == count


def test_a_misspelt_deadline_is_reported_and_the_pod_is_scheduled() -> None:
    async def story(cluster: GpuCluster) -> None:
        await add_job(cluster, "odd", 1.0, deadline="tomorrow")
        await ended(cluster, "odd")
        await asyncio.sleep(2.0)
        notes = [one["note"] for one in (await cluster.send("GET", EVENTS))["items"] if one["reason"] == "IgnoredKey"]
        assert len(notes) == 1
        assert notes[0].startswith(
            "annotation multisched.io/deadline has no effect: 'tomorrow' is not a deadline; write a time"
        )

    run(story, cpu=1)

"""Serverless units with the whole program, fake virtual kubelets and their provider, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from domains.job.deadlines.deadline_sort import DeadlineSort
from domains.job.deadlines.wait_task import WaitTask
from domains.job.providers.breaker import FAILURES_TO_OPEN
from multisched.cluster.controllers.run import run_controllers
from multisched.cluster.kubelet.provider import PROVIDER_ANNOTATION, ProviderAccount, ProviderSettings, ScriptedFailure
from multisched.testing.builders import Document, container, pod_document
from tests.integration.gpu.gpu_cluster import PODS, GpuCluster, Replica
from tests.integration.job.serverless_cluster import OWNER, Story, nodes_of, play_units


def play(story: Story, *nodes: Document, burst: int = 20, rate: float = 10.0, **options: Any) -> None:
    first = {"rate": {"burst": burst, "perSecond": rate}, "quota": {"pods": 5000}, "sandboxTimeout": "30s"}
    play_units(story, {"first": first, "second": {}}, *nodes, **options)


def account(cluster: GpuCluster, name: str) -> ProviderAccount:
    return cluster.kubelets.virtual.accounts[name]


def waits_of(replica: Replica) -> WaitTask:
    built = replica.program.router.workers()[0].plugins.built
    return next(one.plugin.waits for one in built if isinstance(one.plugin, DeadlineSort))


async def create(
    cluster: GpuCluster,
    count: int,
    *,
    prefix: str = "pod",
    image: str = "registry.example/app:v1",
    owner: Document | None = OWNER,
    labels: Mapping[str, str] = {},
    **spec: Any,
) -> None:
    for number in range(count):
        one = {**container("c", cpu="100m"), "image": image}
        document = pod_document(
            f"{prefix}-{number}", one, schedulerName="job-scheduler", **{"restartPolicy": "Never"} | spec
        )
        document["metadata"] |= {"labels": dict(labels), "ownerReferences": [] if owner is None else [owner]}
        await cluster.send("POST", PODS, document)


async def phases(cluster: GpuCluster) -> dict[str, int]:
    found: dict[str, int] = {}
    for pod in (await cluster.pods()).values():
        found[pod["status"]["phase"]] = found.get(pod["status"]["phase"], 0) + 1
    return found


async def change(cluster: GpuCluster, name: str, settings: ProviderSettings, count: int = 2) -> None:
    for node in nodes_of(name, settings, count):
        text = node["metadata"]["annotations"][PROVIDER_ANNOTATION]
        await cluster.patch_node(node["metadata"]["name"], {"metadata": {"annotations": {PROVIDER_ANNOTATION: text}}})


ECI = ProviderSettings(startupSeconds=2.0, syncBurst=1000, syncPerSecond=1000.0)
FAST = ProviderSettings(burst=20, perSecond=10.0, startupSeconds=2.0, syncBurst=1000, syncPerSecond=1000.0)


JOBS = "/apis/batch/v1/namespaces/default/jobs"
SLOW_START_S = 2.0
"""Tokens of so long are lost at the begin of a burst, while the first sandboxes show that the provider works."""
JOB_RETRIES = 6
"""Default backoffLimit of a Job: one more failed pod ends it."""


def test_binds_keep_to_the_rate_of_the_provider_which_throttles_none() -> None:
    async def story(cluster: GpuCluster) -> None:
        began_s = cluster.loop.time()
        await create(cluster, 320)

        async def all_bound() -> bool:
            return len(cluster.bound) == 320

        await cluster.until(all_bound, 60.0)
        fluid_s = (320 - 17) / 10.0  # three tokens of the burst are kept
        assert cluster.loop.time() - began_s <= fluid_s + 0.5 + SLOW_START_S
        await asyncio.sleep(5.0)
        counts = account(cluster, "first").statistics()
        assert (counts.creates, counts.throttled) == (320, 0)
        assert "Failed" not in await phases(cluster)

    play(story, *nodes_of("first", FAST))


def test_predicted_starts_respect_the_rate() -> None:
    async def story(cluster: GpuCluster) -> None:
        await create(cluster, 320)
        await asyncio.sleep(12.0)
        waits = waits_of(cluster.replicas[0])
        at_s, predicted_s = waits.at_s, sorted(wait.start_s or 0.0 for wait in waits.found.values())
        offset_s = cluster.clock.now().timestamp() - cluster.loop.time()
        assert len(predicted_s) >= 200

        async def all_bound() -> bool:
            return len(cluster.bound) == 320

        await cluster.until(all_bound, 60.0)
        bound_s = sorted(one.at_s + offset_s - at_s for one in cluster.bound)[-len(predicted_s) :]
        late_s = [
            one - other for one, other in zip(bound_s, predicted_s, strict=True)
        ]  # any of equal pods may be the next
        assert -0.5 <= min(late_s) <= max(late_s) <= 0.5
        assert max(predicted_s) >= 19.0

    play(story, *nodes_of("first", FAST))


def test_only_the_leader_predicts_and_the_next_one_begins_at_once() -> None:
    async def story(cluster: GpuCluster) -> None:
        await create(cluster, 320)
        await asyncio.sleep(8.0)
        leader = cluster.leader()
        assert leader is not None
        (standby,) = [one for one in cluster.replicas if one is not leader]
        assert waits_of(leader).found
        assert not waits_of(standby).found
        await cluster.kill(leader)

        async def leads() -> bool:
            return cluster.leader() is standby

        await cluster.until(leads, 10.0)
        await asyncio.sleep(1.5)
        assert waits_of(standby).found

    play(story, *nodes_of("first", FAST), replicas=2)


def test_rate_that_is_halved_unannounced_is_learned() -> None:
    async def story(cluster: GpuCluster) -> None:
        await create(cluster, 40, prefix="before")
        await asyncio.sleep(5.0)
        await change(cluster, "first", msgspec.structs.replace(FAST, perSecond=5.0))
        await create(cluster, 280)
        await asyncio.sleep(45.0)
        counts = account(cluster, "first").statistics()
        failed = (await phases(cluster)).get("Failed", 0)
        assert counts.throttled == failed <= 0.05 * counts.creates
        recent = [call for call in account(cluster, "first").calls if call.at_s >= cluster.loop.time() - 15.0]
        assert len(recent) >= 0.9 * 5.0 * 15.0, "relearned within 30 s"

    play(story, *nodes_of("first", FAST))


def test_unit_whose_sandboxes_fail_is_left_for_the_next_and_probed() -> None:
    async def story(cluster: GpuCluster) -> None:
        outage = msgspec.structs.replace(FAST, failures=(ScriptedFailure("503 Service Unavailable"),))
        await change(cluster, "first", outage, 1)
        await asyncio.sleep(1.0)
        for number in range(60):
            await create(cluster, 1, prefix=f"slow-{number}", nodeSelector={"type": "virtual-kubelet"})
            await asyncio.sleep(0.5)
        refused = account(cluster, "first").statistics().refused
        assert refused <= 3 + 4 + 10, "three in a row, probes, and creates that were in flight"
        assert account(cluster, "second").statistics().creates >= 45
        failed_s = [call.at_s for call in account(cluster, "first").calls if call.outcome == "refused"]
        next_s = min(call.at_s for call in account(cluster, "second").calls if call.at_s > failed_s[2])
        assert next_s - failed_s[2] <= 2.0

        await change(cluster, "first", FAST, 1)
        recovered_s, created = cluster.loop.time(), account(cluster, "first").statistics().running

        async def is_used_again() -> bool:
            await create(cluster, 1, prefix=f"again-{cluster.loop.time()}")
            await asyncio.sleep(0.5)
            return account(cluster, "first").statistics().running > created + 3

        await cluster.until(is_used_again, 60.0)
        assert cluster.loop.time() - recovered_s <= 30.0 + 5.0

    play(story, *nodes_of("first", FAST, 1), *nodes_of("second", FAST, 1))


@asynccontextmanager
async def controllers_of(cluster: GpuCluster) -> AsyncIterator[None]:
    running = asyncio.ensure_future(run_controllers(cluster.api, clock=cluster.clock, rng=random.Random(1)))
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("has_next_unit", [False, True])
def test_outage_of_a_minute_during_a_burst_fails_no_job(has_next_unit: bool) -> None:
    async def story(cluster: GpuCluster) -> None:
        outage = msgspec.structs.replace(ECI, failures=(ScriptedFailure("503 Service Unavailable"),))
        await change(cluster, "first", outage)
        await asyncio.sleep(1.0)
        async with controllers_of(cluster):
            one = {**container("c", cpu="100m"), "image": "registry.example/app:v1"}
            pods = {"schedulerName": "job-scheduler", "restartPolicy": "Never", "containers": [one]}
            spec = {"completions": 200, "parallelism": 200, "template": {"spec": pods}}
            await cluster.send("POST", JOBS, {"metadata": {"name": "burst"}, "spec": spec})
            await asyncio.sleep(60.0)
            assert FAILURES_TO_OPEN <= (await phases(cluster))["Failed"] <= JOB_RETRIES

            await change(cluster, "first", ECI)
            recovered_s = cluster.loop.time()

            async def has_ended() -> bool:
                found = (await cluster.send("GET", f"{JOBS}/burst"))["status"]
                return bool(found.get("succeeded", 0) == 200 or found.get("conditions"))

            await cluster.until(
                has_ended, 900.0
            )  # the Job controller waits 10 s, doubled for each failure, before it replaces pods
            status = (await cluster.send("GET", f"{JOBS}/burst"))["status"]
            assert (status["succeeded"], status["failed"]) == (200, (await phases(cluster))["Failed"])
        created_s = [call.at_s for call in account(cluster, "first").calls if call.outcome == "created"]
        assert has_next_unit or min(created_s) - recovered_s <= 30.0

    nodes = [*nodes_of("first", ECI), *(nodes_of("second", ECI) if has_next_unit else ())]
    play(story, *nodes, burst=100, rate=20.0)


def test_outage_in_the_middle_of_a_burst_is_noticed_although_earlier_sandboxes_still_start() -> None:
    async def story(cluster: GpuCluster) -> None:
        await create(cluster, 600)
        await asyncio.sleep(12.0)
        before = (await phases(cluster))["Running"]
        outage = msgspec.structs.replace(ECI, failures=(ScriptedFailure("503 Service Unavailable"),))
        await change(cluster, "first", outage)
        await asyncio.sleep(60.0)
        found = await phases(cluster)
        assert before >= 100
        assert found["Failed"] <= JOB_RETRIES
        assert found["Pending"] >= 200
        attempts = cluster.replicas[0].program.router.workers()[0].counters.attempts
        assert attempts <= 10 * 600, "pods that end requeue few of those that wait for tokens"

    play(story, *nodes_of("first", ECI), burst=100, rate=20.0)


@pytest.mark.parametrize("rate", [10.0, 0.2])
def test_place_of_an_ended_pod_in_a_quota_is_used_as_soon_as_the_rate_allows(rate: float) -> None:
    async def story(cluster: GpuCluster) -> None:
        await create(cluster, 12)
        free_s, bound = 0.0, 0
        while len(cluster.bound) < 12:
            await asyncio.sleep(0.1)
            found = await phases(cluster)
            running = found.get("Running", 0) + found.get("Pending", 0) - (12 - len(cluster.bound))
            free_s = free_s + 0.1 if running < 5 and len(cluster.bound) == bound else 0.0
            bound = len(cluster.bound)
            assert free_s <= 1.0 / rate + 3.0, "a new process keeps all its tokens for 2 s"

    first = {"rate": {"burst": 3, "perSecond": rate}, "quota": {"pods": 5}}
    play_units(story, {"first": first}, *nodes_of("first", FAST))


def test_stuck_pods_are_evicted_only_if_a_controller_replaces_them() -> None:
    async def story(cluster: GpuCluster) -> None:
        await change(cluster, "first", msgspec.structs.replace(FAST, failures=(ScriptedFailure("no pull secret"),)), 1)
        await asyncio.sleep(1.0)
        await create(cluster, 1, prefix="owned", restartPolicy="Always")
        await create(cluster, 1, prefix="bare", owner=None, restartPolicy="Always")
        await asyncio.sleep(60.0)
        assert set(await cluster.pods()) == {"bare-0"}
        reasons = {one["reason"]: one["note"] for one in (await cluster.send("GET", EVENTS))["items"]}
        assert "SandboxTimeout" in reasons
        assert "no controller" in reasons["SandboxStuck"]
        assert "SandboxFailed" in reasons

    play(story, *nodes_of("first", FAST, 1))


EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"


def test_template_that_is_refused_for_good_uses_the_next_unit() -> None:
    async def story(cluster: GpuCluster) -> None:
        refused = ScriptedFailure("InvalidParameter.Image: the image is not allowed", labels={"app": "bad"})
        await change(cluster, "first", msgspec.structs.replace(FAST, failures=(refused,)), 1)
        await asyncio.sleep(1.0)
        for number in range(20):
            bad: dict[str, Any] = {"image": "registry.example/bad:1", "labels": {"app": "bad"}}
            await create(cluster, 1, prefix=f"bad-{number}", **bad)
            await create(cluster, 1, prefix=f"good-{number}")
            await asyncio.sleep(3.0)
        found = await cluster.pods()
        failed = [name for name, pod in found.items() if pod["status"]["phase"] == "Failed"]
        assert len(failed) <= 1, "the first pod finds out"
        assert account(cluster, "first").statistics().refused == len(failed)

    play(story, *nodes_of("first", FAST, 1), *nodes_of("second", FAST, 1))


def test_daemon_pods_use_no_virtual_node() -> None:
    async def story(cluster: GpuCluster) -> None:
        owner = {**OWNER, "kind": "DaemonSet", "apiVersion": "apps/v1"}
        await create(cluster, 1, prefix="daemon", owner=owner)
        await create(cluster, 1)
        await asyncio.sleep(3.0)
        assert [one.pod for one in cluster.bound] == ["pod-0"]
        state, message = cluster.waiting()["daemon-0"]
        assert state == "unschedulable"
        assert "virtual nodes run no pods of DaemonSets" in message

    play(story, *nodes_of("first", FAST, 1))


@pytest.mark.parametrize("kills", [3])
def test_tokens_are_respected_after_a_failover(kills: int) -> None:
    async def story(cluster: GpuCluster) -> None:
        await create(cluster, 200)
        for _ in range(kills):
            await asyncio.sleep(4.0)
            leader = cluster.leader()
            if leader is not None:
                await cluster.kill(leader)
                cluster.start()

        async def all_started() -> bool:
            return len({one.pod for one in cluster.bound}) == 200

        await cluster.until(all_started, 90.0)
        await asyncio.sleep(5.0)
        assert account(cluster, "first").statistics().throttled <= 0.05 * 200
        assert cluster.differences() == []

    play(story, *nodes_of("first", FAST), replicas=2)

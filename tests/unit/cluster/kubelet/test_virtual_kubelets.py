"""What virtual kubelets do with pods, on virtual time: creates, refusals, retries, deletions, and the rate of the provider."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from multisched.cluster.client.object_client import EVENTS, JOBS, NODES, PODS, Document
from multisched.cluster.kubelet.provider import (
    PROVIDER_ANNOTATION,
    ProviderAccount,
    ProviderError,
    ProviderSettings,
    ScriptedFailure,
    parse_settings,
)
from multisched.cluster.virtual_nodes import virtual_nodes
from tests.unit.cluster.cluster_kit import EPOCH, Fleet, a_cluster, a_job, a_pod

pytestmark = pytest.mark.looptime

UNPACED = ProviderSettings(burst=100_000, syncBurst=100_000, startupSeconds=0.0)


def outage(since_s: float, until_s: float, message: str = "503 Service Unavailable") -> ScriptedFailure:
    return ScriptedFailure(message, EPOCH + timedelta(seconds=since_s), EPOCH + timedelta(seconds=until_s))


@asynccontextmanager
async def a_provider(count: int = 1, controllers: bool = False, **settings: Any) -> AsyncIterator[Fleet]:
    nodes = virtual_nodes(count, msgspec.structs.replace(UNPACED, **settings), {"cpu": "1"})
    async with a_cluster(*nodes, controllers=controllers) as cluster:
        yield cluster


def account_of(cluster: Fleet) -> ProviderAccount:
    return cluster.kubelets.virtual.accounts["serverless"]


async def create(cluster: Fleet, *names: str, node: int = 0, **fields: Any) -> None:
    for name in names:
        await cluster.create(PODS, a_pod(name, node=f"serverless-{node:03d}", **fields))


async def status_of(cluster: Fleet, name: str) -> Document:
    pod = await cluster.get(PODS, name)
    assert pod is not None
    return dict(pod["status"])


async def reasons(cluster: Fleet, name: str) -> list[tuple[str, str, int]]:
    events = [one for one in await cluster.list_all(EVENTS) if one["involvedObject"]["name"] == name]
    return sorted((one["type"], one["reason"], one["count"]) for one in events)


async def test_pods_beyond_the_capacity_run_since_there_is_no_admission_check() -> None:
    async with a_provider() as cluster:
        await create(cluster, "a", "b", cpu="800m")
        pods = await cluster.wait_listed(PODS, lambda pods: all(p["status"]["phase"] == "Running" for p in pods))

        assert len(pods) == 2
        assert cluster.kubelets.statistics().rejected == {}
        assert cluster.kubelets.statistics().overcommitted == 0
        await asyncio.sleep(1)
        assert await reasons(cluster, "a") == [("Normal", "ProviderCreateSuccess", 1)]
        assert account_of(cluster).statistics().running == 2


async def test_node_has_the_taint_and_labels_of_a_virtual_kubelet() -> None:
    async with a_provider(account="eci") as cluster:
        node = await cluster.get(NODES, "eci-000")

    assert node is not None
    assert node["spec"]["taints"] == [{"key": "virtual-kubelet.io/provider", "value": "eci", "effect": "NoSchedule"}]
    assert node["metadata"]["labels"].items() >= {"type": "virtual-kubelet", "kubernetes.io/role": "agent"}.items()


async def test_job_pod_starts_after_the_start_up_time_and_ends_after_its_run_time() -> None:
    async with a_provider(controllers=True, startupSeconds=20.0, createSeconds=0.5) as cluster:
        node = {"nodeName": "serverless-000"}
        job = a_job("j", annotations={"multisched.io/run-seconds": "30"}, completions=1)
        job["spec"]["template"]["spec"] |= node
        began_s = cluster.clock.monotonic()
        await cluster.create(JOBS, job)
        await cluster.wait_listed(PODS, lambda pods: [p["status"]["phase"] for p in pods] == ["Running"])
        assert cluster.clock.monotonic() - began_s == pytest.approx(20.5, abs=0.3)
        await cluster.wait_listed(PODS, lambda pods: [p["status"]["phase"] for p in pods] == ["Succeeded"])

        assert cluster.clock.monotonic() - began_s == pytest.approx(50.5, abs=0.4)
        (start,) = account_of(cluster).starts
        assert start.ended_s is not None
        assert start.started_s is not None
        assert start.ended_s - start.started_s == pytest.approx(30.0, abs=0.1)
        assert account_of(cluster).statistics().ended == 1


@pytest.mark.parametrize(
    ("policy", "phase", "creates"), [("Never", "Failed", 1), ("Always", "Pending", 20), ("OnFailure", "Pending", 20)]
)
async def test_create_error_fails_pods_that_never_restart_and_is_retried_for_others(
    policy: str, phase: str, creates: int
) -> None:
    async with a_provider(failures=(ScriptedFailure("no such pull secret"),)) as cluster:
        await create(cluster, "p", restartPolicy=policy)
        await asyncio.sleep(10_000)

        status = await status_of(cluster, "p")
        assert (status["phase"], status["reason"], status["message"]) == (
            phase,
            "ProviderFailed",
            "no such pull secret",
        )
        assert account_of(cluster).statistics().refused == creates
        assert await reasons(cluster, "p") == [("Warning", "ProviderCreateFailed", creates)]


async def test_retries_are_delayed_exponentially_and_end_after_twenty_tries() -> None:
    async with a_provider(createSeconds=0.0, failures=(ScriptedFailure("no"),)) as cluster:
        await create(cluster, "p")
        await asyncio.sleep(10_000)
        gaps_s = [later.at_s - one.at_s for one, later in pairwise(account_of(cluster).calls)]

        assert gaps_s == pytest.approx([min(0.005 * 2**n, 1000) for n in range(1, 20)], abs=0.01)


async def test_forgotten_pod_is_tried_again_only_after_it_changes() -> None:
    async with a_provider(failures=(outage(0, 9_000),)) as cluster:
        await create(cluster, "p")
        await asyncio.sleep(10_000)
        assert (await status_of(cluster, "p"))["phase"] == "Pending"
        assert account_of(cluster).statistics().creates == 20

        await cluster.patch(PODS, "p", {"metadata": {"labels": {"changed": "yes"}}})
        pod = await cluster.wait_until(PODS, "p", lambda p: p["status"]["phase"] == "Running")

        assert account_of(cluster).statistics().creates == 21
        assert "reason" not in pod["status"]
        assert "message" not in pod["status"]


async def test_outage_refuses_all_creates_between_its_two_times() -> None:
    async with a_provider(failures=(outage(10, 70),), createSeconds=0.0) as cluster:
        for number in range(12):
            await create(cluster, f"p{number}", restartPolicy="Never")
            await asyncio.sleep(10)
        phases = [(await status_of(cluster, f"p{number}"))["phase"] for number in range(12)]

        assert phases == ["Running"] + ["Failed"] * 6 + ["Running"] * 5


async def test_refusal_with_labels_concerns_only_pods_that_have_them() -> None:
    failure = ScriptedFailure("InvalidParameter", labels={"app": "broken"})
    async with a_provider(failures=(failure,)) as cluster:
        await create(cluster, "good", metadata={"labels": {"app": "web"}}, restartPolicy="Never")
        await create(cluster, "bad", metadata={"labels": {"app": "broken"}}, restartPolicy="Never")
        await asyncio.sleep(5)

        assert (await status_of(cluster, "good"))["phase"] == "Running"
        assert (await status_of(cluster, "bad"))["message"] == "InvalidParameter"


async def test_refusal_of_a_template_takes_a_token_and_an_outage_takes_none() -> None:
    failures = (ScriptedFailure("InvalidParameter", labels={"app": "broken"}), outage(0, 10))
    account = ProviderAccount(ProviderSettings(burst=1, perSecond=0.001, failures=failures), 0.0)
    later = EPOCH + timedelta(seconds=20)

    assert account.create("a", "n", {"app": "broken"}, 0.0, EPOCH) == "503 Service Unavailable"
    assert account.create("a", "n", {"app": "broken"}, 20.0, later) == "InvalidParameter"
    assert account.create("b", "n", {}, 20.0, later) == account.settings.throttlingMessage


async def test_nodes_of_an_account_share_its_burst_and_rate() -> None:
    async with a_provider(2, burst=10, perSecond=2.0, createSeconds=0.0) as cluster:
        for number in range(30):
            await create(cluster, f"p{number}", node=number % 2, restartPolicy="Never")
        await asyncio.sleep(1)
        statistics = account_of(cluster).statistics()
        assert statistics.creates == 30
        assert statistics.throttled == 30 - statistics.running
        assert 10 <= statistics.running <= 12
        failed = [p for p in await cluster.list_all(PODS) if p["status"]["phase"] == "Failed"]
        assert {p["status"]["message"] for p in failed} == {account_of(cluster).settings.throttlingMessage}


async def test_rate_changes_with_the_annotation_while_running() -> None:
    async with a_provider(burst=1, perSecond=0.001, createSeconds=0.0) as cluster:
        await create(cluster, "a", "b", restartPolicy="Never")
        await asyncio.sleep(5)
        assert account_of(cluster).statistics().throttled == 1

        settings = msgspec.structs.replace(account_of(cluster).settings, perSecond=10.0)
        text = msgspec.json.encode(settings).decode()
        await cluster.patch(NODES, "serverless-000", {"metadata": {"annotations": {PROVIDER_ANNOTATION: text}}})
        await asyncio.sleep(1)
        await create(cluster, "c", restartPolicy="Never")
        await asyncio.sleep(1)

        assert (await status_of(cluster, "c"))["phase"] == "Running"


async def test_ten_workers_of_a_node_create_sandboxes_at_once() -> None:
    async with a_provider(createSeconds=5.0) as cluster:
        await create(cluster, *(f"p{number}" for number in range(25)))
        await asyncio.sleep(20)
        times = sorted(call.at_s for call in account_of(cluster).calls)

        assert times[9] - times[0] < 0.1
        assert times[10] - times[0] == pytest.approx(5, abs=0.1)
        assert times[20] - times[0] == pytest.approx(10, abs=0.1)


async def test_one_node_starts_to_process_pods_at_the_rate_of_its_queue() -> None:
    async with a_provider(syncBurst=20, syncPerSecond=10.0, createSeconds=0.0) as cluster:
        await create(cluster, *(f"p{number}" for number in range(70)))
        await cluster.wait_listed(PODS, lambda pods: all(p["status"]["phase"] == "Running" for p in pods))
        times = sorted(call.at_s for call in account_of(cluster).calls)

        assert times[19] - times[0] < 0.1
        assert times[-1] - times[0] == pytest.approx(5, abs=0.1)


async def test_deleted_pod_without_running_containers_is_removed_at_once() -> None:
    async with a_provider(startupSeconds=600.0) as cluster:
        await create(cluster, "p", terminationGracePeriodSeconds=30)
        await asyncio.sleep(5)
        assert account_of(cluster).statistics().starting == 1

        await cluster.delete(PODS, "p")
        await asyncio.sleep(0.2)

        assert await cluster.get(PODS, "p") is None
        assert account_of(cluster).sandboxes == {}
        assert cluster.kubelets.statistics().deleted == 1


async def test_deleted_running_pod_loses_its_sandbox_at_once_and_ends_after_its_grace_period() -> None:
    async with a_provider() as cluster:
        await create(cluster, "p", terminationGracePeriodSeconds=30)
        await cluster.wait_until(PODS, "p", lambda p: p["status"]["phase"] == "Running")
        began_s = cluster.clock.monotonic()
        await cluster.delete(PODS, "p")
        await asyncio.sleep(1)
        assert account_of(cluster).sandboxes == {}
        await cluster.wait_gone(PODS, "p")

        assert cluster.clock.monotonic() - began_s == pytest.approx(30, abs=0.3)


async def test_changed_label_of_a_running_pod_is_an_update_and_no_create() -> None:
    async with a_provider() as cluster:
        await create(cluster, "p")
        await cluster.wait_until(PODS, "p", lambda p: p["status"]["phase"] == "Running")
        await cluster.patch(PODS, "p", {"metadata": {"labels": {"changed": "yes"}}})
        await asyncio.sleep(2)

        assert account_of(cluster).statistics().creates == 1
        assert ("Normal", "ProviderUpdateSuccess", 1) in await reasons(cluster, "p")


async def test_invalid_settings_are_ignored_and_the_former_ones_apply() -> None:
    async with a_provider() as cluster:
        annotations = {PROVIDER_ANNOTATION: '{"perSecond": 0}'}
        await cluster.patch(NODES, "serverless-000", {"metadata": {"annotations": annotations}})
        await create(cluster, "p")
        await cluster.wait_until(PODS, "p", lambda p: p["status"]["phase"] == "Running")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"perSecond": 0}', "perSecond"),
        ('{"rate": 1}', "rate"),
        ('{"failures": [{"message": "m", "from": "2026-01-01T00:00:00"}]}', "time zone"),
        ("[", PROVIDER_ANNOTATION),
    ],
)
async def test_invalid_settings_are_named(text: str, said: str) -> None:
    with pytest.raises(ProviderError, match=said):
        parse_settings(text)


async def test_failure_holds_from_its_first_time_until_before_its_last() -> None:
    failure = outage(10, 20)
    times: list[datetime] = [EPOCH + timedelta(seconds=at_s) for at_s in (9.9, 10, 19.9, 20)]

    assert [failure.applies({}, time) for time in times] == [False, True, True, False]

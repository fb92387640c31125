"""The webhook for quotas of a running program: reviews over HTTP, judged by what the program knows of its cluster at that moment."""

from __future__ import annotations

import io
import json
from typing import Any

import aiohttp

from multisched.cluster.api.direct import DirectTransport
from multisched.model.object_kinds import ObjectKind
from multisched.observe.admission_view import VALIDATE_QUOTAS_PATH
from multisched.observe.health import Health
from multisched.observe.metrics import Metrics
from multisched.observe.server import ServerSettings, Sources, serve
from multisched.shell.plugin_views import ProgramViews
from multisched.shell.telemetry import ProgramQueues
from multisched.whatif.explain_source import ProgramExplanations
from multisched.whatif.quota_admission import TOO_OFTEN, TRIALS_BURST, QuotaAdmission
from multisched.whatif.repair_source import RepairPlans
from tests.integration.plugins.program_cluster import HEAD, ProgramCluster, install_definitions, open_cluster
from tests.integration.plugins.test_quotas import tree
from tests.unit.plugins.quota.trees import Json, acks_example, leaf, node
from tests.unit.whatif.quota_clusters import quota_tree
from tests.unit.whatif.test_quota_admission import review


async def answered(url: str, asked: Json) -> dict[str, Any]:
    body = io.BytesIO(json.dumps(asked).encode())
    headers = {"Content-Type": "application/json"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(f"{url}{VALIDATE_QUOTAS_PATH}?timeout=10s", data=body) as answer,
    ):
        assert answer.status == 200, await answer.text()
        found: dict[str, Any] = (await answer.json())["response"]
        return found


def sources_of(cluster: ProgramCluster) -> Sources:
    return Sources(
        Health(),
        Metrics(),
        ProgramQueues(cluster.program, "me"),
        ProgramExplanations(cluster.program),
        RepairPlans(cluster.program),
        ProgramViews(cluster.program),
        admission=QuotaAdmission(cluster.program),
    )


def halves(first: int, second: int) -> Json:
    """Two teams, each sure of so many CPUs of 4."""
    return node("root", {"cpu": 4}, {"cpu": 4}, leaf("a", first, 4, "default"), leaf("b", second, 4, "second"))


async def test_review_uses_the_state_of_the_program() -> None:
    async with (
        open_cluster(HEAD, before=install_definitions) as cluster,
        serve(ServerSettings(port=0), sources_of(cluster)) as url,
    ):
        await cluster.node("n", cpu="8")
        await cluster.post("namespaces", "second", {})
        for number in range(3):
            await cluster.pod(f"own-{number}", cpu="1", scheduler="forecast-scheduler")
        await cluster.bound("own-0", "own-1", "own-2")
        assert (await answered(url, review(quota_tree(halves(2, 9)))))["allowed"] is False
        assert await answered(url, review(quota_tree(halves(2, 2)))) == {"uid": "705ab4f5", "allowed": True}

        await tree(cluster, halves(4, 0))
        await cluster.until(lambda: len(cluster.program.cache.objects.all(ObjectKind.ELASTIC_QUOTA_TREE)) == 1)
        refused = await answered(url, review(quota_tree(acks_example())))
        assert "only one is allowed" in refused["status"]["message"]
        await _hold_and_ask(cluster, url)
        assert (await answered(url, review(quota_tree(halves(1, 3)), None)))["allowed"] is False
        await cluster.at_rest()


async def _hold_and_ask(cluster: ProgramCluster, url: str) -> None:
    """Two pods of the other team wait for room that an edit would give them."""
    for number in range(3):
        await _pod_of_second(cluster, f"other-{number}")
    await cluster.until(lambda: sum(entry.state.value == "unschedulable" for entry in _waiting(cluster)) == 2)
    edited = quota_tree(halves(1, 3), "tree")
    found = await answered(url, review(edited, quota_tree(halves(4, 0), "tree")))
    assert found["allowed"] is True
    (warning,) = found["warnings"]
    assert warning.startswith("2 pods of root.a would be evicted: root.a holds cpu 3, over its min 1; root.b holds ")
    assert len(cluster.api_checker.pods()) == 6, "nothing was written"


async def _pod_of_second(cluster: ProgramCluster, name: str) -> None:
    one = {"name": "main", "image": "app:v1", "resources": {"requests": {"cpu": "1"}}}
    pod = {"schedulerName": "forecast-scheduler", "containers": [one]}
    await cluster.post("namespaces/second/pods", name, {}, spec=pod)


def _waiting(cluster: ProgramCluster) -> list[Any]:
    return [entry for worker in cluster.program.router.workers() for entry in worker.queue.entries()]


async def test_repeated_reviews_are_answered_without_trials() -> None:
    async with (
        open_cluster(HEAD, before=install_definitions) as cluster,
        serve(ServerSettings(port=0), sources_of(cluster)) as url,
    ):
        await cluster.node("n", cpu="8")
        await cluster.post("namespaces", "second", {})
        asked = [await answered(url, review(quota_tree(halves(2, 2)))) for _ in range(TRIALS_BURST + 1)]
        assert ["warnings" in one for one in asked] == [False] * TRIALS_BURST + [True]
        assert asked[-1]["warnings"] == [TOO_OFTEN]
        assert (await answered(url, review(quota_tree(halves(2, 9)))))["allowed"] is False


async def test_embedded_cluster_calls_no_webhook() -> None:
    """It stores the configuration and evaluates none: the real control plane does (tests/real/test_quota_admission.py)."""
    async with open_cluster(HEAD, before=install_definitions) as cluster:
        api = DirectTransport(cluster.server)
        hooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
        assert (await api.request("GET", hooks)).status == 200
        await tree(cluster, node("root", {"cpu": 5}, {"cpu": 4}))

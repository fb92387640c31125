"""Kept objects when the API server refuses or fails: scheduling waits for an answer, and goes on without a right."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from multisched.model.wire import MERGE_PATCH, Response
from multisched.shell.kept_objects import REFUSED_PAUSE_S, keeping
from tests.kit import definitions
from tests.unit.plugins.quota.trees import leaf, node
from tests.unit.shell.program_kit import Cluster, play

TREES = "/apis/scheduling.sigs.k8s.io/v1beta1/namespaces/kube-system/elasticquotatrees"
KEPT = "/api/v1/namespaces/kube-system/configmaps"
NAME = "multisched-elasticquotatrees"
FORBIDDEN = Response(403, b'{"kind": "Status", "status": "Failure", "reason": "Forbidden", "message": "no"}', {})
FAILED = Response(503, b'{"kind": "Status", "status": "Failure", "message": "not now"}', {})


async def add_tree(cluster: Cluster) -> None:
    await cluster.send("POST", definitions.PATH, definitions.definition("elasticquotatrees"))
    root = node("root", {"cpu": 4}, {"cpu": 4}, leaf("web", 1, 4, "default"))
    await cluster.send("POST", TREES, {"metadata": {"name": "tree"}, "spec": {"root": root}})


def is_kept(method: str, path: str, *methods: str) -> bool:
    return path.startswith(KEPT) and method in methods


async def documents(cluster: Cluster) -> list[str]:
    listed = await cluster.send("GET", KEPT)
    return [item["data"]["object.json"] for item in listed["items"] if item["metadata"]["name"] == NAME]


def test_scheduling_waits_until_the_kept_object_is_known() -> None:
    failing = True

    async def prepare(cluster: Cluster) -> None:
        cluster.transport.answer = lambda method, path: FAILED if failing and is_kept(method, path, "GET") else None
        await cluster.add_node("n1")
        await cluster.add_pod("p")

    async def scene(cluster: Cluster) -> None:
        nonlocal failing
        await cluster.settle(60.0)
        assert await cluster.node_of("p") == ""
        failing = False
        await cluster.settle()
        assert await cluster.node_of("p") == "n1"

    play(scene, prepare=prepare)


def test_program_without_read_permission_schedules_and_logs_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def prepare(cluster: Cluster) -> None:
        cluster.transport.answer = lambda method, path: FORBIDDEN if is_kept(method, path, "GET") else None
        await add_tree(cluster)
        await cluster.add_node("n1")
        await cluster.add_pod("p")

    async def scene(cluster: Cluster) -> None:
        await cluster.settle()
        assert await cluster.node_of("p") == "n1"
        (said,) = [vars(one) for one in caplog.records if one.message.startswith("kept object")]
        assert (said["configMap"], said["fix"]) == (
            NAME,
            f"grant create on configmaps in kube-system, and get and update on {NAME}",
        )
        assert await documents(cluster) == []
        cluster.transport.answer = lambda method, path: None
        await cluster.settle(REFUSED_PAUSE_S + 5.0)
        assert '"web"' in (await documents(cluster))[0]

    play(scene, prepare=prepare)


@pytest.mark.parametrize("answer", [FORBIDDEN, FAILED], ids=["refused", "failed"])
def test_failed_kept_object_write_is_logged_and_retried(answer: Response, caplog: pytest.LogCaptureFixture) -> None:
    async def prepare(cluster: Cluster) -> None:
        cluster.transport.answer = lambda method, path: answer if is_kept(method, path, "POST", "PUT") else None
        await add_tree(cluster)

    async def scene(cluster: Cluster) -> None:
        await cluster.settle(30.0)
        said = [vars(one) for one in caplog.records if one.message.startswith("kept object cannot be written")]
        assert said
        assert ("fix" in said[0]) == (answer is FORBIDDEN)
        sent = [path for method, path in cluster.transport.requests if is_kept(method, path, "POST")]
        assert len(sent) == 1 if answer is FORBIDDEN else len(sent) > 3
        cluster.transport.answer = lambda method, path: None
        await cluster.settle(REFUSED_PAUSE_S + 5.0)
        assert '"web"' in (await documents(cluster))[0]

    play(scene, prepare=prepare)


def test_cluster_without_such_objects_gets_no_config_map() -> None:
    async def scene(cluster: Cluster) -> None:
        await cluster.settle(30.0)
        assert await documents(cluster) == []

    play(scene)


DELETED = {
    "metadata": {"name": "tree", "namespace": "kube-system", "uid": "deleted"},
    "spec": {"root": node("root", {"cpu": 4}, {"cpu": 4}, leaf("web", 1, 2, "default"))},
}


def test_leader_of_another_domain_reads_the_kept_object_as_soon_as_possible() -> None:
    async def prepare(cluster: Cluster) -> None:
        cluster.transport.answer = lambda method, path: FORBIDDEN if is_kept(method, path, "GET") else None
        await cluster.send("POST", definitions.PATH, definitions.definition("elasticquotatrees"))
        data = {"object.json": orjson.dumps(DELETED).decode()}
        await cluster.send("POST", KEPT, {"metadata": {"name": NAME}, "data": data})
        await cluster.add_node("n1", gpus=1)
        await cluster.add_pod("before", scheduler="gpu-scheduler")

    async def scene(cluster: Cluster) -> None:
        assert await cluster.node_of("before") == "n1"
        next(one for one in cluster.program.router.workers() if one.name == "forecast").intake.is_leading = False
        cluster.transport.answer = lambda method, path: None
        await cluster.settle(REFUSED_PAUSE_S + 5.0)
        for number in range(3):
            await cluster.add_pod(f"after-{number}", scheduler="gpu-scheduler")
        await cluster.settle(10.0)
        assert list((await cluster.nodes_of_pods()).values()).count("n1") == 2

    play(scene, prepare=prepare)


async def change_tree(cluster: Cluster, most: int) -> None:
    root = node("root", {"cpu": 4}, {"cpu": 4}, leaf("web", 1, most, "default"))
    await cluster.send("PATCH", f"{TREES}/tree", {"spec": {"root": root}}, content_type=MERGE_PATCH)


def test_each_outage_of_writes_is_logged_and_a_conflict_only_noted(caplog: pytest.LogCaptureFixture) -> None:
    def warnings() -> list[str]:
        return [one.message for one in caplog.records if one.message.startswith("kept object cannot be written")]

    async def scene(cluster: Cluster) -> None:
        caplog.set_level("INFO")
        for most in (3, 2):
            caplog.clear()
            cluster.transport.answer = lambda method, path: FAILED if is_kept(method, path, "PUT") else None
            await change_tree(cluster, most)
            await cluster.settle(1.9)
            assert len(warnings()) == 1
            cluster.transport.answer = lambda method, path: None
            await cluster.settle(5.0)
        caplog.clear()
        await cluster.send("PATCH", f"{KEPT}/{NAME}", {"data": {"other": "1"}}, content_type=MERGE_PATCH)
        await change_tree(cluster, 1)
        await cluster.settle()
        assert warnings() == []
        (noted,) = [one for one in caplog.records if one.message == "kept object was written by another process"]
        assert (noted.levelname, "fix" in vars(noted)) == ("INFO", False)

    play(scene, prepare=add_tree)


@pytest.mark.parametrize("returned", ["text", None])
def test_plugin_with_a_non_bytes_document_fails_alone(returned: Any) -> None:
    async def scene(cluster: Cluster) -> None:
        worker = next(iter(cluster.program.router.workers()))
        (plugin,) = keeping(worker)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(plugin, "kept_object", lambda: returned)
            await cluster.settle()
        assert "ElasticQuota KeptObject" in cluster.observer.failures[0]
        await cluster.add_node("n1")
        await cluster.add_pod("p")
        await cluster.settle()
        assert await cluster.node_of("p") == "n1"

    play(scene, prepare=add_tree)

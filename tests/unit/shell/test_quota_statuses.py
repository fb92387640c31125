"""Statuses of quota objects of three APIs, as a whole program writes them to the embedded API server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import orjson

from multisched.model.wire import MERGE_PATCH
from multisched.testing.sim_loop import SimLoop, simulate
from tests.kit import definitions
from tests.unit.shell.program_kit import Cluster

TREES = "/apis/scheduling.sigs.k8s.io/v1beta1/namespaces/kube-system/elasticquotatrees"
FLAT = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/elasticquotas"
LINKED = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/default/elasticquotas"
KOORDINATOR = "quota.scheduling.koordinator.sh/"
CONFIGURATION = """
apiVersion: multisched.io/v1
kind: MultischedConfiguration
domains:
- name: forecast
- name: gpu
lease: {enabled: false}
"""


def tree(*, least: int = 2, most: int = 4) -> dict[str, Any]:
    """A root of four CPUs; `team` for pods of the namespace default, `other` for nobody's."""
    team = {"name": "team", "min": {"cpu": least}, "max": {"cpu": most}, "namespaces": ["default"]}
    other = {"name": "other", "min": {"cpu": 2}, "max": {"cpu": 4}, "namespaces": ["elsewhere"]}
    return {"name": "root", "min": {"cpu": 4}, "max": {"cpu": 4}, "children": [team, other]}


class Quotas(Cluster):
    """A cluster that knows the kinds of quotas."""

    async def define(self) -> None:
        for name in ("elasticquotatrees", "elasticquotas-scheduler-plugins", "elasticquotas-koordinator"):
            await self.send("POST", definitions.PATH, definitions.definition(name))
        await self.add_node("a", cpu="8")

    async def add_tree(self, root: dict[str, Any], name: str = "tree") -> None:
        await self.send("POST", TREES, {"metadata": {"name": name}, "spec": {"root": root}})

    async def set_tree(self, root: dict[str, Any], name: str = "tree") -> None:
        await self.send("PATCH", f"{TREES}/{name}", {"spec": {"root": root}}, content_type=MERGE_PATCH)

    async def status(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = (await self.send("GET", path)).get("status", {})
        return found

    async def condition(self, path: str) -> tuple[str, str, str]:
        """Status, reason and message."""
        (found,) = (await self.status(path)).get("conditions", [{}])
        return found.get("status", ""), found.get("reason", ""), found.get("message", "")


def play(scene: Callable[[Quotas], Coroutine[Any, Any, None]]) -> None:
    loop = SimLoop(seed=1)

    async def main() -> None:
        cluster = Quotas(loop, CONFIGURATION)
        await cluster.define()
        running = loop.create_task(cluster.program.run())
        await cluster.settle()
        try:
            await scene(cluster)
        finally:
            cluster.program.stop()
            await running

    simulate(main(), loop)


def test_tree_status_shows_use_borrowing_lending_and_requests_per_level() -> None:
    async def scene(cluster: Quotas) -> None:
        await cluster.add_tree(tree())
        for number in range(5):
            await cluster.add_pod(f"p{number}", cpu="1")
        await asyncio.sleep(20.0)
        levels = (await cluster.status(f"{TREES}/tree"))["levels"]
        assert levels["root.team"] == {
            "min": {"cpu": "2"},
            "max": {"cpu": "4"},
            "used": {"cpu": "4"},
            "requested": {"cpu": "5"},
            "fairShare": {"cpu": "4"},
            "borrowed": {"cpu": "2"},
        }
        assert levels["root.other"]["lent"] == {"cpu": "2"}
        assert levels["root"]["used"] == {"cpu": "4"}
        assert await cluster.condition(f"{TREES}/tree") == ("True", "InForce", "3 levels are in force")

    play(scene)


def test_pending_pods_are_counted_as_requested() -> None:
    async def scene(cluster: Quotas) -> None:
        await cluster.add_tree(tree())
        await cluster.add_pod("huge", cpu="3", nodeSelector={"no": "where"})
        await cluster.add_pod("gated", cpu="1", schedulingGates=[{"name": "g"}])
        await asyncio.sleep(20.0)
        team = (await cluster.status(f"{TREES}/tree"))["levels"]["root.team"]
        assert (team["used"], team["requested"]) == ({"cpu": "0"}, {"cpu": "3"})
        await cluster.delete_pod("huge")
        await asyncio.sleep(20.0)
        team = (await cluster.status(f"{TREES}/tree"))["levels"]["root.team"]
        assert team["requested"] == {"cpu": "0"}

    play(scene)


def test_broken_tree_status_has_the_problem_and_figures_of_the_last_good_one() -> None:
    async def scene(cluster: Quotas) -> None:
        await cluster.add_tree(tree())
        await cluster.add_pod("p", cpu="1")
        await asyncio.sleep(10.0)
        await cluster.set_tree(tree(least=5))
        await asyncio.sleep(20.0)
        status, reason, message = await cluster.condition(f"{TREES}/tree")
        assert (status, reason) == ("False", "Broken")
        assert "root.team" in message
        assert message.endswith("the last valid tree stays in force")
        assert (await cluster.status(f"{TREES}/tree"))["levels"]["root.team"]["used"] == {"cpu": "1"}

        await cluster.set_tree(tree(most=3))
        await asyncio.sleep(20.0)
        assert (await cluster.condition(f"{TREES}/tree"))[0] == "True"

    play(scene)


def test_second_tree_reports_no_effect_until_the_first_is_deleted() -> None:
    async def scene(cluster: Quotas) -> None:
        await cluster.add_tree(tree())
        await asyncio.sleep(10.0)
        await cluster.add_tree(tree(), "second")
        await asyncio.sleep(20.0)
        status, reason, message = await cluster.condition(f"{TREES}/second")
        assert (status, reason) == ("False", "NoEffect")
        assert "kube-system/tree is in force" in message
        assert "levels" not in await cluster.status(f"{TREES}/second")

        await cluster.send("DELETE", f"{TREES}/tree")
        await asyncio.sleep(30.0)
        assert (await cluster.condition(f"{TREES}/second"))[0] == "True"

    play(scene)


def test_removed_levels_disappear_from_the_status() -> None:
    async def scene(cluster: Quotas) -> None:
        await cluster.add_tree(tree())
        await asyncio.sleep(10.0)
        root = tree()
        del root["children"][1]
        await cluster.set_tree(root)
        await asyncio.sleep(20.0)
        assert set((await cluster.status(f"{TREES}/tree"))["levels"]) == {"root", "root.team"}

    play(scene)


def test_scheduler_plugins_quota_status_shows_use() -> None:
    async def scene(cluster: Quotas) -> None:
        spec = {"min": {"cpu": 4}, "max": {"cpu": 6}}
        await cluster.send("POST", FLAT, {"metadata": {"name": "team"}, "spec": spec})
        await cluster.add_pod("p", cpu="1500m")
        await asyncio.sleep(20.0)
        assert (await cluster.status(f"{FLAT}/team"))["used"] == {"cpu": "1500m"}
        assert (await cluster.condition(f"{FLAT}/team"))[0] == "True"

    play(scene)


def test_koordinator_quota_status_shows_use_runtime_and_request() -> None:
    async def scene(cluster: Quotas) -> None:
        annotations = {f"{KOORDINATOR}namespaces": '["default"]'}
        spec = {"min": {"cpu": 1}, "max": {"cpu": 2}}
        await cluster.send("POST", LINKED, {"metadata": {"name": "team", "annotations": annotations}, "spec": spec})
        for number in range(3):
            await cluster.add_pod(f"p{number}", cpu="1")
        await asyncio.sleep(30.0)
        found = await cluster.send("GET", f"{LINKED}/team")
        noted = found["metadata"]["annotations"]
        assert found["status"]["used"] == {"cpu": "2"}
        assert orjson.loads(noted[f"{KOORDINATOR}request"]) == {"cpu": "3"}
        assert orjson.loads(noted[f"{KOORDINATOR}runtime"]) == {"cpu": "2"}
        assert noted[f"{KOORDINATOR}namespaces"] == '["default"]'
        assert found["spec"] == spec

    play(scene)


def test_unchanged_quota_status_is_not_rewritten() -> None:
    async def scene(cluster: Quotas) -> None:
        await cluster.add_tree(tree())
        await cluster.add_pod("p", cpu="1")
        await asyncio.sleep(30.0)
        writes = [path for method, path in cluster.transport.requests if method == "PATCH" and "/elasticquota" in path]
        await asyncio.sleep(900.0)
        later = [path for method, path in cluster.transport.requests if method == "PATCH" and "/elasticquota" in path]
        assert len(writes) <= 3
        assert later == writes

    play(scene)

"""Violations of quotas: pods that could be bound, wrong statuses, and reclaims that undo others."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import closing
from typing import Any

import orjson
import pytest

from multisched.cluster.api.direct import DirectTransport
from multisched.cluster.api.server import ApiServer
from multisched.config import loading
from multisched.testing.builders import container, make_pod, node_document, pod_document
from multisched.testing.sim_loop import SimClock, SimLoop, simulate
from tests.kit.checkers.api.bind_checker import BindChecker
from tests.kit.settings.setting import ASKING
from tests.kit.world.api_user import ApiUser
from tests.kit.world.definitions import QUOTA_TREE, install
from tests.kit.world.policies import Policies
from tests.unit.verify.quota_documents import level


class CheckedCluster:
    """A cluster with a tree of two leaves, each with a min of one CPU and a max of two."""

    def __init__(self, loop: SimLoop) -> None:
        self.broken: list[str] = []
        self.server = ApiServer(SimClock(loop), rbac=False)
        self._api = DirectTransport(self.server)
        policies = Policies(self.server, seed=0)
        self.checker = BindChecker(
            self.server, loading.parse(ASKING, "test"), loop.time, self.broken, policies, has_quotas=True
        )

    async def build(self) -> None:
        await install(ApiUser(self.server), QUOTA_TREE)
        for namespace in ("a", "b"):
            await self.post("/api/v1/namespaces", {"metadata": {"name": namespace}})
        await self.post("/api/v1/nodes", node_document("n", cpu="8"))
        leaves = [level(name, 1, 2, namespaces=(name,)) for name in ("a", "b")]
        tree = {"metadata": {"name": "tree"}, "spec": {"root": level("root", 2, 2, *leaves)}}
        await self.post(QUOTA_TREE.path("kube-system"), tree)

    async def post(self, path: str, document: dict[str, Any]) -> None:
        answer = await self._api.request("POST", path, body=orjson.dumps(document))
        assert answer.status == 201, answer.body

    async def add_pod(self, name: str, namespace: str, node: str = "") -> None:
        document = pod_document(name, container(cpu="1"), node=node, schedulerName="forecast-scheduler")
        document["metadata"] |= {"namespace": namespace}
        await self.post(f"/api/v1/namespaces/{namespace}/pods", document)

    def feasible(self) -> list[str]:
        return [pod.name for pod in self.checker.unbound_feasible()]

    def entitled(self) -> list[str]:
        return [pod.name for pod in self.checker.unbound_entitled()]


def run_in_virtual_time(test: Callable[[CheckedCluster], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await cluster.build()
        await test(cluster)

    with closing(SimLoop(seed=1)) as loop:
        cluster = CheckedCluster(loop)
        simulate(main(), loop)


@pytest.mark.parametrize("node", ["n", "gone"])
def test_pods_count_for_their_quota_even_without_their_node(node: str) -> None:
    async def main(cluster: CheckedCluster) -> None:
        await cluster.add_pod("first", "a", node)
        await cluster.add_pod("late", "a")
        assert cluster.feasible() == ["late"]
        await cluster.add_pod("second", "a", node)
        assert cluster.feasible() == []

    run_in_virtual_time(main)


def test_entitled_pod_must_not_wait_while_others_borrow() -> None:
    async def main(cluster: CheckedCluster) -> None:
        for name in ("one", "two"):
            await cluster.add_pod(name, "a", "n")
        await cluster.add_pod("late", "b")
        await cluster.add_pod("more", "a")
        assert cluster.entitled() == ["late"]

    run_in_virtual_time(main)


def test_tree_without_a_status_is_a_fault_in_the_end() -> None:
    async def main(cluster: CheckedCluster) -> None:
        assert cluster.checker.quotas.status_faults() == [
            f"I14: status.levels: {path} is missing" for path in ("root", "root.a", "root.b")
        ]

    run_in_virtual_time(main)


@pytest.mark.parametrize("namespace", ["a", "default"])
def test_reclaim_that_undoes_another_is_a_fault_unless_usage_changed(namespace: str) -> None:
    async def main(cluster: CheckedCluster) -> None:
        mine, theirs = (make_pod(name, namespace=name, uid=f"uid-{name}", cpu_milli=1000) for name in ("a", "b"))
        staying = [make_pod("staying", namespace="b", cpu_milli=1000)]  # b keeps its min
        cluster.checker.quotas.reclaimed([mine], [theirs], staying)
        await cluster.add_pod("news", namespace)
        cluster.checker.quotas.reclaimed([theirs], [mine], [])
        undone = "I14: root.b reclaims from root.a for b/b, which undoes the reclaim for a/a"
        assert cluster.broken == ([undone] if namespace == "default" else [])

    run_in_virtual_time(main)

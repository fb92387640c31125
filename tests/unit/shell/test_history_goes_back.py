"""An etcd restored from a backup, and API servers that lag: nobody binds by what is not the present (I1, I6)."""

from __future__ import annotations

import asyncio
from collections import Counter

import orjson
import pytest

from multisched.cluster.base.storage import Stored
from multisched.model.wire import Response
from tests.unit.shell.program_kit import Cluster, play

NODES = [f"node-{number}" for number in range(10)]
CPUS = 4


class Backup:
    """The store as it was; `restore` brings it back without raising versions, as `etcdctl snapshot restore` does."""

    def __init__(self, cluster: Cluster) -> None:
        self._store = cluster.server.store
        self._version = self._store.version
        self._objects: dict[str, dict[str, Stored]] = {
            key: dict(one.objects) for key, one in self._store.collections().items()
        }

    def restore(self) -> None:
        self._store.version = self._version
        for key, collection in self._store.collections().items():
            collection.objects = dict(self._objects.get(key, {}))
            collection._sorted = None
            collection.changed_at = self._version
            collection.compact(self._version)
            for stream in list(collection.observers):
                stream.drop()  # type: ignore[attr-defined]


async def overfull(cluster: Cluster) -> list[str]:
    """Nodes with more pods of one CPU than CPUs, as the API has them."""
    counts = Counter((await cluster.nodes_of_pods()).values())
    del counts[""]
    return sorted(node for node, count in counts.items() if count > CPUS)


async def prepare(cluster: Cluster) -> None:
    """Lists come in pages of three, each a while under way; binds take a while, too."""
    cluster.transport.asked = lambda text: text.replace(b"limit=1000", b"limit=3")
    cluster.transport.list_s = 0.2
    for name in NODES:
        await cluster.add_node(name, cpu=str(CPUS))
    for number in range(10 * CPUS):
        await cluster.add_pod(f"old-{number}", cpu="1")


def test_no_node_is_overcommitted_after_an_etcd_restore() -> None:
    """Full nodes are in the backup; since then all their pods went. New pods wait for room while the history goes back."""

    async def scene(cluster: Cluster) -> None:
        await cluster.settle(20.0)
        assert "" not in (await cluster.nodes_of_pods()).values()
        backup = Backup(cluster)
        for number in range(10 * CPUS):
            await cluster.delete_pod(f"old-{number}")
        for number in range(10 * CPUS):
            await cluster.add_pod(f"new-{number}", cpu="1")
        await cluster.settle(20.0)
        backup.restore()
        for number in range(20):
            await cluster.add_pod(f"late-{number}", cpu="1")
        for _ in range(300):
            await asyncio.sleep(0.5)
            assert await overfull(cluster) == []

        assert cluster.program.history.rewritten == 1
        assert cluster.program.history.is_trusted
        assert cluster.placed == {n: node for n, node in (await cluster.nodes_of_pods()).items() if node}
        for number in range(20):
            await cluster.delete_pod(f"old-{number}")
        await cluster.settle(60.0)
        assert "" not in (await cluster.nodes_of_pods()).values()
        assert await overfull(cluster) == []
        assert cluster.differences == []

    play(scene, prepare=prepare)


def test_pending_pods_get_their_reason_again_after_an_etcd_restore() -> None:
    """The reason that its owner was told is younger than the backup."""

    async def reason(cluster: Cluster) -> str:
        answer = await cluster.api.request("GET", "/api/v1/namespaces/default/pods/large")
        conditions = orjson.loads(answer.body)["status"].get("conditions", ())
        return "".join(one["message"] for one in conditions if one["type"] == "PodScheduled")

    async def scene(cluster: Cluster) -> None:
        await cluster.settle(5.0)
        await cluster.add_pod("large", cpu="5")
        backup = Backup(cluster)
        await cluster.settle(5.0)
        told = await reason(cluster)
        assert "10 Insufficient cpu" in told
        backup.restore()
        assert not await reason(cluster)
        await cluster.settle(600.0)
        assert cluster.program.history.rewritten == 1
        assert await reason(cluster) == told

    play(scene, prepare=_ten_nodes)


async def _ten_nodes(cluster: Cluster) -> None:
    for name in NODES:
        await cluster.add_node(name, cpu=str(CPUS))


async def _two_nodes(cluster: Cluster) -> None:
    for name in ("a", "b"):
        await cluster.add_node(name)


def test_nothing_is_scheduled_while_a_stale_server_answers() -> None:
    """Behind a load balancer two API servers; lists of nodes come from the one that is behind, pods from the other."""

    async def scene(cluster: Cluster) -> None:
        old = await cluster.api.request("GET", "/api/v1/nodes")
        await cluster.add_pod("seen")
        await cluster.send("DELETE", "/api/v1/nodes/b")
        await cluster.settle()
        cluster.transport.answer = lambda method, path: old if path.startswith("/api/v1/nodes?limit") else None
        cluster.program.reflectors["nodes"].request_relist()
        await cluster.settle(1.0)
        assert not cluster.program.history.is_trusted
        assert not any(worker.lease.may_bind() for worker in cluster.program.router.workers())
        await cluster.add_pod("waits")
        await cluster.settle(5.0)
        assert (await cluster.nodes_of_pods())["waits"] == ""
        assert cluster.program.cache.nodes.row_of("b") is None, "a node that went does not come back"

        cluster.transport.answer = lambda method, path: None
        await cluster.settle(20.0)
        assert cluster.program.history.is_trusted
        assert cluster.program.history.rewritten == 0
        assert (await cluster.nodes_of_pods())["waits"] == "a"

    play(scene, prepare=_two_nodes)


def test_audit_with_a_stale_server_repairs_nothing() -> None:
    async def scene(cluster: Cluster) -> None:
        old = await cluster.api.request("GET", "/api/v1/pods")
        await cluster.add_pod("new")
        await cluster.settle()
        cluster.transport.answer = lambda method, path: old if path.startswith("/api/v1/pods?limit=500") else None
        found = await cluster.program.audit.once()
        assert found == []
        assert cluster.program.audit.statistics().failures == 1
        assert cluster.placed == await cluster.nodes_of_pods()

    play(scene, prepare=_two_nodes)


@pytest.mark.parametrize("kind", ["nodes", "pods"])
def test_trust_returns_only_after_new_lists_of_nodes_and_pods(kind: str) -> None:
    """The other kind notices first; the lists of this one fail for a while."""

    async def scene(cluster: Cluster) -> None:
        other = "pods" if kind == "nodes" else "nodes"
        await cluster.add_pod("early")
        await cluster.settle()
        fails = f"/api/v1/{kind}?limit"
        cluster.transport.answer = lambda method, path: Response(500, b"") if path.startswith(fails) else None
        cluster.program.history.went_back(f"/api/v1/{other}")
        cluster.program.reflectors[other].request_relist()
        await cluster.settle(20.0)
        await cluster.add_pod("waits")
        await cluster.settle(10.0)
        assert cluster.program.history.must_start_over(f"/api/v1/{kind}")
        assert not cluster.program.history.must_start_over(f"/api/v1/{other}")
        assert (await cluster.nodes_of_pods())["waits"] == ""

        cluster.transport.answer = lambda method, path: None
        await cluster.settle(60.0)
        assert (await cluster.nodes_of_pods())["waits"] != ""
        assert cluster.differences == []

    play(scene, prepare=_two_nodes)


def test_refused_kind_does_not_delay_the_new_history() -> None:
    async def scene(cluster: Cluster) -> None:
        refused = "/apis/storage.k8s.io/v1/csinodes"
        cluster.transport.answer = lambda method, path: Response(403, b"") if path.startswith(refused) else None
        cluster.program.history.went_back("/api/v1/nodes")
        for reflector in cluster.program.reflectors.values():
            reflector.request_relist()
        await cluster.settle(60.0)
        assert cluster.program.history.is_trusted

    play(scene, prepare=_two_nodes)


def test_pod_with_a_bind_lost_by_the_restore_is_pending_again() -> None:
    async def scene(cluster: Cluster) -> None:
        await cluster.add_pod("p", cpu="3")
        backup = Backup(cluster)
        await cluster.settle()
        assert (await cluster.nodes_of_pods())["p"] != ""
        backup.restore()
        await cluster.settle(150.0)
        assert cluster.program.history.rewritten == 1
        assert (await cluster.nodes_of_pods())["p"] != ""
        assert cluster.differences == []

    play(scene, prepare=_two_nodes)

"""The whole program with the persistent volume controller: claims that wait for their pod are bound, and the pod after them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import orjson
import pytest

from multisched.cluster.api.direct import DirectTransport
from multisched.cluster.controllers.fake_provisioner import FAKE_PROVISIONER
from multisched.model.wire import MERGE_PATCH
from tests.integration.plugins.program_cluster import (
    ProgramCluster,
    in_virtual_time,
    one_domain,
    open_cluster,
    with_controllers,
)

ZONE = "topology.kubernetes.io/zone"
LOCAL = "kubernetes.io/no-provisioner"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
BIND_TIMEOUT_S = 20
PROFILE = one_domain({"name": "VolumeBinding", "args": {"bindTimeoutSeconds": BIND_TIMEOUT_S}})
Json = dict[str, Any]


async def storage_class(
    cluster: ProgramCluster, name: str, provisioner: str, mode: str = "WaitForFirstConsumer"
) -> None:
    await cluster.post(CLASSES, name, {}, provisioner=provisioner, volumeBindingMode=mode)


async def claim(cluster: ProgramCluster, name: str, storage_class_name: str, size: str = "1Gi") -> None:
    spec = {
        "storageClassName": storage_class_name,
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": size}},
    }
    await cluster.post("namespaces/default/persistentvolumeclaims", name, {}, spec=spec)


async def local_volume(cluster: ProgramCluster, name: str, node: str, size: str = "1Gi") -> None:
    expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    spec = {
        "capacity": {"storage": size},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "local",
        "local": {"path": f"/disks/{name}"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}},
    }
    await cluster.post("persistentvolumes", name, {}, spec=spec)


async def pod_with(cluster: ProgramCluster, name: str, *claims: str) -> None:
    volumes = [{"name": f"v{at}", "persistentVolumeClaim": {"claimName": one}} for at, one in enumerate(claims)]
    await cluster.pod(name, volumes=volumes)


async def read(cluster: ProgramCluster, path: str) -> Json:
    answer = await DirectTransport(cluster.server).request("GET", f"/api/v1/{path}")
    assert answer.status == 200, answer.body
    found: Json = orjson.loads(answer.body)
    return found


async def patch(cluster: ProgramCluster, path: str, body: Json) -> None:
    answer = await DirectTransport(cluster.server).request(
        "PATCH", f"/api/v1/{path}", body=orjson.dumps(body), content_type=MERGE_PATCH
    )
    assert answer.status == 200, answer.body


async def three_nodes(cluster: ProgramCluster) -> None:
    for number in range(3):
        name = f"n{number}"
        await cluster.node(name, labels={"kubernetes.io/hostname": name, ZONE: f"z{number}"})
    await storage_class(cluster, "local", LOCAL)
    await storage_class(cluster, "made", FAKE_PROVISIONER)
    await storage_class(cluster, "now", FAKE_PROVISIONER, "Immediate")


@asynccontextmanager
async def prepared_cluster(*, controllers: bool = True, profile: str = PROFILE) -> AsyncIterator[ProgramCluster]:
    """A program with three nodes and three classes; with the controllers of a cluster, or without any."""
    async with (
        open_cluster(profile, before=three_nodes) as cluster,
        with_controllers(cluster) if controllers else nullcontext(),
    ):
        yield cluster
        await cluster.at_rest()


def play(main: Callable[[], Awaitable[None]]) -> None:
    in_virtual_time(main)


def held(cluster: ProgramCluster) -> Json:
    """What pods on their way are promised."""
    return {uid: hold for ledger in cluster.program.cache.ledgers for uid, hold in ledger.held().items()}


def is_bound(found: Json) -> bool:
    return bool(found["status"].get("phase") == "Bound")


def test_local_volume_is_bound_before_the_pod() -> None:
    async def main() -> None:
        async with prepared_cluster() as cluster:
            await local_volume(cluster, "disk", "n1", "2Gi")
            await local_volume(cluster, "large-disk", "n1", "9Gi")
            await claim(cluster, "data", "local")
            await pod_with(cluster, "p", "data")
            await cluster.bound("p")

            assert cluster.node_of("p") == "n1"
            bound = await read(cluster, "namespaces/default/persistentvolumeclaims/data")
            volume = await read(cluster, "persistentvolumes/disk")
            assert is_bound(bound)
            assert bound["spec"]["volumeName"] == "disk"
            assert volume["spec"]["claimRef"]["uid"] == bound["metadata"]["uid"]
            assert volume["metadata"]["annotations"] == {"pv.kubernetes.io/bound-by-controller": "yes"}

    play(main)


def test_claim_is_provisioned_for_the_node_of_its_pod() -> None:
    async def main() -> None:
        async with prepared_cluster() as cluster:
            await claim(cluster, "data", "made")
            await pod_with(cluster, "p", "data")
            await cluster.bound("p")

            found = await read(cluster, "namespaces/default/persistentvolumeclaims/data")
            assert is_bound(found)
            assert found["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] == cluster.node_of("p")
            # Where the volume is, a second pod of the claim has to be.
            await pod_with(cluster, "q", "data")
            await cluster.bound("q")
            assert cluster.node_of("q") == cluster.node_of("p")

    play(main)


def test_burst_of_pods_uses_each_volume_once_and_the_rest_wait() -> None:
    async def main() -> None:
        async with prepared_cluster() as cluster:
            for number in range(12):
                await local_volume(cluster, f"disk-{number}", f"n{number % 3}")
            for number in range(15):
                await claim(cluster, f"data-{number}", "local")
                await pod_with(cluster, f"p{number}", f"data-{number}")
            await cluster.until(lambda: len(cluster.bound_at) == 12)
            await asyncio.sleep(30.0)

            assert len(cluster.bound_at) == 12
            waiting = [e for w in cluster.program.router.workers() for e in w.queue.entries()]
            assert len(waiting) == 3
            assert all("didn't find available persistent volumes to bind" in e.message for e in waiting)
            listed = await read(cluster, "persistentvolumes")
            claims = [v["spec"]["claimRef"]["name"] for v in listed["items"]]
            assert len(set(claims)) == 12
            # New volumes wake those who wait.
            for number in range(12, 15):
                await local_volume(cluster, f"disk-{number}", "n0")
            await cluster.until(lambda: len(cluster.bound_at) == 15)

    play(main)


@pytest.mark.parametrize(
    ("class_name", "words"),
    [
        ("", 'persistentvolumeclaim "data" not found'),
        ("now", ""),
        ("gone", "pod has unbound immediate PersistentVolumeClaims"),
    ],
)
def test_pod_waits_for_its_claim_with_the_reason(class_name: str, words: str) -> None:
    async def main() -> None:
        async with prepared_cluster() as cluster:
            await pod_with(cluster, "p", "data")
            await cluster.until(lambda: cluster.waiting("p") is not None and bool(cluster.waiting("p").message))  # type: ignore[union-attr]
            entry = cluster.waiting("p")
            assert entry is not None
            assert 'persistentvolumeclaim "data" not found' in entry.message
            if class_name:
                await claim(cluster, "data", class_name)
            if words:
                await cluster.until(lambda: words in getattr(cluster.waiting("p"), "message", ""))
                await storage_class(cluster, "gone", FAKE_PROVISIONER)
                if not class_name:
                    await claim(cluster, "data", "gone")
            await cluster.bound("p", within_s=60.0)

    play(main)


def test_pod_without_its_volume_in_time_is_requeued_and_holds_nothing() -> None:
    async def main() -> None:
        async with prepared_cluster(controllers=False) as cluster:
            await claim(cluster, "data", "made")
            await pod_with(cluster, "p", "data")
            await cluster.until(lambda: "p" in cluster.observer.placed)
            await cluster.node("n3", labels={ZONE: "z3"})
            await cluster.pod("other", cpu="1")
            await cluster.bound("other")
            assert "p" not in cluster.bound_at
            await asyncio.sleep(BIND_TIMEOUT_S - 1.0)
            assert len(held(cluster)) == 1
            await cluster.until(
                lambda: "binding volumes: context deadline" in getattr(cluster.waiting("p"), "message", "")
            )
            assert held(cluster) == {}
            await cluster.delete("namespaces/default/pods/p")

    play(main)


def test_failed_provisioning_moves_the_pod_elsewhere() -> None:
    async def main() -> None:
        async with prepared_cluster(controllers=False) as cluster:
            await claim(cluster, "data", "made")
            await pod_with(cluster, "p", "data")
            path = "namespaces/default/persistentvolumeclaims/data"
            node = await selected_node(cluster, path)
            await patch(cluster, f"nodes/{node}", {"spec": {"unschedulable": True}})
            await patch(cluster, path, {"metadata": {"annotations": {"volume.kubernetes.io/selected-node": None}}})
            await cluster.until(lambda: cluster.observer.placed.count("p") == 2)
            assert await selected_node(cluster, path) != node
            await cluster.delete("namespaces/default/pods/p")

    play(main)


async def selected_node(cluster: ProgramCluster, path: str) -> str:
    """The node that the scheduler writes to a claim; waits until it has."""
    for _ in range(2_000):
        annotations = (await read(cluster, path))["metadata"].get("annotations") or {}
        if "volume.kubernetes.io/selected-node" in annotations:
            return str(annotations["volume.kubernetes.io/selected-node"])
        await asyncio.sleep(0.01)
    raise AssertionError("no node was selected")


def test_volume_changed_after_its_selection_is_checked_again() -> None:
    async def main() -> None:
        async with prepared_cluster() as cluster:
            await local_volume(cluster, "disk", "n1")
            await claim(cluster, "data", "local")
            await pod_with(cluster, "p", "data")
            for number in range(5):
                await patch(cluster, "persistentvolumes/disk", {"metadata": {"labels": {"touched": str(number)}}})
                await asyncio.sleep(0.0)
            await cluster.bound("p")
            assert cluster.node_of("p") == "n1"

    play(main)


def test_equal_pods_of_one_unbound_claim_follow_the_first() -> None:
    async def main() -> None:
        async with prepared_cluster() as cluster:
            await claim(cluster, "shared", "made")
            names = [f"p{number}" for number in range(12)]
            for name in names:
                await pod_with(cluster, name, "shared")
            await cluster.bound(*names, within_s=60.0)
            assert len({cluster.node_of(name) for name in names}) == 1

    play(main)


def test_ephemeral_claim_is_created_and_bound() -> None:
    async def main() -> None:
        async with prepared_cluster() as cluster:
            template = {
                "spec": {
                    "storageClassName": "made",
                    "accessModes": ["ReadWriteOnce"],
                    "resources": {"requests": {"storage": "1Gi"}},
                }
            }
            await cluster.pod("p", volumes=[{"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}])
            await cluster.bound("p", within_s=60.0)
            assert is_bound(await read(cluster, "namespaces/default/persistentvolumeclaims/p-scratch"))

    play(main)

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
from tests.integration.plugins.house import House, controlled, in_virtual_time, one_domain, open_house

ZONE = "topology.kubernetes.io/zone"
LOCAL = "kubernetes.io/no-provisioner"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
BIND_TIMEOUT_S = 20
PROFILE = one_domain({"name": "VolumeBinding", "args": {"bindTimeoutSeconds": BIND_TIMEOUT_S}})
Json = dict[str, Any]


async def storage_class(house: House, name: str, provisioner: str, mode: str = "WaitForFirstConsumer") -> None:
    await house.post(CLASSES, name, {}, provisioner=provisioner, volumeBindingMode=mode)


async def claim(house: House, name: str, storage_class_name: str, size: str = "1Gi") -> None:
    spec = {
        "storageClassName": storage_class_name,
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": size}},
    }
    await house.post("namespaces/default/persistentvolumeclaims", name, {}, spec=spec)


async def local_volume(house: House, name: str, node: str, size: str = "1Gi") -> None:
    expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    spec = {
        "capacity": {"storage": size},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "local",
        "local": {"path": f"/disks/{name}"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}},
    }
    await house.post("persistentvolumes", name, {}, spec=spec)


async def pod_with(house: House, name: str, *claims: str) -> None:
    volumes = [{"name": f"v{at}", "persistentVolumeClaim": {"claimName": one}} for at, one in enumerate(claims)]
    await house.pod(name, volumes=volumes)


async def read(house: House, path: str) -> Json:
    answer = await DirectTransport(house.server).request("GET", f"/api/v1/{path}")
    assert answer.status == 200, answer.body
    found: Json = orjson.loads(answer.body)
    return found


async def patch(house: House, path: str, body: Json) -> None:
    answer = await DirectTransport(house.server).request(
        "PATCH", f"/api/v1/{path}", body=orjson.dumps(body), content_type=MERGE_PATCH
    )
    assert answer.status == 200, answer.body


async def three_nodes(house: House) -> None:
    for number in range(3):
        name = f"n{number}"
        await house.node(name, labels={"kubernetes.io/hostname": name, ZONE: f"z{number}"})
    await storage_class(house, "local", LOCAL)
    await storage_class(house, "made", FAKE_PROVISIONER)
    await storage_class(house, "now", FAKE_PROVISIONER, "Immediate")


@asynccontextmanager
async def cluster(*, controllers: bool = True, profile: str = PROFILE) -> AsyncIterator[House]:
    """A house with three nodes and three classes; with the controllers of a cluster, or without any."""
    async with open_house(profile, before=three_nodes) as house, controlled(house) if controllers else nullcontext():
        yield house
        await house.at_rest()


def play(story: Callable[[], Awaitable[None]]) -> None:
    in_virtual_time(story)


def held(house: House) -> Json:
    """What pods on their way are promised."""
    return {uid: hold for ledger in house.program.cache.ledgers for uid, hold in ledger.held().items()}


def is_bound(found: Json) -> bool:
    return bool(found["status"].get("phase") == "Bound")


def test_local_volume_is_bound_before_the_pod() -> None:
    async def story() -> None:
        async with cluster() as house:
            await local_volume(house, "disk", "n1", "2Gi")
            await local_volume(house, "large-disk", "n1", "9Gi")
            await claim(house, "data", "local")
            await pod_with(house, "p", "data")
            await house.bound("p")

            assert house.node_of("p") == "n1"
            bound = await read(house, "namespaces/default/persistentvolumeclaims/data")
            volume = await read(house, "persistentvolumes/disk")
            assert is_bound(bound)
            assert bound["spec"]["volumeName"] == "disk"
            assert volume["spec"]["claimRef"]["uid"] == bound["metadata"]["uid"]
            assert volume["metadata"]["annotations"] == {"pv.kubernetes.io/bound-by-controller": "yes"}

    play(story)


def test_claim_is_provisioned_for_the_node_of_its_pod() -> None:
    async def story() -> None:
        async with cluster() as house:
            await claim(house, "data", "made")
            await pod_with(house, "p", "data")
            await house.bound("p")

            found = await read(house, "namespaces/default/persistentvolumeclaims/data")
            assert is_bound(found)
            assert found["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] == house.node_of("p")
            # Where the volume is, a second pod of the claim has to be.
            await pod_with(house, "q", "data")
            await house.bound("q")
            assert house.node_of("q") == house.node_of("p")

    play(story)


def test_burst_of_pods_uses_each_volume_once_and_the_rest_wait() -> None:
    async def story() -> None:
        async with cluster() as house:
            for number in range(12):
                await local_volume(house, f"disk-{number}", f"n{number % 3}")
            for number in range(15):
                await claim(house, f"data-{number}", "local")
                await pod_with(house, f"p{number}", f"data-{number}")
            await house.until(lambda: len(house.bound_at) == 12)
            await asyncio.sleep(30.0)

            assert len(house.bound_at) == 12
            waiting = [e for w in house.program.router.workers() for e in w.queue.entries()]
            assert len(waiting) == 3
            assert all("didn't find available persistent volumes to bind" in e.message for e in waiting)
            listed = await read(house, "persistentvolumes")
            claims = [v["spec"]["claimRef"]["name"] for v in listed["items"]]
            assert len(set(claims)) == 12
            # New volumes wake those who wait.
            for number in range(12, 15):
                await local_volume(house, f"disk-{number}", "n0")
            await house.until(lambda: len(house.bound_at) == 15)

    play(story)


@pytest.mark.parametrize(
    ("class_name", "words"),
    [
        ("", 'persistentvolumeclaim "data" not found'),
        ("now", ""),
        ("gone", "pod has unbound immediate PersistentVolumeClaims"),
    ],
)
def test_pod_waits_for_its_claim_with_the_reason(class_name: str, words: str) -> None:
    async def story() -> None:
        async with cluster() as house:
            await pod_with(house, "p", "data")
            await house.until(lambda: house.waiting("p") is not None and bool(house.waiting("p").message))  # type: ignore[union-attr]
            entry = house.waiting("p")
            assert entry is not None
            assert 'persistentvolumeclaim "data" not found' in entry.message
            if class_name:
                await claim(house, "data", class_name)
            if words:
                await house.until(lambda: words in getattr(house.waiting("p"), "message", ""))
                await storage_class(house, "gone", FAKE_PROVISIONER)
                if not class_name:
                    await claim(house, "data", "gone")
            await house.bound("p", within_s=60.0)

    play(story)


def test_pod_without_its_volume_in_time_is_requeued_and_holds_nothing() -> None:
    async def story() -> None:
        async with cluster(controllers=False) as house:
            await claim(house, "data", "made")
            await pod_with(house, "p", "data")
            await house.until(lambda: "p" in house.observer.placed)
            await house.node("n3", labels={ZONE: "z3"})
            await house.pod("other", cpu="1")
            await house.bound("other")
            assert "p" not in house.bound_at
            await asyncio.sleep(BIND_TIMEOUT_S - 1.0)
            assert len(held(house)) == 1
            await house.until(lambda: "binding volumes: context deadline" in getattr(house.waiting("p"), "message", ""))
            assert held(house) == {}
            await house.delete("namespaces/default/pods/p")

    play(story)


def test_failed_provisioning_moves_the_pod_elsewhere() -> None:
    async def story() -> None:
        async with cluster(controllers=False) as house:
            await claim(house, "data", "made")
            await pod_with(house, "p", "data")
            path = "namespaces/default/persistentvolumeclaims/data"
            node = await selected_node(house, path)
            await patch(house, f"nodes/{node}", {"spec": {"unschedulable": True}})
            await patch(house, path, {"metadata": {"annotations": {"volume.kubernetes.io/selected-node": None}}})
            await house.until(lambda: house.observer.placed.count("p") == 2)
            assert await selected_node(house, path) != node
            await house.delete("namespaces/default/pods/p")

    play(story)


async def selected_node(house: House, path: str) -> str:
    """The node that the scheduler writes to a claim; waits until it has."""
    for _ in range(2_000):
        annotations = (await read(house, path))["metadata"].get("annotations") or {}
        if "volume.kubernetes.io/selected-node" in annotations:
            return str(annotations["volume.kubernetes.io/selected-node"])
        await asyncio.sleep(0.01)
    raise AssertionError("no node was selected")


def test_volume_changed_after_its_selection_is_checked_again() -> None:
    async def story() -> None:
        async with cluster() as house:
            await local_volume(house, "disk", "n1")
            await claim(house, "data", "local")
            await pod_with(house, "p", "data")
            for number in range(5):
                await patch(house, "persistentvolumes/disk", {"metadata": {"labels": {"touched": str(number)}}})
                await asyncio.sleep(0.0)
            await house.bound("p")
            assert house.node_of("p") == "n1"

    play(story)


def test_equal_pods_of_one_unbound_claim_follow_the_first() -> None:
    async def story() -> None:
        async with cluster() as house:
            await claim(house, "shared", "made")
            names = [f"p{number}" for number in range(12)]
            for name in names:
                await pod_with(house, name, "shared")
            await house.bound(*names, within_s=60.0)
            assert len({house.node_of(name) for name in names}) == 1

    play(story)


def test_ephemeral_claim_is_created_and_bound() -> None:
    async def story() -> None:
        async with cluster() as house:
            template = {
                "spec": {
                    "storageClassName": "made",
                    "accessModes": ["ReadWriteOnce"],
                    "resources": {"requests": {"storage": "1Gi"}},
                }
            }
            await house.pod("p", volumes=[{"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}])
            await house.bound("p", within_s=60.0)
            assert is_bound(await read(house, "namespaces/default/persistentvolumeclaims/p-scratch"))

    play(story)

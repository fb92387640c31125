"""The device plugins of fake nodes: which pod each picks, what it writes, and what containers get."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from multisched.cluster.client.object_client import NODES, PODS, Document
from multisched.cluster.kubelet.kubelets import Kubelets
from multisched.cluster.kubelet.plugin_rules import DONE_TIME
from multisched.cluster.kubelet.stages_builtin import builtin_stages
from multisched.testing.builders import container, node_document, pod_document
from tests.unit.cluster.cluster_kit import Cluster

pytestmark = pytest.mark.looptime

HAMI = node_document("n", extra={"nvidia.com/gpu": 20}, annotations={"hami.io/node-nvidia-register": "[]"})
VOLCANO = node_document("n", extra={"volcano.sh/vgpu-number": 20}, annotations={"volcano.sh/node-vgpu-register": ""})
GPUSHARE = node_document("n", extra={"aliyun.com/gpu-mem": 48, "aliyun.com/gpu-count": 2})
LOCK = "hami.io/mutex.lock"
NOW = "2026-01-01T00:00:00Z"


@asynccontextmanager
async def a_node_with(
    node: Document, *, delay_s: tuple[float, float] = (1.0, 1.0)
) -> AsyncIterator[tuple[Cluster, Kubelets]]:
    cluster = Cluster(1)
    await cluster.create(NODES, node)
    kubelets = Kubelets(
        cluster.transport, clock=cluster.clock, rng=Random(1), stages=builtin_stages("fast"), plugin_delay_s=delay_s
    )
    task = asyncio.create_task(kubelets.run())
    await kubelets.wait_synced()
    try:
        yield cluster, kubelets
        kubelets.validate_state()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def asking(name: str, *numbers: int, resource: str = "nvidia.com/gpu", **annotations: str) -> Document:
    """A pod on the node whose containers request these numbers."""
    containers = [container(f"c{place}", extra={resource: number}) for place, number in enumerate(numbers)]
    for one in containers:
        one["resources"]["limits"] = dict(one["resources"]["requests"])
    return pod_document(name, *containers, nodeName="n", annotations=annotations)


def hami(text: str, phase: str = "allocating") -> dict[str, str]:
    names = ("vgpu-node", "vgpu-devices-to-allocate", "bind-phase", "bind-time")
    return {f"hami.io/{name}": value for name, value in zip(names, ("n", text, phase, "1"), strict=True)}


def volcano(text: str, time: str) -> dict[str, str]:
    names = ("vgpu-node", "devices-to-allocate", "bind-phase", "vgpu-time")
    return {f"volcano.sh/{name}": value for name, value in zip(names, ("n", text, "allocating", time), strict=True)}


def gpushare(index: int, time: int) -> dict[str, str]:
    names = {"IDX": str(index), "ASSIGNED": "false", "ASSUME_TIME": str(time)}
    return {f"ALIYUN_COM_GPU_MEM_{name}": value for name, value in names.items()}


async def started(cluster: Cluster, *names: str) -> list[Document]:
    return [await cluster.wait_until(PODS, name, lambda p: p["status"]["phase"] != "Pending") for name in names]


def picks(kubelets: Kubelets, pods: list[Document]) -> list[tuple[str, str, list[tuple[str, int, int]]]]:
    """Admitted pod, picked pod, and what the container got."""
    names = {pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in pods}
    return [
        (names[a.uid], names[a.believed_uid], [(s.card, s.memory, s.cores) for s in a.slices])
        for a in kubelets.plugins.allocations
    ]


async def test_hami_serves_the_pod_that_the_lock_names_and_releases_it() -> None:
    async with a_node_with(HAMI) as (cluster, kubelets):
        await cluster.patch(NODES, "n", {"metadata": {"annotations": {LOCK: f"{NOW},default,p"}}})
        await cluster.create(PODS, asking("p", 1, 2, **hami("G0,NVIDIA,100,5:;G1,NVIDIA,200,0:G2,NVIDIA,200,0:;")))
        pods = await started(cluster, "p")

        assert picks(kubelets, pods) == [
            ("p", "p", [("G0", 100, 5)]),
            ("p", "p", [("G1", 200, 0), ("G2", 200, 0)]),
        ]
        found = pods[0]["metadata"]["annotations"]
        assert (found["hami.io/vgpu-devices-to-allocate"], found["hami.io/bind-phase"]) == (";;", "success")
        node = await cluster.get(NODES, "n")
        assert node is not None
        assert LOCK not in node["metadata"]["annotations"]


async def test_hami_without_a_lock_gives_the_cards_of_the_first_listed_pod() -> None:
    async with a_node_with(HAMI, delay_s=(10.0, 10.0)) as (cluster, kubelets):
        await cluster.create(PODS, asking("b", 1, **hami("G1,NVIDIA,100,0:;")))
        await cluster.wait_until(PODS, "b", lambda _: kubelets.plugins.admitting("n") == "b")
        await cluster.create(PODS, asking("a", 1, **hami("G0,NVIDIA,900,0:;")))
        pods = await started(cluster, "b", "a")

        assert picks(kubelets, pods) == [("b", "a", [("G0", 900, 0)])]
        assert pods[1]["status"]["reason"] == "UnexpectedAdmissionError"
        assert "device request not found" in pods[1]["status"]["message"]
        assert kubelets.statistics().rejected == {"UnexpectedAdmissionError": 1}


async def test_hami_with_a_malformed_lock_rejects_every_pod() -> None:
    async with a_node_with(HAMI) as (cluster, kubelets):
        await cluster.patch(NODES, "n", {"metadata": {"annotations": {LOCK: "yesterday"}}})
        await cluster.create(PODS, asking("p", 1, **hami("G0,NVIDIA,100,5:;")))
        pod = (await started(cluster, "p"))[0]

        assert pod["status"]["reason"] == "UnexpectedAdmissionError"
        assert "malformed lock annotation 'yesterday'" in pod["status"]["message"]
        assert not kubelets.plugins.allocations


async def test_volcano_picks_the_oldest_pod_with_this_number_of_cards() -> None:
    async with a_node_with(VOLCANO) as (cluster, kubelets):
        resource = "volcano.sh/vgpu-number"
        for name, time in (("a", "20"), ("b", "10")):
            await cluster.create(PODS, asking(name, 1, resource=resource, **volcano(f"{name},NVIDIA,100,0:", time)))
        pods = await started(cluster, "a", "b")

        assert [believed for _, believed, _ in picks(kubelets, pods)] == ["b", "a"]
        served = await cluster.list_all(PODS)
        assert {p["metadata"]["annotations"]["volcano.sh/vgpu-time"] for p in served} == {DONE_TIME}


async def test_gpushare_gives_the_card_of_the_earliest_pod_with_this_total() -> None:
    async with a_node_with(GPUSHARE, delay_s=(10.0, 10.0)) as (cluster, kubelets):
        resource = "aliyun.com/gpu-mem"
        await cluster.create(PODS, asking("late", 4, resource=resource, **gpushare(0, 3)))
        await cluster.wait_until(PODS, "late", lambda _: kubelets.plugins.admitting("n") == "late")
        await cluster.create(PODS, asking("early", 4, resource=resource, **gpushare(1, 2)))
        await cluster.create(PODS, asking("other", 5, resource=resource, **gpushare(1, 1)))
        pods = await started(cluster, "late", "early", "other")

        assert sorted(picks(kubelets, pods)) == [("late", "early", [("1", 4, 0)]), ("other", "other", [("1", 5, 0)])]
        assert pods[1]["status"]["reason"] == "UnexpectedAdmissionError"
        assigned = {p["metadata"]["name"]: p["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_ASSIGNED"] for p in pods}
        assert assigned == {"late": "false", "early": "true", "other": "true"}


async def test_pods_of_a_node_are_admitted_singly_and_deleted_ones_are_skipped() -> None:
    async with a_node_with(GPUSHARE, delay_s=(10.0, 10.0)) as (cluster, kubelets):
        for number in range(3):
            name = f"p{number}"
            await cluster.create(PODS, asking(name, 4 + number, resource="aliyun.com/gpu-mem", **gpushare(0, number)))
        await asyncio.sleep(1)
        waiting = [one["metadata"]["name"] for one in await cluster.list_all(PODS)]
        current = kubelets.plugins.admitting("n")
        victim = next(name for name in waiting if name != current)
        await cluster.delete(PODS, victim)
        pods = await started(cluster, *(name for name in waiting if name != victim))

        times = sorted(a.began_s for a in kubelets.plugins.allocations)
        assert len(times) == 2
        assert times[1] - times[0] == pytest.approx(10.0, abs=0.1)
        assert {admitted for admitted, _, _ in picks(kubelets, pods)} == {name for name in waiting if name != victim}


async def test_binding_sets_labels_of_the_pod() -> None:
    cluster = Cluster(1)
    await cluster.create(PODS, pod_document("p", container("c"), labels={"app": "a", "zone": "x"}))
    body = {"metadata": {"labels": {"zone": "y", "hami.io/vgpu-node": "n"}}, "target": {"kind": "Node", "name": "n"}}
    (await cluster.client.call("POST", PODS.path("default", "p", "binding"), body=body)).expect()

    pod = await cluster.get(PODS, "p")
    assert pod is not None
    assert pod["metadata"]["labels"] == {"app": "a", "zone": "y", "hami.io/vgpu-node": "n"}

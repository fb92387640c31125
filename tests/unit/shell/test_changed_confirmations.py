"""Binds that are confirmed otherwise than they were decided: who waits for the room that this leaves hears of it."""

from __future__ import annotations

from tests.unit.shell.program_kit import PODS, Cluster, play

STRATEGIC = "application/strategic-merge-patch+json"


async def one_node(cluster: Cluster) -> None:
    await cluster.add_node("a", cpu="4", labels={"kubernetes.io/hostname": "a"})


async def wait_for_room(cluster: Cluster) -> None:
    """A pod is on its way to node a, and another, which fits only beside a smaller one, is parked."""
    cluster.transport.bind_s = 20.0
    await cluster.add_pod("large", cpu="3")
    await cluster.settle(1.0)
    await cluster.add_pod("waits", cpu="2")
    await cluster.settle(1.0)
    assert cluster.placed == {"large": "a"}
    cluster.transport.bind_s = 0.0


def test_pod_resized_down_before_its_bind_reply_frees_room() -> None:
    async def scene(cluster: Cluster) -> None:
        cluster.transport.said = lambda text: b"" if b"MODIFIED" in text and b'"large"' in text else text
        await wait_for_room(cluster)
        patch = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]}}
        await cluster.send("PATCH", f"{PODS}/large/resize", patch, content_type=STRATEGIC)
        await cluster.settle(1.0)
        cluster.transport.said = lambda text: text
        await cluster.bind("large", "a")  # what was sent at first, taking effect
        await cluster.settle(5.0)
        assert (await cluster.nodes_of_pods())["waits"] == "a"

    play(scene, prepare=one_node)


def test_pod_bound_elsewhere_by_another_scheduler_frees_its_room() -> None:
    async def prepare(cluster: Cluster) -> None:
        await one_node(cluster)
        await cluster.add_node("b", cpu="3", labels={"kubernetes.io/hostname": "b"})
        await cluster.send("PATCH", "/api/v1/nodes/b", {"spec": {"unschedulable": True}}, content_type=STRATEGIC)

    async def scene(cluster: Cluster) -> None:
        await wait_for_room(cluster)
        await cluster.bind("large", "b")
        await cluster.settle(5.0)
        assert (await cluster.nodes_of_pods()) == {"large": "b", "waits": "a"}

    play(scene, prepare=prepare)

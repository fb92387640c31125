"""A whole program over a server that sends text which is not UTF-8."""

from __future__ import annotations

from tests.unit.shell.program_kit import PODS, Cluster, play


async def prepare(cluster: Cluster) -> None:
    cluster.transport.said = lambda text: text.replace(b"@@", b"\xff\xc3")
    for name in ("a", "b"):
        await cluster.add_node(name)
    await cluster.send("PATCH", "/api/v1/nodes/b", {"metadata": {"annotations": {"note": "@@"}}}, content_type=PATCH)
    await cluster.add_pod("standing", cpu="3", metadata={"annotations": {"note": "@@"}}, scheduler="foreign", port=80)
    await cluster.bind("standing", "a")
    await cluster.add_pod("pending", cpu="1", metadata={"annotations": {"note": "x@@y"}})


PATCH = "application/merge-patch+json"


def test_program_schedules_around_unreadable_text() -> None:
    async def scene(cluster: Cluster) -> None:
        await cluster.add_pod("late", cpu="1", metadata={"labels": {"app": "x"}})
        await cluster.add_pod("large", cpu="2")
        await cluster.add_pod("other", cpu="1", metadata={"annotations": {"note": "@@"}})
        await cluster.send("PATCH", f"{PODS}/late", {"metadata": {"annotations": {"note": "@@"}}}, content_type=PATCH)
        await cluster.settle(150.0)

        nodes = await cluster.nodes_of_pods()
        assert nodes == {"standing": "a", "late": "a", "pending": "", "other": "", "large": ""}
        document = await cluster.send("GET", f"{PODS}/pending")
        (condition,) = document["status"]["conditions"]
        assert "not UTF-8" in condition["message"]
        assert cluster.program.audit.statistics().failures == 0
        assert cluster.program.audit.statistics().differences == 0

    play(scene, prepare=prepare)

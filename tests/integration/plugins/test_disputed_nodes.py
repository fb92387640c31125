"""Nodes that two domains claim: told at the node, once, and used by the first of them only."""

from __future__ import annotations

from tests.integration.plugins.program_cluster import HEAD, ProgramCluster, in_virtual_time, open_cluster

TWO = HEAD + (
    "domains:\n"
    "- {name: qos, nodes: {selector: {matchLabels: {pool: qos}}}}\n"
    "- {name: big, nodes: {selector: {matchLabels: {size: big}}}}\n"
)


def notes(cluster: ProgramCluster) -> list[str]:
    events = [stored.document() for stored in dict(cluster.server.store.collection("events").items()).values()]
    return [str(event.get("note") or event.get("message")) for event in events if event["reason"] == "DisputedNode"]


def test_node_of_two_domains_is_reported_once_and_belongs_to_the_first() -> None:
    async def main() -> None:
        async with open_cluster(TWO) as cluster:
            await cluster.node("both", labels={"pool": "qos", "size": "big"})
            await cluster.pod("of-qos", scheduler="qos-scheduler", cpu="1")
            await cluster.pod("of-big", scheduler="big-scheduler", cpu="1")
            await cluster.bound("of-qos", within_s=5.0)
            await cluster.until(lambda: bool(notes(cluster)))

            (note,) = notes(cluster)
            assert note.startswith(
                "The selectors of the domains qos, big match: it belongs to qos, and big cannot use it."
            )
            await cluster.node("clear", labels={"size": "big"})
            await cluster.bound("of-big")
            assert cluster.node_of("of-big") == "clear"
            await cluster.at_rest()
            assert len(notes(cluster)) == 1

    in_virtual_time(main)

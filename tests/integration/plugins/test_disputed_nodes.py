"""Nodes that two domains claim: told at the node, once, and used by the first of them only."""

from __future__ import annotations

from tests.integration.plugins.house import HEAD, House, in_virtual_time, open_house

TWO = HEAD + (
    "domains:\n"
    "- {name: qos, nodes: {selector: {matchLabels: {pool: qos}}}}\n"
    "- {name: big, nodes: {selector: {matchLabels: {size: big}}}}\n"
)


def notes(house: House) -> list[str]:
    events = [stored.document() for stored in dict(house.server.store.collection("events").items()).values()]
    return [str(event.get("note") or event.get("message")) for event in events if event["reason"] == "DisputedNode"]


def test_node_of_two_domains_is_reported_once_and_belongs_to_the_first() -> None:
    async def story() -> None:
        async with open_house(TWO) as house:
            await house.node("both", labels={"pool": "qos", "size": "big"})
            await house.pod("of-qos", scheduler="qos-scheduler", cpu="1")
            await house.pod("of-big", scheduler="big-scheduler", cpu="1")
            await house.bound("of-qos", within_s=5.0)
            await house.until(lambda: bool(notes(house)))

            (note,) = notes(house)
            assert note.startswith(
                "The selectors of the domains qos, big match: it belongs to qos, and big cannot use it."
            )
            await house.node("clear", labels={"size": "big"})
            await house.bound("of-big")
            assert house.node_of("of-big") == "clear"
            await house.at_rest()
            assert len(notes(house)) == 1

    in_virtual_time(story)

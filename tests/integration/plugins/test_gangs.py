"""Gangs through the whole program in its shipped configuration: started together or not at all, healed, and told why they wait."""

from __future__ import annotations

from typing import Any

from multisched.model.gang import ACK_MIN, ACK_NAME, KOORDINATOR, SP_LABEL
from tests.integration.plugins.house import HEAD, House, in_virtual_time, install_definitions, open_house

PODS = "namespaces/default/pods"
GROUPS = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/podgroups"


async def member(
    house: House,
    name: str,
    least: int = 2,
    *,
    gang: str = "g",
    cpu: str = "1",
    scheduler: str = "forecast-scheduler",
    **meta: Any,
) -> None:
    labels = {ACK_NAME: gang, ACK_MIN: str(least)}
    spec = {
        "schedulerName": scheduler,
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "main", "image": "app:v1", "resources": {"requests": {"cpu": cpu}}}],
    }
    await house.post(PODS, name, meta or {"labels": labels}, spec=spec)


def waiting(house: House, name: str) -> str:
    """Place and message of a waiting pod."""
    worker = house.worker("forecast")
    entry = next(entry for entry in worker.queue.entries() if entry.pod.name == name)
    return f"{entry.place.value}: {entry.message}"


async def two_nodes(house: House) -> None:
    await install_definitions(house)
    for name in ("a", "b"):
        await house.node(name, cpu="4")


def test_a_gang_starts_when_its_last_member_comes_and_not_before() -> None:
    async def story() -> None:
        async with open_house(HEAD, before=two_nodes) as house:
            for name in ("m0", "m1"):
                await member(house, name, 3)
            await house.pod("other", scheduler="forecast-scheduler")
            await house.bound("other")
            assert waiting(house, "m0") == "gated: gang default/g: waits until 3 members are there"
            await member(house, "m2", 3)
            await house.bound("m0", "m1", "m2")
            await house.at_rest()

    in_virtual_time(story)


def test_a_gang_without_room_holds_nothing_and_starts_when_there_is() -> None:
    async def story() -> None:
        async with open_house(HEAD, before=two_nodes) as house:
            for number in range(10):
                await member(house, f"m{number}", 10)
            await house.until(lambda: bool(house.worker("forecast").queue.statistics().pending["unschedulable"]))
            for number in range(8):
                await house.pod(f"s{number}", cpu="1", scheduler="forecast-scheduler")
            await house.bound(*(f"s{number}" for number in range(8)))
            assert "have a node" in waiting(house, "m0") or "gang" in waiting(house, "m0")
            await house.node("c", cpu="12")
            await house.bound(*(f"m{number}" for number in range(10)))
            await house.at_rest()

    in_virtual_time(story)


def test_a_member_that_dies_is_replaced_and_those_that_finished_count() -> None:
    async def story() -> None:
        async with open_house(HEAD, before=two_nodes) as house:
            for name in ("m0", "m1"):
                await member(house, name)
            await house.bound("m0", "m1")
            await house.patch(f"{PODS}/m0/status", {"status": {"phase": "Succeeded"}})
            await house.delete(f"{PODS}/m1")
            await member(house, "m2")
            await house.bound("m2")
            await house.at_rest()

    in_virtual_time(story)


def test_a_pod_group_says_how_many_and_a_bad_one_is_told() -> None:
    async def story() -> None:
        async with open_house(HEAD, before=two_nodes) as house:
            for name in ("m0", "m1"):
                await member(house, name, labels={SP_LABEL: "g"})
            await house.until(lambda: len(house.worker("forecast").queue) == 2)
            assert waiting(house, "m0") == "gated: gang default/g: its PodGroup is not there"
            await house.post(GROUPS, "g", {}, spec={"minMember": 0})
            await house.until(lambda: "minMember is 0" in waiting(house, "m0"))
            await house.patch(f"{GROUPS}/g", {"spec": {"minMember": 2}})
            await house.bound("m0", "m1")
            await house.at_rest()

    in_virtual_time(story)


def test_a_pod_of_two_gangs_is_refused_with_both_names() -> None:
    async def story() -> None:
        async with open_house(HEAD, before=two_nodes) as house:
            labels = {ACK_NAME: "g", ACK_MIN: "1", SP_LABEL: "other"}
            await member(house, "m0", labels=labels)
            await house.until(lambda: bool(house.program.pods.refused))
            (refused,) = house.program.pods.refused.values()
            assert "belongs to the gangs" in refused.message

    in_virtual_time(story)


def test_gangs_of_koordinator_that_name_each_other_start_together() -> None:
    async def story() -> None:
        async with open_house(HEAD, before=two_nodes) as house:
            notes = {f"{KOORDINATOR}min-available": "1", f"{KOORDINATOR}groups": '["default/x", "default/y"]'}
            await member(house, "m0", annotations={**notes, f"{KOORDINATOR}name": "x"})
            await house.until(lambda: len(house.worker("forecast").queue) == 1)
            assert "starts with gang default/y" in waiting(house, "m0")
            await member(house, "m1", annotations={**notes, f"{KOORDINATOR}name": "y"})
            await house.bound("m0", "m1")
            await house.at_rest()

    in_virtual_time(story)

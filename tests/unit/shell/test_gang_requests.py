"""Gangs whose members change while remote plugins are asked about them, in virtual time.

The members are asked about twice: the first, which the others want to be near, before any is assumed; the others once it is, while
the attempt holds its node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

import numpy as np
import pytest

from multisched.framework.dependency import Dependency
from multisched.framework.node_view import Codes, Rows
from multisched.framework.points import CycleView
from multisched.framework.reasons import ReasonTable
from multisched.model.gang import SP_LABEL, GangApi, GangSpec
from multisched.model.objects import CPU, Pod
from multisched.testing.sim_loop import SimLoop, simulate
from tests.unit.shell.shell_kit import House

ANSWER_S: Final = 10.0
ZONE: Final = "zone"
NEAR: Final = {
    "podAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": ZONE, "labelSelector": {"matchLabels": {"role": "first"}}}
        ]
    }
}
MEMBERS: Final = ("first", "near-0", "near-1")


class Remote:
    """A filter with remote requests, which passes all rows."""

    name = "Remote"
    depends_on = Dependency.ATTEMPT
    response_timeout_s = 60.0
    reasons = ReasonTable(name)

    def __init__(self) -> None:
        self.asked: list[str] = []

    def request(self, cycle: CycleView, pod: Pod, rows: Rows) -> object | None:
        self.asked.append(pod.name)
        return "?"

    async def response(self, request: object) -> object:
        await asyncio.sleep(ANSWER_S)
        return "yes"

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        return np.zeros(len(rows), np.uint8)


def see_member(house: House, name: str, *, labels: dict[str, str] | None = None, **fields: Any) -> None:
    role = name.partition("-")[0]
    affinity: dict[str, Any] = {} if role == "first" else {"affinity": NEAR}
    own = {SP_LABEL: "gang", "role": role} if labels is None else labels
    house.see_pod(name, metadata={"labels": own}, **affinity, **fields)


Change = Callable[[House], None]


def play(number: int, change: Change, scene: Callable[[House], Coroutine[Any, Any, None]]) -> None:
    """Makes the change during request `number` about the gang, then plays the scene."""
    loop, remote = SimLoop(seed=3), Remote()

    async def run() -> None:
        house = House(loop, plugins=[remote], filters=("GangScheduling", "InterPodAffinity"))
        for name in "ab":
            house.see_node(name, labels={ZONE: "z"})
        house.cache.gangs.set_object(GangApi.SCHEDULER_PLUGINS, "default/gang", GangSpec(len(MEMBERS)))
        async with house.at_work():
            for name in MEMBERS:
                see_member(house, name)
            await asyncio.sleep((number - 0.5) * ANSWER_S)
            assert remote.asked == list(MEMBERS[: 1 if number == 1 else None])
            assert house.cache.assumed_count() == number - 1, (
                "only the second request is made while a member is assumed"
            )
            assert not house.desk.posts
            change(house)
            await scene(house)
        house.cache.validate()
        house.worker.queue.validate()
        assert {entry.pod.name for entry in house.cache if house.cache.is_assumed(entry.pod.uid)} <= set(bound(house))

    simulate(run(), loop)


def bound(house: House) -> list[str]:
    return sorted(name for name, _ in house.desk.posts)


def free_cpu_milli(house: House) -> int:
    nodes = house.cache.nodes
    return int((nodes.allocatable(CPU) - nodes.requested(CPU)).sum())


def relabel(house: House, name: str) -> None:
    see_member(house, name, labels={})


HOLDING: Final[dict[str, Change]] = {
    "deleted": lambda house: house.lose_pod("near-1"),
    "deleted first": lambda house: house.lose_pod("first"),
    "left the gang": lambda house: relabel(house, "near-1"),
    "minimum raised": lambda house: house.cache.gangs.set_object(
        GangApi.SCHEDULER_PLUGINS, "default/gang", GangSpec(len(MEMBERS) + 1)
    ),
    "gated": lambda house: see_member(house, "near-1", schedulingGates=[{"name": "wait"}]),
}


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("change", HOLDING.values(), ids=HOLDING)
def test_gang_that_is_incomplete_after_a_request_holds_nothing(number: int, change: Change) -> None:
    async def scene(house: House) -> None:
        await asyncio.sleep(30 * ANSWER_S)
        assert not [name for name in bound(house) if house.cache.gangs.key_of(f"uid-{name}") is not None]
        alone = [name for name in bound(house) if name in MEMBERS]
        assert free_cpu_milli(house) == 4_000 - 1_000 * len(alone)
        for at in range(4 - len(alone)):
            house.see_pod(f"plain-{at}")
        await asyncio.sleep(3 * ANSWER_S)
        assert len(bound(house)) == 4

    play(number, change, scene)


@pytest.mark.parametrize("number", [1, 2])
def test_gang_starts_as_a_whole_when_a_deleted_member_returns(number: int) -> None:
    async def scene(house: House) -> None:
        await asyncio.sleep(3 * ANSWER_S)
        see_member(house, "near-1", uid="uid-new")
        await asyncio.sleep(10 * ANSWER_S)
        assert bound(house) == sorted(MEMBERS)

    play(number, lambda house: house.lose_pod("near-1"), scene)


@pytest.mark.parametrize("number", [1, 2])
def test_rest_of_a_gang_starts_after_a_member_was_bound_elsewhere(number: int) -> None:
    async def scene(house: House) -> None:
        await asyncio.sleep(20 * ANSWER_S)
        assert bound(house) == ["first", "near-0"]
        assert free_cpu_milli(house) == 1_000

    play(number, lambda house: see_member(house, "near-1", nodeName="a", phase="Running"), scene)


@pytest.mark.parametrize("number", [1, 2])
def test_gang_starts_elsewhere_if_a_node_is_deleted_during_a_request(number: int) -> None:
    async def scene(house: House) -> None:
        house.see_node("c", labels={ZONE: "z"})
        await asyncio.sleep(20 * ANSWER_S)
        assert bound(house) == sorted(MEMBERS)
        assert "a" not in [node for _, node in house.desk.posts]

    play(number, lambda house: house.lose_node("a"), scene)

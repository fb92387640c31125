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
from tests.unit.shell.shell_kit import WorkerHarness

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


def see_member(harness: WorkerHarness, name: str, *, labels: dict[str, str] | None = None, **fields: Any) -> None:
    role = name.partition("-")[0]
    affinity: dict[str, Any] = {} if role == "first" else {"affinity": NEAR}
    own = {SP_LABEL: "gang", "role": role} if labels is None else labels
    harness.see_pod(name, metadata={"labels": own}, **affinity, **fields)


Change = Callable[[WorkerHarness], None]


def play(number: int, change: Change, scene: Callable[[WorkerHarness], Coroutine[Any, Any, None]]) -> None:
    """Makes the change during request `number` about the gang, then plays the scene."""
    loop, remote = SimLoop(seed=3), Remote()

    async def run() -> None:
        harness = WorkerHarness(loop, plugins=[remote], filters=("GangScheduling", "InterPodAffinity"))
        for name in "ab":
            harness.see_node(name, labels={ZONE: "z"})
        harness.cache.gangs.set_object(GangApi.SCHEDULER_PLUGINS, "default/gang", GangSpec(len(MEMBERS)))
        async with harness.at_work():
            for name in MEMBERS:
                see_member(harness, name)
            await asyncio.sleep((number - 0.5) * ANSWER_S)
            assert remote.asked == list(MEMBERS[: 1 if number == 1 else None])
            assert harness.cache.assumed_count() == number - 1, (
                "only the second request is made while a member is assumed"
            )
            assert not harness.desk.posts
            change(harness)
            await scene(harness)
        harness.cache.validate()
        harness.worker.queue.validate()
        assert {entry.pod.name for entry in harness.cache if harness.cache.is_assumed(entry.pod.uid)} <= set(
            bound(harness)
        )

    simulate(run(), loop)


def bound(harness: WorkerHarness) -> list[str]:
    return sorted(name for name, _ in harness.desk.posts)


def free_cpu_milli(harness: WorkerHarness) -> int:
    nodes = harness.cache.nodes
    return int((nodes.allocatable(CPU) - nodes.requested(CPU)).sum())


def relabel(harness: WorkerHarness, name: str) -> None:
    see_member(harness, name, labels={})


HOLDING: Final[dict[str, Change]] = {
    "deleted": lambda harness: harness.lose_pod("near-1"),
    "deleted first": lambda harness: harness.lose_pod("first"),
    "left the gang": lambda harness: relabel(harness, "near-1"),
    "minimum raised": lambda harness: harness.cache.gangs.set_object(
        GangApi.SCHEDULER_PLUGINS, "default/gang", GangSpec(len(MEMBERS) + 1)
    ),
    "gated": lambda harness: see_member(harness, "near-1", schedulingGates=[{"name": "wait"}]),
}


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("change", HOLDING.values(), ids=HOLDING)
def test_gang_that_is_incomplete_after_a_request_holds_nothing(number: int, change: Change) -> None:
    async def scene(harness: WorkerHarness) -> None:
        await asyncio.sleep(30 * ANSWER_S)
        assert not [name for name in bound(harness) if harness.cache.gangs.key_of(f"uid-{name}") is not None]
        alone = [name for name in bound(harness) if name in MEMBERS]
        assert free_cpu_milli(harness) == 4_000 - 1_000 * len(alone)
        for at in range(4 - len(alone)):
            harness.see_pod(f"plain-{at}")
        await asyncio.sleep(3 * ANSWER_S)
        assert len(bound(harness)) == 4

    play(number, change, scene)


@pytest.mark.parametrize("number", [1, 2])
def test_gang_starts_as_a_whole_when_a_deleted_member_returns(number: int) -> None:
    async def scene(harness: WorkerHarness) -> None:
        await asyncio.sleep(3 * ANSWER_S)
        see_member(harness, "near-1", uid="uid-new")
        await asyncio.sleep(10 * ANSWER_S)
        assert bound(harness) == sorted(MEMBERS)

    play(number, lambda harness: harness.lose_pod("near-1"), scene)


@pytest.mark.parametrize("number", [1, 2])
def test_rest_of_a_gang_starts_after_a_member_was_bound_elsewhere(number: int) -> None:
    async def scene(harness: WorkerHarness) -> None:
        await asyncio.sleep(20 * ANSWER_S)
        assert bound(harness) == ["first", "near-0"]
        assert free_cpu_milli(harness) == 1_000

    play(number, lambda harness: see_member(harness, "near-1", nodeName="a", phase="Running"), scene)


@pytest.mark.parametrize("number", [1, 2])
def test_gang_starts_elsewhere_if_a_node_is_deleted_during_a_request(number: int) -> None:
    async def scene(harness: WorkerHarness) -> None:
        harness.see_node("c", labels={ZONE: "z"})
        await asyncio.sleep(20 * ANSWER_S)
        assert bound(harness) == sorted(MEMBERS)
        assert "a" not in [node for _, node in harness.desk.posts]

    play(number, lambda harness: harness.lose_node("a"), scene)

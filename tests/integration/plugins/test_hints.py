"""Queueing hints through the whole program: only an event that can help wakes a refused pod."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.plugins.faulty import VICTIM
from tests.integration.plugins.house import House, in_virtual_time, one_domain, open_house

MATE: dict[str, Any] = {"labels": {"mate": "yes"}}


def attempts(house: House) -> int:
    waiting = house.waiting(VICTIM)
    assert waiting is not None
    return waiting.attempts


@pytest.mark.parametrize("action", ["ADD", "DELETE"])
def test_pending_pod_events_requeue_registered_pods(action: str) -> None:
    async def story() -> None:
        plugin = {"name": "tests.integration.plugins.faulty:NeedsMate", "args": {"action": action}}
        async with open_house(one_domain(plugin)) as house:
            await house.node("n")
            await house.pod(VICTIM, cpu="1", labels={"needs": "mate"})
            await house.until(lambda: house.waiting(VICTIM) is not None and attempts(house) == 1)
            await house.pod("stranger", cpu="100")
            await house.delete("namespaces/default/pods/stranger")
            await house.pod("bound", cpu="1")
            await house.bound("bound")
            assert attempts(house) == 1

            await house.pod("mate", cpu="100", **MATE)
            await house.until(lambda: house.waiting("mate") is not None)
            if action == "DELETE":
                assert attempts(house) == 1
                await house.delete("namespaces/default/pods/mate")
            await house.bound(VICTIM, within_s=5.0)
            await house.at_rest()

    in_virtual_time(story)


@pytest.mark.parametrize(
    ("cpu", "wakes"),
    [("2", True), ("1500m", False)],
)
def test_only_a_large_enough_node_requeues_a_pod(cpu: str, wakes: bool) -> None:
    async def story() -> None:
        async with open_house(one_domain()) as house:
            await house.node("small", cpu="1")
            await house.pod(VICTIM, cpu="2")
            await house.until(lambda: house.waiting(VICTIM) is not None and attempts(house) == 1)
            await house.node("next", cpu=cpu)
            if wakes:  # first: the other pod likes the empty node, too
                await house.bound(VICTIM, within_s=5.0)
            await house.pod("other", cpu="500m")
            await house.bound("other")
            if not wakes:
                assert attempts(house) == 1
            await house.at_rest()

    in_virtual_time(story)


def test_room_freed_before_a_bind_requeues_waiting_pods() -> None:
    """The holder's PreBind fails for good: what it held on the only node goes to the pod that waits for it."""

    async def story() -> None:
        args = {"point": "PreBind", "how": "raise", "times": 10**6}
        async with open_house(one_domain({"name": "tests.integration.plugins.faulty:Faulty", "args": args})) as house:
            await house.node("n", cpu="2")
            await house.pod(VICTIM, cpu="2")
            await house.pod("waits", cpu="2")
            await house.bound("waits", within_s=10.0)
            await house.at_rest()

    in_virtual_time(story)

"""Several plans that remove pods at the same moment: each counts the victims that the others have chosen as leaving."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.integration.plugins.gang_kit import ack, member, members, nodes
from tests.integration.plugins.house import HEAD, House, in_virtual_time, open_house
from tests.integration.plugins.test_quotas import tree
from tests.unit.plugins.quota.trees import leaf, node

GANG = [f"m{number}" for number in range(6)]


@asynccontextmanager
async def gang_of_six(*, has_quotas: bool = False) -> AsyncIterator[House]:
    """Two nodes of three CPUs, full of a gang that needs four of its six members. With quotas it borrows all but one CPU."""

    async def before(house: House) -> None:
        await nodes(house, "n0", "n1", cpu="3")
        await house.priority_class("high", 100)
        await house.post("namespaces", "lender", {})

    async with open_house(HEAD, before=before) as house:
        if has_quotas:
            leaves = leaf("lender", 5, 12, "lender"), leaf("own", 1, 12, "default")
            await tree(house, node("root", {"cpu": 6}, {"cpu": 12}, *leaves))
        await members(house, ack("g", 4), *GANG)
        await house.bound(*GANG)
        yield house
        await house.at_rest()


def standing(house: House) -> list[str]:
    """Members of the gang that run."""
    return sorted(
        pod.name for pod in house.api_checker.pods().values() if pod.name in GANG and pod.node and not pod.is_deleting
    )


@pytest.mark.parametrize("has_quotas", [False, True], ids=["by priority", "under quotas"])
def test_concurrent_preemptors_keep_a_gang_minimum_or_evict_it_whole(has_quotas: bool) -> None:
    async def story() -> None:
        async with gang_of_six(has_quotas=has_quotas) as house:
            for name in ("p0", "p1"):
                namespace = "lender" if has_quotas else "default"
                await member(house, name, {}, cpu="2", namespace=namespace, priorityClassName="high")
            await house.bound("p0", "p1")
            await asyncio.sleep(30.0)
            assert len(standing(house)) in (0, 4, 5, 6), standing(house)

    in_virtual_time(story)


@pytest.mark.parametrize("has_quotas", [False, True], ids=["by priority", "under quotas"])
def test_gang_and_pod_preempting_concurrently_keep_another_gang_minimum(has_quotas: bool) -> None:
    async def story() -> None:
        async with gang_of_six(has_quotas=has_quotas) as house:
            namespace = "lender" if has_quotas else "default"
            await member(house, "p0", {}, cpu="2", namespace=namespace, priorityClassName="high")
            for name in ("h0", "h1"):
                await member(house, name, ack("h", 2), namespace=namespace, priorityClassName="high")
            await house.bound("p0", "h0", "h1")
            await asyncio.sleep(30.0)
            assert len(standing(house)) in (0, 4, 5, 6), standing(house)

    in_virtual_time(story)


def test_pod_waiting_for_a_foreign_victim_recovers_if_it_is_not_deleted() -> None:
    """The first preemptor is deleted before its victims go: the second one has to find victims of its own."""

    async def story() -> None:
        async with gang_of_six() as house:
            await member(house, "p0", {}, cpu="2", priorityClassName="high")
            await member(house, "p1", {}, cpu="2", priorityClassName="high")
            await house.delete("/api/v1/namespaces/default/pods/p0")
            await house.bound("p1")
            await asyncio.sleep(30.0)
            assert len(standing(house)) in (0, 4, 5, 6), standing(house)
            assert not house.program.preemptor.removals, "nothing is left over"

    in_virtual_time(story)

"""A gang that is not eligible to start holds nothing: neither nominated nodes nor room of a quota, here or on the API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from multisched.model.gang import SP_LABEL
from tests.integration.plugins.gang_kit import GROUPS, PODS, get, member, members, nodes
from tests.integration.plugins.house import HEAD, House, in_virtual_time, open_house
from tests.integration.plugins.test_quotas import tree
from tests.unit.plugins.quota.trees import leaf, node

GANG = {"labels": {SP_LABEL: "g"}}
FINALIZER = {"finalizers": ["example.com/slow"]}


async def lose_member(house: House) -> None:
    await house.delete(f"{PODS}/g1")


async def lose_group(house: House) -> None:
    await house.delete(f"{GROUPS}/g")


async def raise_minimum(house: House) -> None:
    await house.patch(f"{GROUPS}/g", {"spec": {"minMember": 3}})


WAYS = pytest.mark.parametrize("breaks", [lose_member, lose_group, raise_minimum])


async def before(house: House) -> None:
    await nodes(house, "n1", cpu="4")
    await house.priority_class("high", 100)
    await house.post("namespaces", "other", {})
    await house.post(GROUPS, "g", {}, spec={"minMember": 2})


@asynccontextmanager
async def preempting(*, has_quotas: bool = False) -> AsyncIterator[House]:
    """A gang of two preempts two pods of two CPUs: the first ends at once, and the second waits for its finalizer."""
    async with open_house(HEAD, before=before) as house:
        if has_quotas:
            await tree(
                house, node("root", {"cpu": 4}, {"cpu": 4}, leaf("own", 4, 4, "default"), leaf("o", 0, 4, "other"))
            )
        await member(house, "low-0", {}, cpu="2", namespace="other")
        await member(house, "low-1", FINALIZER, cpu="2", namespace="other")
        await house.bound("low-0", "low-1")
        await members(house, GANG, "g0", "g1", cpu="2", priorityClassName="high")
        await house.until(lambda: "other/low-0" not in house.api_checker.pods() and not is_preempting(house))
        yield house
        await house.patch("/api/v1/namespaces/other/pods/low-1", {"metadata": {"finalizers": None}})
        await house.at_rest()


def is_preempting(house: House) -> bool:
    return bool(len(house.program.preemptor)) or not len(house.program.nominator)


async def nominated(house: House) -> list[str]:
    """Pods that the API server has a nominated node for."""
    pods = (await get(house, "/api/v1/pods"))["items"]
    return sorted(pod["metadata"]["name"] for pod in pods if pod.get("status", {}).get("nominatedNodeName"))


@WAYS
def test_hopeless_gang_releases_nominations_and_requeues_waiting_pods(
    breaks: Callable[[House], Awaitable[None]],
) -> None:
    async def story() -> None:
        async with preempting() as house:
            await member(house, "waits", {}, cpu="2")
            await asyncio.sleep(5.0)
            assert ("waits" in house.bound_at, await nominated(house)) == (False, ["g0", "g1"])
            await breaks(house)
            await house.bound("waits", within_s=5.0)
            await asyncio.sleep(2.0)
            assert (await nominated(house), len(house.program.nominator)) == ([], 0)

    in_virtual_time(story)


@WAYS
def test_hopeless_gang_holds_no_quota(breaks: Callable[[House], Awaitable[None]]) -> None:
    """Pods that reclaim keep their places from pods of every priority, also from those without a quota."""

    async def story() -> None:
        async with preempting(has_quotas=True) as house:
            await member(house, "waits", {}, cpu="1", namespace="other")
            await member(house, "urgent", {}, cpu="1", namespace="kube-public", priorityClassName="high")
            await asyncio.sleep(5.0)
            assert house.bound_at.keys() == {"low-0", "low-1"}
            await breaks(house)
            await house.bound("waits", "urgent", within_s=5.0)

    in_virtual_time(story)


@WAYS
def test_nominations_of_a_hopeless_gang_do_not_count_after_a_restart(
    breaks: Callable[[House], Awaitable[None]],
) -> None:
    async def story() -> None:
        async with open_house(HEAD, before=before) as first:
            await member(first, "low", FINALIZER, cpu="4")
            await first.bound("low")
            await members(first, GANG, "g0", "g1", cpu="2", priorityClassName="high")
            await first.until(lambda: not is_preempting(first))
            await asyncio.sleep(2.0)
        assert await nominated(first) == ["g0", "g1"]
        await breaks(first)
        await first.patch(f"{PODS}/low", {"metadata": {"finalizers": None}})
        async with open_house(HEAD, server=first.server) as house:
            await member(house, "three", {}, cpu="3")
            await house.bound("three", within_s=10.0)
            await asyncio.sleep(2.0)
            assert await nominated(house) == []

    in_virtual_time(story)


def test_nominated_gang_keeps_its_nodes_over_a_restart() -> None:
    """Its members are listed one after the other: the first ones wait for the rest, and lose nothing by that."""

    async def story() -> None:
        async with open_house(HEAD, before=before) as first:
            await member(first, "low", FINALIZER, cpu="4")
            await first.bound("low")
            await members(first, GANG, "g0", "g1", cpu="2", priorityClassName="high")
            await first.until(lambda: not is_preempting(first))
            await asyncio.sleep(2.0)
        async with open_house(HEAD, server=first.server) as house:
            await asyncio.sleep(2.0)
            assert (await nominated(house), len(house.program.nominator)) == (["g0", "g1"], 2)
            await house.patch(f"{PODS}/low", {"metadata": {"finalizers": None}})
            await house.bound("g0", "g1")

    in_virtual_time(story)

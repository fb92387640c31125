"""Processes that leave free leases to one another (`lease.spread`), in virtual time."""

from __future__ import annotations

import asyncio
import random

import pytest

from multisched.client.lease import LeaseKeeper, LeaseTurns
from tests.unit.client.scripted import LoopClock, ScriptedTransport
from tests.unit.client.test_lease_keeper import LeaseStore, running

pytestmark = pytest.mark.looptime
SETTLED_S, DURATION_S = 5.0, 15.0


def process(identity: str, *stores: LeaseStore) -> list[LeaseKeeper]:
    """Returns the keepers of one process, one for each lease."""
    turns = LeaseTurns()
    return [
        LeaseKeeper(
            ScriptedTransport(respond=store.respond, latency_s=0.01),
            namespace="ms",
            name=f"lease-{number}",
            identity=identity,
            clock=LoopClock(),
            rng=random.Random(number),
            turns=turns,
        )
        for number, store in enumerate(stores)
    ]


def holders(*stores: LeaseStore) -> list[str]:
    return [str((store.document or {"spec": {"holderIdentity": ""}})["spec"]["holderIdentity"]) for store in stores]


async def test_two_processes_take_one_lease_each() -> None:
    first, second = LeaseStore(), LeaseStore()
    async with running(*process("a", first, second), *process("b", first, second)):
        await asyncio.sleep(SETTLED_S)
        assert sorted(holders(first, second)) == ["a", "b"]
        await asyncio.sleep(10 * DURATION_S)
        assert sorted(holders(first, second)) == ["a", "b"]


async def test_process_alone_takes_the_others_after_a_lease_duration() -> None:
    first, second = LeaseStore(), LeaseStore()
    async with running(*process("a", first, second)):
        await asyncio.sleep(DURATION_S - 1.0)
        assert sorted(holders(first, second)) == ["", "a"]
        await asyncio.sleep(SETTLED_S)
        assert holders(first, second) == ["a", "a"]


async def test_released_lease_goes_to_the_process_without_one() -> None:
    first, second = LeaseStore(), LeaseStore()
    of_a, of_b, of_c = (process(name, first, second) for name in "abc")
    async with running(*of_a, *of_b, *of_c):
        await asyncio.sleep(SETTLED_S)
        led = holders(first, second)
        leaving = {"a": of_a, "b": of_b, "c": of_c}[led[0]]
        await asyncio.gather(*(keeper.release() for keeper in leaving))
        await asyncio.sleep(SETTLED_S)
        (idle,) = {"a", "b", "c"} - set(led)
        assert holders(first, second) == [idle, led[1]]


async def test_process_that_survives_takes_an_expired_lease_as_well() -> None:
    first, second = LeaseStore(), LeaseStore()
    of_a, of_b = process("a", first, second), process("b", first, second)
    async with running(*of_a):
        async with running(*of_b):
            await asyncio.sleep(SETTLED_S)
            assert sorted(holders(first, second)) == ["a", "b"]
        await asyncio.sleep(2 * DURATION_S + SETTLED_S)
        assert holders(first, second) == ["a", "a"]

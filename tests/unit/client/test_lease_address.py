"""Where the holder of a lease answers: said with every write, replaced by the next holder, gone when the lease is given back."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.client.test_lease_keeper import LeaseStore, leading, make_keeper, running

pytestmark = pytest.mark.looptime

ADDRESS = "multisched.io/address"
FIRST, SECOND = "https://10.0.0.5:10260", "https://10.0.0.6:10260"


def said_in(store: LeaseStore) -> dict[str, str]:
    assert store.document is not None
    found: dict[str, str] = store.document["metadata"]["annotations"]
    return found


async def test_the_address_outlives_renewals_and_other_annotations() -> None:
    store = LeaseStore()
    keeper, _ = make_keeper(store, "first")
    keeper.address = FIRST
    async with running(keeper):
        await leading(keeper)
        assert said_in(store) == {ADDRESS: FIRST}
        keeper.annotations = {"seen": "7"}
        version = store.version
        await asyncio.sleep(7.0)
        assert store.version > version + 2
        assert said_in(store) == {"seen": "7", ADDRESS: FIRST}


async def test_the_next_holder_puts_its_own_address_in_place_of_the_first_one() -> None:
    store = LeaseStore()
    (first, _), (second, _) = make_keeper(store, "first"), make_keeper(store, "second", seed=2)
    first.address, second.address = FIRST, SECOND
    async with running(first, second) as tasks:
        await leading(first)
        await asyncio.sleep(3.0)
        held = second.held
        assert held is not None
        assert (held.spec.holder, held.metadata.annotations) == ("first", {ADDRESS: FIRST})
        tasks[0].cancel()
        await leading(second)
        assert said_in(store) == {ADDRESS: SECOND}


async def test_released_or_expired_lease_has_no_holder() -> None:
    store = LeaseStore()
    (first, _), (other, _) = make_keeper(store, "first"), make_keeper(store, "other", seed=2, is_alive=lambda: False)
    first.address = FIRST
    assert other.held is None
    async with running(first):
        await leading(first)
        assert first.held is not None
        await first.release()
        assert said_in(store) == {}
        assert store.document is not None
        assert store.document["spec"]["holderIdentity"] == ""


async def test_holder_without_an_address_removes_that_of_the_last_one() -> None:
    store = LeaseStore()
    keeper, _ = make_keeper(store, "silent")
    store.write(holderIdentity="", leaseDurationSeconds=15)
    assert store.document is not None
    store.document["metadata"]["annotations"] = {ADDRESS: FIRST, "mine": "yours"}
    async with running(keeper):
        await leading(keeper)
        assert said_in(store) == {}

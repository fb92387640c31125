"""A lease that somebody else holds: who may still bind by it, as far as it can be read."""

from __future__ import annotations

import asyncio

import pytest

from multisched.client.lease_record import NOT_READABLE, NOT_THERE, Holding, LeaseWatcher
from multisched.model.wire import ConnectFailedError
from tests.unit.client.scripted import Answer, LoopClock, ScriptedTransport, a_refusal, answer

pytestmark = pytest.mark.looptime

HELD = {
    "metadata": {"name": "job", "annotations": {"says": "hello"}},
    "spec": {"holderIdentity": "other", "leaseDurationSeconds": 15},
}


async def test_last_holder_counts_while_the_server_is_unreachable() -> None:
    said: list[Answer] = [ConnectFailedError("refused"), answer(200, HELD), ConnectFailedError("refused")]
    transport = ScriptedTransport(respond=lambda _: said.pop(0) if said else answer(200, HELD))
    watcher = LeaseWatcher(transport, LoopClock(), "ms", "job", duration_s=15.0, grace_s=5.0)
    holding = Holding("other", {"says": "hello"})

    assert await watcher.read() == NOT_READABLE
    assert await watcher.read() == holding
    assert await watcher.read() == holding
    said.append(a_refusal(500))
    assert await watcher.read() == holding
    await asyncio.sleep(19.0)
    assert await watcher.read() == holding
    await asyncio.sleep(2.0)
    assert await watcher.read() is None


def watching(*said: Answer) -> LeaseWatcher:
    """The last answer for ever."""
    left = list(said)
    transport = ScriptedTransport(respond=lambda _: left.pop(0) if len(left) > 1 else left[0])
    return LeaseWatcher(transport, LoopClock(), "ms", "job", duration_s=15.0, grace_s=5.0)


async def test_released_lease_is_free_at_once() -> None:
    free = {"metadata": {"name": "job"}, "spec": {"holderIdentity": "", "leaseDurationSeconds": 1}}
    watcher = watching(answer(200, HELD), answer(200, free))
    assert await watcher.read() == Holding("other", {"says": "hello"})
    assert await watcher.read() is None


async def holds_for(watcher: LeaseWatcher, holding: Holding, seconds: int) -> None:
    """It is looked at each second, as long as somebody waits for it."""
    for _ in range(seconds):
        assert await watcher.read() == holding
        await asyncio.sleep(1.0)


@pytest.mark.parametrize("status", [403, 404])
@pytest.mark.parametrize("pause_s", [10.0, 100.0])
async def test_unreadable_lease_counts_as_held_until_its_expiry(status: int, pause_s: float) -> None:
    """Its holder may have renewed it right before, however long ago somebody last looked."""
    watcher = watching(answer(200, HELD), a_refusal(status))
    holding = await watcher.read()
    assert holding is not None
    await asyncio.sleep(pause_s)
    await holds_for(watcher, holding, 20)
    assert await watcher.read() is None


@pytest.mark.parametrize(("status", "holding"), [(403, NOT_READABLE), (404, NOT_THERE)])
async def test_unread_lease_counts_as_held_for_the_longest_duration(status: int, holding: Holding) -> None:
    watcher = watching(a_refusal(status))
    await holds_for(watcher, holding, 20)
    assert await watcher.read() is None
    await asyncio.sleep(100.0)
    assert await watcher.read() == holding, "somebody may have held it while nobody looked"


async def test_missing_lease_that_was_free_may_have_been_taken() -> None:
    free = {"metadata": {"name": "job"}, "spec": {"holderIdentity": "", "leaseDurationSeconds": 1}}
    watcher = watching(answer(200, free), a_refusal(404))
    assert await watcher.read() is None
    await holds_for(watcher, NOT_THERE, 20)
    assert await watcher.read() is None


async def test_renewed_lease_counts_as_held() -> None:
    spec = {"holderIdentity": "other", "leaseDurationSeconds": 30}
    renewed = [
        answer(200, {"metadata": {"name": "job"}, "spec": {**spec, "renewTime": f"2026-01-01T00:00:0{at}.000000Z"}})
        for at in range(3)
    ]
    watcher = watching(*renewed)
    for _ in range(3):
        assert await watcher.read() == Holding("other", {})
        await asyncio.sleep(30.0)
    assert await watcher.read() == Holding("other", {}), "its own duration counts, and the grace"
    await asyncio.sleep(6.0)
    assert await watcher.read() is None

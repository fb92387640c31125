"""A lease that somebody else holds: who may still bind by it, as far as it can be read."""

from __future__ import annotations

import asyncio

import pytest

from multisched.client.lease_record import NOT_TOLD, Holding, LeaseWatcher
from multisched.model.wire import ConnectFailedError
from tests.unit.client.scripted import Answer, LoopClock, ScriptedTransport, a_refusal, answer

pytestmark = pytest.mark.looptime

HELD = {
    "metadata": {"name": "job", "annotations": {"says": "hello"}},
    "spec": {"holderIdentity": "other", "leaseDurationSeconds": 15},
}


async def test_while_the_server_is_away_the_last_holder_counts_as_holding() -> None:
    said: list[Answer] = [ConnectFailedError("refused"), answer(200, HELD), ConnectFailedError("refused")]
    transport = ScriptedTransport(respond=lambda _: said.pop(0) if said else answer(200, HELD))
    watcher = LeaseWatcher(transport, LoopClock(), "ms", "job", duration_s=15.0, grace_s=5.0)
    holding = Holding("other", {"says": "hello"})

    assert await watcher.read() == NOT_TOLD
    assert await watcher.read() == holding
    assert await watcher.read() == holding
    said.append(a_refusal(500))
    assert await watcher.read() == holding
    await asyncio.sleep(19.0)
    assert await watcher.read() == holding
    await asyncio.sleep(2.0)
    assert await watcher.read() is None

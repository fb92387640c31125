"""Where kinds cannot be read, each cause is one line with the number of kinds, said again ever more seldom."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from typing import Any

import pytest

from multisched.client.errors import EXPIRED_HINT, ApiError, Unauthorized, error_for
from multisched.client.read_troubles import CAUSES_MAX, ReadTroubles
from multisched.client.reflector import Reflector
from multisched.model.wire import ConnectFailedError
from tests.unit.client.scripted import LoopClock, Mirror, ScriptedTransport, a_list, a_refusal

pytestmark = pytest.mark.looptime

PATHS = [f"/apis/example.com/v1/kind{number:02}" for number in range(12)]
EXPIRED = Unauthorized(401, "Unauthorized", "token has expired")


def told(caplog: pytest.LogCaptureFixture, message: str = "list failed") -> list[dict[str, Any]]:
    return [vars(record) for record in caplog.records if record.message == message]


async def test_invalid_token_is_logged_once_for_all_kinds_with_backoff(
    caplog: pytest.LogCaptureFixture,
) -> None:
    troubles = ReadTroubles(LoopClock())
    for _ in range(600):
        for path in PATHS:
            troubles.lists.failed(path, EXPIRED)
        await asyncio.sleep(1)
    lines = told(caplog)
    assert [line["kinds"] for line in lines] == [1, *[len(PATHS)] * 8]
    assert lines[-1]["error"] == "401 Unauthorized: token has expired"
    assert EXPIRED_HINT in lines[-1]["fix"]
    assert lines[-1]["paths"] == f"{', '.join(PATHS[:5])}, ..."


async def test_each_cause_is_logged_and_a_recurring_one_at_once(caplog: pytest.LogCaptureFixture) -> None:
    troubles = ReadTroubles(LoopClock())
    forbidden = error_for(a_refusal(403, "Forbidden", "pods is forbidden"))
    for error in (EXPIRED, forbidden, EXPIRED, forbidden, ConnectFailedError("cannot connect to there")):
        troubles.lists.failed(PATHS[0] if error is EXPIRED else PATHS[1], error)
    assert [(line["error"].split(":")[0], "fix" in line) for line in told(caplog)] == [
        ("401 Unauthorized", True),
        ("403 Forbidden", True),
        ("cannot connect to there", True),
    ]
    troubles.lists.fine(PATHS[0])
    troubles.lists.failed(PATHS[0], EXPIRED)
    assert len(told(caplog)) == 4


async def test_number_and_length_of_remembered_causes_is_limited() -> None:
    troubles = ReadTroubles(LoopClock())
    for number in range(10 * CAUSES_MAX):
        troubles.lists.failed(PATHS[0], ApiError(400, f"reason {number}", ""))
    assert len(troubles.lists._troubles) <= CAUSES_MAX


async def test_reflectors_of_one_server_share_read_troubles(caplog: pytest.LogCaptureFixture) -> None:
    """They list and watch in vain with one token, until it is a good one."""
    troubles = ReadTroubles(LoopClock())
    refused = a_refusal(401, "Unauthorized", "no")
    async with asyncio.TaskGroup() as tasks:
        running = []
        for path in PATHS:
            script = ScriptedTransport(lists=deque([refused] * 3 + [a_list(10)] * 9), watches=deque([refused] * 3))
            reflector = Reflector(
                script, path, handler=Mirror(), clock=LoopClock(), rng=random.Random(path), troubles=troubles
            )
            running.append(tasks.create_task(reflector.run()))
        await asyncio.sleep(60)
        for task in running:
            task.cancel()
    assert 2 <= len(told(caplog)) <= 4
    assert 1 <= len(told(caplog, "watch refused")) <= 6
    assert told(caplog)[-1]["kinds"] > 1

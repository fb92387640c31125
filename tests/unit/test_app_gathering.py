"""The program pauses as a whole only while many requests are under way."""

from __future__ import annotations

import asyncio
import itertools
from typing import cast

import pytest

from multisched.app import GATHER_FROM, GATHER_S, gather_answers
from multisched.client.transport import HttpTransport


class Crowds:
    """A transport that only tells of crowds."""

    def __init__(self) -> None:
        self.crowd = asyncio.Event()
        self.asked: list[int] = []

    async def wait_in_flight(self, least: int) -> None:
        self.asked.append(least)
        await self.crowd.wait()


async def test_responses_are_gathered_in_pauses_only_if_many_requests_wait() -> None:
    transport, pauses = Crowds(), []
    turns = 0

    def sleep(seconds: float) -> None:
        pauses.append((seconds, turns))
        if len(pauses) == 3:
            transport.crowd.clear()

    task = asyncio.ensure_future(gather_answers(cast(HttpTransport, transport), sleep))
    for _ in range(10):
        await asyncio.sleep(0)
    assert (pauses, transport.asked) == ([], [GATHER_FROM])
    transport.crowd.set()
    for _ in range(30):
        turns += 1
        await asyncio.sleep(0)
    assert [seconds for seconds, _ in pauses] == [GATHER_S] * 3
    assert all(later - earlier >= 2 for (_, earlier), (_, later) in itertools.pairwise(pauses))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

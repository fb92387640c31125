"""A trouble that lasts is said at once, when its cause changes, and ever more seldom."""

from __future__ import annotations

import asyncio

import pytest

from multisched.client.recurring_trouble import PAUSE_MAX_S, RecurringTrouble
from tests.unit.client.scripted import LoopClock

pytestmark = pytest.mark.looptime


async def said_at(trouble: RecurringTrouble, seconds: int, cause: str) -> list[int]:
    """The seconds, from now on, at which one that is met each second is said."""
    said = []
    for second in range(seconds):
        if trouble.is_due(cause):
            said.append(second)
        await asyncio.sleep(1)
    return said


async def test_one_cause_is_logged_at_once_and_with_doubling_pauses() -> None:
    said = await said_at(RecurringTrouble(LoopClock()), 2000, "refused")
    assert said[:5] == [0, 2, 6, 14, 30]
    assert said[-1] - said[-2] == PAUSE_MAX_S


async def test_another_or_returning_cause_is_logged_at_once() -> None:
    trouble = RecurringTrouble(LoopClock())
    await said_at(trouble, 20, "refused")
    assert await said_at(trouble, 4, "no answer") == [0, 2]
    assert trouble.lasts_s == 4
    trouble.over()
    assert await said_at(trouble, 2, "no answer") == [0]

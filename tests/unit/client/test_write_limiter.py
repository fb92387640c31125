"""Binds first, background writes when it is calm; and the delays and exceptions everything else relies on."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.client.backoff import Backoff
from multisched.client.errors import (
    ApiError,
    BadRequest,
    Conflict,
    Forbidden,
    Gone,
    NotFound,
    ServerError,
    TooManyRequests,
    Unauthorized,
    error_for,
)
from multisched.client.limits import CALM_BINDS_MAX, TRICKLE_INTERVAL_S, WriteLimiter
from multisched.model.wire import Response
from tests.unit.client.scripted import LoopClock, a_refusal

pytestmark = pytest.mark.looptime


async def test_binds_use_the_burst_and_then_the_rate() -> None:
    limiter = WriteLimiter(LoopClock(), writes_per_s=100)
    for _ in range(100):
        await limiter.enter_bind()
    assert asyncio.get_running_loop().time() == 0
    for _ in range(50):
        await limiter.enter_bind()
    assert asyncio.get_running_loop().time() == pytest.approx(0.5, abs=0.02)


async def test_background_writes_run_freely_while_there_are_few_binds() -> None:
    limiter = WriteLimiter(LoopClock())
    for _ in range(CALM_BINDS_MAX):
        await limiter.enter_bind()
    for _ in range(1000):
        await limiter.admit_background()
    assert asyncio.get_running_loop().time() == 0


async def test_more_background_writes_are_admitted_at_once_as_long_as_none_waits() -> None:
    limiter = WriteLimiter(LoopClock(), writes_per_s=20)
    await limiter.admit_background()
    assert limiter.admit_more_background(0) == 0
    assert limiter.admit_more_background(5) == 5
    await limiter.enter_bind()
    assert limiter.admit_more_background(5) == 0, "a bind is in flight"
    limiter.leave_bind()
    assert limiter.admit_more_background(100) == 11, "a tenth of the 20 tokens, and one, is kept for binds"
    assert limiter.admit_more_background(1) == 0
    assert limiter.statistics().writes == 18
    await limiter.admit_background()
    assert asyncio.get_running_loop().time() == pytest.approx(0.05)


async def test_background_writes_are_limited_during_many_binds() -> None:
    limiter = WriteLimiter(LoopClock())
    for _ in range(CALM_BINDS_MAX + 1):
        await limiter.enter_bind()
    for _ in range(21):
        await limiter.admit_background()
    assert asyncio.get_running_loop().time() >= 20 * TRICKLE_INTERVAL_S * 0.99
    limiter.leave_bind()
    calm = asyncio.get_running_loop().time()
    for _ in range(100):
        await limiter.admit_background()
    assert asyncio.get_running_loop().time() == calm


async def test_background_writes_pause_after_a_429() -> None:
    limiter = WriteLimiter(LoopClock())
    limiter.note_throttled(7)
    limiter.note_throttled(3)
    await limiter.enter_bind()
    assert asyncio.get_running_loop().time() == 0
    await limiter.admit_background()
    assert asyncio.get_running_loop().time() == pytest.approx(7)


async def test_background_writes_reserve_a_part_of_the_burst_for_binds() -> None:
    limiter = WriteLimiter(LoopClock(), writes_per_s=100)
    for _ in range(90):
        await limiter.admit_background()
    before = asyncio.get_running_loop().time()
    for _ in range(8):
        await limiter.enter_bind()
    assert asyncio.get_running_loop().time() == before


@pytest.mark.parametrize(("rate", "at_once", "later"), [(100.0, 90, 50), (1.0, 1, 3), (0.5, 1, 2)])
async def test_background_writes_continue_at_the_rate_after_their_burst(rate: float, at_once: int, later: int) -> None:
    limiter, loop = WriteLimiter(LoopClock(), writes_per_s=rate), asyncio.get_running_loop()
    for _ in range(at_once):
        await limiter.admit_background()
    assert loop.time() == 0
    for _ in range(later):
        await limiter.admit_background()
    assert loop.time() == pytest.approx(later / rate, rel=0.1)
    counted = limiter.statistics()
    assert (counted.writes, counted.throttled) == (at_once + later, 0)
    assert later / 3 <= counted.background_delayed <= later


async def test_delayed_and_throttled_writes_are_counted() -> None:
    limiter = WriteLimiter(LoopClock(), writes_per_s=2)
    waited = [await limiter.enter_bind() for _ in range(4)]
    assert waited == [False, False, True, True]
    limiter.note_throttled(1.0)
    limiter.leave_bind()
    counted = limiter.statistics()
    assert (counted.binds_in_flight, counted.writes, counted.binds_delayed, counted.throttled) == (3, 4, 2, 1)


async def test_cancelled_waiting_bind_is_not_in_flight() -> None:
    limiter = WriteLimiter(LoopClock(), writes_per_s=1)
    await limiter.enter_bind()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await limiter.enter_bind()
    assert limiter.statistics().binds_in_flight == 1


async def test_limiter_without_a_rate_is_refused() -> None:
    with pytest.raises(ValueError, match="positive"):
        WriteLimiter(LoopClock(), writes_per_s=0)


@given(st.integers(), st.integers(1, 40))
def test_backoff_doubles_from_base_to_cap_with_jitter(seed: int, attempts: int) -> None:
    backoff = Backoff(random.Random(seed))
    for attempt in range(attempts):
        floor = min(0.8 * 2**attempt, 15.0)
        assert floor <= backoff.next_s() <= min(floor * 2, 30.0)
    backoff.reset()
    assert 0.8 <= backoff.next_s() <= 1.6
    assert backoff.next_s(at_least_s=50.0) == 50.0
    assert Backoff(random.Random(seed), base_s=0.1).next_s() <= 0.2


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, BadRequest),
        (401, Unauthorized),
        (403, Forbidden),
        (404, NotFound),
        (409, Conflict),
        (410, Gone),
        (422, BadRequest),
        (429, TooManyRequests),
        (500, ServerError),
        (503, ServerError),
    ],
)
def test_each_status_has_its_exception_class(status: int, kind: type[ApiError]) -> None:
    error = error_for(a_refusal(status, "Why", "because", retry_after="4"))
    assert type(error) is kind
    assert (error.status, error.reason, error.message, error.retry_after_s) == (status, "Why", "because", 4.0)


@given(st.binary(max_size=200))
def test_only_status_bodies_are_quoted(body: bytes) -> None:
    error = error_for(Response(500, body))
    assert error.message == ""


def test_status_text_is_truncated() -> None:
    error = error_for(a_refusal(500, "r" * 999, "m" * 999))
    assert (len(error.reason), len(error.message)) == (256, 256)

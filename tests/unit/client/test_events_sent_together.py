"""Events that are sent together over one connection: how many, and that each has its own result."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from multisched.client.event_sink import ApiEventSink
from multisched.client.limits import CALM_BINDS_MAX, TRICKLE_INTERVAL_S, WriteLimiter
from multisched.framework.ports import Event
from multisched.model.wire import AnswerLostError
from tests.unit.client.scripted import Answer, Asked, LoopClock, ScriptedTransport, a_refusal
from tests.unit.client.test_background_writers import FAILED, accept, at_work, make_sink

pytestmark = pytest.mark.looptime


def others(count: int) -> list[Event]:
    return [replace(FAILED, note=f"note {number}") for number in range(count)]


@pytest.mark.parametrize(("latency_s", "together"), [(0.002, 16), (0.02, 5), (0.2, 1)])
async def test_as_many_events_are_sent_together_as_take_a_tenth_of_a_second(latency_s: float, together: int) -> None:
    sink, transport, _ = make_sink(latency_s=latency_s)
    async with at_work(sink):
        for event in others(200):
            sink.record(event)
        assert await sink.drain(60)
    assert (sink.statistics().stored, sink.statistics().backlog) == (200, 0)
    assert max(transport.together, default=1) == together
    names = [asked.body["metadata"]["name"] for asked in transport.asked]
    assert len(set(names)) == len(names) == 200


async def test_events_are_sent_one_by_one_over_a_transport_without_pipelining() -> None:
    transport, clock = ScriptedTransport(respond=accept), LoopClock()
    sink = ApiEventSink(transport, WriteLimiter(clock), clock, instance="job-scheduler-pod-0")
    async with at_work(sink):
        for event in others(200):
            sink.record(event)
        assert await sink.drain(60)
    assert sink.statistics().stored == len(transport.asked) == 200


@given(st.data())
async def test_each_of_the_events_sent_together_has_its_own_result(data: st.DataObject) -> None:
    """An event is stored once, dropped for its own refusal only, and only what got no definite response is sent again."""
    fates = st.sampled_from(["stored", "refused", "lost before", "lost after", "busy"])
    fate_of = dict(enumerate(data.draw(st.lists(fates, min_size=40, max_size=40))))
    stored: Counter[str] = Counter()
    tries: Counter[int] = Counter()

    def respond(asked: Asked) -> Answer:
        name, number = asked.body["metadata"]["name"], int(asked.body["note"].split()[1])
        tries[number] += 1
        if stored[name]:
            return a_refusal(409, "AlreadyExists")
        fate = fate_of[number] if tries[number] == 1 else "refused" if fate_of[number] == "refused" else "stored"
        if fate in ("stored", "lost after"):
            stored[name] += 1
        if fate.startswith("lost"):
            return AnswerLostError("reset")
        return {"refused": a_refusal(403), "busy": a_refusal(503)}.get(fate) or accept(asked)

    sink, transport, _ = make_sink(respond)
    async with at_work(sink):
        for event in others(40):
            sink.record(event)
        assert await sink.drain(600)
    refused = sum(fate == "refused" for fate in fate_of.values())
    statistics = sink.statistics()
    assert (statistics.stored, statistics.dropped_refused, statistics.dropped_unreachable) == (40 - refused, refused, 0)
    assert sorted(stored.values()) == [1] * (40 - refused)
    assert max(transport.together) > 1


async def test_events_sent_together_leave_the_rate_of_many_binds_alone() -> None:
    sink, transport, limiter = make_sink()
    async with at_work(sink):
        for event in others(64):  # the first ones tell how fast the server is
            sink.record(event)
        assert await sink.drain(60)
        began, before = asyncio.get_running_loop().time(), len(transport.asked)
        for _ in range(CALM_BINDS_MAX + 1):
            await limiter.enter_bind()
        for event in others(84)[64:]:
            sink.record(event)
        await asyncio.sleep(0.45)
        assert len(transport.asked) - before <= 0.45 / TRICKLE_INTERVAL_S + 1
        for _ in range(CALM_BINDS_MAX + 1):
            limiter.leave_bind()
        assert await sink.drain(60)
        assert asyncio.get_running_loop().time() - began < 1
    assert sink.statistics().stored == 84

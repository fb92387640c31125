"""Events and pod conditions: aggregated, bounded, droppable, and never in the way of a bind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from multisched.client import condition_writer, event_sink
from multisched.client.background_write import ATTEMPTS_MAX, RETRY_DELAY_S, WRITE_TIMEOUT_S
from multisched.client.condition_writer import ApiConditionWriter
from multisched.client.event_sink import QUEUE_EVENTS_MAX, SERIES_FLUSH_S, ApiEventSink, cut_note
from multisched.client.limits import CALM_BINDS_MAX, WriteLimiter
from multisched.framework.ports import Condition, Event, ObjectRef
from multisched.model.wire import AnswerLostError, ConnectFailedError, Response
from tests.unit.client.scripted import (
    Answer,
    Asked,
    Lease,
    LoopClock,
    PipelinedScript,
    ScriptedTransport,
    a_refusal,
    answer,
)

pytestmark = pytest.mark.looptime

POD = ObjectRef("Pod", "team", "web-1", "uid-1")
SCHEDULED = Event(POD, "Normal", "Scheduled", "Binding", "Successfully assigned team/web-1 to n1", "job-scheduler")
FAILED = Event(
    POD, "Warning", "FailedScheduling", "Scheduling", "0/1 nodes are available: 1 Too many pods.", "job-scheduler"
)
UNSCHEDULABLE = Condition("False", "Unschedulable", "0/1 nodes are available: 1 Too many pods.")
LEASE = Lease()


def accept(asked: Asked) -> Answer:
    return answer(201 if asked.method == "POST" else 200, asked.body)


@asynccontextmanager
async def at_work(writer: ApiEventSink | ApiConditionWriter) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(writer.run())
        try:
            yield
        finally:
            task.cancel()


async def drained(writer: ApiConditionWriter, timeout_s: float) -> bool:
    """True once nothing waits to be written."""
    with anyio.move_on_after(timeout_s):
        while writer.statistics().backlog:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.1)
    return not writer.statistics().backlog


def make_sink(
    respond: Callable[[Asked], Answer] = accept, latency_s: float = 0.002
) -> tuple[ApiEventSink, PipelinedScript, WriteLimiter]:
    clock = LoopClock()
    transport = PipelinedScript(respond=respond, latency_s=latency_s)
    limiter = WriteLimiter(clock)
    return ApiEventSink(transport, limiter, clock, instance="job-scheduler-pod-0"), transport, limiter


def make_writer(
    respond: Callable[[Asked], Answer] = accept,
) -> tuple[ApiConditionWriter, ScriptedTransport, WriteLimiter]:
    clock = LoopClock()
    transport = ScriptedTransport(respond=respond, latency_s=0.002)
    limiter = WriteLimiter(clock)
    return ApiConditionWriter(transport, limiter, clock), transport, limiter


async def test_event_has_every_required_field() -> None:
    sink, transport, _ = make_sink()
    async with at_work(sink):
        sink.record(SCHEDULED)
        assert await sink.drain(5)
    (asked,) = transport.asked
    assert (asked.method, asked.path) == ("POST", "/apis/events.k8s.io/v1/namespaces/team/events")
    name = asked.body["metadata"].pop("name")
    assert name.startswith("web-1.")
    assert int(name.removeprefix("web-1.")[:-4], 16) == 1_767_225_600 * 10**9  # of 2026, and a mark of the process
    assert asked.body == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"namespace": "team"},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "job-scheduler",
        "reportingInstance": "job-scheduler-pod-0",
        "action": "Binding",
        "reason": "Scheduled",
        "type": "Normal",
        "note": "Successfully assigned team/web-1 to n1",
        "regarding": {"apiVersion": "v1", "kind": "Pod", "name": "web-1", "namespace": "team", "uid": "uid-1"},
    }


async def test_cluster_scoped_events_are_in_the_default_namespace_with_shortened_names() -> None:
    sink, transport, _ = make_sink()
    node = ObjectRef("Node", "", "n" * 240 + ".cut-here", "uid-n")
    async with at_work(sink):
        sink.record(replace(SCHEDULED, regarding=node))
        assert await sink.drain(5)
    (asked,) = transport.asked
    assert asked.path == "/apis/events.k8s.io/v1/namespaces/default/events"
    assert len(asked.body["metadata"]["name"]) <= 253
    assert ".." not in asked.body["metadata"]["name"]


@pytest.mark.parametrize("is_stored", [False, True])
async def test_repeat_during_the_event_write_is_counted(is_stored: bool) -> None:
    sink, transport, _ = make_sink(latency_s=1.0)
    async with at_work(sink):
        sink.record(FAILED)
        if is_stored:
            await asyncio.sleep(2.0)
            sink.record(FAILED)
            await asyncio.sleep(SERIES_FLUSH_S)  # the count is on its way
        await asyncio.sleep(0.5)
        sink.record(FAILED)
        await asyncio.sleep(SERIES_FLUSH_S + 2.0)
    assert transport.asked[-1].body["series"]["count"] == 2 + is_stored


async def test_drain_writes_a_repeat_from_during_the_event_write() -> None:
    sink, transport, _ = make_sink(latency_s=1.0)
    async with at_work(sink):
        sink.record(FAILED)
        await asyncio.sleep(0.5)
        sink.record(FAILED)
        assert await sink.drain(5)
    assert [asked.method for asked in transport.asked] == ["POST", "PATCH"]
    assert transport.asked[-1].body["series"]["count"] == 2


async def test_simultaneous_events_of_two_processes_have_different_names() -> None:
    clock, transport = LoopClock(), ScriptedTransport(respond=accept, latency_s=0.0)
    for instance in ("pod-0", "pod-1"):
        sink = ApiEventSink(transport, WriteLimiter(clock), clock, instance=instance)
        async with at_work(sink):
            sink.record(FAILED)
            assert await sink.drain(5)
    first, second = (asked.body["metadata"]["name"] for asked in transport.asked)
    assert first != second


async def test_repeats_before_the_first_write_are_one_event_with_a_count() -> None:
    sink, transport, _ = make_sink()
    for _ in range(5):
        sink.record(FAILED)
    async with at_work(sink):
        assert await sink.drain(5)
    (asked,) = transport.asked
    assert asked.body["series"] == {"count": 5, "lastObservedTime": "2026-01-01T00:00:00.000000Z"}


async def test_later_repeats_are_patched_periodically() -> None:
    sink, transport, _ = make_sink()
    async with at_work(sink):
        sink.record(FAILED)
        await asyncio.sleep(1)
        for _ in range(1000):
            sink.record(FAILED)
        await asyncio.sleep(SERIES_FLUSH_S + 1)
        sink.record(FAILED)
        await asyncio.sleep(SERIES_FLUSH_S + 1)
    post, patch, _ = transport.asked
    assert patch.method == "PATCH"
    assert patch.path == f"{post.path}/{post.body['metadata']['name']}"
    assert patch.content_type == "application/strategic-merge-patch+json"
    assert patch.body == {"series": {"count": 1001, "lastObservedTime": "2026-01-01T00:00:01.000000Z"}}
    assert (sink.statistics().aggregated, sink.statistics().patched) == (1001, 2)


async def test_different_note_reporter_or_long_pause_starts_a_new_event() -> None:
    sink, transport, _ = make_sink()
    async with at_work(sink):
        sink.record(FAILED)
        sink.record(replace(FAILED, note="0/2 nodes are available"))
        sink.record(replace(FAILED, reporter="gpu-scheduler"))
        await asyncio.sleep(400)
        sink.record(FAILED)
        assert await sink.drain(5)
    assert [asked.method for asked in transport.asked] == ["POST"] * 4
    assert len({asked.body["metadata"]["name"] for asked in transport.asked}) == 4


async def test_different_related_object_starts_a_new_series() -> None:
    sink, transport, _ = make_sink()
    others = [ObjectRef("Pod", "team", name, f"uid-{name}") for name in ("first", "second", "first")]
    async with at_work(sink):
        for other in others:
            sink.record(replace(FAILED, related=other))
        assert await sink.drain(5)
    told = [(asked.body["related"]["name"], asked.body.get("series", {}).get("count")) for asked in transport.asked[:2]]
    assert told[1] == ("second", None)
    assert sink.statistics().aggregated == 1


async def test_longest_idle_series_is_flushed_and_dropped_at_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_sink, "SERIES_MAX", 2)
    first, second, third = (replace(FAILED, note=f"sentence {number}") for number in range(3))
    sink, transport, _ = make_sink()
    async with at_work(sink):
        for event in (first, second, first):
            sink.record(event)
            await asyncio.sleep(1)
        sink.record(second)
        sink.record(third)  # now the first is the one to go, with its second count
        await asyncio.sleep(1)
        told = [(asked.method, asked.body.get("series", {}).get("count")) for asked in transport.asked]
        assert told == [("POST", None), ("POST", None), ("PATCH", 2), ("POST", None)]
        assert transport.asked[2].path.endswith(transport.asked[0].body["metadata"]["name"])
        sink.record(first)
        sink.record(third)
        assert await sink.drain(5)
    assert [asked.method for asked in transport.asked[4:]] == ["PATCH", "POST", "PATCH"]


async def test_full_event_queue_drops_and_counts() -> None:
    sink, _, _ = make_sink()
    for number in range(QUEUE_EVENTS_MAX + 50):
        sink.record(replace(SCHEDULED, regarding=replace(POD, name=f"p{number}", uid=f"u{number}")))
    statistics = sink.statistics()
    assert (statistics.dropped_full, statistics.backlog) == (50, QUEUE_EVENTS_MAX)


async def test_burst_of_ten_thousand_events_is_stored_within_a_minute() -> None:
    sink, transport, limiter = make_sink()
    async with at_work(sink):
        for _ in range(16):
            await limiter.enter_bind()
        for number in range(10_000):
            sink.record(replace(SCHEDULED, regarding=replace(POD, name=f"p{number}", uid=f"u{number}")))
            if number % 1000 == 0:
                await asyncio.sleep(1)
        assert len(transport.asked) <= 220
        for _ in range(16):
            limiter.leave_bind()
        assert await sink.drain(60)
        assert sink.statistics().stored == 10_000


async def test_refused_event_is_dropped_and_counted_and_the_next_is_sent() -> None:
    sink, _, _ = make_sink(
        lambda asked: a_refusal(422, "Invalid") if asked.body["reason"] == "Scheduled" else accept(asked)
    )
    async with at_work(sink):
        sink.record(SCHEDULED)
        sink.record(FAILED)
        assert await sink.drain(5)
    statistics = sink.statistics()
    assert (statistics.stored, statistics.dropped_refused) == (1, 1)


@pytest.mark.parametrize(
    "fault", [AnswerLostError("reset"), ConnectFailedError("refused"), a_refusal(500), a_refusal(429)]
)
async def test_temporary_fault_is_retried_and_a_lasting_one_drops_and_counts(fault: Answer) -> None:
    faults: list[Answer] = [fault] * 2
    sink, _, _ = make_sink(lambda asked: faults.pop() if faults else accept(asked))
    async with at_work(sink):
        sink.record(SCHEDULED)
        assert await sink.drain(30)
        assert (sink.statistics().stored, sink.statistics().retries) == (1, 2)
        faults.extend([fault] * 100)
        sink.record(FAILED)
        assert await sink.drain(60)
    assert sink.statistics().dropped_unreachable == 1


BUSY = a_refusal(429, retry_after="4")
LOST = AnswerLostError("reset")


@pytest.mark.parametrize(
    ("faults", "waits_s"),
    [
        ([LOST, LOST, LOST], [1.0, 2.0, 4.0]),
        ([a_refusal(503), a_refusal(503), a_refusal(503)], [1.0, 1.0, 1.0]),
        ([BUSY, LOST, BUSY], [4.0, 2.0, 4.0]),
        ([a_refusal(503, retry_after="3"), a_refusal(429, retry_after="0"), LOST], [3.0, 1.0, 4.0]),
    ],
    ids=["no answers", "faults of the server", "told when", "told to wait for less than a second"],
)
@pytest.mark.parametrize("kind", ["event", "condition"])
async def test_background_write_retry_doubles_or_follows_retry_after(
    kind: str, faults: list[Answer], waits_s: list[float]
) -> None:
    script = [*faults, accept]

    def respond(asked: Asked) -> Answer:
        step = script.pop(0)
        return step(asked) if callable(step) else step

    transport, limiter = ScriptedTransport(respond=respond), WriteLimiter(LoopClock())
    sink = ApiEventSink(transport, limiter, LoopClock(), instance="job-scheduler-pod-0")
    writer = ApiConditionWriter(transport, limiter, LoopClock())
    sink.record(SCHEDULED) if kind == "event" else writer.write(POD, UNSCHEDULABLE, LEASE)
    async with at_work(sink if kind == "event" else writer):
        await asyncio.sleep(60)
    sent_at = [asked.at for asked in transport.asked]
    assert [later - earlier for earlier, later in pairwise(sent_at)] == pytest.approx(waits_s)
    assert {asked.timeout_s for asked in transport.asked} == {10.0}
    assert limiter.statistics().throttled == sum(isinstance(one, Response) and one.status == 429 for one in faults)
    assert (sink.statistics().stored + writer.statistics().written, len(script)) == (1, 0)


async def test_dropped_event_is_a_new_event_when_repeated() -> None:
    """Refused or unreachable, and others of the same time stay what they were."""
    refused, lost = replace(FAILED, note="refused"), replace(FAILED, note="lost")
    faults: dict[str, Answer] = {"refused": a_refusal(403), "lost": LOST}
    sink, transport, _ = make_sink(lambda asked: faults.get(asked.body.get("note", "")) or accept(asked))
    async with at_work(sink):
        for event in (FAILED, refused, lost):
            sink.record(event)
        assert await sink.drain(60)
        faults.clear()
        for event in (FAILED, refused, lost):
            sink.record(event)
        assert await sink.drain(60)
    assert (sink.statistics().dropped_refused, sink.statistics().dropped_unreachable) == (1, 1)
    told = [(asked.method, asked.body.get("note", "")) for asked in transport.asked[-3:]]
    assert sorted(told) == [("PATCH", ""), ("POST", "lost"), ("POST", "refused")]
    assert all("series" not in asked.body for asked in transport.asked if asked.method == "POST")
    assert (sink.statistics().recorded, sink.statistics().aggregated) == (6, 1)


async def test_event_with_a_lost_response_is_not_stored_twice() -> None:
    answers: list[Answer] = [a_refusal(409, "AlreadyExists"), AnswerLostError("reset")]
    sink, transport, _ = make_sink(lambda _: answers.pop())
    async with at_work(sink):
        sink.record(SCHEDULED)
        assert await sink.drain(5)
    first, second = transport.asked
    assert first.body["metadata"]["name"] == second.body["metadata"]["name"]
    assert sink.statistics().stored == 1


async def test_unresponsive_server_does_not_block_the_drain() -> None:
    sink, _, _ = make_sink(latency_s=1e6)
    async with at_work(sink):
        sink.record(SCHEDULED)
        assert not await sink.drain(3)
        assert asyncio.get_running_loop().time() == pytest.approx(3)


async def test_event_sink_without_an_instance_is_refused() -> None:
    with pytest.raises(ValueError, match="instance"):
        ApiEventSink(ScriptedTransport(), WriteLimiter(LoopClock()), LoopClock(), instance="")


@pytest.mark.parametrize("length", [1, 300, 2000])
async def test_lone_surrogate_in_an_event_note_becomes_a_question_mark(length: int) -> None:
    told = "x" * length + "\ud800"
    sink, events, _ = make_sink()
    writer, conditions, _ = make_writer()
    sink.record(replace(FAILED, note=told))
    writer.write(POD, replace(UNSCHEDULABLE, message=told), LEASE)
    async with at_work(sink), at_work(writer):
        assert await sink.drain(5)
        assert await drained(writer, 5)
    assert events.asked[0].body["note"] == cut_note("x" * length + "?")
    assert conditions.asked[0].body["status"]["conditions"][0]["message"] == "x" * length + "?"


@given(st.text(max_size=1500))
def test_event_note_is_truncated_to_whole_characters(note: str) -> None:
    cut = cut_note(note)
    assert len(cut.encode("utf-8", "surrogatepass")) <= 1024
    assert cut == note or note.encode("utf-8", "replace").startswith(cut.removesuffix(" ...").encode())


@pytest.mark.parametrize(
    ("length", "cut"), [(1024, "x" * 1024), (1025, "x" * 1020 + " ..."), (9000, "x" * 1020 + " ...")]
)
def test_truncated_note_ends_as_that_of_kube_scheduler(length: int, cut: str) -> None:
    assert cut_note("x" * length) == cut


async def test_condition_patch_has_the_uid_as_precondition() -> None:
    writer, transport, _ = make_writer()
    async with at_work(writer):
        writer.write(POD, UNSCHEDULABLE, LEASE)
        assert await drained(writer, 5)
    (asked,) = transport.asked
    assert (asked.method, asked.path) == ("PATCH", "/api/v1/namespaces/team/pods/web-1/status")
    assert asked.content_type == "application/strategic-merge-patch+json"
    assert asked.body == {
        "metadata": {"uid": "uid-1"},
        "status": {
            "conditions": [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": "0/1 nodes are available: 1 Too many pods.",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }
            ]
        },
    }


async def test_only_the_newest_changed_condition_is_written() -> None:
    writer, transport, _ = make_writer()
    for number in range(100):
        writer.write(POD, replace(UNSCHEDULABLE, message=f"{number}"), LEASE)
    async with at_work(writer):
        assert await drained(writer, 5)
        writer.write(POD, replace(UNSCHEDULABLE, message="99"), LEASE)
        assert await drained(writer, 5)
        await asyncio.sleep(100)
        writer.write(POD, UNSCHEDULABLE, LEASE)
        assert await drained(writer, 5)
    messages = [asked.body["status"]["conditions"][0]["message"] for asked in transport.asked]
    since = {asked.body["status"]["conditions"][0]["lastTransitionTime"] for asked in transport.asked}
    assert messages == ["99", UNSCHEDULABLE.message]
    assert since == {"2026-01-01T00:00:00Z"}
    assert (writer.statistics().superseded, writer.statistics().unchanged) == (99, 1)


async def test_newer_condition_is_written_after_an_older_write_in_flight() -> None:
    writer, transport, _ = make_writer()
    async with at_work(writer):
        writer.write(POD, replace(UNSCHEDULABLE, message="old"), LEASE)
        await asyncio.sleep(0.001)
        writer.write(POD, replace(UNSCHEDULABLE, message="new"), LEASE)
        assert await drained(writer, 5)
    first, second = transport.asked
    assert second.at >= first.at + transport.latency_s
    assert second.body["status"]["conditions"][0]["message"] == "new"


async def test_nomination_is_written_with_the_condition_and_kept_by_a_newer_one() -> None:
    writer, transport, _ = make_writer()
    async with at_work(writer):
        writer.write(POD, replace(UNSCHEDULABLE, nominated_node="n1"), LEASE)
        writer.write(POD, replace(UNSCHEDULABLE, message="newer"), LEASE)
        assert await drained(writer, 5)
        writer.write(POD, replace(UNSCHEDULABLE, message="newer"), LEASE)
        writer.write(POD, replace(UNSCHEDULABLE, message="newer", nominated_node=""), LEASE)
        assert await drained(writer, 5)
    written = [
        (asked.body["status"]["conditions"][0]["message"], asked.body["status"].get("nominatedNodeName", "as it was"))
        for asked in transport.asked
    ]
    assert written == [("newer", "n1"), ("newer", None)]


async def test_unwritten_condition_is_replaced_but_its_nomination_kept() -> None:
    faults: list[Answer] = [a_refusal(503, "ServiceUnavailable")]
    writer, transport, _ = make_writer(lambda asked: faults.pop() if faults else accept(asked))
    async with at_work(writer):
        writer.write(POD, replace(UNSCHEDULABLE, message="old", nominated_node="n1"), LEASE)
        await asyncio.sleep(0.1)
        writer.write(POD, replace(UNSCHEDULABLE, message="new"), LEASE)
        assert await drained(writer, 30)
    written = [
        (asked.body["status"]["conditions"][0]["message"], asked.body["status"]["nominatedNodeName"])
        for asked in transport.asked
    ]
    assert written == [("old", "n1"), ("new", "n1")]
    statistics = writer.statistics()
    assert (statistics.superseded, statistics.retries, statistics.written) == (1, 1, 1)


@pytest.mark.parametrize("is_sent", [False, True])
@pytest.mark.parametrize("is_newer_told", [False, True])
async def test_ended_nomination_is_not_written(is_sent: bool, is_newer_told: bool) -> None:
    writer, transport, _ = make_writer()
    writer.write(POD, replace(UNSCHEDULABLE, nominated_node="n1"), LEASE)
    async with at_work(writer):
        if is_sent:
            await asyncio.sleep(0.001)
            assert transport.asked[0].body["status"]["nominatedNodeName"] == "n1"
        writer.end_nomination("uid-1")
        if is_newer_told:
            writer.write(POD, replace(UNSCHEDULABLE, message="newer"), LEASE)
        assert await drained(writer, 5.0)
    assert len(transport.asked) == 1 + is_sent
    last = transport.asked[-1].body["status"]
    assert last["nominatedNodeName"] is None
    assert last["conditions"][0]["message"] == ("newer" if is_newer_told else UNSCHEDULABLE.message)


async def test_end_of_a_written_or_unwritten_nomination_writes_nothing() -> None:
    writer, transport, _ = make_writer()
    writer.end_nomination("uid-1")
    async with at_work(writer):
        writer.write(POD, replace(UNSCHEDULABLE, nominated_node="n1"), LEASE)
        assert await drained(writer, 5.0)
        writer.write(POD, replace(UNSCHEDULABLE, message="newer"), LEASE)
        writer.end_nomination("uid-1")
        assert await drained(writer, 5.0)
    told = [asked.body["status"].get("nominatedNodeName", "as it was") for asked in transport.asked]
    assert told == ["n1", "as it was"]


async def test_number_of_remembered_conditions_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(condition_writer, "PENDING_MAX", 2)
    monkeypatch.setattr(condition_writer, "WRITTEN_MAX", 2)
    writer, transport, _ = make_writer()
    pods = [replace(POD, name=f"p{number}", uid=f"u{number}") for number in range(3)]
    for pod in pods:
        writer.write(pod, UNSCHEDULABLE, LEASE)
    assert (writer.statistics().dropped_full, writer.statistics().backlog) == (1, 2)
    async with at_work(writer):
        assert await drained(writer, 5)
        writer.write(pods[1], UNSCHEDULABLE, LEASE)
        writer.write(pods[2], UNSCHEDULABLE, LEASE)
        assert await drained(writer, 5)
        writer.write(pods[1], UNSCHEDULABLE, LEASE)
        writer.write(pods[0], UNSCHEDULABLE, LEASE)  # that it was written is no longer known
        assert await drained(writer, 5)
    assert [asked.path.split("/")[-2] for asked in transport.asked] == ["p0", "p1", "p2", "p0"]
    counted = writer.statistics()
    assert (counted.written, counted.unchanged, counted.backlog) == (4, 2, 0)


@pytest.mark.parametrize(
    ("fault", "waits_s"),
    [
        (AnswerLostError("reset"), RETRY_DELAY_S),
        (a_refusal(500), RETRY_DELAY_S),
        (a_refusal(503, retry_after="4"), 4.0),
        (a_refusal(429, retry_after="4"), 4.0),
    ],
)
async def test_condition_is_retried_after_a_temporary_fault(fault: Answer, waits_s: float) -> None:
    faults: list[Answer] = [fault]
    writer, transport, limiter = make_writer(lambda asked: faults.pop() if faults else accept(asked))
    async with at_work(writer):
        writer.write(POD, UNSCHEDULABLE, LEASE)
        assert await drained(writer, 30)
    first, second = transport.asked
    assert first.body == second.body
    assert first.timeout_s == second.timeout_s == WRITE_TIMEOUT_S
    assert second.at - first.at >= waits_s
    assert second.at - first.at < waits_s + 2.0
    counted = writer.statistics()
    assert (counted.written, counted.retries) == (1, 1)
    assert (counted.dropped_refused, counted.dropped_unreachable) == (0, 0)
    assert limiter.statistics().throttled == (isinstance(fault, Response) and fault.status == 429)


async def test_pending_condition_is_dropped_once_the_pod_has_a_node() -> None:
    def busy(asked: Asked) -> Answer:
        return a_refusal(503, "ServiceUnavailable")

    writer, transport, _ = make_writer(busy)
    other = replace(POD, uid="uid-2")
    async with at_work(writer):
        writer.write(POD, UNSCHEDULABLE, LEASE)
        await asyncio.sleep(0.1)
        writer.drop(POD.uid)
        writer.write(other, UNSCHEDULABLE, LEASE)
        writer.drop(other.uid)
        assert await drained(writer, 30)
    assert [asked.body["metadata"]["uid"] for asked in transport.asked] == ["uid-1"]
    assert writer.statistics().superseded == 2


@pytest.mark.parametrize("fault", [None, a_refusal(503, "ServiceUnavailable")], ids=["written", "not written"])
async def test_condition_is_written_after_an_undone_bind(fault: Answer | None) -> None:
    """It was given a node while its condition was on its way, and has lost it again: the bind failed."""
    faults = [fault] if fault is not None else []
    writer, transport, _ = make_writer(lambda asked: faults.pop() if faults else accept(asked))
    newer = replace(UNSCHEDULABLE, message="0/2 nodes are available")
    async with at_work(writer):
        writer.write(POD, UNSCHEDULABLE, LEASE)
        await asyncio.sleep(0.001)
        writer.drop(POD.uid)
        assert await drained(writer, 30)
        writer.write(POD, newer, LEASE)
        assert await drained(writer, 30)
    told = [asked.body["status"]["conditions"][0]["message"] for asked in transport.asked]
    assert told == [UNSCHEDULABLE.message, newer.message]


async def test_event_names_its_related_object() -> None:
    sink, transport, _ = make_sink()
    preemptor = ObjectRef("Pod", "team", "urgent", "uid-2")
    async with at_work(sink):
        sink.record(replace(SCHEDULED, related=preemptor))
        assert await sink.drain(5)
    related = {"apiVersion": "v1", "kind": "Pod", "name": "urgent", "namespace": "team", "uid": "uid-2"}
    assert [asked.body["related"] for asked in transport.asked] == [related]


async def test_conditions_of_deleted_pods_and_lasting_faults_are_dropped_and_counted() -> None:
    writer, _, _ = make_writer(lambda asked: a_refusal(404 if "web-1" in asked.path else 500))
    async with at_work(writer):
        writer.write(POD, UNSCHEDULABLE, LEASE)
        writer.write(replace(POD, name="other", uid="uid-2"), UNSCHEDULABLE, LEASE)
        assert await drained(writer, 60)
    statistics = writer.statistics()
    assert (statistics.dropped_refused, statistics.dropped_unreachable, statistics.backlog) == (1, 1, 0)
    assert statistics.retries == ATTEMPTS_MAX


async def test_every_condition_result_is_counted() -> None:
    def respond(asked: Asked) -> Answer:
        return {"gone": a_refusal(404), "away": a_refusal(500)}.get(asked.body["metadata"]["uid"][:4]) or accept(asked)

    writer, _, _ = make_writer(respond)
    pods = {
        name: replace(POD, name=name, uid=name)
        for kind in ("gone", "away", "fine")
        for name in (f"{kind}-1", f"{kind}-2")
    }
    async with at_work(writer):
        for _ in range(3):
            for name, pod in pods.items():
                if name.startswith("fine"):
                    writer.write(pod, UNSCHEDULABLE, LEASE)
            assert await drained(writer, 5)
        for name, pod in pods.items():
            if not name.startswith("fine"):
                writer.write(pod, UNSCHEDULABLE, LEASE)
        assert await drained(writer, 60)
        for _ in range(3):
            writer.write(pods["fine-1"], replace(UNSCHEDULABLE, message="other"), LEASE)
        assert await drained(writer, 5)
    found = writer.statistics()
    assert (found.written, found.unchanged, found.superseded) == (2 + 1, 2 * 2, 2)
    assert (found.dropped_refused, found.dropped_unreachable, found.retries) == (2, 2, 2 * ATTEMPTS_MAX)


async def test_dropped_write_does_not_count_as_written() -> None:
    faults: list[Answer] = [Response(403, b"")]
    writer, transport, _ = make_writer(lambda asked: faults.pop() if faults else accept(asked))
    async with at_work(writer):
        for _ in range(2):
            writer.write(POD, UNSCHEDULABLE, LEASE)
            assert await drained(writer, 5)
    assert len(transport.asked) == 2
    assert writer.statistics().written == 1


@pytest.mark.parametrize("lost", [AnswerLostError("reset"), a_refusal(504, "Timeout")], ids=["no answer", "504"])
@pytest.mark.parametrize("pause_s", [0.1, 60.0], ids=["before it is sent again", "when it was given up"])
async def test_condition_is_rewritten_after_a_write_of_unknown_effect(lost: Answer, pause_s: float) -> None:
    """It may stand there by now: what was written before it need not be there any more."""
    newer = replace(UNSCHEDULABLE, message="0/2 nodes are available")

    def lossy(asked: Asked) -> Answer:
        return lost if asked.body["status"]["conditions"][0]["message"] == newer.message else accept(asked)

    writer, transport, _ = make_writer(lossy)
    async with at_work(writer):
        writer.write(POD, UNSCHEDULABLE, LEASE)
        assert await drained(writer, 5)
        await asyncio.sleep(10)
        writer.write(POD, newer, LEASE)
        await asyncio.sleep(pause_s)
        writer.write(POD, UNSCHEDULABLE, LEASE)
        assert await drained(writer, 60)
    told = [asked.body["status"]["conditions"][0] for asked in transport.asked]
    assert told[-1]["message"] == UNSCHEDULABLE.message
    assert {one["lastTransitionTime"] for one in told} == {"2026-01-01T00:00:00Z"}


@pytest.mark.parametrize("lost", [AnswerLostError("reset"), a_refusal(504, "Timeout")], ids=["no answer", "504"])
async def test_dropped_condition_is_sent_when_repeated(lost: Answer) -> None:
    """It may stand there by now, or not."""
    faults = [lost] * ATTEMPTS_MAX
    writer, transport, _ = make_writer(lambda asked: faults.pop() if faults else accept(asked))
    async with at_work(writer):
        for _ in range(2):
            writer.write(POD, UNSCHEDULABLE, LEASE)
            assert await drained(writer, 60)
    assert len(transport.asked) == ATTEMPTS_MAX + 1
    counted = writer.statistics()
    assert (counted.written, counted.unchanged, counted.dropped_unreachable) == (1, 0, 1)


async def test_condition_repeated_during_its_write_is_not_sent_twice() -> None:
    writer, transport, _ = make_writer()
    pods = [replace(POD, uid=f"uid-{number}") for number in range(2)]
    async with at_work(writer):
        for pod in pods:
            writer.write(pod, UNSCHEDULABLE, LEASE)
        await asyncio.sleep(0.001)
        for pod in pods:
            writer.write(pod, UNSCHEDULABLE, LEASE)
        assert await drained(writer, 5)
        for pod in pods:
            writer.write(pod, UNSCHEDULABLE, LEASE)
        assert writer.statistics().backlog == 0, "nothing waits that needs no writing"
    assert len(transport.asked) == 2
    assert (writer.statistics().written, writer.statistics().unchanged) == (2, 4)


async def test_only_unsent_conditions_are_dropped_and_counted() -> None:
    writer, _, _ = make_writer()
    for uid in ("uid-1", "uid-2", "uid-3"):
        writer.write(replace(POD, uid=uid), UNSCHEDULABLE, LEASE)
    for uid in ("uid-1", "uid-2", "uid-2", "nobody", "somebody"):
        writer.drop(uid)
    assert (writer.statistics().superseded, writer.statistics().backlog) == (2, 1)


async def test_conditions_are_limited_during_many_binds() -> None:
    writer, transport, limiter = make_writer()
    for _ in range(CALM_BINDS_MAX + 1):
        await limiter.enter_bind()
    async with at_work(writer):
        for number in range(1000):
            writer.write(replace(POD, name=f"p{number}", uid=f"u{number}"), UNSCHEDULABLE, LEASE)
        await asyncio.sleep(5)
        assert 50 <= len(transport.asked) <= 110


async def test_former_leader_writes_no_conditions() -> None:
    lease = Lease()
    writer, transport, _ = make_writer()
    lease.is_held = False  # a process that stood still for a minute, and does not know yet
    async with at_work(writer):
        writer.write(POD, UNSCHEDULABLE, lease)
        assert not await drained(writer, 60)
        assert not transport.asked
        writer.write(POD, replace(UNSCHEDULABLE, message="newer"), lease)
        lease.is_held = True  # nobody had taken it
        assert await drained(writer, 5)
    assert [asked.body["status"]["conditions"][0]["message"] for asked in transport.asked] == ["newer"]


async def test_condition_is_not_retried_after_the_lease_is_lost() -> None:
    lease = Lease()

    def lost(_: Asked) -> Answer:
        lease.is_held = False
        return AnswerLostError("cut")

    writer, transport, _ = make_writer(lost)
    async with at_work(writer):
        writer.write(POD, UNSCHEDULABLE, lease)
        assert not await drained(writer, 60)
    assert len(transport.asked) == 1

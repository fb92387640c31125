"""Histograms in plain numbers are shown as Prometheus' own would be; what is sampled is named as in kube-scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram

from multisched.framework.durations import Durations, growing
from multisched.framework.events import (
    ASSIGNED_POD_DELETE,
    NODE_ADD,
    EventObject,
    EventRegistration,
    Hint,
)
from multisched.framework.ports import ObjectRef, VolumeAnswer, VolumeReply
from multisched.model.objects import Pod
from multisched.model.version import Version
from multisched.observe.readings import DomainReading, Readings, ReadingsCollector
from multisched.queueing.hints import HINTS_PER_SAMPLE, HintTable
from multisched.shell.binding.volume_writes import CountedVolumeWriter
from multisched.shell.ingest.event_timing import EVENTS_PER_SAMPLE, EventTimes
from multisched.shell.ingest.router import Router
from tests.unit.queueing.builders import Listening, make_pod

BOUNDS = growing(0.001, 2, 6)


class Watch:
    """A stopwatch that goes on by a second at each look."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


def shown(readings: Readings) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """(sample, labels) -> value."""
    collector = ReadingsCollector()
    collector.take(readings)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in collector.collect()
        for sample in family.samples
    }


@given(st.lists(st.floats(0, 0.1) | st.sampled_from(BOUNDS)))
def test_histogram_equals_that_of_the_prometheus_client(seconds: list[float]) -> None:
    registry = CollectorRegistry()
    theirs = Histogram("multisched_event_handling_duration_seconds", "x", ["event"], buckets=BOUNDS, registry=registry)
    ours = Durations(BOUNDS)
    child = theirs.labels("NodeAdd")
    for one in seconds:
        child.observe(one)
        ours.observe(one)

    told = shown(Readings(event_durations={"NodeAdd": ours}))
    for family in registry.collect():
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                found = told[sample.name, frozenset(sample.labels.items())]
                assert found == pytest.approx(sample.value), sample


def test_durations_copy_is_independent() -> None:
    ours = Durations(BOUNDS)
    ours.observe(0.5)
    copy = ours.copy()
    ours.observe(0.5)
    assert (sum(copy.counts), copy.sum_s) == (1, 0.5)


def test_hint_and_write_durations_have_kube_scheduler_labels_and_the_domain() -> None:
    one = Durations(BOUNDS)
    one.observe(0.5)
    told = shown(
        Readings(
            domains={"job": DomainReading(hints={("NodeName", "NodeAdd", "Queue"): one})},
            volume_writes={("PersistentVolume", "conflict"): one},
        )
    )
    hint = {"plugin": "NodeName", "event": "NodeAdd", "hint": "Queue", "domain": "job"}
    assert told["multisched_queueing_hint_execution_duration_seconds_count", frozenset(hint.items())] == 1
    write = {"kind": "PersistentVolume", "result": "conflict"}
    assert told["multisched_volume_write_duration_seconds_sum", frozenset(write.items())] == 0.5


def test_pod_write_durations_have_upstream_names() -> None:
    told = shown(
        Readings(
            calls_pending={"pod_binding": 4},
            calls_ended={("pod_status_patch", "error"): 2},
        )
    )
    assert told["multisched_pending_async_api_calls", frozenset({("call_type", "pod_binding")})] == 4
    ended = {"call_type": "pod_status_patch", "result": "error"}
    assert told["multisched_async_api_call_execution_total", frozenset(ended.items())] == 2


class Tells:
    """A handler that tells the queues what its key says."""

    def __init__(self, router: Router) -> None:
        self.router = router
        self.versions: list[str] = []

    def upsert(self, key: str, raw: msgspec.Raw) -> None:
        match key:
            case "node":
                self.router.notify_listeners(NODE_ADD, None, None, 0.0)

    def delete(self, key: str, raw: msgspec.Raw | None) -> None:
        self.router.notify_pod(ASSIGNED_POD_DELETE, make_pod("p"), None, None, 0.0)

    def replaced(self, version: str) -> None:
        self.versions.append(version)


def test_events_are_sampled_and_timed_by_name() -> None:
    router = Router()
    times, handler = EventTimes(Watch(), router), Tells(router)
    watched = times.watching("Pod", handler)
    raw = msgspec.Raw(b"{}")
    for _ in range(2 * EVENTS_PER_SAMPLE):
        watched.upsert("node", raw)
    for _ in range(EVENTS_PER_SAMPLE):
        watched.upsert("heartbeat", raw)
    for _ in range(EVENTS_PER_SAMPLE):
        watched.delete("p", None)
    watched.replaced("7")

    counts = {event: (sum(found.counts), found.sum_s) for event, found in times.durations.items()}
    assert counts == {"NodeAdd": (2, 2.0), "PodOther": (1, 1.0), "AssignedPodDelete": (1, 1.0)}
    assert handler.versions == ["7"]


@pytest.mark.parametrize("answer", [Hint.QUEUE, Hint.SKIP])
def test_hints_are_sampled_and_timed_by_plugin_event_and_result(answer: Hint) -> None:
    def hint(pod: Pod, old: EventObject, new: EventObject) -> Hint:
        return answer

    table = HintTable(
        [Listening("Mine", EventRegistration(NODE_ADD, hint))], lambda plugin, point, error: None, Watch()
    )
    heard = table.listeners(NODE_ADD, ["Mine"])
    for _ in range(3 * HINTS_PER_SAMPLE):
        table.decide(NODE_ADD, heard, frozenset(), make_pod("p"), None, None)
    assert table.calls == 3 * HINTS_PER_SAMPLE
    found = table.durations["Mine", "NodeAdd", answer.value]
    assert (sum(found.counts), found.sum_s) == (3, 3.0)
    assert len(table.durations) == 1


class Answers:
    """A volume writer that answers, or raises."""

    def __init__(self, reply: Callable[[], VolumeReply]) -> None:
        self.asked: list[tuple[object, ...]] = []
        self._reply = reply

    async def bind_volume(
        self, volume: ObjectRef, version: Version, claim: ObjectRef, *, claim_version: Version, is_by_scheduler: bool
    ) -> VolumeReply:
        self.asked.append((volume, version, claim, claim_version, is_by_scheduler))
        return self._reply()

    async def select_node(self, claim: ObjectRef, version: Version, node: str) -> VolumeReply:
        self.asked.append((claim, version, node))
        return self._reply()


VOLUME, CLAIM = ObjectRef("PersistentVolume", "", "v", "v"), ObjectRef("PersistentVolumeClaim", "team", "c", "c")


def test_volume_writes_are_counted_by_kind_and_result() -> None:
    def broken() -> VolumeReply:
        raise ConnectionError("cut")

    async def main() -> None:
        times = Watch()
        answers = Answers(lambda: VolumeReply(VolumeAnswer.DONE, 5))
        writer = CountedVolumeWriter(answers, times)
        assert (await writer.select_node(CLAIM, 1, "n")).version == 5
        await writer.bind_volume(VOLUME, 2, CLAIM, claim_version=3, is_by_scheduler=True)
        assert answers.asked == [(CLAIM, 1, "n"), (VOLUME, 2, CLAIM, 3, True)]
        assert {key: sum(found.counts) for key, found in writer.durations.items()} == {
            ("PersistentVolumeClaim", "done"): 1,
            ("PersistentVolume", "done"): 1,
        }
        failing = CountedVolumeWriter(Answers(broken), times)
        with pytest.raises(ConnectionError):
            await failing.select_node(CLAIM, 1, "n")
        assert list(failing.durations) == [("PersistentVolumeClaim", "error")]
        found = [*writer.durations.values(), *failing.durations.values()]
        assert [one.sum_s for one in found] == [1.0] * 3, "each took as long as from one look to the next"

    asyncio.run(main())

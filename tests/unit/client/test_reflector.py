"""What a reflector does when the server answers like this."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest

from multisched.client.history import History
from multisched.client.known_objects import TOMBSTONES_MAX
from multisched.client.list_reader import STALE_LISTS_MAX
from multisched.client.object_feed import BATCH_ITEMS
from multisched.client.reflector import RESUMES_MAX, Reflector
from multisched.client.watch import IDLE_TIMEOUT_S
from multisched.model.wire import AnswerLostError, ConnectFailedError, Response
from tests.unit.client.scripted import (
    Answer,
    LoopClock,
    Mirror,
    ScriptedTransport,
    Step,
    a_bookmark,
    a_line,
    a_list,
    a_refusal,
    a_status,
    an_object,
)

pytestmark = pytest.mark.looptime

Watch = Sequence[Step] | Response | Exception
QUIET: Sequence[Step] = [30.0, b'{"type":"BOOKMARK","object":{"metadata":{}}}']
FOREVER: Watch = [QUIET[1], *(step for _ in range(1000) for step in QUIET)]


class Stage:
    """A reflector at work on a script."""

    def __init__(
        self, lists: Sequence[Answer], watches: Sequence[Watch], page_items: int, history: History | None
    ) -> None:
        self.transport = ScriptedTransport(lists=deque(lists), watches=deque(watches))
        self.mirror = Mirror()
        self.reflector = Reflector(
            self.transport,
            "/api/v1/pods",
            handler=self.mirror,
            clock=LoopClock(),
            rng=random.Random(1),
            field_selector="status.phase!=Failed",
            page_items=page_items,
            history=history,
        )

    @property
    def versions_watched(self) -> list[str]:
        return [asked.query["resourceVersion"] for asked in self.transport.of("WATCH")]


@asynccontextmanager
async def staged(
    lists: Sequence[Answer], watches: Sequence[Watch] = (), *, page_items: int = 500, history: History | None = None
) -> AsyncIterator[Stage]:
    stage = Stage(lists, watches, page_items, history)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(stage.reflector.run())
        try:
            yield stage
        finally:
            task.cancel()


async def test_first_list_is_consistent_paged_and_passes_raw_objects() -> None:
    pages = [a_list(10, an_object("a", 3), continue_token="t/=&"), a_list(10, an_object("b", 4))]
    async with staged(pages, page_items=1) as stage:
        await stage.reflector.wait_synced()
        first, second = stage.transport.of("GET")
        assert first.query == {"fieldSelector": "status.phase!=Failed", "limit": "1"}
        assert second.query["continue"] == "t/=&"
        assert stage.mirror.objects == {"default/a": "3", "default/b": "4"}
        assert stage.mirror.replacements == ["10"]


async def test_watch_starts_at_the_list_version_with_bookmarks_and_a_random_timeout() -> None:
    async with staged([a_list(10)]) as stage:
        await stage.reflector.wait_synced()
        await asyncio.sleep(0.1)
        (watch,) = stage.transport.of("WATCH")
        assert watch.query["resourceVersion"] == "10"
        assert watch.query["allowWatchBookmarks"] == "true"
        assert watch.query["fieldSelector"] == "status.phase!=Failed"
        assert 240 <= int(watch.query["timeoutSeconds"]) <= 540


async def test_events_reach_the_handler_and_a_clean_close_resumes_at_once() -> None:
    node = an_object("n", 12, namespace="")
    events: Watch = [
        a_line("ADDED", node),
        a_line("MODIFIED", an_object("a", 13)),
        a_line("DELETED", an_object("a", 14)),
        a_bookmark(20),
        300.0 - 250.0,
    ]
    async with staged([a_list(10, an_object("a", 3))], [events, FOREVER]) as stage:
        await asyncio.sleep(55)
        assert stage.mirror.calls == [
            ("upsert", "default/a"),
            ("upsert", "n"),
            ("upsert", "default/a"),
            ("delete", "default/a"),
        ]
        assert stage.versions_watched == ["10", "20"]
        assert stage.transport.asked[-1].at == pytest.approx(50, abs=0.01)
        assert stage.reflector.statistics().lists == 1


async def test_broken_watch_resumes_at_the_last_version_with_jitter() -> None:
    broken: Watch = [a_line("ADDED", an_object("a", 11)), AnswerLostError("reset")]
    async with staged([a_list(10)], [broken, FOREVER]) as stage:
        await asyncio.sleep(5)
        assert stage.versions_watched == ["10", "11"]
        assert 0.8 <= stage.transport.asked[-1].at <= 1.6
        assert stage.reflector.statistics().lists == 1


async def test_refused_connection_backs_off_to_thirty_seconds_and_resumes() -> None:
    outage = [ConnectFailedError("refused")] * 30
    async with staged([a_list(10)], [*outage, FOREVER]) as stage:
        await asyncio.sleep(700)
        times = [asked.at for asked in stage.transport.of("WATCH")]
        gaps = [after - before for before, after in pairwise(times)]
        assert len(times) == 31
        assert 0.8 <= gaps[0] <= 1.6
        assert all(15 <= gap <= 30 for gap in gaps[6:])
        assert stage.reflector.statistics().lists == 1
        assert stage.reflector.staleness_s() == 0.0


async def test_staleness_counts_from_the_end_of_the_last_watch() -> None:
    async with staged([a_list(10)], [[10.0], *[ConnectFailedError("refused")] * 50]) as stage:
        await asyncio.sleep(9)
        assert stage.reflector.staleness_s() == 0.0
        await asyncio.sleep(31)
        assert stage.reflector.staleness_s() == pytest.approx(30, abs=0.1)


async def test_too_many_requests_waits_as_requested_and_resumes() -> None:
    refused = a_refusal(429, "TooManyRequests", retry_after="7")
    async with staged([a_list(10)], [refused, FOREVER]) as stage:
        await asyncio.sleep(20)
        assert stage.transport.asked[-1].at == pytest.approx(7, abs=0.01)
        assert stage.versions_watched == ["10", "10"]
        assert stage.reflector.statistics().lists == 1


@pytest.mark.parametrize(
    "expired",
    [
        a_refusal(410, "Expired"),
        [a_line("ERROR", a_status(410, "Expired", "too old resource version: 1 (9)"))],
        [a_line("ERROR", a_status(0, "Expired"))],
    ],
)
async def test_expired_version_relists_and_deletes_missing_objects(expired: Watch) -> None:
    lists = [a_list(10, an_object("stays", 3), an_object("goes", 4)), a_list(30, an_object("stays", 3))]
    async with staged(lists, [expired, FOREVER]) as stage:
        await asyncio.sleep(5)
        assert stage.mirror.objects == {"default/stays": "3"}
        assert stage.mirror.calls[-1] == ("vanish", "default/goes")
        assert stage.versions_watched == ["10", "30"]
        statistics = stage.reflector.statistics()
        assert (statistics.expired, statistics.duplicates, statistics.synthetic_deletes) == (1, 1, 1)


async def test_fifty_expired_watches_leave_no_phantom_object() -> None:
    lists = [a_list(10 * n, an_object(f"only-{n}", 10 * n)) for n in range(1, 52)]
    expired: list[Watch] = [[2.0, a_line("ERROR", a_status(410, "Expired"))] for _ in range(50)]
    async with staged(lists, [*expired, FOREVER]) as stage:
        await asyncio.sleep(200)
        assert stage.mirror.objects == {"default/only-51": "510"}
        assert stage.reflector.statistics().lists == 51


async def test_immediately_expiring_server_is_not_polled_in_a_tight_loop() -> None:
    expired: list[Watch] = [a_refusal(410, "Expired")] * 100
    async with staged([a_list(10)] * 100, expired) as stage:
        await asyncio.sleep(60)
        assert len(stage.transport.of("GET")) < 12


async def test_expired_continue_token_restarts_without_paging() -> None:
    lists = [
        a_list(10, an_object("a", 3), continue_token="t"),
        a_refusal(410, "Expired"),
        a_list(12, an_object("b", 4)),
    ]
    async with staged(lists, page_items=1) as stage:
        await stage.reflector.wait_synced()
        assert "limit" not in stage.transport.of("GET")[2].query
        assert stage.mirror.objects == {"default/b": "4"}
        assert stage.mirror.replacements == ["12"]


@pytest.mark.parametrize(
    "bad",
    [
        Response(200, b'{"metadata":{"resourceVersion":"10"},"items":[{"metadata":{"na'),
        Response(200, b"<html>proxy</html>"),
        Response(200, b'{"metadata":{},"items":[]}'),
        Response(200, b'{"metadata":{"resourceVersion":"10"},"items":[7]}'),
        Response(200, b'\xff\xfe{"metadata"'),
        a_refusal(500, "InternalError"),
        a_refusal(403, "Forbidden"),
        AnswerLostError("truncated"),
        ConnectFailedError("refused"),
    ],
)
async def test_failed_list_is_retried_after_a_wait(bad: Answer) -> None:
    async with staged([bad, a_list(10, an_object("a", 3))]) as stage:
        await stage.reflector.wait_synced()
        assert stage.transport.of("GET")[1].at == pytest.approx(0.8 * (1 + random.Random(1).random()), abs=0.05)
        assert stage.mirror.objects == {"default/a": "3"}
        assert stage.reflector.statistics().list_failures == 1


async def test_list_refused_for_load_waits_as_requested() -> None:
    async with staged([a_refusal(429, retry_after="9"), a_list(10)]) as stage:
        await stage.reflector.wait_synced()
        assert stage.transport.of("GET")[1].at == pytest.approx(9, abs=0.01)


@pytest.mark.parametrize(
    "garbage",
    [
        b'{"type":"ADDED","object":{"metadata":{"name":"a","res',
        b"\x00\xff",
        b'{"type":"ADDED"}',
        b'{"type":"ADDED","object":{"metadata":{"name":7}}}',
        b'{"type":"ADDED","object":[]}',
    ],
)
async def test_malformed_line_is_counted_and_the_watch_resumed_before_it(garbage: bytes) -> None:
    good = a_line("ADDED", an_object("a", 11))
    async with staged([a_list(10)], [[good, garbage], FOREVER]) as stage:
        await asyncio.sleep(5)
        assert stage.versions_watched == ["10", "11"]
        assert stage.reflector.statistics().malformed == 1
        assert stage.mirror.objects == {"default/a": "11"}


async def test_repeated_malformed_line_causes_a_relist() -> None:
    async with staged([a_list(10), a_list(20)], [*[[b"garbage"]] * RESUMES_MAX, FOREVER]) as stage:
        await asyncio.sleep(60)
        assert stage.versions_watched == ["10"] * RESUMES_MAX + ["20"]


async def test_half_open_watch_times_out() -> None:
    async with staged([a_list(10)], [[a_bookmark(15), 1e6], FOREVER]) as stage:
        await asyncio.sleep(95)
        assert stage.versions_watched == ["10", "15"]
        assert stage.transport.asked[-1].at <= IDLE_TIMEOUT_S + 1.7


async def test_short_empty_watches_are_slowed_down() -> None:
    async with staged([a_list(10)], [[]] * 500) as stage:
        await asyncio.sleep(60)
        assert len(stage.transport.of("WATCH")) < 10
        assert stage.reflector.statistics().short_watches > 3


async def test_two_healthy_minutes_reset_the_backoff() -> None:
    faults: list[Watch] = [ConnectFailedError("refused")] * 8
    healthy: Watch = [50.0, a_bookmark(11), 50.0, a_bookmark(12), 50.0, AnswerLostError("reset")]
    async with staged([a_list(10)], [*faults, healthy, FOREVER]) as stage:
        await asyncio.sleep(1000)
        *_, before, after = [asked.at for asked in stage.transport.of("WATCH")]
        assert 150.8 <= after - before <= 151.6


async def test_stale_duplicate_and_resurrected_objects_do_not_reach_the_handler() -> None:
    events: Watch = [
        a_line("MODIFIED", an_object("a", 15)),
        a_line("MODIFIED", an_object("a", 15)),
        a_line("MODIFIED", an_object("a", 12)),
        a_line("DELETED", an_object("b", 16)),
        a_line("MODIFIED", an_object("b", 14)),
        a_line("ADDED", an_object("b", 14)),
        30.0,
    ]
    async with staged([a_list(10, an_object("a", 3), an_object("b", 4))], [events, FOREVER]) as stage:
        await asyncio.sleep(40)
        assert stage.mirror.objects == {"default/a": "15"}
        assert stage.versions_watched == ["10", "16"]
        statistics = stage.reflector.statistics()
        assert (statistics.duplicates, statistics.stale, statistics.deletes) == (1, 3, 1)


async def test_recreated_object_with_a_missed_deletion_is_deleted_first() -> None:
    events: Watch = [a_line("ADDED", an_object("a", 20, uid="second")), 30.0]
    async with staged([a_list(10, an_object("a", 3, uid="first"))], [events, FOREVER]) as stage:
        await asyncio.sleep(5)
        assert stage.mirror.calls[1:] == [("vanish", "default/a"), ("upsert", "default/a")]


async def test_replaced_object_does_not_return_after_its_successor_is_deleted() -> None:
    events: Watch = [
        a_line("ADDED", an_object("a", 20, uid="second")),
        a_line("DELETED", an_object("a", 22, uid="second")),
        a_line("MODIFIED", an_object("a", 19, uid="first")),
        a_line("DELETED", an_object("a", 18, uid="first")),
        30.0,
    ]
    async with staged([a_list(10, an_object("a", 3, uid="first"))], [events, FOREVER]) as stage:
        await asyncio.sleep(5)
        assert stage.mirror.objects == {}
        assert stage.mirror.calls[1:] == [
            ("vanish", "default/a"),
            ("upsert", "default/a"),
            ("delete", "default/a"),
        ]
        assert stage.reflector.statistics().stale == 2


async def test_stale_list_is_ignored() -> None:
    stale = a_list(50, an_object("ghost", 40))
    lists = [a_list(100, an_object("a", 90)), stale, stale, a_list(120, an_object("a", 90), an_object("b", 110))]
    async with staged(lists, [a_refusal(410, "Expired"), FOREVER]) as stage:
        await asyncio.sleep(30)
        assert ("upsert", "default/ghost") not in stage.mirror.calls
        assert stage.mirror.objects == {"default/a": "90", "default/b": "110"}
        found = stage.reflector.statistics()
        assert (found.stale_lists, found.list_failures) == (2, 2)


async def test_lasting_stale_list_is_a_restored_backup_and_accepted() -> None:
    restored = a_list(50, an_object("a", 40))
    lists = [a_list(100, an_object("a", 90), an_object("b", 95)), *[restored] * STALE_LISTS_MAX]
    async with staged(lists, [a_refusal(410, "Expired"), FOREVER]) as stage:
        await asyncio.sleep(120)
        assert stage.mirror.objects == {"default/a": "40"}
        assert stage.versions_watched[-1] == "50"


def paged(version: int, *objects: dict[str, Any]) -> list[Response]:
    """A list of which each page has one object."""
    last = len(objects) - 1
    return [a_list(version, one, continue_token="t" if at < last else "") for at, one in enumerate(objects)]


async def test_known_objects_stay_until_the_restored_list_is_complete() -> None:
    """Its last page fails twice before it comes; no object is missed in between, and none is mixed with another history."""
    kept, changed, lost, again = (
        an_object(n, v) for n, v in (("kept", 20), ("changed", 90), ("lost", 95), ("again", 30))
    )
    before = [kept, changed, lost]
    after = [an_object("kept", 20), an_object("changed", 40), again]
    restored = paged(50, *after)
    lists = [
        a_list(100, *before),
        *[restored[0]] * (STALE_LISTS_MAX - 1),
        *restored[:2],
        a_refusal(500, "InternalError"),
        *restored[:1],
        a_refusal(410, "Expired"),
        a_list(50, *after),
    ]
    async with staged(lists, [a_refusal(410, "Expired"), FOREVER], page_items=1) as stage:
        await stage.reflector.wait_synced()
        while stage.reflector.statistics().lists == 1:
            assert stage.mirror.objects == {"default/kept": "20", "default/changed": "90", "default/lost": "95"}
            await asyncio.sleep(0.01)
        assert stage.mirror.objects == {"default/kept": "20", "default/changed": "40", "default/again": "30"}
        assert stage.mirror.calls[-1] == ("vanish", "default/lost")
        assert [kind for kind, _ in stage.mirror.calls].count("vanish") == 1


async def test_contradicting_list_is_another_history() -> None:
    """A restored store whose versions have grown past those that were seen: objects show what they were before."""
    rewritten = a_list(120, an_object("a", 40), an_object("b", 110))
    lists = [a_list(100, an_object("a", 90), an_object("b", 95)), rewritten, rewritten]
    async with staged(lists, [a_refusal(410, "Expired"), FOREVER]) as stage:
        await asyncio.sleep(30)
        assert stage.mirror.objects == {"default/a": "40", "default/b": "110"}
        assert stage.reflector.statistics().version == "120"


async def test_object_with_an_undone_deletion_returns_with_the_new_history() -> None:
    rewritten = a_list(120, an_object("a", 3))
    gone: Watch = [a_line("DELETED", an_object("a", 90)), a_line("ERROR", a_status(410, "Expired"))]
    async with staged([a_list(10, an_object("a", 3)), rewritten, rewritten], [gone, FOREVER]) as stage:
        await asyncio.sleep(30)
        assert stage.mirror.objects == {"default/a": "3"}


async def test_stale_server_does_not_represent_a_history_rewritten_for_another_kind() -> None:
    """All kinds are listed anew then. A list that is older than what this one has seen since would lose it."""
    history = History()
    lists = [a_list(100, an_object("a", 90)), a_list(50), a_list(120, an_object("a", 90), an_object("b", 110))]
    async with staged(lists, [FOREVER, FOREVER], history=history) as stage:
        await stage.reflector.wait_synced()
        history.went_back("/api/v1/nodes")
        await asyncio.sleep(30)
        assert ("vanish", "default/a") not in stage.mirror.calls
        assert stage.mirror.objects == {"default/a": "90", "default/b": "110"}
        assert not history.must_start_over("/api/v1/pods")


async def test_list_older_than_an_interrupted_one_is_ignored() -> None:
    """Its first page was handed on: an object of it that the older list lacks is not gone."""
    broken = [a_list(150, an_object("new", 140), continue_token="t"), a_refusal(500, "InternalError")]
    lists = [a_list(100), *broken, a_list(120), a_list(160, an_object("new", 140))]
    async with staged(lists, [a_refusal(410, "Expired"), FOREVER], page_items=1) as stage:
        await asyncio.sleep(60)
        assert stage.mirror.calls == [("upsert", "default/new")]
        assert stage.reflector.statistics().stale_lists == 1


async def test_pages_of_different_versions_are_refused() -> None:
    torn = [a_list(100, an_object("a", 90), continue_token="t"), a_list(90, an_object("b", 80))]
    async with staged([*torn, a_list(110, an_object("a", 90))], [FOREVER], page_items=1) as stage:
        await stage.reflector.wait_synced()
        assert "limit" not in stage.transport.of("GET")[2].query
        assert ("upsert", "default/b") not in stage.mirror.calls


async def test_stale_bookmark_causes_a_relist() -> None:
    async with staged([a_list(100), a_list(110)], [[a_bookmark(40)], FOREVER]) as stage:
        await asyncio.sleep(10)
        assert stage.versions_watched == ["100", "110"]


TOO_LARGE = a_status(504, "Timeout", "Timeout: Too large resource version: 100, current: 90")


@pytest.mark.parametrize(
    "refused", [a_refusal(504, "Timeout", "Too large resource version"), [a_line("ERROR", TOO_LARGE)]]
)
async def test_watch_from_a_future_version_is_resumed_there(refused: Watch) -> None:
    """A load balancer has led to a server that lags."""
    later: Watch = [a_line("ADDED", an_object("a", 105)), *(step for _ in range(1000) for step in QUIET)]
    async with staged([a_list(100)], [refused, refused, later]) as stage:
        await asyncio.sleep(20)
        assert stage.versions_watched == ["100", "100", "100"]
        assert stage.mirror.objects == {"default/a": "105"}
        assert stage.reflector.statistics().lists == 1


async def test_long_lagging_server_passes_no_old_objects() -> None:
    """Watches are refused, lists are old; then the other server answers."""
    refused: list[Watch] = [a_refusal(504, "Timeout", "Too large resource version")] * RESUMES_MAX
    old = a_list(90, an_object("a", 80), an_object("ghost", 85))
    lists = [a_list(100, an_object("a", 95)), old, old, a_list(110, an_object("a", 95))]
    async with staged(lists, [*refused, FOREVER]) as stage:
        await asyncio.sleep(60)
        assert stage.mirror.calls == [("upsert", "default/a")]
        assert stage.versions_watched[-1] == "110"


async def test_requested_relist_ends_a_quiet_watch_at_once() -> None:
    async with staged([a_list(10, an_object("a", 3)), a_list(11)], [FOREVER, FOREVER]) as stage:
        await asyncio.sleep(5)
        stage.reflector.request_relist()
        await asyncio.sleep(0.1)
        assert stage.mirror.objects == {}
        assert stage.reflector.statistics().lists == 2


async def test_relist_requested_before_the_watch_replaces_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with staged([a_list(10), a_list(11)], [FOREVER]) as stage:
        replaced = Mirror.replaced

        def request_once(mirror: Mirror, version: str) -> None:
            replaced(mirror, version)
            if version == "10":
                stage.reflector.request_relist()

        monkeypatch.setattr(Mirror, "replaced", request_once)
        await asyncio.sleep(5)
        assert stage.mirror.replacements == ["10", "11"]
        assert stage.versions_watched == ["11"]


@pytest.mark.parametrize("failing", [AnswerLostError("reset"), a_refusal(429, retry_after="9"), a_list(5)])
async def test_relist_requested_during_a_failing_list_follows_it(failing: Answer) -> None:
    """The last one is a list from the past, which is not used."""
    async with staged([a_list(10), failing, a_list(11)], [FOREVER, FOREVER]) as stage:
        await asyncio.sleep(1.0)
        stage.transport.latency_s = 2.0
        stage.reflector.request_relist()
        await asyncio.sleep(1.0)
        await stage.reflector.relist()
        assert [asked.at for asked in stage.transport.of("GET")][1:] == pytest.approx([1.0, 3.0], abs=0.01)
        assert stage.mirror.replacements == ["10", "11"]


async def test_list_in_flight_does_not_satisfy_a_later_relist_request() -> None:
    """What that list was read from may be older than the request."""
    async with staged([a_list(10), a_list(11), a_list(12)], [FOREVER, FOREVER]) as stage:
        await asyncio.sleep(1.0)
        stage.transport.latency_s = 2.0
        stage.reflector.request_relist()
        await asyncio.sleep(1.0)
        await stage.reflector.relist()
        assert stage.mirror.replacements == ["10", "11", "12"]


async def test_relists_are_immediate_after_any_short_watch() -> None:
    async with staged([a_list(10)] * 9, [FOREVER] * 9) as stage:
        await stage.reflector.wait_synced()
        for number in range(8):
            await asyncio.sleep(0.01)
            assert stage.reflector.statistics().lists == 1 + number
            stage.reflector.request_relist()


@pytest.mark.parametrize(("code", "lists"), [(503, 1), (500, 2), (504, 2), (403, 2)])
async def test_refused_watches_resume_and_relist_except_in_an_outage(code: int, lists: int) -> None:
    refused: list[Watch] = [a_refusal(code)] * 4
    async with staged([a_list(10)] * 2, [*refused, FOREVER]) as stage:
        await asyncio.sleep(120)
        assert stage.reflector.statistics().lists == lists
        assert stage.reflector.statistics().watch_failures == 4


async def test_long_ingest_yields_to_other_tasks() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        counter = tasks.create_task(count())
        async with staged([a_list(9999, *(an_object(f"p{n}", n) for n in range(2000)))]) as stage:
            await stage.reflector.wait_synced()
        counter.cancel()
    assert turns >= 10


async def test_number_of_remembered_deletions_is_limited() -> None:
    events = [a_line("DELETED", an_object(f"p{n}", n + 20)) for n in range(1000)]
    async with staged([a_list(10)], [events, FOREVER]) as stage:
        await asyncio.sleep(1)
        assert stage.reflector.statistics().stale == 1000
        assert stage.reflector._feed.known.tombstones <= TOMBSTONES_MAX


async def test_lasting_refusal_settles_the_kind_and_is_retried() -> None:
    transport = ScriptedTransport(
        lists=deque([a_refusal(403, "Forbidden", "no"), a_refusal(500), *[a_refusal(404, "NotFound", "none")] * 5]),
        watches=deque([FOREVER]),
    )
    told: list[str] = []
    reflector = Reflector(
        transport, "/apis/x", handler=Mirror(), clock=LoopClock(), rng=random.Random(7), on_refused=told.append
    )
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(reflector.run())
        await reflector.wait_settled()
        assert reflector.is_refused
        assert told == ["404 NotFound: none"]
        transport.lists.append(a_list(5, an_object("a", 3)))
        await reflector.wait_synced()
        assert not reflector.is_refused
        task.cancel()


async def test_short_refusal_does_not_settle_the_kind() -> None:
    transport = ScriptedTransport(
        lists=deque([a_refusal(403), a_refusal(403), a_list(5, an_object("a", 3))]), watches=deque([FOREVER])
    )
    told: list[str] = []
    reflector = Reflector(
        transport, "/apis/x", handler=Mirror(), clock=LoopClock(), rng=random.Random(7), on_refused=told.append
    )
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(reflector.run())
        await reflector.wait_settled()
        assert not reflector.is_refused
        assert reflector.statistics().objects == 1
        assert told == []
        task.cancel()


@asynccontextmanager
async def optional(
    *lists: Answer, watches: Sequence[Watch] = (FOREVER,)
) -> AsyncIterator[tuple[Reflector, Mirror, list[str]]]:
    """A reflector of a kind that need not be installed, what it handed on, and the refusals it told."""
    transport, mirror = ScriptedTransport(lists=deque(lists), watches=deque(watches)), Mirror()
    told: list[str] = []
    reflector = Reflector(
        transport,
        "/apis/x",
        handler=mirror,
        clock=LoopClock(),
        rng=random.Random(7),
        on_refused=told.append,
        is_optional=True,
    )
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(reflector.run())
        yield reflector, mirror, told
        task.cancel()


ABSENT = a_refusal(404, "NotFound", "no such kind")


async def test_missing_optional_kind_is_empty_and_polled_every_five_seconds() -> None:
    clock = LoopClock()
    async with optional(*[ABSENT] * 4, a_list(5, an_object("a", 3))) as (reflector, mirror, told):
        began_s = clock.monotonic()
        await reflector.wait_synced()
        assert clock.monotonic() == began_s
        assert (mirror.replacements, reflector.is_refused, reflector.staleness_s()) == ([""], True, 0.0)
        await asyncio.sleep(4 * 5 - 1)
        assert not mirror.objects
        await asyncio.sleep(4 * 1.25 + 2)
        assert (mirror.replacements, reflector.is_refused, told) == (["", "5"], False, [])


async def test_removed_optional_kind_is_empty_only_after_repeated_404() -> None:
    expired: Watch = a_refusal(410, "Expired")
    lists = [a_list(5, an_object("a", 3)), ABSENT, ABSENT, a_list(6, an_object("a", 3)), ABSENT, ABSENT, ABSENT]
    async with optional(*lists, *[ABSENT] * 3, watches=[expired, expired]) as (reflector, mirror, told):
        while reflector.statistics().lists < 2:
            await asyncio.sleep(1)
            assert mirror.objects == {"default/a": "3"}
        await asyncio.sleep(60)
        assert (mirror.objects, reflector.is_refused, told) == ({}, True, [])


async def test_forbidden_optional_kind_is_refused() -> None:
    lists = [ABSENT, *[a_refusal(403, "Forbidden", "no")] * 3, ABSENT, a_list(5, an_object("a", 3))]
    async with optional(*lists) as (_, mirror, told):
        await asyncio.sleep(75 + 20 + 75)
        assert set(told) == {"403 Forbidden: no"}
        assert mirror.replacements == ["", "", "5"]


async def test_first_served_version_of_a_kind_is_used() -> None:
    expired: Watch = a_refusal(410, "Expired")
    lists = [ABSENT, a_list(5, an_object("a", 3)), ABSENT, ABSENT, a_list(6, an_object("b", 4))]
    transport, mirror = ScriptedTransport(lists=deque(lists), watches=deque([expired])), Mirror()
    reflector = Reflector(
        transport,
        "/apis/x/v1",
        handler=mirror,
        clock=LoopClock(),
        rng=random.Random(7),
        is_optional=True,
        or_paths=["/apis/x/v2", "/apis/x/v3"],
    )
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(reflector.run())
        await reflector.wait_synced()
        assert (reflector.path, mirror.objects) == ("/apis/x/v2", {"default/a": "3"})
        while "default/b" not in mirror.objects:  # noqa: ASYNC110 -- virtual time
            await asyncio.sleep(0.1)
        assert (reflector.path, list(mirror.objects)) == ("/apis/x/v1", ["default/b"])
        await asyncio.sleep(1)
        task.cancel()
    asked = [(one.method, one.path.partition("?")[0][-2:]) for one in transport.asked]
    assert asked[:3] == [("GET", "v1"), ("GET", "v2"), ("WATCH", "v2")]
    assert asked[3:] == [("GET", "v2"), ("GET", "v3"), ("GET", "v1"), ("WATCH", "v1")]


async def test_every_watch_result_is_counted() -> None:
    events: Watch = [
        a_line("MODIFIED", an_object("a", 11)),
        a_line("MODIFIED", an_object("b", 12)),
        a_line("MODIFIED", an_object("a", 11)),
        a_line("MODIFIED", an_object("b", 12)),
        a_line("MODIFIED", an_object("a", 9)),
        a_line("MODIFIED", an_object("b", 9)),
        a_line("DELETED", an_object("a", 13)),
        a_line("DELETED", an_object("b", 14)),
        a_line("DELETED", an_object("b", 14)),
        a_line("DELETED", an_object("a", 13)),
        a_line("ADDED", an_object("c", 15, uid="again")),
        a_line("ADDED", an_object("d", 16, uid="again")),
        a_line("DELETED", an_object("c", 17, uid="third")),
        a_line("DELETED", an_object("d", 18, uid="third")),
        a_line("STRANGE", an_object("a", 19)),
        a_line("STRANGE", an_object("a", 19)),
        a_bookmark(20),
        a_bookmark(21),
    ]
    first = [an_object(name, at) for at, name in enumerate("abcd", 3)]
    async with staged([a_list(10, *first)], [events, FOREVER]) as stage:
        await asyncio.sleep(1)
        found = stage.reflector.statistics()
        counted = (found.lists, found.events, found.bookmarks, found.malformed, found.version)
        assert counted == (1, 14, 2 + 1, 2, "21")
        assert (found.upserts, found.deletes, found.duplicates, found.synthetic_deletes) == (4 + 2 + 2, 2, 2, 4)
        assert (found.stale, found.objects, found.expired, found.watch_failures) == (4, 0, 0, 0)
        assert stage.mirror.objects == {}


async def test_stale_list_count_restarts_after_a_current_list() -> None:
    """One less than makes a restored backup, a list that is new enough, and as many again."""
    past = [a_list(50, an_object("ghost", 40))] * (STALE_LISTS_MAX - 1)
    present = [a_list(version, an_object("a", 90)) for version in (100, 120, 130)]
    expired = a_refusal(410, "Expired")
    lists = [present[0], *past, present[1], *past, present[2]]
    async with staged(lists, [expired, expired, FOREVER]) as stage:
        await asyncio.sleep(200)
        assert ("upsert", "default/ghost") not in stage.mirror.calls
        assert stage.mirror.replacements == ["100", "120", "130"]
        assert stage.reflector.statistics().stale_lists == 2 * (STALE_LISTS_MAX - 1)


async def test_long_watch_yields_to_other_tasks() -> None:
    seen = [0]

    async def look() -> None:
        while seen[-1] < len(events):
            if seen[-1] != len(stage.mirror.calls):
                seen.append(len(stage.mirror.calls))
            await asyncio.sleep(0)

    events = [a_line("ADDED", an_object(f"p{n}", n + 20)) for n in range(1000)]
    async with asyncio.TaskGroup() as tasks, staged([a_list(10)], [events, FOREVER]) as stage:
        await tasks.create_task(look())
    assert seen[-1] == 1000
    assert max(after - before for before, after in pairwise(seen)) <= BATCH_ITEMS

"""Streams of a page: one document, sent when it changed, resumed, limited, and never buffered for a slow reader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest

from multisched.observe import page_routes, server
from multisched.observe.connections import ANSWER_TIMEOUT_S, CONNECTIONS_MAX
from multisched.observe.event_stream import STREAM_S, STREAMS_MAX, EventStreams, StreamLimits
from multisched.observe.health import Health
from multisched.observe.server import ServerSettings, serve
from tests.unit.observe.observe_kit import OnePage, sources_of

QUICK = StreamLimits(streams=3, per_user=2, interval_s=0.01, heartbeat_s=30.0, slow_s=0.05, stream_s=30.0)
STREAM = "/api/v1/overview/stream"


class Reader:
    """Reads events of one stream."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.answer = answer

    async def event(self) -> dict[str, str]:
        """Returns the fields of the next event that is not only a comment or a pause."""
        while True:
            block = await self.answer.content.readuntil(b"\n\n")
            assert block, f"the stream ended, status {self.answer.status}"
            lines = [line.partition(": ") for line in block.decode().strip().split("\n")]
            found = {name: value for name, _, value in lines if name}
            if "data" in found:
                return found

    async def is_over(self) -> bool:
        return await self.answer.content.read() is not None


@asynccontextmanager
async def a_stream(url: str, last: str = "") -> AsyncIterator[Reader]:
    headers = {"Last-Event-ID": last} if last else {}
    async with aiohttp.ClientSession() as session, session.get(url + STREAM, headers=headers) as answer:
        yield Reader(answer)


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> list[EventStreams]:
    """All that servers of this test make, with short times."""
    made: list[EventStreams] = []

    class Noted(EventStreams):
        def __init__(self, sample: object, limits: StreamLimits | None = None) -> None:
            super().__init__(sample, QUICK)  # type: ignore[arg-type]
            made.append(self)

    monkeypatch.setattr(page_routes, "EventStreams", Noted)
    return made


async def until(holds: Callable[[], bool], meanwhile: Callable[[], object] = lambda: None) -> None:
    for _ in range(1000):
        if holds():
            return
        meanwhile()
        await asyncio.sleep(0.01)
    raise AssertionError("not within ten seconds")


async def until_none_is_open(streams: EventStreams) -> None:
    await until(lambda: not len(streams))


async def test_a_document_is_sent_only_when_it_changed(streams: list[EventStreams]) -> None:
    page = OnePage()
    async with serve(ServerSettings(port=0), sources_of(Health(), page=page)) as url, a_stream(url) as reader:
        assert reader.answer.headers["Content-Type"].startswith("text/event-stream")
        assert '"changes":0' in (await reader.event())["data"]
        looks = page.looks
        await until(lambda: page.looks >= looks + 3)
        page.changes = 7
        found = await reader.event()
        assert (found["event"], '"changes":7' in found["data"]) == ("overview", True)


async def test_resumed_stream_gets_nothing_that_it_already_has(streams: list[EventStreams]) -> None:
    page = OnePage()
    async with serve(ServerSettings(port=0), sources_of(Health(), page=page)) as url:
        async with a_stream(url) as reader:
            last = (await reader.event())["id"]
        await until_none_is_open(streams[0])
        async with a_stream(url, last) as reader:
            looks = page.looks
            await until(lambda: page.looks >= looks + 2)
            page.changes = 1
            assert '"changes":1' in (await reader.event())["data"]
        for other in (last, "another.1", "x", f"{last}.9", "é.1"):
            await until_none_is_open(streams[0])
            async with a_stream(url, other) as reader:
                assert '"changes":1' in (await reader.event())["data"], "it has missed the last one"


async def test_streams_share_one_sample_and_none_is_taken_without_them(streams: list[EventStreams]) -> None:
    page = OnePage()
    async with serve(ServerSettings(port=0), sources_of(Health(), page=page)) as url:
        async with a_stream(url) as one, a_stream(url) as other:
            assert (await one.event())["id"] == (await other.event())["id"]
        await until_none_is_open(streams[0])
        await asyncio.sleep(3 * QUICK.interval_s)
        looks = page.looks
        await asyncio.sleep(3 * QUICK.interval_s)
        assert page.looks == looks


async def test_streams_of_one_user_are_limited(streams: list[EventStreams]) -> None:
    async with serve(ServerSettings(port=0), sources_of(Health())) as url:
        async with a_stream(url) as one, a_stream(url) as other, a_stream(url) as third:
            await one.event()
            await other.event()
            assert (third.answer.status, third.answer.headers["Retry-After"]) == (429, "10")
            assert "2 streams of one user" in await third.answer.text()
        await until_none_is_open(streams[0])
        async with a_stream(url) as again:
            await again.event()


async def test_reader_that_takes_nothing_is_dropped_and_buffers_one_event(streams: list[EventStreams]) -> None:
    page = OnePage()
    page.remarks = "x" * 2_000_000  # more than the buffers of the system
    async with serve(ServerSettings(port=0), sources_of(Health(), page=page)) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
        writer.write(f"GET {STREAM} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        await until(lambda: streams[0].dropped > 0, page.change)
        await until_none_is_open(streams[0])
        writer.close()
        async with a_stream(url) as other:
            assert other.answer.status == 200
        assert reader is not None


async def test_failing_document_ends_its_streams(streams: list[EventStreams], caplog: pytest.LogCaptureFixture) -> None:
    page = OnePage()
    async with serve(ServerSettings(port=0), sources_of(Health(), page=page)) as url:
        async with a_stream(url) as reader:
            await reader.event()
            page.error = RuntimeError("an overview that fails")
            assert await reader.is_over()
        page.error = None
        async with a_stream(url) as reader:
            await reader.event()
    assert [one.message for one in caplog.records] == ["the overview cannot be read"]


async def test_open_stream_does_not_delay_the_end_of_the_server(
    streams: list[EventStreams], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends by itself, with a complete body: the server neither waits for its timeout nor cuts the connection."""
    monkeypatch.setattr(server, "SHUTDOWN_TIMEOUT_S", 60.0)
    loop = asyncio.get_running_loop()
    async with aiohttp.ClientSession() as session:
        async with serve(ServerSettings(port=0), sources_of(Health())) as url:
            answer = await session.get(url + STREAM)
            reader = Reader(answer)
            await reader.event()
            began_s = loop.time()
        assert loop.time() - began_s < 30.0
        assert await reader.is_over()


def test_stream_ends_by_itself_before_its_connection_does() -> None:
    assert STREAM_S < ANSWER_TIMEOUT_S
    assert STREAMS_MAX < CONNECTIONS_MAX / 2, "streams leave room for everything else"

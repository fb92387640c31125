"""One computation serves a crowd, and no request gets a document that is older than what its page knows of."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from multisched.observe import server
from multisched.observe.access import DelegatedAuthenticator
from multisched.observe.health import Health
from multisched.observe.nodes_view import NodesQuery, NodesView
from multisched.observe.server import ServerSettings, serve
from multisched.observe.shared_documents import DOCUMENTS_KEPT, KEPT_S, SharedDocuments
from multisched.testing.sim_loop import SimLoop, simulate
from tests.unit.observe.observe_kit import READER, STRANGER, HandClock, OnePage, a_reviewer, sources_of

NODES = "/api/v1/nodes"


class Facts:
    """A document that takes a second; `fact` is what it says of the time at which it was begun."""

    def __init__(self) -> None:
        self.fact, self.computed = 0, 0
        self.shared = SharedDocuments()

    async def read(self, key: str = "nodes") -> bytes:
        return await self.shared.body(key, self._make)

    async def _make(self) -> bytes:
        self.computed += 1
        body = b"%d" % self.fact
        await asyncio.sleep(1.0)
        return body


def in_virtual_time(main: Callable[[Facts], Awaitable[Any]]) -> None:
    async def run() -> None:
        await main(Facts())

    simulate(run(), SimLoop(0))


def test_requests_of_one_moment_cost_one_computation() -> None:
    async def main(facts: Facts) -> None:
        facts.fact = 7
        found = await asyncio.gather(*(facts.read() for _ in range(10)))
        assert (set(found), facts.computed) == ({b"7"}, 1), "it began after all had arrived"

    in_virtual_time(main)


def test_requests_of_one_moment_go_on_in_different_turns_of_the_loop() -> None:
    async def main(facts: Facts) -> None:
        loop, begun, answered = asyncio.get_running_loop(), [], []
        assert isinstance(loop, SimLoop)

        async def make() -> bytes:
            begun.append(loop.iteration)
            return b""

        async def read(key: str) -> None:
            await facts.shared.body(key, make)
            answered.append(loop.iteration)

        await asyncio.gather(*(read("nodes" if number % 2 else f"n{number}") for number in range(10)))
        assert (len(begun), len(set(begun)), len(set(answered))) == (6, 6, 10)

    in_virtual_time(main)


def test_request_gets_no_document_that_was_begun_before_it() -> None:
    async def main(facts: Facts) -> None:
        first = asyncio.ensure_future(facts.read())
        await asyncio.sleep(0.5)
        facts.fact = 1
        assert await facts.read() == b"1"
        assert await first == b"0"
        facts.fact = 2
        assert await facts.read() == b"2"

    in_virtual_time(main)


def test_pages_share_a_document_until_the_next_overview() -> None:
    async def main(facts: Facts) -> None:
        facts.shared.note_overview()
        assert await facts.read() == b"0"
        facts.fact = 1
        assert await facts.read() == b"0", "no page knows of the change yet"
        facts.shared.note_overview()
        assert await facts.read() == b"1"
        assert (await facts.read(), facts.computed) == (b"1", 2)
        facts.fact = 2
        await asyncio.sleep(KEPT_S + 0.1)
        assert await facts.read() == b"2", "overviews are no longer read"

    in_virtual_time(main)


def test_error_is_that_of_one_request() -> None:
    async def main(facts: Facts) -> None:
        async def fail() -> bytes:
            raise ValueError("no such domain")

        with pytest.raises(ValueError, match="no such domain"):
            await facts.shared.body("nodes", fail)
        assert await facts.read() == b"0"

    in_virtual_time(main)


def test_few_documents_are_kept() -> None:
    async def main(facts: Facts) -> None:
        facts.shared.note_overview()
        for number in range(DOCUMENTS_KEPT + 2):
            facts.shared.note_overview()
            await facts.read(f"nodes?offset={number}")
        before = facts.computed
        await facts.read(f"nodes?offset={DOCUMENTS_KEPT + 1}")
        assert len(facts.shared) == DOCUMENTS_KEPT
        assert facts.computed == before, "the latest one is kept"

    in_virtual_time(main)


class CountedPage(OnePage):
    """Counts how often the nodes are read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.go_on = asyncio.Event()

    async def nodes(self, query: NodesQuery) -> NodesView:
        self.reads += 1
        await self.go_on.wait()
        return await super().nodes(query)


async def test_server_shares_documents_among_those_who_may_read_them(monkeypatch: pytest.MonkeyPatch) -> None:
    page, shared = CountedPage(), SharedDocuments()
    monkeypatch.setattr(server, "SharedDocuments", lambda: shared)
    reviewer = await a_reviewer(f"/multisched{NODES}")
    settings = ServerSettings(port=0, authenticator=DelegatedAuthenticator(reviewer, HandClock()))
    async with serve(settings, sources_of(Health(), page=page)) as url, aiohttp.ClientSession() as session:

        async def read(token: str, query: str) -> tuple[int, bytes]:
            headers = {"Authorization": f"Bearer {token}"}
            async with session.get(f"{url}{NODES}{query}", headers=headers) as answer:
                return answer.status, await answer.read()

        async def until(count: int, found: Callable[[], int]) -> None:
            while found() < count:  # noqa: ASYNC110 -- the server changes it
                await asyncio.sleep(0.01)

        reading = [asyncio.create_task(read(READER, "?limit=3"))]
        await until(1, lambda: page.reads)
        reading += [asyncio.create_task(read(READER, "?limit=3")) for _ in range(5)]
        refused = await read(STRANGER, "?limit=3")
        await until(6, lambda: sum(one.readers for one in shared._documents.values()))
        page.go_on.set()
        found = await asyncio.gather(*reading)
        assert refused[0] == 403
        assert {status for status, _ in found} == {200}
        assert (len({body for _, body in found}), page.reads) == (1, 2)
        assert (await read(READER, "?limit=4"))[1] != found[0][1]
        assert (await read(READER, "?resource=gold"))[0] == 404

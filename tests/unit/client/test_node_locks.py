"""Locks of nodes over the embedded API server, and over one that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Any

import orjson
import pytest

from multisched.client.limits import WriteLimiter
from multisched.client.node_locks import ApiNodeLocks
from multisched.cluster.api.direct import DirectTransport
from multisched.cluster.api.server import ApiServer
from multisched.framework.ports import LockAnswer, LockHolder, LockReply, UnreachableError
from multisched.model.wire import ConnectFailedError, Response
from multisched.testing.builders import node_document, pod_document
from multisched.testing.sim_loop import SimClock, SimLoop, simulate

KEY = "hami.io/mutex.lock"
Story = Callable[["Site"], Any]


class Lease:
    def __init__(self) -> None:
        self.is_held = True

    def may_bind(self) -> bool:
        return self.is_held


class Meddling(DirectTransport):
    """`before` is called with each request; a response from it keeps the request from the server."""

    def __init__(self, server: ApiServer) -> None:
        super().__init__(server)
        self.methods: list[str] = []
        self.before: Callable[[str], Any] = lambda method: None

    async def request(self, method: str, path: str, **rest: Any) -> Response:
        self.methods.append(method)
        found = self.before(method)
        if asyncio.iscoroutine(found):
            found = await found
        return found if found is not None else await super().request(method, path, **rest)


class Site:
    def __init__(self, loop: SimLoop) -> None:
        self.clock = SimClock(loop)
        self.server = ApiServer(self.clock, rbac=False)
        self.transport = Meddling(self.server)
        self.lease = Lease()
        self.locks = ApiNodeLocks(self.transport, WriteLimiter(self.clock), self.clock, self.lease, timeout_s=5.0)
        self.user = DirectTransport(self.server)

    async def send(self, method: str, path: str, document: Any) -> None:
        content_type = "application/merge-patch+json" if method == "PATCH" else "application/json"
        answer = await self.user.request(method, path, body=orjson.dumps(document), content_type=content_type)
        assert answer.status < 300, answer.body

    async def text(self) -> str:
        answer = await self.user.request("GET", "/api/v1/nodes/n")
        return str((orjson.loads(answer.body)["metadata"].get("annotations") or {}).get(KEY, ""))

    async def write(self, text: str | None) -> None:
        await self.send("PATCH", "/api/v1/nodes/n", {"metadata": {"annotations": {KEY: text}}})


def play(story: Story) -> None:
    loop = SimLoop(1)

    async def main() -> None:
        site = Site(loop)
        await site.send("POST", "/api/v1/nodes", node_document("n"))
        await story(site)

    simulate(main(), loop)


def if_free(text: str, now: datetime) -> str | None:
    return None if text else "mine"


def test_a_free_lock_is_taken_and_removed_again() -> None:
    async def story(site: Site) -> None:
        assert await site.locks.change("n", KEY, if_free) == LockReply(LockAnswer.DONE)
        assert await site.text() == "mine"
        assert await site.locks.change("n", KEY, if_free) == LockReply(LockAnswer.KEPT)
        assert (await site.locks.change("n", KEY, lambda text, now: "")).answer is LockAnswer.DONE
        assert await site.text() == ""

    play(story)


def test_a_lock_that_another_client_takes_in_between_is_left_to_it() -> None:
    async def story(site: Site) -> None:
        site.transport.before = lambda method: site.write("theirs") if method == "PATCH" else None

        assert await site.locks.change("n", KEY, if_free) == LockReply(LockAnswer.KEPT)
        assert await site.text() == "theirs"
        assert site.transport.methods == ["GET", "PATCH", "GET"]

    play(story)


@pytest.mark.parametrize(
    ("status", "answer", "requests"),
    [
        (403, LockAnswer.REFUSED, 1),
        (422, LockAnswer.REFUSED, 1),
        (404, LockAnswer.NOT_FOUND, 1),
        (500, LockAnswer.UNKNOWN, 6),
    ],
)
def test_each_status_of_a_write_has_one_meaning(status: int, answer: LockAnswer, requests: int) -> None:
    async def story(site: Site) -> None:
        body = orjson.dumps({"kind": "Status", "message": "no"})
        site.transport.before = lambda method: Response(status, body, {}) if method == "PATCH" else None

        assert (await site.locks.change("n", KEY, if_free)).answer is answer
        assert site.transport.methods.count("PATCH") == requests

    play(story)


def test_a_write_whose_answer_is_lost_is_seen_by_the_next_read() -> None:
    async def story(site: Site) -> None:
        async def lost(method: str) -> None:
            if method == "PATCH":
                await site.write("mine")
                raise ConnectFailedError("lost")

        site.transport.before = lost

        reply = await site.locks.change("n", KEY, lambda text, now: None if text == "mine" else "mine")
        assert reply == LockReply(LockAnswer.KEPT)

    play(story)


def test_nothing_is_written_without_the_lease() -> None:
    async def story(site: Site) -> None:
        site.lease.is_held = False

        assert (await site.locks.change("n", KEY, if_free)).answer is LockAnswer.UNKNOWN
        assert not site.locks.may_write
        assert site.transport.methods == []

    play(story)


def test_the_pod_of_a_lock_is_read() -> None:
    async def story(site: Site) -> None:
        await site.send("POST", "/api/v1/namespaces/default/pods", pod_document("p", schedulerName="hami-scheduler"))

        assert await site.locks.holder("default", "p") == LockHolder("", "Pending", "hami-scheduler")
        assert await site.locks.holder("default", "nobody") is None
        site.transport.before = lambda method: Response(500, b"{}", {})
        with pytest.raises(UnreachableError):
            await site.locks.holder("default", "p")

    play(story)

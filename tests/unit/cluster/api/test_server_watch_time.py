"""Bookmarks and deadlines, in virtual time."""

from __future__ import annotations

import asyncio

import looptime
import orjson
import pytest

from tests.unit.cluster.server_kit import PODS, add_pod, make_server, watch


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_bookmarks_are_sent_every_minute_and_just_before_the_end(looptime: looptime.LoopTimeProxy) -> None:
    server = make_server()
    stream = watch(server, f"{PODS}?watch=1&resourceVersion=1&allowWatchBookmarks=true&timeoutSeconds=150")
    came = []
    while lines := await stream.read():
        event = orjson.loads(lines[0])
        came.append(
            (round(asyncio.get_running_loop().time()), event["type"], event["object"]["metadata"]["resourceVersion"])
        )
        if len(came) == 1:
            add_pod(server, "a")
    version = str(server.store.version)
    before = came[0][2]
    assert came == [
        (60, "BOOKMARK", before),
        (60, "ADDED", version),
        (120, "BOOKMARK", version),
        (148, "BOOKMARK", version),
    ]
    assert looptime == 150
    assert not stream.is_broken


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_a_watch_without_a_timeout_ends_between_half_an_hour_and_an_hour(
    looptime: looptime.LoopTimeProxy,
) -> None:
    stream = watch(make_server(), f"{PODS}?watch=1&resourceVersion=1")
    assert await stream.read() == []
    assert 1_800 <= asyncio.get_running_loop().time() <= 3_600
    assert looptime >= 1_800

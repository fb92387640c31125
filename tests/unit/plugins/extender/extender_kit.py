"""Extenders on loopback whose answers a test writes down, and the documents they are sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import orjson
from aiohttp import web

from tests.unit.client.servers import serving

Answer = Callable[[Any], object]
"""The request as plain data -> the answer as plain data, or a web.Response."""


class Extender:
    """What was asked of one extender, and what it says."""

    def __init__(self, url: str, answers: Mapping[str, Answer]) -> None:
        self.url = url
        self.responses = dict(answers)
        self.asked: list[tuple[str, Any]] = []

    def verbs(self) -> list[str]:
        return [verb for verb, _ in self.asked]


@asynccontextmanager
async def extending(**answers: Answer) -> AsyncIterator[Extender]:
    """An extender with a verb for each keyword."""

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        verb = request.path.rpartition("/")[2]
        body = orjson.loads(await request.read())
        extender.asked.append((verb, body))
        found = extender.responses[verb](body)
        if isinstance(found, Awaitable):
            found = await found
        return found if isinstance(found, web.StreamResponse) else web.Response(body=orjson.dumps(found))

    async with serving(handler) as url:
        extender = Extender(f"{url}/scheduler", answers)
        yield extender


def keeping(*names: str, **more: object) -> Answer:
    """An ExtenderFilterResult that leaves these nodes."""
    return lambda _: {"NodeNames": list(names), **more}


def scoring(**scores: int) -> Answer:
    """A HostPriorityList."""
    return lambda _: [{"Host": name, "Score": score} for name, score in scores.items()]


def status(code: int) -> Answer:
    return lambda _: web.Response(status=code)


async def _never() -> object:
    return await asyncio.Event().wait()


def hanging(_: object) -> object:
    return _never()


class WholeObjects:
    """`Documents` of a test: every pod and node there is, by name."""

    def __init__(self, *, is_there: bool = True) -> None:
        self._is_there = is_there

    async def pod(self, namespace: str, name: str) -> bytes | None:
        return orjson.dumps({"metadata": {"namespace": namespace, "name": name}}) if self._is_there else None

    def node(self, name: str) -> bytes:
        return orjson.dumps({"metadata": {"name": name}, "status": {"whole": True}})

"""A Transport whose answers a test writes down, a clock on the event loop's time, and builders of API documents."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import orjson

from multisched.framework.ports import LeaseHolder
from multisched.model.wire import JSON, AnswerLostError, LineStream, Request, Response, TransportError

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class LoopClock:
    """Virtual time when the loop's time is virtual."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self.monotonic())


@dataclass(frozen=True, slots=True)
class Asked:
    """One request that was made."""

    method: str
    path: str
    query: Mapping[str, str]
    body: Any
    content_type: str
    timeout_s: float
    at: float


Step = bytes | float | Exception
"""Of a watch: a line, a silence in seconds, or how it breaks. The end of the steps is a clean close."""
Answer = Response | Exception


@dataclass(slots=True)
class ScriptedTransport:
    """Lists and watches are taken from the scripts in order; other requests go to `respond`."""

    lists: deque[Answer] = field(default_factory=deque)
    watches: deque[Sequence[Step] | Response | Exception] = field(default_factory=deque)
    respond: Callable[[Asked], Answer] | None = None
    latency_s: float = 0.0
    latency_of: Callable[[str], float] | None = None
    """By method; before `latency_s`."""
    asked: list[Asked] = field(default_factory=list)

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        content_type: str = JSON,
        accept: str = JSON,
        timeout_s: float = 0.0,
    ) -> Response:
        """Every request of a client names a bound of its own."""
        assert timeout_s > 0
        asked = self._note(method, path, body, content_type, timeout_s)
        await asyncio.sleep(self.latency_s if self.latency_of is None else self.latency_of(method))
        answer = self.respond(asked) if self.respond is not None else self.lists.popleft()
        if isinstance(answer, Exception):
            raise answer
        return answer

    @asynccontextmanager
    async def stream(
        self, path: str, *, connect_timeout_s: float = 5.0, idle_timeout_s: float = 90.0
    ) -> AsyncIterator[LineStream]:
        self._note("WATCH", path, None, JSON, connect_timeout_s)
        await asyncio.sleep(0)
        if not self.watches:
            await asyncio.Event().wait()
        script = self.watches.popleft()
        if isinstance(script, Exception):
            raise script
        if isinstance(script, Response):
            yield ScriptedStream(script.status, script.headers, script.body, (), idle_timeout_s)
        else:
            yield ScriptedStream(200, {}, b"", script, idle_timeout_s)

    def _note(self, method: str, path: str, body: bytes | None, content_type: str, timeout_s: float) -> Asked:
        parts = urlsplit(path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        document = orjson.loads(body) if body is not None else None
        asked = Asked(method, parts.path, query, document, content_type, timeout_s, asyncio.get_running_loop().time())
        self.asked.append(asked)
        return asked

    def of(self, method: str) -> list[Asked]:
        return [asked for asked in self.asked if asked.method == method]


@dataclass(slots=True)
class PipelinedScript(ScriptedTransport):
    """Answers requests that are sent together one after the other; an Exception ends the connection."""

    together: list[int] = field(default_factory=list)
    """How many requests each call of `request_all` sent."""

    async def request_all(self, requests: Sequence[Request], *, timeout_s: float) -> list[Response]:
        self.together.append(len(requests))
        responses: list[Response] = []
        try:
            for one in requests:
                how: Any = {"body": one.body, "content_type": one.content_type, "timeout_s": timeout_s}
                responses += [await self.request(one.method, one.path, **how)]
        except TransportError:
            if not responses:
                raise
        return responses


class ScriptedStream:
    """Plays the steps of one watch; a silence longer than the reader's patience breaks it, as a transport must."""

    def __init__(
        self, status: int, headers: Mapping[str, str], body: bytes, steps: Iterable[Step], idle_timeout_s: float
    ) -> None:
        self.status = status
        self.headers = headers
        self._body = body
        self._steps = steps
        self._idle_timeout_s = idle_timeout_s

    async def read_body(self) -> bytes:
        return self._body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for step in self._steps:
            if isinstance(step, bytes):
                yield step
            elif isinstance(step, Exception):
                raise step
            else:
                await asyncio.sleep(min(step, self._idle_timeout_s))
                if step > self._idle_timeout_s:
                    raise AnswerLostError(f"silent for {self._idle_timeout_s} s")


@dataclass(slots=True)
class Mirror:
    """A reflector's handler that keeps key to resourceVersion and remembers every call."""

    objects: dict[str, str] = field(default_factory=dict)
    calls: list[tuple[str, str]] = field(default_factory=list)
    replacements: list[str] = field(default_factory=list)

    def upsert(self, key: str, raw: msgspec.Raw) -> None:
        self.objects[key] = orjson.loads(bytes(raw))["metadata"]["resourceVersion"]
        self.calls.append(("upsert", key))

    def delete(self, key: str, raw: msgspec.Raw | None) -> None:
        del self.objects[key]
        self.calls.append(("vanish" if raw is None else "delete", key))

    def replaced(self, version: str) -> None:
        self.replacements.append(version)


def an_object(name: str, version: int | str, uid: str = "", namespace: str = "default") -> dict[str, Any]:
    metadata = {"name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    if namespace:
        metadata["namespace"] = namespace
    return {"metadata": metadata, "spec": {"x": [1, 2, {"y": "z"}]}}


def a_list(version: int | str, *objects: dict[str, Any], continue_token: str = "") -> Response:
    metadata = {"resourceVersion": str(version), "continue": continue_token}
    return answer(200, {"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": list(objects)})


def a_line(kind: str, document: dict[str, Any]) -> bytes:
    return orjson.dumps({"type": kind, "object": document})


def a_bookmark(version: int) -> bytes:
    return a_line("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": str(version)}})


def a_status(code: int, reason: str = "", message: str = "") -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "code": code, "reason": reason, "message": message}


def answer(status: int, document: Any, **headers: str) -> Response:
    return Response(status, orjson.dumps(document), {name.replace("_", "-"): value for name, value in headers.items()})


def a_refusal(code: int, reason: str = "", message: str = "", **headers: str) -> Response:
    return answer(code, a_status(code, reason, message), **headers)


class Lease(LeaseHolder):
    """Held as long as the test says."""

    def __init__(self) -> None:
        self.is_held = True

    def may_bind(self) -> bool:
        return self.is_held

"""A transport between the program and the embedded cluster that goes wrong in named ways, drawn from a seed.

Every fault that is injected is counted in `Faults.injected`, so that a run can show which ones it has met.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from multisched.model.wire import JSON, AnswerLostError, ConnectFailedError, LineStream, Response, Transport

LATENCY_MIN_S, LATENCY_MAX_S = 0.0005, 0.02
LATE_APPLY_MAX_S = 4.0

BindSeen = Callable[[str, bytes, Response], None]
"""(path, body, answer) of each binding that reached the server, at the moment it was applied."""


class Faults:
    """How likely each fault is while `is_on`; `injected` counts what was done."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.is_on = True
        self.bind_lost_before = 0.05
        """The binding never arrived; the client cannot know."""
        self.bind_lost_after = 0.05
        """The binding was applied; the answer got lost."""
        self.bind_late = 0.03
        """The answer got lost first; the binding is applied seconds later."""
        self.refused = 0.02
        self.throttled = 0.03
        self.line_duplicated = 0.03
        self.line_replayed = 0.02
        """An older line comes again, after newer ones."""
        self.line_truncated = 0.003
        self.injected: Counter[str] = Counter()

    def strikes(self, name: str, probability: float) -> bool:
        if self.is_on and self.rng.random() < probability:
            self.injected[name] += 1
            return True
        return False


class FaultyTransport:
    """Implements `wire.Transport`. `cut()` severs it for good, as a killed process or an isolated host."""

    def __init__(self, inner: Transport, faults: Faults, bind_seen: BindSeen) -> None:
        self._inner = inner
        self._faults = faults
        self._bind_seen = bind_seen
        self._is_cut = False
        self._late: set[asyncio.Task[None]] = set()

    def cut(self) -> None:
        self._is_cut = True

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        content_type: str = JSON,
        accept: str = JSON,
        timeout_s: float = 30.0,
    ) -> Response:
        await self._travel()
        if self._faults.strikes("refused connection", self._faults.refused):
            raise ConnectFailedError("connection refused (injected)")
        if method != "GET" and self._faults.strikes("429", self._faults.throttled):
            return Response(429, b'{"kind":"Status","status":"Failure","code":429}', {"retry-after": "1"})
        if "/binding" in path and body is not None:
            return await self._bind(path, body, content_type, timeout_s)
        answer = await self._inner.request(
            method, path, body=body, content_type=content_type, accept=accept, timeout_s=timeout_s
        )
        await self._travel()
        return answer

    async def _bind(self, path: str, body: bytes, content_type: str, timeout_s: float) -> Response:
        faults = self._faults
        if faults.strikes("bind lost, not applied", faults.bind_lost_before):
            await asyncio.sleep(timeout_s)
            raise AnswerLostError("no answer (injected, not applied)")
        if faults.strikes("bind lost, applied late", faults.bind_late):
            delay_s = faults.rng.uniform(0.0, min(LATE_APPLY_MAX_S, timeout_s))
            task = asyncio.get_running_loop().create_task(self._apply_late(path, body, content_type, delay_s))
            self._late.add(task)
            task.add_done_callback(self._late.discard)
            await asyncio.sleep(faults.rng.uniform(0.0, delay_s))
            raise AnswerLostError("no answer (injected, applied late)")
        answer = await self._apply(path, body, content_type)
        if faults.strikes("bind lost, applied", faults.bind_lost_after):
            await asyncio.sleep(timeout_s)
            raise AnswerLostError("no answer (injected, applied)")
        await self._travel()
        return answer

    async def _apply_late(self, path: str, body: bytes, content_type: str, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        await self._apply(path, body, content_type)

    async def _apply(self, path: str, body: bytes, content_type: str) -> Response:
        answer = await self._inner.request("POST", path, body=body, content_type=content_type)
        self._bind_seen(path, body, answer)
        return answer

    async def _travel(self) -> None:
        if self._is_cut:
            raise AnswerLostError("cut off")
        await asyncio.sleep(self._faults.rng.uniform(LATENCY_MIN_S, LATENCY_MAX_S))
        if self._is_cut:
            raise AnswerLostError("cut off")

    @asynccontextmanager
    async def stream(
        self, path: str, *, connect_timeout_s: float = 5.0, idle_timeout_s: float = 90.0
    ) -> AsyncIterator[LineStream]:
        await self._travel()
        if self._faults.strikes("refused connection", self._faults.refused):
            raise ConnectFailedError("connection refused (injected)")
        async with self._inner.stream(
            path, connect_timeout_s=connect_timeout_s, idle_timeout_s=idle_timeout_s
        ) as inner:
            yield _FaultyLines(inner, self._faults, lambda: self._is_cut)


class _FaultyLines:
    """A watch whose lines come late, twice, again, cut short, or no more."""

    def __init__(self, inner: LineStream, faults: Faults, is_cut: Callable[[], bool]) -> None:
        self.status = inner.status
        self.headers: Mapping[str, str] = inner.headers
        self._inner = inner
        self._faults = faults
        self._is_cut = is_cut

    async def read_body(self) -> bytes:
        return await self._inner.read_body()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        earlier: list[bytes] = []
        async for line in self._inner:
            if self._is_cut():
                raise AnswerLostError("cut off")
            faults = self._faults
            if faults.strikes("truncated line", faults.line_truncated):
                yield line[: len(line) // 2]
                raise AnswerLostError("connection reset (injected)")
            yield line
            if faults.strikes("duplicated line", faults.line_duplicated):
                yield line
            if earlier and faults.strikes("replayed line", faults.line_replayed):
                yield faults.rng.choice(earlier)
            if b'"BOOKMARK"' not in line and b'"DELETED"' not in line:
                earlier = [*earlier[-7:], line]

"""Watches with faults: refused, ended, and with events that are late, repeated, truncated or lost."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Protocol

from multisched.model.wire import AnswerLostError, LineStream, Response
from tests.kit.wire.faults import KEPT, Faults, garbled

EARLIER_LINES, REPLAYED_LINES = 64, 8
"""Numbers of earlier events that may be repeated: after a deletion of their object, and at any time."""
REPLAYED_AT_ONCE = 3
"""Number of consecutive events that are repeated, as by a watch that restarts a little earlier."""
_UID = re.compile(rb'"uid":"([^"]+)"')
_ETCD_AWAY = (
    b'{"type":"ERROR","object":{"kind":"Status","status":"Failure","code":500,"message":"etcd is away (injected)"}}'
)


class Connection(Protocol):
    """The connection of a watch."""

    async def stall(self, *, is_about_pods: bool) -> None:
        """Returns when the next event may be delivered."""
        ...

    def truncates(self, line: bytes) -> bool: ...

    def lost(self, uid: bytes) -> None:
        """Called when an event of this object was silently dropped."""
        ...


class RefusedWatch:
    """A watch that the server has refused."""

    def __init__(self, answer: Response) -> None:
        self.status = answer.status
        self.headers: Mapping[str, str] = answer.headers
        self._answer = answer

    async def read_body(self) -> bytes:
        return self._answer.body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        raise AssertionError("nobody reads lines of a watch that is not open")
        yield b""


class FaultyLines:
    """A watch whose events are late, repeated, truncated or lost."""

    def __init__(self, inner: LineStream, faults: Faults, connection: Connection, *, is_about_pods: bool) -> None:
        self.status = inner.status
        self.headers: Mapping[str, str] = inner.headers
        self._inner = inner
        self._faults = faults
        self._connection = connection
        self._is_about_pods = is_about_pods

    async def read_body(self) -> bytes:
        return await self._inner.read_body()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        earlier: deque[bytes] = deque(maxlen=EARLIER_LINES)
        async for line in self._inner:
            await self._connection.stall(is_about_pods=self._is_about_pods)
            faults = self._faults
            if self._connection.truncates(line):
                yield line[: len(line) // 2]
                continue
            if faults.strikes("truncated line", faults.line_truncated):
                yield line[: len(line) // 2]
                raise AnswerLostError("connection reset (injected)")
            if faults.strikes("watch failed", faults.watch_failed):
                yield _ETCD_AWAY
                return
            if faults.strikes("watch ended", faults.watch_ended):
                return
            if self._may_lose(line) and faults.strikes("lost line", self._loss_of(line)):
                self._connection.lost(_uid(line))
                continue
            line = garbled(line)
            yield line
            if faults.strikes("duplicated line", faults.line_duplicated):
                yield line
            if earlier and faults.strikes("replayed line", faults.line_replayed):
                at = faults.rng.choice(range(len(earlier))[-REPLAYED_LINES:])
                for old in list(earlier)[at : at + REPLAYED_AT_ONCE]:
                    yield old
            if b'"DELETED"' in line:
                uid = b'"uid":"%b"' % _uid(line)
                again = [old for old in earlier if uid in old and _uid(old) == _uid(line)]
                if again and faults.strikes("resurrected line", faults.line_resurrected):
                    yield again[-1]
            elif b'"BOOKMARK"' not in line:
                earlier.append(line)

    def _loss_of(self, line: bytes) -> float:
        is_unheard = any(f'"name":"{name}"'.encode() in line for name in self._faults.undelivered_pods)
        return 1.0 if is_unheard else self._faults.line_lost

    def _may_lose(self, line: bytes) -> bool:
        is_word = b'"BOOKMARK"' in line or b'"ERROR"' in line
        return self._is_about_pods and not is_word and not any(name in line for name in KEPT)


def _uid(line: bytes) -> bytes:
    """Returns the uid of the object of an event: its own uid precedes those of its owners."""
    match = _UID.search(line)
    return match[1] if match is not None else b""

"""One urgent write with a deadline: what binds, the writes of preemption and evictions have in common.

The write is sent once and before its deadline, or not at all. The server drops it at the deadline too, so a late write
of an old leader has no effect (I9). What an answer means is the caller's to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from multisched.client.limits import WriteLimiter
from multisched.client.paths import within
from multisched.model.wire import JSON, ConnectFailedError, Response, Transport

ANSWER_GRACE_S: Final = 1.0
"""The client waits this much longer than the server's own deadline, so that the server's verdict can still arrive."""


class OutOfTimeError(ConnectFailedError):
    """The limiter held the write up until its deadline."""

    def __init__(self) -> None:
        super().__init__("the limit of writes left no time")


class VoidError(ConnectFailedError):
    """While the limiter held the write up, what it was decided on has changed."""

    def __init__(self) -> None:
        super().__init__("it was held up by the limit of writes, and may not be sent any more")


async def write_in_time(
    transport: Transport,
    limiter: WriteLimiter,
    method: str,
    path: str,
    body: bytes,
    *,
    timeout_s: float,
    content_type: str = JSON,
    is_void: Callable[[], bool] = lambda: False,
) -> Response:
    """Waiting for the limiter counts, as for a bind: the caller looked at its lease when it called. `path` has no query.

    `is_void`: asked after a wait, whether the write must not be sent any more. Raises ConnectFailedError where certainly nothing
    happened (OutOfTimeError and VoidError among it), TransportError where it may have.
    """
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    has_waited = await limiter.enter_bind()
    try:
        if has_waited and is_void():
            raise VoidError
        left_s = deadline_s - loop.time()
        if left_s <= 0:
            raise OutOfTimeError
        return await transport.request(
            method,
            within(path, left_s),
            body=body,
            content_type=content_type,
            timeout_s=left_s + ANSWER_GRACE_S,
        )
    finally:
        limiter.leave_bind()

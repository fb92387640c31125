"""One urgent write with a deadline, as used for binds, the writes of preemption, and evictions.

The write is sent once and before its deadline, or not at all. The server drops it at the deadline too, so a late write
of an old leader has no effect (I9). The caller interprets the response.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from multisched.client.limits import WriteLimiter
from multisched.client.paths import within
from multisched.model.wire import JSON, ConnectFailedError, Response, Transport

ANSWER_GRACE_S: Final = 1.0
"""The client waits this much longer than the server's own deadline, so that the server's response can still arrive."""


class OutOfTimeError(ConnectFailedError):
    """The limiter delayed the write until its deadline."""

    def __init__(self) -> None:
        super().__init__("the write limit left no time")


class VoidError(ConnectFailedError):
    """While the limiter delayed the write, the reason for it became invalid."""

    def __init__(self) -> None:
        super().__init__("the write limit delayed it until it was no longer valid")


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
    """Sends the write. The deadline counts from the call, at which the caller checked its lease, so waiting for the
    limiter is included. `path` has no query.

    `is_void`: called after a wait; returns True if the write must not be sent any more. Raises ConnectFailedError if
    certainly nothing happened (including OutOfTimeError and VoidError), TransportError if something may have.
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

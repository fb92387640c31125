"""Retry rules common to the background writers of Events and conditions: how often a write is tried, and when again."""

from __future__ import annotations

from typing import Final

from multisched.client.errors import retry_after_s
from multisched.client.limits import WriteLimiter
from multisched.model.wire import Response

ATTEMPTS_MAX: Final = 4
RETRY_DELAY_S: Final = 1.0
WRITE_TIMEOUT_S: Final = 10.0


def wait_after_loss_s(attempt: int) -> float:
    """Returns the seconds to wait if attempt number `attempt`, counted from 0, got no response."""
    return RETRY_DELAY_S * (1 << attempt)


def is_definite(response: Response) -> bool:
    """Returns whether a retry would get the same response."""
    return response.status != 429 and response.status < 500


def wait_after_s(response: Response, limiter: WriteLimiter) -> float:
    """Returns the seconds to wait after a response that is not definite. Reports a 429 to `limiter`."""
    wait_s = max(retry_after_s(response), RETRY_DELAY_S)
    if response.status == 429:
        limiter.note_throttled(wait_s)
    return wait_s

"""What writes in the background have in common, of Events and of conditions: how often they are tried, and when again."""

from __future__ import annotations

from typing import Final

from multisched.client.errors import retry_after_s
from multisched.client.limits import WriteLimiter
from multisched.model.wire import Response

ATTEMPTS_MAX: Final = 4
RETRY_DELAY_S: Final = 1.0
WRITE_TIMEOUT_S: Final = 10.0


def wait_after_loss_s(attempt: int) -> float:
    """The answer to this attempt, counted from 0, was lost."""
    return RETRY_DELAY_S * (1 << attempt)


def is_definite(response: Response) -> bool:
    """True for an answer that trying again would not change."""
    return response.status != 429 and response.status < 500


def wait_after_s(response: Response, limiter: WriteLimiter) -> float:
    """After an answer that is not definite. `limiter` hears of a 429."""
    wait_s = max(retry_after_s(response), RETRY_DELAY_S)
    if response.status == 429:
        limiter.note_throttled(wait_s)
    return wait_s

"""The checkpoint hook: one HTTPS POST for each notice, so that a job can save its work before it is evicted.

The URL comes from the configuration only: no pod can name one. The client is that of HTTP extenders, so a call ends within its timeout,
certificates are verified, the answer is not read beyond ANSWER_BYTES_MAX, and redirects are not followed: the request names pods, and
must not go to a server that the configuration does not name. A failed call is reported and changes nothing: the deadline stays. A call
that certainly did not reach the server is made again until the deadline.

    POST <url>
    {"notice": "5c0f…", "gang": "ml/train", "deadline": "2026-11-29T11:40:00.000000Z", "for": "inference: …",
     "pods": [{"namespace": "ml", "name": "train-0", "uid": "…", "node": "a"}]}

An answer other than 200 is a failure; its body is ignored. After a failover the call may be repeated, with the same `notice`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final
from urllib.parse import urlsplit

import msgspec
import orjson

from domains.gpu.tide.notices import Notice
from domains.gpu.tide.settings import HookSettings
from multisched.framework.ports import ExtenderClient, ExtenderError, ExtenderSettings, ExtenderTrust
from multisched.model.objects import Pod

ANSWER_BYTES_MAX: Final = 4096
ERROR_CHARS_MAX: Final = 300
CALLS_MAX: Final = 16
"""Calls in progress; further ones wait for their turn."""

OpenClient = Callable[[ExtenderSettings], ExtenderClient]


class HookOutcome(Enum):
    """The result of a call; the values are label values of metrics."""

    ANSWERED = "answered"
    FAILED = "failed"
    NOT_SENT = "not_sent"
    """The server certainly did not get the request."""


class HookReply(msgspec.Struct, frozen=True):
    """The result of one call; `message` says why it failed."""

    outcome: HookOutcome
    message: str = ""


class Hook:
    """The client of the hook. Raises ExtenderError on creation if its certificates cannot be read."""

    def __init__(self, settings: HookSettings, open_client: OpenClient) -> None:
        base, self._last = _split(settings.url)
        trust = ExtenderTrust(ca_file=settings.ca_file)
        self._client = open_client(ExtenderSettings(base, timeout_s=settings.timeout_s, trust=trust))

    async def call(self, notice: Notice, pods: Iterable[Pod]) -> HookReply:
        """Makes one call. Never raises for what the server does."""
        try:
            await self._client.post(self._last, _body(notice, pods), answer_bytes_max=ANSWER_BYTES_MAX)
        except ExtenderError as error:
            outcome = HookOutcome.FAILED if error.was_sent else HookOutcome.NOT_SENT
            return HookReply(outcome, str(error)[:ERROR_CHARS_MAX])
        return HookReply(HookOutcome.ANSWERED)

    async def close(self) -> None:
        await self._client.close()


def _split(url: str) -> tuple[str, str]:
    """Returns the URL before its last slash, and the rest: the client puts a slash between them."""
    if not urlsplit(url).path:
        return url, ""
    base, _, last = url.rpartition("/")
    return base, last


def _body(notice: Notice, pods: Iterable[Pod]) -> bytes:
    shown = orjson.loads(notice.text)
    named = [{"namespace": p.namespace, "name": p.name, "uid": p.uid, "node": p.node} for p in pods]
    found = {"notice": notice.id, "gang": notice.gang, "deadline": shown["deadline"], "for": notice.for_demand}
    return orjson.dumps({**found, "pods": named})

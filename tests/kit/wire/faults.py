"""The probability of each fault of the connection, and the number of faults so far.

Every injected fault is counted in `Faults.injected`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Protocol

from multisched.model.wire import Response

THROTTLED, FORBIDDEN, REFUSED, LOST, APPLIED, LATE, LATE_500, LATE_408 = (
    "429",
    "403",
    "refused",
    "lost",
    "applied",
    "applied late",
    "applied late, 500",
    "applied late, 408",
)
"""Scripted results of a binding. The response is lost for LOST to LATE; the last two are answered at once."""
MARK = b"GARBLED"
"""Text in the labels of an object that is delivered as invalid UTF-8."""
MALFORMED = b"MALFORMED"
"""The same for an object that is delivered as JSON with a wrong type."""
_NOTE = b'"note":"MALFORMED"'
FOREIGN = "foreign-"
"""Prefix of the names of pods that other clients bind."""
CARDED = "carded-"
"""Prefix of the names of pods that a device plugin serves."""
KEPT = tuple(f'"name":"{prefix}'.encode() for prefix in (FOREIGN, CARDED))
"""Watch events with these names are never lost silently: no process could know of the bind, or of the device plugin's result."""


class BindWatcher(Protocol):
    """Receives every binding when it is sent, takes effect, and is answered."""

    def on_bind_sent(self, sender: str, path: str, body: bytes) -> None: ...

    def on_bind_applied(self, path: str, body: bytes, answer: Response) -> None: ...

    def on_bind_faked(self, body: bytes) -> None:
        """Called if the sender gets success for a binding that was never stored."""
        ...

    def on_bind_answered(self, sender: str, body: bytes, answer: Response | None) -> None:
        """Called with the sender's response; None if it was lost."""
        ...

    def on_eviction_sent(self, sender: str, path: str) -> None:
        """Called when a deletion of a pod is sent."""
        ...

    def on_line_lost(self, sender: str, uid: str) -> None:
        """Called when the sender's watch has silently dropped an event of this pod."""
        ...

    def on_claim_answered(self, sender: str, path: str, answer: Response) -> None:
        """Called with the response to a write of a claim."""
        ...

    def on_pod_status_sent(self, sender: str, body: bytes) -> None:
        """Called when the status of a pod is written."""
        ...

    def on_object_status_sent(self, sender: str, path: str) -> None:
        """Called when the status of another object is written."""
        ...

    def on_lease_read(self, sender: str, path: str) -> None:
        """Called when a lease is read."""
        ...


class Faults:
    """The probability of each fault while `is_on`; `injected` counts faults by name."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.is_on = True
        self.bind_lost_before = 0.05
        """The binding is not stored, and the response is lost."""
        self.bind_lost_after = 0.05
        """The binding is stored, and the response is lost."""
        self.bind_late = 0.03
        """The response is lost first; the binding is stored seconds later."""
        self.bind_faked = 0.01
        """The binding is not stored; the client gets success."""
        self.refused = 0.02
        self.throttled = 0.03
        self.line_duplicated = 0.03
        self.line_replayed = 0.02
        """An older event is delivered again, after newer ones."""
        self.line_truncated = 0.003
        self.line_lost = 0.004
        """A watch silently drops an event of a pod, and continues."""
        self.line_resurrected = 0.1
        """After a deletion an older event of the same object is delivered again."""
        self.bind_rejected = 0.03
        """A webhook refuses the binding; it is not stored."""
        self.timed_out = 0.01
        """Any other write is answered with 504, and stored or not."""
        self.cut = 0.005
        """The same without a response."""
        self.page_expired = 0.05
        """The remaining pages of a list have expired."""
        self.bind_missing = 0.0
        """The binding is not stored; the client gets 404."""
        self.paged = 0.004
        """A proxy answers a read with its own page, with any status."""
        self.read_throttled = 0.005
        self.torn = 0.01
        """A page of a list has another resourceVersion than the first one."""
        self.watch_failed = 0.001
        """A watch ends with an error of the server."""
        self.watch_ended = 0.002
        """The server ends a watch, as it does regularly."""
        self.watch_refused = 0.03
        """A watch is not opened."""
        self.lease_failed = 0.0
        """A lease request fails in some way, stored or not."""
        self.eviction_failed = 0.25
        """The same for evictions, which are few."""
        self.document_failed = 0.15
        """The same for documents that plugins keep in ConfigMaps."""
        self.forbidden: set[str] = set()
        """Plurals of kinds that may not be listed."""
        self.forbidden_writes: set[tuple[str, str]] = set()
        """(method, part of the path) of writes that are forbidden."""
        self.unreachable: set[str] = set()
        """Parts of paths: writes there cannot connect."""
        self.unanswered: set[str] = set()
        """Parts of paths: writes there are stored, and the response is lost."""
        self.answers: dict[str, Response] = {}
        """Part of a path -> answer to writes there, which are not stored, also while other faults are off."""
        self.page_items = 0
        """Objects in each page of a list; 0: as requested."""
        self.older_by = 0
        """Age of lists in versions, relative to `newest`."""
        self.newest: Callable[[], int] = lambda: 0
        self.bind_max_s = 0.0
        """Maximum duration of a binding, in addition to the latency."""
        self.slow_nodes: set[str] = set()
        """Bindings to these nodes take seconds."""
        self.bind_answers: dict[str, Iterator[str]] = {}
        """Pod name -> scripted results of its bindings, also while other faults are off."""
        self.undelivered_pods: set[str] = set()
        """Names of pods whose events no watch delivers."""
        self.injected: Counter[str] = Counter()

    def strikes(self, name: str, probability: float) -> bool:
        if self.is_on and self.rng.random() < probability:
            self.injected[name] += 1
            return True
        return False


def garbled(body: bytes) -> bytes:
    """Returns the body with invalid UTF-8 in place of MARK, and a number in place of the text MALFORMED."""
    if MALFORMED in body:
        body = body.replace(_NOTE, b'"note":7')
    return body.replace(MARK, b"\xff\xfe") if MARK in body else body

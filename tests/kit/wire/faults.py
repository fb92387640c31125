"""How likely each fault of the wire is at a moment, and which have been met.

Every fault that is injected is counted in `Faults.injected`, so that a run can show which ones it has met.
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
"""How a binding may fare as scripted. Of those in the middle the answer is lost; the last two are answered at once."""
MARK = b"GARBLED"
"""What stands in the labels of an object that no answer tells in UTF-8."""
MALFORMED = b"MALFORMED"
"""The same of one that is JSON, and no Kubernetes object."""
_NOTE = b'"note":"MALFORMED"'
FOREIGN = "foreign-"
"""Names of pods that others bind start so."""
CARDED = "carded-"
"""The same of pods that a device plugin serves."""
KEPT = tuple(f'"name":"{prefix}'.encode() for prefix in (FOREIGN, CARDED))
"""Lines with these are never lost silently: nobody can know of such a bind, or of what the plugin answered, then."""


class BindWatcher(Protocol):
    """Sees every binding on its way: as it leaves the process, takes effect, and is answered."""

    def on_bind_sent(self, sender: str, path: str, body: bytes) -> None: ...

    def on_bind_applied(self, path: str, body: bytes, answer: Response) -> None: ...

    def on_bind_faked(self, body: bytes) -> None:
        """The sender gets success for a binding that never arrived."""
        ...

    def on_bind_answered(self, sender: str, body: bytes, answer: Response | None) -> None:
        """What the sender got; None: it cannot know."""
        ...

    def on_eviction_sent(self, sender: str, path: str) -> None:
        """The sender asks a pod to go."""
        ...

    def on_line_lost(self, sender: str, uid: str) -> None:
        """The sender's watch has dropped a line about this pod without a word."""
        ...

    def on_claim_answered(self, sender: str, path: str, answer: Response) -> None:
        """The same of a claim that the sender has written."""
        ...

    def on_pod_status_sent(self, sender: str, body: bytes) -> None:
        """The sender writes the status of a pod."""
        ...

    def on_object_status_sent(self, sender: str, path: str) -> None:
        """The sender writes the status of anything else."""
        ...

    def on_lease_read(self, sender: str, path: str) -> None:
        """The sender learns what a lease says."""
        ...


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
        self.bind_faked = 0.01
        """The binding never arrived; the client gets success."""
        self.refused = 0.02
        self.throttled = 0.03
        self.line_duplicated = 0.03
        self.line_replayed = 0.02
        """An older line comes again, after newer ones."""
        self.line_truncated = 0.003
        self.line_lost = 0.004
        """A watch drops a line about a pod without a word, and goes on."""
        self.line_resurrected = 0.1
        """After a deletion an older line of the same object comes again."""
        self.bind_rejected = 0.03
        """A webhook refuses the binding: nothing happened."""
        self.timed_out = 0.01
        """Any other write is answered 504, and applied or not."""
        self.cut = 0.005
        """The same, with no answer at all."""
        self.page_expired = 0.05
        """The rest of a list is not to be had any more."""
        self.bind_missing = 0.0
        """The binding never arrived; the client gets that there is no such pod."""
        self.paged = 0.004
        """A proxy answers a read with a page of its own, whatever the status says."""
        self.read_throttled = 0.005
        self.torn = 0.01
        """A page of a list says that it is of another version than the first."""
        self.watch_failed = 0.001
        """A watch ends with an error of the server's own."""
        self.watch_ended = 0.002
        """The server ends a watch, as it does with each after some minutes."""
        self.watch_refused = 0.03
        """A watch is not opened."""
        self.lease_odd = 0.0
        """A call about a lease fails in some way, applied or not."""
        self.evict_odd = 0.25
        """The same of an eviction; there are few of them."""
        self.kept_odd = 0.15
        """The same of what a plugin keeps in a ConfigMap."""
        self.forbidden: set[str] = set()
        """Kinds, by their plural, that may not be listed."""
        self.forbidden_writes: set[tuple[str, str]] = set()
        """(method, part of the path) of what may not be written."""
        self.unreachable: set[str] = set()
        """Parts of paths: writes there are not taken."""
        self.unanswered: set[str] = set()
        """Parts of paths: writes there are done, and nobody hears of it."""
        self.page_items = 0
        """So many objects come with each page of a list; 0: as many as were asked for."""
        self.older_by = 0
        """Lists are so many versions old, counted from `newest`."""
        self.newest: Callable[[], int] = lambda: 0
        self.bind_max_s = 0.0
        """Beside its way, a binding takes up to so long."""
        self.slow_nodes: set[str] = set()
        """Bindings to these nodes take seconds."""
        self.bind_answers: dict[str, Iterator[str]] = {}
        """Name of a pod -> how its bindings fare, one after the other, whether other faults are on or not."""
        self.undelivered_pods: set[str] = set()
        """Names of pods of which no watch tells anything."""
        self.injected: Counter[str] = Counter()

    def strikes(self, name: str, probability: float) -> bool:
        if self.is_on and self.rng.random() < probability:
            self.injected[name] += 1
            return True
        return False


def garbled(body: bytes) -> bytes:
    """Not UTF-8 where it says MARK, and a number where a text belongs where it says MALFORMED."""
    if MALFORMED in body:
        body = body.replace(_NOTE, b'"note":7')
    return body.replace(MARK, b"\xff\xfe") if MARK in body else body

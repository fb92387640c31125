"""The bind outcome machine: what each response to a bind means, and what to do next.

It takes responses and returns actions; it does no I/O and reads no clock. After an UNKNOWN outcome, the bind is sent
to the same node only, until a definite response arrives. No timer ever forgets a pod.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

import msgspec

from multisched.framework.ports import BindAnswer, BindReply, PodTruth

PAUSE_INITIAL_S = 0.25
PAUSE_MAX_S = 5.0
UNSENT_ATTEMPTS_MAX = 4
"""Failed connections after which a bind ends as REFUSED, unless an earlier POST may have taken effect."""

THROTTLED_ATTEMPTS_MAX = 20
"""Responses with status 429 after which a bind ends as REFUSED, unless an earlier POST may have taken effect."""


class Outcome(Enum):
    """How a bind ended."""

    BOUND = auto()
    """The pod is bound to our node. It stays assumed until the watch confirms it."""
    GONE = auto()
    """The pod was deleted, is being deleted, or was replaced by another pod of that name."""
    FOREIGN = auto()
    """Another scheduler bound the pod to another node. The watch accounts for it there."""
    REFUSED = auto()
    """The pod is certainly not bound. The caller forgets the assumption and retries later."""


class Step(Enum):
    POST = auto()
    READ = auto()
    END = auto()


class Action(msgspec.Struct, frozen=True):
    """The next step, to be taken after `pause_s`. At END, `outcome` and `message` describe the result."""

    step: Step
    pause_s: float = 0.0
    outcome: Outcome | None = None
    message: str = ""


class BindMachine:
    """One pod's bind to one node, from the first POST to a definite outcome."""

    def __init__(self, uid: str, node: str, *, bind_deadline_s: float) -> None:
        self._uid = uid
        self._node = node
        self._bind_deadline_s = bind_deadline_s
        self._failures = self._throttled = self._unsent = 0
        self._was_read_unbound = False
        self._failure = ""
        self.is_unknown = False
        """True if a POST may have taken effect or may yet do so. Only the outcome of that POST may then free the row (I2)."""

    def first(self) -> Action:
        return _FIRST

    def on_reply(self, reply: BindReply) -> Action:
        """Returns the next action after the response to a POST."""
        match reply.answer:
            case BindAnswer.CREATED:
                return _BOUND
            case BindAnswer.NOT_FOUND:
                # A wrong 404, from a proxy, would free the row although an earlier POST may have bound the pod: read the pod first.
                return Action(Step.READ) if self.is_unknown else _end(Outcome.GONE, reply.message)
            case BindAnswer.CONFLICT:
                return Action(Step.READ)
            case BindAnswer.DELEGATED:
                self.is_unknown = True
                self._was_read_unbound = False
                self._failure = reply.message
                return Action(Step.READ)
            case BindAnswer.UNKNOWN:
                self.is_unknown = True
                self._was_read_unbound = False
                return Action(Step.POST, self._pause())
            case BindAnswer.THROTTLED:
                self._throttled += 1
                is_last = self._throttled >= THROTTLED_ATTEMPTS_MAX
                return self._again(reply, max(reply.retry_after_s, self._pause()), is_last=is_last)
            case BindAnswer.NOT_SENT:
                self._unsent += 1
                return self._again(reply, self._pause(), is_last=self._unsent >= UNSENT_ATTEMPTS_MAX)
            case BindAnswer.DENIED | BindAnswer.REJECTED:
                return Action(Step.READ, self._pause()) if self.is_unknown else _end(Outcome.REFUSED, reply.message)

    def on_failure(self, message: str) -> Action:
        """Returns the next action after the Bind plugin failed. It may have sent the bind: the pod is read, and no bind is sent again."""
        self.is_unknown = True
        self._was_read_unbound = False
        self._failure = message
        return Action(Step.READ, self._pause())

    def withdraw(self, message: str) -> Action:
        """Stops sending the bind. If a POST may have taken effect, the pod is read; otherwise the bind ends as REFUSED."""
        if not self.is_unknown:
            return _end(Outcome.REFUSED, message)
        return self.on_failure(message)

    def on_read(self, truth: PodTruth | None) -> Action:
        """Returns the next action after a consistent read of the pod. `truth`: None if the pod does not exist."""
        if truth is None or truth.uid != self._uid:
            return _end(Outcome.GONE, "the pod no longer exists")
        if truth.node:
            return _end(Outcome.BOUND if truth.node == self._node else Outcome.FOREIGN, f"bound to {truth.node}")
        if truth.is_deleting:
            return _end(Outcome.GONE, "the pod is being deleted")
        if self.is_unknown and not self._was_read_unbound:
            # An earlier POST may still be in flight. It ends at its server-side deadline; a read after that is definite.
            self._was_read_unbound = True
            return Action(Step.READ, self._bind_deadline_s)
        why = "the pod has scheduling gates" if truth.is_gated else "the API server refused the binding"
        return _end(Outcome.REFUSED, self._failure or why)

    def on_unreachable(self) -> Action:
        """Returns the next action after a read without a definite response: read again."""
        return Action(Step.READ, self._pause())

    def _again(self, reply: BindReply, pause_s: float, *, is_last: bool) -> Action:
        if is_last and not self.is_unknown:
            return _end(Outcome.REFUSED, reply.message)
        return Action(Step.POST, pause_s)

    def _pause(self) -> float:
        self._failures += 1
        return float(min(PAUSE_MAX_S, PAUSE_INITIAL_S * 2 ** (min(self._failures, 16) - 1)))


def _end(outcome: Outcome, message: str = "") -> Action:
    return Action(Step.END, outcome=outcome, message=message)


_FIRST: Final = Action(Step.POST)
_BOUND: Final = _end(Outcome.BOUND)

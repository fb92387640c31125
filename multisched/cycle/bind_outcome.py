"""The bind outcome machine: what each answer to a binding means, and what to do next (reference: reliability 3).

Answers in, actions out; no I/O, no clock. The rule that matters: after an UNKNOWN outcome only the same node is asked
for again, until a definite answer comes. No timer ever forgets a pod.
"""

from __future__ import annotations

from enum import Enum, auto

import msgspec

from multisched.framework.ports import BindAnswer, BindReply, PodTruth

PAUSE_INITIAL_S = 0.25
PAUSE_MAX_S = 5.0
UNSENT_ATTEMPTS_MAX = 4
"""Refused connections after which a bind that was never sent is given up and its pod goes back to the queue."""

THROTTLED_ATTEMPTS_MAX = 20
"""Answers of 429 after which a bind is given up."""


class Outcome(Enum):
    """How a bind ended."""

    BOUND = auto()
    """On our node: keep it assumed until the watch confirms."""
    GONE = auto()
    """The pod no longer exists, is being deleted, or is another pod of that name."""
    FOREIGN = auto()
    """Another scheduler bound it elsewhere; the watch accounts for it there."""
    REFUSED = auto()
    """Certainly not bound: forget and try again later."""


class Step(Enum):
    POST = auto()
    READ = auto()
    END = auto()


class Action(msgspec.Struct, frozen=True):
    """Do `step` after `pause_s`; at END `outcome` and `message` say how."""

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
        """A POST may have been applied, or may yet be: nothing but its own outcome may free the row (I2)."""

    def first(self) -> Action:
        return Action(Step.POST)

    def on_reply(self, reply: BindReply) -> Action:
        """The answer to a POST."""
        match reply.answer:
            case BindAnswer.CREATED:
                return _end(Outcome.BOUND)
            case BindAnswer.NOT_FOUND:
                # A false 404, from a proxy, would free the row of a bind that an earlier POST has made: a read decides.
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
        """The Bind plugin failed before or after it sent the binding: the truth is read, and nothing is sent again."""
        self.is_unknown = True
        self._was_read_unbound = False
        self._failure = message
        return Action(Step.READ, self._pause())

    def withdraw(self, message: str) -> Action:
        """Nothing more may be sent to the node: what was sent is waited for; a bind of which nothing was is refused."""
        if not self.is_unknown:
            return _end(Outcome.REFUSED, message)
        return self.on_failure(message)

    def on_read(self, truth: PodTruth | None) -> Action:
        """What a consistent read of the pod says."""
        if truth is None or truth.uid != self._uid:
            return _end(Outcome.GONE, "the pod no longer exists")
        if truth.node:
            return _end(Outcome.BOUND if truth.node == self._node else Outcome.FOREIGN, f"bound to {truth.node}")
        if truth.is_deleting:
            return _end(Outcome.GONE, "the pod is being deleted")
        if self.is_unknown and not self._was_read_unbound:
            # An earlier POST may still be on its way: it dies at its server-side deadline, then this read counts.
            self._was_read_unbound = True
            return Action(Step.READ, self._bind_deadline_s)
        why = "the pod has scheduling gates" if truth.is_gated else "the API server refused the binding"
        return _end(Outcome.REFUSED, self._failure or why)

    def on_unreachable(self) -> Action:
        """The read got no definite answer: the same question again."""
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

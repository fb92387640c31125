"""A placed pod on its way to the API server."""

from __future__ import annotations

import msgspec

from multisched.cycle.results import Placed, Unplaced
from multisched.framework.status import Status
from multisched.model.objects import Pod
from multisched.shell.binding.send_check import Seen


class Bind(msgspec.Struct):
    """From the moment the pod is assumed to a definite outcome."""

    placed: Placed
    attempts: int
    seen: Seen
    """What the decision was made of."""
    turned_back: Status | None = None
    """Why it must not be bound any more, though nothing was sent yet."""
    sent_with: str = ""
    """The gangs of which a binding may have been sent already, so that this one cannot undo the others; empty: none."""
    is_withdrawn: bool = False
    """The decision no longer held right before it would have been sent, and nothing was sent."""

    def named(self, domain: str) -> dict[str, object]:
        """What every log line about it says."""
        return {"pod": self.placed.pod.key, "domain": domain, "node": self.placed.node}


class Undone(msgspec.Struct, frozen=True):
    """A bind that was given up: the pod is unreserved and forgotten, and not yet back in its queue."""

    bind: Bind
    status: Status
    result: Unplaced
    held: Pod
    """The pod as it counted on its row."""

"""The state of one binding cycle."""

from __future__ import annotations

import msgspec

from multisched.cycle.results import Placed, Unplaced
from multisched.framework.status import Status
from multisched.model.objects import Pod
from multisched.shell.binding.send_check import DecisionState


class Bind(msgspec.Struct):
    """The binding cycle of one pod, from its assumption to a definite outcome."""

    placed: Placed
    attempts: int
    seen: DecisionState
    """The state that the decision was based on."""
    cancelled: Status | None = None
    """Why the pod must no longer be bound; set only while nothing has been sent."""
    sent_with: str = ""
    """Keys of the pod's gangs if binds of other members may have been sent, which a failure of this one does not undo; else empty."""
    is_withdrawn: bool = False
    """True if the last check found the decision invalid and the bind cannot have happened."""

    def named(self, domain: str) -> dict[str, object]:
        """Returns the fields of every log line about this bind."""
        return {"pod": self.placed.pod.key, "domain": domain, "node": self.placed.node}


class CancelledBind(msgspec.Struct, frozen=True):
    """A cancelled bind: the pod is unreserved and forgotten, and not yet requeued."""

    bind: Bind
    status: Status
    result: Unplaced
    held: Pod
    """The version of the pod that was accounted on its row."""

"""A placed pod on its way to the API server."""

from __future__ import annotations

import msgspec

from multisched.cycle.results import Placed
from multisched.framework.status import Status
from multisched.shell.binding.send_check import Seen


class Bind(msgspec.Struct):
    """From the moment the pod is assumed to a definite outcome."""

    placed: Placed
    attempts: int
    seen: Seen
    """What the decision was made of."""
    turned_back: Status | None = None
    """Why it must not be bound any more, though nothing was sent yet."""

    def named(self, domain: str) -> dict[str, object]:
        """What every log line about it says."""
        return {"pod": self.placed.pod.key, "domain": domain, "node": self.placed.node}

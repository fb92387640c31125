"""Whether a domain's cycles may take pods from its queue, and who sleeps until there is one to take."""

from __future__ import annotations

from multisched.shell.idle_workers import IdleWorkers


class Intake:
    """Open while the domain leads, knows what the cluster is like, and does not stop."""

    def __init__(self) -> None:
        self.is_leading = False
        self.is_held = False
        """True while nobody knows what the cluster is like: nothing is decided."""
        self.is_closing = False
        self._idle = IdleWorkers()

    @property
    def is_open(self) -> bool:
        return self.is_leading and not self.is_closing and not self.is_held

    @property
    def sleepers(self) -> int:
        """Cycles that wait for a pod."""
        return len(self._idle)

    def wake(self) -> None:
        """Something may be schedulable now."""
        self._idle.wake_one()

    async def sleep(self) -> None:
        """Until woken; may wake to find that another cycle was faster."""
        await self._idle.sleep()

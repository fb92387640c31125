"""Intake: tells the scheduling tasks of a domain whether they may pop pods, and wakes the sleeping ones."""

from __future__ import annotations

from multisched.shell.idle_workers import IdleWorkers


class Intake:
    """A gate, open while the domain leads, the cluster cache can be trusted, and the domain is not stopping."""

    def __init__(self) -> None:
        self.is_leading = False
        self.is_held = False
        """True while the cluster cache cannot be trusted: no pod is scheduled."""
        self.is_closing = False
        self._idle = IdleWorkers()

    @property
    def is_open(self) -> bool:
        return self.is_leading and not self.is_closing and not self.is_held

    @property
    def sleepers(self) -> int:
        """Number of scheduling tasks that sleep."""
        return len(self._idle)

    def wake(self) -> None:
        """Wakes one sleeping task, because a pod may be schedulable now."""
        self._idle.wake_one()

    async def sleep(self) -> None:
        """Waits until woken. Another task may have popped the pod by then."""
        await self._idle.sleep()

"""The lists of nodes and pods, and whether they are new enough to schedule with.

Owns the reflectors of nodes and pods, and the start time of their latest complete list.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping

from multisched.client.reflector import Reflector
from multisched.framework.ports import Clock
from multisched.shell.object_watch import ObjectWatch


class ClusterLists:
    """The first lists of all kinds, and relists of nodes and pods whose latest list is too old."""

    def __init__(self, reflectors: Mapping[str, Reflector], objects: ObjectWatch, clock: Clock) -> None:
        self._reflectors = reflectors
        self._objects = objects
        self._clock = clock
        self._dates_from_s = -math.inf
        self._relisting = asyncio.Lock()

    def begin(self) -> None:
        """Records the start of the first list."""
        self._dates_from_s = self._clock.monotonic()

    async def complete(self) -> None:
        """Waits until every kind has been listed for the first time, or its list was refused."""
        for reflector in self._reflectors.values():
            await reflector.wait_synced()
        await self._objects.wait_settled()

    async def see_all_binds_before(self, since_s: float) -> None:
        """Relists nodes and pods unless their latest list began at or after `since_s`.

        A standby's watch may lag behind the last leader's binds. Without a relist, a new leader would place pods on rows that the old
        leader has filled (I1).
        """
        async with self._relisting:
            if self._dates_from_s >= since_s:
                return
            began_s = self._clock.monotonic()
            for reflector in self._reflectors.values():
                await reflector.relist()
            self._dates_from_s = began_s

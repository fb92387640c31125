"""The lists of nodes and pods, and whether they are new enough to decide by.

Owns the reflectors of what every program watches, and the moment from which their latest whole list dates.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping

from multisched.client.reflector import Reflector
from multisched.framework.ports import Clock
from multisched.shell.object_watch import ObjectWatch


class ClusterLists:
    """Says whether the lists of nodes and pods are new enough; the objects' own lists are waited for only."""

    def __init__(self, reflectors: Mapping[str, Reflector], objects: ObjectWatch, clock: Clock) -> None:
        self._reflectors = reflectors
        self._objects = objects
        self._clock = clock
        self._dates_from_s = -math.inf
        self._relisting = asyncio.Lock()

    def begin(self) -> None:
        """The first list is about to be read."""
        self._dates_from_s = self._clock.monotonic()

    async def complete(self) -> None:
        """Returns once every kind has been listed for the first time, or refused."""
        for reflector in self._reflectors.values():
            await reflector.wait_synced()
        await self._objects.wait_settled()

    async def see_all_binds_before(self, since_s: float) -> None:
        """Lists anew unless a list began after `since_s`: a standby's watch may lag behind the last leader's binds.

        Without this a new leader places pods on rows that the old one has filled (found by simulation; I1).
        """
        async with self._relisting:
            if self._dates_from_s >= since_s:
                return
            began_s = self._clock.monotonic()
            for reflector in self._reflectors.values():
                await reflector.relist()
            self._dates_from_s = began_s

"""Adds succeeded gang members to the roster: they count for their gangs, and the watch of running pods does not show how a pod
ended. In a cluster without gangs nothing is listed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from multisched.client.object_feed import ReflectorHandler
from multisched.client.reflector import Reflector
from multisched.model.decode import DecodeError, Decoder
from multisched.state.gang_roster import GangRoster

logger = logging.getLogger(__name__)

SUCCEEDED_PODS: Final = "status.phase=Succeeded"
"""Field selector of succeeded pods."""


class FinishedMembers:
    """Ingest of succeeded pods into the roster of gangs. Before their first list, a gang may require too many members."""

    def __init__(
        self, roster: GangRoster, decoder: Decoder, build: Callable[[str, ReflectorHandler], Reflector]
    ) -> None:
        """`build`: builds the reflector of pods that a field selector selects; called when the first gang appears."""
        self._roster = roster
        self._decoder = decoder
        self._build = build
        self._is_needed = asyncio.Event()
        roster.on_first = self._is_needed.set

    async def run(self) -> None:
        """Waits for the first gang, then watches until cancelled."""
        await self._is_needed.wait()
        await self._build(SUCCEEDED_PODS, self).run()

    def upsert(self, key: str, raw: msgspec.Raw) -> None:
        try:
            pod = self._decoder.pod(raw)
        except DecodeError as error:
            logger.warning("finished pod cannot be read", extra={"pod": key, "error": str(error)})
            return
        if pod.phase == "Succeeded":
            self._roster.finish(pod)

    def delete(self, key: str, raw: msgspec.Raw | None) -> None:
        del raw
        self._roster.finished_is_gone(key)

    def replaced(self, version: str) -> None:
        logger.info("finished pods listed", extra={"version": version, **self._roster.statistics()})

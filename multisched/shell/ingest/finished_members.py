"""Passes succeeded pods on: gang members to the roster, where they count, and others to plugins that learn from them (`EndedPodPlugin`).

The watch of running pods does not show how a pod ended. Without gangs and such plugins nothing is listed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from multisched.client.object_feed import ReflectorHandler
from multisched.client.reflector import Reflector
from multisched.framework.introspection import EndedPodPlugin
from multisched.framework.registry import implements
from multisched.model.decode import DecodeError, Decoder
from multisched.model.pod_run import run_of
from multisched.shell.domain import DomainWorker
from multisched.shell.ingest.router import Router
from multisched.state.gang_roster import GangRoster

logger = logging.getLogger(__name__)

SUCCEEDED_PODS: Final = "status.phase=Succeeded"
"""Field selector of succeeded pods."""


PROFILES_S: Final = 5.0
"""Interval of the check whether another profile has brought a plugin that learns."""


def _learners(worker: DomainWorker) -> Sequence[EndedPodPlugin]:
    return [one.plugin for one in worker.plugins.built if implements(one.plugin, EndedPodPlugin)]


class FinishedMembers:
    """Ingest of succeeded pods into the roster of gangs. Before their first list, a gang may require too many members."""

    def __init__(
        self,
        roster: GangRoster,
        decoder: Decoder,
        router: Router,
        build: Callable[[ReflectorHandler], Reflector],
    ) -> None:
        """`build`: builds the reflector of `SUCCEEDED_PODS`; called when the first gang appears, or a plugin needs it."""
        self._router = router
        self._roster = roster
        self._decoder = decoder
        self._build = build
        self._is_needed = asyncio.Event()
        roster.on_first = self._is_needed.set

    async def run(self) -> None:
        """Waits for the first gang or a plugin that learns from pods, then watches until cancelled."""
        while not self._is_needed.is_set() and not any(map(_learners, self._router.workers())):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_needed.wait(), PROFILES_S)
        await self._build(self).run()

    def upsert(self, key: str, raw: msgspec.Raw) -> None:
        try:
            pod = self._decoder.pod(raw)
        except DecodeError as error:
            logger.warning("finished pod cannot be read", extra={"pod": key, "error": str(error)})
            return
        if pod.phase != "Succeeded":
            return
        self._roster.finish(pod)
        worker = self._router.worker_of(pod)
        learners = () if worker is None else _learners(worker)
        run = run_of(raw) if learners else None
        if run is None:
            return
        for plugin in learners:
            try:
                plugin.pod_ended(pod, run)
            except Exception:
                logger.exception("a plugin could not learn from a pod", extra={"plugin": plugin.name, "pod": key})

    def delete(self, key: str, raw: msgspec.Raw | None) -> None:
        del raw
        self._roster.finished_is_gone(key)

    def replaced(self, version: str) -> None:
        logger.info("finished pods listed", extra={"version": version, **self._roster.statistics()})

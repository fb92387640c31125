"""Passes ended pods to the roster of gangs, which counts succeeded members, and to the `OutcomePlugin`s of their domain.

The watch of pods that have not ended shows an end as a deletion, without the last state. So ended pods are watched separately. They
are listed only once the cluster has a gang, or a bound pod of a domain with an `OutcomePlugin`.
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
from multisched.model.objects import Pod
from multisched.model.pod_outcome import outcome_of
from multisched.shell.domain import DomainWorker
from multisched.shell.ingest.pods_and_nodes import PodIngest
from multisched.state.gang_roster import GangRoster

logger = logging.getLogger(__name__)

ENDED_PODS: Final = "status.phase!=Pending,status.phase!=Running,status.phase!=Unknown"
"""Field selector of pods that have succeeded or failed."""


class EndedPods:
    """Ingest of ended pods. Writes the roster of gangs, and calls `OutcomePlugin.see_outcome`, also for pods that start to run.

    Before the first list, succeeded members do not count, so a gang may require too many others.
    """

    def __init__(
        self,
        roster: GangRoster,
        decoder: Decoder,
        pods: PodIngest,
        worker_of: Callable[[Pod], DomainWorker | None],
        build: Callable[[str, ReflectorHandler], Reflector],
    ) -> None:
        """`build`: builds the reflector of the pods that match a field selector. Called when the cluster has the first gang, or the first
        bound pod of a domain with an `OutcomePlugin`."""
        self._roster = roster
        self._decoder = decoder
        self._worker_of = worker_of
        self._build = build
        self._is_needed = asyncio.Event()
        roster.on_first = self._is_needed.set
        pods.on_placed = self.placed

    async def run(self) -> None:
        """Waits until ended pods are needed, then watches them until cancelled."""
        await self._is_needed.wait()
        await self._build(ENDED_PODS, self).run()

    def placed(self, worker: DomainWorker, before: Pod | None, pod: Pod, raw: msgspec.Raw) -> None:
        """Handles a version of a pod with a node. `before`: the version in the cache before, or None."""
        if not worker.plugins.learning:
            return
        self._is_needed.set()
        if pod.phase != "Running" or before is None or before.phase != pod.phase:
            self._tell(worker, pod, raw)

    def upsert(self, key: str, raw: msgspec.Raw) -> None:
        try:
            pod = self._decoder.pod(raw)
        except DecodeError as error:
            logger.warning("ended pod cannot be read", extra={"pod": key, "error": str(error)})
            return
        if pod.phase == "Succeeded":
            self._roster.finish(pod)
        worker = self._worker_of(pod)
        if worker is not None and pod.node and pod.is_terminal:
            self._tell(worker, pod, raw)

    def delete(self, key: str, raw: msgspec.Raw | None) -> None:
        del raw
        self._roster.on_finished_deleted(key)

    def replaced(self, version: str) -> None:
        logger.info("ended pods listed", extra={"version": version, **self._roster.statistics()})

    @staticmethod
    def _tell(worker: DomainWorker, pod: Pod, raw: msgspec.Raw) -> None:
        if not worker.plugins.learning:
            return
        outcome = outcome_of(pod, raw)
        for plugin in worker.plugins.learning:
            try:
                plugin.see_outcome(outcome)
            except Exception:
                logger.exception("plugin failed on a pod's outcome", extra={"plugin": plugin.name, "pod": pod.key})

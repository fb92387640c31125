"""KeptHistory: the run times that a process has learned, kept across restarts. Owned by the plugin; stored by its background task.

Every process learns, so that a standby also knows run times. The leader stores them (`Mover.write`), at most once a minute. If a write
fails or the document is malformed, history is lost, and scheduling continues. After a restart, finished pods are listed again; runs that
are already in the document are not added a second time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from typing import Final

from domains.job.runtimes.history import MalformedHistoryError, RunHistory, RunKey, read_history
from domains.job.runtimes.pod_run import PodRun
from multisched.framework.background import BackgroundPorts
from multisched.framework.moving import DocumentAnswer, Mover, replace_document
from multisched.framework.ports import UnreachableError

logger = logging.getLogger(__name__)

STORE_S: Final = 60.0
SEEN_MAX: Final = 50_000
"""Pods kept as already learned, because a relist delivers them again."""
EARLY_MAX: Final = 20_000
"""Runs kept until the stored history is read."""


class KeptHistory:
    """The history of one domain."""

    def __init__(self) -> None:
        self.history = RunHistory()
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._early: list[tuple[RunKey, PodRun]] | None = []
        """Runs that this process learned before it read the stored history; None afterwards."""
        self._stored_version = 0
        self.failed_writes = 0

    def learn(self, uid: str, key: RunKey, run: PodRun) -> None:
        """Adds the run of a pod to the history, once for each pod."""
        if uid in self._seen:
            return
        self._seen[uid] = None
        if len(self._seen) > SEEN_MAX:
            self._seen.popitem(last=False)
        if self._early is not None and len(self._early) < EARLY_MAX:
            self._early.append((key, run))
        self.history.add(key, run)

    async def run(self, ports: BackgroundPorts) -> None:
        """Reads the stored history once, then stores the history after changes, until it is cancelled."""
        mover = ports.mover
        if mover is None:
            return
        await self._restore(mover)
        while True:
            await asyncio.sleep(STORE_S)
            if mover.may_act() and self.history.version != self._stored_version:
                await self._store(mover)

    async def _restore(self, mover: Mover) -> None:
        if self._early is None:
            return
        try:
            document = await mover.read()
            if document:
                self.use(document)
        except (UnreachableError, MalformedHistoryError) as error:
            logger.warning("the stored run times cannot be read", extra={"error": str(error)[:300]})
        self._early = None

    def use(self, document: bytes) -> None:
        """Replaces the history by a stored one, and adds the runs learned before. Raises MalformedHistoryError."""
        version = self.history.version
        self.history = read_history(document, self._early or ())
        self.history.version += version

    async def _store(self, mover: Mover) -> None:
        document, version = self.history.document(), self.history.version
        reply = await replace_document(mover, document)
        if reply.answer is DocumentAnswer.WRITTEN:
            self._stored_version = version
        else:
            self.failed_writes += 1
            logger.info("the run times were not stored", extra={"error": reply.message[:300]})

"""Keeps objects that stay in effect after their deletion in ConfigMaps, so that a restart of all replicas does not end the effect.

One ConfigMap per kind, written whenever the object changes, and not only when it is deleted: no replica may be running
then. The leader of the first domain, by name, that has the plugin writes it (as in `Statuses`). Every process reads it
before it schedules. Two leaders cannot overwrite each other in turn: a write replaces only the version that was read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import anyio
import msgspec

from multisched.client.limits import WriteLimiter
from multisched.client.recurring_trouble import RecurringTrouble
from multisched.client.stored_document import ConfigMapDocument, ForbiddenReadError
from multisched.framework.kept_object import KeptObjectPlugin
from multisched.framework.moving import DocumentAnswer
from multisched.framework.ports import Clock, UnreachableError
from multisched.framework.registry import implements
from multisched.framework.runner import PluginFailure
from multisched.model.object_kinds import ObjectKind
from multisched.model.wire import Transport
from multisched.shell.domain import DomainWorker

logger = logging.getLogger(__name__)

LOOK_S: Final = 1.0
"""Interval at which the current object is compared with the kept one, and at which a failed write is retried."""
RENEW_S: Final = 300.0
"""Interval at which the leader reads the ConfigMap again: it may have been edited or deleted, or a backup was restored."""
READ_PAUSE_S: Final = 2.0
"""Interval between tries of a read that failed."""
REFUSED_PAUSE_S: Final = 60.0
"""Interval between tries of a write that was refused."""
KEY: Final = "object.json"


class _Kept(msgspec.Struct):
    """The state of one ConfigMap."""

    name: str
    keeper: ConfigMapDocument
    lock: anyio.Lock
    trouble: RecurringTrouble
    document: bytes | None = None
    """As in the ConfigMap, empty if there is none; None: it must be read."""
    read_s: float = 0.0
    not_before_s: float = 0.0


class KeptObjects:
    """The kept objects of one program."""

    def __init__(
        self,
        transport: Transport,
        limiter: WriteLimiter,
        clock: Clock,
        workers: Callable[[], Iterable[DomainWorker]],
        recall: Callable[[ObjectKind, bytes], None],
        is_closing: Callable[[], bool],
        *,
        namespace: str,
        name_prefix: str,
    ) -> None:
        """`recall`: takes an object that may have been deleted before this process started."""
        self._transport = transport
        self._limiter = limiter
        self._clock = clock
        self._workers = workers
        self._recall = recall
        self._is_closing = is_closing
        self._namespace = namespace
        self._name_prefix = name_prefix
        self._kept: dict[ObjectKind, _Kept] = {}

    async def read(self, worker: DomainWorker) -> None:
        """Reads what the domain's plugins keep. Returns once it is known, or may not be read."""
        for plugin in _keeping(worker):
            kept = self._of(plugin.kept_kind)
            async with kept.lock:
                while True:
                    if await self._read(plugin.kept_kind, kept):
                        break
                    await anyio.sleep(READ_PAUSE_S)

    async def run(self) -> None:
        """Writes until cancelled."""
        while True:
            await anyio.sleep(LOOK_S)
            seen = set[ObjectKind]()
            for worker in sorted(self._workers(), key=lambda one: one.name):
                for plugin in _keeping(worker):
                    if plugin.kept_kind not in seen:
                        seen.add(plugin.kept_kind)
                        await self._look(plugin, worker)

    async def _look(self, plugin: KeptObjectPlugin, worker: DomainWorker) -> None:
        kept, now_s = self._of(plugin.kept_kind), self._clock.monotonic()
        if now_s < kept.not_before_s or not self._may_write(worker):
            return
        async with kept.lock:
            if kept.document is None or now_s - kept.read_s >= RENEW_S:
                await self._read(plugin.kept_kind, kept)
            try:
                wanted = worker.runner.call(plugin, "KeptObject", plugin.kept_object)
            except PluginFailure:
                return
            if kept.document not in (None, wanted) and self._may_write(worker):
                await self._write(kept, wanted)

    def _may_write(self, worker: DomainWorker) -> bool:
        return worker.is_leading and not self._is_closing() and worker.lease.may_bind()

    async def _read(self, kind: ObjectKind, kept: _Kept) -> bool:
        """Reads the ConfigMap. Returns False if that must be tried again."""
        try:
            kept.document = await kept.keeper.read() or b""
        except ForbiddenReadError as error:
            kept.document, kept.not_before_s = None, self._clock.monotonic() + REFUSED_PAUSE_S
            self._log(kept, "kept object cannot be read; a deleted one does not stay in effect after a restart", error)
            return True
        except UnreachableError as error:
            kept.not_before_s = self._clock.monotonic() + READ_PAUSE_S
            self._log(kept, "kept object cannot be read", error)
            return False
        kept.read_s = self._clock.monotonic()
        if kept.document:
            self._recall(kind, kept.document)
        return True

    async def _write(self, kept: _Kept, document: bytes) -> None:
        reply = await kept.keeper.write(document)
        if reply.answer is DocumentAnswer.WRITTEN:
            kept.document = document
            return
        if reply.answer is DocumentAnswer.REFUSED:
            kept.not_before_s = self._clock.monotonic() + REFUSED_PAUSE_S
        else:
            kept.document = None  # it may have been written, by this process or another
        self._log(
            kept, "kept object cannot be written; the version before stays in effect after a restart", reply.message
        )

    def _log(self, kept: _Kept, message: str, error: object) -> None:
        if kept.trouble.is_due(f"{message}: {error}"):
            fix = f"grant create on configmaps in {self._namespace}, and get and update on {kept.name}"
            logger.warning(message, extra={"configMap": kept.name, "error": str(error), "fix": fix})

    def _of(self, kind: ObjectKind) -> _Kept:
        kept = self._kept.get(kind)
        if kept is None:
            name = f"{self._name_prefix}-{kind.definition.plural}"
            keeper = ConfigMapDocument(self._transport, self._limiter, self._namespace, name, KEY)
            kept = self._kept[kind] = _Kept(name, keeper, anyio.Lock(), RecurringTrouble(self._clock))
        return kept


def _keeping(worker: DomainWorker) -> Iterator[KeptObjectPlugin]:
    return (built.plugin for built in worker.plugins.built if implements(built.plugin, KeptObjectPlugin))

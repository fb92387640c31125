"""Keeps objects that stay in effect after their deletion in ConfigMaps, so that a restart of all replicas does not end the effect.

There is one ConfigMap per kind. It is written whenever the object changes, because no replica may be running when the object is
deleted. The leader of the first domain, by name, that has the plugin writes it (as in `Statuses`). Every process reads it before it
schedules; if the read is forbidden, each leader retries it. Two leaders cannot overwrite each other's content, because a write
replaces only the version that was read.
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
    read_trouble: RecurringTrouble
    write_trouble: RecurringTrouble
    document: bytes | None = None
    """The content of the ConfigMap, empty if there is none; None: it must be read."""
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
        restore_deleted: Callable[[ObjectKind, bytes], None],
        is_closing: Callable[[], bool],
        *,
        namespace: str,
        name_prefix: str,
    ) -> None:
        """`restore_deleted`: called with a kept object, which may have been deleted before this process started."""
        self._transport = transport
        self._limiter = limiter
        self._clock = clock
        self._workers = workers
        self._restore_deleted = restore_deleted
        self._is_closing = is_closing
        self._namespace = namespace
        self._name_prefix = name_prefix
        self._kept: dict[ObjectKind, _Kept] = {}

    async def read(self, worker: DomainWorker) -> None:
        """Reads the objects that the domain's plugins keep. Returns once each has been read, or its read was forbidden."""
        for plugin in keeping(worker):
            kept = self._of(plugin.kept_kind)
            async with kept.lock:
                while True:
                    if await self._read(plugin.kept_kind, kept):
                        break
                    await anyio.sleep(READ_PAUSE_S)

    async def run(self) -> None:
        """Reads ConfigMaps whose content is unknown and writes changed objects, until cancelled."""
        while True:
            await anyio.sleep(LOOK_S)
            seen = set[ObjectKind]()
            for worker in sorted(self._workers(), key=lambda one: one.name):
                for plugin in keeping(worker):
                    await self._look(plugin, worker, is_writer=plugin.kept_kind not in seen)
                    seen.add(plugin.kept_kind)

    async def _look(self, plugin: KeptObjectPlugin, worker: DomainWorker, *, is_writer: bool) -> None:
        kept, now_s = self._of(plugin.kept_kind), self._clock.monotonic()
        if now_s < kept.not_before_s or not self._is_leader(worker):
            return
        async with kept.lock:
            if kept.document is None or (is_writer and now_s - kept.read_s >= RENEW_S):
                await self._read(plugin.kept_kind, kept)
            if not is_writer or kept.document is None:
                return
            wanted = kept_by(plugin, worker)
            if wanted not in (None, kept.document) and self._is_leader(worker):
                await self._write(kept, wanted)

    def _is_leader(self, worker: DomainWorker) -> bool:
        return worker.is_leading and not self._is_closing() and worker.lease.may_bind()

    async def _read(self, kind: ObjectKind, kept: _Kept) -> bool:
        """Reads the ConfigMap. Returns False if the read must be retried."""
        try:
            kept.document = await kept.keeper.read() or b""
        except ForbiddenReadError as error:
            kept.document, kept.not_before_s = None, self._clock.monotonic() + REFUSED_PAUSE_S
            said = "kept object cannot be read; a deleted one does not stay in effect after a restart"
            self._log(kept, kept.read_trouble, said, error, is_refused=True)
            return True
        except UnreachableError as error:
            kept.not_before_s = self._clock.monotonic() + READ_PAUSE_S
            self._log(kept, kept.read_trouble, "kept object cannot be read", error)
            return False
        kept.read_trouble.over()
        kept.read_s = self._clock.monotonic()
        if kept.document:
            self._restore_deleted(kind, kept.document)
        return True

    async def _write(self, kept: _Kept, document: bytes) -> None:
        reply = await kept.keeper.write(document)
        if reply.answer is DocumentAnswer.WRITTEN:
            kept.document = document
            kept.write_trouble.over()
            return
        is_refused = reply.answer is DocumentAnswer.REFUSED
        if is_refused:
            kept.not_before_s = self._clock.monotonic() + REFUSED_PAUSE_S
        else:
            kept.document = None  # unknown: this process or another one may have written it
        if reply.answer is DocumentAnswer.CONFLICT:
            logger.info("kept object was written by another process", extra={"configMap": kept.name})
            return
        said = "kept object cannot be written; the version before stays in effect after a restart"
        self._log(kept, kept.write_trouble, said, reply.message, is_refused=is_refused)

    def _log(
        self, kept: _Kept, trouble: RecurringTrouble, message: str, error: object, *, is_refused: bool = False
    ) -> None:
        if not trouble.is_due(f"{message}: {error}"):
            return
        fields = {"configMap": kept.name, "error": str(error)}
        if is_refused:
            fields["fix"] = f"grant create on configmaps in {self._namespace}, and get and update on {kept.name}"
        logger.warning(message, extra=fields)

    def _of(self, kind: ObjectKind) -> _Kept:
        kept = self._kept.get(kind)
        if kept is None:
            name = f"{self._name_prefix}-{kind.definition.plural}"
            keeper = ConfigMapDocument(self._transport, self._limiter, self._namespace, name, KEY)
            troubles = RecurringTrouble(self._clock), RecurringTrouble(self._clock)
            kept = self._kept[kind] = _Kept(name, keeper, anyio.Lock(), *troubles)
        return kept


def kept_by(plugin: KeptObjectPlugin, worker: DomainWorker) -> bytes | None:
    """Returns the object that the plugin keeps, or None if the plugin fails."""
    try:
        found = worker.runner.call(plugin, "KeptObject", plugin.kept_object)
    except PluginFailure:
        return None
    if isinstance(found, bytes):
        return found
    worker.runner.failure(plugin, "KeptObject", f"returned {type(found).__name__}, not bytes")
    return None


def keeping(worker: DomainWorker) -> Iterator[KeptObjectPlugin]:
    """Yields the domain's plugins that keep an object."""
    return (built.plugin for built in worker.plugins.built if implements(built.plugin, KeptObjectPlugin))

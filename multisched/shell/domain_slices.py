"""The `framework.slice_writes.SlicePorts` of one domain, and the calls of its `SlicingPlugin`s during a takeover."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing

import anyio
import msgspec

from multisched.client.errors import ApiError, NotFound
from multisched.client.lease_record import LeaseWatcher
from multisched.client.lister import MalformedAnswerError, list_pages
from multisched.framework.ports import UnreachableError
from multisched.framework.registry import implements
from multisched.framework.slice_writes import SliceReply, SliceRequest, SliceWriter, SlicingPlugin
from multisched.model.cluster_objects import SliceSet
from multisched.model.decode import DecodeError
from multisched.model.decode_objects import decode_slice_set
from multisched.model.object_kinds import ObjectKind
from multisched.model.wire import Transport, TransportError
from multisched.shell.domain import DomainWorker


class SliceShell(msgspec.Struct, frozen=True):
    """The parts of the program that slices need."""

    transport: Transport
    writer: SliceWriter
    is_closing: Callable[[], bool]
    term_of: Callable[[str], int]
    """Domain -> number of times that its lease was acquired (`LeaseTerm.number`); 0 without leases."""
    watcher_of: Callable[[str], LeaseWatcher | None]
    """Domain -> a new watcher of its lease; None without leases."""
    holds: Callable[[str], bool]
    """Reports whether this process holds the lease of a domain."""
    relist: Callable[[], Awaitable[None]]
    namespace: str


class DomainSlices:
    """The `SlicePorts` of one domain."""

    def __init__(self, worker: DomainWorker, shell: SliceShell) -> None:
        self.namespace = shell.namespace
        self._worker = worker
        self._shell = shell
        self._watchers: dict[str, LeaseWatcher | None] = {}

    def term(self) -> int:
        return self._shell.term_of(self._worker.name)

    def may_write(self) -> bool:
        return not self._shell.is_closing() and self._worker.lease.may_bind()

    async def list(self) -> Sequence[SliceSet]:
        found = []
        try:
            pages = list_pages(self._shell.transport, ObjectKind.SLICE_SET.definition.path)
            async with aclosing(pages):
                async for page in pages:
                    found += [decode_slice_set(raw) for raw in page.items]
        except NotFound:
            return []
        except (ApiError, TransportError, MalformedAnswerError, DecodeError) as error:
            raise UnreachableError(str(error)) from error
        return found

    async def send(self, request: SliceRequest) -> SliceReply:
        return await self._shell.writer.send(request, timeout_s=self._worker.write_timeout_s)

    async def has_no_leader(self, domain: str) -> bool:
        if self._shell.holds(domain):
            return False
        if domain not in self._watchers:
            self._watchers[domain] = self._shell.watcher_of(domain)
        watcher = self._watchers[domain]
        return watcher is not None and await watcher.read() is None

    async def relist(self) -> None:
        await self._shell.relist()


def slicing(worker: DomainWorker) -> Sequence[SlicingPlugin]:
    """Returns the domain's plugins that lend or borrow by SliceSets."""
    return [built.plugin for built in worker.plugins.built if implements(built.plugin, SlicingPlugin)]


async def own_slices(worker: DomainWorker, shell: SliceShell) -> None:
    """Calls `own_slices` of all slicing plugins of a domain that this process takes over, concurrently."""
    plugins = slicing(worker)
    if not plugins:
        return
    async with anyio.create_task_group() as tasks:
        for plugin in plugins:
            tasks.start_soon(plugin.own_slices, DomainSlices(worker, shell))


def settle_slices(worker: DomainWorker) -> None:
    """Lets the domain use the slices that it holds. Called once all its pods are in the cache."""
    for plugin in slicing(worker):
        plugin.settle_slices()

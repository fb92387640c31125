"""The audit: periodically compares the cache with a consistent list of the API server, and with itself.

Watches may lose events; etcd and Kubernetes have both shipped such bugs. Three things are compared: the identity of each object
(namespace, name, uid, node, version) with the list; the content of a sample of the objects, a different sample in each audit
(`content.py`); the sums of every row (resources, pods, ports, ledgers) with the pods on it.

A watch event may be in flight. So a difference counts only if versions prove it or two audits in a row find it. If a bind was
answered with success and the watch does not show it, the pod is read, because a list cannot tell a false answer from a late
watch. A difference is logged with both values, counted and repaired: a lost event by a relist, an inconsistency within the cache
directly. Every step is short. Owned and run by `Program` in one task.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Final, TypeVar
from zlib import crc32

import anyio
import msgspec
from msgspec.structs import replace

from multisched.client.binder import READ_TIMEOUT_S
from multisched.client.errors import ApiError
from multisched.client.history import History
from multisched.client.lister import MalformedAnswerError, list_pages
from multisched.framework.background import InThread
from multisched.framework.ports import Binder, Clock, UnreachableError
from multisched.model.decode_metadata import with_valid_text
from multisched.model.objects import Pod
from multisched.model.version import NO_VERSION, Version, is_covered, is_older, version_of
from multisched.model.wire import UNREADABLE, Transport, TransportError
from multisched.shell.audit.audited_kinds import AuditedKind, CachedObject, load_judge
from multisched.shell.audit.ledgers import LedgerAudit
from multisched.shell.audit.pod_repair import PodRepair
from multisched.shell.audit.slices import SLICE_ITEMS, SLICE_ROWS, slices
from multisched.shell.ingest.pods_and_nodes import PodIngest
from multisched.state.cluster_cache import NO_ROW, ClusterCache, PlacedPod
from multisched.state.row_check import row_faults

logger = logging.getLogger(__name__)

AUDIT_PERIOD_S: Final = 60.0
AUDIT_PERIOD_MIN_S: Final = 1.0
AUDIT_TIMEOUT_S: Final = 50.0
"""Timeout of an audit. An audit that times out counts as failed."""
PAGE_ITEMS: Final = 500
PAGE_PAUSE_S: Final = 0.01
"""Pause between two pages, which limits the load on the API server and on this process."""
CONTENT_PODS: Final = 2_000
"""Approximate number of pods whose content one audit compares, 50 us each. With more pods, each audit takes a different sample."""
READS_MAX: Final = 100
"""Maximum number of pods that one audit reads with single requests; the next audit reads further ones."""
LOGGED_MAX: Final = 20
"""Maximum number of differences of one audit that are logged individually; of the rest only the number is logged."""

T = TypeVar("T")
Mark = tuple[str, str, Version]


class _Metadata(msgspec.Struct, gc=False):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    version: str = msgspec.field(name="resourceVersion", default="")


class _Spec(msgspec.Struct, gc=False):
    node: str = msgspec.field(name="nodeName", default="")


class _Item(msgspec.Struct, gc=False):
    metadata: _Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)

    @property
    def key(self) -> str:
        metadata = self.metadata
        return f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name


_item_decoder = msgspec.json.Decoder(_Item)


class OldListError(Exception):
    """The list cannot be compared with the cache: it is older, or a backup of the API server may have been restored."""


class Difference(msgspec.Struct, frozen=True):
    kind: str
    key: str
    what: str
    mark: Mark = ("", "", 0)
    """Identifies an unproven difference, to find it again in the next audit."""


class AuditStatistics(msgspec.Struct):
    """Counters since the start."""

    audits: int = 0
    """Complete comparisons."""
    failures: int = 0
    """Audits that failed: no complete list in time."""
    lost: int = 0
    """Objects that differed from the API object because a watch event was lost."""
    inner: int = 0
    """Rows, ledgers, queues and contents that were inconsistent with the cache's own pods: a defect of this program."""
    unbound: int = 0
    """Pods whose bind was answered with success although it did not happen."""
    last_s: float = 0.0
    """Duration of the latest audit."""

    @property
    def differences(self) -> int:
        """Total number of differences."""
        return self.lost + self.inner + self.unbound


class _Round(msgspec.Struct):
    """The intermediate results of one audit."""

    stride: int = 1
    """One in `stride` objects has its content compared; `number` selects which."""
    number: int = 0
    content: list[Difference] = msgspec.field(default_factory=list)
    missing: set[str] = msgspec.field(default_factory=set)
    """uids of cached objects that are in no list."""
    suspected: set[Mark] = msgspec.field(default_factory=set)
    found: list[Difference] = msgspec.field(default_factory=list)

    def is_sampled(self, uid: str) -> bool:
        return crc32(uid.encode()) % self.stride == self.number % self.stride


class Audit:
    """The periodic comparison of the cache with a consistent list, and its repair."""

    def __init__(
        self,
        transport: Transport,
        binder: Binder,
        cache: ClusterCache,
        pods: PodIngest,
        repair: PodRepair,
        audited_kinds: Sequence[AuditedKind],
        history: History,
        clock: Clock,
        rng: random.Random,
        *,
        in_thread: InThread,
        bind_deadline_s: float,
        period_s: float = AUDIT_PERIOD_S,
    ) -> None:
        """`bind_deadline_s`: time after a bind's answer during which a second request of the same bind may be in flight."""
        self._transport = transport
        self._cache = cache
        self._ledgers = LedgerAudit(cache)
        self._pods = pods
        self._repair = repair
        self._audited_kinds = list(audited_kinds)
        self._history = history
        self._clock = clock
        self._rng = rng
        self._in_thread = in_thread
        self._binder = binder
        self._bind_deadline_s = bind_deadline_s
        self._period_s = max(period_s, AUDIT_PERIOD_MIN_S)
        self._suspected: set[Mark] = set()
        self._counters = AuditStatistics()

    def add(self, audited_kind: AuditedKind) -> None:
        """Compares a further kind from the next audit on, once it has been listed."""
        self._audited_kinds.append(audited_kind)

    def statistics(self) -> AuditStatistics:
        return replace(self._counters)

    async def run(self) -> None:
        """Audits periodically until cancelled. The first audit has a random delay, so that replicas do not list at the same time."""
        for audited_kind in self._audited_kinds:
            await audited_kind.reflector.wait_settled()
        await anyio.sleep(self._rng.uniform(0.2, 1.0) * self._period_s)
        await self._in_thread(load_judge)
        number = 0
        while True:
            began_s = self._clock.monotonic()
            await self.once([audited_kind for audited_kind in self._audited_kinds if number % audited_kind.every == 0])
            number += 1
            await anyio.sleep(max(0.0, began_s + self._period_s - self._clock.monotonic()))

    async def once(self, audited_kinds: Sequence[AuditedKind] | None = None) -> Sequence[Difference]:
        """Runs one audit of the given kinds (default: all). Returns the repaired differences. If the API server returns no list,
        the audit fails without a result for the listed kinds."""
        audited_kinds = self._audited_kinds if audited_kinds is None else audited_kinds
        began_s = self._clock.monotonic()
        now = _Round(len(self._cache) // CONTENT_PODS + 1, self._counters.audits)
        is_complete = False
        with anyio.move_on_after(AUDIT_TIMEOUT_S):
            try:
                for audited_kind in audited_kinds:
                    # The reflector retries a kind whose list was refused or has failed so far.
                    if audited_kind.reflector.position and not audited_kind.reflector.is_refused:
                        await self._compare(audited_kind, now)
                await self._check_queues(now)
                await self._check_answers(now, began_s)
                is_complete = True
            except (UnreachableError, ApiError, TransportError, MalformedAnswerError, OldListError) as error:
                logger.warning("audit failed", extra={"error": str(error)})
            await self._check_rows(now)
            await self._check_ledgers(now)
        self._counters.audits += is_complete
        self._counters.failures += not is_complete
        if is_complete:
            compared = {"queue", *(audited_kind.kind for audited_kind in audited_kinds)}
            self._suspected = now.suspected | {m for m in self._suspected if m[0].partition(" ")[0] not in compared}
        self._counters.inner += len(now.content)
        now.found.extend(now.content)
        self._counters.last_s = self._clock.monotonic() - began_s
        self._report(now.found)
        return now.found

    def _report(self, found: Sequence[Difference]) -> None:
        for difference in found[:LOGGED_MAX]:
            logger.error(
                "audit: difference repaired",
                extra={"kind": difference.kind, "object": difference.key, "difference": difference.what},
            )
        if len(found) > LOGGED_MAX:
            logger.error("audit: more differences repaired", extra={"more": len(found) - LOGGED_MAX})

    def _counts(self, now: _Round, difference: Difference, *, is_proven: bool) -> bool:
        """Reports whether a difference has to be repaired. An unproven one is first kept for the next audit."""
        if not is_proven and difference.mark not in self._suspected:
            now.suspected.add(difference.mark)
            return False
        now.found.append(difference)
        return True

    # -- the list against the cache --------------------------------------------------------------------------------

    async def _compare(self, audited_kind: AuditedKind, now: _Round) -> None:
        before = len(now.found)
        try:
            await self._compare_lists(audited_kind, now)
        finally:
            if len(now.found) > before:
                self._counters.lost += len(now.found) - before
                audited_kind.reflector.request_relist()

    async def _compare_lists(self, audited_kind: AuditedKind, now: _Round) -> None:
        position = _position(audited_kind)
        listed: set[str] = set()
        version: Version = NO_VERSION
        pages = list_pages(
            self._transport, audited_kind.path, field_selector=audited_kind.selector, page_items=PAGE_ITEMS
        )
        async with aclosing(pages):
            async for page in pages:
                version = version_of(page.version)
                self._check_time(audited_kind, version, position)
                for raws in slices(page.items, SLICE_ITEMS):
                    for raw in raws:
                        cached = self._compare_one(audited_kind, raw, version, listed, now)
                        if cached is not None and now.is_sampled(cached.uid):
                            self._check_content(audited_kind, cached, raw, now)
                            await asyncio.sleep(0)
                    await asyncio.sleep(0)
                await anyio.sleep(PAGE_PAUSE_S)
        self._check_time(audited_kind, version, position)
        for handles in slices(audited_kind.handles(), SLICE_ITEMS):
            for handle in handles:
                cached = audited_kind.cached(handle) if handle not in listed else None
                if cached is not None and cached.uid not in listed and not is_older(version, cached.version):
                    self._check_missing(audited_kind, cached, version, now)
            await asyncio.sleep(0)

    def _check_time(self, audited_kind: AuditedKind, version: Version, position: Version) -> None:
        """Raises OldListError for a list that is older than the reflector's position before the request.

        Either the API server lags, or a backup was restored; the requested relist shows which.
        """
        if is_older(version, position):
            audited_kind.reflector.request_relist()
        if is_older(version, position) or not self._history.is_trusted:
            raise OldListError(
                f"the list of {audited_kind.path} has version {version}, older than {position}, which was seen before"
            )

    def _check_content(self, audited_kind: AuditedKind, cached: CachedObject, raw: msgspec.Raw, now: _Round) -> None:
        """Compares the content of an object with the API object of the same version, and repairs it."""
        fault = audited_kind.content_fault(cached, raw)
        if fault:
            now.content.append(Difference(audited_kind.kind, cached.key, fault))
            audited_kind.replace_content(cached, raw)

    def _compare_one(
        self, audited_kind: AuditedKind, raw: msgspec.Raw, as_of: Version, listed: set[str], now: _Round
    ) -> CachedObject | None:
        """Compares one object of a list of version `as_of`. A cached object newer than the list is correct; at the same version
        it must be on the same node.

        Returns the cached object if it has the same version and node, else None.
        """
        try:
            item = _item_of(raw)
        except UNREADABLE as error:
            raise MalformedAnswerError(f"an item in the list of {audited_kind.path} cannot be read") from error
        uid, key, version = item.metadata.uid, item.key, version_of(item.metadata.version)
        cached = audited_kind.find(key, uid)
        if cached is None:
            listed.add(uid)
            if audited_kind.is_wanted(raw):
                difference = Difference(
                    audited_kind.kind,
                    key,
                    f"listed at version {version}, not in the cache",
                    (f"{audited_kind.kind} missing", uid, 0),
                )
                if self._counts(now, difference, is_proven=False):
                    audited_kind.reflector.distrust(key, uid)
            return None
        listed.add(cached.uid)
        if cached.version == version and cached.node not in (None, item.spec.node):
            what = f"on node {item.spec.node!r} in the API, on {cached.node!r} in the cache, both at version {version}"
            now.found.append(Difference(audited_kind.kind, key, what))
            audited_kind.move(cached, raw)
        elif cached.version != version and not is_older(version, cached.version):
            what = f"version {version} in the API, {cached.version} in the cache"
            difference = Difference(audited_kind.kind, key, what, (f"{audited_kind.kind} behind", uid, cached.version))
            if self._counts(now, difference, is_proven=is_covered(version, _position(audited_kind))):
                audited_kind.reflector.distrust(key, uid)
        elif cached.version != version and not is_older(as_of, cached.version):
            # The list is newer than the cached object but shows an older version of it: a backup was restored, and its versions
            # have overtaken the old ones since.
            self._history.went_back(audited_kind.reflector.name)
            audited_kind.reflector.request_relist()
            raise OldListError(
                f"the list of {audited_kind.path} shows {key} at version {version}, older than {cached.version}, seen before"
            )
        else:
            return cached if cached.version == version else None
        return None

    def _check_missing(self, audited_kind: AuditedKind, cached: CachedObject, version: Version, now: _Round) -> None:
        """Handles a cached object that is missing from a list at least as new as it. Its deletion event may be in flight."""
        now.missing.add(cached.uid)
        what = f"version {cached.version} in the cache, not in the list of version {version}"
        difference = Difference(
            audited_kind.kind, cached.key, what, (f"{audited_kind.kind} gone", cached.uid, cached.version)
        )
        is_proven = is_covered(version, _position(audited_kind))
        if (
            self._counts(now, difference, is_proven=is_proven)
            and audited_kind.reflector.uid_of(cached.key) != cached.uid
        ):
            audited_kind.drop(cached)

    # -- answers to binds ------------------------------------------------------------------------------------------

    async def _check_answers(self, now: _Round, began_s: float) -> None:
        """Reads the pods whose bind succeeded more than a bind deadline ago and is still not shown by the watch."""
        suspects: list[PlacedPod] = []
        for uids in slices(self._cache.uids(), SLICE_ITEMS):
            suspects += self._cache.answered_before(uids, began_s - self._bind_deadline_s)
            await asyncio.sleep(0)
        for entry in suspects[:READS_MAX]:
            pod = entry.pod
            truth = await self._binder.read(pod.namespace, pod.name, timeout_s=READ_TIMEOUT_S)
            if self._cache.placed(pod.uid) is not entry:
                continue
            if truth is None or truth.uid != pod.uid:
                # Its deletion event may be in flight. If it was lost, no list shows it, because ingest no longer tracks the pod.
                what = f"its bind to {entry.node!r} succeeded, but the API has no such pod"
                if self._counts(now, Difference("pod", pod.key, what, ("pod left", pod.uid, 0)), is_proven=False):
                    self._counters.lost += 1
                    self._pods.drop(pod.uid)
            elif not truth.node:
                what = f"its bind to {entry.node!r} succeeded, but in the API the pod is on no node"
                now.found.append(Difference("pod", pod.key, what))
                self._counters.unbound += 1
                self._repair.unbind(pod.uid)

    # -- the cache against itself ----------------------------------------------------------------------------------

    async def _check_queues(self, now: _Round) -> None:
        """Checks that every pending pod is in a queue or assumed (I3), unless the list has shown that it was deleted."""
        for pods in slices(list(self._pods.pending.values()), SLICE_ITEMS):
            for pod in pods:
                is_known = self._pods.pending.get(pod.uid) is pod and pod.uid not in now.missing
                if is_known and self._repair.is_lost(pod):
                    mark = ("queue", pod.uid, pod.version)
                    difference = Difference("queue", pod.key, "pending, and in no queue", mark)
                    if self._counts(now, difference, is_proven=False):
                        self._counters.inner += 1
                        self._repair.readmit(pod)
            await asyncio.sleep(0)

    async def _check_rows(self, now: _Round) -> None:
        """Checks that every column is the sum of the row's pods, and that rows and cache entries have the same pods (I4)."""
        table, cache = self._cache.nodes, self._cache
        for rows in slices(range(table.size), SLICE_ROWS):
            faults = row_faults(table, rows)
            for row in rows:
                for uid, pod in table.pods_by_uid(row).items():
                    entry = cache.placed(uid)
                    if entry is None or entry.row != row or entry.pod is not pod:
                        faults[row] = f"row {row} has pod {pod.key}, its entry says {entry}"
            self._repair_rows(faults, now)
            await asyncio.sleep(0)
        on_rows = sum(len(table.pods_by_uid(row)) for row in range(table.size))
        if on_rows + cache.stray_count() != len(cache):
            lacking = {
                e.row: f"row {e.row} lacks pod {e.pod.key}" for e in cache if _is_off_its_row(cache, e.pod, e.row)
            }
            self._repair_rows(lacking, now)

    def _repair_rows(self, faults: Mapping[int, str], now: _Round) -> None:
        for row, what in faults.items():
            node = self._cache.nodes.node_at(row)
            now.found.append(Difference("row", node.name if node is not None else str(row), what))
            self._counters.inner += 1
            if node is not None:
                self._cache.repair_row(row)

    async def _check_ledgers(self, now: _Round) -> None:
        def report(key: str, what: str) -> None:
            now.found.append(Difference("ledger", key, what))
            self._counters.inner += 1

        await self._ledgers.check(report)


def _item_of(raw: msgspec.Raw) -> _Item:
    try:
        return _item_decoder.decode(raw)
    except UnicodeDecodeError:
        return _item_decoder.decode(with_valid_text(raw))


def _is_off_its_row(cache: ClusterCache, pod: Pod, row: int) -> bool:
    return row != NO_ROW and pod.uid not in cache.nodes.pods_by_uid(row)


def _position(audited_kind: AuditedKind) -> Version:
    return version_of(audited_kind.reflector.position)

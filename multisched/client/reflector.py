"""Keeps a handler in step with one kind of object: list, watch, resume, relist (reference: reliability 4, classes 1-7).

Owns the position in the server's history, the version guard and the retries. Promises the handler only clean calls, in
order, from one task and never awaited: each object version at most once, never an older one after a newer one, a delete
for everything that vanished while nobody watched. Started by the shell, one task per kind.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from contextlib import aclosing
from enum import Enum, auto
from typing import Final, Protocol

import anyio
import msgspec
from msgspec.structs import replace

from multisched.client.backoff import Backoff
from multisched.client.errors import (
    ApiError,
    Forbidden,
    Gone,
    NotFound,
    StatusBody,
    TooManyRequests,
    error_for,
    error_of,
    parse_status,
)
from multisched.client.history import History
from multisched.client.known_objects import KnownObjects, Verdict, is_older
from multisched.client.lister import (
    PAGE_ITEMS,
    MalformedAnswerError,
    Page,
    TornListError,
    list_pages,
    with_query,
)
from multisched.framework.ports import Clock
from multisched.model.decode_metadata import with_valid_text
from multisched.model.wire import UNREADABLE, LineStream, Response, Transport, TransportError

logger = logging.getLogger(__name__)

WATCH_TIMEOUT_MIN_S: Final = 240
WATCH_TIMEOUT_MAX_S: Final = 540
IDLE_TIMEOUT_S: Final = 90.0
"""Bookmarks come about once a minute; silence beyond this is a half-open connection."""
SHORT_WATCH_S: Final = 1.0
HEALTHY_S: Final = 120.0
BATCH_ITEMS: Final = 128
"""So many objects are handed on before other tasks get their turn."""
RESUMES_MAX: Final = 3
"""Failed resumes in a row without progress (garbage, in-stream 5xx) before the reflector lists again."""
STALE_LIST_PAUSE_S: Final = 4.0
"""Between lists that are older than what was seen: nothing is decided meanwhile, so an outage's long backoff would be too much."""
STALE_LISTS_MAX: Final = 5
"""So many lists in a row that are older than what was seen mean that the server's history itself went back (restored backup)."""
REFUSALS_MAX: Final = 3
"""Lists in a row answered 403 or 404 that mean that the kind is not to be had: a server that starts says so for a moment."""


class ReflectorHandler(Protocol):
    """The store behind a reflector. Plain functions: the reflector never waits for its handler."""

    def upsert(self, key: str, raw: msgspec.Raw) -> None:
        """A new or newer object. `key` is namespace/name, or the bare name; `raw` its JSON, valid during the call only."""
        ...

    def delete(self, key: str, raw: msgspec.Raw | None) -> None:
        """The object is gone. `raw` is its last state, None if the deletion itself was not seen."""
        ...

    def replaced(self, version: str) -> None:
        """A complete list has just been handed on: the store equals the server as of `version`."""
        ...


class ReflectorStatistics(msgspec.Struct):
    """Counters since start, and the present position."""

    version: str = ""
    objects: int = 0
    lists: int = 0
    list_failures: int = 0
    stale_lists: int = 0
    watches: int = 0
    watch_failures: int = 0
    events: int = 0
    bookmarks: int = 0
    upserts: int = 0
    deletes: int = 0
    synthetic_deletes: int = 0
    duplicates: int = 0
    stale: int = 0
    malformed: int = 0
    expired: int = 0
    short_watches: int = 0


class ContradictoryListError(Exception):
    """A list that is as new as what is known shows something older: the server's history was rewritten."""


class Ending(Enum):
    """How one watch ended, and with it what comes next."""

    RESUME = auto()
    """Cleanly, by the server: watch again at once."""
    RETRY = auto()
    """By a fault: wait, then watch again from the same version."""
    SUSPECT = auto()
    """By something the same version may bring again: as RETRY, but after `RESUMES_MAX` in a row list anew."""
    RELIST = auto()
    """The version is gone: list anew."""


class _Metadata(msgspec.Struct, gc=False):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    version: str = msgspec.field(name="resourceVersion", default="")


class _Object(msgspec.Struct, gc=False):
    metadata: _Metadata


class _WatchLine(msgspec.Struct, gc=False):
    type: str
    object: msgspec.Raw


_object_decoder = msgspec.json.Decoder(_Object)
_line_decoder = msgspec.json.Decoder(_WatchLine)


class Reflector:
    """One kind, e.g. `/api/v1/pods`, optionally narrowed by selectors."""

    def __init__(
        self,
        transport: Transport,
        path: str,
        *,
        handler: ReflectorHandler,
        clock: Clock,
        rng: random.Random,
        field_selector: str = "",
        label_selector: str = "",
        page_items: int = PAGE_ITEMS,
        on_refused: Callable[[Exception], None] | None = None,
        history: History | None = None,
    ) -> None:
        """`on_refused` hears why when the server keeps answering lists with 403 or 404; asking goes on all the same.

        `history`: shared with the other reflectors of this server; None: its own.
        """
        self._on_refused = on_refused
        self._refusals = 0
        self._settled = asyncio.Event()
        self._transport = transport
        self._path = path
        self._handler = handler
        self._clock = clock
        self._rng = rng
        self._field_selector = field_selector
        self._label_selector = label_selector
        self._page_items = page_items
        self._known = KnownObjects()
        self._counters = ReflectorStatistics()
        self._backoff = Backoff(rng)
        self._version = ""
        self._newest = ""
        """The newest version that anything was handed on of; ahead of the position while a list comes in pages."""
        self._synced = asyncio.Event()
        self._stale_lists = 0
        self._suspects = 0
        self._retry_after_s = 0.0
        self._progress = 0
        self._disconnected_since: float | None = clock.monotonic()
        self._watch_scope: anyio.CancelScope | None = None
        self._is_relist_requested = False
        self._hurry = asyncio.Event()
        self._begun = 0
        """Lists begun so far; a list's number is what this was when it began."""
        self._finished = 0
        """Number of the latest list that was handed on whole."""
        self._list_finished = asyncio.Event()
        self._history = history if history is not None else History()
        self._history.join(path, self.request_relist)

    async def wait_synced(self) -> None:
        await self._synced.wait()

    async def wait_settled(self) -> None:
        """Returns once a first list has been handed on, or the server has refused it for good (`on_refused`)."""
        await self._settled.wait()

    @property
    def is_refused(self) -> bool:
        """True while the server answers that it does not serve the kind, or not to us."""
        return self._refusals >= REFUSALS_MAX

    def staleness_s(self) -> float:
        """Seconds since the last open watch ended or list failed; 0 while a watch is open."""
        return 0.0 if self._disconnected_since is None else self._clock.monotonic() - self._disconnected_since

    def request_relist(self) -> None:
        """Lists anew at once: the audit found a difference."""
        self._is_relist_requested = True
        self._hurry.set()
        if self._watch_scope is not None:
            self._watch_scope.cancel()

    def distrust(self, key: str, uid: str) -> None:
        """The next list hands this object on even if its version seems known: the audit found that the store lacks it."""
        self._known.distrust(key, uid)

    def uid_of(self, key: str) -> str:
        """The uid last handed on under this key; empty if none is."""
        return self._known.uid_of(key)

    @property
    def position(self) -> str:
        """The resourceVersion up to which everything the server sent has been handed on."""
        return self._version

    async def relist(self) -> None:
        """Returns once a list that began after this call has been handed on: the store has missed nothing until now."""
        wanted = self._begun + 1
        self.request_relist()
        while self._finished < wanted:
            self._list_finished.clear()
            await self._list_finished.wait()

    def statistics(self) -> ReflectorStatistics:
        return replace(self._counters, version=self._version, objects=len(self._known))

    async def run(self) -> None:
        """Lists and watches until cancelled. Raises only what the handler raises."""
        while True:
            await self._list_until_complete()
            await self._watch_until_expired()

    # ---- list

    async def _list_until_complete(self) -> None:
        """Tries until a whole list has been handed on."""
        page_items = self._page_items
        while True:
            self._is_relist_requested = False
            self._begun += 1
            at_least_s = 0.0
            try:
                if await self._list_once(page_items):
                    return
                self._counters.list_failures += 1
                await self._pause(STALE_LIST_PAUSE_S * (1 + self._rng.random() / 4))
                continue
            except (Gone, TornListError) as error:
                # The continue token expired: the rest of that list is lost. The next one is asked for in one piece.
                self._counters.expired += isinstance(error, Gone)
                page_items = 0
            except TooManyRequests as error:
                at_least_s = error.retry_after_s
            except (ApiError, TransportError, MalformedAnswerError, ContradictoryListError) as error:
                self._counters.malformed += isinstance(error, MalformedAnswerError)
                self._count_refusal(error)
                if not self.is_refused:
                    logger.warning("list failed", extra={"path": self._path, "error": str(error)})
            self._counters.list_failures += 1
            await self._pause(self._backoff.next_s(at_least_s))

    def _count_refusal(self, error: Exception) -> None:
        """A refusal that lasts is told once to `on_refused`, and no more in the log; without a listener it stays there."""
        if self._on_refused is None:
            return
        self._refusals = self._refusals + 1 if isinstance(error, Forbidden | NotFound) else 0
        if self.is_refused:
            self._on_refused(error)
            self._settled.set()
            self._history.leave(self._path)

    async def _list_once(self, page_items: int) -> bool:
        """False if the list was not used, as it is older than what has been seen."""
        pages = list_pages(
            self._transport,
            self._path,
            field_selector=self._field_selector,
            label_selector=self._label_selector,
            page_items=page_items,
        )
        async with aclosing(pages):
            first = await anext(pages)
            if not self._may_use(first.version):
                return False
            if self._history.must_start_over(self._path):
                whole = [self._items_of(page) for page in [first, *[page async for page in pages]]]
                self._known.forget_versions()  # not before the list is whole: until then what is known stays in force
                self._known.begin_replace()
                for items in whole:
                    await self._ingest(items)
                self._history.started_over(self._path)
            else:
                self._known.begin_replace()
                self._newest = first.version
                await self._ingest(self._items_of(first), first.version)
                async for page in pages:
                    await self._ingest(self._items_of(page), page.version)
        self._finish_list(first.version)
        return True

    def _may_use(self, version: str) -> bool:
        """Refuses a list from the past (a lagging API server, #59848), unless the past has plainly become the present."""
        if not is_older(version, self._newest):
            self._stale_lists = 0
            return True
        self._counters.stale_lists += 1
        self._stale_lists += 1
        self._history.doubt(self._path)
        if self._stale_lists < STALE_LISTS_MAX:
            return False
        self._history.went_back(self._path)
        return True

    def _items_of(self, page: Page) -> list[tuple[_Metadata, msgspec.Raw]]:
        try:
            return [(_metadata_of(raw), raw) for raw in page.items]
        except UNREADABLE as error:
            raise MalformedAnswerError(f"an item in the list of {self._path} has no metadata") from error

    async def _ingest(self, items: Sequence[tuple[_Metadata, msgspec.Raw]], version: str = "") -> None:
        """Hands on a page of a list. `version`: of a list that shows what is known, or something newer."""
        for start in range(0, len(items), BATCH_ITEMS):
            for metadata, raw in items[start : start + BATCH_ITEMS]:
                verdict = self._observe(metadata, raw)
                if verdict is Verdict.STALE and is_older(metadata.version, version):
                    # What was seen of it never was, or its deletion: a list that is as new cannot show an earlier state.
                    self._history.went_back(self._path)
                    raise ContradictoryListError(f"the list of {self._path} shows an object as it was before")
            await asyncio.sleep(0)

    def _finish_list(self, version: str) -> None:
        self._delete_unseen(self._known.end_replace(version, self._clock.monotonic()))
        self._version = self._newest = version
        self._suspects = 0
        self._refusals = 0
        self._counters.lists += 1
        self._handler.replaced(version)
        self._history.listed(self._path)
        self._finished = self._begun
        self._list_finished.set()
        self._synced.set()
        self._settled.set()

    def _delete_unseen(self, keys: list[str]) -> None:
        for key in keys:
            self._handler.delete(key, None)
        self._counters.synthetic_deletes += len(keys)

    async def _pause(self, delay_s: float) -> None:
        """A backoff, which a requested relist cuts short."""
        self._hurry.clear()
        try:
            async with asyncio.timeout(delay_s):
                await self._hurry.wait()
        except TimeoutError:
            return

    # ---- watch

    async def _watch_until_expired(self) -> None:
        """Watches and resumes until only a new list helps."""
        while not self._is_relist_requested:
            started = self._clock.monotonic()
            self._progress = 0
            self._retry_after_s = 0.0
            ending = await self._watch_once()
            ended = self._clock.monotonic()
            lived_s = ended - started
            if self._disconnected_since is None:
                self._disconnected_since = ended
            if self._is_relist_requested or ending is Ending.RELIST:
                # A server that expires every version at once must not be asked for lists in a tight loop.
                if lived_s < SHORT_WATCH_S and not self._progress and not self._is_relist_requested:
                    await self._pause(self._backoff.next_s())
                return
            self._suspects = self._suspects + 1 if ending is Ending.SUSPECT and not self._progress else 0
            if self._suspects >= RESUMES_MAX:
                self._suspects = 0
                await self._pause(self._backoff.next_s(self._retry_after_s))
                return
            if lived_s >= HEALTHY_S:
                self._backoff.reset()
            is_short = ending is Ending.RESUME and lived_s < SHORT_WATCH_S and not self._progress
            self._counters.short_watches += is_short
            if ending is not Ending.RESUME or is_short:
                await self._pause(self._backoff.next_s(self._retry_after_s))

    async def _watch_once(self) -> Ending:
        self._counters.watches += 1
        ending = Ending.RELIST  # stands if request_relist cancels the scope
        try:
            with anyio.CancelScope() as scope:
                self._watch_scope = scope
                ending = await self._open_and_consume()
        except TransportError as error:
            self._counters.watch_failures += 1
            logger.info("watch broke", extra={"path": self._path, "error": str(error)})
            ending = Ending.RETRY
        finally:
            self._watch_scope = None
        return ending

    async def _open_and_consume(self) -> Ending:
        async with self._transport.stream(self._watch_path(), idle_timeout_s=IDLE_TIMEOUT_S) as stream:
            if stream.status != 200:
                body = await stream.read_body()
                return self._refused(error_for(Response(stream.status, body, stream.headers)))
            self._disconnected_since = None
            return await self._consume(stream)

    def _watch_path(self) -> str:
        return with_query(
            self._path,
            watch="1",
            allowWatchBookmarks="true",
            resourceVersion=self._version,
            timeoutSeconds=str(self._rng.randint(WATCH_TIMEOUT_MIN_S, WATCH_TIMEOUT_MAX_S)),
            fieldSelector=self._field_selector,
            labelSelector=self._label_selector,
        )

    async def _consume(self, stream: LineStream) -> Ending:
        """Hands on lines until the watch ends."""
        async for line in stream:
            try:
                event = _line_decoder.decode(line)
                ending = self._apply(event)
            except UNREADABLE:
                self._counters.malformed += 1
                logger.warning("malformed watch line", extra={"path": self._path, "length": len(line)})
                return Ending.SUSPECT
            if ending is not None:
                return ending
            self._progress += 1
            if not self._progress % BATCH_ITEMS:
                await asyncio.sleep(0)
        return Ending.RESUME

    def _apply(self, event: _WatchLine) -> Ending | None:
        """One watch event; an ending if it was the last one."""
        if event.type == "ERROR":
            return self._refused_in_stream(parse_status(event.object))
        metadata = _metadata_of(event.object)
        if event.type in ("ADDED", "MODIFIED"):
            self._counters.events += 1
            self._observe(metadata, event.object)
        elif event.type == "DELETED":
            self._counters.events += 1
            self._remove(metadata, event.object)
        elif event.type == "BOOKMARK":
            self._counters.bookmarks += 1
            if is_older(metadata.version, self._version):
                return Ending.RELIST  # from a server that lags, or history went back: a list tells
        else:
            self._counters.malformed += 1
            return None
        # The guard of single objects is separate: a reordered older event must not move the position back.
        if metadata.version and not is_older(metadata.version, self._version):
            self._version = self._newest = metadata.version
        return None

    def _refused_in_stream(self, status: StatusBody) -> Ending:
        if status.reason in ("Expired", "Gone"):
            status.code = 410
        return self._refused(error_of(status.code or 500, status))

    def _refused(self, error: ApiError) -> Ending:
        self._counters.watch_failures += 1
        self._retry_after_s = error.retry_after_s
        if isinstance(error, Gone):
            self._counters.expired += 1
            return Ending.RELIST
        logger.warning("watch refused", extra={"path": self._path, "error": str(error)})
        is_about_load = isinstance(error, TooManyRequests) or error.status in (502, 503)
        return Ending.RETRY if is_about_load else Ending.SUSPECT

    # ---- objects

    def _observe(self, metadata: _Metadata, raw: msgspec.Raw) -> Verdict:
        key = f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name
        old_uid = self._known.uid_of(key)
        verdict = self._known.observe(key, metadata.uid, metadata.version)
        if verdict is Verdict.UPSERT:
            self._counters.upserts += 1
            self._handler.upsert(key, raw)
        elif verdict is Verdict.REPLACE:
            self._known.bury_replaced(old_uid, metadata.version, self._clock.monotonic())
            self._counters.synthetic_deletes += 1
            self._counters.upserts += 1
            self._handler.delete(key, None)
            self._handler.upsert(key, raw)
        elif verdict is Verdict.DUPLICATE:
            self._counters.duplicates += 1
        else:
            self._counters.stale += 1
        return verdict

    def _remove(self, metadata: _Metadata, raw: msgspec.Raw) -> None:
        key = f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name
        verdict = self._known.remove(key, metadata.uid, metadata.version, self._clock.monotonic())
        if verdict is Verdict.DELETE:
            self._counters.deletes += 1
            self._handler.delete(key, raw)
        elif verdict is Verdict.REPLACE:
            self._counters.synthetic_deletes += 1
            self._handler.delete(key, None)
        else:
            self._counters.stale += 1


def _metadata_of(raw: msgspec.Raw) -> _Metadata:
    try:
        return _object_decoder.decode(raw).metadata
    except UnicodeDecodeError:  # one such object must not keep all others of its kind from being read
        return _object_decoder.decode(with_valid_text(raw)).metadata

"""Keeps a handler in sync with one kind of object: list, watch, resume, relist.

Owns the alternation of lists and watches, and the retries. The handler is called synchronously and in order, from one
task. It gets each object version at most once, never an older one after a newer one, and a delete for each object that
vanished while no watch was open (`ObjectFeed`). Started by the shell, one task per kind.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from multisched.client.backoff import Backoff
from multisched.client.errors import ApiError, Forbidden, Gone, NotFound, TooManyRequests
from multisched.client.history import History
from multisched.client.list_reader import ContradictoryListError, ListReader
from multisched.client.lister import PAGE_ITEMS, MalformedAnswerError, TornListError
from multisched.client.object_feed import ObjectFeed, ReflectorHandler
from multisched.client.read_troubles import ReadTroubles
from multisched.client.watch import Ending, Watch
from multisched.framework.ports import Clock
from multisched.model.wire import Transport, TransportError

logger = logging.getLogger(__name__)

SHORT_WATCH_S: Final = 1.0
"""After a shorter watch without progress, the reflector waits for its backoff."""
HEALTHY_S: Final = 120.0
"""A watch that was open this long resets the backoff."""
RESUMES_MAX: Final = 3
"""Failed resumes in a row without progress (malformed lines, in-stream 5xx) before the reflector lists again."""
STALE_LIST_PAUSE_S: Final = 4.0
"""Pause after a list that is older than what was seen. Scheduling stops meanwhile, so the backoff for outages would be too long."""
REFUSALS_MAX: Final = 3
"""After this many lists in a row with 403 or 404 the kind is unavailable. A starting server briefly returns them, too."""
ABSENT_PAUSE_S: Final = 5.0
"""Pause between lists of an optional kind that is not installed, plus up to a quarter at random. Each list costs the server
one 404 for each version of the kind: nine in five seconds if neither quotas nor gangs are installed.
"""


class ReflectorStatistics(msgspec.Struct, frozen=True):
    """Counters since start, and the current position."""

    version: str
    objects: int
    lists: int
    list_failures: int
    stale_lists: int
    watches: int
    watch_failures: int
    events: int
    bookmarks: int
    upserts: int
    deletes: int
    synthetic_deletes: int
    duplicates: int
    stale: int
    malformed: int
    expired: int
    short_watches: int


class _LoopCounters(msgspec.Struct):
    lists: int = 0
    list_failures: int = 0
    malformed_lists: int = 0
    expired_lists: int = 0
    short_watches: int = 0


class Reflector:
    """Lists and watches one kind, e.g. `/api/v1/pods`, optionally narrowed by selectors."""

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
        on_refused: Callable[[str], None] | None = None,
        history: History | None = None,
        is_optional: bool = False,
        or_paths: Sequence[str] = (),
        name: str = "",
        troubles: ReadTroubles | None = None,
    ) -> None:
        """`on_refused` is called with the reason if the server keeps returning 403 or 404 for lists; the reflector
        keeps retrying.

        `is_optional`: the kind need not be installed. A 404 then counts as an empty list; once a list was complete, it
        takes REFUSALS_MAX 404s in a row. `on_refused` is called for 403 only. While the kind is not installed, it is
        listed again every 5 to 6.25 s. `or_paths`: paths of other versions of the kind; the first one that the server
        serves is used. `name`: identifies the reflector in the history and in logs if another one has the same path;
        empty: the path.

        `history` and `troubles`: shared with the other reflectors of this server; None: separate ones.
        """
        self._on_refused = on_refused
        self._is_optional = is_optional
        self._is_absent = False
        self._refusals = 0
        self._settled = asyncio.Event()
        self.name = name or path
        self._paths = deque((path, *or_paths))
        """The path in use comes first."""
        self._missing = 0
        """Number of consecutive paths that were not served."""
        self._clock = clock
        self._rng = rng
        self._page_items = page_items
        self._counters = _LoopCounters()
        self._backoff = Backoff(rng)
        self._synced = asyncio.Event()
        self._suspects = 0
        """Number of failed resumes in a row, for RESUMES_MAX."""
        self._is_relist_requested = False
        self._pause_end = asyncio.Event()
        self._begun = 0
        """Number of lists begun so far; it is also the number of the latest list."""
        self._finished = 0
        """Number of the latest list that was passed on completely."""
        self._list_finished = asyncio.Event()
        self._history = history if history is not None else History()
        selectors = {"field_selector": field_selector, "label_selector": label_selector}
        self._feed = ObjectFeed(handler, clock)
        self._lists = ListReader(transport, path, self._feed, self._history, name=self.name, **selectors)
        self._troubles = troubles if troubles is not None else ReadTroubles(clock)
        self._watch = Watch(
            transport, path, self._feed, clock, rng, name=self.name, troubles=self._troubles, **selectors
        )
        self._history.join(self.name, self.request_relist)

    @property
    def path(self) -> str:
        """The path at which the kind is listed now."""
        return self._paths[0]

    async def wait_synced(self) -> None:
        await self._synced.wait()

    async def wait_settled(self) -> None:
        """Returns once a first list was passed on, or the server has refused it repeatedly (`on_refused`)."""
        await self._settled.wait()

    @property
    def is_refused(self) -> bool:
        """True while the server returns 404 or 403 for this kind."""
        return self._refusals >= REFUSALS_MAX

    def staleness_s(self) -> float:
        """Returns the seconds since the last open watch ended, or since the start if none was open yet; 0 while one is open, or if the
        kind is not installed.
        """
        return 0.0 if self._is_absent else self._watch.staleness_s()

    def request_relist(self) -> None:
        """Starts a new list at once, for instance because the audit found a difference."""
        self._is_relist_requested = True
        self._pause_end.set()
        self._watch.end()

    def distrust(self, key: str, uid: str) -> None:
        """Makes the next list pass this object on even if its version is known, because the audit found that the store lacks it."""
        self._feed.known.distrust(key, uid)

    def uid_of(self, key: str) -> str:
        """Returns the uid last passed on for this key; empty if there is none."""
        return self._feed.known.uid_of(key)

    def version_of(self, key: str) -> str:
        """Returns the version last passed on for this key; empty if there is none, or if it is distrusted."""
        return self._feed.known.version_of(key)

    def keys(self) -> Sequence[str]:
        """Returns a copy of the keys of all objects that were passed on."""
        return self._feed.known.keys()

    @property
    def position(self) -> str:
        """The resourceVersion up to which everything that the server sent has been passed on."""
        return self._feed.position

    async def relist(self) -> None:
        """Returns once a list that began after this call was passed on: the store has everything up to now."""
        wanted = self._begun + 1
        self.request_relist()
        while self._finished < wanted:
            self._list_finished.clear()
            await self._list_finished.wait()

    def statistics(self) -> ReflectorStatistics:
        loop, watch, feed = self._counters, self._watch.counters, self._feed.counters
        return ReflectorStatistics(
            version=self._feed.position,
            objects=len(self._feed.known),
            lists=loop.lists,
            list_failures=loop.list_failures,
            stale_lists=self._lists.stale,
            watches=watch.watches,
            watch_failures=watch.failures,
            events=watch.events,
            bookmarks=watch.bookmarks,
            upserts=feed.upserts,
            deletes=feed.deletes,
            synthetic_deletes=feed.synthetic_deletes,
            duplicates=feed.duplicates,
            stale=feed.stale,
            malformed=loop.malformed_lists + watch.malformed,
            expired=loop.expired_lists + watch.expired,
            short_watches=loop.short_watches,
        )

    async def run(self) -> None:
        """Lists and watches until cancelled. Raises only errors of the handler."""
        while True:
            await self._list_until_complete()
            await self._watch_until_expired()

    # ---- list

    async def _list_until_complete(self) -> None:
        """Retries until a whole list was passed on."""
        page_items = self._page_items
        while True:
            self._is_relist_requested = False
            self._begun += 1
            at_least_s = 0.0
            try:
                if await self._lists.read(page_items) is not None:
                    self._finish_list()
                    return
                self._counters.list_failures += 1
                await self._pause(STALE_LIST_PAUSE_S * (1 + self._rng.random() / 4))
                continue
            except (Gone, TornListError) as error:
                # The pages do not form one complete list. The next list is requested as one page.
                self._counters.expired_lists += isinstance(error, Gone)
                page_items = 0
            except TooManyRequests as error:
                at_least_s = error.retry_after_s
            except (ApiError, TransportError, MalformedAnswerError, ContradictoryListError) as error:
                if isinstance(error, NotFound) and self._switch_path():
                    continue
                if self._is_not_installed(error):
                    self._take_as_empty()
                    await self._pause(ABSENT_PAUSE_S * (1 + self._rng.random() / 4))
                    continue
                self._counters.malformed_lists += isinstance(error, MalformedAnswerError)
                self._count_refusal(error)
                if not self.is_refused:
                    self._troubles.lists.failed(self.name, error)
            self._counters.list_failures += 1
            await self._pause(self._backoff.next_s(at_least_s))

    def _count_refusal(self, error: Exception) -> None:
        """Counts a 403 or 404. From REFUSALS_MAX in a row on, each is passed to `on_refused`, and the caller does not log it.
        Without `on_refused`, nothing is counted and all are logged.
        """
        if self._on_refused is None:
            return
        self._refusals = self._refusals + 1 if isinstance(error, Forbidden | NotFound) else 0
        if self.is_refused:
            self._troubles.lists.fine(self.name)  # `on_refused` reports it from now on
            self._is_absent = False
            self._on_refused(str(error))
            self._settled.set()
            self._history.leave(self.name)

    def _switch_path(self) -> bool:
        """Switches to the path of the next version of the kind. Returns False once all were tried."""
        self._missing = (self._missing + 1) % len(self._paths)
        self._paths.rotate(-1)
        self._lists.url = self._watch.url = self._paths[0]
        return self._missing > 0

    def _is_not_installed(self, error: Exception) -> bool:
        """Returns whether the kind counts as not installed. For a kind that was listed before, it takes REFUSALS_MAX
        404s; until then its objects stay.
        """
        is_believed = self._is_absent or not self._synced.is_set() or self._refusals + 1 >= REFUSALS_MAX
        return self._is_optional and isinstance(error, NotFound) and is_believed

    def _take_as_empty(self) -> None:
        """Applies an empty list for a kind that is not installed, and ends all waits for its list."""
        self._refusals = REFUSALS_MAX
        if not self._is_absent:
            self._is_absent = True
            logger.info("kind is not installed; it counts as empty", extra={"path": self.name})
            self._feed.begin_list()
            self._feed.end_list("")
        self._history.leave(self.name)
        self._set_synced()

    def _finish_list(self) -> None:
        self._suspects = 0
        self._refusals = self._missing = 0
        self._is_absent = False
        self._troubles.lists.fine(self.name)
        self._counters.lists += 1
        self._history.listed(self.name)
        self._set_synced()

    def _set_synced(self) -> None:
        self._finished = self._begun
        self._list_finished.set()
        self._synced.set()
        self._settled.set()

    async def _pause(self, delay_s: float) -> None:
        """Waits for a backoff. A requested relist ends the wait; one requested before skips it."""
        if self._is_relist_requested:
            return
        self._pause_end.clear()
        try:
            async with asyncio.timeout(delay_s):
                await self._pause_end.wait()
        except TimeoutError:
            return

    # ---- watch

    async def _watch_until_expired(self) -> None:
        """Watches and resumes until a new list is needed."""
        watch = self._watch
        while not self._is_relist_requested:
            started_s = self._clock.monotonic()
            ending = await watch.once()
            lived_s = self._clock.monotonic() - started_s
            if self._is_relist_requested or ending is Ending.RELIST:
                # If a server expires every version at once, lists must not be requested in a tight loop.
                if lived_s < SHORT_WATCH_S and not watch.progress and not self._is_relist_requested:
                    await self._pause(self._backoff.next_s())
                return
            self._suspects = self._suspects + 1 if ending is Ending.SUSPECT and not watch.progress else 0
            if self._suspects >= RESUMES_MAX:
                self._suspects = 0
                await self._pause(self._backoff.next_s(watch.retry_after_s))
                return
            if lived_s >= HEALTHY_S:
                self._backoff.reset()
            is_short = ending is Ending.RESUME and lived_s < SHORT_WATCH_S and not watch.progress
            self._counters.short_watches += is_short
            if ending is not Ending.RESUME or is_short:
                await self._pause(self._backoff.next_s(watch.retry_after_s))

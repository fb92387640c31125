"""The embedded Kubernetes API server: one synchronous function from request to answer.

`ApiServer` owns the store and everything derived from it (RBAC index, CRDs, discovery documents). It has no socket, no
task and no clock of its own; `http.py` serves it over TLS, `direct.py` calls it in process. Only watch lines are delivered
later, through the `WatchStream` it returns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import orjson

from multisched.cluster import bootstrap, errors
from multisched.cluster.admission import Admission
from multisched.cluster.metadata import Clock, Minting
from multisched.cluster.objects import Objects
from multisched.cluster.reads import Reads
from multisched.cluster.request import ApiRequest, parse_target, split_path
from multisched.cluster.resources import Catalog
from multisched.cluster.storage import HISTORY_EVENTS, Store
from multisched.cluster.verbs import Verbs
from multisched.cluster.watch import WatchStream
from multisched.model.wire import Response

Answer = Response | WatchStream


class Interceptor(Protocol):
    """Stands around every request: for faults, throttling, recording. An answer from `before` ends the request."""

    def before(self, request: ApiRequest) -> Response | None:
        """Called first; an answer here keeps the request from the server."""
        ...

    def after(self, request: ApiRequest, answer: Answer) -> Answer:
        """Called with the answer the server would give; the request has taken effect."""
        ...


RequestLog = Callable[[str, str, str, int], None]
"""Called with method, path, user name and status of every request."""


class ApiServer:
    """See the module. `seed` fixes uids and name suffixes; `history` is the number of events kept per kind."""

    def __init__(self, clock: Clock, *, seed: int = 0, rbac: bool = True, history: int = HISTORY_EVENTS) -> None:
        self.clock = clock
        self.store = Store(history)
        self.catalog = Catalog()
        self.minting = Minting(clock, seed)
        self.admission = Admission(self.store)
        self.objects = Objects(self.store, self.minting, self.admission)
        self.reads = Reads(self.store, self.minting)
        self.verbs = Verbs(self.catalog, self.objects, self.reads)
        self.interceptors: list[Interceptor] = []
        self.request_log: RequestLog | None = None
        self._unavailable = ""
        self._rbac = rbac
        bootstrap.fill(self.objects, self.catalog)

    # -- requests ------------------------------------------------------------------------------------------------

    def handle(self, request: ApiRequest) -> Answer:
        """Answers one request. Never raises for anything a client can cause."""
        answer = self._intercepted(request)
        if self.request_log is not None:
            self.request_log(request.method, request.path, request.user.name, answer.status)
        return answer

    def _intercepted(self, request: ApiRequest) -> Answer:
        for interceptor in self.interceptors:
            early = interceptor.before(request)
            if early is not None:
                return early
        try:
            answer = self._answer(request)
        except errors.ApiError as refusal:
            answer = refusal.response()
        for interceptor in self.interceptors:
            answer = interceptor.after(request, answer)
        return answer

    def _answer(self, request: ApiRequest) -> Answer:
        if self._unavailable:
            raise errors.unavailable(self._unavailable)
        segments, params = split_path(request.path)
        depth = 2 if segments[0] == "api" else 3 if segments[0] == "apis" else 0
        if depth and len(segments) > depth:
            target = parse_target(request.method, segments, params)
            return self.verbs.answer(request, target)
        raise errors.path_not_found()

    # -- faults and operation ------------------------------------------------------------------------------------

    def compact(self) -> None:
        """Forgets history: older versions answer 410, as after an etcd compaction."""
        self.store.compact()

    def drop_watches(self) -> int:
        """Breaks every open watch as a lost connection does; returns how many."""
        dropped = 0
        for collection in self.store.collections().values():
            for stream in tuple(collection.observers):
                if isinstance(stream, WatchStream):
                    stream.drop()
                    dropped += 1
        return dropped

    def expire_watches(self) -> int:
        """Ends every open watch with an in-stream 410; returns how many."""
        status = orjson.dumps(errors.expired("The resourceVersion for the provided watch is too old.").status)
        ended = 0
        for collection in self.store.collections().values():
            for stream in tuple(collection.observers):
                if isinstance(stream, WatchStream):
                    stream.fail(status)
                    ended += 1
        return ended

    def set_unavailable(self, why: str = "the server is currently unable to handle the request") -> None:
        """Answers 503 to everything until `set_available`."""
        self._unavailable = why

    def set_available(self) -> None:
        """Answers again."""
        self._unavailable = ""

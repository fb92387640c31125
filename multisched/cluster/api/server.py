"""The embedded Kubernetes API server: one synchronous function from request to response.

`ApiServer` owns the store and everything derived from it (RBAC index, CRDs, discovery documents). It has no socket and no
tasks, and its clock is injected. `http.py` serves it over TLS, `direct.py` calls it in process. Only watch lines are delivered
later, through the returned `WatchStream`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import orjson

from multisched.cluster.access.rbac import Attributes, Rbac
from multisched.cluster.access.tokens import Tokens
from multisched.cluster.admission.admission import Admission
from multisched.cluster.api import bootstrap, discovery, openapi
from multisched.cluster.api.crd import Definitions
from multisched.cluster.api.objects import Objects
from multisched.cluster.api.reads import Reads
from multisched.cluster.api.reviews import Reviews
from multisched.cluster.api.verbs import Verbs
from multisched.cluster.api.watch import WatchStream
from multisched.cluster.base import errors
from multisched.cluster.base.metadata import Clock, IdentityGenerator
from multisched.cluster.base.request import ApiRequest, Target, parse_target, split_path
from multisched.cluster.base.resources import Catalog
from multisched.cluster.base.storage import HISTORY_EVENTS, Store
from multisched.cluster.tables.table import Tables
from multisched.model.wire import Response

Answer = Response | WatchStream

VERSION = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.3",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "multisched",
    "platform": "embedded",
}
HEALTH_PATHS = frozenset({"healthz", "livez", "readyz"})


class Interceptor(Protocol):
    """Called before and after every request, for faults, throttling or recording."""

    def before(self, request: ApiRequest) -> Response | None:
        """Called before the server handles the request. A returned response is sent instead, without calls of the server or `after`."""
        ...

    def after(self, request: ApiRequest, answer: Answer) -> Answer:
        """Called with the server's response, after the request took effect; returns the response for the client."""
        ...


RequestLog = Callable[[str, str, str, int], None]
"""Called with method, path, user name and response status of every request."""


class ApiServer:
    """The embedded API server, from request to response.

    `seed` determines uids and name suffixes; `history` is the number of events kept per kind, for watches and paginated lists.
    """

    def __init__(self, clock: Clock, *, seed: int = 0, rbac: bool = True, history: int = HISTORY_EVENTS) -> None:
        self.clock = clock
        self.store = Store(history)
        self.catalog = Catalog()
        self.minting = IdentityGenerator(clock, seed)
        self.objects = Objects(self.store, self.minting, Admission(self.store))
        self.tokens = Tokens(self.store, self.minting)
        self.rbac = Rbac(self.store)
        reviews = Reviews(self.objects, self.tokens, self.rbac, enforces=rbac)
        self._verbs = Verbs(self.catalog, self.objects, Reads(self.store, self.minting), reviews, Tables(clock))
        self._definitions = Definitions(self.objects, self.catalog, self.store)
        self._enforces_rbac = rbac
        self._unavailable = ""
        self.interceptors: list[Interceptor] = []
        self.request_log: RequestLog | None = None
        bootstrap.fill(self.objects, self.catalog)

    # -- requests ------------------------------------------------------------------------------------------------

    def handle(self, request: ApiRequest) -> Answer:
        """Handles one request. A malformed request gets a response, never an exception."""
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
        except (TypeError, AttributeError, KeyError, ValueError) as problem:
            # A document of unexpected shape fails only its own request, not the server.
            answer = errors.bad_request(
                f"the object provided is unrecognized: {type(problem).__name__}: {problem}"
            ).response()
        for interceptor in self.interceptors:
            answer = interceptor.after(request, answer)
        return answer

    def _answer(self, request: ApiRequest) -> Answer:
        if self._unavailable:
            raise errors.unavailable(self._unavailable)
        segments, params = split_path(request.path)
        root = segments[0]
        depth = 2 if root == "api" else 3 if root == "apis" else 0
        if depth and len(segments) > depth:
            target = parse_target(request.method, segments, params)
            if self._enforces_rbac:
                self.rbac.check(request.user, _attributes(target))
            return self._verbs.answer(request, target)
        if root not in HEALTH_PATHS and self._enforces_rbac:
            asked = Attributes(request.method.lower(), path="/" + "/".join(segments))
            self.rbac.check(request.user, asked)
        return self._answer_beside(request, segments, params)

    def _answer_beside(self, request: ApiRequest, segments: list[str], params: Mapping[str, str]) -> Response:
        """Handles paths other than objects: discovery, OpenAPI, version, health."""
        del params
        root = segments[0]
        if root in ("api", "apis"):
            return discovery.answer(self.catalog, segments, request.accept, "127.0.0.1")
        if root == "openapi" and len(segments) > 1:
            if segments[1] == "v2":
                return openapi.v2(request.accept)
            if segments[1] == "v3":
                return openapi.v3(self.catalog, segments[2:])
        if root == "version":
            return Response(200, orjson.dumps(VERSION), {"content-type": "application/json"})
        if root in HEALTH_PATHS:
            return Response(200, b"ok", {"content-type": "text/plain; charset=utf-8"})
        if root == "":
            paths = ["/api", "/apis", "/healthz", "/livez", "/openapi/v2", "/openapi/v3", "/readyz", "/version"]
            return Response(200, orjson.dumps({"paths": paths}), {"content-type": "application/json"})
        raise errors.path_not_found()

    # -- faults and operation ------------------------------------------------------------------------------------

    def compact(self) -> None:
        """Discards history: watches and lists of older versions get 410, as after an etcd compaction."""
        self.store.compact()

    def drop_watches(self) -> int:
        """Breaks every open watch like a lost connection; returns their number."""
        streams = self._open_watches()
        for stream in streams:
            stream.drop()
        return len(streams)

    def expire_watches(self) -> int:
        """Ends every open watch with an in-stream 410; returns their number."""
        status = orjson.dumps(errors.expired("The resourceVersion for the provided watch is too old.").status)
        streams = self._open_watches()
        for stream in streams:
            stream.fail(status)
        return len(streams)

    def _open_watches(self) -> list[WatchStream]:
        collections = self.store.collections().values()
        return [stream for entry in collections for stream in entry.observers if isinstance(stream, WatchStream)]

    def set_unavailable(self, why: str = "the server is currently unable to handle the request") -> None:
        """Answers every request with 503 until `set_available`."""
        self._unavailable = why

    def set_available(self) -> None:
        """Ends the effect of `set_unavailable`."""
        self._unavailable = ""


def _attributes(target: Target) -> Attributes:
    return Attributes(target.verb, target.group, target.plural, target.subresource, target.namespace, target.name)

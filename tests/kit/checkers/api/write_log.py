"""Reports writes to the API server to a checker."""

from __future__ import annotations

import re
from typing import Final, Protocol

import orjson

from multisched.cluster.api.watch import WatchStream
from multisched.cluster.base.request import ApiRequest
from multisched.model.wire import Response

POD_PATH: Final = re.compile(r"^/api/v1/namespaces/([^/]+)/pods/([^/?]+)(/status|/eviction)?(\?|$)")
"""Path of a request about a pod, its status or its eviction: namespace, name, and which."""
_LEASE = re.compile(r"/leases(?:/([^/?]+))?(?:\?|$)")


class WriteWatcher(Protocol):
    """Receives the writes."""

    def written(self) -> None:
        """Called after each write, before history is compacted."""
        ...

    def on_lease_written(self, name: str, holder: str, renewed_s: float) -> None: ...

    def on_lease_deleted(self, name: str) -> None: ...

    def report_violation(self, sentence: str) -> None: ...


class WriteLog:
    """A `server.Interceptor` that reports each write, each lease, and Events that the API refuses."""

    def __init__(self, watcher: WriteWatcher) -> None:
        self._watcher = watcher

    def before(self, request: ApiRequest) -> Response | None:
        return None

    def after(self, request: ApiRequest, answer: Response | WatchStream) -> Response | WatchStream:
        if request.method != "GET":
            self._watcher.written()
        if isinstance(answer, Response) and answer.status == 422 and "/events" in request.path:
            self._watcher.report_violation(f"I3: an Event was no Event: {answer.body[:200]!r}")
        about = _LEASE.search(request.path)
        if request.method == "DELETE" and about is not None:
            self._watcher.on_lease_deleted(about[1] or "")
        is_write = request.method in ("POST", "PUT") and about
        if is_write and isinstance(answer, Response) and answer.status in (200, 201):
            lease = orjson.loads(answer.body)
            spec = lease["spec"]
            renewed_s = _seconds(spec["renewTime"])
            self._watcher.on_lease_written(lease["metadata"]["name"], spec.get("holderIdentity") or "", renewed_s)
        return answer


def _seconds(micro_time: str) -> float:
    """Returns the seconds since the start of the run, which begins at 2026-01-01T00:00:00Z and lasts less than a day."""
    hours, minutes, seconds = micro_time[11:-1].split(":")
    return 3600 * int(hours) + 60 * int(minutes) + float(seconds)

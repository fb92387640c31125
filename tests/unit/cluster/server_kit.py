"""A server in process with a clock that stands still until it is moved."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from multisched.cluster.api.server import ApiServer
from multisched.cluster.api.watch import WatchStream
from multisched.cluster.base.request import ADMIN, ApiRequest, UserInfo
from multisched.model.wire import JSON, Response
from multisched.testing.builders import container, pod_document

PODS = "/api/v1/namespaces/default/pods"


class StandingClock:
    """Moves only when told."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def move(self, seconds: float) -> None:
        """Lets time pass."""
        self._seconds += seconds

    def now(self) -> datetime:
        """UTC."""
        return datetime(2026, 11, 21, tzinfo=UTC) + timedelta(seconds=self._seconds)

    def monotonic(self) -> float:
        """Seconds."""
        return self._seconds


def make_server(*, history: int = 1_000, seed: int = 0) -> ApiServer:
    """A fresh cluster."""
    return ApiServer(StandingClock(), seed=seed, history=history)


def ask(
    server: ApiServer, method: str, path: str, body: Any = None, content_type: str = JSON, user: UserInfo = ADMIN
) -> tuple[int, Any]:
    """Status and decoded body of a complete answer."""
    data = body if isinstance(body, bytes) or body is None else orjson.dumps(body)
    answer = server.handle(ApiRequest(method, path, data, content_type, user=user))
    assert isinstance(answer, Response)
    return answer.status, orjson.loads(answer.body)


def must(server: ApiServer, method: str, path: str, body: Any = None, content_type: str = JSON) -> Any:
    """The body of an answer that has to be a success."""
    status, answer = ask(server, method, path, body, content_type)
    assert status in (200, 201), answer
    return answer


def watch(server: ApiServer, path: str) -> WatchStream:
    """An open watch."""
    answer = server.handle(ApiRequest("GET", path))
    assert isinstance(answer, WatchStream), answer
    return answer


def add_pod(server: ApiServer, name: str, **spec: Any) -> Any:
    """Stores a pod of one container named `c`."""
    return must(server, "POST", PODS, pod_document(name, container("c"), labels={"app": "x"}, **spec))


def bind(server: ApiServer, name: str, node: str) -> tuple[int, Any]:
    """Places it."""
    return ask(server, "POST", f"{PODS}/{name}/binding", {"metadata": {"name": name}, "target": {"name": node}})

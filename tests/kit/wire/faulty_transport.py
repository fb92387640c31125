"""A transport between the program and the embedded cluster with named faults, drawn from a seed.

A request is sent in a task of its own: a process that is paused or killed cannot take back what it has sent.
"""

from __future__ import annotations

import asyncio
import contextvars
import re
import zlib
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager

from msgspec.structs import replace

from multisched.client.evictor import TWO_BUDGETS
from multisched.model.wire import JSON, AnswerLostError, ConnectFailedError, LineStream, Response, Transport
from tests.kit.wire.faults import (
    APPLIED,
    FORBIDDEN,
    LATE,
    LATE_408,
    LATE_500,
    REFUSED,
    THROTTLED,
    BindWatcher,
    Faults,
    garbled,
)
from tests.kit.wire.faulty_watch import FaultyLines, RefusedWatch

LATENCY_MIN_S, LATENCY_MAX_S = 0.0005, 0.02
LATE_APPLY_MAX_S = 4.0
SLOW_MIN, SLOW_MAX = 0.6, 0.95
"""Duration of a bind to a slow node, as a share of the sender's timeout."""
HELD_MAX_S = 20.0
"""Maximum time for which a list is held: its client would time out."""
_LIMIT = re.compile(r"limit=\d+")
_PAGE = b"<html><body>bad gateway</body></html>"
_FORBIDDEN = b'{"kind":"Status","status":"Failure","code":403,"reason":"Forbidden","message":"forbidden (injected)"}'
_NONSENSE = (
    _PAGE,
    b'{"metadata":{},"items":[]}',
    b'{"metadata":{"resourceVersion":"1"},"items":[{}]}',
    b'{"metadata":{"resourceVersion":"1"},"items":[{"spec":{}}]}',
)
"""Bodies in place of a list: no JSON, no version, objects without a name."""
_MISLEADING = (
    Response(500, b'{"kind":"Status","status":"Failure","code":500,"message":"' + TWO_BUDGETS.encode() + b'"}'),
    Response(500, b'{"kind":"Status","status":"Failure","code":500,"message":"etcd is away (injected)"}'),
    Response(409, b'{"kind":"Status","status":"Failure","code":409,"reason":"Conflict","message":"(injected)"}'),
    Response(404, b'{"kind":"Status","status":"Failure","code":404,"reason":"NotFound","message":"(injected)"}'),
    Response(429, b'{"kind":"Status","status":"Failure","code":429}', {"retry-after": "1"}),
)
_VERSION = re.compile(rb'"resourceVersion":"(\d+)"')
_TIMED_OUT = b'{"kind":"Status","status":"Failure","code":504,"reason":"Timeout","message":"timed out (injected)"}'
_UNSURE = (
    Response(504, _TIMED_OUT),
    Response(408, b"<html>Request Time-out</html>"),
    Response(500, b'{"kind":"Status","status":"Failure","code":500,"message":"rpc error: code = Unavailable"}'),
    Response(502, b"<html>Bad Gateway</html>"),
)
"""Responses of a server or proxy that does not know whether a binding was stored."""
_WITHOUT_RIGHTS = Response(
    403,
    b'{"kind":"Status","status":"Failure","code":403,"reason":"Forbidden","message":"pods \\"x\\" is forbidden: User \\"system'
    b':serviceaccount:kube-system:multisched\\" cannot create resource \\"pods/binding\\" in API group \\"\\""}',
)
_ANSWERS = {THROTTLED: _MISLEADING[-1], FORBIDDEN: _WITHOUT_RIGHTS, LATE_500: _UNSURE[2], LATE_408: _UNSURE[1]}
_POD_OF_BINDING = re.compile(r"/pods/([^/]+)/binding")
LATE_S = 2.0


class FaultyTransport:
    """Implements `wire.Transport` for one process. `cut()` ends the connection for good, like a killed process or an isolated host."""

    def __init__(self, inner: Transport, faults: Faults, sender: str, watcher: BindWatcher) -> None:
        self._inner = inner
        self._faults = faults
        self._sender = sender
        self._watcher = watcher
        self._wire = contextvars.copy_context()
        self._requests: set[asyncio.Task[Response]] = set()
        self._is_cut = False
        self.stalled_until_s = 0.0
        """Until then open watches deliver nothing."""
        self.pods_late_until_s = 0.0
        """The same for watches of pods alone: each kind has its own watch, which may lag separately."""
        self.nodes_version = 0
        """Lists of nodes are returned as of this version, as by a server that is behind; 0: current."""
        self.holds_lists = False
        """While True, lists of pods are held back, and returned unchanged afterwards."""
        self.held_lists = 0
        self.truncated_pods: set[str] = set()
        """Names of pods whose next event is truncated. Further events follow as usual."""
        self.lost_leases: Sequence[str] = ()
        """Lease requests whose path contains one of these names are lost: a partition that only affects leader election."""

    def cut(self) -> None:
        self._is_cut = True

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        content_type: str = JSON,
        accept: str = JSON,
        timeout_s: float = 30.0,
    ) -> Response:
        if "/binding" in path and body is not None:
            self._check_connected()
            self._watcher.on_bind_sent(self._sender, path, body)
            response: Response | None = None
            try:
                response = await self._send(self._bind(path, body, content_type, timeout_s))
            except ConnectFailedError:
                response = Response(0, b"")  # it certainly was not sent
                raise
            finally:
                self._watcher.on_bind_answered(self._sender, body, response)
            return response
        if method == "DELETE" and "/pods/" in path:
            self._check_connected()
            self._watcher.on_eviction_sent(self._sender, path)
        if method == "PATCH" and "/pods/" in path and path.endswith("/status") and body is not None:
            self._check_connected()
            self._watcher.on_pod_status_sent(self._sender, body)
        elif method == "PATCH" and "/pods/" not in path and path.partition("?")[0].endswith("/status"):
            self._check_connected()
            self._watcher.on_object_status_sent(self._sender, path)
        answer = await self._send(self._ask(method, path, body, content_type, accept, timeout_s))
        if method == "PATCH" and "/persistentvolumeclaims/" in path:
            self._watcher.on_claim_answered(self._sender, path, answer)
        if method == "GET" and "/leases/" in path and b'"holderIdentity"' in answer.body:
            self._watcher.on_lease_read(self._sender, path)
        return answer

    async def _send(self, exchange: Coroutine[None, None, Response]) -> Response:
        """Sends a request. It continues if the caller is cancelled or paused."""
        task = asyncio.get_running_loop().create_task(exchange, context=self._wire)
        self._requests.add(task)
        task.add_done_callback(self._arrived)
        return await asyncio.shield(task)

    def _arrived(self, task: asyncio.Task[Response]) -> None:
        self._requests.discard(task)
        if not task.cancelled():
            task.exception()  # the caller may have ended

    async def _ask(
        self, method: str, path: str, body: bytes | None, content_type: str, accept: str, timeout_s: float
    ) -> Response:
        await self._delay()
        early = self._refused(method)
        if early is not None:
            return early
        if "/leases" in path and any(name in path for name in self.lost_leases):
            await asyncio.sleep(timeout_s)
            raise AnswerLostError("no answer (injected, leases unreachable)")
        odd = self._frequent_fault(path)
        if odd is not None and self._faults.strikes(*odd):
            return await self._respond_misleadingly(method, path, body, content_type, timeout_s)
        if method != "GET":
            if any(method == one and part in path for one, part in self._faults.forbidden_writes):
                return Response(403, _FORBIDDEN)
            return await self._write(method, path, body, content_type, accept, timeout_s)
        if self._faults.strikes("429 to a read", self._faults.read_throttled):
            return Response(429, b'{"kind":"Status","status":"Failure","code":429}', {"retry-after": "1"})
        if "continue=" in path and self._faults.strikes("page expired", self._faults.page_expired):
            return Response(410, b'{"kind":"Status","status":"Failure","code":410,"reason":"Expired"}')
        if self._faults.strikes("proxy's page", self._faults.paged):
            page = self._faults.rng.choice(_NONSENSE) if "limit=" in path else _PAGE
            return Response(self._faults.rng.choice((200, 200, 502)), page)
        if "limit=" in path and any(f"/{kind}?" in path for kind in self._faults.forbidden):
            return Response(403, _FORBIDDEN)
        path = self._server_path(path)
        answer = await self._inner.request(method, path, accept=accept, timeout_s=timeout_s)
        if self.holds_lists and "/pods?" in path and "limit=" in path and "continue=" not in path:
            await self._hold()
        await self._delay()
        if "continue=" in path and self._faults.strikes("torn list", self._faults.torn):
            answer = replace(answer, body=_VERSION.sub(rb'"resourceVersion":"1\1"', answer.body, count=1))
        return replace(answer, body=garbled(answer.body))

    def _frequent_fault(self, path: str) -> tuple[str, float] | None:
        """Returns a fault, and its probability, for kinds of requests that fail more often than others; None for the others."""
        if "/leases" in path:
            return "odd answer about a lease", self._faults.lease_failed
        if path.partition("?")[0].endswith("/eviction"):
            return "odd answer to an eviction", self._faults.eviction_failed
        if "/configmaps" in path:
            return "odd answer about a kept document", self._faults.document_failed
        return None

    async def _respond_misleadingly(
        self, method: str, path: str, body: bytes | None, content_type: str, timeout_s: float
    ) -> Response:
        """Applies the request in half of all cases, then returns no response or a misleading one."""
        rng = self._faults.rng
        if rng.random() < 0.5:
            await self._inner.request(method, path, body=body, content_type=content_type, timeout_s=timeout_s)
        kind = rng.randrange(3 + len(_MISLEADING))
        if kind == 0:
            raise AnswerLostError("connection reset (injected)")
        if kind == 1:
            await asyncio.sleep(timeout_s)
            raise AnswerLostError("no answer (injected)")
        if kind == 2:
            return Response(200, _PAGE)
        return _MISLEADING[kind - 3]

    async def _write(
        self, method: str, path: str, body: bytes | None, content_type: str, accept: str, timeout_s: float
    ) -> Response:
        """Sends a write. If the response is lost or 504, it may be stored or not."""
        faults = self._faults
        if any(part in path for part in faults.unreachable):
            raise ConnectFailedError("connection refused (injected)")
        if any(part in path for part in faults.unanswered):
            await self._inner.request(method, path, body=body, content_type=content_type, timeout_s=timeout_s)
            raise AnswerLostError("connection reset (injected)")
        scripted = next((answer for part, answer in faults.answers.items() if part in path), None)
        if scripted is not None:
            return scripted
        is_timed_out = faults.strikes("504", faults.timed_out)
        is_cut = not is_timed_out and faults.strikes("write cut", faults.cut)
        answer = Response(504, _PAGE if is_timed_out and faults.rng.random() < 0.3 else _TIMED_OUT)
        if not (is_timed_out or is_cut) or faults.rng.random() < 0.5:
            response = await self._inner.request(
                method, path, body=body, content_type=content_type, accept=accept, timeout_s=timeout_s
            )
            answer = answer if is_timed_out else response
        if is_cut:
            await asyncio.sleep(timeout_s)
            raise AnswerLostError("no answer (injected)")
        await self._delay()
        return answer

    def _server_path(self, path: str) -> str:
        """Returns the path with the page size of this server, and the version of a server that is behind."""
        if self._faults.page_items:
            path = _LIMIT.sub(f"limit={self._faults.page_items}", path)
        if "limit=" in path and "continue=" not in path and (self._faults.older_by or self.nodes_version):
            is_of_nodes = self.nodes_version and "/api/v1/nodes?" in path
            version = self.nodes_version if is_of_nodes else self._faults.newest() - self._faults.older_by
            if version > 0 and (is_of_nodes or self._faults.older_by):
                self._faults.injected["older list"] += 1
                path = f"{path}&resourceVersion={version}&resourceVersionMatch=Exact"
        return path

    def _refused(self, method: str) -> Response | None:
        if self._faults.strikes("refused connection", self._faults.refused):
            raise ConnectFailedError("connection refused (injected)")
        if method != "GET" and self._faults.strikes("429", self._faults.throttled):
            return Response(429, b'{"kind":"Status","status":"Failure","code":429}', {"retry-after": "1"})
        return None

    async def _bind(self, path: str, body: bytes, content_type: str, timeout_s: float) -> Response:
        faults = self._faults
        await self._delay()
        named = _POD_OF_BINDING.search(path)
        scripted = next(faults.bind_answers.get(named[1] if named else "", iter(())), "")
        if scripted:
            return await self._bind_as_scripted(scripted, path, body, content_type)
        early = self._refused("POST")
        if early is not None:
            return early
        if faults.strikes("false 404", faults.bind_missing):
            self._watcher.on_bind_faked(body)
            return Response(404, b'{"kind":"Status","status":"Failure","code":404,"reason":"NotFound"}')
        if any(f'"name":"{node}"'.encode() in body for node in faults.slow_nodes):
            faults.injected["slow bind"] += 1
            slow_s = timeout_s * faults.rng.uniform(SLOW_MIN, SLOW_MAX)
            timeout_s -= slow_s
            await asyncio.sleep(slow_s)
        elif faults.bind_max_s:
            await asyncio.sleep(faults.rng.uniform(0.0, faults.bind_max_s))
        if faults.strikes("bind rejected", faults.bind_rejected):
            return Response(422, b'{"kind":"Status","status":"Failure","code":422,"message":"not now"}')
        if faults.strikes("false answer", faults.bind_faked):
            self._watcher.on_bind_faked(body)
            return Response(201, b'{"kind":"Status","status":"Success"}')
        if faults.strikes("bind lost, not applied", faults.bind_lost_before):
            await asyncio.sleep(timeout_s)
            raise AnswerLostError("no answer (injected, not applied)")
        if faults.strikes("bind lost, applied late", faults.bind_late):
            delay_s = faults.rng.uniform(0.0, min(LATE_APPLY_MAX_S, timeout_s))
            late = asyncio.get_running_loop().create_task(self._apply_late(path, body, content_type, delay_s))
            self._requests.add(late)
            late.add_done_callback(self._arrived)
            await asyncio.sleep(faults.rng.uniform(0.0, delay_s))
            if faults.strikes("unsure of a bind, applied late", 0.5):
                return _unsure(body)
            raise AnswerLostError("no answer (injected, applied late)")
        answer = await self._apply(path, body, content_type)
        if faults.strikes("bind lost, applied", faults.bind_lost_after):
            await asyncio.sleep(timeout_s)
            raise AnswerLostError("no answer (injected, applied)")
        await self._delay()
        return _unsure(body) if faults.strikes("unsure of a bind", faults.timed_out) else answer

    async def _bind_as_scripted(self, kind: str, path: str, body: bytes, content_type: str) -> Response:
        self._faults.injected[f"bind {kind}, as scripted"] += 1
        if kind == REFUSED:
            raise ConnectFailedError("connection refused (scripted)")
        if kind == APPLIED:
            await self._apply(path, body, content_type)
        if kind in (LATE, LATE_500, LATE_408):
            late = asyncio.get_running_loop().create_task(self._apply_late(path, body, content_type, LATE_S))
            self._requests.add(late)
            late.add_done_callback(self._arrived)
        if kind in _ANSWERS:
            return _ANSWERS[kind]
        raise AnswerLostError(f"no answer (scripted, {kind})")

    async def _apply_late(self, path: str, body: bytes, content_type: str, delay_s: float) -> Response:
        await asyncio.sleep(delay_s)
        return await self._apply(path, body, content_type)

    async def _apply(self, path: str, body: bytes, content_type: str) -> Response:
        answer = await self._inner.request("POST", path, body=body, content_type=content_type)
        self._watcher.on_bind_applied(path, body, answer)
        return answer

    async def _delay(self) -> None:
        self._check_connected()
        await asyncio.sleep(self._faults.rng.uniform(LATENCY_MIN_S, LATENCY_MAX_S))
        self._check_connected()

    async def stall(self, *, is_about_pods: bool) -> None:
        """Called before each event of a watch: waits while such watches are stalled."""
        self._check_connected()
        until_s = max(self.stalled_until_s, self.pods_late_until_s) if is_about_pods else self.stalled_until_s
        late_s = until_s - asyncio.get_running_loop().time()
        if late_s > 0:
            await asyncio.sleep(late_s)
            self._check_connected()

    def truncates(self, line: bytes) -> bool:
        """Reports whether the event must be truncated; once for each pod."""
        named = [name for name in self.truncated_pods if f'"name":"{name}"'.encode() in line]
        self.truncated_pods.difference_update(named)
        self._faults.injected["line cut short, as scripted"] += len(named)
        return bool(named)

    async def _hold(self) -> None:
        self.held_lists += 1
        until_s = asyncio.get_running_loop().time() + HELD_MAX_S
        while self.holds_lists and asyncio.get_running_loop().time() < until_s:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.1)

    def lost(self, uid: bytes) -> None:
        self._watcher.on_line_lost(self._sender, uid.decode())

    def _check_connected(self) -> None:
        if self._is_cut:
            raise AnswerLostError("cut off")

    @asynccontextmanager
    async def stream(
        self, path: str, *, connect_timeout_s: float = 5.0, idle_timeout_s: float = 90.0
    ) -> AsyncIterator[LineStream]:
        await self._delay()
        if self._faults.strikes("refused connection", self._faults.refused):
            raise ConnectFailedError("connection refused (injected)")
        if self._faults.strikes("watch refused", self._faults.watch_refused):
            yield RefusedWatch(self._faults.rng.choice(_MISLEADING))
            return
        async with self._inner.stream(
            path, connect_timeout_s=connect_timeout_s, idle_timeout_s=idle_timeout_s
        ) as inner:
            yield FaultyLines(inner, self._faults, self, is_about_pods="/pods" in path)


def _unsure(body: bytes) -> Response:
    """Returns a response by the pod, not by a random number: another draw would change every other run."""
    return _UNSURE[zlib.crc32(body) % len(_UNSURE)]

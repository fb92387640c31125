"""What the client itself costs: `python -m tests.perf.measure_client` prints events/s, binds/s, CPU per request, import and RSS.

Owns a trivial TLS server in a process of its own, so that the figures are the client's. No part of any test run.
"""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import uvloop

from multisched.client.binder import ApiBinder
from multisched.client.event_sink import ApiEventSink
from multisched.client.limits import WriteLimiter
from multisched.client.reflector import Reflector
from multisched.client.transport import HttpTransport, connect
from multisched.cluster.access.certificates import Authority, server_context
from multisched.framework.ports import BindAnswer, BindRequest, Event, ObjectRef
from multisched.model.wire import JSON, LineStream, Response

BINDS: Final = 6_000
LINES: Final = 50_000
ANSWER: Final = b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success","code":201}'
HEAD: Final = b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(ANSWER)


class WallClock:
    """Real time."""

    def monotonic(self) -> float:
        return time.monotonic()

    def now(self) -> datetime:
        return datetime.now(UTC)


class TrivialServer(asyncio.Protocol):
    """Answers 201 to whatever has a complete head and body."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._buffer = b""

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, separator, rest = self._buffer.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0] or 0)
        if separator and len(rest) >= length:
            self._buffer = b""
            self._transport.write(HEAD + ANSWER)


def serve(ready: Connection, folder: str) -> None:
    """The server process: tells its port, then serves until killed."""

    async def main() -> None:
        authority = Authority(datetime.now(UTC))
        (Path(folder) / "ca.crt").write_bytes(authority.certificate)
        tls = server_context(authority, ["127.0.0.1"])
        server = await asyncio.get_running_loop().create_server(TrivialServer, "127.0.0.1", 0, ssl=tls)
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(main())


class Counter:
    """A handler that only counts."""

    def __init__(self) -> None:
        self.calls = 0

    def upsert(self, key: str, raw: msgspec.Raw) -> None:
        self.calls += 1

    def delete(self, key: str, raw: msgspec.Raw | None) -> None:
        self.calls += 1

    def replaced(self, version: str) -> None:
        return


class Replay:
    """A Transport with an empty list and one watch of prepared lines."""

    def __init__(self, lines: list[bytes]) -> None:
        self._lines = lines
        self.ended = asyncio.Event()

    async def request(self, method: str, path: str, *, body: bytes | None = None, content_type: str = JSON,
                      accept: str = JSON, timeout_s: float = 30.0) -> Response:  # fmt: skip
        return Response(200, b'{"metadata":{"resourceVersion":"1"},"items":[]}')

    @asynccontextmanager
    async def stream(
        self, path: str, *, connect_timeout_s: float = 5.0, idle_timeout_s: float = 90.0
    ) -> AsyncIterator[LineStream]:
        yield Lines(self._lines)
        self.ended.set()
        await asyncio.Event().wait()


class Lines:
    """An open watch."""

    status = 200
    headers: Mapping[str, str] = {}

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = lines

    async def read_body(self) -> bytes:
        return b""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for line in self._lines:
            yield line


def a_pod(number: int) -> dict[str, Any]:
    """About 3 KB, as a real one."""
    container = {
        "name": "c",
        "image": "registry/app:1",
        "env": [{"name": f"V{n}", "value": "x" * 40} for n in range(30)],
    }
    metadata = {
        "name": f"p{number}",
        "namespace": "default",
        "uid": f"uid-{number}",
        "resourceVersion": str(number + 2),
    }
    return {"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": {"containers": [container]}}


async def measure_reflector() -> dict[str, float]:
    lines = [json.dumps({"type": "ADDED", "object": a_pod(n)}, separators=(",", ":")).encode() for n in range(LINES)]
    replay, counter = Replay(lines), Counter()
    reflector = Reflector(replay, "/api/v1/pods", handler=counter, clock=WallClock(), rng=random.Random(1))
    gc.collect()
    started, cpu = time.perf_counter(), time.process_time()
    task = asyncio.ensure_future(reflector.run())
    await replay.ended.wait()
    elapsed, used = time.perf_counter() - started, time.process_time() - cpu
    task.cancel()
    assert counter.calls == LINES
    return {"line_bytes": len(lines[-1]), "events_per_s": LINES / elapsed, "cpu_us": used / LINES * 1e6}


async def measure_binds(transport: HttpTransport, in_flight: int) -> dict[str, float]:
    binder = ApiBinder(transport, WriteLimiter(WallClock(), writes_per_s=1e9))
    numbers = iter(range(BINDS))

    async def work() -> None:
        for number in numbers:
            request = BindRequest("default", f"p{number}", f"uid-{number}", "n1")
            reply = await binder.post(request, timeout_s=5)
            assert reply.answer is BindAnswer.CREATED, reply

    return await _timed(BINDS, lambda: asyncio.gather(*(work() for _ in range(in_flight))))


async def measure_events(transport: HttpTransport) -> dict[str, float]:
    clock = WallClock()
    sink = ApiEventSink(transport, WriteLimiter(clock, writes_per_s=1e9), clock, instance="measure")
    for number in range(BINDS):
        pod = ObjectRef("Pod", "default", f"p{number}", f"uid-{number}")
        sink.record(Event(pod, "Normal", "Scheduled", "Binding", f"assigned p{number} to n1", "job-scheduler"))
    task = asyncio.ensure_future(sink.run())
    result = await _timed(BINDS, lambda: sink.drain(60))
    task.cancel()
    assert sink.statistics().stored == BINDS
    return result


async def _timed(count: int, run: Any) -> dict[str, float]:
    started, cpu = time.perf_counter(), time.process_time()
    await run()
    elapsed, used = time.perf_counter() - started, time.process_time() - cpu
    return {"per_s": count / elapsed, "cpu_us": used / count * 1e6}


async def measure_network(port: int, folder: Path) -> None:
    kubeconfig = folder / "kubeconfig"
    cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority": str(folder / "ca.crt")}
    document = {
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    kubeconfig.write_text(json.dumps(document))
    async with connect(kubeconfig) as transport:
        for in_flight in (16, 32, 64):
            tell(f"binds over TLS, {in_flight} in flight", await measure_binds(transport, in_flight))
        tell("events over TLS", await measure_events(transport))


def tell(what: str, figures: Mapping[str, float]) -> None:
    print(f"{what:32}", "  ".join(f"{name} {value:,.1f}" for name, value in figures.items()))


IMPORT = """
import asyncio, pathlib, sys, time
started = time.perf_counter()
from multisched.client.transport import connect
async def main():
    async with connect(pathlib.Path(sys.argv[1])): pass
asyncio.run(main())
elapsed = time.perf_counter() - started
status = pathlib.Path("/proc/self/status").read_text()  # ru_maxrss would be inherited from the parent
rss = int(status.partition("VmHWM:")[2].split()[0]) / 1024
print(f"{'import and connect':32} seconds {elapsed:.3f}  rss_mib {rss:.0f}")
"""


def main() -> None:
    """Prints the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        here, there = multiprocessing.Pipe()
        server = multiprocessing.Process(target=serve, args=(there, name), daemon=True)
        server.start()
        try:
            uvloop.run(measure_network(here.recv(), folder))
            tell("reflector, lines in process", uvloop.run(measure_reflector()))
            subprocess.run([sys.executable, "-c", IMPORT, str(folder / "kubeconfig")], check=True)
        finally:
            server.terminate()
            server.join()


if __name__ == "__main__":
    main()

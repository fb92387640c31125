"""Figures of the embedded cluster: `python -m tests.perf.cluster_bench [--pods 20000] [--profile FILE]`.

The server is a process of its own, pinned to one core; this client runs on the others. TLS, 32 connections with one
request in flight each, two watches of all pods open throughout. Prints one line per figure with its target.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import orjson
import uvloop

from tests.perf.served_cluster import client_context

CONNECTIONS = 32
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"labels": {"app": "bench"}},
    "spec": {
        "schedulerName": "forecast-scheduler",
        "containers": [
            {"name": "c", "image": "registry/x:1", "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}}
        ],
    },
}


class Connection:
    """One keep-alive connection, one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, url: str, context: ssl.SSLContext) -> Connection:
        """Connects to a server's URL."""
        place = urlsplit(url)
        return cls(*await asyncio.open_connection(place.hostname, place.port, ssl=context, limit=2**26))

    async def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Status and body."""
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self.writer.write(head.encode() + body)
        raw = await self.reader.readuntil(b"\r\n\r\n")
        lowered = raw.lower()
        start = lowered.index(b"content-length:") + 15
        size = int(lowered[start : lowered.index(b"\r\n", start)])
        return int(raw[9:12]), await self.reader.readexactly(size)

    async def count_lines(self, path: str, until: int) -> float:
        """Watches and returns the time at which `until` events had come."""
        self.writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await self.reader.readuntil(b"\r\n\r\n")
        mark, tail, seen = b'","object":{', b"", 0
        while seen < until:
            data = await self.reader.read(2**20)
            if not data:
                raise ConnectionError(f"the watch ended after {seen} of {until} events")
            seen += (tail + data).count(mark)  # once per event
            tail = (tail + data)[-(len(mark) - 1) :]
        return time.perf_counter()


async def drive(connections: list[Connection], requests: Iterator[tuple[str, str, bytes]], expected: int) -> float:
    """Sends every request, one in flight per connection; returns the seconds it took."""

    async def work(connection: Connection) -> None:
        for method, path, body in requests:
            status, answer = await connection.ask(method, path, body)
            if status != expected:
                raise AssertionError(f"{method} {path}: {status} {answer[:300]!r}")

    started = time.perf_counter()
    await asyncio.gather(*(work(connection) for connection in connections))
    return time.perf_counter() - started


def creates(pods: int) -> Iterator[tuple[str, str, bytes]]:
    """One pod after the other."""
    for number in range(pods):
        pod = {**POD, "metadata": {**POD["metadata"], "name": f"pod-{number:06d}"}}  # type: ignore[dict-item]
        yield "POST", "/api/v1/namespaces/default/pods", orjson.dumps(pod)


def binds(pods: int) -> Iterator[tuple[str, str, bytes]]:
    """A binding for each of them."""
    for number in range(pods):
        name = f"pod-{number:06d}"
        target = {"apiVersion": "v1", "kind": "Node", "name": f"node-{number % 500}"}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        yield "POST", f"/api/v1/namespaces/default/pods/{name}/binding", orjson.dumps(body)


def memory_kib(pid: int) -> int:
    """Resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise RuntimeError("no VmRSS")


async def measure(pid: int, kubeconfig: Path, pods: int, say: Callable[[str, float, str, str], None]) -> None:
    """Runs every figure against a running server."""
    url, context = client_context(kubeconfig)
    connections = [await Connection.open(url, context) for _ in range(CONNECTIONS)]
    watchers = [await Connection.open(url, context) for _ in range(2)]
    before = memory_kib(pid)
    path = "/api/v1/pods?watch=1&resourceVersion=1&allowWatchBookmarks=false"
    async with asyncio.TaskGroup() as group:
        watches = [group.create_task(watcher.count_lines(path, 2 * pods)) for watcher in watchers]
        took = await drive(connections, creates(pods), 201)
        say("pod creates per second", pods / took, "/s", "≥ 2000")
        say("memory per stored pod", (memory_kib(pid) - before) / pods, "KiB", "≤ 8")
        took = await drive(connections, binds(pods), 201)
        bound = time.perf_counter()
        say("binds per second", pods / took, "/s", "≥ 2500")
    say("watchers behind the last bind", max(watch.result() for watch in watches) - bound, "s", "")
    say("memory per stored pod, bound", (memory_kib(pid) - before) / pods, "KiB", "≤ 8")
    started = time.perf_counter()
    status, body = await connections[0].ask("GET", "/api/v1/pods")
    say(f"list of {pods} pods", time.perf_counter() - started, "s", "< 1.5 (20000)")
    assert status == 200
    assert len(orjson.loads(body)["items"]) == pods


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pods", type=int, default=20_000)
    parser.add_argument("--profile", help="write the server's cProfile statistics here")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    figures: dict[str, float] = {}

    def say(name: str, value: float, unit: str, target: str) -> None:
        figures[name] = round(value, 3)
        if options.output == "table":
            print(f"{name:32} {value:10.2f} {unit:4} {target}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        kubeconfig = Path(folder) / "kubeconfig"
        command = [sys.executable, "-m", "tests.perf.served_cluster", str(kubeconfig), "--core", str(cores[0])]
        command += ["--profile", options.profile] if options.profile else []
        started = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                server.stdout.readline()
                say("ready after process start", time.perf_counter() - started, "s", "< 1")
                os.sched_setaffinity(0, cores[1:] or cores)
                uvloop.run(measure(server.pid, kubeconfig, options.pods, say))
            finally:
                server.terminate()
    if options.output == "json":
        print(json.dumps(figures))


if __name__ == "__main__":
    main()

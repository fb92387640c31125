"""`python -m tests.perf.bare_binder URL TOKEN CA NODE...`: binds every pod the moment a watch shows it, to the next of the nodes.

It decides nothing. What is left of a pod's wait is what the API server, the machine and a client in Python take: nobody binds faster there.
`hostile_bench` and the bursts of `kube_bench` run it beside the schedulers, as a process of its own.
"""

from __future__ import annotations

import ssl
import sys
from collections.abc import Iterator
from itertools import cycle
from typing import Any, Final

import aiohttp
import anyio
import orjson
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

WORKERS: Final = 64
SCHEDULER: Final = "bare-binder"
"""Pods of this schedulerName are bound."""


async def watch(session: aiohttp.ClientSession, url: str, found: MemoryObjectSendStream[tuple[str, str]]) -> None:
    """Hands on namespace and name of each pod without a node, from now on and again after each end of the stream."""
    seen: set[str] = set()
    while True:
        query = {"watch": "true", "fieldSelector": f"spec.nodeName=,spec.schedulerName={SCHEDULER}"}
        try:
            async with session.get(f"{url}/api/v1/pods", params=query) as answer:
                rest = b""
                async for chunk in answer.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        event: dict[str, Any] = orjson.loads(line)
                        metadata = event["object"]["metadata"]
                        if event["type"] == "ADDED" and metadata["uid"] not in seen:
                            seen.add(metadata["uid"])
                            found.send_nowait((metadata["namespace"], metadata["name"]))
        except aiohttp.ClientError:
            await anyio.sleep(0.05)


async def bind(
    session: aiohttp.ClientSession, url: str, waiting: MemoryObjectReceiveStream[tuple[str, str]], nodes: Iterator[str]
) -> None:
    async for namespace, name in waiting:
        target = {"apiVersion": "v1", "kind": "Node", "name": next(nodes)}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        path = f"{url}/api/v1/namespaces/{namespace}/pods/{name}/binding"
        async with session.post(path, data=orjson.dumps(body), headers={"Content-Type": "application/json"}) as answer:
            await answer.read()


async def run(*words: str) -> None:
    url, token, ca, *nodes = words
    send, receive = anyio.create_memory_object_stream[tuple[str, str]](max_buffer_size=float("inf"))
    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=ca), limit=0)
    headers, timeout = {"Authorization": f"Bearer {token}"}, aiohttp.ClientTimeout(total=None)
    async with (
        aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as session,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(watch, session, url, send)
        targets = cycle(nodes)
        for _ in range(WORKERS):
            tasks.start_soon(bind, session, url, receive, targets)


if __name__ == "__main__":
    anyio.run(run, *sys.argv[1:], backend_options={"use_uvloop": True})

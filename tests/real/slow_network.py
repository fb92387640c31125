"""A TCP proxy on loopback that delays what it passes on: a network of changing latency between a process and the API server.

TLS passes through unread. What one connection carries stays in order.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

CHUNK_BYTES: Final = 1 << 16
IN_TRANSIT_MAX: Final = 4_096
"""Chunks of one direction of a connection that are in transit."""
LOOPBACK: Final = "127.0.0.1"


class SlowNetwork:
    """Only `serving` makes one."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._connections: set[asyncio.Task[None]] = set()
        self.port = 0
        self.delay_s = 0.0
        """Of each direction, from now on."""

    @classmethod
    @asynccontextmanager
    async def serving(cls, port: int) -> AsyncIterator[SlowNetwork]:
        """Passes on to a port of loopback, until the block ends."""
        self = cls(port)
        server = await asyncio.start_server(self._connected, LOOPBACK, 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a server calls it in a task"
        self._connections.add(task)
        try:
            to_reader, to_writer = await asyncio.open_connection(LOOPBACK, self._target)
            with contextlib.closing(writer), contextlib.closing(to_writer):
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._carry(reader, to_writer))
                    tasks.create_task(self._carry(to_reader, writer))
        except* (OSError, asyncio.CancelledError):
            pass  # one side has ended
        finally:
            self._connections.discard(task)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Passes on one direction; raises when it ends, so that the other one ends too."""
        loop = asyncio.get_running_loop()
        chunks = asyncio.Queue[tuple[float, bytes]](IN_TRANSIT_MAX)

        async def deliver() -> None:
            while True:
                due_s, chunk = await chunks.get()
                await asyncio.sleep(due_s - loop.time())
                if not chunk:
                    raise ConnectionResetError("the other side has ended")
                writer.write(chunk)
                await writer.drain()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(deliver())
            chunk = b" "
            while chunk:
                chunk = await reader.read(CHUNK_BYTES)
                await chunks.put((loop.time() + self.delay_s, chunk))

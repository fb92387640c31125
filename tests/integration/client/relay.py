"""A TCP relay on loopback that can cut what goes through it, and refuse new connections: a network with bad days."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

LOOPBACK = "127.0.0.1"
CHUNK_BYTES = 65_536


class Relay:
    """Made by `start` only. Its port stays the same while it is closed and opened."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self.port = 0

    @classmethod
    @asynccontextmanager
    async def start(cls, target_port: int) -> AsyncIterator[Relay]:
        """Relays to `target_port` on loopback until the block ends."""
        relay = cls(target_port)
        await relay.open()
        try:
            yield relay
        finally:
            await relay.close()

    async def open(self) -> None:
        """Accepts connections."""
        self._server = await asyncio.start_server(self._serve, LOOPBACK, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Cuts all connections; new ones are refused."""
        if self._server is not None:
            self._server.close()
        self.cut()

    def cut(self) -> None:
        """Resets all connections; new ones are relayed."""
        for writer in self._open:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(LOOPBACK, self._target_port)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, far_writer}
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_pump(reader, far_writer))
                group.create_task(_pump(far_reader, writer))
        finally:
            self._open -= {writer, far_writer}


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until either side ends; then both are closed."""
    with suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
    writer.close()

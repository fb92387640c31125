"""A TCP connection into a pod, through the API server and the pod's kubelet: `pods/NAME/portforward` over a WebSocket.

The protocol is `v4.channel.k8s.io`: a message's first byte is its channel. Channel 0 carries the bytes of the one
requested port, channel 1 carries an error text. Each channel begins with the port as two bytes.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import aiohttp

from multisched.client.errors import parse_status
from multisched.client.line_stream import LOST
from multisched.client.paths import pod_path
from multisched.client.transport import HttpTransport

PROTOCOL: Final = "v4.channel.k8s.io"
DATA: Final = b"\0"
DATA_CHANNEL, ERROR_CHANNEL = 0, 1
PORT_BYTES: Final = 2
CHUNK_BYTES: Final = 32 * 1024
OPEN_TIMEOUT_S: Final = 15.0
TROUBLE_CHARS_MAX: Final = 512


class PortForwardError(Exception):
    """No connection into the pod. `status`: of the API server's response, 0 without one."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class PortForward:
    """One connection to `port` of a pod."""

    def __init__(self, transport: HttpTransport, namespace: str, pod: str, port: int) -> None:
        self._transport = transport
        self._path = f"{pod_path(namespace, pod)}/portforward?ports={port}"
        self.trouble = ""
        """The error text from the pod's side."""

    async def run(self, end: socket.socket, opened: Callable[[], object]) -> None:
        """Carries bytes until either side closes, and closes `end` then. Raises PortForwardError if the connection
        cannot be opened.
        """
        reader, writer = await asyncio.open_connection(sock=end)
        try:
            async with self._transport.websocket(self._path, PROTOCOL, timeout_s=OPEN_TIMEOUT_S) as socket_:
                opened()
                await self._carry(socket_, reader, writer)
        except aiohttp.WSServerHandshakeError as error:
            raise PortForwardError(await self._why(error.status), error.status) from error
        except LOST as error:
            raise PortForwardError(f"the API server does not open the connection: {error}") from error
        finally:
            writer.close()

    async def _carry(
        self, socket_: aiohttp.ClientWebSocketResponse, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        sending = asyncio.create_task(_send(socket_, reader))
        try:
            with suppress(ConnectionError):  # the local side has closed
                await self._receive(socket_, writer)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _receive(self, socket_: aiohttp.ClientWebSocketResponse, writer: asyncio.StreamWriter) -> None:
        skipped = {DATA_CHANNEL: 0, ERROR_CHANNEL: 0}
        async for message in socket_:
            if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                continue
            channel, data = message.data[0], message.data[1:]
            port = data[: PORT_BYTES - skipped.get(channel, PORT_BYTES)]
            skipped[channel] = skipped.get(channel, PORT_BYTES) + len(port)
            data = data[len(port) :]
            if channel == DATA_CHANNEL and data:
                writer.write(data)
                await writer.drain()
            elif channel == ERROR_CHANNEL and data:
                self.trouble = (self.trouble + data.decode(errors="replace"))[:TROUBLE_CHARS_MAX]
                return

    async def _why(self, status: int) -> str:
        """Returns the reason for a refused WebSocket, whose response has only a status: the same request as a plain GET
        returns a message.
        """
        words = ""
        with suppress(*LOST):
            answer = await self._transport.request("GET", self._path, timeout_s=OPEN_TIMEOUT_S)
            words = parse_status(answer.body).message if answer.status == status else ""
        return words or f"the API server returned {status}"


async def _send(socket_: aiohttp.ClientWebSocketResponse, reader: asyncio.StreamReader) -> None:
    while data := await reader.read(CHUNK_BYTES):
        await socket_.send_bytes(DATA + data)
    await socket_.close()

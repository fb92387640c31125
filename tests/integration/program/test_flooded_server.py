"""The HTTP server of a running program while somebody holds all the connections that can be had."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import pytest
import yaml

from multisched.observe.connections import CONNECTIONS_MAX
from tests.integration.program.command import Command, multisched
from tests.integration.program.test_refusals import HEAD, refusing_port, status_of, unreachable

FILES_MAX = 400
FILES_OF_ITS_OWN = 60
FLOOD = 600
HANG_S = 240.0
UNVERIFIED = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
UNVERIFIED.check_hostname, UNVERIFIED.verify_mode = False, ssl.CERT_NONE


@asynccontextmanager
async def guarded(folder: Path) -> AsyncIterator[tuple[Command, str, str]]:
    """The program with the server that `deploy/` configures, and the addresses of server and probes."""
    server = {"port": 0, "probePort": 0, "tls": {"selfSigned": True}}
    path = folder / "config.yaml"
    path.write_text(HEAD + yaml.safe_dump({"server": server}))
    kubeconfig = unreachable(folder, refusing_port())
    async with multisched("run", "--kubeconfig", str(kubeconfig), "--config", str(path)) as command:
        line = json.loads(await command.has_printed('"serving"'))
        yield command, line["url"], line["probes"]


def greeted(address: tuple[str, int]) -> socket.socket:
    """A connection with its handshake done, unless the server has cut it off before."""
    plain = socket.create_connection(address)
    try:
        return UNVERIFIED.wrap_socket(plain)
    except OSError:
        return plain


def silent(address: tuple[str, int]) -> socket.socket:
    """A connection on which nothing is ever said."""
    plain = socket.socket()
    plain.setblocking(False)
    with suppress(BlockingIOError):
        plain.connect(address)
    return plain


@pytest.mark.parametrize("connection", [greeted, silent])
async def test_probes_are_answered_while_the_main_port_is_overloaded(
    connection: Callable[[tuple[str, int]], socket.socket], tmp_path: Path
) -> None:
    async with asyncio.timeout(HANG_S), guarded(tmp_path) as (command, url, probes), AsyncExitStack() as stack:
        resource.prlimit(command.process.pid, resource.RLIMIT_NOFILE, (FILES_MAX, FILES_MAX))
        parts = urlsplit(url)
        address = (parts.hostname or "", parts.port or 0)
        for number in range(FLOOD):
            stack.enter_context(await anyio.to_thread.run_sync(connection, address))
            if number % 50 == 0:
                assert await anyio.to_thread.run_sync(status_of, f"{probes}/livez") == 200
        files = await anyio.to_thread.run_sync(os.listdir, f"/proc/{command.process.pid}/fd")
        assert len(files) < CONNECTIONS_MAX + FILES_OF_ITS_OWN
        assert (await command.end()).code == 0
    assert "cannot accept" not in "".join(command.err)


async def test_endpoints_need_a_token_and_use_tls(tmp_path: Path) -> None:
    async with asyncio.timeout(HANG_S), guarded(tmp_path) as (_, url, _probes):
        parts = urlsplit(url)
        with socket.create_connection((parts.hostname or "", parts.port or 0)) as plain:
            plain.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"HTTP" not in await anyio.to_thread.run_sync(plain.recv, 1024)

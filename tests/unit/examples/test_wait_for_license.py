"""The licence example, against a real licence server on loopback."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream

from multisched.framework.registry import extension_points
from multisched.framework.status import Code
from multisched.model.objects import Pod
from multisched.state.cluster_cache import ClusterCache
from multisched.testing.builders import make_pod, make_view
from tests.examples.wait_for_license import LICENSE, WaitForLicense

VIEW = make_view(ClusterCache())


class LicenseServer:
    """Grants `free` licences; further requests wait until one is returned."""

    def __init__(self, free: int) -> None:
        self.free = anyio.Semaphore(free)
        self.asked: list[str] = []
        self.first_asked = anyio.Event()

    async def handle(self, stream: SocketStream) -> None:
        async with stream:
            self.asked.append((await stream.receive()).decode())
            self.first_asked.set()
            await self.free.acquire()
            await stream.send(b"granted\n")


@asynccontextmanager
async def serving(handle: Callable[[SocketStream], object]) -> AsyncIterator[str]:
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    port = listener.extra(SocketAttribute.local_port)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, handle)
        yield f"127.0.0.1:{port}"
        tasks.cancel_scope.cancel()
    await listener.aclose()


def licensed(name: str, value: str = "solver") -> Pod:
    return make_pod(name, annotations={LICENSE: value})


async def test_a_pod_waits_until_a_licence_is_free() -> None:
    server = LicenseServer(free=0)
    async with serving(server.handle) as address:
        plugin = WaitForLicense({"server": address})
        codes: list[Code] = []

        async def bind_worker() -> None:
            codes.append((await plugin.pre_bind(VIEW, licensed("p"), "n")).code)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bind_worker)
            await server.first_asked.wait()
            assert codes == []
            server.free.release()

    assert codes == [Code.SUCCESS]
    assert server.asked == ["reserve solver uid-p\n"]


async def test_licence_timeout_is_a_retried_error() -> None:
    async with serving(LicenseServer(free=0).handle) as address:
        plugin = WaitForLicense({"server": address, "timeoutSeconds": 0.05})
        status = await plugin.pre_bind(VIEW, licensed("p"), "n")

    assert status.code is Code.ERROR
    assert "none came free within 0.05 s" in status.message


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (b"granted\n", Code.SUCCESS, ""),
        (b"refused no such licence\n", Code.UNSCHEDULABLE, "refused no such licence"),
        (b"\xff\xfe\n", Code.UNSCHEDULABLE, "license solver"),
        (b"gran", Code.ERROR, "IncompleteRead"),
        (b"x" * 5000, Code.ERROR, "DelimiterNotFound"),
    ],
)
async def test_each_response_gives_its_status(answer: bytes, code: Code, words: str) -> None:
    async def handle(stream: SocketStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(answer)

    async with serving(handle) as address:
        status = await WaitForLicense({"server": address}).pre_bind(VIEW, licensed("p"), "n")

    assert status.code is code
    assert words in status.message


async def test_unreachable_server_is_an_error_that_names_it() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        status = await WaitForLicense({"server": address}).pre_bind(VIEW, licensed("p"), "n")

    assert status.code is Code.ERROR
    assert address in status.message


async def test_name_with_a_line_break_is_refused() -> None:
    status = await WaitForLicense({"server": "127.0.0.1:1"}).pre_bind(VIEW, licensed("p", "a b\nreserve c"), "n")

    assert status.code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE
    assert LICENSE in status.message


async def test_pods_without_the_annotation_do_not_wait() -> None:
    plugin = WaitForLicense({"server": "127.0.0.1:1"})

    assert plugin.pre_bind_pre_flight(VIEW, make_pod("plain"), "n").code is Code.SKIP
    assert (await plugin.pre_bind(VIEW, make_pod("plain"), "n")).is_success
    assert plugin.pre_bind_pre_flight(VIEW, licensed("p"), "n").is_success
    assert extension_points(plugin) == ["PreBind"]

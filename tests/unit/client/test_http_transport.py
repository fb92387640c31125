"""The transport against servers on loopback that answer well, badly, late, too much, or not at all."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from multisched.client import line_stream
from multisched.client import transport as transport_module
from multisched.client.auth import REREAD_INTERVAL_S
from multisched.client.connection_pool import CONNECT_TIMEOUT_S
from multisched.client.line_stream import HttpLineStream
from multisched.client.request_counts import NO_ANSWER
from multisched.client.transport import TransportStatistics
from multisched.cluster.access.certificates import Authority, server_context
from multisched.model.wire import AnswerLostError, ConnectFailedError, Request
from tests.unit.client.servers import connected, raw_serving, read_head, serving, write_kubeconfig


@asynccontextmanager
async def raw_answer(*pieces: bytes, hang: bool = False) -> AsyncIterator[str]:
    """A server that answers every request with these bytes, then closes, or hangs."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        if hang:
            await reader.read()

    async with raw_serving(handle) as address:
        yield address


async def test_request_has_token_body_types_and_no_compression(tmp_path: Path) -> None:
    seen: list[web.BaseRequest] = []
    bodies: list[bytes] = []

    async def handle(request: web.BaseRequest) -> web.Response:
        seen.append(request)
        bodies.append(await request.read())
        return web.json_response({"a": 1}, status=201, headers={"Retry-After": "3"})

    async with serving(handle) as address, connected(tmp_path, address) as transport:
        path = "/api/v1/pods?fieldSelector=spec.nodeName%3D%2Cx&continue=a%2Fb%3D%3D"
        response = await transport.request("POST", path, body=b"{}", content_type="application/x", accept="text/y")
        await transport.request("GET", "/x")
    assert (response.status, response.body) == (201, b'{"a": 1}')
    assert response.headers["retry-after"] == "3"
    post, get = seen
    assert post.raw_path == path
    assert bodies[0] == b"{}"
    assert post.headers["Content-Type"] == "application/x"
    assert post.headers["Accept"] == "text/y"
    assert post.headers["Accept-Encoding"] == "identity"
    assert post.headers["Authorization"] == "Bearer token-1"
    assert "Content-Type" not in get.headers


@pytest.mark.parametrize("status", [200, 302, 400, 404, 409, 429, 500, 503])
async def test_http_status_does_not_raise(tmp_path: Path, status: int) -> None:
    async def handle(request: web.BaseRequest) -> web.Response:
        return web.Response(status=status, body=b"x", headers={"Location": "/elsewhere"})

    async with serving(handle) as address, connected(tmp_path, address) as transport:
        assert (await transport.request("GET", "/x")).status == status


async def test_connections_are_always_returned(tmp_path: Path) -> None:
    peers: set[object] = set()

    async def handle(request: web.BaseRequest) -> web.Response:
        assert request.transport is not None
        peers.add(request.transport.get_extra_info("peername"))
        return web.Response(status=500 if request.path == "/bad" else 200, body=b"x" * 10_000)

    async with serving(handle) as address, connected(tmp_path, address) as transport:
        for _ in range(20):
            await transport.request("GET", "/bad")
            await transport.request("GET", "/good")
    assert len(peers) == 1


async def test_separate_transport_uses_its_own_connections(tmp_path: Path) -> None:
    held, may_answer, most = 0, asyncio.Event(), asyncio.Event()

    async def handle(request: web.BaseRequest) -> web.Response:
        nonlocal held
        if request.path == "/slow":
            held += 1
            if held == 2:
                most.set()
            await may_answer.wait()
        return web.Response(text=request.headers["Authorization"])

    async with (
        serving(handle) as address,
        connected(tmp_path, address) as first,
        first.separate_connections(2) as second,
        asyncio.TaskGroup() as group,
    ):
        slow = [group.create_task(second.request("POST", "/slow", body=b"")) for _ in range(9)]
        crowded = group.create_task(first.wait_in_flight(1))
        await most.wait()
        assert not crowded.done(), "by nothing of the second's"
        assert (await first.request("GET", "/x")).body == b"Bearer token-1"
        assert held == 2
        assert crowded.done(), "by the one request of its own"
        may_answer.set()
        assert {(await task).body for task in slow} == {b"Bearer token-1"}


async def test_compressed_response_is_not_inflated(tmp_path: Path) -> None:
    bomb = gzip.compress(b"0" * 10_000_000)

    async def handle(request: web.BaseRequest) -> web.Response:
        return web.Response(body=bomb, headers={"Content-Encoding": "gzip"})

    async with serving(handle) as address, connected(tmp_path, address) as transport:
        assert (await transport.request("GET", "/x")).body == bomb
    async with (
        serving(handle) as proxy,
        connected(tmp_path, "http://api.invalid", cluster={"proxy-url": proxy}) as transport,
    ):
        assert (await transport.request("GET", "/x")).body == bomb, "nor one that came by a proxy"


async def test_requests_are_counted(tmp_path: Path) -> None:
    async def handle(request: web.BaseRequest) -> web.Response:
        return web.Response(body=b"x")

    async with serving(handle) as address, connected(tmp_path, address) as transport:
        for _ in range(3):
            await transport.request("GET", "/x")
        for _ in range(2):
            async with transport.stream("/y") as stream:
                await stream.read_body()
        assert transport.statistics() == TransportStatistics(requests=3, streams=2, sessions=1)
        async with transport.separate_connections(1) as beside:
            await beside.request("POST", "/x", body=b"{}")
        assert transport.counts.results == {("GET", 200): 5, ("POST", 200): 1}
        assert {method: one.count for method, one in transport.counts.durations.items()} == {"GET": 3, "POST": 1}
    for times in (1, 2):
        with pytest.raises(ConnectFailedError):
            await transport.request("GET", "/x")
        assert transport.statistics().connect_failures == times
        assert transport.counts.results["GET", NO_ANSWER] == times


async def test_read_request_is_repeated_on_a_closed_kept_connection(tmp_path: Path) -> None:
    """The server ends each connection when the second request comes: of a write nobody knows what became of it."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await reader.read(1)

    async with raw_serving(handle) as address, connected(tmp_path, address) as transport:
        for _ in range(3):
            assert (await transport.request("GET", "/x")).status == 200
        with pytest.raises(AnswerLostError, match="DELETE"):
            await transport.request("DELETE", "/x")


async def test_refused_connection_has_sent_nothing(tmp_path: Path) -> None:
    async with raw_answer() as address:
        pass
    async with connected(tmp_path, address) as transport:
        with pytest.raises(ConnectFailedError, match="cannot connect"):
            await transport.request("POST", "/x", body=b"{}")
        with pytest.raises(ConnectFailedError):
            async with transport.stream("/x"):
                pass
        assert transport.statistics().connect_failures == 2
        assert transport.counts.results == {("POST", NO_ANSWER): 1, ("GET", NO_ANSWER): 1}


async def test_hung_handshake_has_sent_nothing(tmp_path: Path) -> None:
    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with raw_serving(swallow) as address:
        secure = address.replace("http:", "https:")
        async with connected(tmp_path, secure, cluster={"insecure-skip-tls-verify": True}) as transport:
            with pytest.raises(ConnectFailedError):
                await transport.request("POST", "/x", body=b"{}", timeout_s=0.3)


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([], id="closed without a byte"),
        pytest.param([b"HTTP/1.1 201 Cre"], id="closed in the head"),
        pytest.param([b"HTTP/1.1 201 Created\r\nContent-Length: 100\r\n\r\n", b"{"], id="closed in the body"),
        pytest.param([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"ff\r\n{"], id="closed in a chunk"),
        pytest.param([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n{\r\n"], id="no last chunk"),
        pytest.param([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"zz\r\n{"], id="garbage chunk"),
        pytest.param([b"SSH-2.0-OpenSSH\r\n\r\n"], id="not HTTP"),
    ],
)
async def test_truncated_response_is_lost(tmp_path: Path, pieces: Sequence[bytes]) -> None:
    async with raw_answer(*pieces) as address, connected(tmp_path, address) as transport:
        with pytest.raises(AnswerLostError, match="POST"):
            await transport.request("POST", "/x", body=b"{}", timeout_s=60)
        assert transport.statistics().lost_answers == 1


@pytest.mark.parametrize("pieces", [[], [b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", b"{"]])
async def test_late_response_is_lost(tmp_path: Path, pieces: Sequence[bytes]) -> None:
    async with raw_answer(*pieces, hang=True) as address, connected(tmp_path, address) as transport:
        with pytest.raises(AnswerLostError):
            await transport.request("POST", "/x", body=b"{}", timeout_s=0.3)


@pytest.mark.parametrize("is_chunked", [True, False])
async def test_oversized_response_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_chunked: bool
) -> None:
    monkeypatch.setattr(transport_module, "ANSWER_BYTES_MAX", 100_000)

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        if not is_chunked:
            response.content_length = 10_000_000
        await response.prepare(request)
        for _ in range(100):
            await response.write(b"0" * 100_000)
        return response

    async with serving(handle) as address, connected(tmp_path, address) as transport:
        with pytest.raises(AnswerLostError, match="exceeds 100000 bytes"):
            await transport.request("GET", "/x")


async def test_cancelled_request_keeps_the_transport_usable(tmp_path: Path) -> None:
    async def handle(request: web.BaseRequest) -> web.Response:
        if request.path == "/slow":
            await asyncio.sleep(30)
        return web.Response()

    async with serving(handle) as address, connected(tmp_path, address) as transport:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await transport.request("GET", "/slow")
        assert (await transport.request("GET", "/x")).status == 200
        assert transport._channel.users == 0


@pytest.mark.parametrize("path", ["/x HTTP/1.1\r\nX: y\r\n\r\n", "/x\ny", "/x y", "x", "", "/\u00fc", "/x\0"])
async def test_invalid_path_is_not_sent(tmp_path: Path, path: str) -> None:
    async with raw_answer() as address, connected(tmp_path, address) as transport:
        with pytest.raises(ConnectFailedError, match="not a request line"):
            await transport.request("POST", path, body=b"{}")
        with pytest.raises(ConnectFailedError, match="not a request line"):
            await transport.request("GET / HTTP/1.1\r\n", "/x")
        assert transport._channel.pool is not None
        assert not transport._channel.pool._connections


@pytest.mark.parametrize("value", ["a\r\nX: y", "a\nb", "a\0", "\u00fc"])
async def test_header_injection_is_not_sent(tmp_path: Path, value: str) -> None:
    async with raw_answer() as address:
        async with connected(tmp_path, address, {"token": f"a{value}b"}) as transport:
            with pytest.raises(ConnectFailedError, match="Authorization"):
                await transport.request("GET", "/x")
        async with connected(tmp_path, address) as transport:
            with pytest.raises(ConnectFailedError, match="Content-Type"):
                await transport.request("POST", "/x", body=b"{}", content_type=value)


async def test_request_bytes_are_exact(tmp_path: Path) -> None:
    heads: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(4):
            heads.append(await reader.read(10_000))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async with (
        raw_serving(handle) as address,
        connected(tmp_path, f"{address}/k8s/clusters/c-x/", {"token": "t"}) as transport,
    ):
        await transport.request("POST", "/x?a=b%20c", body=b"{}")
        await transport.request("POST", "/x")
        await transport.request("DELETE", "/x")
        await transport.request("GET", "/x")
    host = address.removeprefix("http://").encode()
    lines = (
        b"\r\nHost: "
        + host
        + b"\r\nAccept: application/json\r\nAccept-Encoding: identity\r\nUser-Agent: multisched\r\n"
    )
    typed = lines + b"Content-Type: application/json\r\n"
    base = b"/k8s/clusters/c-x/x"
    token = b"Authorization: Bearer t\r\n"
    assert heads == [
        b"POST " + base + b"?a=b%20c HTTP/1.1" + typed + token + b"Content-Length: 2\r\n\r\n{}",
        b"POST " + base + b" HTTP/1.1" + lines + token + b"Content-Length: 0\r\n\r\n",
        b"DELETE " + base + b" HTTP/1.1" + lines + token + b"\r\n",
        b"GET " + base + b" HTTP/1.1" + lines + token + b"\r\n",
    ]


@pytest.mark.parametrize("server", ["127.0.0.1:6443", "ftp://x", "http://127.0.0.1:x", "http://[::1", "http://a b"])
async def test_invalid_server_address_is_an_error(tmp_path: Path, server: str) -> None:
    async with connected(tmp_path, server) as transport:
        with pytest.raises(ConnectFailedError, match="not an http or https URL"):
            await transport.request("GET", "/x")
        with pytest.raises(ConnectFailedError, match="not an http or https URL"):
            async with transport.stream("/x"):
                pass


async def test_new_certificates_close_old_connections(tmp_path: Path) -> None:
    authority = Authority(datetime.now(UTC))
    ca = tmp_path / "ca.crt"
    ca.write_bytes(authority.certificate)
    peers: list[object] = []

    async def handle(request: web.BaseRequest) -> web.Response:
        assert request.transport is not None
        peers.append(request.transport.get_extra_info("peername"))
        return web.Response()

    async with (
        serving(handle, server_context(authority, ["127.0.0.1"])) as address,
        connected(tmp_path, address, cluster={"certificate-authority": str(ca)}) as transport,
    ):
        await transport.request("GET", "/x")
        old = transport._channel.pool
        assert old is not None
        assert len(old._connections) == 1
        ca.write_bytes(authority.certificate + b"\n")
        transport._credentials._read_at -= REREAD_INTERVAL_S
        await transport.request("GET", "/x")
        assert not old._connections
        assert transport._channel.pool is not old
    assert len(set(peers)) == 2


async def test_proxy_gets_all_requests(tmp_path: Path) -> None:
    asked: list[str] = []

    async def handle(request: web.BaseRequest) -> web.Response:
        asked.append(str(request.raw_path))
        return web.Response(body=b"by proxy")

    async with (
        serving(handle) as proxy,
        connected(tmp_path, "http://api.invalid", cluster={"proxy-url": proxy}) as transport,
    ):
        assert (await transport.request("GET", "/x")).body == b"by proxy"
        async with transport.stream("/y") as stream:
            assert await stream.read_body() == b"by proxy"
        assert transport._channel.pool is None
    assert asked == ["http://api.invalid/x", "http://api.invalid/y"]


async def test_truncated_response_behind_a_proxy_is_lost_and_its_connection_closed(tmp_path: Path) -> None:
    served = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        served += 1
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")
        await writer.drain()

    async with (
        raw_serving(handle) as proxy,
        connected(tmp_path, "http://api.invalid", cluster={"proxy-url": proxy}) as transport,
    ):
        for _ in range(2):
            with pytest.raises(AnswerLostError, match=r"no complete answer to GET from http://api\.invalid"):
                await transport.request("GET", "/x")
        assert served == 2
        assert transport.statistics() == TransportStatistics(requests=2, lost_answers=2, sessions=1)


@pytest.mark.parametrize("is_chunked", [True, False])
async def test_oversized_response_behind_a_proxy_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_chunked: bool
) -> None:
    monkeypatch.setattr(transport_module, "ANSWER_BYTES_MAX", 1000)

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        last = b"x" if str(request.raw_path).endswith("/fits") else b"xx"
        if not is_chunked:
            response.content_length = 999 + len(last)
        await response.prepare(request)
        await response.write(b"x" * 999)
        await response.write(last)
        return response

    async with (
        serving(handle) as proxy,
        connected(tmp_path, "http://api.invalid", cluster={"proxy-url": proxy}) as transport,
    ):
        assert len((await transport.request("GET", "/fits")).body) == 1000
        with pytest.raises(AnswerLostError, match="1000 bytes"):
            await transport.request("GET", "/x")
        assert len((await transport.request("GET", "/fits")).body) == 1000


async def test_wait_in_flight_is_not_supported_behind_a_proxy(tmp_path: Path) -> None:
    async def handle(request: web.BaseRequest) -> web.Response:
        return web.Response(body=b"x")

    async with (
        serving(handle) as proxy,
        connected(tmp_path, "http://api.invalid", cluster={"proxy-url": proxy}) as transport,
    ):
        crowded = asyncio.ensure_future(transport.wait_in_flight(0))
        await transport.request("GET", "/x")
        assert not crowded.done()
        crowded.cancel()


async def test_number_of_cached_timeouts_is_limited(tmp_path: Path) -> None:
    async def handle(request: web.BaseRequest) -> web.Response:
        return web.Response(body=b"x")

    async with serving(handle) as address, connected(tmp_path, address) as transport:
        made = [transport._timeout(float(number)) for number in range(1, 65)]
        assert [(one.total, one.connect) for one in made[:2]] == [(1.0, 0.8), (2.0, 1.6)]
        assert made[-1].connect == made[-1].sock_connect == CONNECT_TIMEOUT_S
        assert transport._timeout(1.0) is made[0]
        assert len(transport._timeouts) == 64
        transport._timeout(65.0)
        assert len(transport._timeouts) == 1


# ---- streams


async def read_lines(folder: Path, *chunks: bytes) -> list[bytes]:
    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
        return response

    async with (
        serving(handle) as address,
        connected(folder, address) as transport,
        transport.stream("/x?watch=1") as stream,
    ):
        assert stream.status == 200
        return [line async for line in stream]


async def test_lines_are_split_at_newlines_in_any_chunks(tmp_path: Path) -> None:
    chunks = [b'{"a":1}\n{"b"', b":2", b'}\n\n{"c":3}\n{"d":4}\n']
    assert await read_lines(tmp_path, *chunks) == [b'{"a":1}', b'{"b":2}', b'{"c":3}', b'{"d":4}']


async def test_line_of_eight_mebibytes_is_one_line(tmp_path: Path) -> None:
    long = b"x" * (8 * 1024 * 1024)
    assert await read_lines(tmp_path, b"first\n", long, b"\nlast\n") == [b"first", long, b"last"]


async def test_line_without_an_end_is_refused_at_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_stream, "LINE_BYTES_MAX", 1_000_000)
    with pytest.raises(AnswerLostError, match="exceeds 1000000 bytes"):
        await read_lines(tmp_path, *[b"x" * 100_000] * 50)


async def test_stream_ending_inside_a_line_is_broken(tmp_path: Path) -> None:
    with pytest.raises(AnswerLostError, match="inside a line"):
        await read_lines(tmp_path, b'{"a":1}\n{"b"')


@given(st.lists(st.binary(max_size=20), max_size=10), st.data())
def test_split_lines_do_not_depend_on_chunks(lines: list[bytes], data: st.DataObject) -> None:
    lines = [line.replace(b"\n", b"") for line in lines]
    text = b"".join(line + b"\n" for line in lines)
    stream = HttpLineStream.__new__(HttpLineStream)
    stream._ready, stream._rest, stream._rest_bytes = [], [], 0
    got = []
    while text:
        length = data.draw(st.integers(1, len(text)))
        stream._cut(text[:length])
        text = text[length:]
        while stream._ready:
            got.append(stream._ready.pop())
    assert got == [line for line in lines if line]
    assert not stream._rest


async def test_stream_reset_is_an_error(tmp_path: Path) -> None:
    head = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n8\r\n{"a":1}\n\r\n'
    async with raw_answer(head) as address, connected(tmp_path, address) as transport, transport.stream("/x") as stream:
        lines = aiter(stream)
        assert await anext(lines) == b'{"a":1}'
        with pytest.raises(AnswerLostError):
            await anext(lines)


async def test_silent_stream_times_out_as_half_open(tmp_path: Path) -> None:
    head = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n8\r\n{"a":1}\n\r\n'
    async with raw_answer(head, hang=True) as address, connected(tmp_path, address) as transport:

        async def read_all() -> list[bytes]:
            async with transport.stream("/x", idle_timeout_s=0.2) as stream:
                return [line async for line in stream]

        with pytest.raises(AnswerLostError):  # before the first line, where the machine is slow
            await read_all()


async def test_refused_watch_has_status_and_body(tmp_path: Path) -> None:
    async def handle(request: web.BaseRequest) -> web.Response:
        return web.json_response({"kind": "Status"}, status=410)

    async with serving(handle) as address, connected(tmp_path, address) as transport, transport.stream("/x") as stream:
        assert (stream.status, await stream.read_body()) == (410, b'{"kind": "Status"}')


async def test_leaving_a_watch_closes_the_connection_at_once(tmp_path: Path) -> None:
    gone = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            await reader.read()
        finally:
            gone.set()

    async with raw_serving(handle) as address, connected(tmp_path, address) as transport:
        async with transport.stream("/x"):
            pass
        async with asyncio.timeout(60):
            await gone.wait()
        assert transport._channel.users == 0


async def test_cancelled_watch_open_returns_its_connection(tmp_path: Path) -> None:
    asked, gone = asyncio.Event(), asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        asked.set()
        try:
            await reader.read()
        finally:
            gone.set()

    async def watch() -> None:
        async with transport.stream("/x"):
            raise AssertionError("nobody answers")

    async with raw_serving(handle) as address, connected(tmp_path, address) as transport:
        watching = asyncio.ensure_future(watch())
        await asked.wait()
        assert transport._channel.users == 1
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching
        await gone.wait()
        assert transport._channel.users == 0


async def test_watch_refused_with_401_is_reopened_or_reported(tmp_path: Path) -> None:
    seen: list[str] = []

    async def handle(request: web.BaseRequest) -> web.Response:
        seen.append(request.headers["Authorization"].removeprefix("Bearer "))
        return web.Response(status=200 if seen[-1] == "new" else 401, body=b"x\n")

    async with serving(handle) as address, connected(tmp_path, address, user={"token": "old"}) as transport:
        transport._credentials._forced_at = float("-inf")
        async with transport.stream("/x") as stream:
            assert stream.status == 401
        write_kubeconfig(tmp_path, address, {"token": "new"})
        transport._credentials._forced_at = float("-inf")
        async with transport.stream("/x") as stream:
            assert stream.status == 200
            assert [line async for line in stream] == [b"x"]
        assert seen == ["old", "old", "new"]
        assert transport._channel.users == 0
        assert transport.statistics() == TransportStatistics(streams=2, unauthorized=2, sessions=1)


EVENTS = [Request("POST", f"/{number}", b"{}") for number in range(4)]


async def test_requests_sent_together_are_repeated_from_the_first_401(tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []

    async def handle(request: web.BaseRequest) -> web.Response:
        token, path = request.headers["Authorization"].removeprefix("Bearer "), str(request.raw_path)
        seen.append((path, token))
        return web.Response(status=401 if token == "old" and path >= "/2" else 201, body=path.encode())

    async with serving(handle) as address, connected(tmp_path, address, user={"token": "old"}) as transport:
        write_kubeconfig(tmp_path, address, {"token": "new"})
        transport._credentials._forced_at = float("-inf")
        responses = await transport.request_all(EVENTS, timeout_s=10)
        assert [(one.status, one.body) for one in responses] == [(201, one.path.encode()) for one in EVENTS]
        assert transport._channel.users == 0
        assert transport.counts.results == {("POST", 201): 4, ("POST", 401): 3}
    assert seen == [(one.path, "old") for one in EVENTS] + [("/2", "old"), ("/2", "new"), ("/3", "new")]


async def test_requests_through_a_proxy_are_sent_one_by_one(tmp_path: Path) -> None:
    asked: list[str] = []

    async def handle(request: web.BaseRequest) -> web.Response:
        asked.append(str(request.raw_path))
        if request.path.endswith("/2"):
            assert request.transport is not None
            request.transport.abort()
        return web.Response(body=b"by proxy")

    async with (
        serving(handle) as proxy,
        connected(tmp_path, "http://api.invalid", cluster={"proxy-url": proxy}) as transport,
    ):
        assert [one.body for one in await transport.request_all(EVENTS, timeout_s=10)] == [b"by proxy"] * 2
        with pytest.raises(AnswerLostError):
            await transport.request_all(EVENTS[2:], timeout_s=10)
    assert asked == [f"http://api.invalid/{number}" for number in (0, 1, 2, 2)]


async def test_cancelled_credential_renewal_returns_the_refused_watch(tmp_path: Path) -> None:
    async def handle(request: web.BaseRequest) -> web.Response:
        return web.Response(status=401)

    async def watch() -> None:
        async with transport.stream("/x"):
            raise AssertionError("it is left before")

    async with serving(handle) as address, connected(tmp_path, address) as transport:
        async with transport._credentials._renewal:  # another request is renewing them
            watching = asyncio.ensure_future(watch())
            while not transport.statistics().unauthorized:  # noqa: ASYNC110 - an answer from a socket
                await asyncio.sleep(0)
            assert transport._channel.users == 1
            watching.cancel()
            with pytest.raises(asyncio.CancelledError):
                await watching
        assert transport._channel.users == 0

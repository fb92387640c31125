"""The pool against scripted servers: when a connection is used again, what a broken one means, who waits how long."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import socket
import ssl
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from multisched.client import connection_pool
from multisched.client.connection_pool import ConnectionPool, Endpoint, StaleConnectionError
from multisched.cluster.access.certificates import Authority, server_context
from multisched.model.wire import AnswerLostError, ConnectFailedError, Response
from tests.unit.client.servers import raw_serving, read_head

GET = b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n"
POST = b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter, int], Awaitable[None]]


PATIENCE_S = 60.0
"""For what has to come: bounds a hang."""


def pool_to(address: str, connections_max: int = 4, tls: ssl.SSLContext = NO_TLS) -> ConnectionPool:
    return ConnectionPool(Endpoint.of(address, tls, None), connections_max=connections_max, answer_bytes_max=1_000_000)


@asynccontextmanager
async def playing(serve: Serve, connections_max: int = 4) -> AsyncIterator[ConnectionPool]:
    """A pool to a server that is told the number of each connection, from 0."""
    numbers = itertools.count()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await serve(reader, writer, next(numbers))

    async with raw_serving(handle) as address:
        pool = pool_to(address, connections_max)
        try:
            yield pool
        finally:
            pool.close()
            assert not pool._connections
            assert pool._places_taken == 0


def scripted(*connections: Iterable[bytes]) -> Serve:
    """Each connection answers its n-th request with its n-th entry, then is closed; one more connection is an error."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        for answer in connections[number]:
            await read_request(reader)
            writer.write(answer)
            await writer.drain()

    return serve


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await read_head(reader)
    length = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0] or 0)
    return head + await reader.readexactly(length)


def told(number: int) -> bytes:
    """An answer that says which connection gave it."""
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%d" % (len(str(number)), number)


async def serve_forever(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
    while True:
        await read_request(reader)
        writer.write(told(number))


async def ask(pool: ConnectionPool, request: bytes = POST, timeout_s: float = PATIENCE_S) -> Response:
    return await pool.exchange(request, is_repeatable=request.startswith(b"GET"), timeout_s=timeout_s)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 -- what is waited for has no event of its own
            await asyncio.sleep(0.001)


# ---- which connection


async def test_request_is_sent_in_one_write_and_its_connection_kept() -> None:
    pieces: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        assert number == 0
        while piece := await reader.read(100_000):
            pieces.append(piece)
            writer.write(OK)

    async with playing(serve) as pool:
        for _ in range(50):
            assert (await ask(pool)).body == b"ok"
    assert pieces == [POST] * 50


async def test_concurrent_requests_use_separate_connections_latest_first() -> None:
    async with playing(serve_forever) as pool:
        bodies = {answer.body for answer in await asyncio.gather(*(ask(pool) for _ in range(3)))}
        assert bodies == {b"0", b"1", b"2"}
        last = (await ask(pool)).body
        assert {(await ask(pool)).body for _ in range(10)} == {last}


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(OK + b"HTTP/1.1 500 Bad\r\nContent-Length: 3\r\n\r\nbad", id="two answers"),
        pytest.param(OK + b"garbage", id="garbage behind it"),
        pytest.param(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", id="Connection: close"),
        pytest.param(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", id="HTTP/1.0"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\nok", id="ends with its connection"),
    ],
)
async def test_connection_after_an_unclean_response_is_not_reused(first: bytes) -> None:
    async with playing(scripted([first], [OK, OK])) as pool:
        assert [(await ask(pool)).body for _ in range(3)] == [b"ok"] * 3


async def test_unexpected_bytes_close_an_idle_connection() -> None:
    is_idle = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        await read_request(reader)
        writer.write(told(number))
        await is_idle.wait()
        writer.write(b"HTTP/1.1 500 Bad\r\nContent-Length: 3\r\n\r\nbad")
        await reader.read()

    async with playing(serve) as pool:
        assert (await ask(pool)).body == b"0"
        is_idle.set()
        await until(lambda: not pool._connections)
        assert (await ask(pool)).body == b"1"


async def test_connection_closed_while_idle_is_not_used() -> None:
    async with playing(scripted([OK], [OK])) as pool:
        await ask(pool)
        await until(lambda: not pool._connections)
        assert (await ask(pool)).body == b"ok"


async def test_early_response_counts_and_closes_the_connection() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 1\r\n\r\n%d" % number)
        await asyncio.Event().wait()

    large = b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 60000000\r\n\r\n" + bytes(60_000_000)
    async with playing(serve) as pool:
        answer = await ask(pool, large)
        assert (answer.status, answer.body) == (413, b"0")
        assert not pool._connections


async def test_surplus_connections_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    async with playing(serve_forever) as pool:
        await asyncio.gather(*(ask(pool) for _ in range(4)))
        assert len(pool._connections) == 4
        monkeypatch.setattr(connection_pool, "IDLE_TIMEOUT_S", 0.1)
        await asyncio.gather(*(ask(pool) for _ in range(4)))
        async with asyncio.timeout(PATIENCE_S):
            while len(pool._connections) > 1:
                await ask(pool)
                await asyncio.sleep(0.01)
        await until(lambda: not pool._connections)


# ---- broken answers


async def test_request_on_a_stale_connection_is_repeated_only_if_repeatable() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        await read_request(reader)
        writer.write(told(number))
        await read_request(reader)

    async with playing(serve) as pool:
        assert (await ask(pool)).body == b"0"
        assert (await ask(pool, GET)).body == b"1"
        with pytest.raises(AnswerLostError):
            await ask(pool)
        assert (await ask(pool)).body == b"2"


async def test_request_is_repeated_once_on_a_new_connection() -> None:
    seen: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        if number < 2:
            await read_request(reader)
            await asyncio.sleep(0.01)
            writer.write(told(number))
        await read_request(reader)
        seen.append(number)

    async with playing(serve) as pool:
        await asyncio.gather(ask(pool), ask(pool))
        with pytest.raises(AnswerLostError):
            await ask(pool, GET)
    assert len(seen) == 2
    assert seen[1] == 2


async def test_first_request_of_a_connection_is_not_repeated() -> None:
    async with playing(scripted([b""])) as pool:
        with pytest.raises(AnswerLostError):
            await ask(pool, GET)


async def test_unrepeatable_request_on_a_stale_connection_is_lost() -> None:
    told_to_close = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(OK)
        await told_to_close.wait()
        await read_request(reader)
        writer.transport.abort()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    pool = pool_to(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    await ask(pool)
    server.close()
    told_to_close.set()
    with pytest.raises(AnswerLostError, match="sent once"):
        await ask(pool, GET)
    pool.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 201 Created\r\nContent-Length: 12\r\n\r\n{\"kind\":\"x\"}",
        b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\nc\r\n{\"kind\":\"x\"}\r\n0\r\n\r\n",
    ],
    ids=["length", "chunks"],
)  # fmt: skip
async def test_response_cut_at_any_byte_is_lost_on_new_and_kept_connections(answer: bytes) -> None:
    cuts = [[answer[:length]] for length in range(len(answer))]
    kept = [[OK, answer[:length]] for length in range(len(answer))]
    async with playing(scripted(*cuts, *kept)) as pool:
        for _ in cuts:
            with pytest.raises(AnswerLostError):
                await ask(pool)
        for _ in kept:
            await ask(pool)
            with pytest.raises(AnswerLostError):
                await ask(pool)
        assert not pool._connections


UNTIL_THE_END = b"HTTP/1.1 200 OK\r\n\r\nok"
"""An answer without a length: the end of the connection is the end of its body."""


@pytest.mark.parametrize(
    ("sent", "is_whole_if_closed"),
    [
        pytest.param(UNTIL_THE_END, True, id="no length"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok", False, id="a byte is lacking"),
        pytest.param(b"HTTP/1.1 200 OK\r\n", False, id="half a head"),
        pytest.param(b"", False, id="nothing"),
    ],
)
@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize("is_reset", [False, True])
async def test_response_without_length_is_complete_on_close_and_lost_on_reset(
    sent: bytes, is_whole_if_closed: bool, is_kept: bool, is_reset: bool
) -> None:
    may_end = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        if is_kept:
            await read_request(reader)
            writer.write(OK)
        await read_request(reader)
        writer.write(sent)
        await may_end.wait()
        if is_reset:
            now = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, now)
        writer.transport.abort()

    async with playing(serve) as pool:
        if is_kept:
            await ask(pool)
        request = asyncio.ensure_future(ask(pool))
        await until(lambda: any(one._answer and one._reader.bytes_read == len(sent) for one in pool._connections))
        may_end.set()
        if is_whole_if_closed and not is_reset:
            assert (await request).body == b"ok"
        else:
            with pytest.raises(AnswerLostError) as lost:
                await request
            assert type(lost.value) is (StaleConnectionError if is_kept and not sent else AnswerLostError)
            assert str(lost.value).startswith(
                "ConnectionResetError" if is_reset else "the server closed the connection"
            )
            assert isinstance(lost.value.__cause__, ConnectionResetError) == is_reset
        assert not pool._connections


async def test_slow_body_is_read_completely() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        await read_request(reader)
        for byte in OK:
            writer.write(bytes([byte]))
            await asyncio.sleep(0.001)
        await reader.read()

    async with playing(serve) as pool:
        assert (await ask(pool)).body == b"ok"
        assert len(pool._idle) == 1


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx"])
async def test_request_deadline_ends_request_and_connection(sent: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        await read_request(reader)
        writer.write(sent)
        await reader.read()

    async with playing(serve) as pool:
        loop = asyncio.get_running_loop()
        started = loop.time()
        slow, fast = asyncio.ensure_future(ask(pool, timeout_s=0.5)), asyncio.ensure_future(ask(pool, timeout_s=0.2))
        for request, timeout_s in ((fast, 0.2), (slow, 0.5)):
            with pytest.raises(AnswerLostError, match=r"^TimeoutError: no whole answer in time$"):
                await request
            assert loop.time() - started > timeout_s - 0.02
        assert not pool._connections


async def test_cancelled_request_closes_its_connection() -> None:
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        await read_request(reader)
        if number == 0:
            await reader.read()
            gone.set()
        else:
            writer.write(told(number))
            await reader.read()

    async with playing(serve) as pool:
        request = asyncio.ensure_future(ask(pool))
        await until(lambda: any(connection._answer for connection in pool._connections))
        request.cancel()
        assert (await ask(pool)).body == b"1"
        async with asyncio.timeout(PATIENCE_S):
            await gone.wait()
        assert request.cancelled()


# ---- waiting


async def test_number_of_connections_is_limited() -> None:
    async with playing(serve_forever, connections_max=2) as pool:
        assert {answer.body for answer in await asyncio.gather(*(ask(pool) for _ in range(40)))} == {b"0", b"1"}


async def test_requests_beyond_the_connection_limit_are_served_in_order() -> None:
    done: list[int] = []
    async with playing(serve_forever, connections_max=1) as pool:

        async def request(number: int) -> None:
            await ask(pool)
            done.append(number)

        await asyncio.gather(*(request(number) for number in range(40)))
    assert done == list(range(40))


async def test_request_that_times_out_in_the_queue_sends_nothing() -> None:
    may_answer = asyncio.Event()
    requests = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        nonlocal requests
        while True:
            await read_request(reader)
            requests += 1
            await may_answer.wait()
            writer.write(told(number))

    async with playing(serve, connections_max=1) as pool:
        first = asyncio.ensure_future(ask(pool))
        await until(lambda: requests == 1)
        hasty, cancelled, patient = (asyncio.ensure_future(ask(pool, timeout_s=limit)) for limit in (0.1, 60, 60))
        with pytest.raises(ConnectFailedError):
            await hasty
        cancelled.cancel()
        assert requests == 1
        may_answer.set()
        assert [(await first).body, (await patient).body] == [b"0", b"0"]
        assert requests == 2


async def test_turn_granted_to_a_cancelled_request_passes_on() -> None:
    may_answer = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        while True:
            await read_request(reader)
            await may_answer.wait()
            writer.write(told(number))

    async with playing(serve, connections_max=1) as pool:

        async def ask_then_cancel_the_next() -> None:
            await ask(pool)  # the next one has its turn by now, but does not know yet
            cancelled.cancel()

        first = asyncio.ensure_future(ask_then_cancel_the_next())
        cancelled, last = asyncio.ensure_future(ask(pool)), asyncio.ensure_future(ask(pool))
        await until(lambda: len(pool._waiting) == 2)
        may_answer.set()
        await first
        assert (await last).body == b"0"
        assert cancelled.cancelled()
        assert len(pool._idle) == 1


async def test_lost_connection_frees_its_slot_for_a_waiting_request() -> None:
    async with playing(scripted([b""], [b""], [OK]), connections_max=1) as pool:
        lost, lost_too, served = await asyncio.gather(*(ask(pool) for _ in range(3)), return_exceptions=True)
        assert isinstance(lost, AnswerLostError)
        assert isinstance(lost_too, AnswerLostError)
        assert isinstance(served, Response)


async def test_repeated_request_evicts_an_idle_connection() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        while True:
            await read_request(reader)
            await asyncio.sleep(0.01)
            writer.write(told(number))

    async with playing(serve, connections_max=2) as pool:
        await asyncio.gather(ask(pool), ask(pool))
        assert len(pool._idle) == 2
        fresh = await pool._obtain_by(asyncio.get_running_loop().time() + PATIENCE_S)
        assert fresh not in pool._idle
        assert len(pool._connections) == 2


async def answer_badly(writer: asyncio.StreamWriter, name: bytes, rng: random.Random) -> None:
    """The name back; or too late, in pieces, followed by an answer nobody asked for, cut off, or not at all."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(name), name)
    whim = rng.random()
    if whim < 0.05:
        writer.write(answer + answer.replace(name, b"x" * len(name)))
    elif whim < 0.1:
        writer.write(answer[: rng.randrange(len(answer))])
        writer.transport.abort()
    elif whim < 0.2:
        await asyncio.sleep(0.05)
        writer.write(answer)
    elif whim < 0.3:
        writer.write(answer)
        await asyncio.sleep(0.002)
        writer.transport.abort()
    else:
        cut = rng.randrange(len(answer))
        writer.write(answer[:cut])
        await asyncio.sleep(0)
        writer.write(answer[cut:])


@pytest.mark.parametrize("seed", range(4))
async def test_responses_never_reach_another_request(seed: int) -> None:
    rng = random.Random(seed)
    outcomes: Counter[str] = Counter()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        while not writer.transport.is_closing():
            name = (await read_head(reader)).split()[1]
            await answer_badly(writer, name, rng)

    async def request(pool: ConnectionPool, number: int) -> None:
        await asyncio.sleep(rng.random() / 4)
        method, name = rng.choice(["GET", "POST"]), f"/{number}"
        try:
            async with asyncio.timeout(rng.choice([0.02, PATIENCE_S])):
                text = f"{method} {name} HTTP/1.1\r\nHost: h\r\n\r\n".encode()
                answer = await ask(pool, text, timeout_s=rng.choice([0.03, PATIENCE_S]))
        except (AnswerLostError, ConnectFailedError, TimeoutError) as error:
            outcomes[type(error).__name__] += 1
        else:
            assert answer.body == name.encode()
            outcomes["answered"] += 1

    async with playing(serve, connections_max=8) as pool:
        await asyncio.gather(*(request(pool, number) for number in range(400)))
        assert outcomes["answered"] > 50
        assert outcomes["AnswerLostError"] > 0
        assert outcomes["TimeoutError"] > 0
        assert pool._places_taken == len(pool._connections) <= 8
        assert all(connection._answer is None for connection in pool._connections)
        assert not any(turn for turn in pool._waiting if not turn.done())


async def test_idle_connection_holds_no_response() -> None:
    async with playing(serve_forever) as pool:
        await ask(pool)
        (connection,) = pool._idle
        assert not connection._reader.responses
        assert not connection._reader._pieces


# ---- several requests in one exchange


async def test_requests_are_sent_together_and_answered_in_order() -> None:
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        while True:
            received.append(await reader.readexactly(3 * len(POST)))
            for at in range(3):
                writer.write(told(at))
                await asyncio.sleep(0)

    async with playing(serve) as pool:
        for _ in range(2):
            responses = await pool.exchange_all([POST] * 3, timeout_s=PATIENCE_S)
            assert [one.body for one in responses] == [b"0", b"1", b"2"]
        assert len(pool._connections) == len(pool._idle) == 1
    assert received == [3 * POST] * 2


@pytest.mark.parametrize("ending", ["close", "reset", "silence", "nonsense"])
@pytest.mark.parametrize("answered", [0, 1, 2])
async def test_responses_before_a_break_are_returned(answered: int, ending: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        await reader.readexactly(3 * len(POST))
        writer.write(b"".join(map(told, range(answered))) + told(answered)[:20])
        await asyncio.sleep(0.05)
        if ending == "reset":
            writer.transport.abort()
        elif ending == "nonsense":
            writer.write(b"\0" * 50)
        elif ending == "silence":
            await asyncio.sleep(PATIENCE_S)

    async with playing(serve) as pool:
        sent = pool.exchange_all([POST] * 3, timeout_s=0.2 if ending == "silence" else PATIENCE_S)
        if answered:
            assert [one.body for one in await sent] == [b"%d" % at for at in range(answered)]
        else:
            with pytest.raises(AnswerLostError):
                await sent
        assert not pool._connections


# ---- connecting and closing


async def test_connection_refused_means_nothing_sent_and_frees_the_slot() -> None:
    async with playing(serve_forever) as pool:
        pass
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    await server.wait_closed()
    pool = pool_to(address, connections_max=1)
    for _ in range(3):
        with pytest.raises(ConnectFailedError, match=r"refused|Connect call failed"):
            await ask(pool)
    assert pool._places_taken == 0


@pytest.mark.parametrize("name", ["no-such-host.invalid", "a..b", "x" * 300])
async def test_unresolvable_name_means_nothing_sent(name: str) -> None:
    pool = pool_to(f"http://{name}")
    with pytest.raises(ConnectFailedError):
        await ask(pool)
    assert pool._places_taken == 0


async def test_close_fails_waiting_and_later_requests() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        await reader.read()

    async with playing(serve, connections_max=1) as pool:
        busy, waiting = asyncio.ensure_future(ask(pool)), asyncio.ensure_future(ask(pool))
        await until(lambda: len(pool._waiting) == 1 and len(pool._connections) == 1)
        pool.close()
        with pytest.raises(AnswerLostError, match="closed"):
            await busy
        with pytest.raises(ConnectFailedError, match="closed"):
            await waiting
        with pytest.raises(ConnectFailedError, match="closed"):
            await ask(pool)


async def test_connection_opened_after_close_is_not_kept() -> None:
    async with playing(serve_forever) as pool:
        request = asyncio.ensure_future(ask(pool))
        await asyncio.sleep(0)
        assert (pool._places_taken, len(pool._connections)) == (1, 0)
        pool.close()
        with pytest.raises(ConnectFailedError):
            await request


async def test_tls_is_verified_and_connections_are_kept() -> None:
    authority = Authority(datetime.now(UTC))
    trusting = ssl.create_default_context(cadata=authority.certificate.decode())
    numbers = itertools.count()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = next(numbers)
        try:
            await serve_forever(reader, writer, number)
        except asyncio.IncompleteReadError:
            writer.transport.abort()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=server_context(authority, ["127.0.0.1", "api"]))
    address = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        pool = pool_to(address, tls=trusting)
        assert {(await ask(pool)).body for _ in range(20)} == {b"0"}
        named = ConnectionPool(Endpoint.of(address, trusting, "api"), connections_max=1, answer_bytes_max=1000)
        assert (await ask(named)).status == 200
        strangers = (
            Endpoint.of(address, trusting, "another"),
            Endpoint.of(address, ssl.create_default_context(), None),
        )
        for endpoint in strangers:
            stranger = ConnectionPool(endpoint, connections_max=1, answer_bytes_max=1000)
            with pytest.raises(ConnectFailedError, match="CERTIFICATE_VERIFY_FAILED") as caught:
                await ask(stranger)
            assert isinstance(caught.value.__cause__, ssl.SSLError)
        pool.close()
        named.close()


async def test_ipv6_host_is_supported() -> None:
    hosts: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hosts.append(await read_head(reader))
        writer.write(OK)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(handle, "::1", 0) as server:
        pool = pool_to(f"http://[::1]:{server.sockets[0].getsockname()[1]}")
        assert (await ask(pool, GET)).status == 200
        pool.close()


async def test_next_address_is_tried_if_one_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.2", 0), backlog=0) as deaf, contextlib.ExitStack() as callers:
        for _ in range(3):  # its queue is full from the second on: whoever calls now hears nothing
            caller = callers.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(deaf.getsockname())
        genuine = asyncio.get_running_loop().getaddrinfo
        async with playing(serve_forever) as pool:
            addresses = [deaf.getsockname(), ("127.0.0.1", pool._endpoint.port)]
            found = [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", address) for address in addresses]

            async def resolve(host: str, *asked: Any, **options: Any) -> list[Any]:
                return found if host == "twofold" else await genuine(host, *asked, **options)

            monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
            twofold = pool_to(f"http://twofold:{pool._endpoint.port}")
            assert (await ask(twofold)).status == 200
            twofold.close()


@pytest.mark.parametrize(
    ("url", "host", "port", "authority", "base_path"),
    [
        ("https://10.0.0.1", "10.0.0.1", 443, "10.0.0.1", ""),
        ("http://api", "api", 80, "api", ""),
        ("https://[fd00::1]:6443/", "fd00::1", 6443, "[fd00::1]:6443", ""),
        ("https://[fd00::1]", "fd00::1", 443, "[fd00::1]", ""),
        ("https://r.example/k8s/clusters/c-x", "r.example", 443, "r.example", "/k8s/clusters/c-x"),
        ("https://user:word@h:1/", "h", 1, "h:1", ""),
    ],
)
def test_endpoint_address_is_parsed(url: str, host: str, port: int, authority: str, base_path: str) -> None:
    endpoint = Endpoint.of(url, NO_TLS, None)
    assert (endpoint.host, endpoint.port, endpoint.authority, endpoint.base_path) == (host, port, authority, base_path)
    assert (endpoint.tls is NO_TLS) == (endpoint.server_name == host) == url.startswith("https")


@pytest.mark.parametrize("url", ["", "10.0.0.1:6443", "ftp://x", "https://", "https://h:x", "https://h:99999"])
def test_invalid_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"address|ort"):
        Endpoint.of(url, NO_TLS, None)


# ---- how many are under way


async def test_wait_in_flight_returns_at_the_count_and_at_close() -> None:
    answer = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        while True:
            await read_request(reader)
            await answer.wait()
            writer.write(told(number))

    async with playing(serve) as pool:
        crowd = asyncio.ensure_future(pool.wait_in_flight(3))
        requests = [asyncio.ensure_future(ask(pool)) for _ in range(2)]
        await until(lambda: pool.in_flight == 2)
        assert not crowd.done()
        requests.append(asyncio.ensure_future(ask(pool)))
        await until(crowd.done)
        await pool.wait_in_flight(3)
        answer.set()
        await asyncio.gather(*requests)
        assert pool.in_flight == 0
        again = asyncio.ensure_future(pool.wait_in_flight(1))
        await asyncio.sleep(0)
        assert not again.done()
        pool.close()
        await again

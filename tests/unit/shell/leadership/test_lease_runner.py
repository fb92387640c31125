"""Leases in a thread of their own: renewed while the program's loop is busy, left when it hangs, lost when the thread ends."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from multisched.client.lease import LeaseKeeper
from multisched.client.lease_term import LeaseSettings, LeaseState
from multisched.cluster.api.direct import DirectTransport
from multisched.cluster.api.server import ApiServer
from multisched.model.wire import JSON, ConnectFailedError, Response, Transport
from multisched.observe.health import HEARTBEAT_AGE_MAX_S
from multisched.shell.leadership import lease_runner
from multisched.shell.leadership.lease_runner import LeasesInThread, LeasesOnLoop

PATIENCE_S = 30.0
"""For what must happen, on a machine however slow."""


class HandClock:
    """Real time, which a test may put forward: as a loop that hung, or a process that was stopped, would find it."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_s

    def now(self) -> datetime:
        return datetime.now(UTC)


class Watched(DirectTransport):
    """Counts what is written, thread-safely, and may fail."""

    def __init__(self, server: ApiServer) -> None:
        super().__init__(server)
        self.writes = threading.Semaphore(0)
        self.holder = ""
        self.is_cut = False

    async def request(self, method: str, path: str, **options: Any) -> Response:
        if self.is_cut:
            raise ConnectFailedError("cut")
        answer = await super().request(method, path, **options)
        if method != "GET" and answer.status < 300:
            self.holder = orjson.loads(answer.body)["spec"].get("holderIdentity") or ""
            self.writes.release()
        return answer


class Scene:
    """One keeper in a thread, and what the program's loop hears of it."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.transport = Watched(ApiServer(self.clock, rbac=False))
        self.threads: set[str] = set()
        self.runner = LeasesInThread(self.connect, self.clock)
        self.told: list[LeaseState] = []
        self.heard_in: set[str] = set()
        self.changed = asyncio.Event()
        self.keeper = LeaseKeeper(
            self.runner.transport,
            namespace="kube-system",
            name="job",
            identity="me",
            clock=self.clock,
            rng=random.Random(1),
            settings=LeaseSettings(retry_period_s=0.02),
            on_change=lambda state: self.runner.call_on_loop(self.hear, state),
            is_alive=self.runner.is_alive,
        )

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Transport]:
        self.threads.add(threading.current_thread().name)
        yield self.transport

    def hear(self, state: LeaseState) -> None:
        self.heard_in.add(threading.current_thread().name)
        self.told.append(state)
        self.changed.set()

    async def until(self, state: LeaseState) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while state not in self.told:
                self.changed.clear()
                await self.changed.wait()


def play(scene: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        stage = Scene()
        running = asyncio.get_running_loop().create_task(stage.runner.run([stage.keeper]))
        try:
            await stage.until(LeaseState.LEADING)
            stage.keeper.term.count_as_new()
            await scene(stage)
        finally:
            running.cancel()
            await asyncio.wait([running])

    asyncio.run(main())


def test_lease_is_renewed_while_the_event_loop_is_busy() -> None:
    async def scene(stage: Scene) -> None:
        for _ in range(5):  # nothing else runs on this loop meanwhile
            assert stage.transport.writes.acquire(timeout=PATIENCE_S)
        assert stage.keeper.term.may_bind()
        assert stage.threads == {"leases"}
        assert stage.heard_in == {threading.current_thread().name}, "what changes is heard on the program's loop"

    play(scene)


def test_binds_stop_by_the_clock_despite_a_blocked_thread() -> None:
    """It may be late to say so, or never come to it: the deadline was counted from the last renewal's request (I9)."""

    async def scene(stage: Scene) -> None:
        stage.transport.is_cut = True
        stage.clock.ahead_s += LeaseSettings().renew_deadline_s
        assert not stage.keeper.term.may_bind()

    play(scene)


def test_hung_program_loses_its_leases() -> None:
    async def scene(stage: Scene) -> None:
        stage.clock.ahead_s += HEARTBEAT_AGE_MAX_S + 1  # and no beat comes, as this loop does not come around
        assert not stage.runner.is_alive()
        assert not stage.keeper.term.may_bind()
        while stage.keeper.term.state is LeaseState.LEADING:
            pass  # the thread goes on by itself
        while stage.transport.writes.acquire(blocking=False):
            pass
        assert not stage.transport.writes.acquire(timeout=0.2), "it was taken again for a program that hangs"
        await stage.until(LeaseState.STANDBY)

    play(scene)


HANGS = "the program hangs in this function"


def test_hung_program_is_logged_once_with_the_function(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(stage: Scene) -> None:
        stage.clock.ahead_s += HEARTBEAT_AGE_MAX_S + 1
        a_plugin_that_hangs(caplog)

    play(scene)

    (told,) = [record for record in caplog.records if record.getMessage() == HANGS]
    assert any(frame.endswith(" a_plugin_that_hangs") for frame in vars(told)["stack"])


def a_plugin_that_hangs(caplog: pytest.LogCaptureFixture) -> None:
    """Until the thread has told of it, and tried once more."""
    until_s = time.monotonic() + PATIENCE_S
    hanging = "the program hangs; its lease is not renewed"
    while sum(record.getMessage() == hanging for record in list(caplog.records)) < 2 and time.monotonic() < until_s:
        pass


def test_lease_is_released_from_the_program_loop() -> None:
    async def scene(stage: Scene) -> None:
        assert stage.transport.holder == "me"
        await stage.runner.release(stage.keeper)
        assert stage.transport.holder == ""
        assert not stage.keeper.term.may_bind()

    play(scene)


def test_lease_expires_if_the_program_ends_without_release() -> None:
    async def main() -> None:
        stage = Scene()
        running = asyncio.get_running_loop().create_task(stage.runner.run([stage.keeper]))
        await stage.until(LeaseState.LEADING)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert stage.transport.holder == "me"
        assert not stage.keeper.term.may_bind()
        assert stage.keeper.term.state is LeaseState.RELEASED

    asyncio.run(main())


def test_unconnected_lease_thread_ends_the_program_with_its_reason() -> None:
    async def main() -> None:
        stage = Scene()

        @asynccontextmanager
        async def refuse() -> AsyncIterator[Transport]:
            raise PermissionError("no credentials")
            yield stage.transport

        runner = LeasesInThread(refuse, stage.clock)
        with pytest.raises(BaseExceptionGroup) as caught:
            await runner.run([stage.keeper])
        assert caught.group_contains(PermissionError, match="no credentials")

    asyncio.run(main())


def test_lease_thread_ends_with_its_last_lease() -> None:
    async def main() -> None:
        stage = Scene()
        running = asyncio.get_running_loop().create_task(stage.runner.run([stage.keeper]))
        await stage.until(LeaseState.LEADING)
        await stage.runner.release(stage.keeper)
        async with asyncio.timeout(PATIENCE_S):
            await running
        await stage.runner.release(stage.keeper)  # its loop is closed: there is nothing left to give back
        assert stage.transport.holder == ""

    asyncio.run(main())


class Echo:
    """Answers every request with what it was asked."""

    async def request(self, method: str, path: str, **how: Any) -> Response:
        return Response(200, orjson.dumps([method, path, {**how, "body": how["body"].decode()}]), {})


async def test_lease_requests_wait_for_the_thread_connection() -> None:
    @asynccontextmanager
    async def connect() -> AsyncIterator[Transport]:
        raise AssertionError("not in this test")
        yield

    runner = LeasesInThread(connect, HandClock())
    with pytest.raises(ConnectFailedError, match=r"^the lease thread has no connection yet$"):
        await runner.transport.request("GET", "/x")
    echo: Any = Echo()
    runner.connected = echo
    how = {"content_type": "c", "accept": "a", "timeout_s": 3.0}
    answer = await runner.transport.request("PUT", "/x", body=b"b", content_type="c", accept="a", timeout_s=3.0)
    assert orjson.loads(answer.body) == ["PUT", "/x", {**how, "body": "b"}]
    answer = await runner.transport.request("PUT", "/x", body=b"b")
    how = {"content_type": JSON, "accept": JSON, "timeout_s": 30.0}
    assert orjson.loads(answer.body) == ["PUT", "/x", {**how, "body": "b"}]
    with pytest.raises(NotImplementedError, match="leases are not watched"):
        runner.transport.stream("/x")
    stage = Scene()
    await runner.release(stage.keeper)
    assert stage.told == [], "a thread that never ran has nothing to give back"


def test_calls_to_an_ended_program_are_dropped() -> None:
    stage = Scene()
    stage.runner.call_on_loop(stage.hear, LeaseState.LEADING)
    loop = asyncio.new_event_loop()
    loop.close()
    stage.runner._program = loop
    stage.runner.call_on_loop(stage.hear, LeaseState.LEADING)
    assert stage.told == []


async def test_lease_thread_end_is_reported_once() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    lease_runner._settle(future, None)
    lease_runner._settle(future, ValueError("too late"))
    await future
    assert future.done()
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    lease_runner._settle(failed, ValueError("no credentials"))
    lease_runner._settle(failed, None)
    with pytest.raises(ValueError, match="no credentials"):
        await failed


async def test_leases_on_the_program_loop_run_concurrently() -> None:
    clock = HandClock()
    transport = Watched(ApiServer(clock, rbac=False))
    runner, told = LeasesOnLoop(transport), list[tuple[str, LeaseState]]()
    assert runner.is_alive()

    def keeper(name: str) -> LeaseKeeper:
        return LeaseKeeper(
            runner.transport,
            namespace="kube-system",
            name=name,
            identity="me",
            clock=clock,
            rng=random.Random(1),
            settings=LeaseSettings(retry_period_s=0.02),
            on_change=lambda state: runner.call_on_loop(lambda name, state: told.append((name, state)), name, state),
        )

    keepers = [keeper("a"), keeper("b")]
    running = asyncio.create_task(runner.run(keepers))
    async with asyncio.timeout(PATIENCE_S):
        while {name for name, state in told if state is LeaseState.LEADING} != {"a", "b"}:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for one in keepers:
            await runner.release(one)
        await running
    assert transport.holder == ""

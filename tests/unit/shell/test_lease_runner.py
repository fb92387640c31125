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

from multisched.client.lease import LeaseKeeper, LeaseSettings, LeaseState
from multisched.cluster.direct import DirectTransport
from multisched.cluster.server import ApiServer
from multisched.model.wire import ConnectFailedError, Response, Transport
from multisched.observe.health import HEARTBEAT_AGE_MAX_S
from multisched.shell.lease_runner import LeasesInThread

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
            on_change=lambda state: self.runner.tell(self.hear, state),
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
            await scene(stage)
        finally:
            running.cancel()
            await asyncio.wait([running])

    asyncio.run(main())


def test_a_lease_is_renewed_while_the_loop_of_the_program_is_busy() -> None:
    async def scene(stage: Scene) -> None:
        for _ in range(5):  # nothing else runs on this loop meanwhile
            assert stage.transport.writes.acquire(timeout=PATIENCE_S)
        assert stage.keeper.may_bind()
        assert stage.threads == {"leases"}
        assert stage.heard_in == {threading.current_thread().name}, "what changes is heard on the program's loop"

    play(scene)


def test_binds_stop_by_the_clock_alone_whatever_the_thread_does() -> None:
    """It may be late to say so, or never come to it: the deadline was counted from the last renewal's request (I9)."""

    async def scene(stage: Scene) -> None:
        stage.transport.is_cut = True
        stage.clock.ahead_s += LeaseSettings().renew_deadline_s
        assert not stage.keeper.may_bind()

    play(scene)


def test_a_program_that_hangs_loses_its_leases() -> None:
    async def scene(stage: Scene) -> None:
        stage.clock.ahead_s += HEARTBEAT_AGE_MAX_S + 1  # and no beat comes, as this loop does not come around
        assert not stage.runner.is_alive()
        assert not stage.keeper.may_bind()
        while stage.keeper.state is LeaseState.LEADING:
            pass  # the thread goes on by itself
        while stage.transport.writes.acquire(blocking=False):
            pass
        assert not stage.transport.writes.acquire(timeout=0.2), "it was taken again for a program that hangs"
        await stage.until(LeaseState.STANDBY)

    play(scene)


def test_a_lease_is_given_back_from_the_loop_of_the_program() -> None:
    async def scene(stage: Scene) -> None:
        assert stage.transport.holder == "me"
        await stage.runner.release(stage.keeper)
        assert stage.transport.holder == ""
        assert not stage.keeper.may_bind()

    play(scene)


def test_a_lease_runs_out_when_the_program_ends_without_giving_it_back() -> None:
    async def main() -> None:
        stage = Scene()
        running = asyncio.get_running_loop().create_task(stage.runner.run([stage.keeper]))
        await stage.until(LeaseState.LEADING)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert stage.transport.holder == "me"
        assert not stage.keeper.may_bind()
        assert stage.keeper.state is LeaseState.RELEASED

    asyncio.run(main())


def test_a_thread_that_cannot_connect_ends_the_program_and_says_why() -> None:
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

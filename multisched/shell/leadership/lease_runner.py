"""Runs the renewals of leases: on the program's event loop, or in a separate thread, so that a busy loop does not delay them.

Only the program's event loop sends binds. Right before each bind it compares the lease's deadline with the monotonic clock
(`LeaseTerm.may_bind`, I9). The thread extends that deadline only after a successful renewal, counted from the time of the
request. So if the thread stops, binds stop in time. The thread renews only while the event loop makes turns: if the loop hangs, the
renewals stop at the age at which `/livez` fails, and the thread logs the loop's stack. The thread calls functions on the event loop
by `call_on_loop`. Owned by `Program`.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

import anyio
import anyio.abc

from multisched.client.lease import LeaseKeeper
from multisched.framework.ports import Clock
from multisched.model.wire import JSON, ConnectFailedError, LineStream, Response, Transport
from multisched.observe.health import HEARTBEAT_AGE_MAX_S, HEARTBEAT_PERIOD_S

logger = logging.getLogger(__name__)

FRAMES_LOGGED: Final = 12
"""Innermost stack frames logged when the program hangs."""
END_S: Final = 3.0
"""Time to wait for the thread at the end of the program. After that the thread is abandoned and its leases expire."""


class LeaseRunner(Protocol):
    """Runner of one program's lease keepers."""

    transport: Transport
    """Transport of the keepers."""

    def is_alive(self) -> bool:
        """Reports whether the event loop makes turns. If not, leases must not be renewed."""
        ...

    def call_on_loop(self, function: Callable[..., object], *args: object) -> None:
        """Calls a function on the program's event loop."""
        ...

    async def run(self, keepers: Sequence[LeaseKeeper]) -> None:
        """Runs until every lease was released. If cancelled, held leases expire."""
        ...

    async def release(self, keeper: LeaseKeeper) -> None:
        """Releases a lease."""
        ...


class LeasesOnLoop:
    """Runner on the program's event loop, possibly in virtual time."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    def is_alive(self) -> bool:
        return True

    def call_on_loop(self, function: Callable[..., object], *args: object) -> None:
        function(*args)

    async def run(self, keepers: Sequence[LeaseKeeper]) -> None:
        async with anyio.create_task_group() as tasks:
            for keeper in keepers:
                tasks.start_soon(keeper.run)

    async def release(self, keeper: LeaseKeeper) -> None:
        await keeper.release()


class LeasesInThread:
    """Runner in a thread with its own event loop and connections."""

    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[Transport]], clock: Clock) -> None:
        """`connect`: opens the thread's transport; called on the thread's event loop."""
        self._connect = connect
        self._clock = clock
        self.transport: Transport = _Line(self)
        self.connected: Transport | None = None
        self._beaten_s = clock.monotonic()
        self._program_thread = threading.get_ident()
        self._is_stack_logged = False
        self._program: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._begun: asyncio.Future[None] | None = None

    def is_alive(self) -> bool:
        is_alive = self._clock.monotonic() - self._beaten_s <= HEARTBEAT_AGE_MAX_S
        if not is_alive and not self._is_stack_logged:
            logger.error("the program hangs in this function", extra={"stack": stack_of(self._program_thread)})
        self._is_stack_logged = not is_alive
        return is_alive

    def call_on_loop(self, function: Callable[..., object], *args: object) -> None:
        try:
            if self._program is not None:
                self._program.call_soon_threadsafe(function, *args)
        except RuntimeError:
            logger.debug("the lease thread outlived the program's loop")

    async def run(self, keepers: Sequence[LeaseKeeper]) -> None:
        self._program, self._program_thread = asyncio.get_running_loop(), threading.get_ident()
        self._begun, self._ended = self._program.create_future(), self._program.create_future()
        threading.Thread(target=self._work, args=(keepers,), name="leases", daemon=True).start()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._beat)
            try:
                await asyncio.shield(self._ended)
            finally:
                with anyio.CancelScope(shield=True), anyio.move_on_after(END_S):
                    await self._end(self._begun, self._ended)
            tasks.cancel_scope.cancel()

    async def release(self, keeper: LeaseKeeper) -> None:
        if self._loop is not None and not self._loop.is_closed():
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(keeper.release(), self._loop))

    async def _beat(self) -> None:
        while True:
            self._beaten_s = self._clock.monotonic()
            await asyncio.sleep(HEARTBEAT_PERIOD_S)

    async def _end(self, begun: asyncio.Future[None], ended: asyncio.Future[None]) -> None:
        """Stops the thread if it is still running, and waits for its end."""
        await asyncio.wait([begun, ended], return_when=asyncio.FIRST_COMPLETED)
        if ended.done() or self._loop is None or self._tasks is None:
            return
        try:
            self._loop.call_soon_threadsafe(self._tasks.cancel_scope.cancel)
        except RuntimeError:
            logger.debug("the lease thread ends by itself")
        await asyncio.wait([ended])

    # -- in the thread ---------------------------------------------------------------------------------------------

    def _work(self, keepers: Sequence[LeaseKeeper]) -> None:
        error: BaseException | None = None
        try:
            asyncio.run(self._keep(keepers))
        except BaseException as raised:  # noqa: BLE001 - passed to `run`, which raises it
            error = raised
        self.call_on_loop(_settle, self._ended, error)

    async def _keep(self, keepers: Sequence[LeaseKeeper]) -> None:
        async with anyio.create_task_group() as tasks:
            self._loop, self._tasks = asyncio.get_running_loop(), tasks
            self.call_on_loop(_settle, self._begun, None)
            async with self._connect() as transport:
                self.connected = transport
                async with anyio.create_task_group() as kept:
                    for keeper in keepers:
                        kept.start_soon(keeper.run)


def stack_of(thread: int) -> list[str]:
    """Returns the innermost frames of a thread as `file:line function`, the innermost one last."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001 - documented, and the only way to read a thread's stack
    stack = [] if frame is None else traceback.extract_stack(frame, limit=FRAMES_LOGGED)
    return [f"{one.filename}:{one.lineno} {one.name}" for one in stack]


def _settle(future: asyncio.Future[None], error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


class _Line:
    """Proxy of the thread's transport, which is opened after the keepers are built."""

    def __init__(self, runner: LeasesInThread) -> None:
        self._runner = runner

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        content_type: str = JSON,
        accept: str = JSON,
        timeout_s: float = 30.0,
    ) -> Response:
        if self._runner.connected is None:
            raise ConnectFailedError("the lease thread has no connection yet")
        return await self._runner.connected.request(
            method, path, body=body, content_type=content_type, accept=accept, timeout_s=timeout_s
        )

    def stream(
        self, path: str, *, connect_timeout_s: float = 5.0, idle_timeout_s: float = 90.0
    ) -> AbstractAsyncContextManager[LineStream]:
        raise NotImplementedError("leases are not watched")

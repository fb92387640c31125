"""Isolated plugins in processes: at most two per plugin, killed and replaced when they hang or die.

A process keeps the rows that it was sent, so that a request carries only rows that changed since the last one. Starting the
process and sending rows has its own deadline; the plugin's timeout applies only to its answer.
"""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.to_thread
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream
from msgspec.structs import replace

from multisched.framework.frozen_nodes import RowRecord
from multisched.framework.isolation import IsolatedError, IsolatedRequest, IsolatedResponse
from multisched.framework.points import FilterPlugin, Plugin
from multisched.framework.registry import PluginUse
from multisched.shell.workers.child_process import CLOSED_MAX_S, END_MAX_S, opened
from multisched.shell.workers.plugin_process import LENGTH_BYTES, frame

PROCESSES_MAX = 2
"""Maximum number of processes per plugin."""

READY_MAX_S = 20.0
"""Maximum time for a process to start, build its plugin and receive the rows that it lacks."""

ANSWER_BYTES_MAX = 16 * 1024 * 1024
RECORDS_PER_FRAME = 64
"""Number of rows per pickle. The event loop runs other tasks between two pickles."""

_MAIN = "multisched.shell.workers.plugin_process"
_BROKEN = (OSError, EOFError, anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream)


class ProcessWorker:
    """An `isolation.Worker` with processes."""

    def __init__(self, plugin: Plugin, use: PluginUse) -> None:
        self._use = use
        self._point = "Filter" if isinstance(plugin, FilterPlugin) else "Score"
        self._places = anyio.CapacityLimiter(PROCESSES_MAX)
        self._idle: list[_PluginProcess] = []
        self.killed = 0
        """Number of processes that hung or died since the start."""

    async def run(self, request: IsolatedRequest) -> IsolatedResponse:
        timeout_s = self._use.timeout_s
        async with self._places, self._process() as process:
            try:
                with anyio.fail_after(READY_MAX_S):
                    failure = await process.begin(request)
            except TimeoutError:
                raise IsolatedError(self._point, f"its process was not ready within {READY_MAX_S:g} s") from None
            if failure:
                raise IsolatedError(self._point, f"cannot be built in its process: {failure}")
            try:
                with anyio.fail_after(timeout_s):
                    return await process.answer(request)
            except TimeoutError:
                text = f"no answer within {timeout_s:g} s; its process is killed and replaced"
                raise IsolatedError(self._point, text) from None

    @asynccontextmanager
    async def _process(self) -> AsyncIterator[_PluginProcess]:
        """Yields an idle or new process. Returns it to the idle ones afterwards, or kills it after an error."""
        process = self._idle.pop() if self._idle else _PluginProcess(self._use)
        try:
            yield process
        except BaseException as error:
            self.killed += 1
            if isinstance(error, _BROKEN):
                await process.ended()
            await process.kill()
            if isinstance(error, _BROKEN):
                raise IsolatedError(self._point, f"its process died: {process.describe_end()}") from error
            raise
        self._idle.append(process)

    async def close(self) -> None:
        while self._idle:
            await self._idle.pop().kill()


class _PluginProcess:
    """One process and the rows it has received. Used by one request at a time."""

    def __init__(self, use: PluginUse) -> None:
        self._use = use
        self._process: Process | None = None
        self._answers: BufferedByteReceiveStream | None = None
        self._known: dict[int, RowRecord] = {}

    async def begin(self, request: IsolatedRequest) -> str:
        """Starts the process if necessary and sends the rows that it lacks. Returns why the plugin cannot be built, or an empty text."""
        if self._process is None:
            self._process = await opened(_MAIN)
            assert self._process.stdout is not None
            self._answers = BufferedByteReceiveStream(self._process.stdout)
            await self._send([frame(("build", (self._use.name, dict(self._use.args))))])
            failure = await self._receive()
            if failure:
                return str(failure)
        lacking = [record for record in request.records if self._known.get(record.row) is not record]
        if lacking:
            await self._send(await anyio.to_thread.run_sync(_packed, lacking))
            await self._send([frame(("sync", None))])
            await self._receive()
            self._known.update((record.row, record) for record in lacking)
        return ""

    async def answer(self, request: IsolatedRequest) -> IsolatedResponse:
        """Returns the answer to the request passed to `begin`. Raises IsolatedError for an invalid answer."""
        rows = [record.row for record in request.records]
        await self._send([frame(("ask", (replace(request, records=()), rows)))])
        answer = await self._receive()
        if not isinstance(answer, IsolatedResponse):
            raise IsolatedError("Filter", f"its process returned {type(answer).__name__}")
        return answer

    async def _send(self, frames: Sequence[bytes]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        for one in frames:
            await self._process.stdin.send(one)

    async def _receive(self) -> Any:
        assert self._answers is not None
        try:
            length = int.from_bytes(await self._answers.receive_exactly(LENGTH_BYTES), "big")
            if length > ANSWER_BYTES_MAX:
                raise IsolatedError("Filter", f"its process answered {length} bytes, more than {ANSWER_BYTES_MAX}")
            content = await self._answers.receive_exactly(length)
        except anyio.IncompleteRead:
            raise EOFError("its answers ended") from None
        return pickle.loads(content)  # noqa: S301 - from our own child, which runs code the operator configured

    def describe_end(self) -> str:
        return "it could not be started" if self._process is None else f"exit code {self._process.returncode}"

    async def ended(self) -> None:
        """Waits up to CLOSED_MAX_S for the exit of a process whose pipes are closed."""
        if self._process is not None:
            with anyio.move_on_after(CLOSED_MAX_S):
                await self._process.wait()

    async def kill(self) -> None:
        """Kills the process."""
        if self._process is None:
            return
        with anyio.move_on_after(END_MAX_S, shield=True):
            if self._process.returncode is None:
                self._process.kill()
            await self._process.aclose()


def _packed(records: Sequence[RowRecord]) -> list[bytes]:
    """Pickles rows into frames. Runs in a thread, because thousands of rows with their pods take long."""
    pieces = (records[at : at + RECORDS_PER_FRAME] for at in range(0, len(records), RECORDS_PER_FRAME))
    return [frame(("records", list(piece))) for piece in pieces]

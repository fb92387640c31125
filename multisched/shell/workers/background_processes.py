"""Processes of background tasks: started at the first request, killed when a request is cancelled or the background task ends.

Pickles are sent and received in a thread, so that large ones block neither the event loop nor the interpreter. The child's code
and limits are in `background_process`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pickle
import subprocess
from collections.abc import Callable
from typing import Any, Final, Protocol

import anyio

from multisched.framework.background import BackgroundProcess, BackgroundProcessError
from multisched.shell.workers.background_process import Opening, Reply
from multisched.shell.workers.background_threads import BackgroundThreads
from multisched.shell.workers.child_pipes import send
from multisched.shell.workers.child_process import CLOSED_MAX_S, END_MAX_S, started

_MAIN: Final = "multisched.shell.workers.background_process"
_BROKEN: Final = (OSError, EOFError, pickle.PickleError)

logger = logging.getLogger(__name__)


class OwnedProcess(BackgroundProcess, Protocol):
    """A background process that its owner can end."""

    async def close(self) -> None:
        """Kills the process. The next request starts another one."""
        ...


OpenProcess = Callable[[str, object, int], OwnedProcess]
"""(`module:name` of the assistant's factory, its settings, seed) -> a process that is not started yet."""


class ChildProcess:
    """An `OwnedProcess` that runs as a child process."""

    def __init__(self, factory: str, settings: object, seed: int) -> None:
        self._opening = Opening(factory, settings, seed)
        self._turn = asyncio.Lock()
        self._threads = BackgroundThreads()
        self._process: subprocess.Popen[bytes] | None = None
        self.started = 0

    @property
    def pid(self) -> int | None:
        """Process id; None while no process runs."""
        return None if self._process is None else self._process.pid

    async def ask(self, question: object) -> Any:
        """See `BackgroundProcess`."""
        async with self._turn:
            try:
                process = await self._begun()
                reply = await self._threads(lambda: _exchange(process, question))
            except _BROKEN as error:
                raise BackgroundProcessError(f"its process died: {await self._end()}") from error
            except BaseException:
                await self.close()
                raise
            if reply.failure:
                await self.close()
                raise BackgroundProcessError(reply.failure)
            return reply.answer

    async def close(self) -> None:
        """See `OwnedProcess`."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        with anyio.move_on_after(END_MAX_S, shield=True):
            await BackgroundThreads()(lambda: _reaped(process))

    async def _begun(self) -> subprocess.Popen[bytes]:
        if self._process is not None:
            return self._process
        with anyio.CancelScope(shield=True):  # a cancellation here would lose a started process
            process = await self._threads(lambda: started(_MAIN))
            self._process = process
        self.started += 1
        logger.info("background process started", extra={"pid": process.pid, "factory": self._opening.factory})
        stdin = process.stdin
        assert stdin is not None
        await self._threads(lambda: send(stdin, self._opening))
        return process

    async def _end(self) -> str:
        """Ends a process whose pipes are broken, and returns how it ended."""
        process = self._process
        if process is None:
            return "it could not be started"
        code = await self._threads(lambda: _waited(process))
        await self.close()
        return "it closed its pipes" if code is None else f"exit code {code}"


def _exchange(process: subprocess.Popen[bytes], question: object) -> Reply:
    """Blocks; runs in a thread."""
    assert process.stdin is not None
    assert process.stdout is not None
    send(process.stdin, question)
    reply: Reply = pickle.load(process.stdout)  # noqa: S301 - from our own child
    return reply


def _waited(process: subprocess.Popen[bytes]) -> int | None:
    """Returns the exit code of a process whose pipes are closed; None: it still runs."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(CLOSED_MAX_S)
    return None


def _reaped(process: subprocess.Popen[bytes]) -> None:
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with contextlib.suppress(OSError):  # unsent data
            pipe.close()

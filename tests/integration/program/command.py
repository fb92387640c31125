"""`multisched` as its user meets it: a process with arguments, signals, two outputs and an exit code."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from typer.testing import CliRunner

from multisched.cli.commands import app

START_TIMEOUT_S = 240.0
END_TIMEOUT_S = 240.0


@dataclass(frozen=True, slots=True)
class Ended:
    """What is left of a process."""

    code: int
    out: str
    err: str


@dataclass(slots=True)
class Command:
    """A running `multisched`. What it prints is read all the time, so that it never waits for a reader."""

    process: asyncio.subprocess.Process
    out: list[str] = field(default_factory=list)
    err: list[str] = field(default_factory=list)
    printed: asyncio.Event = field(default_factory=asyncio.Event)

    async def has_printed(self, text: str, *, after: int = 0) -> str:
        """The first line with `text` beyond the first `after` lines of either output."""
        async with asyncio.timeout(START_TIMEOUT_S):
            while True:
                for line in (*self.out[after:], *self.err[after:]):
                    if text in line:
                        return line
                if self.process.returncode is not None:
                    raise AssertionError(f"ended with {self.process.returncode} before {text!r}: {self.err[-20:]}")
                self.printed.clear()
                await self.printed.wait()

    async def ended(self) -> Ended:
        """Its end, which must come by itself."""
        async with asyncio.timeout(END_TIMEOUT_S):
            code = await self.process.wait()
        return Ended(code, "".join(self.out), "".join(self.err))

    async def end(self, sign: signal.Signals = signal.SIGTERM) -> Ended:
        """Its end after a signal."""
        self.process.send_signal(sign)
        return await self.ended()

    async def collect(self, stream: asyncio.StreamReader, lines: list[str]) -> None:
        """Until the output ends."""
        while line := await stream.readline():
            lines.append(line.decode())
            self.printed.set()

    async def note_end(self) -> None:
        """Wakes who waits for a line that will not come."""
        await self.process.wait()
        self.printed.set()


@asynccontextmanager
async def multisched(*arguments: str, environment: dict[str, str] | None = None) -> AsyncIterator[Command]:
    """Starts `multisched ARGUMENTS`; killed at the end of the block if it still runs."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "multisched",
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **(environment or {})},
        cwd=Path(__file__).parents[3],
        limit=2**22,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    command = Command(process)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(command.collect(process.stdout, command.out))
            group.create_task(command.collect(process.stderr, command.err))
            group.create_task(command.note_end())
            try:
                yield command
            finally:
                if process.returncode is None:
                    process.kill()
    finally:
        await process.wait()


async def call(*arguments: str, environment: dict[str, str] | None = None) -> Ended:
    """Runs to its end."""
    async with multisched(*arguments, environment=environment) as command:
        return await command.ended()


async def asked(*arguments: str, environment: dict[str, str] | None = None) -> Ended:
    """Runs a command to its end in a thread of this process, which saves the start of one: most of its CPU time."""
    result = await anyio.to_thread.run_sync(lambda: CliRunner().invoke(app, arguments, env=environment))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ended(result.exit_code, result.stdout, result.stderr)

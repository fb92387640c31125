"""One program of the control plane (or a scheduler under measurement) as a process: started, watched, measured, ended.

A `Program` owns its process, its session (so that workers it forks are counted and ended with it) and its log file. The
kernel kills the process when whoever started it dies, however it dies: a test run ended by a signal leaves nothing.
CPU time and peak memory come from /proc, so they are the kernel's figures and not the program's own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

LOG_TAIL_BYTES: Final = 4_000
CLOCK_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
KIBIBYTE: Final = 1024
PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None)  # loaded before any fork: the child may not allocate much


class ProgramEndedError(RuntimeError):
    """A program ended before it was asked to; the message carries the tail of its log."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a program used since its start: CPU of all its processes, and the sum of their peaks of resident memory."""

    cpu_s: float
    peak_rss_bytes: int


class Program:
    """A running process. `stop` and `kill` may be called again after it has ended, and from another event loop."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.log = log
        self._process = process

    @classmethod
    async def start(
        cls, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> Program:
        """Starts `command` in a session of its own; both its outputs are appended to `log`."""
        parent = os.getpid()
        with log.open("ab") as sink:
            process = subprocess.Popen(  # noqa: ASYNC220 - blocks for a fork; the loop that starts it may end before it
                command,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env=environment,
                start_new_session=True,
                preexec_fn=lambda: _die_with(parent),
            )
        return cls(name, process, log)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs; negative when a signal ended it."""
        return self._process.poll()

    def check_running(self) -> None:
        """Raises ProgramEndedError, with the end of the log, when the process is gone."""
        if self.returncode is not None:
            tail = self.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
            raise ProgramEndedError(f"{self.name} ended with {self.returncode}; {self.log} ends with:\n{tail}")

    def usage(self) -> Usage:
        """Must be read while it runs: the kernel forgets an ended process."""
        self.check_running()
        processes = [_read_process(pid) for pid in _session(self.pid)]
        return Usage(
            cpu_s=sum(process.cpu_s for process in processes),
            peak_rss_bytes=sum(process.peak_rss_bytes for process in processes),
        )

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the whole session, for instance SIGSTOP."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    async def stop(self, grace_s: float) -> int:
        """SIGTERM, then SIGKILL after `grace_s`; the exit code (-9 says that the grace ran out)."""
        if self.returncode is None:
            self._process.send_signal(signal.SIGTERM)
            with anyio.move_on_after(grace_s):
                await self._wait()
        return await self.kill()

    async def kill(self) -> int:
        """SIGKILL to the whole session, so that nothing of it outlives the test; the exit code."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it ended by itself this very moment
                os.killpg(self.pid, signal.SIGKILL)
        return await self._wait()

    async def _wait(self) -> int:
        return await anyio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True)


def _die_with(parent: int) -> None:
    """In the child: SIGKILL when the parent's starting thread ends, and at once if it has ended already."""
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _session(leader: int) -> Iterator[int]:
    """Pids of the session that `leader` started, itself included."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                session = int(_stat_fields(int(entry.name))[3])
            except (FileNotFoundError, ProcessLookupError):
                continue  # ended while we were reading
            if session == leader:
                yield int(entry.name)


def _stat_fields(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from `state` (proc(5), field 3) on; the command before them may hold spaces."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _read_process(pid: int) -> Usage:
    fields = _stat_fields(pid)
    # utime, stime and those of reaped children: fields 14 to 17 of proc(5), counted from 3
    ticks = sum(int(field) for field in fields[11:15])
    peak_kib = 0
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            peak_kib = int(line.split()[1])
    return Usage(cpu_s=ticks / CLOCK_TICKS_PER_S, peak_rss_bytes=peak_kib * KIBIBYTE)

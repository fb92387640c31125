"""Tasks in forked children: each begins with all that its parent has imported, and what it changes dies with it.

Owns its children while `in_children` runs: their limits, and the end of whatever they started.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

ADDRESS_SPACE_BYTES: Final = 12 << 30
"""A mutant may allocate without end."""
WALL_FACTOR: Final = 5.0
"""How much more wall time than CPU time a child may take: one that waits for ever takes none, and uvloop hears no alarm of pytest's."""
SAID_BYTES_MAX: Final = 4096
"""What a pipe takes without being read."""


@dataclass(frozen=True, slots=True)
class Task:
    run: Callable[[], str]
    cpu_max_s: float


@dataclass(frozen=True, slots=True)
class Ended:
    number: int
    """Of the task."""
    said: str
    """What the task returned."""
    signal: int
    """By which the child was ended, by a limit of its time for instance; 0 if by none."""


class ChildError(Exception):
    """A task raised."""


def in_children(tasks: Sequence[Task], jobs: int) -> Iterator[Ended]:
    """As they end."""
    waiting, running = deque(enumerate(tasks)), dict[int, tuple[int, int]]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                number, task = waiting.popleft()
                pid, reading = _begun(task)
                running[pid] = (number, reading)
            pid, status = os.wait()
            number, reading = running.pop(pid)
            _end_group(pid)
            yield _ended(number, reading, os.waitstatus_to_exitcode(status))
    finally:
        for pid in running:
            _end_group(pid)


def _ended(number: int, reading: int, code: int) -> Ended:
    with open(reading, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    if code > 0:
        raise ChildError(said)
    return Ended(number, said, -code)


def _end_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _begun(task: Task) -> tuple[int, int]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    code = 1
    try:
        os.setsid()
        os.close(reading)
        _set_limits(task.cpu_max_s)
        os.write(writing, task.run().encode()[:SAID_BYTES_MAX])
        code = 0
    except BaseException:  # noqa: BLE001 - the child ends here; its parent is told
        os.write(writing, traceback.format_exc().encode()[-SAID_BYTES_MAX:])
    finally:
        os._exit(code)


def _set_limits(cpu_max_s: float) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    cpu_s = int(cpu_max_s) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    watchdog = threading.Timer(cpu_max_s * WALL_FACTOR, os.kill, (os.getpid(), signal.SIGKILL))
    watchdog.daemon = True
    watchdog.start()
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))

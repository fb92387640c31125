"""Main of a background task's child process: creates the task's assistant, then answers one pickled request after another.

`background_processes` starts and ends the process. The first message is an Opening. The process runs at low priority with
bounded memory, and the kernel kills it first when memory is short.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import random
import resource
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from multisched.client.prometheus import PrometheusMeter
from multisched.framework.background import Assistant, ProcessPorts
from multisched.framework.measures import Meter, MeterSettings
from multisched.shell.workers.background_threads import BackgroundThreads
from multisched.shell.workers.child_pipes import listen, send, taken_stdout

NICENESS: Final = 10
"""About a tenth of a core when other processes compete for it."""
MEMORY_BYTES_MAX: Final = 4 * 1024**3
"""Limit of the process's data segment; beyond it, allocations raise MemoryError, which is reported."""
OOM_SCORE: Final = 1_000
ERROR_CHARS_MAX: Final = 1_000

logger = logging.getLogger(__name__)


class Opening(msgspec.Struct, frozen=True):
    """The first message."""

    factory: str
    """`module:name`"""
    settings: object
    seed: int
    """Seed of the jitter of the assistant's requests."""


class Reply(msgspec.Struct, frozen=True):
    """The reply to a request."""

    answer: object = None
    failure: str = ""
    """Why there is no answer; the process then ends."""


class _Meters:
    """The `framework.measures.Meters` of a child process, without pauses, because no scheduling cycle shares this interpreter."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def meter(self, settings: MeterSettings) -> Meter:
        rng = random.Random(self._rng.random())  # noqa: S311 - jitter, not a secret
        return PrometheusMeter(settings, rng, rests=0.0)


def main() -> None:
    """Serves until stdin ends."""
    replies = taken_stdout()
    _give_way()
    asyncio.run(_serve(sys.stdin.buffer, replies))


def _give_way() -> None:
    os.nice(NICENESS)
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    bound = MEMORY_BYTES_MAX if most == resource.RLIM_INFINITY else min(MEMORY_BYTES_MAX, most)
    resource.setrlimit(resource.RLIMIT_DATA, (bound, bound))
    with contextlib.suppress(OSError):  # not available on every system
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # never preempts a process that wakes up
        Path("/proc/self/oom_score_adj").write_text(f"{OOM_SCORE}")


async def _serve(stdin: BinaryIO, replies: BinaryIO) -> None:
    loop = asyncio.get_running_loop()
    messages: asyncio.Queue[Any] = asyncio.Queue()
    # Unpickling is safe: only the parent process holds the other end of the pipe.
    listen(stdin, pickle.load, lambda message: loop.call_soon_threadsafe(messages.put_nowait, message))
    opening = await messages.get()
    try:
        assistant = _made(opening)
    except Exception as error:  # noqa: BLE001 - sent to the parent
        send(replies, Reply(failure=_words(error)))
        return
    while True:
        question = await messages.get()
        try:
            send(replies, Reply(await assistant.answer(question)))
        except Exception as error:
            logger.exception("the assistant of a background task failed")
            send(replies, Reply(failure=_words(error)))
            os._exit(1)  # one of its threads may hang


def _made(opening: Opening) -> Assistant:
    module, _, name = opening.factory.partition(":")
    ports = ProcessPorts(_Meters(random.Random(opening.seed)), BackgroundThreads())  # noqa: S311 - jitter
    assistant: Assistant = getattr(import_module(module), name)(opening.settings, ports)
    return assistant


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:ERROR_CHARS_MAX]

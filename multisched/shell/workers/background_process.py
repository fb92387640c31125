"""The other end of a background task's process: makes the background task's assistant, answers pickles by pickles.

Runs as `main` in a process that `background_processes` starts and ends. First comes an Opening, then one question after
the other. It gives way to the scheduler and its neighbours. It runs at a low priority, with bounded memory. For want of
memory the kernel kills it first.
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
"""A tenth of a core where others want all of it."""
MEMORY_BYTES_MAX: Final = 4 * 1024**3
"""Data of the process; who asks for more gets a MemoryError, which is reported."""
OOM_SCORE: Final = 1_000
ERROR_CHARS_MAX: Final = 1_000

logger = logging.getLogger(__name__)


class Opening(msgspec.Struct, frozen=True):
    """The first message."""

    factory: str
    """`module:name`"""
    settings: object
    seed: int
    """Of the jitter of its requests."""


class Reply(msgspec.Struct, frozen=True):
    """To a question."""

    answer: object = None
    failure: str = ""
    """Why there is no answer; the process ends."""


class _Meters:
    """Implements `framework.measures.Meters`, without rests: no cycles share this interpreter."""

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
    with contextlib.suppress(OSError):  # not every system has them
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # it takes no core from whoever wakes up
        Path("/proc/self/oom_score_adj").write_text(f"{OOM_SCORE}")


async def _serve(stdin: BinaryIO, replies: BinaryIO) -> None:
    loop = asyncio.get_running_loop()
    messages: asyncio.Queue[Any] = asyncio.Queue()
    # Pickles come from the process that started this one, over a pipe that nobody else holds.
    listen(stdin, pickle.load, lambda message: loop.call_soon_threadsafe(messages.put_nowait, message))
    opening = await messages.get()
    try:
        assistant = _made(opening)
    except Exception as error:  # noqa: BLE001 - whoever asked gets the reason
        send(replies, Reply(failure=_words(error)))
        return
    while True:
        question = await messages.get()
        try:
            send(replies, Reply(await assistant.answer(question)))
        except Exception as error:
            logger.exception("the assistant of a background task failed")
            send(replies, Reply(failure=_words(error)))
            os._exit(1)  # a thread of it may hang


def _made(opening: Opening) -> Assistant:
    module, _, name = opening.factory.partition(":")
    ports = ProcessPorts(_Meters(random.Random(opening.seed)), BackgroundThreads())  # noqa: S311 - jitter
    assistant: Assistant = getattr(import_module(module), name)(opening.settings, ports)
    return assistant


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:ERROR_CHARS_MAX]

"""Work of a plugin beside the cycles, and what it works with."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec

from multisched.framework.measures import Meters
from multisched.framework.moving import Mover
from multisched.framework.points import Plugin
from multisched.framework.ports import Clock

T = TypeVar("T")


@runtime_checkable
class CatchUpPlugin(Plugin, Protocol):
    """A plugin that counts incrementally what many events may change at once: the first lists, a relist, a rollout.

    The shell lets it count ahead while no cycle runs, so that no pod's attempt has to do it all. Filter and the other points
    must still be right whenever they are asked.
    """

    def catch_up(self) -> bool:
        """Counts a piece, some ten milliseconds' worth; True if there is more. Cheap when nothing changed."""
        ...


class InThread(Protocol):
    """Runs what computes for seconds beside the loop."""

    async def __call__(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises. It is left to itself, and what it returns is dropped, when the caller is cancelled."""
        ...


class ProcessPorts(msgspec.Struct, frozen=True):
    """What an `Assistant` works with, in its own process."""

    meters: Meters
    in_thread: InThread


class Assistant(Protocol):
    """What a background task has made in a process of its own, so that nothing it computes takes the interpreter from the cycles.

    Made by a function (`module:name`) of its settings, which are pickled, and of ProcessPorts. The process has a loop, low priority
    and a bound on its memory; it ends with the program, whatever it does.
    """

    async def answer(self, question: Any) -> object:
        """To one question at a time; both are pickled. What it raises ends the process; a refusal is better a value."""
        ...


class BackgroundProcessError(Exception):
    """The process of a background task died, was killed or raised; the next question finds a new one, which remembers nothing."""


class BackgroundProcess(Protocol):
    """The background task's end of it."""

    async def ask(self, question: object) -> Any:
        """What the assistant answers. Starts the process if there is none, and kills it when the caller is cancelled.

        Raises BackgroundProcessError.
        """
        ...


class BackgroundPorts(msgspec.Struct, frozen=True):
    """What a background task works with: time, chance, a thread, processes, and hands to move pods with."""

    clock: Clock
    rng: random.Random
    in_thread: InThread
    process: Callable[[str, object], BackgroundProcess] | None = None
    """(`module:name` of the function, its settings) -> a process, not yet started, which ends with the background task at the latest. None:
    there are none, as in virtual time; whoever would ask computes by `in_thread`."""
    mover: Mover | None = None
    """None where nothing may be moved."""


@runtime_checkable
class BackgroundPlugin(Plugin, Protocol):
    """A plugin with a background task of its own beside the cycles, such as learning from history.

    The shell starts it once nodes and pods have been listed, and keeps it running. A task that raises or returns is
    logged and started again after a while. It shares the loop with everything else: it may wait as it likes, and
    computes for milliseconds at a time only.
    """

    async def run(self, ports: BackgroundPorts) -> None:
        """Until cancelled."""
        ...

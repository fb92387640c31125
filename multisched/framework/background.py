"""Background tasks of plugins, and their ports."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec

from multisched.framework.measures import Meters
from multisched.framework.moving import Mover
from multisched.framework.points import Plugin
from multisched.framework.ports import Clock, ExtenderClient, ExtenderSettings

T = TypeVar("T")


@runtime_checkable
class CatchUpPlugin(Plugin, Protocol):
    """A plugin with incremental counts that many events may change at once: the first lists, a relist, a rollout.

    The shell calls `catch_up` while no cycle runs, so that no pod's attempt must process all of these events. Filter and the
    other points must not rely on it. They may ignore a change that is not counted yet; then the plugin calls
    `PluginContext.notify` when it is counted.
    """

    def catch_up(self) -> bool:
        """Processes one batch of about ten milliseconds; returns True if there is more. Cheap if nothing changed."""
        ...


class InThread(Protocol):
    """Runs computations of several seconds in a thread."""

    async def __call__(self, work: Callable[[], T]) -> T:
        """Returns or raises what `work` does. If the caller is cancelled, `work` continues and its result is dropped."""
        ...


class ProcessPorts(msgspec.Struct, frozen=True):
    """The ports of an `Assistant` in its own process."""

    meters: Meters
    in_thread: InThread


class Assistant(Protocol):
    """The part of a background task that runs in its own process, so that its computations do not block the cycles.

    A function (`module:name`) creates it from its settings, which are pickled, and ProcessPorts. The process has an
    event loop, low priority and a memory limit; it ends with the program at the latest.
    """

    async def answer(self, question: Any) -> object:
        """Answers one question at a time; question and answer are pickled. An exception ends the process, so refusals should be values."""
        ...


class BackgroundProcessError(Exception):
    """A background task's process died, was killed or raised; the next question starts a new one, without the old state."""


class BackgroundProcess(Protocol):
    """The background task's handle of its process."""

    async def ask(self, question: object) -> Any:
        """Returns the assistant's answer. Starts the process if there is none, and kills it if the caller is cancelled.

        Raises BackgroundProcessError.
        """
        ...


class BackgroundPorts(msgspec.Struct, frozen=True):
    """The ports of a background task: clock, random numbers, threads, processes, moving pods, and HTTP."""

    clock: Clock
    rng: random.Random
    in_thread: InThread
    process: Callable[[str, object], BackgroundProcess] | None = None
    """(`module:name` of the function, its settings) -> a process, not yet started, which ends with the background task
    at the latest. None: no processes are available, for instance in virtual time; use `in_thread` instead.
    """
    mover: Mover | None = None
    """None if pods cannot be moved."""
    open_extender: Callable[[ExtenderSettings], ExtenderClient] | None = None
    """Opens a client of an HTTP server that the configuration names; the background task closes the client. Raises ExtenderError.
    None: no HTTP server may be called."""


@runtime_checkable
class BackgroundPlugin(Plugin, Protocol):
    """A plugin with its own background task, such as learning from history.

    The shell starts it after the first lists of nodes and pods, and keeps it running: a task that raises or returns is
    logged and restarted after a delay. It shares the event loop: between two awaits it may compute for milliseconds
    only.
    """

    async def run(self, ports: BackgroundPorts) -> None:
        """Runs until cancelled."""
        ...

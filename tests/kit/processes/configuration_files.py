"""The configuration file of simulated processes: somebody changes it, and each process sees that at a time of its own.

A mounted ConfigMap comes late, and on each node at another time. The real `ConfigurationWatch` follows it in each process.
A process that starts while the file has a mistake does not come up until it is mended: it starts by the last good one.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable
from typing import Final

from multisched.config import loading
from multisched.config.changes import difference
from multisched.config.schema import Configuration
from multisched.shell.configuration_watch import LOOK_S, ConfigurationWatch
from multisched.shell.program import Program
from multisched.testing.virtual_workers import VirtualThreads
from tests.kit.settings.changed_files import ChangedFile
from tests.kit.settings.setting import Setting, text_of

LATE_MAX_S: Final = 8.0
"""How long it takes a change to come to a process."""


class ConfigurationFile:
    """As it was and is."""

    def __init__(self, setting: Setting, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._versions = [(0.0, ChangedFile(text_of(setting.document), is_good=True))]
        """Since when it says what."""

    def write(self, changed: ChangedFile) -> None:
        """Somebody saves it."""
        self._versions.append((self._now_s(), changed))

    def seen(self, late_s: float) -> ChangedFile:
        """By one whom changes reach so late."""
        until_s = max(0.0, self._now_s() - late_s)
        return next(file for since_s, file in reversed(self._versions) if since_s <= until_s)

    def last_good(self, late_s: float = 0.0) -> ChangedFile:
        """The same, but for mistakes."""
        until_s = max(0.0, self._now_s() - late_s)
        return next(file for since_s, file in reversed(self._versions) if since_s <= until_s and file.is_good)


class FileFollower:
    """One process: what it sees of the file, and what must be in force by it."""

    def __init__(
        self,
        file: ConfigurationFile,
        setting: Setting,
        number: int,
        rng: random.Random,
        complain: Callable[[str], None],
    ) -> None:
        self._file, self._setting, self._number = file, setting, number
        self._late_s = rng.uniform(0.0, LATE_MAX_S)
        self._complain = complain
        started_by = file.last_good(self._late_s)
        self._text = started_by.text
        self.configuration = self._read(started_by)
        """By which the process starts."""
        self._program: Program | None = None
        self._watch: ConfigurationWatch | None = None
        self._kept: Configuration | None = None
        """In force when a mistake was seen: it stays."""
        self._task: asyncio.Task[None] | None = None

    def start(self, program: Program, loop: asyncio.AbstractEventLoop, context: contextvars.Context) -> None:
        """Follows the file from now on, as a task of the process."""
        self._program = program
        self._watch = ConfigurationWatch(program, self.look, file="simulated", in_thread=VirtualThreads())
        self._task = loop.create_task(self._watch.run(), context=context)

    def stop(self) -> None:
        """The process is gone."""
        if self._task is None:
            return
        if self._task.done() and not self._task.cancelled() and (error := self._task.exception()) is not None:
            self._complain(f"a process no longer follows its configuration file: {error!r}")
        self._task.cancel()

    async def look(self) -> Configuration | None:
        """As the composition root's: what the file says if that is another thing than last time. Raises ConfigError."""
        assert self._program is not None
        if self._kept is not None and self._program.configuration is not self._kept:
            self._complain("a configuration with a mistake has changed what is in force")
        seen = self._file.seen(self._late_s)
        if seen.text == self._text:
            return None
        self._text, self._kept = seen.text, None if seen.is_good else self._program.configuration
        return self._read(seen)

    def check_quiescent(self) -> None:
        """Once it must have seen the last change, all of that is in force which needs no restart, and the rest is named."""
        if self._program is None or self._watch is None:
            return
        wanted, view = self._read(self._file.last_good()), self._watch.configuration()
        left = {one.path for one in difference(self._program.configuration, wanted)}
        named = {one.path for one in view.waiting}
        if view.problems or left != named:
            found = f"{sorted(left)[:3]} are not in force, {sorted(named)[:3]} are named, and these problems: {view.problems[:1]}"
            self._complain(f"of a good configuration {found}")

    @staticmethod
    def rest_s() -> float:
        """How long after the last change that must be so."""
        return LATE_MAX_S + LOOK_S

    def _read(self, file: ChangedFile) -> Configuration:
        return self._setting.with_lease(loading.parse(file.text, "simulated"), self._number)

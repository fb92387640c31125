"""The configuration file of simulated processes: it is changed, and each process sees the change at a time of its own.

A mounted ConfigMap is updated late, at different times on each node. Each process follows it with the real `ConfigurationWatch`. A
process that starts while the file is invalid uses the last valid version: it would not start until the file is fixed.
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
"""Maximum delay of a change for a process."""


class ConfigurationFile:
    """All versions of the file."""

    def __init__(self, setting: Setting, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._versions = [(0.0, ChangedFile(text_of(setting.document), is_good=True))]
        """(time of the change, content)."""

    def write(self, changed: ChangedFile) -> None:
        """Saves a version of the file."""
        self._versions.append((self._now_s(), changed))

    def seen(self, late_s: float) -> ChangedFile:
        """Returns the version that a process with this delay sees."""
        until_s = max(0.0, self._now_s() - late_s)
        return next(file for since_s, file in reversed(self._versions) if since_s <= until_s)

    def last_good(self, late_s: float = 0.0) -> ChangedFile:
        """Returns the last valid version that a process with this delay sees."""
        until_s = max(0.0, self._now_s() - late_s)
        return next(file for since_s, file in reversed(self._versions) if since_s <= until_s and file.is_good)


class FileFollower:
    """What one process sees of the file, and the configuration that must be in force."""

    def __init__(
        self,
        file: ConfigurationFile,
        setting: Setting,
        number: int,
        rng: random.Random,
        report_violation: Callable[[str], None],
    ) -> None:
        self._file, self._setting, self._number = file, setting, number
        self._late_s = rng.uniform(0.0, LATE_MAX_S)
        self._report_violation = report_violation
        started_by = file.last_good(self._late_s)
        self._text = started_by.text
        self.configuration = self._read(started_by)
        """The configuration with which the process starts."""
        self._program: Program | None = None
        self._watch: ConfigurationWatch | None = None
        self._kept: Configuration | None = None
        """The configuration in force when an invalid version was seen: it must remain."""
        self._task: asyncio.Task[None] | None = None

    def start(self, program: Program, loop: asyncio.AbstractEventLoop, context: contextvars.Context) -> None:
        """Starts to follow the file, as a task of the process."""
        self._program = program
        self._watch = ConfigurationWatch(program, self.look, file="simulated", in_thread=VirtualThreads())
        self._task = loop.create_task(self._watch.run(), context=context)

    def stop(self) -> None:
        """Stops to follow the file: the process has ended."""
        if self._task is None:
            return
        if self._task.done() and not self._task.cancelled() and (error := self._task.exception()) is not None:
            self._report_violation(f"a process no longer follows its configuration file: {error!r}")
        self._task.cancel()

    async def look(self) -> Configuration | None:
        """Returns the configuration if the file has changed since the last call; None if not. Raises ConfigError."""
        assert self._program is not None
        if self._kept is not None and self._program.configuration is not self._kept:
            self._report_violation("a configuration with a mistake has changed what is in force")
        seen = self._file.seen(self._late_s)
        if seen.text == self._text:
            return None
        self._text, self._kept = seen.text, None if seen.is_good else self._program.configuration
        return self._read(seen)

    def check_quiescent(self) -> None:
        """Checks that the last change is in force, apart from settings that need a restart, which must be reported."""
        if self._program is None or self._watch is None:
            return
        wanted, view = self._read(self._file.last_good()), self._watch.configuration()
        left = {one.path for one in difference(self._program.configuration, wanted)}
        named = {one.path for one in view.waiting}
        if view.problems or left != named:
            found = f"{sorted(left)[:3]} are not in force, {sorted(named)[:3]} are named, and these problems: {view.problems[:1]}"
            self._report_violation(f"of a good configuration {found}")

    @staticmethod
    def rest_s() -> float:
        """Returns the time after the last change at which that must hold."""
        return LATE_MAX_S + LOOK_S

    def _read(self, file: ChangedFile) -> Configuration:
        return self._setting.with_lease(loading.parse(file.text, "simulated"), self._number)

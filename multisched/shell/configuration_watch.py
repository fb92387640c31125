"""Follows the configuration file of a running program and applies its changes.

A file with a mistake changes nothing; the last good configuration stays in force. The result is reported by the log, metrics,
an event (written by the leader) and the configuration view. Called by the composition root.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import anyio
import msgspec

from multisched.config.changes import Change, flatten
from multisched.config.document import ConfigError
from multisched.config.nodes import lease_groups_of
from multisched.config.schema import Configuration
from multisched.framework.background import InThread
from multisched.framework.ports import Event, ObjectRef
from multisched.framework.registry import PluginSetupError
from multisched.observe.configuration_view import ChangeView, ConfigurationView
from multisched.observe.readings import ReloadReading
from multisched.shell.program import Program
from multisched.shell.workers.background_threads import in_worker_thread

logger = logging.getLogger(__name__)

LOOK_S: Final = 2.0
"""Period of the check of the file."""
CHANGES_NAMED: Final = 20
"""Maximum number of changes named in one log line or event."""

Look = Callable[[], Awaitable[Configuration | None]]
"""Returns the file's configuration if it has changed since the last call, else None. Raises ConfigError."""


class ReloadStatistics(msgspec.Struct):
    """Counters of reloads, and the state of the latest one."""

    applied: int = 0
    rejected: int = 0
    is_last_good: bool = True
    last_good_s: float = 0.0
    """Unix time of the latest valid configuration."""
    waiting: int = 0
    """Settings that wait for a restart."""


class ConfigurationWatch:
    """Watch of the configuration file of one program."""

    def __init__(
        self,
        program: Program,
        look: Look | None = None,
        *,
        file: str = "",
        restart_command: str = "",
        in_thread: InThread = in_worker_thread,
        on_applied: Callable[[Configuration], None] = lambda configuration: None,
    ) -> None:
        """`look`: None for a program without a file. `restart_command`: shown to the user; empty: unknown.

        `on_applied`: applies settings outside the program, such as logging."""
        self._program = program
        self._look = look
        self._file = file
        self._restart_command = restart_command
        self._in_thread = in_thread
        self._on_applied = on_applied
        self._asked = anyio.Event()
        self._problems: tuple[str, ...] = ()
        self._waiting: Sequence[Change] = ()
        self._since_s = program.clock.now().timestamp()
        self.statistics = ReloadStatistics(last_good_s=self._since_s)

    def look_now(self) -> None:
        """Checks the file at once. Called on SIGHUP."""
        self._asked.set()

    async def run(self) -> None:
        """Checks the file periodically until cancelled."""
        while self._look is not None:
            self._asked = anyio.Event()  # before the check, so that a request during the check causes another one
            await self._once(self._look)
            with anyio.move_on_after(LOOK_S):
                await self._asked.wait()

    def configuration(self) -> ConfigurationView:
        """See `ConfigurationSource`."""
        waiting = tuple(ChangeView(one.path, one.before, one.after, one.restart) for one in self._waiting)
        settings = flatten(self._program.configuration)
        since_s, command = self._since_s, self._restart_command
        return ConfigurationView(settings, self._file, since_s, self._problems, waiting, command)

    # -- one check -------------------------------------------------------------------------------------------------

    async def _once(self, look: Look) -> None:
        try:
            wanted = await look()
            if wanted is None:
                return
            done = self._program.reload(wanted)
        except ConfigError as error:
            self._reject([str(problem) for problem in error.problems])
        except PluginSetupError as error:
            self._reject([str(error)])
        else:
            self._accept(await self._in_thread(done.applied), await self._in_thread(done.waiting))

    def _accept(self, applied: Sequence[Change], waiting: Sequence[Change]) -> None:
        self._problems, self._waiting = (), waiting
        now_s = self._program.clock.now().timestamp()
        statistics = self.statistics
        statistics.is_last_good, statistics.last_good_s, statistics.waiting = True, now_s, len(waiting)
        if applied:
            statistics.applied += 1
            self._since_s = now_s
            self._on_applied(self._program.configuration)
            self._report("ConfigurationApplied", "Normal", "configuration in force", _named(applied))
        if waiting:
            named = [f"{text} ({one.restart})" for text, one in zip(_named(waiting), waiting, strict=False)]
            how = f" ({self._restart_command})" if self._restart_command else ""
            self._report("RestartNeeded", "Warning", f"configuration changes need a restart{how}", named)
        if not applied and not waiting:
            logger.info("configuration unchanged", extra={"file": self._file})

    def _reject(self, problems: Sequence[str]) -> None:
        self._problems = tuple(problems)
        self.statistics.is_last_good = False
        self.statistics.rejected += 1
        what = "configuration rejected; the last good one stays in force"
        self._report("ConfigurationRejected", "Warning", what, problems[:CHANGES_NAMED])

    def _report(self, reason: str, kind: str, what: str, named: Sequence[str]) -> None:
        log = logger.info if kind == "Normal" else logger.warning
        log(what, extra={"file": self._file, "changes": list(named)})
        if any(worker.is_leading for worker in self._program.router.workers()):  # else each replica would record it
            self._program.events.record(self._event(reason, kind, f"{what}: {'; '.join(named)}"))

    def _event(self, reason: str, kind: str, note: str) -> Event:
        """Returns an event about the lease, which all replicas share."""
        configuration, ports = self._program.configuration, self._program.ports
        group = next(iter(lease_groups_of(configuration).values()))
        keeper = self._program.leases.keeper_of(configuration.domains[0].name)
        uid = "" if keeper is None or keeper.held is None else keeper.held.metadata.uid
        name = f"{configuration.lease.name_prefix}-{group}"
        lease = ObjectRef("Lease", ports.lease_namespace, name, uid, "coordination.k8s.io/v1")
        return Event(lease, kind, reason, "Reloading", note, configuration.domains[0].scheduler_names[0])


def reading_of(statistics: ReloadStatistics) -> ReloadReading:
    """Converts the statistics for metrics."""
    return ReloadReading(**msgspec.structs.asdict(statistics))


def _named(changes: Sequence[Change]) -> list[str]:
    shown = [one.text() for one in changes[:CHANGES_NAMED]]
    more = len(changes) - len(shown)
    return [*shown, f"and {more} more"] if more else shown

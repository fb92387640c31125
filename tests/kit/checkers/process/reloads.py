"""Checks what one process has in force after a change of its configuration: profiles, retried pods and sort keys."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from multisched.cycle.scheduling_cycle import SchedulingCycle
from multisched.framework.registry import Profile
from multisched.queueing.transitions import QueueState
from multisched.shell.domain import DomainWorker
from multisched.shell.program import Program


class ReloadChecker:
    """Compares each domain of one program with its configuration, after each reload."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._known = self._in_use()

    def _in_use(self) -> dict[str, tuple[SchedulingCycle, Profile]]:
        builder, workers = self._program._reload._builder, self._program.router.workers()
        return {worker.name: (worker.cycle, builder.domains[worker.name].profile) for worker in workers}

    def faults(self) -> Iterator[str]:
        """Yields what is wrong in the step of a reload."""
        before, self._known = self._known, self._in_use()
        builder = self._program._reload._builder
        for config in self._program.configuration.domains:
            if builder.profile_of(config) != self._known[config.name][1]:
                yield f"domain {config.name} uses another profile than the configuration in force has"
        for worker in self._program.router.workers():
            (cycle, profile), (cycle_now, profile_now) = before[worker.name], self._known[worker.name]
            if cycle is not cycle_now:
                yield _fault_of_keys(worker)
                yield _fault_of_parked(worker) if _without_weights(profile) != _without_weights(profile_now) else ""


def _without_weights(profile: Profile) -> tuple[object, ...]:
    return (profile.points, *(replace(use, weight=1) for use in profile.plugins))


def _fault_of_parked(worker: DomainWorker) -> str:
    """Returns which pod is not retried although other plugins decide now (I3)."""
    parked = next(worker.queue.entries(QueueState.UNSCHEDULABLE), None)
    return "" if parked is None else f"I3: {parked.pod.key} is not retried under another profile of {worker.name}"


def _fault_of_keys(worker: DomainWorker) -> str:
    """Returns which pod has a sort key that is not that of the QueueSort in force."""
    keys = worker.queue._states._sort_keys
    for entry in worker.queue._entries.values():
        kept, entry.sort_key = entry.sort_key, None
        if kept is not None and keys.of(entry) != kept:
            return f"{entry.pod.key} keeps the sort key {kept} under {keys.plugin.name} of {worker.name}"
        entry.sort_key = kept
    return ""

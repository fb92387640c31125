"""ProgramPreemptions: the latest preemptions of a running program for its page, with the result of each."""

from __future__ import annotations

from itertools import islice

from multisched.observe.preemptions_view import PreemptionList, ShownPreemption, ShownPreemptor, ShownVictim
from multisched.shell.program import Program
from multisched.shell.recent_preemptions import StartedPreemption, Victim

DELETED, TERMINATING, PRESENT = "deleted", "terminating", "present"


class ProgramPreemptions:
    """The `observe.preemptions_view.PreemptionsSource` of a running program."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._domains = {name: domain for domain, names in program.scheduler_names.items() for name in names}

    async def preemptions(self, *, plugin: str, limit: int) -> PreemptionList:
        """See `PreemptionsSource`."""
        recent = (one for one in self._program.preemptor.recent if plugin in ("", one.plugin))
        return PreemptionList(preemptions=tuple(map(self._shown, islice(recent, limit))))

    def _shown(self, one: StartedPreemption) -> ShownPreemption:
        clock = self._program.clock
        victims = tuple(map(self._victim, one.victims))
        return ShownPreemption(
            at_seconds=round(clock.now().timestamp() - (clock.monotonic() - one.at_s), 1),
            domain=self._domains.get(one.scheduler_name, ""),
            plugin=one.plugin,
            state=self._state(one, victims),
            pods=tuple(ShownPreemptor(pod=pod, node=node) for pod, node in one.preemptors),
            pods_left_out=one.preemptors_left_out,
            victims=victims,
            victims_left_out=one.victims_left_out,
            freed=one.freed,
        )

    def _state(self, one: StartedPreemption, victims: tuple[ShownVictim, ...]) -> str:
        if self._program.preemptor.is_preempting(one.first) or any(victim.state == TERMINATING for victim in victims):
            return "in progress"
        return "not carried out" if any(victim.state == PRESENT for victim in victims) else "done"

    def _victim(self, victim: Victim) -> ShownVictim:
        placed = self._program.cache.placed(victim.uid)
        state = DELETED if placed is None else TERMINATING if placed.pod.is_leaving else PRESENT
        return ShownVictim(pod=victim.pod, node=victim.node, state=state)

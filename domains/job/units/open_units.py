"""Which units a pod may use now: those that are not full, if the pod may go on past each unit before them.

With the order of scores (`Traits.outranks`) this is what ResourcePolicy documents: the filter says what may be used, the order says
what is used first.
"""

from __future__ import annotations

from typing import NamedTuple

from domains.job.units.policy import Next, Unit
from domains.job.units.policy_table import Match
from domains.job.units.unit_ledger import UnitLedger
from multisched.model.objects import Pod


class OpenUnits(NamedTuple):
    """The units of one policy that a pod may use."""

    bits: int
    """Bit i: unit i."""
    is_past_all: bool
    """It may use nodes of no unit, after those of all units."""
    last: int
    """The last unit that was considered: those up to it that are not in `bits` are full."""
    waits_in: int = -1
    """The unit that does not let the pod go on to later ones; -1 if there is none, or preemption comes first."""

    def has(self, index: int) -> bool:
        return bool(self.bits >> index & 1)

    def after(self, level: int, count: int) -> int | None:
        """Returns the next higher level at which the pod may use more; `count`, the number of units, stands for nodes of no unit."""
        for index in range(level + 1, count):
            if self.has(index):
                return index
        return count if self.is_past_all and level < count else None


def open_units(ledger: UnitLedger, match: Match, pod: Pod, timeouts: int) -> OpenUnits:
    """`timeouts`: how many timeouts of the policy have run out since the pod was created."""
    bits = waits = 0
    policy = match.policy
    for unit in policy.units:
        is_full = ledger.is_full(match, unit, pod)
        if not is_full:
            bits |= 1 << unit.index
            waits += policy.must_wait_in(unit)
        if not (is_full or _lets_go_on(ledger, match, unit, waits <= timeouts)):
            return OpenUnits(bits, is_past_all=False, last=unit.index, waits_in=unit.index)
    return OpenUnits(bits, is_past_all=True, last=len(policy.units) - 1)


def up_to(found: OpenUnits, level: int, count: int) -> OpenUnits:
    """Returns the units up to a level: with preemptPolicy BeforeNextUnit a pod preempts there before it goes on."""
    if level >= count:
        return found
    waits_in = found.waits_in if found.waits_in <= level else -1
    return OpenUnits(found.bits & ((2 << level) - 1), is_past_all=False, last=min(found.last, level), waits_in=waits_in)


def _lets_go_on(ledger: UnitLedger, match: Match, unit: Unit, has_run_out: bool) -> bool:
    """Reports whether a unit that is not full lets a pod without room there go on."""
    policy = match.policy
    match policy.next:
        case Next.LACK_OR_MAX:
            return True
        case Next.MAX:
            return not unit.has_max
        case Next.LACK_AND_NONE_TERMINATING:
            return not ledger.terminating(policy, unit)
        case _:
            return has_run_out or not policy.must_wait_in(unit)

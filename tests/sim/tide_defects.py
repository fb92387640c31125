"""Defects of the tide: notices, evictions and what is believed after a failover."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from domains.gpu.tide import control, gang_notices, planner
from domains.gpu.tide.control import _Turn
from domains.gpu.tide.gang_notices import GangNotices, Given
from domains.gpu.tide.notices import GangNotice
from domains.gpu.tide.settings import TideSettings
from domains.gpu.tide.snapshot import TideSnapshots
from domains.gpu.tide.state import DueEviction, TidePlan, TideState, Withdrawal
from multisched.model.objects import Pod
from tests.sim.defects import defect, put


@defect
def notices_end_at_once() -> None:
    """A gang may be evicted as soon as it has its notice."""
    put(Given, "ready_s", lambda self, pods, now_s, notice_s: now_s)


@defect
def evictions_need_no_notice_on_all_members() -> None:
    """The deadline counts although a member has no notice."""
    put(Given, "ready_s", lambda self, pods, now_s, notice_s: self.notice.deadline_s)


@defect
def begun_evictions_are_left() -> None:
    """A gang of which one member was evicted is not finished."""

    async def finish(self: _Turn, *, is_frozen: bool) -> None:
        return None

    put(_Turn, "finish", finish)


@defect
def half_written_notices_count_as_begun_evictions() -> None:
    """A new leader holds members without the notice for evicted ones."""

    def adopt(self: GangNotices, gang: str, found: GangNotice, pods: Iterable[Pod], now_s: float) -> Given:
        assert found.notice is not None
        written_s = {pod.uid: found.notice.issued_s for pod in pods if pod.uid not in found.lacking}
        has_begun = now_s >= found.notice.deadline_s and len(written_s) < found.notice.pods
        self.given[gang] = given = Given(found.notice, written_s, is_evicting=has_begun)
        return given

    put(GangNotices, "_adopt", adopt)


@defect
def new_leaders_forget_notices() -> None:
    """A process that takes over ignores notices on pods. What was begun is not finished."""

    def see(self: GangNotices, gang: str, pods: Iterable[Pod], now_s: float) -> Given | None:
        return self.given.get(gang)

    put(GangNotices, "see", see)


@defect
def forged_notices_are_believed() -> None:
    """A notice that appears on a pod counts at any time."""
    put(gang_notices, "ADOPT_S", 1e9)


@defect
def frozen_tides_evict() -> None:
    """The switch that freezes the tide is ignored."""
    genuine = planner.plan

    def plan(state: TideState, settings: TideSettings) -> TidePlan:
        return genuine(state, msgspec.structs.replace(settings, is_frozen=False))

    put(control, "plan", plan)


@defect
def protected_training_is_evicted() -> None:
    """Budgets, `evictable` and pods without a controller do not protect a gang."""
    put(TideSnapshots, "protection", lambda self, pods: "")


@defect
def returned_gangs_are_evicted_at_once() -> None:
    """A gang has no minimum run time."""
    put(planner, "_running_since_s", lambda gang: 0.0)


@defect
def withdrawn_notices_are_carried_out() -> None:
    """The annotations of a notice are removed, and its deadline still counts."""

    async def withdraw(self: _Turn, withdrawals: Sequence[Withdrawal]) -> None:
        for one in withdrawals:
            running = self._snapshot.gangs.get(one.gang)
            if running is not None:
                await self._annotate(running.pods, control.NO_NOTICE)

    genuine = planner.plan

    def plan(state: TideState, settings: TideSettings) -> TidePlan:
        decided = genuine(state, settings)
        ended = tuple(
            DueEviction(gang.key, tuple(one.uid for one in gang.members), gang.cards, 0.0)
            for gang in state.gangs
            if gang.notice is not None and gang.notice.deadline_s <= state.now_s
        )
        return msgspec.structs.replace(decided, evictions=() if decided.is_frozen else ended)

    put(_Turn, "withdraw", withdraw)
    put(control, "plan", plan)


@defect
def only_the_first_member_is_evicted() -> None:
    """A gang counts as evicted with its first member."""
    genuine = _Turn._evict_all

    async def evict_all(self: _Turn, pods: Sequence[Pod], given: Given) -> bool:
        began = await genuine(self, pods[:1], given)
        given.is_evicting = False
        return began

    put(_Turn, "_evict_all", evict_all)


@defect
def models_of_cards_are_ignored() -> None:
    """Any training is evicted for inference that waits, whatever cards it asks for."""
    put(TideSnapshots, "_models_for", lambda self, pod: ())


@defect
def waiting_inference_is_not_counted() -> None:
    """Only running inference is demand."""
    genuine = TideSnapshots._waiting
    put(TideSnapshots, "_waiting", lambda self: ([], genuine(self)[1]))

"""The planner of the tide, by which inference and training share the GPU cards of a domain over the day.

`plan` maps what is running, waiting and expected to notices, evictions and a limit for training.

Pure: no clock, no I/O, no random numbers, no memory between calls; what must be remembered is part of the state.

- **Demand** is the cards that inference pods hold or wait for. Demand and headroom must be covered by cards that inference holds
  or that are free, leaving or under notice; if they are not, the fewest gangs get a notice (`victims`).
- **Headroom** is the rise of demand within notice + grace, by the forecast or by the trend of the last minutes, whichever is
  higher, plus the error of the forecast.
- **Training grows** only into cards that inference did not need for a while (`quiet_s`) and is not expected to need for a while
  (`ahead_s`). So a demand that rises and falls repeatedly causes evictions once, and a gang that starts is not evicted soon.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from domains.gpu.tide.settings import TideSettings
from domains.gpu.tide.state import (
    DemandForecast,
    DueEviction,
    ForecastOrigin,
    Headroom,
    NewNotice,
    NodeCards,
    TidePlan,
    TideState,
    TrainingGang,
    UnmetPod,
    WaitingInference,
    Withdrawal,
)
from domains.gpu.tide.victims import (
    CardRoom,
    Shape,
    VictimOrder,
    median_start_s,
    shapes_of,
    victims_for,
    work_lost_s,
)

TREND_S: Final = 300.0
"""Demand has a trend if it exceeds all samples that are older than this."""
CARDS_PER_KEPT_CARD: Final = 50
"""At most one card in this many of the tide is kept for the first waiting gang."""


class _Case(msgspec.Struct, frozen=True):
    """Values that all parts of one plan need."""

    state: TideState
    settings: TideSettings
    nodes: tuple[NodeCards, ...]
    """Nodes of the tide."""
    served: tuple[WaitingInference, ...]
    """Waiting pods that the nodes of the tide can serve within the ceiling."""
    unmet: tuple[UnmetPod, ...]
    """The other waiting pods."""
    headroom: Headroom
    demand: int
    """Cards of running inference and of the served waiting pods."""

    @property
    def shapes(self) -> Mapping[Shape, int]:
        return shapes_of(self.served)

    def room(self, gangs: Sequence[TrainingGang]) -> CardRoom:
        """Returns the cards that inference can have if these gangs end."""
        inference = self.state.inference
        room = CardRoom(self.nodes, inference.pod_cards, self.headroom.trend_cards, inference.new_models)
        for gang in gangs:
            room.add(gang)
        return room


def plan(state: TideState, settings: TideSettings) -> TidePlan:
    """Decides what to do now. Deterministic; the order of nodes, gangs and pods does not matter except for `waiting_gangs`."""
    case = _case(state, settings)
    noticed = sorted((gang for gang in state.gangs if gang.notice is not None), key=_deadline)
    available = state.inference.running_cards + sum(node.free + node.leaving for node in case.nodes)
    promised = [gang for gang in noticed if not gang.is_protected]  # the notices of protected gangs are withdrawn
    available += _cards_on(promised, case.nodes)
    training = _cards_on(state.gangs, case.nodes)
    need = case.room(promised).need(case.shapes, case.headroom.cards)
    limit, reserved = _training_limit(case, training)
    exceeds_upper = case.demand > _upper(state)
    decided = TidePlan(
        is_frozen=settings.is_frozen,
        headroom=case.headroom,
        demand_cards=case.demand,
        target_cards=case.demand + case.headroom.cards,
        available_cards=available,
        training_cards=training,
        training_limit_cards=limit,
        kept_cards=kept_cards(state.waiting_gangs[0].cards, case.nodes) if state.waiting_gangs else 0,
        unmet=case.unmet,
        needed_cards=need.cards,
        exceeds_upper=exceeds_upper,
        over_cap_cards=_over_cap(state, settings),
    )
    if settings.is_frozen:
        frozen_limit = sum(node.total for node in case.nodes)
        if state.previous_limit_cards is not None:
            frozen_limit = state.previous_limit_cards
        return msgspec.structs.replace(
            decided, training_limit_cards=frozen_limit, kept_cards=0, notes=("the tide is frozen: nothing is decided",)
        )
    decided = _with_held(decided, case, reserved)
    withdrawals, kept = _withdrawals(case, noticed)
    evictions = tuple(_eviction(gang, state.now_s) for gang in kept if _deadline(gang) <= state.now_s)
    notices, lacking = _notices(case, kept, exceeds_upper=exceeds_upper)
    return msgspec.structs.replace(
        decided,
        withdrawals=withdrawals,
        evictions=evictions,
        notices=notices,
        noticed_cards=sum(notice.cards for notice in notices),
        unmet=(*case.unmet, *_without_victims(case, lacking)),
        notes=_notes(case, sum(lacking.values())),
    )


# -- demand ----------------------------------------------------------------------------------------------------------------


def _case(state: TideState, settings: TideSettings) -> _Case:
    models = state.inference.models
    nodes = tuple(node for node in state.nodes if not models or node.model in models)
    known = {node.model for node in nodes}
    served, unmet = list[WaitingInference](), list[UnmetPod]()
    left = math.inf if settings.ceiling_cards is None else settings.ceiling_cards - state.inference.running_cards
    for pod in sorted(state.inference.waiting, key=lambda pod: (pod.since_s, pod.uid)):
        if pod.models and not known.intersection(pod.models):
            unmet.append(UnmetPod(pod.uid, f"no node has a card of {' or '.join(pod.models)}"))
        elif pod.cards > left:
            unmet.append(UnmetPod(pod.uid, f"the ceiling of {settings.ceiling_cards} inference cards is reached"))
        else:
            left -= pod.cards
            served.append(pod)
    demand = state.inference.running_cards + sum(pod.cards for pod in served)
    return _Case(state, settings, nodes, tuple(served), tuple(unmet), _headroom(state, settings, demand), demand)


def _headroom(state: TideState, settings: TideSettings, demand: int) -> Headroom:
    forecast, now_s, horizon_s = state.inference.forecast, state.now_s, settings.horizon_s
    expected = 0.0 if forecast.origin is ForecastOrigin.WINDOWS else forecast.highest_rise(now_s, now_s + horizon_s)
    recent = _recent_rise(state, demand, horizon_s)
    error = max(forecast.error_cards, settings.min_headroom_cards)
    cards = _headroom_for(state, settings, demand, max(expected, recent) + error)
    trend = cards - _headroom_for(state, settings, demand, expected + error)
    return Headroom(cards, expected, recent, error, trend)


def _headroom_for(state: TideState, settings: TideSettings, demand: int, rise: float) -> int:
    """Returns `Headroom.cards` for a rise that includes the error."""
    forecast, now_s = state.inference.forecast, state.now_s
    cards = min(math.ceil(rise), settings.max_headroom_cards)
    if forecast.origin is ForecastOrigin.WINDOWS:
        cards = max(cards, math.ceil(_level(forecast, now_s, now_s + settings.horizon_s)) - demand)
    cards = max(cards, settings.floor_cards - demand)
    cards = math.ceil(cards / state.inference.pod_cards) * state.inference.pod_cards
    if settings.ceiling_cards is not None:
        cards = min(cards, settings.ceiling_cards - demand)
    return max(0, cards)


def _recent_rise(state: TideState, demand: int, horizon_s: float) -> float:
    """Returns by how much demand rises within the horizon if the trend of the last TREND_S continues.

    Only the part above all earlier demand counts. So a demand that rises and falls repeatedly has no trend.
    """
    before = [sample.cards for sample in state.inference.recent if sample.at_s <= state.now_s - TREND_S]
    return max(0, demand - max(before)) * horizon_s / TREND_S if before else 0.0


def _recent_peak(state: TideState, demand: int, within_s: float) -> int:
    """Returns the highest demand of the last `within_s` seconds, including the present one."""
    recent = [sample.cards for sample in state.inference.recent if sample.at_s >= state.now_s - within_s]
    return max([demand, *recent])


def _level(forecast: DemandForecast, from_s: float, to_s: float) -> float:
    """Returns the highest expected demand within [from_s, to_s]."""
    return forecast.expected(from_s) + forecast.highest_rise(from_s, to_s)


def _upper(state: TideState) -> float:
    return state.inference.forecast.upper(state.now_s)


# -- the limit of training ----------------------------------------------------------------------------------------------------


def _training_limit(case: _Case, training: int) -> tuple[int, int]:
    """Returns the cards that training may hold, and those that are reserved for inference."""
    state, settings = case.state, case.settings
    level = _level(state.inference.forecast, state.now_s, state.now_s + settings.ahead_s + settings.horizon_s)
    reserved = _reserved(case, level, is_now=True)
    pod_cards = state.inference.pod_cards
    scattered = sum(node.free % pod_cards for node in case.nodes)  # free, but inference cannot use them
    limit = max(0, sum(node.total for node in case.nodes) - reserved - scattered)
    if _over_cap(state, settings):
        limit = min(limit, training)
    return limit, reserved


def _over_cap(state: TideState, settings: TideSettings) -> int:
    """Returns by how many cards the evictions of the last hour exceed the cap; 0 without a cap."""
    cap = settings.eviction_cap_cards
    return 0 if cap is None else max(0, state.evicted_last_hour_cards - cap)


def _reserved(case: _Case, level: float, *, is_now: bool) -> int:
    """Returns the cards that training must leave to inference, now or at a later time.

    `level`: the highest expected demand from that time until `ahead_s` + `horizon_s` later.
    """
    state, settings, forecast = case.state, case.settings, case.state.inference.forecast
    if forecast.origin is ForecastOrigin.WINDOWS:
        expected = max(float(case.demand), level)
    else:
        expected = case.demand + level - forecast.expected(state.now_s)
    found = expected + case.headroom.error_cards
    if is_now:
        found = max(found, _recent_peak(state, case.demand, settings.quiet_s) + case.headroom.cards)
    found = max(found, settings.floor_cards)
    if settings.ceiling_cards is not None:
        found = min(found, max(settings.ceiling_cards, case.demand))
    return math.ceil(found)


def kept_cards(gang_cards: int, nodes: Sequence[NodeCards]) -> int:
    """Returns `TidePlan.kept_cards` if the first waiting gang has `gang_cards` cards."""
    return min(gang_cards, sum(node.total for node in nodes) // CARDS_PER_KEPT_CARD)


def _with_held(decided: TidePlan, case: _Case, reserved: int) -> TidePlan:
    """Adds how long the first waiting gang is held back, and for how many cards of inference."""
    first = next(iter(case.state.waiting_gangs), None)
    if first is None or decided.training_cards + first.cards <= decided.training_limit_cards:
        return decided
    forecast, now_s = case.state.inference.forecast, case.state.now_s
    most = sum(node.total for node in case.nodes) - decided.training_cards - first.cards
    steps = math.ceil((case.settings.ahead_s + case.settings.horizon_s) / forecast.step_s)
    until_s = None
    for number in range(len(forecast.expected_cards)):
        at_s = forecast.from_s + forecast.step_s * number
        if at_s > now_s:
            level = max(forecast.expected_cards[number : number + steps + 1])
            if _reserved(case, level, is_now=False) <= most:
                until_s = at_s
                break
    return msgspec.structs.replace(decided, held_until_s=until_s, held_for_cards=reserved)


# -- notices and evictions -----------------------------------------------------------------------------------------------------


def _deadline(gang: TrainingGang) -> float:
    assert gang.notice is not None, f"{gang.key} has a notice"
    return gang.notice.deadline_s


def _withdrawals(
    case: _Case, noticed: Sequence[TrainingGang]
) -> tuple[tuple[Withdrawal, ...], tuple[TrainingGang, ...]]:
    """Returns the notices that are no longer needed, and the gangs whose notices stay.

    A notice is needed if, without it, the highest demand of the last `horizon_s` (notice + grace) would lack cards.
    The notice with the latest deadline is withdrawn first.
    """
    found = [Withdrawal(gang.key, "it may not be evicted any more") for gang in noticed if gang.is_protected]
    kept = [gang for gang in noticed if not gang.is_protected]
    peak = _recent_peak(case.state, case.demand, case.settings.horizon_s)
    wanted = case.headroom.cards + peak - case.demand
    room = case.room(kept)
    surplus = room.total - sum(pod.cards for pod in case.served) - wanted
    lacking = room.need(case.shapes, wanted).cards
    for gang in sorted(kept, key=lambda gang: (-_deadline(gang), gang.key)):
        cards = _cards_on((gang,), case.nodes)
        if cards > surplus + lacking:
            continue  # without its cards, more would be lacking, however the rest is spread over the nodes
        others = [other for other in kept if other is not gang]
        if case.room(others).need(case.shapes, wanted).cards <= lacking:
            kept = others
            surplus -= cards
            found.append(Withdrawal(gang.key, "inference does not need its cards any more"))
    return tuple(found), tuple(kept)


def _eviction(gang: TrainingGang, now_s: float) -> DueEviction:
    uids = tuple(member.uid for member in gang.members)
    return DueEviction(gang.key, uids, gang.cards, work_lost_s(gang, now_s) * gang.cards)


def _notices(
    case: _Case, noticed: Sequence[TrainingGang], *, exceeds_upper: bool
) -> tuple[tuple[NewNotice, ...], Mapping[Shape, int]]:
    """Returns the new notices, and the number of waiting pods of each shape that will still lack room."""
    state, settings = case.state, case.settings
    within_min_run = frozenset(
        gang.key for gang in state.gangs if state.now_s - _running_since_s(gang) < settings.min_run_s
    )
    candidates = [
        gang
        for gang in state.gangs
        if gang.notice is None and not gang.is_protected and (exceeds_upper or gang.key not in within_min_run)
    ]
    order = VictimOrder(state.now_s, median_start_s(state.gangs, state.now_s), within_min_run)
    room, shapes = case.room(noticed), case.shapes
    chosen = victims_for(shapes, case.headroom.cards, room, candidates, order)
    notices = tuple(_notice(case, gang, is_overriding=gang.key in within_min_run) for gang in chosen)
    return notices, case.room([*noticed, *chosen]).need(shapes, 0).pods


def _running_since_s(gang: TrainingGang) -> float:
    return max(gang.started_s, gang.returned_after_eviction_s or gang.started_s)


def _notice(case: _Case, gang: TrainingGang, *, is_overriding: bool) -> NewNotice:
    minutes = round(work_lost_s(gang, case.state.now_s) / 60)
    since = "since its start" if gang.checkpoint_s is None else "since its last checkpoint"
    reason = f"it frees {gang.cards} cards and repeats {minutes} min of work {since}"
    if is_overriding:
        reason += "; it ran for less than the minimum run time, and demand exceeds the upper band of the forecast"
    deadline_s = case.state.now_s + case.settings.notice_s
    return NewNotice(gang.key, deadline_s, _for_demand(case), reason, gang.cards, is_overriding)


def _for_demand(case: _Case) -> str:
    if not case.served:
        return f"inference: {case.headroom.cards} cards of headroom above a demand of {case.demand}"
    cards = sum(pod.cards for pod in case.served)
    return f"inference: {len(case.served)} pods wait for {cards} cards, {case.headroom.cards} cards of headroom"


def _without_victims(case: _Case, lacking: Mapping[Shape, int]) -> tuple[UnmetPod, ...]:
    """Returns the latest waiting pods of each shape, as many as lack room (`lacking`)."""
    found, left = [], dict(lacking)
    for pod in reversed(case.served):
        shape = (pod.cards, pod.models)
        if left.get(shape, 0) > 0:
            left[shape] -= 1
            of = f" of {' or '.join(pod.models)}" if pod.models else ""
            found.append(
                UnmetPod(pod.uid, f"no training that may now be evicted holds {pod.cards} cards{of} on a node")
            )
    return tuple(reversed(found))


def _notes(case: _Case, lacking: int) -> tuple[str, ...]:
    found = []
    match case.state.inference.forecast.origin:
        case ForecastOrigin.WINDOWS:
            found.append("too little history of inference; the configured windows are used")
        case ForecastOrigin.NONE:
            found.append("no history of inference and no windows; demand is expected to stay as it is now")
    if lacking:
        found.append(f"no training that may now be evicted frees cards for {lacking} waiting inference pods")
    return tuple(found)


def _cards_on(gangs: Sequence[TrainingGang], nodes: Sequence[NodeCards]) -> int:
    names = {node.name for node in nodes}
    return sum(member.cards for gang in gangs for member in gang.members if member.node in names)

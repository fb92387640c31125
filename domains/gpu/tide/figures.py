"""The document of `multisched gpu tide`, and the metrics of the tide. Pure: made of the last plan and the counters."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from domains.gpu.tide.state import TidePlan, TideState
from multisched.forecasting.time_units import HOUR_S
from multisched.framework.introspection import PluginMetric
from multisched.framework.views import Document, NoViewError, ViewQuery, unknown_parameter
from multisched.model.api_time import timestamp

if TYPE_CHECKING:
    from domains.gpu.tide.control import TideControl

DOCUMENT: Final = "now"
HOURS_SHOWN: Final = 24


def document_of(control: TideControl, query: ViewQuery, domain: str, now_s: float) -> Document:
    """Returns the document, by a plan of now if there was none, as in a sandbox. Raises NoViewError for an unknown name or option."""
    if query.name != DOCUMENT:
        raise NoViewError(f"tide has no document {query.name}; write {DOCUMENT}")
    if unknown := unknown_parameter(query.options, ["domain"]):
        raise NoViewError(unknown, status=400)
    if control.last is None:
        control.plan_now(now_s)
    assert control.last is not None, "there is a plan"
    state, plan = control.last
    return {
        "domain": domain,
        "now": _time(now_s),
        "plannedAt": _time(state.now_s),
        "isFrozen": plan.is_frozen,
        "cards": _cards(state, plan),
        "headroom": _headroom(plan),
        "demandCards": plan.demand_cards,
        "forecast": {"origin": state.inference.forecast.origin.value, "hours": _hours(state)},
        "training": {
            "limitCards": plan.training_limit_cards,
            "heldBackUntil": None if plan.held_until_s is None else _time(plan.held_until_s),
            "waiting": [
                {"gang": gang.key, "cards": gang.cards, "why": control.limits.refusal(gang.key, gang.cards)}
                for gang in state.waiting_gangs
            ],
            "protected": _protected(control),
        },
        "notices": _notices(control, state),
        "unmet": [{"uid": one.uid, "reason": one.reason} for one in plan.unmet],
        "losses": _losses(control),
        "notes": list(plan.notes),
    }


def _cards(state: TideState, plan: TidePlan) -> Document:
    return {
        "total": sum(node.total for node in state.nodes),
        "inference": state.inference.running_cards,
        "waitingInference": sum(pod.cards for pod in state.inference.waiting),
        "training": plan.training_cards,
        "free": sum(node.free for node in state.nodes),
        "leaving": sum(node.leaving for node in state.nodes),
    }


def _headroom(plan: TidePlan) -> Document:
    parts = plan.headroom
    return {
        "cards": parts.cards,
        "forecastRiseCards": round(parts.forecast_rise_cards, 1),
        "recentRiseCards": round(parts.recent_rise_cards, 1),
        "errorCards": round(parts.error_cards, 1),
    }


def _hours(state: TideState) -> list[Document]:
    forecast = state.inference.forecast
    moments = [state.now_s + HOUR_S * hour for hour in range(HOURS_SHOWN + 1)]
    return [
        {"at": _time(at_s), "expectedCards": round(forecast.expected(at_s)), "upperCards": round(forecast.upper(at_s))}
        for at_s in moments
    ]


def _protected(control: TideControl) -> list[Document]:
    gangs = {} if control.snapshot is None else control.snapshot.gangs
    return [
        {"gang": key, "cards": one.gang.cards, "why": one.protection}
        for key, one in sorted(gangs.items())
        if one.protection
    ]


def _notices(control: TideControl, state: TideState) -> list[Document]:
    cards = {gang.key: gang.cards for gang in state.gangs}
    return [
        {
            "gang": gang,
            "cards": cards.get(gang, 0),
            "deadline": _time(given.notice.deadline_s),
            "for": given.notice.for_demand,
            "id": given.notice.id,
            "podsWithNotice": len(given.written_s),
            "isHookDone": given.is_hook_done,
            "isEvicting": given.is_evicting,
        }
        for gang, given in sorted(control.notices.given.items())
        if not given.is_withdrawn
    ]


def _losses(control: TideControl) -> Document:
    losses, counts = control.losses, control.losses.counts
    ratio = losses.need.ratio
    return {
        "gangs": counts.gangs,
        "cards": counts.cards,
        "lostCardHours": round(counts.lost_card_s / HOUR_S, 2),
        "evictedOverNeeded": round(ratio, 2) if ratio < float("inf") else None,
        "overriddenMinRunTimes": counts.overridden,
        "noticesWithdrawn": counts.notices_withdrawn,
        "latest": [
            {
                "at": _time(one.at_s),
                "gang": one.gang,
                "cards": one.cards,
                "lostCardHours": round(one.lost_card_s / HOUR_S, 2),
                "for": one.for_demand,
            }
            for one in reversed(losses.shown)
        ],
    }


def health_of(control: TideControl) -> str:
    """Returns what is not as it should be, in one sentence; empty: nothing."""
    in_part = _in_part(control)
    if in_part:
        return f"the tide: {in_part:g} gangs were evicted in part, and the eviction of the other members is tried again"
    is_frozen = control.last is not None and control.last[1].is_frozen
    return "the tide is frozen" if is_frozen else ""


def metrics_of(control: TideControl) -> Sequence[PluginMetric]:
    """Returns the metrics; gauges are empty before the first plan."""
    return [*_gauges(control), *_counters(control)]


def _gauges(control: TideControl) -> Sequence[PluginMetric]:
    cards: dict[tuple[str, ...], float] = {}
    forecast: dict[tuple[str, ...], float] = {}
    headroom: dict[tuple[str, ...], float] = {}
    limit: dict[tuple[str, ...], float] = {}
    frozen: dict[tuple[str, ...], float] = {}
    if control.last is not None:
        state, plan = control.last
        cards = {(use,): float(count) for use, count in _cards(state, plan).items() if use != "total"}
        now = state.inference.forecast
        forecast = {("expected",): now.expected(state.now_s), ("upper",): now.upper(state.now_s)}
        headroom, limit = {(): plan.headroom.cards}, {(): plan.training_limit_cards}
        frozen = {(): float(plan.is_frozen)}
    return (
        PluginMetric("tide_cards", "GPU cards of the tide by use.", cards, ("use",)),
        PluginMetric("tide_forecast_cards", "Cards that inference is expected to need now.", forecast, ("band",)),
        PluginMetric("tide_headroom_cards", "Cards kept free or under notice above the demand.", headroom),
        PluginMetric("tide_training_limit_cards", "Cards that training may hold now.", limit),
        PluginMetric("tide_notices_in_progress", "Gangs under notice.", {(): float(len(control.notices.given))}),
        PluginMetric(
            "tide_gangs_in_part", "Gangs of which members were evicted and others not.", {(): _in_part(control)}
        ),
        PluginMetric("tide_frozen", "1 if the tide is frozen.", frozen),
    )


def _in_part(control: TideControl) -> float:
    """Returns the number of gangs whose eviction has begun and of which members are not being deleted."""
    snapshot, found = control.snapshot, 0
    for gang, given in control.notices.given.items():
        if given.is_evicting and snapshot is not None:
            running = snapshot.gangs.get(gang)
            pods = snapshot.leaving.get(gang, () if running is None else running.pods)
            found += any(pod.uid in given.written_s for pod in pods)
    return float(found)


def _counters(control: TideControl) -> Sequence[PluginMetric]:
    counts, need = control.losses.counts, control.losses.need

    def counter(name: str, text: str, value: float) -> PluginMetric:
        return PluginMetric(name, text, {(): value}, is_counter=True)

    notices: dict[tuple[str, ...], float] = {
        ("given",): float(counts.notices),
        ("withdrawn",): float(counts.notices_withdrawn),
        ("refused",): float(counts.notices_refused),
        ("forged",): float(counts.notices_ignored),
    }
    calls: dict[tuple[str, ...], float] = {(outcome,): float(count) for outcome, count in counts.hook_calls.items()}
    return (
        PluginMetric("tide_notices", "Notices, by what became of them.", notices, ("result",), is_counter=True),
        PluginMetric(
            "tide_hook_calls", "Notices for which the checkpoint hook was called.", calls, ("result",), is_counter=True
        ),
        counter("tide_evicted_gangs", "Gangs evicted for inference.", counts.gangs),
        counter("tide_evicted_cards", "Cards of gangs evicted for inference.", counts.cards),
        counter("tide_needed_cards", "Evicted cards that inference needed.", need.needed_cards),
        counter("tide_lost_card_seconds", "Work that evicted gangs repeat, times their cards.", counts.lost_card_s),
        counter("tide_min_run_overridden", "Notices within the minimum run time.", counts.overridden),
        counter("tide_evictions_refused", "Refused evictions of pods.", counts.evictions_refused),
    )


def _time(at_s: float) -> str:
    return timestamp(datetime.fromtimestamp(at_s, UTC))

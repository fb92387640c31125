"""Builders of states for tests of the tide's planner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from domains.gpu.tide.settings import TideSettings
from domains.gpu.tide.state import (
    DemandForecast,
    DemandSample,
    ForecastOrigin,
    GangMember,
    GangNotice,
    InferenceState,
    NodeCards,
    TideState,
    TrainingGang,
    WaitingInference,
)

NOW_S = 1_767_571_200.0
HOUR_S = 3_600.0
SETTINGS = TideSettings(notice_s=90.0, grace_s=30.0, min_run_s=1_800.0, quiet_s=900.0, min_headroom_cards=0)


def flat(cards: float, upper: float | None = None, *, error: float = 0.0) -> DemandForecast:
    """A forecast of constant demand."""
    return DemandForecast(NOW_S, 300.0, (cards,), (cards if upper is None else upper,), error)


def ramp(begin: float, per_hour: float, hours: float, *, error: float = 0.0) -> DemandForecast:
    """A forecast that rises from now on, and is flat before and after."""
    cards = tuple(begin + per_hour * 300.0 * number / HOUR_S for number in range(int(hours * 12) + 1))
    return DemandForecast(NOW_S, 300.0, cards, tuple(one * 1.1 for one in cards), error)


def windows(*cards: float) -> DemandForecast:
    """A forecast from windows, a sample an hour."""
    return DemandForecast(NOW_S, HOUR_S, cards, cards, 0.0, ForecastOrigin.WINDOWS)


def gang(
    key: str, *nodes: str, cards: int = 8, age_s: float = 5 * HOUR_S, model: str = "", **fields: Any
) -> TrainingGang:
    """A gang with a member of `cards` cards on each node. `checkpoint_age_s` and `notice_in_s` are relative to NOW_S."""
    if (checkpoint_age_s := fields.pop("checkpoint_age_s", None)) is not None:
        fields["checkpoint_s"] = NOW_S - checkpoint_age_s
    if (notice_in_s := fields.pop("notice_in_s", None)) is not None:
        fields["notice"] = GangNotice(NOW_S + notice_in_s)
    members = tuple(GangMember(f"{key}-{number}", node, cards, model) for number, node in enumerate(nodes))
    return TrainingGang(key=key, members=members, started_s=NOW_S - age_s, **fields)


def waiting(*cards: int, models: tuple[str, ...] = ()) -> tuple[WaitingInference, ...]:
    return tuple(WaitingInference(f"pod-{n}", one, models, NOW_S - 1) for n, one in enumerate(cards))


def state(
    nodes: Sequence[NodeCards],
    *gangs: TrainingGang,
    running: int = 0,
    pods: tuple[WaitingInference, ...] = (),
    forecast: DemandForecast | None = None,
    recent: Sequence[tuple[float, int]] = (),
    models: tuple[str, ...] = (),
    new_models: tuple[str, ...] = (),
    pod_cards: int = 1,
    **fields: Any,
) -> TideState:
    """`recent`: (seconds ago, cards). The default forecast is that the running cards stay, and that all is expected."""
    samples = tuple(DemandSample(NOW_S - ago_s, cards) for ago_s, cards in recent)
    inference = InferenceState(
        running_cards=running,
        waiting=pods,
        forecast=forecast or flat(running, 1_000_000.0),
        recent=samples,
        models=models,
        new_models=new_models,
        pod_cards=pod_cards,
    )
    return TideState(now_s=NOW_S, nodes=tuple(nodes), inference=inference, gangs=gangs, **fields)


def full(name: str, model: str = "") -> NodeCards:
    return NodeCards(name, model, 8, 0)

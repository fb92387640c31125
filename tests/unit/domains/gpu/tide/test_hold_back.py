"""How training is held back: whole gangs, between two plans too, and with what text."""

from __future__ import annotations

import math

import msgspec

from domains.gpu.tide.hold_back import HoldBack, Limits, held_text, limits_of
from domains.gpu.tide.state import Headroom, TidePlan, WaitingGang

PLAN = TidePlan(
    headroom=Headroom(0, 0.0, 0.0, 0.0),
    demand_cards=4,
    target_cards=4,
    available_cards=4,
    training_cards=16,
    training_limit_cards=32,
)


def held(growth_cards: float, **waiting: int) -> HoldBack:
    found = HoldBack()
    found.set(Limits(0, growth_cards, "held back", waiting))
    return found


def test_text_names_the_time_and_the_cards() -> None:
    expected = msgspec.structs.replace(PLAN, held_until_s=1_800_000_000.0, held_for_cards=38)
    assert held_text(expected) == "held back until 08:00 UTC: inference is expected to need 38 cards"
    assert held_text(PLAN) == "held back: training may hold 32 cards, and holds 16"
    frozen = msgspec.structs.replace(PLAN, is_frozen=True)
    assert held_text(frozen) == "held back: the tide is frozen, and training may hold 32 cards"


def test_gang_is_held_back_unless_all_its_cards_fit() -> None:
    limits = limits_of(PLAN, (WaitingGang("big", 24), WaitingGang("fits", 16)), (), has_outside=False)
    hold_back = HoldBack()
    hold_back.set(limits)
    assert hold_back.refusal("big", 8) == limits.text
    assert hold_back.refusal("fits", 8) == ""
    assert hold_back.refusal("unknown", 8) == "", "a gang that came after the plan is judged by each member"


def test_members_that_were_reserved_count_until_the_next_plan() -> None:
    hold_back = held(16, first=16, second=8)
    assert hold_back.reserve("first-0", "first", 8) == ""
    assert hold_back.reserve("first-0", "first", 8) == "", "again"
    assert hold_back.refusal("first", 8) == "", "its other member still fits"
    assert hold_back.reserve("first-1", "first", 8) == ""
    assert hold_back.reserve("second-0", "second", 8) == "held back"
    hold_back.unreserve("first-1")
    assert hold_back.refusal("second", 8) == ""
    hold_back.set(Limits(0, 8, "held back"))
    hold_back.unreserve("first-0")
    assert hold_back.refusal("second", 16) == "held back", "the plan has counted the first pod"


def test_pods_are_told_once_when_the_smallest_refused_fits() -> None:
    hold_back = held(0)
    assert not hold_back.set(Limits(0, 0))
    hold_back.refusal("a", 16)
    hold_back.refusal("b", 8)
    assert not hold_back.set(Limits(0, 4, "held back"))
    assert hold_back.set(Limits(0, 8, "held back"))
    assert not hold_back.set(Limits(0, 64, "held back"))


def test_nothing_is_held_back_without_a_plan() -> None:
    hold_back = HoldBack()
    assert hold_back.limits.growth_cards == math.inf
    assert hold_back.refusal("a", 1_000_000) == ""


def test_pods_are_told_when_nodes_outside_the_tide_come() -> None:
    hold_back = HoldBack()
    hold_back.set(Limits(limit_cards=0, growth_cards=0.0, text="held"))
    assert hold_back.refusal("ml/train", 1)
    assert hold_back.set(Limits(limit_cards=0, growth_cards=0.0, text="held", models=("A100",), has_outside=True))
    assert not hold_back.set(Limits(limit_cards=0, growth_cards=0.0, text="held", models=("A100",), has_outside=True))


def test_cards_kept_for_the_first_waiting_gang_are_refused_to_others() -> None:
    """Of 16 cards below the limit 8 are kept: without this, small pods would take each card that inference leaves."""
    plan = msgspec.structs.replace(PLAN, kept_cards=8)
    queue = (WaitingGang("first", 24), WaitingGang("fits", 8), WaitingGang("beyond", 12))
    limits = limits_of(plan, queue, (), has_outside=False)
    hold_back = HoldBack()
    hold_back.set(limits)
    assert hold_back.refusal("first", 24) == limits.text, "its own 24 cards do not fit"
    assert hold_back.refusal("fits", 8) == ""
    kept = "held back: 8 cards below the limit of training are kept for the first gang in the queue"
    assert hold_back.refusal("beyond", 12) == kept
    assert hold_back.refusal("new", 9) == kept
    assert not hold_back.set(msgspec.structs.replace(limits, growth_cards=16.5)), "none of the refused fits yet"
    assert hold_back.set(msgspec.structs.replace(limits, growth_cards=17.0)), "9 cards beside the 8 that are kept"
    assert limits.refusal("first", 16) == ""

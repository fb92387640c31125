"""The planner of the tide: worked examples with numbers, and rules that hold for every state."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from domains.gpu.tide.planner import plan
from domains.gpu.tide.state import (
    DemandForecast,
    GangMember,
    GangNotice,
    NodeCards,
    TideState,
    TrainingGang,
    WaitingGang,
)
from tests.unit.domains.gpu.tide.tides import (
    HOUR_S,
    NOW_S,
    SETTINGS,
    flat,
    full,
    gang,
    ramp,
    state,
    waiting,
    windows,
)

EVERY_HOUR_60 = ramp(100, 60, 3)
"""60 cards an hour are 2 within notice + grace of 120 s, and 32 within growth.ahead + notice + grace of 32 min."""


@pytest.mark.parametrize(
    ("forecast", "recent", "running", "headroom"),
    [
        (flat(100), (), 100, 0),
        (flat(100, error=3.2), (), 100, 4),  # rounded up
        (EVERY_HOUR_60, (), 100, 2),
        (ramp(100, 60, 3, error=3), (), 100, 5),
        (flat(100), ((301, 85), (150, 93)), 100, 6),  # 15 in 300 s go on for 120 s
        (flat(100), ((360, 120), (180, 80)), 100, 0),  # up and down is no trend
        (windows(160, 160, 20), (), 100, 60),
        (windows(160, 160, 20), (), 170, 0),
    ],
)
def test_headroom_is_the_rise_within_notice_and_grace_and_the_error(
    forecast: DemandForecast, recent: tuple[tuple[float, int], ...], running: int, headroom: int
) -> None:
    seen = plan(state([], running=running, forecast=forecast, recent=recent), SETTINGS)
    assert seen.headroom.cards == headroom
    assert seen.target_cards == running + headroom


@pytest.mark.parametrize(
    ("new_models", "forecast", "evicted"),
    [
        ((), flat(10), ["a100"]),
        (("H100",), flat(10), ["h100"]),
        (("A100", "H100"), flat(10), ["a100"]),
        (("L4",), flat(10), []),  # no training holds such cards
        (("L4",), flat(10, error=1.0), ["a100"]),  # the error is of any model
        (("H100",), ramp(10, 60, 3), ["a100"]),  # and so is the forecast, which expects the same rise
        (("H100",), flat(10, error=9.0), ["a100", "h100"]),
    ],
)
def test_rise_of_the_last_minutes_evicts_gangs_on_models_that_new_pods_accept(
    new_models: tuple[str, ...], forecast: DemandForecast, evicted: list[str]
) -> None:
    """Demand was 5 cards lower, so 2 of the headroom are of the recent rise. The gang on A100 lost less work."""
    nodes = (full("a", "A100"), full("h", "H100"), NodeCards("l", "L4", 10, 0))
    gangs = (gang("a100", "a", model="A100", age_s=HOUR_S), gang("h100", "h", model="H100"))
    seen = plan(
        state(nodes, *gangs, running=10, forecast=forecast, recent=((301, 5),), new_models=new_models), SETTINGS
    )
    assert sorted(notice.gang for notice in seen.notices) == evicted


def test_notice_for_the_recent_rise_is_kept_while_other_models_have_spare_cards() -> None:
    nodes = (NodeCards("a", "A100", 8, 8), full("h", "H100"))
    job = gang("h100", "h", model="H100", notice_in_s=60.0)
    for model, is_kept in (("H100", True), ("A100", False)):
        seen = state(nodes, job, new_models=(model,), running=10, forecast=flat(10), recent=((301, 5),))
        assert (plan(seen, SETTINGS).withdrawals == ()) is is_kept


@pytest.mark.parametrize(
    ("floor", "ceiling", "headroom"), [(0, None, 10), (150, None, 50), (0, 104, 4), (0, 90, 0), (120, 120, 20)]
)
def test_floor_and_ceiling_bound_the_target(floor: int, ceiling: int | None, headroom: int) -> None:
    settings = replace(SETTINGS, floor_cards=floor, ceiling_cards=ceiling)
    assert plan(state([], running=100, forecast=flat(100, error=10)), settings).headroom.cards == headroom


@pytest.mark.parametrize(
    ("forecast", "recent", "limit"),
    [
        (flat(40), (), 200 - 40),
        (flat(40, error=5), (), 200 - 45),
        (flat(40), ((600, 70),), 200 - 70),  # 70 were needed within the quiet time of 15 min
        (flat(40), ((901, 70),), 200 - 40),
        (ramp(40, 60, 3), (), 200 - 72),  # 32 more within the 30 min that a gang must run, notice and grace
        (windows(20, 90), (), 200 - 56),  # at 32 min the level is on its way from 20 to 90: 57.3, above the demand
    ],
)
def test_training_limit_leaves_what_inference_needed_and_will_need(
    forecast: DemandForecast, recent: tuple[tuple[float, int], ...], limit: int
) -> None:
    nodes = [NodeCards(f"n{number}", "", 8, 8) for number in range(25)]
    decided = plan(state(nodes, running=40, forecast=forecast, recent=recent), SETTINGS)
    assert decided.training_limit_cards == pytest.approx(limit, abs=2)


def test_cap_on_evictions_stops_growth_of_training_but_no_eviction() -> None:
    settings = replace(SETTINGS, eviction_cap_cards=16)
    nodes = [full("a"), NodeCards("b", "", 8, 8), NodeCards("c", "", 8, 8)]
    decided = plan(state(nodes, gang("job", "a"), pods=waiting(8, 8, 8), evicted_last_hour_cards=20), settings)
    assert decided.over_cap_cards == 4
    assert [one.gang for one in decided.notices] == ["job"]
    quiet = plan(state(nodes, gang("job", "a"), evicted_last_hour_cards=20), settings)
    assert quiet.training_limit_cards == 8


# -- victims ---------------------------------------------------------------------------------------------------------------

ONE_NODE = [full("a"), full("b"), full("c"), full("d")]


@pytest.mark.parametrize(
    ("gangs", "pods", "noticed"),
    [
        # The same work lost: the gang of which inference can use all cards.
        ([gang("wide", "a", "b", age_s=HOUR_S), gang("one", "c", age_s=HOUR_S)], (8,), ["one"]),
        ([gang("wide", "a", "b", age_s=HOUR_S), gang("one", "c", age_s=HOUR_S)], (8, 8, 8), ["one", "wide"]),
        # Less work lost since the checkpoint.
        ([gang("old", "a", checkpoint_age_s=1500), gang("fresh", "b", checkpoint_age_s=300)], (1,), ["fresh"]),
        # 28 min + 2 min of restart of 2 cards for 2 used, or 1 + 2 min of 8 cards for 2 used: 60 and 12 card-minutes a card.
        ([gang("two", "a", cards=2, checkpoint_age_s=1680), gang("eight", "b", checkpoint_age_s=60)], (2,), ["eight"]),
        # Equal cost: the one that started last.
        ([gang("a", "a", checkpoint_age_s=60), gang("b", "b", checkpoint_age_s=60, age_s=HOUR_S)], (1,), ["b"]),
        # Retries nearly used up: last.
        ([gang("last", "a", checkpoint_age_s=0, retries_left=1), gang("b", "b", checkpoint_age_s=1500)], (1,), ["b"]),
        ([gang("last", "a", retries_left=0), gang("young", "b", age_s=60)], (1,), ["last"]),
        # A checkpoint every second is as good as one every minute: the later start decides.
        ([gang("busy", "a", checkpoint_age_s=1), gang("calm", "b", checkpoint_age_s=59, age_s=HOUR_S)], (1,), ["calm"]),
        # A checkpoint of the future counts as now.
        ([gang("liar", "a", checkpoint_age_s=-9e9), gang("b", "b", checkpoint_age_s=0, age_s=HOUR_S)], (1,), ["b"]),
        # Without a checkpoint: max(start, median start). The median of 10, 5 and 1 h is 5 h.
        (
            [gang("ten", "a", age_s=10 * HOUR_S), gang("five", "b"), gang("one", "c", age_s=HOUR_S)],
            (8, 8),
            ["one", "five"],
        ),
        # The gang of 8 makes the first choice needless.
        ([gang("small", "a", cards=1, checkpoint_age_s=0), gang("eight", "b")], (1,) * 8, ["eight"]),
        # Protected, and within the minimum run time.
        ([gang("mine", "a", is_protected=True), gang("young", "b", age_s=1_799)], (1,), []),
        ([gang("back", "a", age_s=9_000, returned_after_eviction_s=NOW_S - 1_799)], (1,), []),
        ([gang("due", "a", age_s=1_800)], (1,), ["due"]),
        # Under notice already: its cards count.
        ([gang("noticed", "a", notice_in_s=30), gang("b", "b")], (8,), []),
        ([gang("noticed", "a", notice_in_s=30), gang("b", "b")], (8, 1), ["b"]),
    ],
)
def test_victims(gangs: list[TrainingGang], pods: tuple[int, ...], noticed: list[str]) -> None:
    decided = plan(state(ONE_NODE, *gangs, pods=waiting(*pods)), SETTINGS)
    assert [one.gang for one in decided.notices] == noticed
    assert all(one.deadline_s == NOW_S + 90 for one in decided.notices)


def test_no_gang_gives_cards_of_a_model_that_inference_does_not_accept() -> None:
    nodes = [full("a", "V100"), full("b", "A100")]
    pods = waiting(1, models=("A100",))
    protected = gang("b", "b", model="A100", is_protected=True)
    decided = plan(state(nodes, gang("v", "a", model="V100"), protected, pods=pods), SETTINGS)
    assert not decided.notices
    assert decided.unmet[0].reason == "no training that may now be evicted holds 1 cards of A100 on a node"
    missing = plan(state(nodes[:1], gang("v", "a", model="V100"), pods=pods), SETTINGS)
    assert not missing.notices
    assert missing.unmet[0].reason == "no node has a card of A100"
    assert missing.demand_cards == 0


def test_free_cards_of_other_nodes_do_not_fit_a_pod_of_eight() -> None:
    nodes = [NodeCards("a", "", 8, 4), NodeCards("b", "", 8, 4), full("c")]
    decided = plan(state(nodes, gang("job", "c"), pods=waiting(8)), SETTINGS)
    assert [one.gang for one in decided.notices] == ["job"]
    assert decided.needed_cards == 8


def test_pod_of_eight_takes_the_node_whose_gangs_cost_least() -> None:
    small = [
        gang(f"{node}-{n}", node, cards=2, checkpoint_age_s=600 * (node == "a")) for node in "ab" for n in range(4)
    ]
    decided = plan(state([full("a"), full("b")], *small, pods=waiting(8)), SETTINGS)
    assert sorted(one.gang for one in decided.notices) == ["b-0", "b-1", "b-2", "b-3"]
    protected = [replace(small[4], is_protected=True), *small[:4], *small[5:]]
    other = plan(state([full("a"), full("b")], *protected, pods=waiting(8)), SETTINGS)
    assert sorted(one.gang for one in other.notices) == ["a-0", "a-1", "a-2", "a-3"]


def test_training_does_not_count_on_free_cards_between_pods_of_inference() -> None:
    nodes = [NodeCards("a", "", 8, 3), NodeCards("b", "", 8, 8), full("c")]
    assert plan(state(nodes, gang("job", "c"), pod_cards=4), SETTINGS).training_limit_cards == 24 - 3


def test_scattered_cards_count_for_the_headroom_in_multiples_of_a_pod() -> None:
    nodes = [NodeCards("a", "", 8, 3), NodeCards("b", "", 8, 3), full("c")]
    large = plan(state(nodes, gang("job", "c"), forecast=flat(0, error=4), pod_cards=4), SETTINGS)
    small = plan(state(nodes, gang("job", "c"), forecast=flat(0, error=4)), SETTINGS)
    assert [one.gang for one in large.notices] == ["job"]
    assert not small.notices


def test_minimum_run_time_yields_to_demand_above_the_upper_band() -> None:
    young = gang("young", "a", age_s=60)
    expected = plan(state(ONE_NODE, young, pods=waiting(4), forecast=flat(4, 4)), SETTINGS)
    above = plan(state(ONE_NODE, young, pods=waiting(4), forecast=flat(3, 3)), SETTINGS)
    assert not expected.notices
    assert above.exceeds_upper
    assert [(one.gang, one.overrides_min_run_time) for one in above.notices] == [("young", True)]


# -- notices ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("notice_in_s", "pods", "recent", "evicted", "withdrawn"),
    [
        (1, (8,), (), [], []),
        (0, (8,), (), ["job"], []),
        (-600, (8,), (), ["job"], []),  # a restart in between
        (0, (), (), [], ["job"]),
        (60, (), (), [], ["job"]),
        (0, (), ((100, 8),), ["job"], []),  # needed within the last notice + grace: likely again soon
        (0, (), ((121, 8),), [], ["job"]),
    ],
)
def test_notice_is_kept_withdrawn_or_due(
    notice_in_s: float,
    pods: tuple[int, ...],
    recent: tuple[tuple[float, int], ...],
    evicted: list[str],
    withdrawn: list[str],
) -> None:
    job = gang("job", "a", "b", cards=4, notice_in_s=notice_in_s)
    decided = plan(state([full("a"), full("b")], job, pods=waiting(*[1] * sum(pods)), recent=recent), SETTINGS)
    assert [one.gang for one in decided.evictions] == evicted
    assert [one.gang for one in decided.withdrawals] == withdrawn
    assert all(one.uids == ("job-0", "job-1") and one.cards == 8 for one in decided.evictions)
    assert not decided.notices


def test_gang_that_became_protected_is_not_evicted() -> None:
    job = gang("job", "a", notice_in_s=0, is_protected=True)
    decided = plan(state(ONE_NODE, job, pods=waiting(8)), SETTINGS)
    assert not decided.evictions
    assert [one.gang for one in decided.withdrawals] == ["job"]


def test_frozen_tide_decides_nothing_and_keeps_the_limit() -> None:
    settings = replace(SETTINGS, is_frozen=True)
    gangs = gang("due", "a", notice_in_s=0), gang("idle", "b")
    decided = plan(state(ONE_NODE, *gangs, pods=waiting(8, 8), previous_limit_cards=13), settings)
    assert decided.is_frozen
    assert (decided.notices, decided.evictions, decided.withdrawals) == ((), (), ())
    assert decided.training_limit_cards == 13
    assert plan(state(ONE_NODE, *gangs, pods=waiting(8)), settings).training_limit_cards == 32


# -- held back -------------------------------------------------------------------------------------------------------------


def test_waiting_gang_is_held_until_the_forecast_falls() -> None:
    """Of 32 cards inference has 8, and needs 24 from +1 h to +2 h; the gang of 16 starts when that is over."""
    cards = (8.0,) * 12 + (24.0,) * 12 + (8.0,) * 12
    forecast = DemandForecast(NOW_S, 300.0, cards, cards)
    nodes = [NodeCards("a", "", 8, 0), *(NodeCards(name, "", 8, 8) for name in "bcd")]
    job = (WaitingGang("job", 24), WaitingGang("next", 1))
    now = plan(state(nodes, running=8, forecast=forecast, waiting_gangs=job), SETTINGS)
    assert (now.training_limit_cards, now.held_until_s) == (24, None)
    later = tuple(cards[6:])  # half an hour later the rise is within reach
    held = plan(
        state(nodes, running=8, forecast=DemandForecast(NOW_S, 300.0, later, later), waiting_gangs=job), SETTINGS
    )
    assert held.training_limit_cards == 8
    assert held.held_for_cards == 24
    assert held.held_until_s == NOW_S + 18 * 300


@pytest.mark.parametrize(("cards", "nodes", "kept"), [(8, 25, 4), (2, 25, 2), (32, 125, 20), (64, 500, 64), (8, 2, 0)])
def test_cards_are_kept_for_the_first_waiting_gang(cards: int, nodes: int, kept: int) -> None:
    free = [NodeCards(f"n{number}", "", 8, 8) for number in range(nodes)]
    queue = (WaitingGang("first", cards), WaitingGang("small", 1))
    assert plan(state(free, waiting_gangs=queue), SETTINGS).kept_cards == kept
    assert plan(state(free, waiting_gangs=queue), replace(SETTINGS, is_frozen=True)).kept_cards == 0
    assert plan(state(free), SETTINGS).kept_cards == 0


# -- rules for every state ---------------------------------------------------------------------------------------------------


@st.composite
def states(draw: st.DrawFn) -> TideState:
    """Nodes of 8 cards; gangs of one to three members on any of them; pods of one card."""
    free = [8] * draw(st.integers(1, 5))
    gangs = []
    for number in range(draw(st.integers(0, 8))):
        members = list[GangMember]()
        for node in draw(st.lists(st.integers(0, len(free) - 1), min_size=1, max_size=3)):
            cards = draw(st.integers(1, 8))
            if cards <= free[node]:
                free[node] -= cards
                members.append(GangMember(f"{number}-{len(members)}", f"n{node}", cards))
        if members:
            offset = st.floats(-5_000, 5_000)
            notice = draw(st.none() | st.builds(lambda by_s: GangNotice(NOW_S + by_s), offset))
            gangs.append(
                TrainingGang(
                    key=f"gang-{number}",
                    members=tuple(members),
                    started_s=NOW_S - draw(st.floats(0, 9_000)),
                    checkpoint_s=draw(st.none() | st.builds(lambda by_s: NOW_S + by_s, offset)),
                    retries_left=draw(st.none() | st.integers(0, 3)),
                    is_protected=draw(st.booleans()),
                    notice=notice,
                )
            )
    running = 0
    for node, left in enumerate(free):
        taken = draw(st.integers(0, left))
        free[node] -= taken
        running += taken
    expected, above = draw(st.floats(0, 60)), draw(st.floats(0, 20))
    nodes = [NodeCards(f"n{number}", "", 8, left) for number, left in enumerate(free)]
    return state(
        nodes,
        *gangs,
        running=running,
        pods=waiting(*[1] * draw(st.integers(0, 20))),
        forecast=flat(expected, expected + above, error=draw(st.floats(0, 12))),
        recent=draw(st.lists(st.tuples(st.floats(0, 2_000), st.integers(0, 50)), max_size=4)),
    )


@given(states())
def test_gangs_are_whole_noticed_in_time_and_never_protected(drawn: TideState) -> None:
    decided = plan(drawn, SETTINGS)
    by_key = {one.key: one for one in drawn.gangs}
    for eviction in decided.evictions:
        found = by_key[eviction.gang]
        assert found.notice is not None
        assert found.notice.deadline_s <= NOW_S
        assert not found.is_protected
        assert eviction.uids == tuple(member.uid for member in found.members)
    for notice in decided.notices:
        found = by_key[notice.gang]
        assert found.notice is None
        assert not found.is_protected
        assert notice.deadline_s == NOW_S + SETTINGS.notice_s
        is_young = NOW_S - found.started_s < SETTINGS.min_run_s
        assert notice.overrides_min_run_time == is_young
        assert not is_young or decided.exceeds_upper
    parts = (decided.evictions, decided.notices, decided.withdrawals)
    keys = [one.gang for part in parts for one in part]
    assert len(keys) == len(set(keys))


@given(states())
def test_no_notice_is_needless(drawn: TideState) -> None:
    """Pods of one card fit anywhere, so cards can be counted: without the smallest noticed gang, cards would be lacking."""
    decided = plan(drawn, SETTINGS)
    lacking = max(0, decided.target_cards - decided.available_cards)
    assert decided.needed_cards == lacking
    if decided.notices:
        assert decided.noticed_cards - min(one.cards for one in decided.notices) < lacking
    elif lacking:
        may_go = [
            one
            for one in drawn.gangs
            if one.notice is None
            and not one.is_protected
            and (decided.exceeds_upper or NOW_S - one.started_s >= SETTINGS.min_run_s)
        ]
        assert not may_go


@given(states())
def test_withdrawn_notices_leave_enough_cards(drawn: TideState) -> None:
    decided = plan(drawn, SETTINGS)
    gone = {one.gang for one in decided.withdrawals}
    left = decided.available_cards - sum(one.cards for one in drawn.gangs if one.key in gone and not one.is_protected)
    needless = [one for one in drawn.gangs if one.key in gone and not one.is_protected]
    assert not needless or left >= min(decided.target_cards, decided.available_cards)


@given(states())
def test_frozen_tide_is_silent_in_every_state(drawn: TideState) -> None:
    decided = plan(drawn, replace(SETTINGS, is_frozen=True))
    assert (decided.notices, decided.evictions, decided.withdrawals) == ((), (), ())

"""Opening hours, and the amounts of idle capacity that a pod wants."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.framework.weekly_hours import DAY_MINUTES, DayHours
from multisched.plugins.loans.idle_demand import (
    IDLE_REQUEST,
    IdleRequestError,
    idle_demand,
    read_idle_request,
    remark_on,
)
from multisched.plugins.loans.terms import OpenHours
from multisched.testing.builders import make_pod

MINUTE_S = 60.0
BEGIN = datetime(2026, 3, 27, tzinfo=UTC)
"""Friday before the night in which clocks in Berlin are put forward."""

HOURS = st.tuples(st.integers(0, 6), st.integers(0, DAY_MINUTES - 1), st.integers(1, DAY_MINUTES)).map(
    lambda one: (one[0], DayHours(one[1], one[1] + one[2]))
)


def is_open(hours: OpenHours, at_s: float) -> bool:
    """By the wall clock of each minute alone: does it lie in hours that began today or yesterday?"""
    local = datetime.fromtimestamp(at_s, ZoneInfo(hours.zone))
    minute = local.hour * 60 + local.minute
    today, yesterday = local.weekday(), (local - timedelta(days=1)).weekday()
    return any(
        (day == today and begin <= minute < end) or (day == yesterday and begin <= minute + DAY_MINUTES < end)
        for day, (begin, end) in hours.hours
    )


@given(st.lists(HOURS, min_size=1, max_size=4), st.integers(0, 7 * DAY_MINUTES))
def test_hours_are_open_when_the_wall_clock_says_so(hours: list[tuple[int, DayHours]], minute: int) -> None:
    found = OpenHours(tuple(hours))
    at_s = (BEGIN + timedelta(minutes=minute)).timestamp()
    closes_s = found.closes_s(at_s)
    assert (closes_s is not None) == is_open(found, at_s)
    if closes_s is not None and closes_s < math.inf:
        assert not is_open(found, closes_s)
        steps = range(int(min(closes_s - at_s, 86_400.0) // MINUTE_S))
        assert all(is_open(found, at_s + MINUTE_S * step) for step in steps)
    if closes_s is None:
        opens_s = found.opens_s(at_s)
        assert opens_s is not None
        assert is_open(found, opens_s)
        assert not any(
            is_open(found, at_s + MINUTE_S * step) for step in range(0, int((opens_s - at_s) // MINUTE_S), 7)
        )


def test_hours_follow_the_wall_clock_when_clocks_are_put_forward() -> None:
    hours = OpenHours(((5, DayHours(22 * 60, 30 * 60)),), "Europe/Berlin")
    opens = datetime(2026, 3, 28, 22, tzinfo=ZoneInfo("Europe/Berlin"))
    closes_s = hours.closes_s(opens.timestamp())
    assert closes_s is not None
    assert datetime.fromtimestamp(closes_s, ZoneInfo("Europe/Berlin")).hour == 6
    assert closes_s - opens.timestamp() == 7 * 3600


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("2", "'2' is not cpu=QUANTITY"),
        ("cpu=1,cpu=2", "'cpu=2' is not cpu=QUANTITY or memory=QUANTITY, each at most once"),
        ("gpu=1", "'gpu=1' is not"),
        ("cpu=-1", "cpu is '-1'; write more than 0"),
        ("cpu=x", "x"),
        ("cpu=1," + "x" * 300, "longer than 200 characters"),
    ],
)
def test_wrong_idle_request_is_named_and_has_no_effect(text: str, told: str) -> None:
    with pytest.raises(IdleRequestError, match=re.escape(told)):
        read_idle_request(text)
    pod = make_pod("p", annotations={IDLE_REQUEST: text})
    assert idle_demand(pod) == {}
    assert "has no effect" in remark_on(pod)


def test_idle_demand_of_pods() -> None:
    assert idle_demand(make_pod("p", annotations={IDLE_REQUEST: "cpu=500m, memory=1Gi"})) == {
        "cpu": 500,
        "memory": 2**30,
    }
    plain = make_pod("p", cpu_milli=1000, annotations={IDLE_REQUEST: "cpu=1"})
    assert idle_demand(plain) == {}
    assert "only BestEffort pods" in remark_on(plain)
    assert idle_demand(make_pod("p", extra={"kubernetes.io/batch-cpu": 1500})) == {"cpu": 1500}
    assert remark_on(make_pod("p")) == ""

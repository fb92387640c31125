"""When the breaker of a serverless unit opens, probes and closes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from domains.job.providers.breaker import (
    FAILURES_TO_OPEN,
    PROBE_FIRST_S,
    PROBE_S,
    SURVIVED_TO_FORGET,
    Attempt,
    Breaker,
    BreakerState,
)


def taken(breaker: Breaker, now_s: float = 0.0) -> Attempt:
    attempt = breaker.take(now_s)
    assert attempt is not None
    return attempt


def opened(now_s: float = 0.0) -> Breaker:
    breaker = Breaker()
    for _ in range(FAILURES_TO_OPEN):
        breaker.on_failure(taken(breaker), now_s)
    return breaker


@given(st.lists(st.sampled_from(["failure", "success", "neutral", "back"]), max_size=40))
def test_opens_exactly_at_the_third_failure_in_a_row(outcomes: list[str]) -> None:
    breaker, in_a_row = Breaker(), 0
    for outcome in outcomes:
        attempt = taken(breaker)
        if outcome == "failure":
            breaker.on_failure(attempt, 0.0)
            in_a_row += 1
        elif outcome == "success":
            breaker.on_success(attempt)
            in_a_row = 0
        elif outcome == "neutral":
            breaker.on_neutral(attempt, 0.0)
        else:
            breaker.give_back(attempt, 0.0)
        if in_a_row == 3:
            assert breaker.state is BreakerState.OPEN
            return
        assert breaker.state is BreakerState.CLOSED


@given(recovered_s=st.floats(0, 600), answer_s=st.floats(0.01, 4.0))
def test_closes_within_thirty_seconds_after_recovery(recovered_s: float, answer_s: float) -> None:
    breaker, now_s, sent_s = opened(), 0.0, []
    while breaker.state is not BreakerState.CLOSED:
        now_s = max(now_s, now_s + breaker.ready_in_s(now_s))
        attempt = taken(breaker, now_s)
        assert breaker.state is BreakerState.HALF_OPEN
        assert breaker.take(now_s) is None
        sent_s.append(now_s)
        has_recovered, now_s = now_s >= recovered_s, now_s + answer_s
        if has_recovered:
            breaker.on_success(attempt)
        else:
            breaker.on_failure(attempt, now_s)

    assert now_s <= max(recovered_s, PROBE_FIRST_S) + 30.0
    gaps_s = [later - one for one, later in zip([0.0, *sent_s], sent_s, strict=False)]
    assert gaps_s[0] == PROBE_FIRST_S
    assert all(abs(gap_s - PROBE_S) < 1e-6 for gap_s in gaps_s[1:])


def test_late_failures_from_before_the_opening_do_not_reopen_after_the_recovery() -> None:
    breaker = Breaker()
    late = [taken(breaker) for _ in range(6)]
    for attempt in late[:3]:
        breaker.on_failure(attempt, 0.0)
    breaker.on_failure(late[3], 1.0)
    assert breaker.ready_in_s(1.0) == PROBE_FIRST_S - 1.0
    breaker.on_success(taken(breaker, 10.0))
    for attempt in late[4:]:
        breaker.on_failure(attempt, 11.0)

    assert breaker.state is BreakerState.CLOSED
    for _ in range(2):
        breaker.on_failure(taken(breaker, 12.0), 12.0)
    assert breaker.state is BreakerState.CLOSED


def test_late_success_from_before_the_opening_does_not_close() -> None:
    breaker = Breaker()
    late = taken(breaker)
    for _ in range(3):
        breaker.on_failure(taken(breaker), 0.0)
    breaker.on_success(late)

    assert breaker.state is BreakerState.OPEN


def test_probe_that_is_given_back_or_neutral_leaves_the_next_pod_to_probe() -> None:
    breaker = opened()
    breaker.give_back(taken(breaker, 5.0), 5.0)
    breaker.on_neutral(taken(breaker, 5.0), 6.0)

    breaker.on_success(taken(breaker, 6.0))
    assert breaker.state is BreakerState.CLOSED


def test_probe_without_an_outcome_is_replaced() -> None:
    breaker = opened()
    lost = taken(breaker, 5.0)
    probe = taken(breaker, 5.0 + PROBE_S)
    breaker.on_failure(lost, 26.0)
    assert breaker.state is BreakerState.HALF_OPEN

    breaker.on_success(probe)
    assert breaker.state.value == "closed"


def test_late_successes_of_earlier_creates_do_not_hide_an_outage() -> None:
    breaker = Breaker()
    before, after = [taken(breaker) for _ in range(5)], [taken(breaker) for _ in range(5)]
    for early, failed in zip(before, after, strict=True):
        breaker.on_success(early)
        breaker.on_survived(early)
        breaker.on_failure(failed, 0.0)
    assert (breaker.state, breaker.openings) == (BreakerState.OPEN, 1)


def test_single_failures_among_creates_that_survive_do_not_open() -> None:
    breaker = Breaker()
    for _ in range(20):
        breaker.on_failure(taken(breaker), 0.0)
        for _ in range(SURVIVED_TO_FORGET):
            breaker.on_survived(taken(breaker))
    assert breaker.state is BreakerState.CLOSED


def test_few_creates_that_survive_do_not_hide_failures_that_are_reported_late() -> None:
    breaker = Breaker()
    for _ in range(FAILURES_TO_OPEN):
        attempt = taken(breaker)
        breaker.on_survived(attempt)
        breaker.on_survived(taken(breaker))
        breaker.on_failure(attempt, 5.0)
    assert breaker.state is BreakerState.OPEN

"""Whose turn it is: QueueSort's order, and that a namespace's retries take their share and no more."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from multisched.queueing.active_pods import COST_UNITS_MAX, LEAD_UNITS, MARKS_MAX, UNIT_S, ActivePods

LEAD = int(LEAD_UNITS)


class Pods:
    """Active pods by name: `a-3` is the third pod of namespace a. Smaller keys go first."""

    def __init__(self) -> None:
        self.active = ActivePods()
        self.orders = 0

    def add(self, namespace: str, key: float, *, is_retry: bool) -> str:
        self.orders += 1
        uid = f"{namespace}-{self.orders}"
        push = self.active.push_retry if is_retry else self.active.push_first
        push(uid, namespace, (key,), self.orders)
        return uid

    def add_many(self, count: int, namespace: str, key: float, *, is_retry: bool) -> None:
        for _ in range(count):
            self.add(namespace, key, is_retry=is_retry)

    def take(self) -> str:
        uid = self.active.head()
        assert uid is not None
        self.active.charge(uid)
        self.active.discard(uid, uid.split("-")[0])
        return uid

    def namespaces_taken(self, count: int) -> list[str]:
        return [self.take().split("-")[0] for _ in range(count)]

    def attempts_until(self, uid: str, *, comes_back: str = "", key: float = 0.0) -> int:
        """Attempts up to and with that of `uid`; retries of `comes_back` return at once with `key`."""
        for attempts in range(1, 100_000):
            taken = self.take()
            if taken == uid:
                return attempts
            if taken.split("-")[0] == comes_back:
                self.add(comes_back, key, is_retry=True)
        raise AssertionError(f"{uid} starves")


def test_first_attempts_follow_queue_sort_across_namespaces() -> None:
    pods = Pods()
    keys = [5.0, 3.0, 4.0, 1.0, 2.0]
    uids = [pods.add(namespace, key, is_retry=False) for namespace, key in zip("ababc", keys, strict=True)]

    assert [pods.take() for _ in keys] == [uid for _, uid in sorted(zip(keys, uids, strict=True))]


def test_single_namespace_follows_queue_sort_including_retries() -> None:
    pods = Pods()
    pods.add_many(200, "a", 0, is_retry=True)
    fresh = pods.add("a", 1, is_retry=False)

    assert pods.attempts_until(fresh) == 201
    assert pods.active.passed_over == 0


def test_retries_wait_for_first_attempts_that_sort_before_them() -> None:
    pods = Pods()
    pods.add("a", 9, is_retry=True)
    pods.add_many(50, "b", 1, is_retry=False)

    assert pods.namespaces_taken(51) == ["b"] * 50 + ["a"]


@pytest.mark.parametrize("before", [0, 1, 10, 100])
def test_first_attempt_waits_at_most_twice_the_earlier_ones(before: int) -> None:
    pods = Pods()
    pods.add_many(5_000, "a", 0, is_retry=True)
    pods.add_many(before, "b", 1, is_retry=False)
    fresh = pods.add("b", 2, is_retry=False)

    assert pods.attempts_until(fresh, comes_back="a") <= 2 * (before + 1) + LEAD


@pytest.mark.parametrize("hopeless", [1, 9, 99])
def test_first_attempt_wait_does_not_grow_with_infeasible_namespaces(hopeless: int) -> None:
    pods = Pods()
    for number in range(hopeless):
        pods.add_many(100, f"n{number}", 0, is_retry=True)
    fresh = pods.add("b", 1, is_retry=False)

    assert pods.attempts_until(fresh) <= 2 + LEAD


def test_two_namespaces_share_attempts_equally() -> None:
    pods = Pods()
    pods.add_many(5_000, "a", 0, is_retry=True)
    pods.add_many(500, "b", 1, is_retry=True)

    taken = pods.namespaces_taken(1_000)
    assert taken[: LEAD // 2] == ["a"] * (LEAD // 2)  # QueueSort, as far as the lead goes
    assert abs(taken.count("a") - taken.count("b")) <= LEAD + 2


@pytest.mark.parametrize("others", [1, 5, 50])
@pytest.mark.parametrize("before", [0, 3])
def test_retry_waits_only_for_its_share(others: int, before: int) -> None:
    pods = Pods()
    for number in range(others):
        pods.add_many(300, f"n{number}", 0, is_retry=True)
    pods.add_many(before, "b", 1, is_retry=True)
    mine = pods.add("b", 2, is_retry=True)

    waiting = others + 1
    assert pods.attempts_until(mine) <= waiting * (before + 2) + 2 * LEAD_UNITS


def test_retries_within_their_share_follow_queue_sort() -> None:
    pods = Pods()
    uids = [pods.add(namespace, key, is_retry=True) for key, namespace in enumerate("abba")]

    assert [pods.take() for _ in uids] == uids


def test_expensive_attempts_use_more_of_the_share() -> None:
    pods = Pods()
    pods.add_many(1_000, "costly", 0, is_retry=True)
    pods.add_many(1_000, "cheap", 1, is_retry=True)
    taken = []
    for _ in range(500):
        taken += pods.namespaces_taken(1)
        if taken[-1] == "costly":
            pods.active.charge_cost("costly", 10 * UNIT_S, is_retry=True)

    assert taken.count("costly") == pytest.approx(500 / 11, abs=LEAD)


def test_one_stall_costs_a_limited_number_of_attempts() -> None:
    pods = Pods()
    pods.add_many(1_000, "a", 0, is_retry=True)
    pods.add_many(1_000, "b", 1, is_retry=True)
    assert pods.namespaces_taken(1) == ["a"]
    pods.active.charge_cost("a", 3_600.0, is_retry=True)

    assert "a" in pods.namespaces_taken(int(COST_UNITS_MAX) + 2)


def test_expensive_retry_is_compensated_by_first_attempts() -> None:
    pods = Pods()
    pods.add_many(100, "a", 0, is_retry=True)
    pods.add_many(100, "b", 1, is_retry=False)
    assert pods.namespaces_taken(1) == ["a"]
    pods.active.charge_cost("a", 40 * UNIT_S, is_retry=True)

    assert pods.namespaces_taken(24) == ["b"] * 24


def test_idle_time_gives_no_credit() -> None:
    pods = Pods()
    pods.add_many(10_000, "a", 0, is_retry=True)
    pods.namespaces_taken(5_000)
    pods.add_many(1_000, "b", -1, is_retry=True)

    assert pods.namespaces_taken(200).count("b") <= 100 + LEAD


def test_attempts_ahead_of_a_namespace_are_counted() -> None:
    pods = Pods()
    pods.add_many(100, "a", 0, is_retry=True)
    pods.add_many(100, "b", 1, is_retry=False)
    pods.namespaces_taken(100)

    assert 30 <= pods.active.passed_over <= 50


def test_shares_of_deleted_namespaces_are_forgotten() -> None:
    pods = Pods()
    pods.add("stays", 9, is_retry=True)
    for number in range(MARKS_MAX + 10):
        uid = pods.add(f"n{number}", 0, is_retry=True)
        pods.active.charge(uid)
        pods.active.discard(uid, f"n{number}")
    pods.active.validate()

    assert pods.take() == "stays-1"


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.booleans(), st.sampled_from([0.0, 0.5, 7.0, 500.0])),
        max_size=60,
    ),
    st.data(),
)
def test_active_pods_lose_no_pod_in_any_order_of_changes(
    plan: list[tuple[str, int, bool, float]], data: st.DataObject
) -> None:
    pods = Pods()
    here: dict[str, str] = {}
    for namespace, key, is_retry, cost_units in plan:
        here[pods.add(namespace, key, is_retry=is_retry)] = namespace
        if data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(sorted(here)))
            pods.active.discard(gone, here.pop(gone))
        if data.draw(st.booleans()) and here:
            assert pods.active.head() == pods.active.head()
            del here[pods.take()]
        pods.active.charge_cost(namespace, cost_units * UNIT_S, is_retry=is_retry)
        pods.active.validate()
        assert len(pods.active) == len(here)
    while here:
        del here[pods.take()]
        pods.active.validate()
    assert pods.active.head() is None


def test_stalled_retries_are_compensated_by_a_limited_number_of_first_attempts() -> None:
    pods = Pods()
    pods.add_many(100, "a", 0, is_retry=True)
    pods.add_many(1_000, "b", 1, is_retry=False)
    for _ in range(5):
        pods.active.charge_cost("a", 3_600.0, is_retry=True)
    taken = pods.namespaces_taken(int(COST_UNITS_MAX) + 2)
    assert taken[: int(COST_UNITS_MAX)] == ["b"] * int(COST_UNITS_MAX)
    assert "a" in taken

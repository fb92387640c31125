"""Pods at Permit: every wait ends once, by allowance of all who wait, by one rejection, by time or by deletion."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.cycle.waiting_pods import WAIT_MAX_S, WaitingPodTable
from multisched.framework.status import SUCCESS, Status
from multisched.testing.builders import make_pod


class Held:
    """A table with pods on hold, and what was decided of each."""

    def __init__(self) -> None:
        self.table = WaitingPodTable()
        self.decided: dict[str, list[Status]] = {}

    def hold(self, name: str, now_s: float = 0.0, **waits: float) -> str:
        pod = make_pod(name)
        self.decided[pod.uid] = []
        self.table.hold(pod, waits, now_s, self.decided[pod.uid].append)
        return pod.uid


def test_binding_starts_when_no_plugin_waits() -> None:
    held = Held()
    uid = held.hold("p", A=5.0, B=5.0)
    assert held.table.allow(uid, "A")
    assert held.decided[uid] == []
    assert not held.table.allow(uid, "A")
    assert not held.table.allow(uid, "nobody")
    assert held.table.allow(uid, "B")
    assert held.decided[uid] == [SUCCESS]
    assert len(held.table) == 0


def test_one_rejection_ends_the_wait_with_its_plugin() -> None:
    held = Held()
    uid = held.hold("p", A=5.0, B=5.0)
    assert held.table.reject(uid, "B", "no")
    assert held.decided[uid] == [Status.unschedulable("no").by("B")]
    assert not held.table.reject(uid, "A", "no")
    assert not held.table.allow(uid, "A")


def test_earliest_deadline_ends_the_wait_with_its_plugin() -> None:
    held = Held()
    uid, other = held.hold("p", now_s=10.0, A=9.0, B=3.0), held.hold("q", now_s=10.0, A=9.0)
    assert held.table.next_deadline_s() == 13.0
    assert held.table.expire(12.9) == 0
    assert held.table.expire(13.0) == 1
    (status,) = held.decided[uid]
    assert status.plugin == "B"
    assert status.message == "rejected due to timeout after waiting 3s at plugin B"
    assert held.table.next_deadline_s() == 19.0
    assert [pod.uid for pod in held.table.waiting()] == [other]


def test_permit_wait_is_limited() -> None:
    held = Held()
    held.hold("p", A=10 * WAIT_MAX_S)
    assert held.table.next_deadline_s() == WAIT_MAX_S


def test_ended_wait_is_final_and_an_unknown_one_is_ignored() -> None:
    held = Held()
    uid = held.hold("p", A=5.0)
    assert held.table.end(uid, Status.error("deleted"))
    assert not held.table.end(uid, Status.error("deleted"))
    assert len(held.decided[uid]) == 1
    assert not held.decided[uid][0].is_success
    assert held.table.next_deadline_s() is None


def test_allow_of_one_pod_may_allow_others() -> None:
    table, order = WaitingPodTable(), []
    for name in ("a", "b", "c"):

        def decided(status: Status, name: str = name) -> None:
            order.append((name, status.is_success))
            for pod in list(table.waiting()):
                table.reject(pod.uid, "Gang", "one of us failed")

        table.hold(make_pod(name), {"Gang": 5.0}, 0.0, decided)
    table.reject("uid-b", "Gang", "no")
    assert sorted(order) == [("a", False), ("b", False), ("c", False)]
    assert len(table) == 0


@pytest.mark.parametrize("late", ["a", "b"])
def test_timeout_rejects_all_and_is_reported_once_per_pod(late: str) -> None:
    table, order = WaitingPodTable(), []
    for name in ("a", "b"):

        def decided(status: Status, name: str = name) -> None:
            order.append(name)
            for pod in list(table.waiting()):
                table.reject(pod.uid, "Gang", "one of us timed out")

        table.hold(make_pod(name), {"Gang": 1.0 if name == late else 2.0}, 0.0, decided)
    table.expire(5.0)
    assert sorted(order) == ["a", "b"]


calls = st.lists(
    st.tuples(
        st.sampled_from(("allow", "reject", "end", "expire")),
        st.sampled_from(("uid-p", "uid-q")),
        st.sampled_from("AB"),
        st.floats(0, 20),
    )
)


@given(calls)
def test_every_waiting_pod_is_decided_once_and_has_a_deadline(
    history: list[tuple[str, str, str, float]],
) -> None:
    held = Held()
    for name in ("p", "q"):
        held.hold(name, A=5.0, B=15.0)
    for what, uid, plugin, now_s in history:
        match what:
            case "allow":
                held.table.allow(uid, plugin)
            case "reject":
                held.table.reject(uid, plugin, "no")
            case "end":
                held.table.end(uid, Status.error("deleted"))
            case _:
                held.table.expire(now_s)
        waiting = {pod.uid for pod in held.table.waiting()}
        assert {uid for uid, told in held.decided.items() if not told} == waiting
        assert (held.table.next_deadline_s() is None) == (not waiting)
    assert all(len(told) <= 1 for told in held.decided.values())

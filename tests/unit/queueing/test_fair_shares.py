"""Whose turn it is, against a plain telling of the rule: no heaps, every number counted anew where it is asked for."""

from __future__ import annotations

import itertools
import random

import pytest

from multisched.queueing.active_pods import COST_UNITS_MAX, LEAD_UNITS, UNIT_S, ActivePods

STEPS = 400
NAMESPACES = "abcd"
COSTS = (0.5, 1.0, 2.5, 40.0, 500.0)
"""Units that an attempt takes."""

Place = tuple[str, tuple[int], int]
"""Namespace, key and order of a pod."""


class PlainShares:
    """Lanes and namespaces as the docstring of `active_pods` has them, while first attempts make no debts."""

    def __init__(self) -> None:
        self.retries: dict[str, Place] = {}
        self.firsts: dict[str, Place] = {}
        self.marks: dict[str, float] = {}
        self.moved: dict[str, int] = {}
        """Namespace -> when its mark was last written; the earlier goes first among equals."""
        self.time = 0.0
        self.lead = LEAD_UNITS / 2

    def waiting(self) -> set[str]:
        return {namespace for namespace, _, _ in self.retries.values()}

    def tenants(self) -> set[str]:
        return self.waiting() | {namespace for namespace, _, _ in self.firsts.values()}

    def add(self, uid: str, place: Place, *, is_retry: bool) -> None:
        namespace = place[0]
        if not is_retry:
            self.firsts[uid] = place
            return
        if namespace not in self.waiting():
            self.write(namespace, max(self.marks.get(namespace, 0.0), self.time))
        self.retries[uid] = place

    def write(self, namespace: str, mark: float) -> None:
        self.marks[namespace] = mark
        self.moved[namespace] = max(self.moved.values(), default=0) + 1

    def discard(self, uid: str) -> None:
        (self.retries if uid in self.retries else self.firsts).pop(uid)

    def head(self) -> str | None:
        first = min(self.firsts, key=lambda uid: self.firsts[uid][1:], default=None)
        if not self.retries:
            return first
        turn = self.turn()
        retry = min(
            (uid for uid in self.retries if self.retries[uid][0] == turn), key=lambda uid: self.retries[uid][1:]
        )
        if first is None:
            return retry
        may_lead = self.lead > 0 or len(self.tenants()) == 1
        return retry if may_lead and self.retries[retry][1:] < self.firsts[first][1:] else first

    def turn(self) -> str:
        waiting = self.waiting()
        slack = LEAD_UNITS / len(waiting)
        last = min(waiting, key=lambda namespace: (self.marks[namespace], self.moved[namespace]))
        if len(waiting) == 1 or self.marks[last] <= self.time - slack:
            return last
        due = [uid for uid, place in self.retries.items() if self.marks[place[0]] < self.time + slack]
        if not due:
            return last
        return self.retries[min(due, key=lambda uid: self.retries[uid][1:])][0]

    def charge(self, uid: str) -> None:
        if uid in self.retries:
            self.pay(self.retries[uid][0], 1.0)
        elif self.retries and len(self.tenants()) > 1:
            self.lead = min(self.lead + 1 / 2, LEAD_UNITS / 2)

    def charge_cost(self, namespace: str, units: float) -> None:
        if units > 1:
            self.pay(namespace, min(units, COST_UNITS_MAX) - 1)

    def pay(self, namespace: str, units: float) -> None:
        waiting = self.waiting()
        if self.firsts and len(self.tenants()) > 1:
            self.lead = max(self.lead - units / 2, -COST_UNITS_MAX / 2)
        if waiting == {namespace}:
            return
        if namespace in waiting:
            self.write(namespace, self.marks[namespace] + units)
        else:
            self.marks[namespace] = max(self.marks.get(namespace, self.time), self.time) + units
        self.time += units / len(waiting | {namespace})


@pytest.mark.parametrize("seed", range(20))
def test_shares_equal_the_reference_count(seed: int) -> None:
    rng, active, plain = random.Random(seed), ActivePods(), PlainShares()
    here: dict[str, str] = {}
    orders = itertools.count()
    for _ in range(STEPS):
        for order in itertools.islice(orders, rng.choice((0, 1, 1, 1, 5))):
            uid, namespace = f"pod-{order}", rng.choice(NAMESPACES[: 1 + seed % 4])
            key, is_retry = (rng.randrange(3),), rng.random() < (0.2, 0.5, 0.7, 0.9, 0.35)[seed // 4]
            push = active.push_retry if is_retry else active.push_first
            push(uid, namespace, key, order)
            plain.add(uid, (namespace, key, order), is_retry=is_retry)
            here[uid] = namespace
        if here and rng.random() < 0.1:
            gone = rng.choice(sorted(here))
            active.discard(gone, here.pop(gone))
            plain.discard(gone)
        head = active.head()
        assert (head is None) == (not here)
        assert head == plain.head()
        if head is not None and rng.random() < 0.9:
            is_retry, namespace, units = head in plain.retries, here.pop(head), rng.choice(COSTS)
            active.charge(head)
            plain.charge(head)
            active.discard(head, namespace)
            plain.discard(head)
            if is_retry:
                active.charge_cost(namespace, units * UNIT_S, is_retry=True)
                plain.charge_cost(namespace, units)
        assert (len(active), active.retrying_namespaces) == (len(here), len(plain.waiting()))
    active.validate()

"""Transactions: several pods are assumed at once, or none of them is and nothing tells that somebody tried."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.framework.runner import PluginFailure
from multisched.model.objects import CPU, PODS, Pod
from multisched.state.cluster_cache import CacheCorruptedError, ClusterCache
from multisched.state.ledgers import LedgerRegistry
from multisched.state.transaction import Transaction
from multisched.testing.builders import make_node
from tests.unit.state.state_kit import Tickets, assume_in_turn, choose_nothing, make_pod, make_spec

CPU_OF_ROWS = (1000, 1500, 600)


class FailsAt(Tickets):
    """A ledger that raises when it takes a certain pod, after it has taken it."""

    def __init__(self, uid: str) -> None:
        super().__init__(per_row=2)
        self._uid = uid

    def take(self, pod: Pod, row: int) -> Any:
        found = super().take(pod, row)
        if pod.uid == self._uid:
            raise ConnectionError("down")
        return found


def a_cache(ledger: Tickets) -> ClusterCache:
    book = LedgerRegistry()
    book.register(ledger)
    cache = ClusterCache(book)
    for number, cpu in enumerate(CPU_OF_ROWS):
        cache.set_node(make_node(f"n{number}", cpu_milli=cpu, pods=3))
    return cache


def has_room(cache: ClusterCache, pod: Pod, row: int) -> bool:
    nodes = cache.nodes
    room = nodes.allocatable(CPU)[row] - nodes.requested(CPU)[row]
    return bool(room >= pod.requests.get(CPU, 0) and nodes.pod_count[row] < nodes.allocatable(PODS)[row])


def state_of(cache: ClusterCache, ledger: Tickets) -> object:
    nodes = cache.nodes
    rows = range(len(CPU_OF_ROWS))
    placed = [cache.placed(uid) for uid in sorted(cache.uids())]
    return (
        [(one.pod.uid, one.row, one.state, one.annotations, one.pod.annotations) for one in placed if one is not None],
        [sorted(pod.uid for pod in nodes.pods_on(row)) for row in rows],
        nodes.requested(CPU)[: len(CPU_OF_ROWS)].tolist(),
        {row: dict(users) for row, users in nodes.port_users("TCP", 80).items() if users},
        ledger.held(),
    )


members = st.tuples(st.sampled_from((0, 300, 600, 1000)), st.booleans(), st.sampled_from((0, 80)), st.integers(0, 2))


def pods_of(drawn: Sequence[tuple[int, bool, int, int]]) -> list[tuple[Pod, int]]:
    return [
        (make_pod(f"p{at}", make_spec(cpu, port=port), annotations={"tickets": "1"} if is_held else {}), row)
        for at, (cpu, is_held, port, row) in enumerate(drawn)
    ]


@given(st.lists(members, min_size=1, max_size=6), st.integers(-1, 6))
def test_transaction_assumes_all_pods_or_none(drawn: list[tuple[int, bool, int, int]], failing: int) -> None:
    ledger = FailsAt(f"p{failing}")
    cache = a_cache(ledger)
    cache.assume(make_pod("before", make_spec(200, port=80), annotations={"tickets": "1"}), 1)
    places, before = pods_of(drawn), state_of(cache, ledger)
    first, row = places[0]
    if not has_room(cache, first, row):
        return  # the caller has found room for the first one
    try:
        found = assume_in_turn(cache, places, lambda pod, row: has_room(cache, pod, row))
    except PluginFailure:
        assert state_of(cache, ledger) == before
        cache.validate()
        return
    if isinstance(found, tuple):
        assert state_of(cache, ledger) == before
        assert found[0] in [pod for pod, _ in places]
    else:
        other_ledger = Tickets(per_row=2)
        other = a_cache(other_ledger)
        other.assume(make_pod("before", make_spec(200, port=80), annotations={"tickets": "1"}), 1)
        assert found == [other.assume(pod, row) for pod, row in places]
        assert state_of(cache, ledger) == state_of(other, other_ledger)
    cache.validate()


def test_transaction_names_the_first_pod_refused_and_the_ledger_reason() -> None:
    ledger = Tickets(per_row=1)
    cache = a_cache(ledger)
    places = [(make_pod(f"p{at}", make_spec(100), annotations={"tickets": "1"}), 0) for at in range(3)]
    assert assume_in_turn(cache, places, lambda pod, row: True) == (places[1][0], "node n0: no tickets")
    assert assume_in_turn(cache, places, lambda pod, row: False) == (places[1][0], "")
    assert not cache.uids()


def test_transaction_without_keep_is_undone_in_reverse_order() -> None:
    cache = a_cache(Tickets())
    gone: list[str] = []
    forget = cache.forget
    cache.forget = lambda uid: gone.append(uid) or forget(uid)  # type: ignore[method-assign, func-returns-value]
    with Transaction(cache) as together:
        for number in range(3):
            together.assume(make_pod(f"p{number}", make_spec(100)), 0, choose_nothing)
    assert gone == ["p2", "p1", "p0"]
    assert not cache.uids()
    with Transaction(cache) as together:
        together.assume(make_pod("kept", make_spec(100)), 0, choose_nothing)
        together.keep()
    assert list(cache.uids()) == ["kept"]


def test_undone_transaction_raises_row_versions() -> None:
    """Who waits outside with what it read before looks at the row again: it may have read of the pods that are gone."""
    ledger = Tickets(per_row=1)
    cache = a_cache(ledger)
    places = [(make_pod(f"p{at}", make_spec(100), annotations={"tickets": "1"}), 0) for at in range(2)]
    before, held = cache.nodes.version(0), ledger.version(0)
    assert isinstance(assume_in_turn(cache, places, lambda pod, row: True), tuple)
    assert cache.nodes.version(0) > before
    assert ledger.version(0) > held


def test_pod_that_is_already_placed_does_not_fail_the_others() -> None:
    cache = a_cache(Tickets())
    standing = make_pod("standing", make_spec(100))
    cache.assume(standing, 0)
    with pytest.raises(CacheCorruptedError):
        assume_in_turn(cache, [(make_pod("p", make_spec(100)), 0), (standing, 1)], lambda pod, row: True)
    assert list(cache.uids()) == ["standing"]

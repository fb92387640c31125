"""ClusterCache: pods are assumed, confirmed, forgotten, moved and removed while nodes come and go; nothing is lost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from multisched.framework.ledger import ClusterLedger, Ledger
from multisched.framework.runner import PluginFailure
from multisched.model.objects import CPU, Pod
from multisched.state.cluster_cache import NO_ROW, CacheCorruptedError, ClusterCache, PlacedPod, PodState
from multisched.state.domain_rows import DomainRows
from multisched.state.ledgers import LEDGERS_MAX, LedgerRegistry
from multisched.testing.builders import make_node
from tests.unit.state.state_kit import FlakyTickets, NamespaceRoom, Tickets, make_pod, make_spec

NAMES, UIDS = ["n0", "n1", "n2"], [f"p{i}" for i in range(5)]
LARGE_MILLI = 900
SPECS = [make_spec(500), make_spec(LARGE_MILLI, port=80)]


def make_cache(*ledgers: Ledger | ClusterLedger) -> ClusterCache:
    book = LedgerRegistry()
    for ledger in ledgers:
        book.register(ledger)
    return ClusterCache(book)


class RoomOfLarge(NamespaceRoom):
    """Concerned by some of the pods alone."""

    def is_used_by(self, pod: Pod) -> bool:
        return pod.requests[CPU] == LARGE_MILLI


class CacheMachine(RuleBasedStateMachine):
    """The model: uid -> (pod, node, state), and the nodes that live."""

    def __init__(self) -> None:
        super().__init__()
        self.tickets = Tickets(per_row=100)
        self.room = RoomOfLarge(10**6)
        self.counted: dict[str, Pod] = {}
        """uid -> the pod as it was when the room counted it last."""
        self.cache = make_cache(self.tickets, self.room)
        self.rows = DomainRows("test", lambda node: node.labels.get("zone") != "other")
        self.cache.add_domain(self.rows)
        self.model: dict[str, tuple[Pod, str, PodState]] = {}
        self.uprooted: set[str] = set()
        self.nodes: dict[str, str] = {}
        self.usable: set[str] = set()

    @rule(name=st.sampled_from(NAMES), uid=st.sampled_from("AB"), zone=st.sampled_from(("ours", "other")))
    def set_node(self, name: str, uid: str, zone: str) -> None:
        before = self.cache.set_node(make_node(name, uid=uid, labels={"zone": zone}))
        assert (before.uid if before else None) == self.nodes.get(name)
        if before is not None and before.uid != uid:
            self._uproot(name)
        self.nodes[name] = uid
        (self.usable.add if zone == "ours" else self.usable.discard)(name)

    @rule(name=st.sampled_from(NAMES))
    def remove_node(self, name: str) -> None:
        assert (self.cache.remove_node(name) is not None) == (name in self.nodes)
        if self.nodes.pop(name, None) is not None:
            self._uproot(name)
        self.usable.discard(name)

    def _uproot(self, name: str) -> None:
        self.uprooted |= {u for u, (_, at, state) in self.model.items() if at == name and state is PodState.ASSUMED}

    @rule(uid=st.sampled_from(UIDS), name=st.sampled_from(NAMES), spec=st.sampled_from(SPECS), is_held=st.booleans())
    def assume(self, uid: str, name: str, spec: Any, is_held: bool) -> None:
        row = self.cache.nodes.row_of(name)
        if row is None:
            return
        pod = make_pod(uid, spec, annotations={"tickets": "1"} if is_held else {})
        if uid in self.model:
            with pytest.raises(CacheCorruptedError):
                self.cache.assume(pod, row)
            return
        assumption = self.cache.assume(pod, row)
        assert assumption.node == name
        assert ("ticket" in assumption.annotations) == is_held
        self.model[uid] = (pod, name, PodState.ASSUMED)
        self.counted[uid] = pod

    @rule(uid=st.sampled_from(UIDS), spec=st.sampled_from(SPECS))
    def revise(self, uid: str, spec: Any) -> None:
        """The watch speaks of a pod that we have assumed, and that is pending to the API."""
        if uid not in self.model or self.model[uid][2] is not PodState.ASSUMED:
            return
        before, node, state = self.model[uid]
        pod = make_pod(uid, spec, annotations=dict(before.annotations))
        is_held = "tickets" in pod.annotations or self.room.is_used_by(before) or self.room.is_used_by(pod)
        assert self.cache.revise(pod) is not is_held, "what a ledger holds stays until it is decided anew"
        self.model[uid] = (pod, node, state)

    @rule(uid=st.sampled_from(UIDS))
    def forget(self, uid: str) -> None:
        is_assumed = uid in self.model and self.model[uid][2] is PodState.ASSUMED
        assert self.cache.forget(uid) is is_assumed
        if is_assumed:
            self._drop(uid)

    @rule(uid=st.sampled_from(UIDS), name=st.sampled_from(NAMES), spec=st.sampled_from(SPECS), is_held=st.booleans())
    def place(self, uid: str, name: str, spec: Any, is_held: bool) -> None:
        """The watch speaks: of a pod of ours, of another scheduler's, or of one that was resized."""
        known = self.model.get(uid)
        pod = make_pod(uid, spec, node=name, annotations={"tickets": "1", "ticket": "3"} if is_held else {})
        if known is not None and known[2] is PodState.CONFIRMED and known[1] != name:
            with pytest.raises(CacheCorruptedError):
                self.cache.place(pod)
            return
        before = self.cache.place(pod)
        assert (before is None) == (known is None)
        if before is not None and known is not None:
            assert (before.node, before.state) == known[1:]
        if known is not None and known[1] != name:
            self.uprooted.discard(uid)
        self.model[uid] = (pod, name, PodState.CONFIRMED)
        self.counted[uid] = pod

    @rule(uid=st.sampled_from(UIDS))
    def remove(self, uid: str) -> None:
        removed = self.cache.remove(uid)
        assert (removed is None) == (uid not in self.model)
        self._drop(uid)

    def _drop(self, uid: str) -> None:
        self.model.pop(uid, None)
        self.counted.pop(uid, None)
        self.uprooted.discard(uid)

    @invariant()
    def the_cache_is_what_the_model_says(self) -> None:
        self.cache.validate()
        found = {entry.pod.uid: (entry.pod, entry.node, entry.state) for entry in self.cache}
        assert found == self.model
        for uid, (_, name, state) in self.model.items():
            entry = self.cache.placed(uid)
            assert entry is not None
            assert entry.row == (self.cache.nodes.row_of(name) if name in self.nodes else NO_ROW)
            assert self.cache.is_assumed(uid) is (state is PodState.ASSUMED)
        states = [state for _, _, state in self.model.values()]
        assert self.cache.assumed_count() == states.count(PodState.ASSUMED)
        assert self.cache.stray_count() == sum(name not in self.nodes for _, name, _ in self.model.values())

    @invariant()
    def assumptions_know_that_their_node_went(self) -> None:
        assumed = {entry.pod.uid: entry.node_was_deleted for entry in self.cache if entry.state is PodState.ASSUMED}
        assert {uid for uid, node_was_deleted in assumed.items() if node_was_deleted} == self.uprooted & assumed.keys()

    @invariant()
    def rows_carry_the_sums(self) -> None:
        for name in self.nodes:
            row = self.cache.nodes.row_of(name)
            assert row is not None
            sums = sum(pod.requests[CPU] for pod, at, _ in self.model.values() if at == name)
            assert self.cache.nodes.requested(CPU)[row] == sums

    @invariant()
    def the_ledger_holds_for_the_pods_on_rows_alone(self) -> None:
        held = {
            uid: self.cache.nodes.row_of(name)
            for uid, (pod, name, _) in self.model.items()
            if name in self.nodes and "tickets" in pod.annotations
        }
        assert {uid: row for uid, (row, _) in self.tickets.at.items()} == held
        assert self.tickets.nodes == {self.cache.nodes.row_of(name) for name in self.nodes}

    @invariant()
    def the_ledger_about_the_cluster_holds_for_every_pod_wherever_its_node_is(self) -> None:
        large = {uid: (pod.namespace, LARGE_MILLI) for uid, pod in self.counted.items() if self.room.is_used_by(pod)}
        assert self.room.held() == large
        assert self.room.used["default"] == LARGE_MILLI * len(large)

    @invariant()
    def the_domain_has_its_rows(self) -> None:
        rows = sorted(row for name in self.usable if (row := self.cache.nodes.row_of(name)) is not None)
        assert self.rows.rows.tolist() == rows
        assert [self.rows.position[row] for row in rows] == list(range(len(rows)))
        assert all(self.rows.has(row) for row in rows)


CacheMachine.TestCase.settings = settings(stateful_step_count=10)
TestCacheMachine = CacheMachine.TestCase


# -- races, one by one -------------------------------------------------------------------------------------------------


def assumed(cache: ClusterCache, uid: str, node: str) -> PlacedPod:
    row = cache.nodes.row_of(node)
    assert row is not None
    cache.assume(make_pod(uid), row)
    entry = cache.placed(uid)
    assert entry is not None
    return entry


def requested(cache: ClusterCache, node: str) -> int:
    row = cache.nodes.row_of(node)
    assert row is not None
    return int(cache.nodes.requested(CPU)[row])


def test_watch_confirms_a_pod_before_the_bind_is_answered() -> None:
    cache = make_cache()
    cache.set_node(make_node("n"))
    assumed(cache, "p", "n")
    cache.place(make_pod("p", node="n"))
    assert cache.forget("p") is False
    assert requested(cache, "n") == 1000


def test_bind_of_another_scheduler_replaces_the_assumption() -> None:
    cache = make_cache()
    cache.set_node(make_node("ours"))
    cache.set_node(make_node("theirs"))
    assumed(cache, "p", "ours")
    before = cache.place(make_pod("p", node="theirs"))
    assert before is not None
    assert (before.node, before.state) == ("ours", PodState.ASSUMED)
    assert (requested(cache, "ours"), requested(cache, "theirs")) == (0, 1000)
    assert cache.forget("p") is False


def test_pod_is_added_before_its_node() -> None:
    cache = make_cache()
    cache.place(make_pod("p", node="late"))
    assert cache.stray_count() == 1
    cache.set_node(make_node("late"))
    assert requested(cache, "late") == 1000
    assert cache.stray_count() == 0


def test_recreated_node_gets_back_the_pods_of_the_deleted_one() -> None:
    cache = make_cache()
    cache.set_node(make_node("n"))
    cache.place(make_pod("p", node="n"))
    cache.remove_node("n")
    assert len(cache) == 1
    cache.set_node(make_node("n", uid="another"))
    assert requested(cache, "n") == 1000
    cache.remove("p")
    assert (requested(cache, "n"), len(cache)) == (0, 0)


def test_assumption_is_marked_when_its_node_is_recreated() -> None:
    cache = make_cache()
    cache.set_node(make_node("n"))
    entry = assumed(cache, "p", "n")
    cache.set_node(make_node("n", uid="another", cpu_milli=10))
    assert entry.node_was_deleted
    assert entry.row == cache.nodes.row_of("n")
    assert cache.forget("p") is True
    assert requested(cache, "n") == 0


def test_resized_pod_is_counted_with_its_new_size() -> None:
    cache = make_cache()
    cache.set_node(make_node("n"))
    spec = make_spec(1000)
    cache.place(make_pod("p", spec, node="n"))
    cache.place(make_pod("p", spec, node="n", held={CPU: 2500}, held_scoring=(2500, 7)))
    assert requested(cache, "n") == 2500
    cache.place(make_pod("p", spec, node="n"))
    assert requested(cache, "n") == 1000


def test_domain_added_late_sees_existing_nodes() -> None:
    cache = make_cache()
    cache.set_node(make_node("n"))
    rows = DomainRows("late", lambda node: True)
    cache.add_domain(rows)
    assert rows.rows.tolist() == [0]


def test_unreadable_node_is_in_no_domain() -> None:
    cache = make_cache()
    rows = DomainRows("test", lambda node: True)
    cache.add_domain(rows)
    cache.set_node(make_node("n", malformed="odd"))
    assert not rows.has(0)
    generation = rows.generation
    cache.set_node(make_node("n"))
    assert rows.has(0)
    assert rows.generation > generation


def test_has_stayed_is_false_for_rows_that_left_or_changed_domain() -> None:
    cache = make_cache()
    rows = DomainRows("test", lambda node: True)
    cache.add_domain(rows)
    for name in ("stays", "leaves", "changes"):
        cache.set_node(make_node(name))
    seen, generation = rows.rows, rows.generation
    cache.remove_node("leaves")
    cache.set_node(make_node("changes", uid="another"))
    cache.set_node(make_node("stays", version=2))
    assert rows.stayed_since(seen, generation).tolist() == [True, False, False]
    for number in range(100):
        cache.set_node(make_node(f"more{number}"))
    assert rows.stayed_since(rows.rows, rows.generation).all()


@pytest.mark.parametrize("before", [{}, {"tickets": "1"}])
@pytest.mark.parametrize("after", [{}, {"tickets": "1"}])
def test_revised_pod_stays_assumed_if_no_ledger_holds_anything_for_it(
    before: dict[str, str], after: dict[str, str]
) -> None:
    cache = make_cache(Tickets())
    cache.set_node(make_node("n0"))
    cache.assume(make_pod("p", annotations=before), 0)
    assert cache.revise(make_pod("p", annotations=after)) is not bool(before or after)


def test_ledger_count_is_limited_and_names_are_shared() -> None:
    book = LedgerRegistry()
    first = Tickets()
    assert book.register(first) is first
    assert book.register(Tickets()) is first
    for number in range(LEDGERS_MAX - 1):
        ledger = Tickets()
        ledger.name = f"l{number}"
        book.register(ledger)
    ledger = Tickets()
    ledger.name = "one too many"
    with pytest.raises(ValueError, match="one too many"):
        book.register(ledger)


def test_pod_that_needs_nothing_any_more_releases_its_holds() -> None:
    tickets = Tickets()
    cache = make_cache(tickets)
    cache.set_node(make_node("n0"))
    cache.assume(make_pod("p", annotations={"tickets": "1"}), 0)
    assert list(tickets.at) == ["p"]
    cache.place(make_pod("p", node="n0"))
    assert tickets.at == {}


@pytest.mark.parametrize("point", ["restore", "release", "set_node", "version", "is_used_by"])
def test_ledger_that_failed_on_an_update_is_skipped_until_repaired(point: str) -> None:
    flaky = FlakyTickets()
    cache = make_cache(flaky)
    cache.set_node(make_node("n0"))
    wants = {"tickets": "1"}
    cache.place(make_pod("before", node="n0", annotations=wants))
    flaky.raises = point
    cache.place(make_pod("meanwhile", node="n0", annotations=wants))
    cache.remove("before")
    cache.set_node(make_node("n0", version=2))
    cache.ledgers.versions(make_pod("new", annotations=wants), 0)
    flaky.raises = ""
    cache.validate()
    assert [entry.pod.uid for entry in cache] == ["meanwhile"]
    told = "version" if point == "is_used_by" else point  # what was asked of it last
    with pytest.raises(
        PluginFailure, match=rf"its state is inconsistent after an error \({told}: ConnectionError: down\)"
    ):
        cache.ledgers.fits(make_pod("new", annotations=wants), 0)
    assert cache.ledgers.fits(make_pod("without"), 0) == ""
    cache.ledgers.trust("tickets")
    cache.ledgers.fits(make_pod("new", annotations=wants), 0)

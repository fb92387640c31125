"""Ledgers about the cluster: a pod holds of them wherever it stands, and what they refuse no row makes good."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.framework.ledger import ClusterLedger, Ledger, SummingLedger, rebuild
from multisched.framework.runner import PluginFailure
from multisched.model.objects import CPU, Pod
from multisched.state.cluster_cache import ClusterCache
from multisched.state.commit import Candidate, Conflicts, commit
from multisched.state.domain_rows import DomainRows
from multisched.state.ledgers import LedgerRegistry, RowlessLedger
from multisched.state.transaction import NotTaken, assume
from multisched.testing.builders import make_node
from tests.unit.state.state_kit import (
    FlakyTickets,
    NamespaceRoom,
    Tickets,
    assume_in_turn,
    choose_nothing,
    make_pod,
    make_spec,
)

MAX_MILLI = 1000
NAMESPACES = ("red", "blue")

is_a_cluster_ledger: ClusterLedger = NamespaceRoom(1)
is_a_ledger: Ledger = RowlessLedger(is_a_cluster_ledger)
is_a_summing_ledger: SummingLedger = RowlessLedger(is_a_cluster_ledger)
"""mypy compares the classes with the Protocols here."""


def pod_of(uid: str, namespace: str = "red", cpu: int = 500, **fields: Any) -> Pod:
    return Pod(namespace, uid, uid, 1, make_spec(cpu), **fields)


@dataclass
class Scene:
    """Two domains with two nodes each, whose CPU is no limit; the room of a namespace is."""

    room: NamespaceRoom = field(default_factory=lambda: NamespaceRoom(MAX_MILLI))
    tickets: Tickets = field(default_factory=lambda: Tickets(per_row=2))
    conflicts: Conflicts = field(default_factory=Conflicts)
    rechecks: int = 0

    def __post_init__(self) -> None:
        registry = LedgerRegistry()
        assert registry.register(self.room) is self.room
        assert registry.register(self.tickets) is self.tickets
        self.cache = ClusterCache(registry)
        self.domains = [DomainRows(label, lambda node, at=label: node.labels["at"] == at) for label in "xy"]  # type: ignore[misc]
        for domain in self.domains:
            self.cache.add_domain(domain)
        for number in range(4):
            self.cache.set_node(make_node(f"n{number}", labels={"at": "xy"[number % 2]}))

    def still_fits(self, pod: Pod, row: int) -> bool:
        self.rechecks += 1
        return True

    def read(self, pod: Pod, domain: int) -> list[Candidate]:
        nodes, ledgers = self.cache.nodes, self.cache.ledgers
        rows = self.domains[domain].rows.tolist()
        return [Candidate(row, nodes.version(row), ledgers.versions(pod, row)) for row in rows]

    def commit(self, pod: Pod, domain: int, candidates: list[Candidate]) -> object:
        return commit(
            self.cache, self.domains[domain], pod, candidates, self.still_fits, choose_nothing, self.conflicts
        )

    def must_agree(self) -> None:
        """What is used is what the pods take, wherever they stand; no ledger is wrong by the audit's rebuild."""
        taken: Counter[str] = Counter()
        for entry in self.cache:
            taken[entry.pod.namespace] += entry.pod.requests[CPU]
        assert self.room.sums() == dict(taken)
        for ledger in self.cache.ledgers:
            fresh = rebuild(ledger, self.cache.nodes.live_rows(), self.cache.holders(ledger))
            assert dict(fresh.held()) == dict(ledger.held())
        self.cache.validate()


# -- commit ------------------------------------------------------------------------------------------------------------


def test_cluster_ledger_refusal_at_commit_is_a_conflict_without_a_row_check() -> None:
    scene = Scene()
    late = pod_of("late")
    candidates = scene.read(late, 0)
    for number in range(2):
        assert not isinstance(scene.commit(pod_of(f"p{number}"), 1, scene.read(pod_of(f"p{number}"), 1)), NotTaken)
    scene.conflicts, scene.rechecks = Conflicts(), 0
    assert scene.commit(late, 0, candidates) == NotTaken(
        "namespace red has 0m of its CPU left", "NamespaceQuota", "NamespaceFull"
    )
    assert scene.conflicts == Conflicts(true=1)
    assert scene.rechecks == 0
    assert scene.cache.placed("late") is None
    other = pod_of("other", "blue")
    assert not isinstance(scene.commit(other, 0, scene.read(other, 0)), NotTaken), "another namespace has its own room"


def test_changed_quota_is_checked_again_at_commit() -> None:
    scene = Scene()
    pod = pod_of("p", cpu=300)
    candidates = scene.read(pod, 0)
    scene.commit(pod_of("q", cpu=300), 1, scene.read(pod_of("q", cpu=300), 1))
    assert not isinstance(scene.commit(pod, 0, candidates), NotTaken)
    assert scene.conflicts == Conflicts(false=1)
    assert scene.rechecks == 1


def test_forgotten_or_deleted_pod_releases_its_quota() -> None:
    scene = Scene()
    for number in range(2):
        assume(scene.cache, pod_of(f"p{number}"), 0, choose_nothing)
    late = pod_of("late")
    assert assume(scene.cache, late, 1, choose_nothing) == NotTaken(
        "namespace red has 0m of its CPU left", "NamespaceQuota", "NamespaceFull"
    )
    assert scene.cache.forget("p0")
    assert not isinstance(assume(scene.cache, late, 1, choose_nothing), NotTaken)
    scene.cache.place(pod_of("p1", node="n0"))
    scene.cache.remove("p1")
    assert scene.room.used["red"] == 500
    scene.must_agree()


def test_pod_on_a_deleted_or_unknown_node_keeps_its_quota() -> None:
    scene = Scene()
    scene.cache.place(pod_of("stands", node="n0", annotations={"tickets": "1"}))
    scene.cache.place(pod_of("early", node="n9"))
    assert scene.room.used["red"] == 1000
    scene.cache.remove_node("n0")
    assert scene.room.used["red"] == 1000
    assert scene.tickets.at == {}, "what it held of the row went with the row"
    assert scene.cache.ledgers.fits_cluster(pod_of("late")).reason
    scene.cache.place(pod_of("early", node="n9", cpu=200))
    assert scene.room.used["red"] == 700, "a stray that was resized"
    scene.cache.set_node(make_node("n0", uid="another", labels={"at": "x"}))
    scene.cache.set_node(make_node("n9", labels={"at": "x"}))
    assert (scene.room.used["red"], list(scene.tickets.at)) == (700, ["stands"])
    scene.cache.remove_node("n9")
    scene.cache.remove("early")
    scene.cache.remove("stands")
    assert scene.room.sums() == {}
    scene.must_agree()


sizes = st.sampled_from((200, 300, 500, 1000))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.sampled_from(NAMESPACES), sizes, st.integers(0, 1)),
        st.tuples(st.just("commit"), st.just(""), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("together"), st.sampled_from(NAMESPACES), sizes, st.integers(2, 4)),
        st.tuples(st.just("forget"), st.just(""), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("confirm"), st.just(""), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("remove"), st.just(""), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("node"), st.just(""), st.integers(0, 3), st.just(0)),
    ),
    max_size=25,
)


@given(steps)
def test_no_interleaving_of_domains_exceeds_a_namespace_quota(history: list[tuple[str, str, int, int]]) -> None:
    scene = Scene()
    cache = scene.cache
    decided: list[tuple[Pod, int, list[Candidate]]] = []
    for number, (step, namespace, amount, more) in enumerate(history):
        uids = cache.uids()
        if step == "read":
            pod = pod_of(f"p{number}", namespace, amount)
            decided.append((pod, more, scene.read(pod, more)))
        elif step == "commit" and decided:
            pod, domain, candidates = decided.pop(amount % len(decided))
            fits = amount_left(scene, pod) >= pod.requests[CPU] and any(
                map(scene.domains[domain].has, rows_of(candidates))
            )
            assert isinstance(scene.commit(pod, domain, candidates), NotTaken) is not fits
        elif step == "together":
            members = [pod_of(f"p{number}-{at}", namespace, amount) for at in range(more)]
            before, rows = scene.room.held(), [row for row, _ in cache.nodes.live_rows()]
            if rows:
                places = [(pod, rows[at % len(rows)]) for at, pod in enumerate(members)]
                fits = amount_left(scene, members[0]) >= amount * more
                found = assume_in_turn(cache, places, scene.still_fits)
                assert isinstance(found, tuple) is not fits
                assert fits or scene.room.held() == before
        elif step == "forget" and uids:
            cache.forget(uids[amount % len(uids)])
        elif step == "confirm" and uids:
            entry = cache.placed(uids[amount % len(uids)])
            assert entry is not None
            cache.place(Pod(entry.pod.namespace, entry.pod.name, entry.pod.uid, 2, entry.pod.spec, node=entry.node))
        elif step == "remove" and uids:
            cache.remove(uids[amount % len(uids)])
        elif step == "node":
            name = f"n{amount}"
            if cache.remove_node(name) is None:
                cache.set_node(make_node(name, labels={"at": "xy"[amount % 2]}))
        assert all(scene.room.used[name] <= MAX_MILLI for name in NAMESPACES)
        scene.must_agree()


def amount_left(scene: Scene, pod: Pod) -> int:
    return MAX_MILLI - sum(one.pod.requests[CPU] for one in scene.cache if one.pod.namespace == pod.namespace)


def rows_of(candidates: list[Candidate]) -> list[int]:
    return [candidate.row for candidate in candidates]


# -- the registry ------------------------------------------------------------------------------------------------------


def test_domains_share_a_cluster_ledger_by_name() -> None:
    registry = LedgerRegistry()
    room = NamespaceRoom(1)
    assert registry.register(room) is room
    assert registry.register(NamespaceRoom(2)) is room
    (kept,) = registry
    assert isinstance(kept, RowlessLedger)
    assert (kept.name, kept.cluster, kept.empty_copy().cluster is room) == ("namespace-room", room, False)


def test_cluster_ledger_is_checked_separately_from_row_ledgers() -> None:
    scene = Scene()
    pod = pod_of("p", cpu=1200)
    assert scene.cache.ledgers.fits(pod, 0) == ""
    assert scene.cache.ledgers.fits_cluster(pod) == (
        "namespace red has 1000m of its CPU left",
        "NamespaceQuota",
        "NamespaceFull",
    )
    assert scene.cache.ledgers.fits_cluster(pod_of("free", cpu=0)).reason == ""
    assert scene.cache.ledgers.has_ledger(pod)
    assert len({scene.cache.ledgers.versions(pod, row) for row in range(4)}) == 1


class FailsAfterwards(FlakyTickets):
    def take(self, pod: Pod, row: int) -> Any:
        raise ConnectionError("down")


def test_refusal_of_another_ledger_releases_the_cluster_ledger() -> None:
    registry = LedgerRegistry()
    room = NamespaceRoom(MAX_MILLI)
    registry.register(room)
    registry.register(FailsAfterwards())
    cache = ClusterCache(registry)
    cache.set_node(make_node("n"))
    with pytest.raises(PluginFailure):
        assume(cache, pod_of("p", annotations={"tickets": "1"}), 0, choose_nothing)
    assert room.sums() == {}
    assert len(cache) == 0


class FlakyRoom(NamespaceRoom):
    """Raises whenever it is told to."""

    raises = ""

    def restore(self, pod: Pod) -> None:
        if self.raises == "restore":
            raise ConnectionError("down")
        super().restore(pod)

    def release(self, uid: str) -> None:
        if self.raises == "release":
            raise ConnectionError("down")
        super().release(uid)


@pytest.mark.parametrize("point", ["restore", "release"])
def test_cluster_ledger_that_failed_takes_no_pod_until_repaired(point: str) -> None:
    registry, room = LedgerRegistry(), FlakyRoom(MAX_MILLI)
    registry.register(room)
    cache = ClusterCache(registry)
    cache.set_node(make_node("n"))
    cache.place(pod_of("before", node="n"))
    room.raises = point
    cache.place(pod_of("stray", node="unknown"))
    cache.remove("before")
    room.raises = ""
    words = rf"its state is inconsistent after an error \({point}: ConnectionError: down\)"
    with pytest.raises(PluginFailure, match=words):
        assume(cache, pod_of("late"), 0, choose_nothing)
    assert cache.ledgers.fits_cluster(make_pod("free", make_spec(0))).reason == ""
    cache.ledgers.trust("namespace-room")
    assert cache.ledgers.fits_cluster(pod_of("late")).reason == ""

"""Commit: checks and writes in one step. However decisions interleave, no row takes more than it has (I1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from multisched.model.objects import CPU, PODS, Pod
from multisched.state.cluster_cache import ClusterCache
from multisched.state.commit import Candidate, Conflicts, commit
from multisched.state.domain_rows import DomainRows
from multisched.state.ledgers import LedgerRegistry
from multisched.state.transaction import NotTaken, assume
from multisched.testing.builders import make_node
from tests.unit.state.state_kit import Tickets, choose_nothing, make_pod, make_spec


@dataclass
class Scene:
    """Rows and what commit needs beside them."""

    cpu: Sequence[int]
    tickets: Tickets = field(default_factory=lambda: Tickets(per_row=2))
    conflicts: Conflicts = field(default_factory=Conflicts)
    rechecks: int = 0

    def __post_init__(self) -> None:
        book = LedgerRegistry()
        book.register(self.tickets)
        self.cache = ClusterCache(book)
        self.rows = DomainRows("test", lambda node: True)
        self.cache.add_domain(self.rows)
        for number, cpu in enumerate(self.cpu):
            self.cache.set_node(make_node(f"n{number}", cpu_milli=cpu, pods=3))

    def still_fits(self, pod: Pod, row: int) -> bool:
        self.rechecks += 1
        nodes = self.cache.nodes
        room = nodes.allocatable(CPU)[row] - nodes.requested(CPU)[row]
        return bool(room >= pod.requests.get(CPU, 0) and nodes.pod_count[row] < nodes.allocatable(PODS)[row])

    def read(self, pod: Pod, *rows: int) -> list[Candidate]:
        nodes, ledgers = self.cache.nodes, self.cache.ledgers
        return [Candidate(row, nodes.version(row), ledgers.versions(pod, row)) for row in rows]

    def commit(self, pod: Pod, candidates: Sequence[Candidate]) -> str | None:
        found = commit(self.cache, self.rows, pod, candidates, self.still_fits, choose_nothing, self.conflicts)
        return None if isinstance(found, NotTaken) else found.node

    def counted(self) -> tuple[int, int]:
        return self.conflicts.true, self.conflicts.false


def test_unchanged_row_is_committed_without_a_second_check() -> None:
    scene = Scene([1000])
    pod = make_pod("p")
    assert scene.commit(pod, scene.read(pod, 0)) == "n0"
    assert scene.counted() == (0, 0)
    assert scene.rechecks == 0


def test_changed_row_that_still_fits_is_a_false_conflict() -> None:
    scene = Scene([2000])
    pod = make_pod("p")
    candidates = scene.read(pod, 0)
    scene.cache.place(make_pod("other", node="n0"))
    assert scene.commit(pod, candidates) == "n0"
    assert scene.counted() == (0, 1)


def test_full_row_is_a_true_conflict_and_the_next_candidate_is_taken() -> None:
    scene = Scene([1000, 1000])
    pod = make_pod("late")
    candidates = scene.read(pod, 0, 1)
    scene.cache.place(make_pod("early", node="n0"))
    assert scene.commit(pod, candidates) == "n1"
    assert scene.counted() == (1, 0)


def test_commit_without_a_fitting_candidate_holds_nothing() -> None:
    scene = Scene([1000])
    pod = make_pod("late")
    candidates = scene.read(pod, 0)
    scene.cache.place(make_pod("early", node="n0"))
    assert scene.commit(pod, candidates) is None
    assert scene.cache.placed("late") is None


def test_row_that_left_the_domain_is_skipped() -> None:
    scene = Scene([1000, 1000])
    pod = make_pod("p")
    candidates = scene.read(pod, 0, 1)
    scene.cache.remove_node("n0")
    assert scene.commit(pod, candidates) == "n1"
    assert scene.counted() == (1, 0)


def test_changed_ledger_version_causes_a_second_check() -> None:
    scene = Scene([4000, 4000])
    held = {"tickets": "1"}
    first, second = (make_pod(uid, annotations=held) for uid in ("p", "q"))
    read_by_second = scene.read(second, 0, 1)
    third = make_pod("r", annotations=held)
    read_by_third = scene.read(third, 0, 1)
    assert scene.commit(first, scene.read(first, 0)) == "n0"
    assert scene.commit(second, read_by_second) == "n0"
    assert scene.counted() == (0, 1)
    assert scene.commit(third, read_by_third) == "n1"
    assert scene.counted() == (1, 1)


pods = st.builds(
    lambda cpu, is_held: (make_spec(cpu), {"tickets": "1"} if is_held else {}),
    st.sampled_from((0, 300, 600, 1000)),
    st.booleans(),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.permutations([0, 1, 2])),
        st.tuples(st.just("commit"), st.integers(0, 9)),
        st.tuples(st.just("remove"), st.integers(0, 9)),
        st.tuples(st.just("shrink"), st.integers(0, 2)),
    ),
    max_size=20,
)


@given(st.lists(pods, min_size=1, max_size=10), steps)
def test_no_interleaving_of_commits_overcommits_a_row(
    drawn: list[tuple[object, dict[str, str]]], history: list[tuple[str, object]]
) -> None:
    scene = Scene([1000, 1500, 600])
    waiting = [make_pod(f"p{i}", spec, annotations=held) for i, (spec, held) in enumerate(drawn)]  # type: ignore[arg-type]
    decided: list[tuple[Pod, list[Candidate]]] = []
    for what, which in history:
        if what == "read" and waiting and isinstance(which, list):
            pod = waiting.pop()
            fitting = [row for row in which if scene.still_fits(pod, row) and not scene.cache.ledgers.fits(pod, row)]
            decided.append((pod, scene.read(pod, *fitting)))
        elif what == "commit" and decided and isinstance(which, int):
            pod, candidates = decided.pop(which % len(decided))
            before = sum(scene.counted())
            placed = scene.commit(pod, candidates)
            assert (placed is None) == (scene.cache.placed(pod.uid) is None)
            assert placed is not None or sum(scene.counted()) - before == len(candidates)
        elif what == "remove" and len(scene.cache) and isinstance(which, int):
            uids = scene.cache.uids()
            scene.cache.remove(uids[which % len(uids)])
        elif what == "shrink" and isinstance(which, int) and not scene.cache.nodes.pods_on(which):
            scene.cache.set_node(make_node(f"n{which}", cpu_milli=300, pods=1))
        nodes = scene.cache.nodes
        assert (nodes.requested(CPU) <= nodes.allocatable(CPU)).all()
        assert (nodes.pod_count[:3] <= nodes.allocatable(PODS)[:3]).all()
        tickets = list(scene.tickets.at.values())
        assert len(tickets) == len(set(tickets))
    scene.cache.validate()


def test_commit_reports_the_ledger_reason_of_the_best_candidate() -> None:
    scene = Scene([1000, 4000, 4000])
    for row in (1, 2):
        for number in range(scene.tickets.per_row):
            scene.cache.assume(make_pod(f"holder-{row}-{number}", annotations={"tickets": "1"}), row)
    pod = make_pod("p", annotations={"tickets": "1"})
    candidates = scene.read(pod, 0, 1, 2)
    scene.cache.assume(make_pod("other"), 0)
    found = commit(scene.cache, scene.rows, pod, candidates, scene.still_fits, choose_nothing, scene.conflicts)
    assert found == NotTaken("node n1: no tickets")
    assert assume(scene.cache, pod, 2, choose_nothing) == NotTaken("node n2: no tickets")
    assert (
        commit(scene.cache, scene.rows, pod, candidates[:1], scene.still_fits, choose_nothing, scene.conflicts)
        == NotTaken()
    )

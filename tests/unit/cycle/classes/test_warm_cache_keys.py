"""Classes kept over time against fresh ones, where plugins hang on cache keys, on all nodes, or on rows alone."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from multisched.cycle.classes.cache import ClassCache
from multisched.framework.cycle_state import StateKey
from multisched.framework.dependency import Dependency
from multisched.framework.node_view import Codes, Rows, Scores
from multisched.framework.normalize import ByLargest
from multisched.framework.points import CycleView, PreFilterResult
from multisched.framework.reasons import ReasonTable
from multisched.framework.status import SKIP, SUCCESS, Code, Status
from multisched.framework.traits import Traits
from multisched.model.objects import Pod
from multisched.state import change_log
from multisched.state.change_log import CHANGES_KEPT
from multisched.testing.builders import make_node, make_pod
from tests.unit.cycle.cycle_kit import Domain, FilterBy, ScoreBy

NAMES = tuple(f"n{number}" for number in range(7))
SHUT_FOR_EVER = "n3"
STEPS = 60


class Book:
    """What keyed plugins go by."""

    def __init__(self) -> None:
        self.mark = 0
        self.points = dict.fromkeys(NAMES, 1)
        self.shut: set[str] = set()

    def of(self, cycle: CycleView, rows: Rows) -> Scores:
        return np.array([self.points[cycle.nodes.node(row).name] for row in rows.tolist()], np.int64)


class Keyed:
    """By the book; of pods of no team it has nothing to say."""

    traits = Traits(normalizer=None)

    def __init__(self, name: str, book: Book, depends_on: Dependency) -> None:
        self.name = name
        self.depends_on = depends_on
        self.reasons = ReasonTable(name)
        self._shut = self.reasons.code(Code.UNSCHEDULABLE, f"{name} has shut it")
        self._book = book

    def cache_key(self, cycle: CycleView, pod: Pod) -> int | None:
        return self._book.mark if pod.labels.get("team") else None

    def sign(self, pod: Pod) -> str:
        return pod.labels.get("team", "")


class Shuts(Keyed):
    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        names = [cycle.nodes.node(row).name for row in rows.tolist()]
        return np.array([self._shut if name in self._book.shut else 0 for name in names], np.uint8)


class Plain(Keyed):
    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        found = self._book.of(cycle, rows)
        return found + cycle.nodes.pod_count[rows] if self.depends_on is Dependency.ROW_AND_CACHE_KEY else found


class Largest(Plain):
    """A hundredfold of the book, brought back to 0..100 by the largest."""

    traits = Traits(normalizer=ByLargest())

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        return 100 * super().score(cycle, pod, rows)


_FEASIBLE: StateKey[int] = StateKey("Rivals.feasible")


class Rivals(Plain):
    """Goes by how many rows are feasible, and normalises by itself; skips where that is an even number."""

    traits = Traits(reads_feasible=True)

    def pre_score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Status:
        cycle.state.write(_FEASIBLE, len(rows))
        return SUCCESS if len(rows) % 2 else SKIP

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        return super().score(cycle, pod, rows) * cycle.state.read(_FEASIBLE)

    def normalize_score(self, cycle: CycleView, pod: Pod, raw: Scores) -> Scores:
        return 100 - raw * 100 // max(1, int(raw.max()))


class Counts(ScoreBy):
    """Plain scores that hang on all nodes, or on the pods of the row."""

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        base = cycle.nodes.node_count if self.depends_on.reads_all_nodes else 0
        return base + (cycle.nodes.pod_count[rows] if self.depends_on.reads_pods else rows)


class Narrows:
    """PreFilter leaves these nodes alone."""

    name = "Narrows"
    depends_on = Dependency.NODE

    def __init__(self, names: frozenset[str] | None) -> None:
        self._names = names

    def sign(self, pod: Pod) -> str:
        return ""

    def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
        return PreFilterResult(SUCCESS, self._names)


def make_domain(book: Book, narrow: frozenset[str] | None) -> Domain:
    def wild(pod: Pod, name: str) -> int:
        """Beyond all bounds where no pod can go."""
        return {SHUT_FOR_EVER: 100_000}.get(name, 7)

    return Domain(
        plugins=[
            Narrows(narrow),
            FilterBy("Never", lambda pod, name: "never" if name == SHUT_FOR_EVER else ""),
            Shuts("Shuts", book, Dependency.CACHE_KEY),
            ScoreBy("Wild", wild),
            ScoreBy("WildBelow", lambda pod, name: -5 if name == SHUT_FOR_EVER else 3, depends_on=Dependency.ROW),
            Counts("Nodes", lambda pod, name: 0, depends_on=Dependency.NODES),
            Counts("Pods", lambda pod, name: 0, depends_on=Dependency.ROW),
            Counts("Cluster", lambda pod, name: 0, depends_on=Dependency.CLUSTER),
            Plain("Plain", book, Dependency.CACHE_KEY),
            Plain("PlainRows", book, Dependency.ROW_AND_CACHE_KEY),
            Largest("Largest", book, Dependency.CACHE_KEY),
            Largest("LargestRows", book, Dependency.ROW_AND_CACHE_KEY),
            Rivals("Rivals", book, Dependency.CACHE_KEY),
            Rivals("RivalRows", book, Dependency.ROW_AND_CACHE_KEY),
        ],
        weights={"PlainRows": 3, "Largest": 2, "Rivals": 5},
    )


def told(domain: Domain, classes: ClassCache, pod: Pod, attempt: int) -> Any:
    """Who refused what, and the total of each feasible node."""
    pod_class = classes.find(pod, attempt)
    nodes = domain.cache.nodes
    refused = {
        nodes.node(int(row)).name: [int(column.codes[at]) for column in pod_class.filters]
        for at, row in enumerate(pod_class.rows)
    }
    if not pod_class.feasible.any():
        return refused
    classes.score(pod_class)
    assert (pod_class.total[~pod_class.feasible] < 0).all()
    return refused, {
        nodes.node(int(pod_class.rows[at])).name: int(pod_class.total[at]) for at in np.flatnonzero(pod_class.feasible)
    }


def change(domain: Domain, book: Book, rng: random.Random, step: int, *, is_shared: bool) -> None:
    """`is_shared`: some nodes are another domain's."""
    name = rng.choice(NAMES)
    match rng.randrange(7):
        case 0:
            labels = {"domain": "other"} if is_shared and rng.random() < 0.4 else {}
            domain.cache.set_node(make_node(name, cpu_milli=rng.choice((0, 1000, 4000)), labels=labels))
        case 1:
            domain.cache.remove_node(name)
        case 2 | 3:
            domain.cache.place(make_pod(f"p{step}", cpu_milli=500, node=name))
        case 4:
            domain.cache.remove(f"uid-p{rng.randrange(step + 1)}")
        case 5:
            book.mark += 1
            book.points[name] = rng.randrange(10)
        case 6:
            book.mark += 1
            book.shut ^= {name}


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("narrow", [None, frozenset(NAMES[1::2])])
@pytest.mark.parametrize("remembered", [CHANGES_KEPT, 3])
@pytest.mark.parametrize("seed", range(2))
def test_cached_class_equals_a_fresh_one_after_any_changes(
    seed: int,
    narrow: frozenset[str] | None,
    is_shared: bool,
    remembered: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`remembered`: changes of rows; a class that has not been asked for since more of them is renewed as a whole."""
    monkeypatch.setattr(change_log, "CHANGES_KEPT", remembered)
    rng, book = random.Random(seed), Book()
    domain = make_domain(book, narrow)
    for number, name in enumerate(NAMES):
        labels = {"domain": "other"} if is_shared and number % 3 == 0 else {}
        domain.cache.set_node(make_node(name, labels=labels))
    pods = [make_pod("new", cpu_milli=500, labels={"team": team} if team else {}) for team in ("", "red", "blue")]
    kept = domain.fresh_classes()
    for step in range(STEPS):
        for more in range(rng.choice((0, 1, 1, 2))):
            change(domain, book, rng, 2 * step + more, is_shared=is_shared)
        pod = rng.choice(pods)
        assert told(domain, kept, pod, step + 1) == told(domain, domain.fresh_classes(), pod, step + 1)
    assert domain.heard.failures == []

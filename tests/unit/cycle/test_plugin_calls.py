"""What a plugin is handed on every way through the cycle: first sight, kept classes, changes, promises, preemption.

The plugin itself looks at what it is handed, and raises where that is anything else than its contract says.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final

import numpy as np
import pytest

from multisched.cycle.results import Placed, Unplaced
from multisched.framework.cycle_state import StateKey
from multisched.framework.dependency import Dependency
from multisched.framework.node_view import Codes, Rows, Scores
from multisched.framework.points import CycleView, PermitResult, PreFilterResult
from multisched.framework.reasons import ReasonTable
from multisched.framework.sensitivity import PodSensitivity
from multisched.framework.status import SUCCESS, Code, Status
from multisched.framework.traits import Traits
from multisched.model.objects import Pod
from multisched.testing.builders import make_node, make_pod
from tests.unit.cycle.cycle_kit import Domain

NOTED: Final = StateKey[int]("noted")


class Watcher:
    """Lets all rows pass but those named `shut`, and scores them by their numbers."""

    name = "Watcher"

    def __init__(self, depends_on: Dependency) -> None:
        self.depends_on = depends_on
        self.reasons = ReasonTable(self.name)
        self._shut = self.reasons.code(Code.UNSCHEDULABLE, "shut")
        self.keyed = 0
        self.points: set[str] = set()
        self.decided: list[str] = []
        """Pods, the one at hand last."""
        self._asked: set[int] = set()
        """Rows of the last Score."""

    def _look(self, point: str, cycle: CycleView, pod: Pod, rows: Rows | None = None) -> None:
        assert isinstance(cycle, CycleView)
        is_at_hand = point in ("Reserve", "Unreserve", "Permit") or self.depends_on is Dependency.ATTEMPT
        assert cycle.attempt == len(self.decided) or not is_at_hand, "its number, as the cycle was told"
        assert pod.name in (self.decided[-1:] if is_at_hand else self.decided)
        assert pod.uid == f"uid-{pod.name}"
        if point not in ("PreFilter", "CacheKey", "PodSensitivity"):
            assert cycle.state.read(NOTED) == pod.spec.priority, "what PreFilter noted"
        if rows is not None:
            assert rows.dtype == np.intp
            assert (np.diff(rows) > 0).all()
            assert [cycle.nodes.node(row).uid for row in rows.tolist()]
        self.points.add(point)

    def sign(self, pod: Pod) -> Hashable | None:
        assert pod.name in self.decided
        return pod.spec.priority

    def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
        self._look("PreFilter", cycle, pod)
        cycle.state.write(NOTED, pod.spec.priority)
        return PreFilterResult()

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        self._look("Filter", cycle, pod, rows)
        is_shut = [cycle.nodes.node(row).labels.get("door") == "shut" for row in rows.tolist()]
        return np.where(is_shut, self._shut, 0).astype(np.uint8)

    def add_pod(self, cycle: CycleView, pod: Pod, other: Pod, row: int) -> Status:
        self._look("AddPod", cycle, pod)
        assert other in cycle.nodes.pods_on(row)
        return SUCCESS

    def remove_pod(self, cycle: CycleView, pod: Pod, other: Pod, row: int) -> Status:
        self._look("RemovePod", cycle, pod)
        assert other.uid.startswith("uid-")
        assert other not in cycle.nodes.pods_on(row)
        return SUCCESS

    def pre_score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Status:
        self._look("PreScore", cycle, pod, rows)
        return SUCCESS

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        self._look("Score", cycle, pod, rows)
        self._asked |= set(rows.tolist())
        return rows.astype(np.int64)

    def reserve(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        self._look("Reserve", cycle, pod)
        assert cycle.nodes.row_of(node) is not None
        return SUCCESS

    def unreserve(self, cycle: CycleView, pod: Pod, node: str) -> None:
        self._look("Unreserve", cycle, pod)
        assert cycle.nodes.row_of(node) is not None

    def permit(self, cycle: CycleView, pod: Pod, node: str) -> PermitResult:
        self._look("Permit", cycle, pod)
        assert cycle.nodes.row_of(node) is not None
        return PermitResult(Status.unschedulable("not now") if pod.name == "refused" else SUCCESS)


class Normalizing(Watcher):
    def normalize_score(self, cycle: CycleView, pod: Pod, raw: Scores) -> Scores:
        self._look("NormalizeScore", cycle, pod)
        assert raw.dtype == np.int64
        assert set(raw.tolist()) <= self._asked, "raw scores that it gave"
        return raw + 1


class Keyed(Normalizing):
    def cache_key(self, cycle: CycleView, pod: Pod) -> Hashable | None:
        self._look("CacheKey", cycle, pod)
        return self.keyed


class Sensitive(Keyed):
    def pod_sensitivity(self, cycle: CycleView, pod: Pod) -> PodSensitivity:
        self._look("PodSensitivity", cycle, pod)
        return PodSensitivity("any", lambda other: other.name.startswith(("ahead", "low")))


class ReadsFeasible(Keyed):
    traits = Traits(reads_feasible=True)


KEYED: Final = (Dependency.CACHE_KEY, Dependency.ROW_AND_CACHE_KEY)
KINDS: Final[list[tuple[Callable[[Dependency], Watcher], Dependency]]] = [
    *((Watcher, one) for one in Dependency if one not in KEYED),
    *((Normalizing, one) for one in Dependency if one not in KEYED),
    *((kind, one) for kind in (Keyed, Sensitive, ReadsFeasible) for one in KEYED),
]


def drive(domain: Domain, watcher: Watcher) -> None:
    """Pods come one after the other while nodes, cache keys and promises change."""

    def decide(name: str, expected: type = Placed, **fields: Any) -> None:
        watcher.decided.append(name)
        result = domain.schedule(make_pod(name, **{"cpu_milli": 100, **fields}), attempt=len(watcher.decided))
        assert isinstance(result, expected), (name, result)

    decide("first")
    decide("second")
    domain.cache.set_node(make_node("b", version=2, labels={"new": "label"}))
    decide("after a label")
    watcher.keyed += 1
    decide("after a cache_key")
    domain.cache.set_node(make_node("c", version=2, labels={"door": "shut"}))
    decide("beside a shut row")
    domain.cache.place(make_pod("low", cpu_milli=3000, node="b", phase="Running"))
    decide("beside a full row", cpu_milli=1100)
    watcher.keyed += 1
    decide("beside both, anew", cpu_milli=1100)
    domain.cache.set_node(make_node("c", version=3))
    decide("of another class", priority=5)
    domain.nominator.set(make_pod("ahead", cpu_milli=100, priority=9, nominated_node="d"))
    decide("behind a promise")
    decide("refused", Unplaced)
    for number, node in enumerate("abcd"):
        domain.cache.place(make_pod(f"low-{number}", cpu_milli=900, node=node, phase="Running"))
    decide("that preempts", Unplaced, cpu_milli=3500, priority=7)
    domain.cache.remove_node("a")
    decide("after a row has gone")
    decide("in the end")


@pytest.mark.parametrize(("kind", "depends_on"), KINDS)
def test_plugin_gets_pod_view_and_rows(kind: Callable[[Dependency], Watcher], depends_on: Dependency) -> None:
    watcher = kind(depends_on)
    nodes = [make_node(name) for name in "abcd"]
    domain = Domain(*nodes, plugins=[watcher], in_tree=("NodeResourcesFit", "DefaultPreemption"))
    drive(domain, watcher)
    assert domain.heard.failures == []
    assert watcher.points >= {"PreFilter", "Filter", "PreScore", "Score", "Reserve", "Permit", "Unreserve"}
    assert ("NormalizeScore" in watcher.points) is isinstance(watcher, Normalizing)
    assert ("CacheKey" in watcher.points) is isinstance(watcher, Keyed)
    if depends_on.reads_pods:
        assert {"AddPod", "RemovePod"} <= watcher.points or isinstance(watcher, Sensitive)

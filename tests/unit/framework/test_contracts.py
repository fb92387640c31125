"""What plugins declare is what they get: dependencies, signatures, AddPod and RemovePod, each kept to the letter."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import numpy as np
import pytest

from multisched.cycle.results import Placed, Unplaced
from multisched.framework.cycle_state import CycleState, StateKey
from multisched.framework.dependency import Dependency
from multisched.framework.node_view import Codes, Rows
from multisched.framework.points import CycleView, PreFilterExtensions, PreFilterResult
from multisched.framework.status import SUCCESS, Status
from multisched.model.objects import Image, Pod, PodSpec
from multisched.state.overlay import OverlayCycle
from multisched.testing.builders import make_node, make_pod
from tests.unit.cycle.cycle_kit import Domain, FilterBy

SPEC = PodSpec()
"""Pods of one spec are of one class."""


def passes(pod: Pod, node: str) -> str:
    return ""


@pytest.mark.parametrize(
    ("depends_on", "after_a_pod_on_a", "after_a_change_of_b"),
    [
        (Dependency.NODE, [], ["b"]),
        (Dependency.NODES, [], ["a", "b", "c"]),
        (Dependency.ROW, ["a"], ["b"]),
        (Dependency.CLUSTER, ["a"], ["a", "b", "c"]),
        (Dependency.ATTEMPT, ["a", "b", "c"], ["a", "b", "c"]),
    ],
)
def test_plugin_is_called_again_for_rows_with_changed_dependencies(
    depends_on: Dependency, after_a_pod_on_a: list[str], after_a_change_of_b: list[str]
) -> None:
    plugin = FilterBy("Counts", passes, depends_on=depends_on)
    domain = Domain(*(make_node(name) for name in "abc"), plugins=[plugin])

    def asked() -> list[str]:
        plugin.asked.clear()
        domain.cycle.classes.find(make_pod("p", spec=SPEC), 1)
        return sorted({name for names in plugin.asked for name in names})

    assert asked() == ["a", "b", "c"]
    domain.cache.assume(make_pod("other"), domain.row("a"))
    assert asked() == after_a_pod_on_a
    domain.cache.set_node(make_node("b", version=2, labels={"new": "label"}))
    assert asked() == after_a_change_of_b


def test_image_on_more_nodes_changes_scores_of_unchanged_nodes() -> None:
    image, spec = Image(("app:v1",), 10**9), PodSpec(images=("app:v1",))
    domain = Domain(make_node("a", images=(image,)), make_node("b"), in_tree=("ImageLocality",))

    def scores() -> dict[str, int]:
        pod_class = domain.cycle.classes.find(make_pod("p", spec=spec), 1)
        domain.cycle.classes.score(pod_class)
        cold = domain.fresh_classes()
        fresh = cold.find(make_pod("p", spec=spec), 1)
        cold.score(fresh)
        assert pod_class.total.tolist() == fresh.total.tolist()
        return dict(zip("abc", pod_class.total.tolist(), strict=False))

    before = scores()
    domain.cache.set_node(make_node("b", version=2, images=(image,)))
    assert scores()["a"] > before["a"]


def node_of(domain: Domain, pod: Pod) -> str:
    result = domain.schedule(pod)
    return result.node if isinstance(result, Placed) else ""


def by_label(pod: Pod, node: str) -> str:
    return "" if pod.labels.get("wants") == node else "another node is wanted"


def signed_by_label(pod: Pod) -> Hashable:
    return pod.labels.get("wants", "")


def unsigned(pod: Pod) -> Hashable | None:
    return None


@pytest.mark.parametrize("sign", [signed_by_label, unsigned])
def test_equal_specs_with_different_signatures_get_separate_results(
    sign: Callable[[Pod], Hashable],
) -> None:
    plugin = FilterBy("ByLabel", by_label, sign=sign)
    domain = Domain(make_node("a"), make_node("b"), plugins=[plugin])
    pods = [make_pod(f"p{n}", spec=SPEC, labels={"wants": "ab"[n % 2]}) for n in range(6)]

    assert [node_of(domain, pod) for pod in pods] == ["a", "b", "a", "b", "a", "b"]
    assert domain.cycle.classes.hits == (4 if sign is signed_by_label else 0)
    assert domain.cycle.classes.unsigned.get("ByLabel", 0) == (6 if sign is unsigned else 0)


def test_pods_with_equal_signatures_share_results() -> None:
    plugin = FilterBy("ByLabel", by_label, sign=signed_by_label)
    domain = Domain(make_node("a"), make_node("b"), plugins=[plugin])
    for number in range(5):
        domain.cycle.classes.find(make_pod(f"p{number}", spec=SPEC, labels={"wants": "a", "no": str(number)}), 1)
    assert len(plugin.asked) == 1


# -- AddPod and RemovePod ----------------------------------------------------------------------------------------------

COUNTS: StateKey[dict[int, int]] = StateKey("Counts")


class AtMostOne(FilterBy):
    """At most one pod per row, counted in PreFilter's state; AddPod and RemovePod keep it true."""

    def __init__(self) -> None:
        super().__init__("AtMostOne", passes, depends_on=Dependency.ATTEMPT)
        self._taken = self.reasons.code(Status.unschedulable().code, "node(s) already have one")

    def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
        counts = cycle.nodes.pod_count
        cycle.state.write(COUNTS, {row: int(count) for row, count in enumerate(counts.tolist()) if count})
        return PreFilterResult()

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        counts = cycle.state.read(COUNTS)
        return np.array([self._taken if counts.get(row) else 0 for row in rows.tolist()], np.uint8)

    def add_pod(self, cycle: CycleView, pod: Pod, other: Pod, row: int) -> Status:
        return self._write(cycle, row, 1)

    def remove_pod(self, cycle: CycleView, pod: Pod, other: Pod, row: int) -> Status:
        return self._write(cycle, row, -1)

    @staticmethod
    def _write(cycle: CycleView, row: int, change: int) -> Status:
        before = cycle.state.read(COUNTS)
        counts = dict(before)
        counts[row] = counts.get(row, 0) + change
        cycle.state.write(COUNTS, counts)
        return SUCCESS


def test_overlay_addition_and_removal_leave_no_trace() -> None:
    plugin, domain = AtMostOne(), Domain(make_node("a"), make_node("b"))
    assert isinstance(plugin, PreFilterExtensions)
    pod, other, rows = make_pod("p"), make_pod("other", cpu_milli=100), np.array([domain.row("a")])
    state = CycleState()
    plugin.pre_filter(CycleView(domain.cache.nodes, state), pod)
    overlay = OverlayCycle(domain.cache.nodes, state, pod, [plugin], domain.runner, 1)

    assert overlay.add_pod(other, domain.row("a")).is_success
    assert plugin.filter(overlay.view, pod, rows).all()
    assert state.read(COUNTS) == {}, "copied on write: the attempt's own state stays as it was"
    assert overlay.remove_pod(other, domain.row("a")).is_success
    assert not plugin.filter(overlay.view, pod, rows).any()
    assert int(overlay.view.nodes.requested("cpu")[domain.row("a")]) == 0


def test_room_of_nominated_pods_is_kept_through_add_pod() -> None:
    domain = Domain(make_node("a"), plugins=[AtMostOne()])
    urgent = make_pod("urgent", priority=100, nominated_node="a")
    domain.nominator.set(urgent)

    refused = domain.schedule(make_pod("p", priority=0))
    assert isinstance(refused, Unplaced)
    assert "node(s) already have one" in refused.message
    assert node_of(domain, make_pod("more-urgent", priority=200)) == "a"

"""What PostFilter plugins are told of a refused attempt, what becomes of their words, and moves that are refused."""

from __future__ import annotations

import numpy as np
import pytest

from multisched.cycle.results import Unplaced
from multisched.framework.dependency import Dependency
from multisched.framework.node_view import Codes, Rows, Scores
from multisched.framework.points import CycleView, PermitResult, Plugin, PostFilterResult, PreFilterResult, Refusals
from multisched.framework.reasons import ReasonTable
from multisched.framework.status import SUCCESS, Code, Status
from multisched.model.objects import Pod
from multisched.testing.builders import make_node, make_pod
from tests.unit.cycle.cycle_kit import Domain


class Shut:
    """PreFilter says this of every pod."""

    name = "Shut"
    depends_on = Dependency.CLUSTER

    def __init__(self, found: PreFilterResult | Exception) -> None:
        self._found = found

    def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
        if isinstance(self._found, Exception):
            raise self._found
        return self._found


class Picky:
    """Refuses `a` in a way that removing pods may cure, `b` in a way that nothing cures."""

    name = "Picky"
    depends_on = Dependency.NODE

    def __init__(self) -> None:
        self.reasons = ReasonTable(self.name)
        self._curable = self.reasons.code(Code.UNSCHEDULABLE, "full")
        self._hopeless = self.reasons.code(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, "never")

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        codes = {"a": self._curable, "b": self._hopeless}
        return np.array([codes[cycle.nodes.node(row).name] for row in rows.tolist()], np.uint8)


class Looks:
    """A PostFilter plugin that remembers what it could read, and says something."""

    def __init__(self, name: str = "Looks", said: PostFilterResult | None = None) -> None:
        self.name = name
        self.said = said or PostFilterResult(Status.unschedulable(f"{name} finds nobody"))
        self.told: dict[str, str] = {}
        self.nodes: list[str] = []
        self.candidates: list[str] = []

    def post_filter(self, cycle: CycleView, pod: Pod, refusals: Refusals) -> PostFilterResult:
        self.told = {node: str(refusals.status_of(node).code.name) for node in ("a", "b", "nowhere")}
        self.nodes = sorted(refusals.nodes())
        self.candidates = [cycle.nodes.node(row).name for row in refusals.dry_run().candidates().tolist()]
        return self.said


def domain_of(*plugins: Plugin) -> Domain:
    return Domain(make_node("a"), make_node("b"), plugins=plugins)


def refused(domain: Domain) -> Unplaced:
    result = domain.schedule(make_pod("p"))
    assert isinstance(result, Unplaced), result
    return result


HOPELESS = Code.UNSCHEDULABLE_AND_UNRESOLVABLE.name


def test_post_filter_gets_reasons_per_node_and_curable_candidates() -> None:
    looks = Looks()
    refused(domain_of(Picky(), looks))
    assert looks.told == {"a": Code.UNSCHEDULABLE.name, "b": HOPELESS, "nowhere": HOPELESS}
    assert (looks.nodes, looks.candidates) == (["a", "b"], ["a"])


@pytest.mark.parametrize(
    ("status", "candidates"), [(Status.unschedulable("not now"), ["a", "b"]), (Status.unresolvable("never"), [])]
)
def test_post_filter_gets_the_pre_filter_refusal_for_all_nodes(status: Status, candidates: list[str]) -> None:
    looks = Looks()
    result = refused(domain_of(Shut(PreFilterResult(status)), looks))
    assert looks.told == dict.fromkeys(("a", "b", "nowhere"), status.code.name)
    assert (looks.nodes, looks.candidates) == ([], candidates)
    assert result.rejectors == {"Shut"}


def test_pod_without_existing_nodes_after_pre_filter_displaces_no_pod() -> None:
    looks = Looks()
    refused(domain_of(Shut(PreFilterResult(SUCCESS, frozenset({"elsewhere"}))), looks))
    assert looks.candidates == []


def sentence(*said: PostFilterResult) -> tuple[str, str | None]:
    """Of the pod's message, and where the pod is nominated to."""
    looks = [Looks(f"Looks{number}", one) for number, one in enumerate(said)]
    result = refused(domain_of(Picky(), *looks))
    return result.message, result.nominated_node


def test_post_filters_run_in_order_until_one_succeeds() -> None:
    first = PostFilterResult(Status.unschedulable("first finds nobody"))
    second = PostFilterResult(Status.unschedulable("second finds nobody"))
    found = PostFilterResult(SUCCESS, "a")
    never = PostFilterResult(Status.unresolvable("nobody ever can"))
    broken = PostFilterResult(Status.error("broken"))

    text, node = sentence(first, second)
    assert "first finds nobody, second finds nobody" in text
    assert node is None
    text, node = sentence(PostFilterResult(Status.unschedulable("first finds nobody"), ""), second)
    assert "first finds nobody, second finds nobody" in text
    assert node == "", "the promise is taken back"
    text, node = sentence(first, found, second)
    assert ("finds nobody" in text, node) == (False, "a")
    text, node = sentence(never, found)
    assert ("nobody ever can" in text, node) == (True, None)
    text, node = sentence(broken, found)
    assert ("broken" in text, node) == (True, None)


def test_move_refusal_has_the_message_of_its_plugin() -> None:
    domain = domain_of(Shut(PreFilterResult(SUCCESS, frozenset({"b"}))))
    pod = make_pod("p", cpu_milli=1000)
    assert domain.cycle.refusal_of_move(None, pod, "a") == "PreFilter excludes node a"
    assert domain.cycle.refusal_of_move(None, pod, "b") == ""
    assert domain.cycle.refusal_of_move(None, pod, "c") == "node c does not exist in this domain"
    domain.cache.set_node(make_node("theirs", labels={"domain": "other"}))
    assert domain.cycle.refusal_of_move(None, pod, "theirs") == "node theirs does not exist in this domain"
    large = make_pod("large", cpu_milli=1_000_000)
    assert domain.cycle.refusal_of_move(None, large, "b") == "NodeResourcesFit: Insufficient cpu"

    broken = domain_of(Shut(RuntimeError("boom")))
    assert "boom" in broken.cycle.refusal_of_move(None, pod, "a")


def test_move_is_evaluated_without_the_moving_pod() -> None:
    domain = domain_of()
    old = make_pod("old", cpu_milli=3000)
    domain.cache.place(make_pod("old", cpu_milli=3000, node="a"))
    new = make_pod("new", cpu_milli=3000)
    assert domain.cycle.refusal_of_move(None, new, "a") == "NodeResourcesFit: Insufficient cpu"
    assert domain.cycle.refusal_of_move(old, new, "a") == ""


class Watches:
    """At every point: of which attempt it is told, and whether the cycle shows it nodes and rows."""

    name = "Watches"
    depends_on = Dependency.ATTEMPT

    def __init__(self) -> None:
        self.reasons = ReasonTable(self.name)
        self.seen: dict[str, tuple[int, int, int]] = {}

    def _see(self, point: str, cycle: CycleView) -> None:
        self.seen[point] = (cycle.attempt, cycle.nodes.node_count, -1 if cycle.places is None else len(cycle.places))

    def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
        self._see("PreFilter", cycle)
        return PreFilterResult()

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        self._see("Filter", cycle)
        return np.zeros(len(rows), np.uint8)

    def pre_score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Status:
        self._see("PreScore", cycle)
        return SUCCESS

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        self._see("Score", cycle)
        return np.zeros(len(rows), np.int64)

    def normalize_score(self, cycle: CycleView, pod: Pod, raw: Scores) -> Scores:
        self._see("NormalizeScore", cycle)
        return raw

    def reserve(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        self._see("Reserve", cycle)
        return SUCCESS

    def unreserve(self, cycle: CycleView, pod: Pod, node: str) -> None:
        self._see("Unreserve", cycle)

    def permit(self, cycle: CycleView, pod: Pod, node: str) -> PermitResult:
        self._see("Permit", cycle)
        return PermitResult(Status.unschedulable("not now"))


def test_every_extension_point_gets_the_attempt_and_domain_rows() -> None:
    watches = Watches()
    domain = domain_of(watches)
    domain.cache.set_node(make_node("theirs", labels={"domain": "other"}))
    points = ("PreFilter", "Filter", "PreScore", "Score", "NormalizeScore", "Reserve", "Permit", "Unreserve")
    for attempt in (3, 7, 8):
        watches.seen.clear()
        domain.schedule(make_pod("p"), attempt)
        assert {point: seen[:2] for point, seen in watches.seen.items()} == dict.fromkeys(points, (attempt, 3))
        assert {watches.seen[point][2] for point in points[:5]} == {2}

"""What kept classes are asked again, and on which rows: groups of rows that are alike, and rows of other domains."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import pytest

from multisched.cycle.classes import topology_groups
from multisched.cycle.classes.topology_groups import RowGroupCache
from multisched.cycle.results import Placed, Unplaced
from multisched.framework.dependency import Dependency
from multisched.framework.node_view import Rows, Scores
from multisched.framework.points import CycleView
from multisched.framework.status import Status
from multisched.model.objects import CPU, Node, Pod, PodSpec
from multisched.model.selectors import PREFER_NO_SCHEDULE, Taint
from multisched.testing.builders import make_node, make_pod
from tests.unit.cycle.cycle_kit import Domain, FilterBy


class Zones:
    """Goes by the zone alone, and normalises by itself, with a look at its view."""

    name = "Zones"
    depends_on = Dependency.CACHE_KEY

    def __init__(self) -> None:
        self.marks = {"east": 10, "west": 20}
        self.seen: list[tuple[int, list[int]]] = []
        """(nodes there are, raw scores) at each NormalizeScore."""

    def sign(self, pod: Pod) -> str:
        return ""

    def topology_keys(self, cycle: CycleView, pod: Pod) -> tuple[str, ...] | None:
        return ("zone",)

    def cache_key(self, cycle: CycleView, pod: Pod) -> Hashable | None:
        return tuple(self.marks.items())

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        zones = (cycle.nodes.node(row).labels["zone"] for row in rows.tolist())
        return np.array([self.marks[zone] for zone in zones], np.int64)

    def normalize_score(self, cycle: CycleView, pod: Pod, raw: Scores) -> Scores:
        self.seen.append((cycle.nodes.node_count, raw.tolist()))
        return raw * 100 // int(raw.max())


def test_one_row_per_zone_is_normalised_with_its_own_view() -> None:
    zones = Zones()
    nodes = [make_node(f"{zone}-{number}", labels={"zone": zone}) for number in range(4) for zone in zones.marks]
    shut = {"west-0", "west-1", "west-2", "west-3"}
    never = FilterBy(
        "Never",
        lambda pod, name: "no" if pod.name == "east-only" and name in shut else "",
        sign=lambda pod: pod.name == "east-only",
    )
    domain = Domain(*nodes, plugins=[zones, never])

    def goes_to(name: str, attempt: int) -> str:
        result = domain.schedule(make_pod(name), attempt)
        assert isinstance(result, Placed)
        return result.node.partition("-")[0]

    assert goes_to("p1", 1) == "west"
    assert zones.seen == [(8, [10, 20])]
    zones.marks["east"] = 40
    assert goes_to("p2", 2) == "east"
    assert zones.seen[1:] == [(8, [40, 20])]
    assert goes_to("p3", 3) == "east", "nothing has changed"
    assert len(zones.seen) == 2
    assert goes_to("east-only", 4) == "east"
    assert zones.seen[2:] == [(8, [40])], "the other zone has no feasible row"


def test_changes_on_rows_of_other_domains_are_ignored() -> None:
    """The domain's own rows are not the table's first, and their positions are not told anew for foreign nodes."""
    theirs = {"domain": "other"}
    domain = Domain(make_node("theirs", labels=theirs), make_node("a", cpu_milli=100_000))
    spec = PodSpec(requests={CPU: 10})
    known = len(domain.rows.position)
    for number in range(known + 2):
        domain.cache.set_node(make_node(f"theirs-{number}", labels=theirs))
        result = domain.schedule(make_pod(f"p{number}", spec=spec))
        assert isinstance(result, Placed)
        assert result.node == "a"
    assert len(domain.rows.position) == known < len(domain.rows.members())


class Tastes:
    """Prefers large nodes or small ones: which, the pod says when its scores are normalised."""

    name = "Tastes"
    depends_on = Dependency.NODE

    def sign(self, pod: Pod) -> Hashable:
        return pod.labels["likes"]

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        return cycle.nodes.allocatable(CPU)[rows] // 1000

    def normalize_score(self, cycle: CycleView, pod: Pod, raw: Scores) -> Scores:
        return raw if pod.labels["likes"] == "large" else 100 - raw


@pytest.mark.parametrize(("shut", "large", "small"), [("", "n3", "n1"), ("n3", "n2", "n1"), ("n1", "n3", "n2")])
def test_normalised_scores_do_not_depend_on_the_number_of_allowed_nodes(shut: str, large: str, small: str) -> None:
    never = FilterBy("Never", lambda pod, name: "no" if name == shut else "")
    nodes = [make_node(f"n{cpu}", cpu_milli=cpu * 1000) for cpu in (1, 2, 3)]
    domain = Domain(*nodes, plugins=[Tastes(), never], in_tree=())
    for _ in range(2):
        for likes, node in (("large", large), ("small", small)):
            result = domain.schedule(make_pod(likes, labels={"likes": likes}))
            assert isinstance(result, Placed)
            assert result.node == node
            assert domain.cycle.give_up(result, Status.error("only looking"))


def test_changed_node_is_scored_again_although_the_largest_score_stays() -> None:
    def node(name: str, count: int) -> Node:
        return make_node(name, taints=tuple(Taint(f"t{n}", effect=PREFER_NO_SCHEDULE) for n in range(count)))

    domain = Domain(node("a", 1), node("b", 2), node("c", 0), in_tree=("TaintToleration",))
    for count, best in ((0, "c"), (2, "a"), (0, "c")):
        domain.cache.set_node(node("c", count))
        result = domain.schedule(make_pod("p"))
        assert isinstance(result, Placed)
        assert result.node == best
        assert domain.cycle.give_up(result, Status.error("only looking"))


def test_row_groupings_are_cached_within_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also as many as are kept at most: none of them makes another one be made anew."""
    monkeypatch.setattr(topology_groups, "GROUPINGS_MAX", 2)
    labels = [{"zone": f"z{number % 2}", "rack": f"r{number % 3}"} for number in range(60)]
    domain = Domain(*(make_node(f"n{number}", labels=one) for number, one in enumerate(labels)))
    book = RowGroupCache(domain.cache.nodes, domain.rows)
    zones, racks = book.by_labels(("zone",)), book.by_labels(("rack",))
    assert zones is not None
    assert racks is not None
    assert (zones.count, racks.count) == (2, 3)
    for _ in range(2):
        assert book.by_labels(("zone",)) is zones
        assert book.by_labels(("rack",)) is racks
    both = book.by_labels(("rack", "zone"))
    assert both is not None
    assert both.count == 6
    assert len(book._known) == 1
    assert book.by_labels(("zone",)) is not zones
    domain.cache.set_node(make_node("n0", version=2, labels={"zone": "z9", "rack": "r0"}))
    renewed = book.by_labels(("zone",))
    assert renewed is not None
    assert renewed.count == 3


def test_single_node_domain_takes_pods_whenever_it_has_room() -> None:
    """Both masks of one row are masks of their own: what fills the node says nothing of the node itself."""
    domain = Domain(make_node("only", cpu_milli=1_000), in_tree=("NodeUnschedulable", "NodeResourcesFit"))
    waits = make_pod("waits", cpu_milli=1_000)
    for number in range(2):
        stands = make_pod(f"stands-{number}", cpu_milli=1_000)
        assert isinstance(domain.schedule(stands), Placed)
        assert isinstance(domain.schedule(waits), Unplaced)
        domain.cache.forget(stands.uid)
    assert isinstance(domain.schedule(waits, 2), Placed)

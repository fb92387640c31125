"""The property that everything cached per class stands on: a warm cache answers as a cold one, whatever happened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from multisched.cycle.classes.cache import ClassCache
from multisched.cycle.diagnosis import diagnose, fit_error
from multisched.cycle.results import Placed
from multisched.cycle.scheduling_cycle import SchedulingCycle
from multisched.framework.cycle_state import StateKey
from multisched.framework.dependency import Dependency
from multisched.framework.node_view import Rows, Scores
from multisched.framework.normalize import ByLargest
from multisched.framework.points import CycleView, PreFilterResult
from multisched.framework.runner import PluginFailure
from multisched.framework.status import SKIP, SUCCESS, Status
from multisched.framework.traits import Traits
from multisched.model.objects import CPU, MEMORY, HostPort, Image, NodeAffinity, Pod, PodSpec
from multisched.model.selectors import NodeSelector, NodeTerm, Operator, PreferredTerm, Requirement, Taint, Toleration
from multisched.testing.builders import make_node, make_pod
from tests.unit.cycle.cycle_kit import IN_TREE_USED, Domain, FilterBy, ScoreBy

NAMES = ("n0", "n1", "n2", "n3")
MEBI = 1024 * 1024


@dataclass
class Outside:
    """What plugins of one attempt read beside nodes and pods."""

    closed: set[str] = field(default_factory=set)
    """Names of nodes, and of teams."""
    only: frozenset[str] | None = None
    favourite: str = ""


class TeamGate:
    """PreFilter alone, and says nothing of what it depends on: a quota, a gang."""

    name = "TeamGate"

    def __init__(self, outside: Outside) -> None:
        self._outside = outside

    def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
        team = pod.labels.get("team", "")
        if team in self._outside.closed:
            return PreFilterResult(Status.unschedulable(f"team {team} has no room"))
        return PreFilterResult(SKIP if not team else SUCCESS, self._outside.only)


class Spreads(ScoreBy):
    """Row dependent, with a normalisation of its own: the emptiest row gets 100."""

    def __init__(self) -> None:
        super().__init__("Spreads", lambda pod, name: 0, depends_on=Dependency.ROW)

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        return cycle.nodes.pod_count[rows]

    def normalize_score(self, cycle: CycleView, pod: Pod, raw: Scores) -> Scores:
        return 100 - raw * 100 // max(1, int(raw.max()))


class Busy(ScoreBy):
    """Row dependent, normalised by the largest score."""

    traits = Traits(normalizer=ByLargest(reverse=True))

    def __init__(self) -> None:
        super().__init__("Busy", lambda pod, name: 0, depends_on=Dependency.ROW)

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        return cycle.nodes.pod_count[rows]


class Crowded(ScoreBy):
    """Reads the number of nodes and the pods on the row."""

    def __init__(self) -> None:
        super().__init__("Crowded", lambda pod, name: 0, depends_on=Dependency.CLUSTER)

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        return np.minimum(100, 7 * cycle.nodes.node_count + cycle.nodes.pod_count[rows])


_FEASIBLE: StateKey[int] = StateKey("Rivals.feasible")


class Rivals(ScoreBy):
    """Scores by what its PreScore saw of this attempt."""

    def __init__(self) -> None:
        super().__init__("Rivals", lambda pod, name: 0, depends_on=Dependency.ATTEMPT)

    def pre_score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Status:
        cycle.state.write(_FEASIBLE, len(rows))
        return SKIP if len(rows) == 2 else SUCCESS

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        return np.full(len(rows), 10 * cycle.state.read(_FEASIBLE), np.int64) + rows % 2


def make_domain(outside: Outside, *, with_all: bool) -> Domain:
    """`with_all`: also with plugins that make the cycle add all scores up anew each time."""

    def is_open(pod: Pod, node: str) -> str:
        return "closed outside" if node in outside.closed else ""

    always_anew = (
        ScoreBy("Favourite", lambda pod, node: 9 * (node == outside.favourite), depends_on=Dependency.ATTEMPT),
        Spreads(),
        Crowded(),
        Rivals(),
    )
    return Domain(
        plugins=[
            TeamGate(outside),
            FilterBy("OpenOutside", is_open, depends_on=Dependency.ATTEMPT),
            Busy(),
            *(always_anew if with_all else ()),
        ],
        weights={"Spreads": 3},
        in_tree=tuple(IN_TREE_USED),
    )


# -- strategies --------------------------------------------------------------------------------------------------------

SOFT = (Taint("l", "", "PreferNoSchedule"), Taint("m", "", "PreferNoSchedule"))
nodes = st.builds(
    make_node,
    st.sampled_from(NAMES),
    uid=st.sampled_from(("", "again")),
    cpu_milli=st.sampled_from((0, 1000, 2000)),
    pods=st.integers(0, 3),
    labels=st.dictionaries(st.sampled_from(("zone", "domain")), st.sampled_from(("a", "other"))),
    taints=st.sampled_from(((), SOFT[:1], SOFT, (Taint("k", "", "NoSchedule"),))),
    is_unschedulable=st.sampled_from((False, False, True)),
    images=st.sampled_from(((), (Image(("app:v1",), 500 * MEBI),))),
)


def make_spec(kind: int) -> PodSpec:
    """A few kinds of pods, between which every in-tree plugin makes a difference."""
    in_zone = NodeTerm(expressions=(Requirement("zone", Operator.IN, ("a",)),))
    named = NodeTerm(fields=(Requirement("metadata.name", Operator.IN, ("n1",)),))
    affinity = NodeAffinity(
        node_selector=(Requirement("zone", Operator.IN, ("a",)),) if kind == 1 else (),
        required=NodeSelector((named,)) if kind == 2 else None,
        preferred=(PreferredTerm(50, in_zone),) if kind == 3 else (),
    )
    return PodSpec(
        requests={CPU: 600, MEMORY: 300 * MEBI} if kind else {},
        scoring_cpu_milli=600 if kind else 100,
        scoring_memory_bytes=300 * MEBI if kind else 200 * MEBI,
        placed_cpu_milli=600 if kind else 100,
        placed_memory_bytes=300 * MEBI if kind else 200 * MEBI,
        tolerations=(Toleration("k", "Exists"),) if kind == 1 else (),
        affinity=affinity,
        host_ports=(HostPort("", "TCP", 80),) if kind == 3 else (),
        images=("app:v1",),
    )


SPECS = [make_spec(kind) for kind in range(4)]
TEAMS: list[dict[str, str]] = [{}, {"team": "red"}, {"team": "blue"}]

pending = st.builds(
    lambda spec, labels, nominated: make_pod("new", spec=spec, labels=labels, nominated_node=nominated),
    st.sampled_from(SPECS),
    st.sampled_from(TEAMS),
    st.sampled_from(("", "", "n1")),
)
Step = Callable[[Domain, Outside], object]


def _place(uid: str, spec: PodSpec, node: str) -> Step:
    def step(domain: Domain, outside: Outside) -> None:
        known = domain.cache.placed(uid)
        if known is None or known.node == node:
            domain.cache.place(make_pod(uid, uid=uid, spec=spec, node=node))

    return step


def _nominate(uid: str, spec: PodSpec, node: str) -> Step:
    return lambda domain, outside: domain.nominator.set(make_pod(uid, uid=uid, spec=spec, nominated_node=node))


names = st.sampled_from(NAMES)
uids = st.sampled_from(("p0", "p1", "p2", "p3"))
specs = st.sampled_from(SPECS)
steps: st.SearchStrategy[Step] = st.one_of(
    nodes.map(lambda node: lambda domain, outside: domain.cache.set_node(node)),
    names.map(lambda name: lambda domain, outside: domain.cache.remove_node(name)),
    st.builds(_place, uids, specs, names),
    uids.map(lambda uid: lambda domain, outside: domain.cache.remove(uid)),
    st.builds(_nominate, uids, specs, names),
    uids.map(lambda uid: lambda domain, outside: domain.nominator.remove(uid)),
    st.sampled_from((*NAMES, "red", "blue")).map(lambda one: lambda domain, outside: outside.closed.add(one)),
    st.just(lambda domain, outside: outside.closed.clear()),
    st.frozensets(names, max_size=2).map(lambda only: lambda domain, outside: setattr(outside, "only", only or None)),
    names.map(lambda name: lambda domain, outside: setattr(outside, "favourite", name)),
)
pools = st.lists(pending, min_size=1, max_size=2)
histories = st.lists(st.tuples(st.lists(steps, max_size=3), st.booleans()), min_size=2, max_size=6)


# -- the property ------------------------------------------------------------------------------------------------------


def told(domain: Domain, classes: ClassCache, pod: Pod, attempt: int) -> Any:
    """All that a class says of a pod: who refused what, or the total of each feasible node."""
    try:
        pod_class = classes.find(pod, attempt)
        found = diagnose(pod_class, domain.cache.nodes, blocked={}, with_names=True)
        refused = (fit_error(found), found.rejectors, found.pending, sorted((n, str(s)) for n, s in found.nodes))
        if pod_class.refusal is not None or not pod_class.feasible.any():
            return refused
        classes.score(pod_class)
    except PluginFailure as failure:
        return failure.status
    at = np.flatnonzero(pod_class.feasible)
    totals = {domain.cache.nodes.node(int(pod_class.rows[i])).name: int(pod_class.total[i]) for i in at}
    assert (pod_class.total[~pod_class.feasible] < 0).all()
    return refused, totals


def placed_or_refused(domain: Domain, cycle: SchedulingCycle, pod: Pod, attempt: int) -> Any:
    """What a whole attempt ends with; an assumption is taken back."""
    result = domain.schedule(pod, attempt, cycle)
    if isinstance(result, Placed):
        domain.cycle.give_up(result, Status.error("only looking"))
        return result.node
    return result


@given(pools, histories, st.booleans())
def test_warm_class_equals_a_cold_one_after_any_history(
    pool: list[Pod], history: list[tuple[list[Step], bool]], with_all: bool
) -> None:
    outside = Outside()
    domain = make_domain(outside, with_all=with_all)
    for number, name in enumerate(NAMES):
        labels = {"zone": "a"} if number % 2 else {}
        domain.cache.set_node(make_node(name, pods=number + 1, labels=labels, taints=SOFT[:number]))
    warm = domain.fresh_classes()
    for attempt, (changes, is_first) in enumerate(history, 1):
        pod = pool[0 if is_first else -1]
        for change in changes:
            change(domain, outside)
        assert told(domain, warm, pod, attempt) == told(domain, domain.fresh_classes(), pod, attempt)
        ended = placed_or_refused(domain, domain.cycle, pod, attempt)
        assert ended == placed_or_refused(domain, domain.fresh_cycle(), pod, attempt)
    domain.cache.validate()
    assert domain.heard.failures == []


def test_pulled_image_changes_scores_of_nodes_that_have_it() -> None:
    domain = make_domain(Outside(), with_all=False)
    image, pod = (Image(("app:v1",), 500 * MEBI),), make_pod("new", spec=SPECS[0])
    for name in NAMES:
        domain.cache.set_node(make_node(name, images=image if name == "n0" else ()))
    warm = domain.fresh_classes()
    alone = told(domain, warm, pod, 1)
    domain.cache.set_node(make_node("n1", images=image))

    assert told(domain, warm, pod, 2) == told(domain, domain.fresh_classes(), pod, 2) != alone

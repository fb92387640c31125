"""Runs of pods that relate to each other: what a plugin foresees is what one-by-one decides."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.cycle.scheduling_cycle import Placed
from multisched.model.decode import Decoder
from multisched.model.objects import Node, Pod
from multisched.plugins.inter_pod_affinity import InterPodAffinity
from multisched.plugins.inter_pod_affinity_args import InterPodAffinityArgs
from tests.unit.cycle.cycle_kit import IN_TREE_USED, Domain, in_runs, one_by_one, said, same_state
from tests.unit.cycle.relations_kit import HOST, PREFERRED, REQUIRED, ZONE, Document, Drawn

RELATED = (*IN_TREE_USED, "PodTopologySpread", "InterPodAffinity")
WEIGHTS = {"PodTopologySpread": 2, "InterPodAffinity": 2}
NODES, PODS = 30, 40


class Story:
    """Two domains that are the same, and a workload for them."""

    def __init__(self, draw: Drawn) -> None:
        self._draw = draw
        self._decoder = Decoder()

    def domain(self, nodes: list[Document], placed: list[Document], seed: int = 0) -> Domain:
        domain = Domain(in_tree=RELATED, weights=WEIGHTS, seed=seed)
        for node in nodes:
            domain.cache.set_node(self.node(node))
        for pod in placed:
            domain.cache.place(self._pod(pod))
        return domain

    def workload(self, template: Document, count: int) -> list[Pod]:
        """Pods of one template, as a ReplicaSet's."""
        return [
            self._pod(template | {"metadata": template["metadata"] | {"name": f"w{number}", "uid": f"uid-w{number}"}})
            for number in range(count)
        ]

    def template(self) -> Document:
        """Often about its own pods, since those are the runs that move while they go."""
        document = self._draw.pod("w")
        document["metadata"]["namespace"] = "default"
        app = document["metadata"]["labels"]["app"]
        spread = document["spec"].get("topologySpreadConstraints", [])
        if self._draw.chance(0.5):
            del spread[1:]
        for term in (*_terms(document["spec"].get("affinity", {})), *spread):
            if self._draw.chance(0.7):
                term["labelSelector"] = {"matchLabels": {"app": app}}
        return document

    def node(self, document: Document) -> Node:
        return self._decoder.node(orjson.dumps(document))

    def _pod(self, document: Document) -> Pod:
        return self._decoder.pod(orjson.dumps(document))


def _terms(affinity: Document) -> list[Document]:
    sides = affinity.values()
    required = [term for side in sides for term in side.get(REQUIRED, ())]
    return required + [one["podAffinityTerm"] for side in sides for one in side.get(PREFERRED, ())]


@given(st.integers(0, 2**32))
def test_runs_of_related_pods_decide_what_one_by_one_decides(seed: int) -> None:
    draw = Drawn(seed)
    story = Story(draw)
    nodes = [draw.node(f"n{number}") for number in range(draw.rng.choice((3, 8, NODES)))]
    if draw.chance(0.5):  # alike but for their places, so that many are the best
        for node in nodes:
            node["spec"]["taints"] = []
    placed = [draw.pod(f"p{number}", f"n{draw.rng.randrange(len(nodes))}") for number in range(draw.rng.randrange(6))]
    workload = story.workload(story.template(), PODS)
    domains = []
    for decide in (one_by_one, in_runs):
        domain = story.domain(nodes, placed)
        domains.append((domain, said(decide(domain, workload))))
    (alone, expected), (together, found) = domains
    assert found == expected
    same_state(alone, together)


def wanting(affinity: dict[str, Any]) -> Document:
    return {
        "metadata": {"name": "w", "namespace": "default", "labels": {"app": "web"}},
        "spec": {
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "100m"}}}],
            "affinity": affinity,
        },
    }


def term(key: str) -> Document:
    return {"topologyKey": key, "labelSelector": {"matchLabels": {"app": "web"}}}


@pytest.mark.parametrize(
    ("affinity", "expected"),
    [
        ({"podAntiAffinity": {REQUIRED: [term(HOST)]}}, [1, 1, 1, 1, 1, 4, 8, 13]),
        ({"podAffinity": {REQUIRED: [term(ZONE)]}}, [1, 1, 1, 1, 1, 4, 8, 13]),
        ({"podAffinity": {PREFERRED: [{"weight": 10, "podAffinityTerm": term(ZONE)}]}}, [1, 1, 1, 1, 1, 4, 8, 13]),
        ({"podAntiAffinity": {PREFERRED: [{"weight": 10, "podAffinityTerm": term(ZONE)}]}}, [1] * 300),
    ],
    ids=["away from its own", "where its own are", "rather where its own are", "rather in another zone"],
)
def test_related_pods_are_decided_in_runs_where_one_leaves_the_others_their_choice(
    affinity: Document, expected: list[int]
) -> None:
    story = Story(Drawn(0))
    nodes = [node(number, f"zone-{number % 2}") for number in range(100)]
    workload, lengths = story.workload(wanting(affinity), sum(expected)), list[int]()
    found = said(in_runs(story.domain(nodes, []), workload, lengths))
    assert lengths == expected
    assert found == said(one_by_one(story.domain(nodes, []), workload))


@pytest.mark.parametrize(
    ("constraints", "most"),
    [
        ([(ZONE, "DoNotSchedule", 1)], 9),
        ([(ZONE, "ScheduleAnyway", 1)], 9),
        ([(HOST, "ScheduleAnyway", 3), (ZONE, "ScheduleAnyway", 5)], 9),
        ([(HOST, "ScheduleAnyway", 1)], 63),
        ([(HOST, "DoNotSchedule", 1)], 63),
        ([(ZONE, "DoNotSchedule", 2)], 9),
        ([(ZONE, "DoNotSchedule", 1), (HOST, "ScheduleAnyway", 1)], 1),
        ([(ZONE, "ScheduleAnyway", 1), ("rack", "ScheduleAnyway", 1)], 1),
    ],
    ids=["zone", "rather zones", "as by default", "rather hosts", "hosts", "two more in a zone", "both", "two keys"],
)
def test_spread_pods_are_decided_zone_by_zone_in_runs(constraints: list[tuple[str, str, int]], most: int) -> None:
    """One of the ten zones is left to the pod behind the run: it shows that nothing else has moved."""
    story = Story(Drawn(0))
    nodes = [node(number, f"zone-{number % 10}") for number in range(100)]
    document = wanting({})
    document["spec"]["topologySpreadConstraints"] = [
        {"maxSkew": skew, "whenUnsatisfiable": when, **term(key)} for key, when, skew in constraints
    ]
    workload, lengths = story.workload(document, 200), list[int]()
    together = said(in_runs(story.domain(nodes, []), workload, lengths))
    assert together == said(one_by_one(story.domain(nodes, []), workload))
    assert max(lengths) <= most
    assert most == 1 or len(lengths) < 180


def node(number: int, zone: str, cpu: int = 8) -> Document:
    name = f"n{number}"
    return {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "labels": {HOST: name, ZONE: zone, "rack": f"rack-{number % 7}"},
        },
        "spec": {},
        "status": {"allocatable": {"cpu": str(cpu), "memory": "8Gi", "pods": "110"}},
    }


def test_a_run_ends_where_the_next_pod_would_stand_beside_one_it_must_be_away_from() -> None:
    """The two nodes that are left are one zone: nothing outside the run would tell that both must not be taken."""
    story = Story(Drawn(0))
    nodes = [node(number, f"zone-{number}", 64) for number in range(5)] + [node(5, "last"), node(6, "last")]
    workload = story.workload(wanting({"podAntiAffinity": {REQUIRED: [term(ZONE)]}}), 7)
    results = in_runs(story.domain(nodes, []), workload)
    assert [isinstance(one, Placed) for one in results] == [True] * 6 + [False]


@pytest.mark.parametrize("seed", range(20))
def test_a_run_does_not_go_from_zone_to_zone_where_each_pod_makes_its_zone_worse(seed: int) -> None:
    """Two pods in each of two zones: every score is what it was before, and was not in between."""
    story = Story(Drawn(0))
    nodes = [node(number, f"zone-{number % 2}") for number in range(100)]
    workload = story.workload(
        wanting({"podAntiAffinity": {PREFERRED: [{"weight": 10, "podAffinityTerm": term(ZONE)}]}}), 40
    )
    alone, together = (said(decide(story.domain(nodes, [], seed), workload)) for decide in (one_by_one, in_runs))
    assert together == alone


def test_a_run_waits_for_the_first_pod_that_decides_where_the_others_go() -> None:
    """All pods of a class that came in runs went away: the next one is a first one again."""
    story = Story(Drawn(0))
    domain = Domain(
        in_tree=tuple(IN_TREE_USED), factories=[lambda context: InterPodAffinity(InterPodAffinityArgs(0), context)]
    )
    for number in range(100):
        domain.cache.set_node(story.node(node(number, f"zone-{number % 2}")))
    workload = story.workload(wanting({"podAffinity": {REQUIRED: [term(ZONE)]}}), 60)
    in_runs(domain, workload[:20])
    for pod in workload[:20]:
        domain.cache.forget(pod.uid)
    results = in_runs(domain, workload[20:])
    zones = {int(one.node[1:]) % 2 for one in results if isinstance(one, Placed)}
    assert len(zones) == 1

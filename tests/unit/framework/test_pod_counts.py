"""Counts of pods by query and demand equal a recount after any sequence of events; overlays equal a table that has the pods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from multisched.framework import affinity_group, group_columns, pod_counts, pod_demands
from multisched.framework.pod_counts import PodCounts, PodCountsView
from multisched.framework.pod_demands import TermKind, effects_by_kind
from multisched.framework.row_sums import CHANGES_KEPT
from multisched.framework.term_columns import IncomingPod
from multisched.model.objects import Node, Pod, PodSpec
from multisched.model.placement import (
    DemandKind,
    PodAffinity,
    PodAffinityTerm,
    PodQuery,
    PodScope,
    WeightedPodTerm,
    demands_of,
)
from multisched.model.selectors import LabelSelector, Operator, Requirement
from multisched.state.node_table import NodeTable
from multisched.state.overlay import Overlay
from multisched.state.row_check import row_faults

ROWS = 4
NAMESPACES = ("a", "b")
LABELS: tuple[dict[str, str], ...] = ({}, {"app": "web"}, {"app": "db"}, {"app": "web", "tier": "1"}, {"tier": "2"})
SELECTORS = (
    LabelSelector(),
    LabelSelector((Requirement("app", Operator.IN, ("web",)),)),
    LabelSelector((Requirement("app", Operator.IN, ("web", "db")), Requirement("tier", Operator.DOES_NOT_EXIST))),
    LabelSelector((Requirement("tier", Operator.EXISTS),)),
    LabelSelector((Requirement("app", Operator.NOT_IN, ("db",)),)),
)
TEAM = LabelSelector((Requirement("team", Operator.IN, ("x",)),))
NAMESPACE_LABELS = {"a": {"team": "x"}, "b": {}}

scopes = st.builds(
    PodScope, st.sampled_from(SELECTORS), st.sampled_from((None, frozenset("a"), frozenset("ab"), frozenset("c")))
)
queries = st.builds(PodQuery, st.lists(scopes, max_size=2).map(tuple), st.booleans())
terms = st.builds(
    PodAffinityTerm,
    st.sampled_from(("zone", "host")),
    st.sampled_from((None, *SELECTORS)),
    st.sampled_from((frozenset(), frozenset("b"))),
    st.sampled_from((None, TEAM)),
)
some_terms = st.lists(terms, max_size=2).map(tuple)
weighted = st.lists(st.builds(WeightedPodTerm, st.integers(1, 100), terms), max_size=1).map(tuple)
specs = st.one_of(
    st.just(PodSpec()),
    st.builds(
        lambda affinity: PodSpec(pod_affinity=affinity),
        st.builds(PodAffinity, some_terms, weighted, some_terms, weighted),
    ),
)


@dataclass(frozen=True)
class Step:
    what: str
    row: int
    pod: Pod
    query: PodQuery
    topologies: tuple[str, ...]


pods = st.builds(
    lambda namespace, labels, spec, deleting, uid: Pod(
        namespace, uid, uid, 1, spec=spec, labels=labels, is_deleting=deleting
    ),
    st.sampled_from(NAMESPACES),
    st.sampled_from(LABELS),
    specs,
    st.booleans(),
    st.sampled_from([f"pod-{n}" for n in range(6)]),
)
steps = st.lists(
    st.builds(
        Step,
        st.sampled_from(("add", "add", "remove", "relabel", "ask", "entry", "label", "recount")),
        st.integers(0, ROWS - 1),
        pods,
        queries,
        st.sampled_from(((), ("zone",), ("zone", "host"))),
    ),
    max_size=40,
)


def a_table() -> NodeTable:
    table = NodeTable()
    for row in range(ROWS):
        table.set_node(Node(f"node-{row}", f"uid-{row}", 1, labels={"host": str(row)} if row else {}))
    return table


def take(table: NodeTable, step: Step) -> None:
    """Does what the step says, where it can be done."""
    there = {uid: row for row in range(ROWS) for uid in table.pods_by_uid(row)}
    at = there.get(step.pod.uid)
    if step.what == "add" and at is None:
        table.add_pod(step.row, step.pod)
    elif step.what == "remove" and at is not None:
        table.remove_pod(at, step.pod.uid)
    elif step.what == "relabel" and at is not None:
        before = table.pods_by_uid(at)[step.pod.uid]
        after = replace(before, labels=step.pod.labels, is_deleting=step.pod.is_deleting)
        table.replace_pod(at, after)
    elif step.what == "ask":
        table.pod_counts.matching(step.query)
    elif step.what == "entry":
        table.pod_counts.affinity_entry(step.pod.namespace, step.pod.labels, NAMESPACE_LABELS[step.pod.namespace])
    elif step.what == "label":
        table.set_node(replace(table.node(step.row), labels=dict.fromkeys(step.topologies, "x")))
    elif step.what == "recount":
        table.recount(step.row, dict(table.pods_by_uid(step.row)))


def recounted(pods_on: Iterable[tuple[int, Pod]], query: PodQuery) -> dict[int, int]:
    return dict(
        Counter(
            row
            for row, pod in pods_on
            if (query.counts_deleting or not pod.is_deleting) and query.has(pod.namespace, pod.labels)
        )
    )


def demanded(
    pods_on: Iterable[tuple[int, Pod]], namespace: str, labels: Mapping[str, str]
) -> dict[TermKind, dict[int, tuple[int, int]]]:
    """What the pods say of such a pod, found pod by pod and term by term: lane -> row -> terms, and their weights."""
    found: dict[TermKind, dict[int, tuple[int, int]]] = {}
    for row, pod in pods_on:
        for demand in demands_of(pod.spec.pod_affinity or PodAffinity(), pod.namespace):
            if demand.matches(namespace, labels, NAMESPACE_LABELS[namespace]):
                is_against = demand.kind is DemandKind.ANTI_PREFERRED
                lane = TermKind(DemandKind.PREFERRED if is_against else demand.kind, demand.topology_key)
                terms, weights = found.setdefault(lane, {}).get(row, (0, 0))
                found[lane][row] = terms + 1, weights + (-demand.weight if is_against else demand.weight)
    return found


def standing(table: NodeTable) -> list[tuple[int, Pod]]:
    return [(row, pod) for row in range(ROWS) for pod in table.pods_on(row)]


def assert_true(
    counts: PodCountsView, pods_on: list[tuple[int, Pod]], asked: Iterable[PodQuery], table: NodeTable
) -> None:
    topologies = {key for _, node in table.live_rows() for key in node.labels}
    for query in asked:
        assert counts.matching(query).held == recounted(pods_on, query)
    for namespace in NAMESPACES:
        for labels in LABELS:
            entry = counts.affinity_entry(namespace, labels, NAMESPACE_LABELS[namespace])
            said, wanted = effects_by_kind(entry), demanded(pods_on, namespace, labels)
            for lane in said.keys() | wanted.keys():
                if lane.key in topologies:  # labels that no node has make no domains
                    assert said.get(lane) == wanted.get(lane)


@given(steps)
def test_counts_equal_a_recount_after_any_sequence_of_events(taken: list[Step]) -> None:
    table = a_table()
    for step in taken:
        take(table, step)
    assert_true(table.pod_counts, standing(table), [step.query for step in taken], table)
    table.validate()


@given(steps)
def test_counts_stay_correct_with_small_caches(taken: list[Step]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("QUERIES_MAX", "QUERIES_MIN"):
            patch.setattr(pod_counts, name, 2)
        for name in ("LOG_KEPT", "MATCHES_KEPT", "NARROW_GROUPS_MAX"):
            patch.setattr(pod_counts, name, 1)
        patch.setattr(group_columns, "SEGMENT_MAX", 3)
        patch.setattr(group_columns, "BUCKETS", 2)
        for name in (
            "LOG_KEPT",
            "UNKNOWN_MAX",
            "EFFECTS_MAX",
            "ENTRIES_MIN",
            "ENTRY_BYTES_MAX",
            "MAPPINGS_MAX",
            "PLACES_MAX",
        ):
            patch.setattr(pod_demands, name, 1)
        patch.setattr(pod_demands, "DEAD_MIN", 2)
        patch.setattr(affinity_group, "TAGS_MAX", 1)
        table = a_table()
        for step in taken:
            take(table, step)
        assert_true(table.pod_counts, standing(table), [step.query for step in taken], table)
        table.validate()


@given(steps, steps)
def test_overlay_counts_equal_those_of_a_table_with_its_pods(taken: list[Step], thought: list[Step]) -> None:
    table = a_table()
    for step in taken:
        take(table, step)
    overlay = Overlay(table)
    there = {pod.uid: (row, pod) for row, pod in standing(table)}
    for step in thought:
        known = there.pop(step.pod.uid, None)
        if known is not None:
            overlay.remove_pod(known[0], step.pod.uid)
        else:
            overlay.add_pod(step.row, step.pod)
            there[step.pod.uid] = (step.row, step.pod)
    assert_true(overlay.pod_counts, list(there.values()), [step.query for step in (*taken, *thought)], table)
    assert_true(table.pod_counts, standing(table), [step.query for step in taken], table)


@given(steps, queries)
def test_reader_catches_up_with_missed_changes(taken: list[Step], query: PodQuery) -> None:
    table = a_table()
    seen = dict(table.pod_counts.matching(query).held)
    version = table.pod_counts.matching(query).version
    for step in taken:
        take(table, step)
    count = table.pod_counts.matching(query)
    changes = count.changes_since(version)
    if changes is None:  # a row was counted anew: what is read then is read anew
        assert any(step.what == "recount" for step in taken)
        seen = dict(count.held)
    for _, row, change, *_ in changes or ():
        seen[row] = seen.get(row, 0) + change
    assert {row: number for row, number in seen.items() if number} == count.held


def test_changes_since_a_dropped_version_are_unknown() -> None:
    counts, query = PodCounts(), PodQuery((PodScope(LabelSelector()),))
    version = counts.matching(query).version
    pod = Pod("a", "p", "p", 1)
    for _ in range(CHANGES_KEPT):
        counts.account(0, pod, 1)
        counts.account(0, pod, -1)
    assert counts.matching(query).changes_since(version) is None


def test_cached_entries_of_one_pod_are_kept_together_under_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """All counts have been used of late, and the oldest is one of the pod's own: what is dropped for the next is not that."""
    monkeypatch.setattr(pod_counts, "QUERIES_MAX", 2 * pod_counts.QUERIES_MIN)
    counts = PodCounts()
    counts.account(1, Pod("a", "p", "p", 1), 1)
    everybodys = [PodQuery((PodScope(LabelSelector(), frozenset(("a", f"n-{n}"))),)) for n in range(1_000)]
    for query in everybodys[: pod_counts.QUERIES_MAX]:
        counts.matching(query)
    own = [counts.matching(query) for query in (everybodys[0], *everybodys[-pod_counts.QUERIES_MIN + 1 :])]
    assert [count.held for count in own] == [{1: 1}] * len(own)


def test_effect_is_that_of_its_group_after_renumbering(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pod_demands, "EFFECTS_MAX", 2)
    counts, asker = PodCounts(), IncomingPod("a", LABELS[1], NAMESPACE_LABELS["a"])
    terms = [WeightedPodTerm(weight, PodAffinityTerm("zone", SELECTORS[0])) for weight in (1, 2, 3)]
    affinities = [PodAffinity(preferred=(one,)) for one in terms]
    for number, affinity in enumerate(affinities):
        counts.account(0, Pod("a", f"p{number}", f"p{number}", 1, spec=PodSpec(pod_affinity=affinity)), 1)
    told = [counts.effect(asker, affinity, "a") for affinity in affinities]
    assert told == [((TermKind(DemandKind.PREFERRED, "zone"), 1, weight),) for weight in (1, 2, 3)]


def test_distinct_states_have_distinct_versions() -> None:
    counts, query = PodCounts(), PodQuery((PodScope(LabelSelector()),))
    versions = [counts.matching(query).version]
    pod = Pod("a", "p", "p", 1)
    for sign in (1, -1, 1):
        counts.account(0, pod, sign)
        versions.append(counts.matching(query).version)
    assert len(set(versions)) == len(versions)


def test_audit_finds_a_wrong_count() -> None:
    table, query = a_table(), PodQuery((PodScope(LabelSelector()),))
    table.add_pod(1, Pod("a", "p", "p", 1))
    table.pod_counts.matching(query).held[1] = 2
    assert "counts 2 pods, but the row has 1" in table.pod_counts.faults({1: table.pods_on(1), 2: table.pods_on(2)})[1]
    faults = row_faults(table, range(ROWS))
    assert list(faults) == [1]
    assert faults[1].startswith("node node-1: ")
    assert "counts 2 pods, but the row has 1" in faults[1]
    with pytest.raises(AssertionError, match=r"^rows \{1: .*counts 2 pods, but the row has 1"):
        table.validate()

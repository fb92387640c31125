"""What other tenants' pods demand or carry makes no pod's attempt dear: counted in what is looked at, not in seconds."""

from __future__ import annotations

import gc
import weakref
from _collections_abc import dict_items
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from multisched.framework import group_columns, pod_counts, pod_demands
from multisched.framework.group_columns import GroupColumns
from multisched.framework.pod_counts import NARROW_GROUPS_MAX, PodCounts
from multisched.framework.pod_group import PodGroup
from multisched.framework.row_sums import DenseSum, SparseSum
from multisched.model.objects import Node, Pod, PodSpec
from multisched.model.placement import PodAffinity, PodAffinityTerm, PodQuery, PodScope, WeightedPodTerm
from multisched.model.selectors import LabelSelector, Operator, Requirement
from multisched.state.node_table import NodeTable

TERMS = 50
NO_LABELS: dict[str, str] = {}
EVERYWHERE = LabelSelector()


def hostile(number: int, key: str = "app", topology: str = "zone") -> Pod:
    """A pod with preferred terms about nearly everybody, all different."""
    terms = tuple(
        WeightedPodTerm(
            1, PodAffinityTerm(topology, LabelSelector((_not(key, f"{number}-{at}"),)), frozenset(), EVERYWHERE)
        )
        for at in range(TERMS)
    )
    uid = f"hostile-{number}"
    return Pod("tenant", uid, uid, 1, spec=PodSpec(pod_affinity=PodAffinity(preferred=terms)), labels={"n": uid})


def _not(key: str, value: str) -> Requirement:
    return Requirement(key, Operator.NOT_IN, (value,))


def filled(pods: int) -> PodCounts:
    counts = PodCounts()
    for number in range(pods):
        counts.account(number % 8, hostile(number), 1)
    return counts


@pytest.mark.parametrize("pods", [10, 500])
def test_cached_pod_only_costs_later_changes(pods: int) -> None:
    counts, labels = filled(pods), {"app": "web"}
    counts.affinity_entry("victim", labels, NO_LABELS)
    before = counts.demands.terms_looked_at
    counts.account(3, hostile(pods), 1)
    entry = counts.affinity_entry("victim", labels, NO_LABELS)
    assert counts.demands.terms_looked_at - before == TERMS
    assert sum(int(one.columns()[2].sum()) for one in entry.sums.values()) == TERMS * (pods + 1)


def test_labels_that_no_term_reads_do_not_split_cached_pods() -> None:
    counts = filled(10)
    first = counts.affinity_entry("victim", {"app": "web", "job": "1"}, NO_LABELS)
    before = counts.demands.terms_looked_at
    assert counts.affinity_entry("victim", {"app": "web", "job": "2"}, NO_LABELS) is first
    assert counts.demands.terms_looked_at == before


def test_terms_with_labels_of_no_node_are_skipped() -> None:
    table = NodeTable()
    table.set_node(Node("node", "node", 1, labels={"zone": "a"}))
    for number in range(10):
        table.add_pod(0, hostile(number, topology=f"nowhere-{number}"))
    table.pod_counts.affinity_entry("victim", {"app": "web"}, NO_LABELS)
    assert table.pod_counts.demands.terms_looked_at == 0


def test_labels_named_only_by_pods_create_no_node_columns() -> None:
    table = NodeTable()
    table.set_node(Node("node", "node", 1, labels={"zone": "a"}))
    for number in range(100):
        assert not table.label_codes(f"nowhere-{number}").any()
    assert [key for key, _ in table.label_columns()] == []


def queries() -> Iterator[PodQuery]:
    for number in range(TERMS):
        yield PodQuery((PodScope(LabelSelector((_not("n", f"{number}"),))),))


def test_query_over_many_groups_is_vectorised_once_and_then_incremental() -> None:
    counts = filled(NARROW_GROUPS_MAX + 1)
    for query in queries():
        assert isinstance(counts.matching(query), DenseSum)
    counts.account(1, hostile(10_000), 1)
    for query in queries():
        assert sum(counts.matching(query).held.values()) == NARROW_GROUPS_MAX + 2
    assert counts.groups_looked_at == 0


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many scopes each pod was put to, by `PodQuery.has`."""
    found: list[int] = []
    has = PodQuery.has

    def counted(query: PodQuery, namespace: str, labels: Mapping[str, str]) -> bool:
        found.append(len(query.scopes))
        return has(query, namespace, labels)

    monkeypatch.setattr(PodQuery, "has", counted)
    return found


def query_of(number: int, scopes: int) -> PodQuery:
    """Everybody is in it."""
    return PodQuery(tuple(PodScope(LabelSelector((_not("app", f"{number}-{at}"),))) for at in range(scopes)))


def test_query_with_many_scopes_that_is_far_behind_is_recounted_by_columns(asked: list[int]) -> None:
    counts, query = filled(pods=NARROW_GROUPS_MAX + 1), query_of(0, TERMS)
    counts.matching(query)
    for number in range(1_000, 3_000):
        counts.account(number % 8, hostile(number), 1)
    asked.clear()
    assert sum(counts.matching(query).held.values()) == 2_000 + NARROW_GROUPS_MAX + 1
    assert sum(asked) <= pod_counts.MATCHES_MAX + TERMS


def test_audit_of_some_rows_evaluates_few_pods(asked: list[int]) -> None:
    """Sixteen queries of fifty scopes once held the loop for three seconds at each piece of an audit."""
    counts, on_row = PodCounts(), [hostile(number) for number in range(200)]
    for pod in on_row:
        counts.account(0, pod, 1)
    queries = [query_of(number, TERMS) for number in range(40)]
    for query in queries:
        counts.matching(query)
    asked.clear()
    for _ in queries:  # each in turn
        before = sum(asked)
        assert not counts.faults({0: on_row})
        assert sum(asked) - before <= pod_counts.MATCHES_CHECKED
    assert sum(asked) >= len(queries) * len(on_row) * TERMS


def of_service(number: int, replica: int) -> Pod:
    """It keeps away from its own kind."""
    term = PodAffinityTerm("host", LabelSelector((Requirement("app", Operator.IN, (f"service-{number}",)),)))
    uid, spec = f"{number}-{replica}", PodSpec(pod_affinity=PodAffinity(anti_required=(term,)))
    return Pod("tenant", uid, uid, 1, spec=spec, labels=OF_SERVICES[number])


OF_SERVICES = [{"app": f"service-{number}"} for number in range(500)]


def test_small_services_read_no_pods_of_each_other(asked: list[int]) -> None:
    """Each asks once in a while, when pods of all others have come: a thousand of them once took five times as long to place."""
    counts = PodCounts()
    for replica in range(3):
        for number, labels in enumerate(OF_SERVICES):
            own = PodQuery((PodScope(LabelSelector((Requirement("app", Operator.IN, (labels["app"],)),))),))
            assert sum(counts.matching(own).held.values()) == replica
            demanded = counts.affinity_entry("tenant", labels, NO_LABELS)
            assert sum(one.total for one in demanded.sums.values()) == replica
            counts.account(number % 97, of_service(number, replica), 1)
    assert sum(asked) <= 10 * len(OF_SERVICES)
    assert counts.demands.terms_looked_at <= 3 * len(OF_SERVICES)


def test_query_of_one_namespace_reads_only_its_groups() -> None:
    counts = filled(200)
    counts.account(0, Pod("victim", "v", "v", 1, labels={"app": "web"}), 1)
    own = PodQuery((PodScope(LabelSelector((_not("n", "x"),)), frozenset({"victim"})),))
    assert isinstance(counts.matching(own), SparseSum)
    assert counts.groups_looked_at == 1


def test_cached_sums_stay_within_their_memory_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are small while nobody demands anything of most nodes; one pod on the last node makes each as long as the table."""
    monkeypatch.setattr(pod_demands, "ENTRY_BYTES_MAX", 1 << 20)
    rows, counts = 5_000, filled(1)
    askers = [{"app": f"{number}"} for number in range(200)]
    for labels in askers:
        counts.affinity_entry("victim", labels, NO_LABELS)
    counts.account(rows, hostile(1), 1)
    held = [counts.affinity_entry("victim", labels, NO_LABELS) for labels in askers]
    kept = [entry for entry in held if entry.is_kept]
    assert held[-1] in kept
    assert sum(entry.size_bytes for entry in kept) <= 1 << 20


def test_dead_terms_count_towards_compaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod with one term about a thousand values takes as much as hundreds of pods with one about one value."""
    monkeypatch.setattr(pod_demands, "DEAD_MIN", 10_000)
    counts = PodCounts()
    for number in range(100):
        values = tuple(f"{number}-{at}" for at in range(1_000))
        term = PodAffinityTerm("zone", LabelSelector((Requirement("app", Operator.IN, values),)))
        uid = f"big-{number}"
        pod = Pod("tenant", uid, uid, 1, spec=PodSpec(pod_affinity=PodAffinity(anti_required=(term,))))
        counts.account(0, pod, 1)
        counts.account(0, pod, -1)
    counts.affinity_entry("tenant", {"app": "web"}, NO_LABELS)
    assert counts.demands.terms_looked_at <= 10


def test_new_node_label_evaluates_only_terms_with_it() -> None:
    table = NodeTable()
    table.set_node(Node("node", "node", 1, labels={"zone": "a"}))
    for number in range(10):
        table.add_pod(0, hostile(number, topology=f"nowhere-{number}"))
    entry = table.pod_counts.affinity_entry("victim", {"app": "web"}, NO_LABELS)
    table.set_node(Node("node", "node", 1, labels={"zone": "a", "new": "b"}))
    assert table.pod_counts.affinity_entry("victim", {"app": "web"}, NO_LABELS).number == entry.number
    table.set_node(Node("node", "node", 1, labels={"zone": "a", "nowhere-3": "b"}))
    assert table.pod_counts.affinity_entry("victim", {"app": "web"}, NO_LABELS).sums
    assert table.pod_counts.demands.terms_looked_at == TERMS


@pytest.mark.parametrize("lifetime", [0, 20, 60])
def test_removed_groups_take_bounded_memory(monkeypatch: pytest.MonkeyPatch, lifetime: int) -> None:
    """`lifetime`: groups that are added before one is removed."""
    monkeypatch.setattr(group_columns, "SEGMENT_MAX", 10_000)
    columns = GroupColumns()
    groups = [PodGroup("tenant", {f"{n}-{at}": "x" for at in range(1_000)}, is_deleting=False) for n in range(300)]
    for number, group in enumerate(groups):
        columns.add(group)
        columns.account(group, 0, 1)
        if number >= lifetime:
            assert not columns.account(groups[number - lifetime], 0, -1)
            columns.remove(groups[number - lifetime])
        size = sum(segment.size for segment in columns._segments if segment is not None)
        assert size <= group_columns.SPARSE_BELOW * 1_001 * (lifetime + 1) + 10_000


class CountedLabels(dict[str, str]):
    """Labels that count how often any labels are read."""

    reads = 0

    def items(self) -> dict_items[str, str]:
        CountedLabels.reads += 1
        return super().items()

    def get(self, key: str, default: Any = None) -> Any:
        CountedLabels.reads += 1
        return super().get(key, default)


def test_first_queries_do_not_read_the_labels_of_all_pods() -> None:
    """With 100,000 pods that would take half a second of one step."""
    counts = PodCounts()
    for number in range(1_000):
        labels = CountedLabels({"app": str(number)})
        counts.account(number, Pod("tenant", str(number), str(number), 1, labels=labels), 1)
    before = CountedLabels.reads
    exists = LabelSelector((Requirement("app", Operator.EXISTS),))
    assert counts.matching(PodQuery((PodScope(exists),))).total == 1_000
    for number in range(100):
        is_one = LabelSelector((Requirement("app", Operator.IN, (str(number),)),))
        assert counts.matching(PodQuery((PodScope(is_one),))).total == 1
    assert CountedLabels.reads - before <= 200


class Labels(dict[str, str]):
    """Whether somebody still holds them can be seen."""


def test_deleted_pods_leave_few_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The latest are kept for who catches up; a hundred pods with a thousand labels each are more than that."""
    monkeypatch.setattr(pod_counts, "LOG_KEPT", 1_000)
    monkeypatch.setattr(pod_demands, "MAPPINGS_LABELS_MAX", 10_000)
    counts = filled(1)
    counts.matching(PodQuery((PodScope(LabelSelector()),)))
    seen = []
    for number in range(100):
        uid, labels = f"labelled-{number}", Labels({f"{number}-{at}": "x" for at in range(1_000)})
        seen.append(weakref.ref(labels))
        pod = Pod("tenant", uid, uid, 1, labels=labels)
        counts.account(0, pod, 1)
        counts.affinity_entry(pod.namespace, pod.labels, NO_LABELS)
        counts.account(0, pod, -1)
        del pod, labels
    gc.collect()
    assert sum(one() is not None for one in seen) <= 50


@pytest.mark.parametrize(("values", "names"), [(1_000, 1), (1, 1_000)])
def test_query_size_counts_its_names(values: int, names: int) -> None:
    """A hundred thousand texts are more than a megabyte, in however few queries."""
    counts = PodCounts()
    for number in range(100):
        requirement = Requirement("app", Operator.IN, tuple(f"{number}-{at}" for at in range(values)))
        spaces = frozenset(f"{number}-{at}" for at in range(names))
        kept = counts.kept(PodQuery((PodScope(LabelSelector((requirement,)), spaces),)))
        assert kept.size_bytes >= 100 * 1_000

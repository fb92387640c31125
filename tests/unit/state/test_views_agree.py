"""Several ways to look at the same rows: whoever reads the table, an overlay or its columns sees the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pytest

from multisched.framework.node_view import Amount, Derive, NodeView
from multisched.framework.preemption import ABOVE_EVERY_PRIORITY
from multisched.model.objects import CPU, MEMORY, PODS, HostPort, Image, Node, Pod, PodSpec
from multisched.model.selectors import Taint
from multisched.model.volumes import PodVolume
from multisched.state import pods_by_priority
from multisched.state.cluster_cache import CacheCorruptedError, ClusterCache
from multisched.state.column_overlay import ColumnOverlay
from multisched.state.node_table import NodeTable
from multisched.state.nominator import Nominator
from multisched.state.overlay import Overlay
from multisched.state.pods_by_priority import PodColumns, PodsByPriority
from multisched.state.row_check import row_faults
from multisched.testing.builders import GPU, make_node
from tests.unit.state.state_kit import make_pod, make_spec

ROWS: Final = np.arange(6)
PORTS: Final = (80, 81)
RESOURCES: Final = (CPU, MEMORY, GPU, PODS)


def make_table() -> NodeTable:
    table = NodeTable()
    for number in ROWS.tolist():
        table.set_node(
            make_node(
                f"n{number}",
                extra={GPU: number},
                labels={"zone": f"z{number % 2}"},
                taints=(Taint("k", str(number % 3), "NoSchedule"),),
                is_unschedulable=number == 2,
                images=(Image(("app:v1",), 10_000 + number),) if number % 2 else (),
            )
        )
    return table


def random_pod(rng: random.Random, number: int) -> Pod:
    spec = PodSpec(
        priority=rng.choice((-5, 0, 0, 10)),
        requests={CPU: rng.randrange(1000), **({GPU: 1} if rng.random() < 0.3 else {})},
        host_ports=tuple(HostPort(rng.choice(("", "10.0.0.1")), "TCP", port) for port in PORTS if rng.random() < 0.4),
        volumes=(PodVolume("data", claim="data"),) if rng.random() < 0.2 else (),
    )
    labels = rng.choice(LABELS)
    return make_pod(f"p{number}", spec, labels=labels, started_s=rng.choice((0.0, 1.0, 2.0, 3.0)))


LABELS: Final[tuple[dict[str, str], ...]] = ({}, {"app": "web"}, {"app": "db"})
"""Interned, as the decoder does it."""


def filled(seed: int, pods: int = 14) -> NodeTable:
    rng, table = random.Random(seed), make_table()
    for number in range(pods):
        table.add_pod(rng.choice(ROWS[:-1].tolist()), random_pod(rng, number))
    return table


def twice(resource: str) -> Derive:
    return lambda nodes, rows: 2 * nodes.requested(resource)[rows]


def held_ports(view: NodeView) -> dict[int, Any]:
    """A row on which nobody holds the port may stand there, or not."""
    return {port: {row: dict(ips) for row, ips in view.port_users("TCP", port).items() if ips} for port in PORTS}


def seen(view: NodeView) -> dict[str, Any]:
    """All there is to read."""
    found: dict[str, Any] = {}
    for name in RESOURCES:
        found[f"allocatable {name}"] = view.allocatable(name).tolist()
        found[f"requested {name}"] = view.requested(name).tolist()
        found[f"scoring {name}"] = view.scoring_requested(name).tolist()
        found[f"derived {name}"] = view.derived(("twice", name), twice(name), ROWS).tolist()
    for kind in Amount:
        found[kind.name] = view.amounts(kind, (CPU, GPU), ROWS[1:]).tolist()
    found["capacities"] = view.capacities((CPU, GPU), ROWS[2:]).tolist()
    found["range"] = view.capacity_range((GPU, CPU))
    found["counts"] = view.pod_count.tolist()
    found["unschedulable"] = view.is_unschedulable.tolist()
    found["taints"] = [view.taint_sets[code] for code in view.taint_set.tolist()]
    found["zones"] = [view.label_values("zone")[code] for code in view.label_codes("zone").tolist()]
    found["zone"] = view.label_codes("zone").tolist()[1] == view.label_code("zone", "z1")
    found["ports"] = held_ports(view)
    found["claims"] = dict(view.volume_users.claim_users("default", "data"))
    found["images"] = dict(view.image_users("app:v1"))
    found["nodes"] = [view.node(row).name for row in ROWS.tolist()], view.node_count, view.row_of("n3")
    found["pods"] = [sorted(pod.uid for pod in view.pods_on(row)) for row in ROWS.tolist()]
    return found


@pytest.mark.parametrize("seed", range(3))
def test_overlay_equals_its_table(seed: int) -> None:
    table, twin = filled(seed), filled(seed)
    overlay = Overlay(table)
    assert seen(overlay) == seen(table)
    assert overlay.pod_counts is table.pod_counts
    assert overlay.nodes_version == table.nodes_version
    assert [overlay.version(row) for row in ROWS.tolist()] == [table.version(row) for row in ROWS.tolist()]
    before, rng = seen(table), random.Random(seed)
    for number in range(20, 30):
        row = rng.choice(ROWS.tolist())
        standing = [pod.uid for pod in twin.pods_on(row)]
        if standing and rng.random() < 0.5:
            overlay.remove_pod(row, standing[0])
            twin.remove_pod(row, standing[0])
        else:
            pod = random_pod(rng, number)
            overlay.add_pod(row, pod)
            twin.add_pod(row, pod)
        assert seen(overlay) == seen(twin)
    assert seen(table) == before


def no_pods() -> Iterable[tuple[int, Pod]]:
    return ()


def room(view: NodeView) -> Any:
    """What a plugin that wants room only may read."""
    return (
        [view.requested(name).tolist() for name in (*RESOURCES, "example.com/none")],
        view.pod_count.tolist(),
        held_ports(view),
    )


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("reads_first", [False, True])
def test_column_overlay_equals_moving_pods_one_by_one(seed: int, reads_first: bool) -> None:
    rng, table = random.Random(seed), filled(seed)
    (pods,) = PodsByPriority(table).blocks(ROWS)
    stands = pods.priority != ABOVE_EVERY_PRIORITY
    away = stands & (np.array([[rng.random() < 0.6 for _ in ROWS] for _ in stands]))
    columns, plain = ColumnOverlay(table, None, no_pods), Overlay(table)
    columns.remove(pods, away)
    for k, row in np.argwhere(away).tolist():
        plain.remove_pod(row, pods.pod(k, row).uid)
    if reads_first:
        assert room(columns) == room(plain)
    for _ in range(6):
        first = rng.randrange(len(away))
        some = slice(first, rng.randint(first + 1, len(away)))
        for move, are_away in ((columns.restore, True), (columns.remove_again, False)):
            at = np.flatnonzero([rng.random() < 0.5 for _ in ROWS])
            chosen = (
                stands[some]
                & (away[some] == are_away)
                & (np.array([[rng.random() < 0.5 for _ in ROWS] for _ in away[some]]))
            )
            moved = chosen[:, at]
            move(first, at, moved)
            for k, i in np.argwhere(moved).tolist():
                row = int(at[i])
                away[first + k, row] = not are_away
                if are_away:
                    plain.add_pod(row, pods.pod(first + k, row))
                else:
                    plain.remove_pod(row, pods.pod(first + k, row).uid)
            if reads_first:
                assert room(columns) == room(plain)
    assert room(columns) == room(plain)


def test_nominated_pods_count_on_their_row_with_ports() -> None:
    table, nominator = filled(1), Nominator()
    promised = make_pod("promised", make_spec(300, gpu=1, port=80), nominated_node="n4")
    nominator.set(promised)
    plain = Overlay(table)
    plain.add_pod(4, promised)
    late = make_pod("late", PodSpec(priority=-9))
    found = nominator.requests(late, table)
    assert found is not None
    columns = ColumnOverlay(table, found, lambda: [(4, promised)])
    assert room(columns) == room(plain)


def test_label_sets_of_deleted_pods_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pods_by_priority, "LABEL_SETS_MAX", 3)
    table, row = make_table(), int(ROWS[0])
    standing = PodsByPriority(table)
    for number in range(20):
        table.add_pod(row, make_pod(f"p{number}", labels={"number": str(number)}))
        (block,) = standing.blocks(ROWS[:1])
        assert told([block])[0] == (row, 1)
        assert len(block.label_sets) <= 3 + 1
        table.remove_pod(row, f"p{number}")


def told(blocks: list[PodColumns]) -> list[Any]:
    """Who stands where in which order, and what is known of each."""
    found: list[Any] = []
    for pods in blocks:
        for at, row in enumerate(pods.rows.tolist()):
            count = int((pods.priority[:, at] != ABOVE_EVERY_PRIORITY).sum())
            found.append((row, count))
            for k in range(count):
                pod, labels = pods.pod(k, at), pods.label_sets[int(pods.label_set[k, at])]
                assert (labels.namespace, labels.labels) == (pod.namespace, pod.labels)
                assert pods.priority[k, at] == pod.spec.priority
                assert pods.has_ports[k, at] == bool(pod.spec.host_ports)
                assert pods.requested(GPU)[k, at] == pod.requests.get(GPU, 0)
                found.append((pod.uid, float(pods.started_s[k, at])))
    return found


@pytest.mark.parametrize("widest", [128, 2, 1])
@pytest.mark.parametrize("seed", range(4))
def test_renewed_pod_columns_equal_rebuilt_ones(seed: int, widest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pods_by_priority, "WIDTH_MAX", widest)
    monkeypatch.setattr(pods_by_priority, "WIDTH_STEP", 1)
    monkeypatch.setattr(pods_by_priority, "LABEL_SETS_MAX", seed)
    rng, table = random.Random(seed), make_table()
    kept = PodsByPriority(table)
    for number in range(25):
        row = rng.choice(ROWS.tolist())
        standing = [pod.uid for pod in table.pods_on(row)]
        if standing and rng.random() < 0.35:
            table.remove_pod(row, rng.choice(standing))
        else:
            table.add_pod(row, random_pod(rng, number))
        if number % 3 == 0:
            rows = np.array(sorted(rng.sample(ROWS.tolist(), 4)))
            anew = PodsByPriority(table)
            assert told(kept.blocks(rows)) == told(anew.blocks(rows))
            assert kept.lowest(rows).tolist() == anew.lowest(rows).tolist()
            assert kept.is_wide(rows).tolist() == [len(table.pods_on(row)) > widest for row in rows.tolist()]
    plain = sorted(
        (row, -pod.spec.priority, pod.started_s or np.inf) for row in ROWS.tolist() for pod in table.pods_on(row)
    )
    order = [
        (int(pods.rows[at]), -pods.pod(k, at).spec.priority, float(pods.started_s[k, at]))
        for pods in sorted(kept.blocks(ROWS), key=lambda pods: int(pods.rows[0]))
        for at in range(len(pods.rows))
        for k in range(int((pods.priority[:, at] != ABOVE_EVERY_PRIORITY).sum()))
    ]
    assert sorted(order) == plain
    assert all(first[0] != second[0] or first[1:] <= second[1:] for first, second in pairwise(order))
    assert kept.blocks(ROWS[:0]) == []


def with_node(**changed: Any) -> Callable[[NodeTable], None]:
    """The node says something else than the columns."""

    def change(table: NodeTable) -> None:
        known = table.node(1)
        fields = {"cpu_milli": 4000, "extra": {GPU: 1}, "labels": known.labels, "taints": known.taints, **changed}
        table._nodes[1] = make_node("n1", **fields)

    return change


def with_column(name: str, amount: int) -> Callable[[NodeTable], None]:
    def change(table: NodeTable) -> None:
        columns = table._resources
        columns._requested[columns._index[name], 1] += amount

    return change


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (with_column(CPU, 5), "columns say [('cpu', 1005)], its pods [('cpu', 1000)]"),
        (with_node(cpu_milli=5000), "allocatable cpu is 4000, the node says 5000"),
        (with_node(malformed="status.allocatable"), "allocatable pods is 110, the node says 0"),
        (with_node(taints=()), "taints are (Taint("),
        (with_node(is_unschedulable=True), "unschedulable is False, the node says True"),
        (with_node(labels={}), "label zone is 'z1', the node says None"),
        (with_node(labels={"zone": "z0"}), "label zone is 'z1', the node says 'z0'"),
    ],
)
def test_row_fault_reports_expected_and_actual_sums(change: Callable[[NodeTable], None], fault: str) -> None:
    table = make_table()
    table.add_pod(1, make_pod("p"))
    assert table.label_codes("zone")[1]
    assert row_faults(table, ROWS.tolist()) == {}
    change(table)
    faults = row_faults(table, ROWS.tolist())
    assert list(faults) == [1]
    assert faults[1].startswith(f"node n1: {fault}")
    assert row_faults(table, [0, 2]) == {}


def test_row_without_a_node_has_no_fault() -> None:
    table = make_table()
    table.remove_node("n1")
    assert row_faults(table, ROWS.tolist()) == {}
    assert isinstance(table.node_at(0), Node)


def one_pod() -> ClusterCache:
    cache = ClusterCache()
    cache.set_node(make_node("n"))
    cache.set_node(make_node("m"))
    cache.place(make_pod("p", node="n"))
    cache.validate()
    return cache


def test_cache_that_differs_from_its_rows_is_reported() -> None:
    cache = one_pod()
    with pytest.raises(CacheCorruptedError, match=r"^pod default/p \(p\) is assumed while CONFIRMED$"):
        cache.assume(make_pod("p"), 0)
    entry = cache.placed("p")
    assert entry is not None
    entry.row = 1
    with pytest.raises(CacheCorruptedError, match=r"^pod default/p \(p\) is not where its entry says: row 1$"):
        cache.validate()

    cache = one_pod()
    cache.nodes.add_pod(0, make_pod("stranger"))
    with pytest.raises(CacheCorruptedError, match=r"^2 pods on rows and 0 strays, but 1 entries$"):
        cache.validate()

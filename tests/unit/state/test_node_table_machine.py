"""NodeTable against a model of plain dicts: any history of nodes and pods gives the same columns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from multisched.framework.node_view import Amount, Int64, NodeView, Rows
from multisched.model.objects import CPU, MEMORY, PODS, Image, Node, Pod
from multisched.model.selectors import Taint
from multisched.state.columns import derived, labels, resources
from multisched.state.columns.resources import RESOURCES_MAX
from multisched.state.node_table import ROWS_INITIAL, NodeTable
from multisched.state.row_check import row_faults
from multisched.testing.builders import GPU, make_node
from tests.unit.state.state_kit import make_pod, make_spec

NAMES = [f"n{i}" for i in range(5)]
UIDS = [f"p{i}" for i in range(6)]
SPECS = [make_spec(), make_spec(700), replace(make_spec(300, gpu=1), priority=-5), make_spec(100, port=80)]
RESOURCES = (CPU, MEMORY, PODS, GPU, "example.com/rare")

nodes = st.builds(
    make_node,
    st.sampled_from(NAMES),
    cpu_milli=st.integers(0, 4000),
    extra=st.dictionaries(st.sampled_from((GPU, "example.com/rare")), st.integers(0, 8)),
    labels=st.dictionaries(st.sampled_from(("zone", "disk")), st.sampled_from(("a", "b"))),
    taints=st.sampled_from(((), (Taint("k", "", "NoSchedule"),))),
    is_unschedulable=st.booleans(),
    images=st.sampled_from(((), (Image(("app:v1",), 5),), (Image(("app:v1",), 9), Image(("web:v1",), 2)))),
    malformed=st.sampled_from(("", "", "status.allocatable: odd")),
)


def _free(table: NodeView, rows: Rows) -> Int64:
    free: Int64 = (table.allocatable(CPU) - table.requested(CPU))[rows]
    return free


class TableMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.table = NodeTable()
        self.table.label_codes("zone")  # a column that exists before the nodes do
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, tuple[str, Pod]] = {}
        self.versions: dict[int, int] = {}
        self.seen = (0, 0)
        self.asked = np.arange(len(NAMES), dtype=np.intp)
        """The same array all along: what is known of its rows must not outlive a write."""

    def row(self, name: str) -> int:
        row = self.table.row_of(name)
        assert row is not None
        return row

    @rule(node=nodes)
    def set_node(self, node: Node) -> None:
        row = self.table.set_node(node)
        assert self.table.row_of(node.name) == row
        self.nodes[node.name] = node

    @precondition(lambda self: self.nodes)
    @rule(data=st.data())
    def remove_node(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.nodes)))
        for uid in [uid for uid, (at, _) in self.pods.items() if at == name]:
            self.table.remove_pod(self.row(name), uid)
            del self.pods[uid]
        self.table.remove_node(name)
        del self.nodes[name]

    @precondition(lambda self: self.nodes)
    @rule(data=st.data(), uid=st.sampled_from(UIDS), spec=st.sampled_from(SPECS))
    def add_pod(self, data: st.DataObject, uid: str, spec: object) -> None:
        name = data.draw(st.sampled_from(sorted(self.nodes)))
        pod = make_pod(uid, spec)  # type: ignore[arg-type]
        if uid not in self.pods:
            self.table.add_pod(self.row(name), pod)
            self.pods[uid] = (name, pod)
        elif self.pods[uid][0] == name:
            with pytest.raises(AssertionError):
                self.table.add_pod(self.row(name), pod)

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def remove_pod(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.pods)))
        name, pod = self.pods.pop(uid)
        assert self.table.remove_pod(self.row(name), uid) is pod

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def replace_pod(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.pods)))
        name, before = self.pods[uid]
        after = make_pod(uid, before.spec, labels={"app": "new"})
        self.table.replace_pod(self.row(name), after)
        self.pods[uid] = (name, after)

    def teardown(self) -> None:
        self.columns_are_the_sums()

    @invariant()
    def rows_are_those_of_the_live_nodes(self) -> None:
        assert {node.name: row for row, node in self.table.live_rows()} == {n: self.row(n) for n in self.nodes}
        assert self.table.node_count == len(self.nodes)
        assert self.table.size <= max(len(NAMES), 1)

    @invariant()
    def columns_are_the_sums(self) -> None:
        table = self.table
        table.validate()
        assert row_faults(table, range(table.size)) == {}
        for name, node in self.nodes.items():
            row = self.row(name)
            pods = [pod for at, pod in self.pods.values() if at == name]
            amounts = {} if node.malformed else node.allocatable
            for resource in RESOURCES:
                assert table.allocatable(resource)[row] == amounts.get(resource, 0)
                if resource != PODS and table.allocatable(resource).any():
                    assert table.requested(resource)[row] == sum(pod.requests.get(resource, 0) for pod in pods)
            assert table.scoring_requested(CPU)[row] == sum(pod.scoring_requests[0] for pod in pods)
            assert table.scoring_requested(MEMORY)[row] == sum(pod.scoring_requests[1] for pod in pods)
            assert table.pod_count[row] == len(pods)
            assert all(table.priority_min <= pod.spec.priority for pod in pods)
            assert sorted(pod.uid for pod in table.pods_on(row)) == sorted(pod.uid for pod in pods)
            assert table.port_users("TCP", 80).get(row, {}).get("", 0) == sum(bool(p.spec.host_ports) for p in pods)
            assert table.is_unschedulable[row] == node.is_unschedulable
            assert table.taint_sets[table.taint_set[row]] == node.taints
            assert (row in table.image_users("app:v1")) == bool(node.images)
            for key in ("zone", "disk"):
                assert table.label_codes(key)[row] == (
                    table.label_code(key, node.labels[key]) if key in node.labels else 0
                )
                assert table.label_values(key)[table.label_codes(key)[row]] == node.labels.get(key, "")

    @invariant()
    def several_columns_at_once_are_those_columns(self) -> None:
        table, rows = self.table, self.asked
        for names in ((PODS, CPU, MEMORY), (CPU, MEMORY), (MEMORY, GPU)):
            columns = [
                (Amount.ALLOCATABLE, table.allocatable),
                (Amount.REQUESTED, table.requested),
                (Amount.SCORING, table.scoring_requested),
            ]
            for kind, column in columns:
                assert table.amounts(kind, names, rows).tolist() == [column(name)[rows].tolist() for name in names]
            capacities = table.capacities(names, rows)
            assert capacities.dtype == np.float64
            assert capacities.tolist() == table.amounts(Amount.ALLOCATABLE, names, rows).tolist()

    @invariant()
    def what_follows_from_rows_is_as_if_made_anew(self) -> None:
        table, rows = self.table, np.arange(self.table.size)
        assert table.derived("free", _free, rows).tolist() == _free(table, rows).tolist()
        capacities = table.capacities((CPU, GPU), rows)
        ends = (capacities.min(), capacities.max()) if len(rows) else (0, 0)
        assert table.capacity_range((CPU, GPU)) == ends

    @invariant()
    def every_image_has_one_size_everywhere(self) -> None:
        for name in ("app:v1", "web:v1"):
            assert len(set(self.table.image_users(name).values())) <= 1

    @invariant()
    def every_write_is_in_the_log_and_raises_the_rows_version(self) -> None:
        table = self.table
        since = table.row_log.since(self.seen[1])
        assert since is not None
        for row in range(table.size):
            before = self.versions.get(row, 0)
            assert (table.version(row) > before) == (row in since)
            self.versions[row] = table.version(row)
        nodes_since = table.node_log.since(self.seen[0])
        assert nodes_since is not None
        assert set(nodes_since) <= set(since)
        self.seen = (table.node_log.sequence, table.row_log.sequence)


TableMachine.TestCase.settings = settings(stateful_step_count=10)
TestTableMachine = TableMachine.TestCase


def test_table_grows_by_doubling_and_keeps_its_contents() -> None:
    table = NodeTable()
    for number in range(3 * ROWS_INITIAL):
        row = table.set_node(make_node(f"n{number}", cpu_milli=number, labels={"zone": str(number % 3)}))
        table.add_pod(row, make_pod(f"p{number}", make_spec(number)))
    assert table.capacity == 4 * ROWS_INITIAL
    assert table.allocatable(CPU)[: 3 * ROWS_INITIAL].tolist() == list(range(3 * ROWS_INITIAL))
    assert len(table.label_codes("zone")) == len(table.requested(CPU)) == table.capacity
    table.validate()


def test_returned_columns_are_read_only() -> None:
    table = NodeTable()
    table.set_node(make_node("n"))
    arrays = (table.allocatable(CPU), table.requested(GPU), table.scoring_requested(MEMORY), table.pod_count)
    for array in (*arrays, table.taint_set, table.is_unschedulable, table.label_codes("zone")):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_row_with_pods_is_not_freed() -> None:
    table = NodeTable()
    table.add_pod(table.set_node(make_node("n")), make_pod("p"))
    with pytest.raises(AssertionError, match="1 pods"):
        table.remove_node("n")


def test_lowest_freed_row_is_reused_with_a_higher_version() -> None:
    table = NodeTable()
    rows = [table.set_node(make_node(name)) for name in ("a", "b", "c")]
    before = table.version(rows[0])
    table.remove_node("c")
    table.remove_node("a")
    assert table.set_node(make_node("d")) == rows[0]
    assert table.version(rows[0]) > before
    assert table.set_node(make_node("e")) == rows[2]


def test_pods_create_no_resource_columns() -> None:
    """Found by review: 256 made-up names on pods left no column for a real device."""
    table = NodeTable()
    row = table.set_node(make_node("n"))
    spec = make_spec()
    for number in range(RESOURCES_MAX + 10):
        odd = type(spec)(requests={f"x.io/r{number}": 1, GPU: 1})
        table.add_pod(row, make_pod(f"p{number}", odd))
    table.set_node(make_node("gpus", extra={GPU: 8}))
    gpus = table.row_of("gpus")
    assert gpus is not None
    assert table.allocatable(GPU)[gpus] == 8
    assert table.requested(GPU)[row] == RESOURCES_MAX + 10  # counted in when the column came
    table.validate()


@pytest.mark.parametrize("change", [{"labels": {"a": "b"}}, {"annotations": {"a": "b"}}, {"is_deleting": True}])
def test_changed_pod_raises_the_row_version(change: dict[str, object]) -> None:
    table = NodeTable()
    row = table.set_node(make_node("n"))
    pod = make_pod("p", name="p", labels={"app": "x"}, annotations={"team": "y"})
    table.add_pod(row, pod)
    before = table.version(row)
    equal = {"labels": dict(pod.labels), "annotations": dict(pod.annotations)}
    table.replace_pod(row, make_pod("p", pod.spec, phase="Running", **equal))
    assert table.version(row) == before
    table.replace_pod(row, make_pod("p", pod.spec, **change))
    assert table.version(row) == before + 1


def test_shrunken_node_keeps_its_pods_and_has_no_room() -> None:
    table = NodeTable()
    row = table.set_node(make_node("n"))
    table.add_pod(row, make_pod("p", make_spec(3000)))
    table.set_node(make_node("n", cpu_milli=1000))
    assert table.allocatable(CPU)[row] - table.requested(CPU)[row] == -2000
    assert np.array_equal(table.pod_count[[row]], [1])


def test_port_is_free_after_the_last_of_two_users_leaves() -> None:
    """Unlike kube-scheduler's HostPortInfo, a set that forgets the port with the first of them."""
    table = NodeTable()
    row = table.set_node(make_node("n"))
    for uid in ("first", "second"):
        table.add_pod(row, make_pod(uid, make_spec(port=80)))
    table.remove_pod(row, "first")
    assert table.port_users("TCP", 80) == {row: {"": 1}}
    table.remove_pod(row, "second")
    assert table.port_users("TCP", 80) == {}


def test_resource_of_no_node_is_zero_on_every_row() -> None:
    table = NodeTable()
    for number in range(ROWS_INITIAL + 1):
        for column in (table.allocatable("example.com/none"), table.requested("example.com/none")):
            assert column.dtype == np.int64
            assert len(column) >= table.size
            assert not column.any()
        table.set_node(make_node(f"n{number}", cpu_milli=1))


def test_requests_of_placed_pods_count_when_a_column_is_created_later() -> None:
    """A device plugin that starts late, or again: some of the node's pods have its devices, others never asked for one."""
    table = NodeTable()
    row = table.set_node(make_node("n"))
    for number, gpus in enumerate((2, 0, 1)):
        table.add_pod(row, make_pod(f"p{number}", make_spec(100, gpu=gpus)))
    table.set_node(make_node("n", version=2, extra={GPU: 8}))
    assert (table.requested(GPU)[row], table.allocatable(GPU)[row]) == (3, 8)


def test_label_of_no_node_is_forgotten() -> None:
    table = NodeTable()
    for name in ("a", "b"):
        table.set_node(Node(name, name, 1, labels={"zone": "x"}))
    table.label_codes("zone")
    table.set_node(Node("a", "a", 2))
    columns = table._labels
    assert set(columns._nodes_with) == set(columns._columns) == {"zone"}
    table.remove_node("b")
    assert set(columns._nodes_with) == set(columns._columns) == set()


def test_derived_columns_are_limited_and_stay_correct(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((resources, "BLOCKS_MAX"), (derived, "DERIVED_MAX"), (labels, "LABEL_COLUMNS_MAX")):
        monkeypatch.setattr(module, name, 2)
    table = NodeTable()
    rows = np.array(
        [table.set_node(make_node(f"n{n}", cpu_milli=1000 * n, labels={"a": f"{n}", "b": "x"})) for n in (1, 2)]
    )
    made: list[str] = []

    def column(key: str) -> list[int]:
        def derive(nodes: NodeView, at: Rows) -> Int64:
            made.append(key)
            return nodes.allocatable(CPU)[at] + len(key)

        found: list[int] = table.derived(key, derive, rows).tolist()
        return found

    assert (column("k"), column("kk"), column("k")) == ([1001, 2001], [1002, 2002], [1001, 2001])
    assert made == ["k", "kk"], "as many as are kept are made once"
    assert column("kkk") == [1003, 2003]
    assert column("k") == [1001, 2001]
    assert made == ["k", "kk", "kkk", "k"]
    for _ in range(2):
        for names in ((CPU,), (MEMORY,), (CPU, MEMORY), (MEMORY, CPU)):
            wanted = [[table.allocatable(name)[row] for row in rows.tolist()] for name in names]
            assert table.capacities(names, rows).tolist() == wanted
            assert table.capacity_range(names) == (float(np.min(wanted)), float(np.max(wanted)))
            assert max(len(table._resources._blocks), len(table._resources._ranges)) <= 2
        for key in ("a", "b", "c"):
            found = [table.label_values(key)[code] for code in table.label_codes(key)[rows].tolist()]
            assert found == [table.node(row).labels.get(key, "") for row in rows.tolist()]
            assert len(table._labels._columns) <= 2

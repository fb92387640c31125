"""GpuLedger against a model that knows one dictionary per device."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from domains.gpu.card_arrays import ABSENT, CARDS_FIRST, MEMORY, ROWS_FIRST, SIZE
from domains.gpu.card_row import least_free_first
from domains.gpu.cards import CARD_MILLI, Mode
from domains.gpu.demand import GpuDemand
from domains.gpu.dialects import demands_of
from domains.gpu.dialects.own import GPU_ALLOCATED, GPU_COUNT, GPU_DEVICES, GPU_MILLI
from domains.gpu.dialects.whole import GPU_INDICES, HONOURED
from domains.gpu.gpu_ledger import GpuLedger
from multisched.framework.ledger import Ledger, rebuild
from multisched.framework.node_view import Rows
from multisched.model.objects import Node, Pod
from multisched.testing.builders import GPU, make_node, make_pod

is_a_ledger: Ledger = GpuLedger()
"""mypy compares the class with the Protocol here."""


def whole(name: str, count: int = 1, **annotations: str) -> Pod:
    return make_pod(name, extra={GPU: count}, annotations=annotations)


def fraction(name: str, milli: int, count: int = 1, devices: str = "") -> Pod:
    annotations = {GPU_MILLI: str(milli), GPU_COUNT: str(count)}
    return make_pod(name, annotations=annotations | ({GPU_DEVICES: devices} if devices else {}))


def bound(pod: Pod, annotations: dict[str, str]) -> Pod:
    return make_pod(pod.name, spec=pod.spec, annotations={**pod.annotations, **annotations}, node="n")


def make_ledger(*nodes: Node) -> GpuLedger:
    ledger = GpuLedger()
    for row, node in enumerate(nodes):
        ledger.set_node(row, node)
    return ledger


def demand_of(pod: Pod) -> GpuDemand:
    return demands_of(pod).by_mode[Mode.WHOLE]


def free_milli(ledger: GpuLedger, rows: Rows) -> list[list[int]]:
    """Returns, per row, what the arrays say is free of each card, in thousandths."""
    memory, size = ledger.arrays.layer(MEMORY, rows), ledger.arrays.layer(SIZE, rows)
    assert ((memory == ABSENT) == (size == ABSENT)).all()
    return [
        [CARD_MILLI * one // all_of_it for one, all_of_it in zip(free, sizes, strict=True) if all_of_it != ABSENT]
        for free, sizes in zip(memory.T.tolist(), size.T.tolist(), strict=True)
    ]


def has_room(ledger: GpuLedger, row: int, demands: list[GpuDemand]) -> list[bool]:
    return [bool(ledger.has_room(demand, np.array([row]))[0]) for demand in demands]


def test_fractions_share_the_fullest_device_with_enough_capacity() -> None:
    ledger = make_ledger(make_node("n", extra={GPU: 3}))

    taken = [ledger.take(fraction(f"p{i}", milli), 0)[GPU_DEVICES] for i, milli in enumerate([600, 500, 400, 300, 200])]

    assert taken == ["0", "1", "0", "1", "1"]


def test_a_pod_on_two_devices_gets_two_different_ones() -> None:
    ledger = make_ledger(make_node("n", extra={GPU: 2}))

    assert ledger.take(fraction("wide", 700, count=2), 0) == {GPU_DEVICES: "0,1", GPU_ALLOCATED: "700"}
    assert ledger.fits(fraction("late", 400), 0) == "Insufficient gpu-milli"
    assert ledger.fits(fraction("late", 300, count=2), 0) == ""


def test_whole_pod_is_refused_where_the_kubelet_ignores_indices_of_fractions() -> None:
    ledger = make_ledger(make_node("n", extra={GPU: 4}))
    ledger.take(fraction("infer", 10), 0)

    assert ledger.fits(whole("train"), 0) == "node(s) had GPUs shared by fractional pods"


def test_fraction_is_refused_where_devices_of_whole_pods_are_unknown() -> None:
    ledger = make_ledger(make_node("n", extra={GPU: 4}))
    ledger.take(whole("train"), 0)

    assert ledger.fits(fraction("infer", 10), 0) == "node(s) had GPUs taken by whole-GPU pods"


def test_fraction_of_several_devices_needs_all_of_them_together() -> None:
    ledger = make_ledger(make_node("n", extra={GPU: 8}))
    pod = fraction("wide", 250, count=3)

    assert ledger.device_demand(pod) == {GPU: 750}
    assert ledger.device_demand(bound(pod, dict(ledger.take(pod, 0)))) == {GPU: 750}
    assert ledger.device_demand(whole("train", 2)) == {}, "the request counts already"


def test_chosen_devices_are_checked_again_after_a_change_of_the_row() -> None:
    ledger = make_ledger(make_node("n", extra={GPU: 1}))
    late = fraction("late", 600)
    choice = ledger.choose(late, 0, lambda demand, cards: least_free_first)
    assert ledger.fits(late, 0, choice) == ""

    ledger.restore(bound(fraction("early", 600), {GPU_DEVICES: "0", GPU_ALLOCATED: "600"}), 0)

    assert ledger.fits(late, 0, choice) == "Insufficient gpu-milli"


def test_a_pod_with_devices_fits_only_on_these() -> None:
    ledger = make_ledger(make_node("n", extra={GPU: 2}))
    pod = fraction("pod", 600)
    ledger.take(pod, 0)

    choice = ledger.choose(pod, 0, lambda demand, cards: least_free_first)

    assert choice == (1,)
    assert ledger.fits(pod, 0, choice) == "the pod holds GPUs 0 there"


def test_both_kinds_share_an_index_honouring_node_on_separate_devices() -> None:
    ledger = make_ledger(make_node("n", extra={GPU: 2}, labels={GPU_INDICES: HONOURED}))

    assert ledger.take(whole("train"), 0) == {GPU_DEVICES: "0"}
    assert ledger.take(fraction("infer", 10), 0) == {GPU_DEVICES: "1", GPU_ALLOCATED: "10"}
    assert ledger.fits(whole("late"), 0) == "Insufficient nvidia.com/gpu"
    assert ledger.fits(fraction("late", 990), 0) == ""
    assert ledger.fits(fraction("later", 991), 0) == "Insufficient gpu-milli"


def test_taking_twice_changes_nothing() -> None:
    ledger = make_ledger(make_node("n", extra={GPU: 2}))
    first = ledger.take(fraction("p", 500), 0)
    version = ledger.version(0)

    assert ledger.take(fraction("p", 500), 0) == first
    assert ledger.version(0) == version
    assert ledger.fits(fraction("p", 1000), 0) == ""


def test_bound_pod_confirmed_by_the_watch_changes_nothing() -> None:
    ledger = make_ledger(make_node("n", extra={GPU: 2}))
    pod = fraction("p", 500)
    annotations = ledger.take(pod, 0)
    version, held = ledger.version(0), ledger.held()

    ledger.restore(bound(pod, dict(annotations)), 0)

    assert (ledger.version(0), ledger.held()) == (version, held)


def test_pod_seen_on_another_node_holds_nothing_on_the_first() -> None:
    ledger = make_ledger(make_node("first", extra={GPU: 1}), make_node("second", extra={GPU: 1}))
    pod = whole("p")
    annotations = ledger.take(pod, 0)

    ledger.restore(bound(pod, dict(annotations)), 1)

    assert [ledger.cards(row).free_milli for row in (0, 1)] == [[1000], [0]]
    assert [ledger.fits(whole("late"), row) for row in (0, 1)] == ["", "Insufficient nvidia.com/gpu"]


def test_taking_without_capacity_raises_an_assertion_error() -> None:
    ledger = make_ledger(make_node("n", extra={GPU: 1}))
    ledger.take(whole("first"), 0)

    with pytest.raises(AssertionError, match="I1"):
        ledger.take(whole("second"), 0)


def test_bound_fraction_of_unknown_device_counts_on_every_device() -> None:
    ledger = make_ledger(make_node("n", extra={GPU: 2}))
    ledger.restore(fraction("odd", 300, devices="first"), 0)

    assert ledger.cards(0).free_milli == [700, 700]


@pytest.mark.parametrize("annotation", ["nonsense", "0", "5000"])
def test_bound_pod_with_an_invalid_amount_counts_as_a_whole_device(annotation: str) -> None:
    ledger = make_ledger(make_node("n", extra={GPU: 2}))
    ledger.restore(make_pod("odd", annotations={GPU_MILLI: annotation, GPU_DEVICES: "1"}), 0)

    assert ledger.cards(0).free_milli == [1000, 0]


def test_annotations_written_at_bind_count_over_later_edits() -> None:
    ledger = make_ledger(make_node("n", extra={GPU: 2}))
    ledger.restore(make_pod("p", annotations={GPU_MILLI: "1", GPU_DEVICES: "1", GPU_ALLOCATED: "600"}), 0)

    assert ledger.cards(0).free_milli == [1000, 400]


@pytest.mark.parametrize("count", [1, 3])
def test_whole_devices_are_counted_by_request_despite_annotations(count: int) -> None:
    ledger = make_ledger(make_node("n", extra={GPU: 4}))
    annotations = {GPU_MILLI: "1", GPU_DEVICES: "0,1", GPU_ALLOCATED: "1"}
    ledger.restore(make_pod("p", extra={GPU: count}, annotations=annotations), 0)

    assert ledger.cards(0).free_milli.count(1000) == 4 - count


@pytest.mark.parametrize("scheduler", ["gpu-scheduler", "default-scheduler"])
def test_foreign_pod_without_a_gpu_request_holds_none(scheduler: str) -> None:
    ledger = GpuLedger(frozenset({"gpu-scheduler"}))
    ledger.set_node(0, make_node("n", extra={GPU: 2}))
    ledger.restore(make_pod("stranger", annotations={GPU_MILLI: "1000", GPU_COUNT: "2"}, scheduler=scheduler), 0)

    assert ledger.cards(0).free_milli == [1000, 1000]
    assert dict(ledger.held()) == {}


def test_device_annotations_count_only_on_pods_of_own_schedulers() -> None:
    ledger = GpuLedger(frozenset({"gpu-scheduler"}))
    ledger.set_node(0, make_node("n", extra={GPU: 2}))
    given = {GPU_DEVICES: "0", GPU_ALLOCATED: "700"}
    ledger.restore(make_pod("forged", annotations=given, scheduler="default-scheduler"), 0)
    assert ledger.cards(0).free_milli == [1000, 1000]

    ledger.restore(make_pod("ours", annotations=given, scheduler="gpu-scheduler"), 0)
    assert ledger.cards(0).free_milli == [300, 1000]
    assert dict(ledger.empty_copy().held()) == {}


@pytest.mark.parametrize("annotations", [{}, {GPU_MILLI: "1"}, {GPU_MILLI: "1000", GPU_DEVICES: "1"}])
def test_annotations_of_a_placed_pod_do_not_change_its_devices(annotations: dict[str, str]) -> None:
    ledger = make_ledger(make_node("n", extra={GPU: 2}))
    ledger.take(fraction("p", 600), 0)
    version = ledger.version(0)

    ledger.restore(make_pod("p", annotations=annotations, node="n"), 0)

    assert ledger.cards(0).free_milli == [400, 1000]
    assert ledger.version(0) == version


def test_foreign_whole_pods_count_with_unknown_or_equal_devices() -> None:
    ledger = make_ledger(make_node("n", extra={GPU: 4}))
    ledger.restore(whole("unknown"), 0)
    for name in ("a", "b"):
        ledger.restore(make_pod(name, extra={GPU: 1}, annotations={GPU_DEVICES: "0"}), 0)

    assert ledger.fits(whole("one"), 0) == ""
    assert ledger.fits(whole("two", 2), 0) == "Insufficient nvidia.com/gpu"


def test_devices_that_return_to_a_node_are_still_held() -> None:
    ledger = make_ledger(make_node("n", extra={GPU: 2}))
    ledger.take(fraction("p", 800, count=2), 0)

    ledger.set_node(0, make_node("n", extra={GPU: 1}))
    assert ledger.fits(fraction("late", 300), 0) == "Insufficient gpu-milli"
    ledger.set_node(0, make_node("n", extra={GPU: 3}))
    assert ledger.take(fraction("late", 300), 0)[GPU_DEVICES] == "2"


def test_a_node_without_gpus_refuses_every_demand() -> None:
    ledger = make_ledger(make_node("n"))

    assert ledger.fits(whole("p"), 0) == "Insufficient nvidia.com/gpu"
    assert ledger.fits(fraction("p", 1), 0) == "Insufficient gpu-milli"
    assert ledger.fits(whole("p"), 10_000) == "Insufficient nvidia.com/gpu"
    assert ledger.fits(make_pod("plain"), 0) == ""


@pytest.mark.parametrize("count", [9, 256, 10**18])
def test_absurd_device_counts_are_bounded(count: int) -> None:
    ledger = make_ledger(make_node("n", allocatable={GPU: count}))

    assert [len(free) for free in free_milli(ledger, np.array([0]))] == [min(count, 256)]
    assert ledger.fits(whole("p", 9), 0) == ""


ROWS = 3
DEVICES = (2, 3, 4)


class LedgerMachine(RuleBasedStateMachine):
    """Row 2 honours indices; rows 0 and 1 do not. Only our own scheduler binds: what is bound carries its annotation."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = GpuLedger()
        self.nodes = [
            make_node(f"n{row}", extra={GPU: DEVICES[row]}, labels={GPU_INDICES: HONOURED} if row == 2 else {})
            for row in range(ROWS)
        ]
        for row, node in enumerate(self.nodes):
            self.ledger.set_node(row, node)
        self.devices: list[list[dict[str, int]]] = [[{} for _ in range(count)] for count in DEVICES]
        self.pods: dict[str, tuple[Pod, int]] = {}
        self.serial = 0

    def model_fits(self, pod: Pod, row: int) -> bool:
        demand = demand_of(pod)
        if row != 2 and any(self.is_whole(other) != demand.is_whole for other, at in self.pods.values() if at == row):
            return False
        room = [sum(users.values()) + demand.amount.milli <= 1000 for users in self.devices[row]]
        return sum(room) >= demand.count

    @staticmethod
    def is_whole(pod: Pod) -> bool:
        return pod.requests.get(GPU, 0) > 0

    @rule(
        milli=st.sampled_from([0, 1, 100, 250, 333, 500, 501, 999, 1000]),
        count=st.integers(1, 4),
        row=st.integers(0, ROWS - 1),
    )
    def take(self, milli: int, count: int, row: int) -> None:
        self.serial += 1
        pod = fraction(f"p{self.serial}", milli, count) if milli else whole(f"p{self.serial}", count)
        before = self.ledger.version(row)
        reason = self.ledger.fits(pod, row)
        assert (reason == "") == self.model_fits(pod, row), reason
        if reason:
            assert self.ledger.version(row) == before
            return
        annotations = dict(self.ledger.take(pod, row))
        demand = demand_of(pod)
        chosen = [int(index) for index in annotations[GPU_DEVICES].split(",")]
        assert len(set(chosen)) == demand.count
        assert self.ledger.version(row) > before
        for device in chosen:
            self.devices[row][device][pod.uid] = demand.amount.milli
        self.pods[pod.uid] = (bound(pod, annotations), row)

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def give(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.pods)))
        _, row = self.pods.pop(uid)
        before = self.ledger.version(row)
        self.ledger.release(uid)
        self.ledger.release(uid)
        assert self.ledger.version(row) == before + 1
        for users in self.devices[row]:
            users.pop(uid, None)

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        pod, row = self.pods[data.draw(st.sampled_from(sorted(self.pods)))]
        before = self.ledger.version(row)
        self.ledger.restore(pod, row)
        assert self.ledger.version(row) == before

    @rule(row=st.integers(0, ROWS - 1))
    def node_flaps(self, row: int) -> None:
        self.ledger.set_node(row, None)
        assert self.ledger.fits(whole("probe"), row) != ""
        self.ledger.set_node(row, self.nodes[row])

    @invariant()
    def no_device_is_overcommitted_and_the_arrays_tell_the_truth(self) -> None:
        rows = np.arange(ROWS)
        free, is_held = free_milli(self.ledger, rows), self.ledger.arrays.is_held(rows)
        for row in range(ROWS):
            expected = [1000 - sum(users.values()) for users in self.devices[row]]
            assert min(expected) >= 0
            assert self.ledger.cards(row).free_milli == expected
            assert free[row] == expected
            assert is_held[row] == any(users for users in self.devices[row])

    @invariant()
    def a_rebuilt_twin_holds_the_same(self) -> None:
        twin = rebuild(self.ledger, enumerate(self.nodes), self.pods.values())
        assert twin.held() == self.ledger.held()


TestLedgerMachine = LedgerMachine.TestCase


def test_ledger_grows_with_rows_and_devices() -> None:
    """As a ledger of one row says it, so does one of many."""
    few, many, row = make_ledger(make_node("n", extra={GPU: 20})), GpuLedger(), 700
    many.set_node(row, make_node("n", extra={GPU: 20}))
    pods = [whole("train", 3), fraction("infer", 400, 2), fraction("infer-2", 700), whole("late", 17)]
    for pod in pods:
        assert many.fits(pod, row) == few.fits(pod, 0)
        if not few.fits(pod, 0):
            assert many.take(pod, row) == few.take(pod, 0)
        here, there = np.array([row]), np.array([0])
        assert free_milli(many, here) == free_milli(few, there)
        assert many.arrays.is_held(here).tolist() == few.arrays.is_held(there).tolist()
        for is_whole in (True, False):
            assert (
                many.arrays.bars(here, is_whole=is_whole).tolist() == few.arrays.bars(there, is_whole=is_whole).tolist()
            )
        wide = [demand_of(fraction("wide", 600, count)) for count in (1, 18, 20, 21)]
        assert has_room(many, row, wide) == has_room(few, 0, wide)
        assert many.sums(row) == few.sums(0)
    others = np.array([0, 63, row - 1, row + 1])
    assert not many.arrays.is_held(others).any()
    assert free_milli(many, others) == [[]] * len(others)
    assert not many.arrays.bars(others, is_whole=True).any()
    assert not any(many.has_room(demand_of(fraction("wide", 1, count)), others).any() for count in (1, 18, 20))
    assert [many.version(one) for one in others.tolist()] == [0] * len(others)
    assert many.version(row) == few.version(0)
    assert many.arrays.is_held(np.arange(3 * row, 3 * row + 2)).tolist() == [False, False]
    for beyond in (ROWS_FIRST, 5 * ROWS_FIRST):
        assert GpuLedger().version(beyond) == GpuLedger().version(0) == 0
        assert GpuLedger().sums(beyond) == GpuLedger().sums(0)


def test_pod_fits_on_devices_that_it_holds_itself() -> None:
    ledger = make_ledger(make_node("n", extra={GPU: 1}), make_node("other", extra={GPU: 1}))
    for row, name in enumerate(("one", "two")):
        ledger.take(whole(name), row)
    assert [ledger.fits(whole(name), 0) for name in ("one", "two")] == ["", "Insufficient nvidia.com/gpu"]


@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4], [0, 3], [1, 4], [0, 2, 4], [2], [1, 2, 4]])
def test_results_of_a_row_are_independent_of_other_requested_rows(rows: list[int]) -> None:
    ledger = make_ledger(*(make_node(f"n{devices}", extra={GPU: devices}) for devices in range(5)))
    assert free_milli(ledger, np.array(rows)) == [[1000] * devices for devices in rows]
    assert ledger.has_room(demand_of(whole("p", 3)), np.array(rows)).tolist() == [devices >= 3 for devices in rows]


@pytest.mark.parametrize("devices", [1, CARDS_FIRST, CARDS_FIRST + 1, 4 * CARDS_FIRST])
def test_demand_for_all_devices_fits_and_for_more_does_not(devices: int) -> None:
    ledger = make_ledger(make_node("n", extra={GPU: devices}))
    demands = [demand_of(fraction("wide", 1000, count)) for count in (devices, devices + 1, 8 * devices)]
    assert has_room(ledger, 0, demands) == [True, False, False]

"""Reading what pods ask of GPUs: good demands, and every bad annotation with its fix."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domains.gpu.cards import CARDS_MAX, Amount, Mode
from domains.gpu.demand import GpuDemand, Part, indices_in, indices_text
from domains.gpu.dialects import demands_of, gpu_keys
from domains.gpu.dialects.own import GPU_COUNT, GPU_DEVICES, GPU_MILLI, OwnDialect
from domains.gpu.dialects.whole import WHOLE_GPUS, WholeDialect
from multisched.model.objects import Pod
from multisched.testing.builders import GPU, make_pod


def demand_of(pod: Pod) -> GpuDemand:
    """Returns the demand on nodes without a sharing system."""
    return demands_of(pod).by_mode[Mode.WHOLE]


def test_a_pod_without_gpus_has_no_demand() -> None:
    pod = make_pod("web", cpu_milli=500, annotations={"example.com/gpu-milli": "1"})

    assert not demands_of(pod)
    assert not gpu_keys().are_used_by(pod)


def test_a_request_asks_for_whole_devices() -> None:
    demand = demand_of(make_pod("train", extra={GPU: 4}))

    assert demand.parts == (Part(4, Amount(milli=1000), needs_unused=True),)
    assert demand.is_whole
    assert (demand.resource, demand.count_key, demand.amount_key) == (GPU, GPU, "")
    assert demand.problem == ""
    assert demand.quota_milli == 0, "the request counts already"


@pytest.mark.parametrize("resource", WHOLE_GPUS)
def test_whole_devices_of_every_vendor_are_a_demand(resource: str) -> None:
    pod = make_pod("train", extra={resource: 2})

    demand = demand_of(pod)

    assert (demand.resource, demand.count, demand.is_whole) == (resource, 2, True)
    assert gpu_keys().are_used_by(pod)


def test_gpu_request_counts_units_on_nodes_that_share_gpus() -> None:
    by_mode = demands_of(make_pod("train", extra={GPU: 4})).by_mode

    assert {mode for mode, demand in by_mode.items() if demand.is_counted} == {Mode.SHARED, Mode.MIG}
    assert {mode for mode, demand in by_mode.items() if demand.is_whole} == {Mode.WHOLE}


@pytest.mark.parametrize("resource", ["nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb"])
def test_separately_named_units_are_no_whole_devices(resource: str) -> None:
    pod = make_pod("infer", extra={resource: 2})

    assert gpu_keys().are_used_by(pod)
    assert demands_of(pod).by_mode.keys() == {Mode.SHARED, Mode.MIG}
    assert demands_of(pod).first.is_counted


def test_a_pod_that_uses_two_dialects_is_refused_with_both_names() -> None:
    pod = make_pod("odd", annotations={GPU_MILLI: "250"}, extra={"nvidia.com/mig-1g.5gb": 1})

    assert demands_of(pod).problem == (
        "the pod requests GPUs in two ways, counted-GPU and multisched; write only one of them"
    )


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({GPU_MILLI: "1"}, Part(1, Amount(milli=1))),
        ({GPU_MILLI: "250"}, Part(1, Amount(milli=250))),
        ({GPU_MILLI: "1000"}, Part(1, Amount(milli=1000))),
        ({GPU_MILLI: "500", GPU_COUNT: "2"}, Part(2, Amount(milli=500))),
    ],
)
def test_annotations_ask_for_fractions(annotations: dict[str, str], expected: Part) -> None:
    demands = demands_of(make_pod("infer", annotations=annotations))

    assert demands.by_mode.keys() == {Mode.WHOLE}
    assert demands.first.parts == (expected,)
    assert not demands.first.is_whole
    assert (demands.first.resource, demands.first.amount_key, demands.first.count_key) == (
        "gpu-milli",
        GPU_MILLI,
        GPU_COUNT,
    )
    assert demands.first.quota_milli == expected.count * expected.amount.milli
    assert demands.problem == ""


@pytest.mark.parametrize("text", ["", "0", "1001", "-1", "0.5", "half", "1e2", " 100", "٣", "9" * 5000])
def test_invalid_fraction_is_refused_with_a_fix_and_counts_as_whole(text: str) -> None:
    demand = demand_of(make_pod("infer", annotations={GPU_MILLI: text}))

    assert GPU_MILLI in demand.problem
    assert "1..1000" in demand.problem
    assert len(demand.problem) < 250
    assert (demand.amount.milli, demand.count, demand.quota_milli) == (1000, 1, 0)


MILLI_MISTAKEN = (
    "annotation multisched.io/gpu-milli: 'half' is not an integer of 1..1000; "
    "write thousandths of one device, or request nvidia.com/gpu for several whole ones"
)
COUNT_MISTAKEN = "annotation multisched.io/gpu-count: 'x' is not an integer of 1..256; write the number of devices"
COUNT_ALONE = (
    "annotation multisched.io/gpu-count: requires multisched.io/gpu-milli; write how much of each device the pod takes"
)
WHOLE_TOO = "the pod also requests whole nvidia.com/gpu; remove the annotation or the request"


@pytest.mark.parametrize(
    ("annotations", "requests", "problem"),
    [
        ({GPU_MILLI: "half"}, {}, MILLI_MISTAKEN),
        ({GPU_MILLI: "500", GPU_COUNT: "x"}, {}, COUNT_MISTAKEN),
        ({GPU_COUNT: "2"}, {}, COUNT_ALONE),
        ({GPU_MILLI: "500"}, {GPU: 1}, f"annotation multisched.io/gpu-milli: {WHOLE_TOO}"),
        ({GPU_COUNT: "2"}, {GPU: 1}, f"annotation multisched.io/gpu-count: {WHOLE_TOO}"),
    ],
)
def test_invalid_annotation_is_reported_by_name_with_the_fix(
    annotations: dict[str, str], requests: dict[str, int], problem: str
) -> None:
    demands = demands_of(make_pod("odd", annotations=annotations, extra=requests))

    assert {demand.problem for demand in demands.by_mode.values()} == {problem}
    assert demands.problem == problem
    assert demands.first.quota_milli == 0


def test_absurd_number_of_devices_is_capped() -> None:
    demand = demand_of(make_pod("odd", extra={GPU: 10**9}))

    assert demand.count == CARDS_MAX + 1, "no node takes it, and no array is made for it"


def test_placed_pod_with_both_kinds_of_request_holds_whole_devices() -> None:
    annotations = {GPU_MILLI: "500", GPU_DEVICES: "0,1"}
    pod = make_pod("odd", annotations=annotations, extra={GPU: 2}, node="n")

    assert OwnDialect().hold(pod, is_ours=True) is None
    hold = WholeDialect().hold(pod, is_ours=True)
    assert hold is not None
    assert (hold.is_whole, hold.count, hold.devices) == (True, 2, (0, 1))


@given(st.sets(st.integers(0, 255), min_size=1))
def test_device_lists_read_back_equal(devices: set[int]) -> None:
    ascending = tuple(sorted(devices))
    assert indices_in(indices_text(ascending)) == ascending


@pytest.mark.parametrize(("text", "devices"), [("255", (255,)), (" 1, 0 ", (0, 1)), ("0007", (7,))])
def test_device_list_is_read_in_every_notation(text: str, devices: tuple[int, ...]) -> None:
    assert indices_in(text) == devices


@pytest.mark.parametrize("text", ["", "a", "0,a", "-1", "0,0", "256", "00001", "0;1", "0," * 9000])
def test_an_unreadable_device_list_names_no_device(text: str) -> None:
    assert indices_in(text) == ()

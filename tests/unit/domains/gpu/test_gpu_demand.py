"""Reading what pods ask of GPUs: good demands, and every bad annotation with its fix."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domains.gpu.demand import (
    DEVICES_MAX,
    GPU_COUNT,
    GPU_DEVICES,
    GPU_MILLI,
    GpuDemand,
    demand_of,
    devices_of,
    devices_text,
)
from multisched.testing.builders import GPU, make_pod


def test_a_pod_without_gpus_has_no_demand() -> None:
    assert demand_of(make_pod("web", cpu_milli=500)) is None


def test_a_request_asks_for_whole_devices() -> None:
    assert demand_of(make_pod("train", extra={GPU: 4})) == GpuDemand(1000, 4, is_whole=True)


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({GPU_MILLI: "1"}, GpuDemand(1, 1, is_whole=False)),
        ({GPU_MILLI: "250"}, GpuDemand(250, 1, is_whole=False)),
        ({GPU_MILLI: "1000"}, GpuDemand(1000, 1, is_whole=False)),
        ({GPU_MILLI: "500", GPU_COUNT: "2"}, GpuDemand(500, 2, is_whole=False)),
    ],
)
def test_annotations_ask_for_fractions(annotations: dict[str, str], expected: GpuDemand) -> None:
    assert demand_of(make_pod("infer", annotations=annotations)) == expected


@pytest.mark.parametrize("text", ["", "0", "1001", "-1", "0.5", "half", "1e2", " 100", "٣", "9" * 5000])
def test_a_bad_fraction_is_refused_by_name_with_a_fix_and_counts_as_a_whole_device(text: str) -> None:
    demand = demand_of(make_pod("infer", annotations={GPU_MILLI: text}))

    assert demand is not None
    assert GPU_MILLI in demand.problem
    assert "1..1000" in demand.problem
    assert len(demand.problem) < 250
    assert (demand.milli, demand.count) == (1000, 1)


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
def test_mistakes_are_told_by_the_annotations_name_with_the_fix(
    annotations: dict[str, str], requests: dict[str, int], problem: str
) -> None:
    demand = demand_of(make_pod("odd", annotations=annotations, extra=requests))

    assert demand is not None
    assert demand.problem == problem


def test_a_pod_that_asks_in_both_ways_counts_as_asking_for_whole_devices() -> None:
    absurd = demand_of(make_pod("odd", annotations={GPU_MILLI: "500"}, extra={GPU: 10**9}))
    assert absurd is not None
    assert absurd.count == DEVICES_MAX + 1  # no node takes it, and no array is made for it
    demand = demand_of(make_pod("odd", annotations={GPU_MILLI: "500"}, extra={GPU: 2}))

    assert demand == GpuDemand(1000, 2, is_whole=True, problem=f"annotation multisched.io/gpu-milli: {WHOLE_TOO}")


@given(st.sets(st.integers(0, 255), min_size=1))
def test_device_lists_are_read_back_as_written(devices: set[int]) -> None:
    ascending = tuple(sorted(devices))
    assert devices_of(make_pod("p", annotations={GPU_DEVICES: devices_text(ascending)})) == ascending


@pytest.mark.parametrize(("text", "devices"), [("255", (255,)), (" 1, 0 ", (0, 1)), ("0007", (7,))])
def test_a_device_list_is_read_however_it_is_written(text: str, devices: tuple[int, ...]) -> None:
    assert devices_of(make_pod("p", annotations={GPU_DEVICES: text})) == devices


@pytest.mark.parametrize("text", ["", "a", "0,a", "-1", "0,0", "256", "00001", "0;1", "0," * 9000])
def test_an_unreadable_device_list_names_no_device(text: str) -> None:
    assert devices_of(make_pod("p", annotations={GPU_DEVICES: text})) == ()

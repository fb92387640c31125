"""Nodes on which a pod with GPUs certainly fits, and nodes where that is unknown."""

from __future__ import annotations

import pytest

from multisched.model.objects import Pod
from multisched.testing.builders import make_node, make_pod
from tests.kit.checkers.device_rules import fault_of_choice, surely_fits
from tests.kit.world.labels import GPU, GPU_COUNT, GPU_DEVICES, GPU_MILLI

FOUR = make_node("n", extra={GPU: 4})


def pod(
    name: str = "p", whole: int = 0, *, node: str = "", scheduler: str = "gpu-scheduler", **annotations: str
) -> Pod:
    keys = {"milli": GPU_MILLI, "count": GPU_COUNT, "devices": GPU_DEVICES}
    told = {keys[key]: value for key, value in annotations.items()}
    extra = {GPU: whole} if whole else {}
    return make_pod(name, extra=extra, scheduler=scheduler, node=node, annotations=told)


@pytest.mark.parametrize(
    ("wanted", "there", "fits"),
    [
        (pod(), [pod("a", 4, node="n")], True),
        (pod(whole=4), [], True),
        (pod(whole=4), [pod("a", 1, node="n")], False),
        (pod(whole=1), [pod("a", 3, node="n")], True),
        (pod(whole=1), [pod("a", node="n", milli="250", devices="0")], False),
        (pod(milli="250"), [pod("a", 1, node="n")], False),
        (pod(milli="250"), [pod("a", node="n", milli="900", devices="0,1,2")], True),
        (pod(milli="250"), [pod("a", node="n", milli="900", devices="0,1,2,3")], False),
        (pod(milli="250", count="4"), [], True),
        (pod(milli="250", count="5"), [], False),
        (pod(milli="250"), [pod("a", milli="900", count="4")], False),
        (pod(milli="250"), [pod("a", node="n", milli="900", scheduler="default-scheduler")], True),
        (pod(milli="250"), [pod("a", node="n", milli="900", devices="7")], False),
        (pod(milli="half"), [], False),
        (pod(whole=1, milli="500"), [], False),
        (pod(count="2"), [], False),
    ],
)
def test_pod_surely_fits_if_enough_devices_are_free_for_any_choice(wanted: Pod, there: list[Pod], fits: bool) -> None:
    assert surely_fits(wanted, FOUR, there) == fits


@pytest.mark.parametrize(
    ("free", "devices", "is_wrong"),
    [
        ((1000, 500), (1,), False),
        ((1000, 500), (0,), True),
        ((1000, 200), (0,), False),
        ((500, 500), (1,), False),
        ((1000, 500, 400), (1, 2), False),
        ((1000, 500, 400), (0, 2), True),
        ((500,), (0,), False),
    ],
)
def test_fraction_uses_the_fullest_devices_with_enough_capacity(
    free: tuple[int, ...], devices: tuple[int, ...], is_wrong: bool
) -> None:
    assert bool(fault_of_choice(free, devices, 250)) is is_wrong

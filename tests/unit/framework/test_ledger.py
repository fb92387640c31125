"""The Ledger protocol, kept by every ledger that ships."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domains.forecast.curves.predictor import Predictor
from domains.forecast.ledger.peak_ledger import PeakLedger
from domains.gpu.dialects.own import GPU_MILLI
from domains.gpu.gpu_ledger import GpuLedger
from multisched.cycle.results import Unplaced
from multisched.framework.ledger import Ledger, rebuild
from multisched.model.objects import Node, Pod
from multisched.testing.builders import GPU, make_node, make_pod
from multisched.testing.builders import make_node as cycle_node
from multisched.testing.builders import make_pod as cycle_pod
from tests.unit.cycle.cycle_kit import Domain

T = TypeVar("T")

ROWS = 3
NODES = [(row, make_node(f"n{row}", extra={GPU: 2}, cpu_milli=8000)) for row in range(ROWS)]


def make_gpus() -> Ledger:
    return GpuLedger()


def make_peaks() -> Ledger:
    return PeakLedger("predicted-peaks/test", Predictor(("cpu",)), {})


def pod(number: int) -> Pod:
    """Of the service `web`, with a third of a device."""
    return make_pod(f"p{number}", labels={"multisched.io/service": "web"}, annotations={GPU_MILLI: "333"})


def bound(number: int, annotations: dict[str, str]) -> Pod:
    before = pod(number)
    return make_pod(
        before.name, labels=before.labels, annotations={**before.annotations, **annotations}, node="somewhere"
    )


steps = st.lists(
    st.tuples(st.sampled_from(["take", "release", "confirm"]), st.integers(0, 7), st.integers(0, ROWS - 1))
)


@pytest.mark.parametrize("make", [make_gpus, make_peaks])
@given(steps=steps)
def test_held_amounts_equal_those_of_a_rebuilt_copy(
    make: Callable[[], Ledger], steps: list[tuple[str, int, int]]
) -> None:
    ledger = make()
    for row, node in NODES:
        ledger.set_node(row, node)
    placed: dict[int, tuple[Pod, int]] = {}
    for step, number, row in steps:
        version = [ledger.version(at) for at in range(ROWS)]
        if step == "release":
            ledger.release(pod(number).uid)
            was = placed.pop(number, None)
            assert was is None or ledger.version(was[1]) > version[was[1]]
        elif step == "take" and number not in placed and not ledger.fits(pod(number), row):
            annotations = dict(ledger.take(pod(number), row))
            assert dict(ledger.take(pod(number), row)) == annotations, "taken twice is taken once"
            placed[number] = bound(number, annotations), row
            assert ledger.version(row) > version[row]
        elif step == "confirm" and number in placed:
            ledger.restore(*placed[number])
        assert ledger.held().keys() == {pod(n).uid for n in placed}

    assert dict(rebuild(ledger, NODES, placed.values()).held()) == dict(ledger.held())
    assert dict(ledger.empty_copy().held()) == {}


@pytest.mark.parametrize("make", [make_gpus, make_peaks])
def test_unconcerned_and_unknown_pods_are_ignored(make: Callable[[], Ledger]) -> None:
    ledger = make()
    ledger.set_node(*NODES[0])
    ledger.release("never-heard-of")

    assert ledger.is_used_by(pod(0))
    assert dict(ledger.held()) == {}
    assert ledger.name


class Flawed:
    """A ledger that fails as it is told, else one that takes everything."""

    name = "flawed"

    def __init__(self, at: str) -> None:
        self._at = at
        self.taken: set[str] = set()

    def is_used_by(self, pod: Pod) -> bool:
        return self._answer("is_used_by", True)

    def version(self, row: int) -> int:
        return len(self.taken)

    def fits(self, pod: Pod, row: int) -> str:
        return self._answer("fits", "")

    def take(self, pod: Pod, row: int) -> Mapping[str, str]:
        self.taken.add(pod.uid)
        return self._answer("take", {})

    def restore(self, pod: Pod, row: int) -> None:
        self.taken.add(pod.uid)

    def release(self, uid: str) -> None:
        self.taken.discard(uid)

    def set_node(self, row: int, node: Node | None) -> None:
        """Keeps nothing by node."""

    def held(self) -> Mapping[str, object]:
        return dict.fromkeys(self.taken, ())

    def empty_copy(self) -> Flawed:
        return Flawed("")

    def _answer(self, point: str, answer: T) -> T:
        if point == self._at:
            raise RuntimeError("boom")
        return answer


@pytest.mark.parametrize("at", ["fits", "take"])
def test_failed_ledger_fails_one_attempt_and_holds_nothing(at: str) -> None:
    domain, flawed = Domain(cycle_node("a")), Flawed(at)
    domain.cache.ledgers.register(flawed)

    result = domain.schedule(cycle_pod("p", cpu_milli=100))
    assert isinstance(result, Unplaced)
    assert result.is_error
    assert result.message == 'running Ledger "flawed": RuntimeError: boom'
    assert flawed.taken == set()
    assert len(domain.cache) == 0
    domain.cache.validate()

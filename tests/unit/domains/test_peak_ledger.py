"""PeakLedger: sums that never drift, whatever comes and goes in whatever order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domains.forecast.capacity import Capacity, Source, default_capacity
from domains.forecast.history import History
from domains.forecast.peak_ledger import PeakLedger
from domains.forecast.predictor import Predictor
from domains.forecast.service import service_of
from multisched.framework.ledger import Ledger, rebuild
from multisched.model.objects import Owner, Pod
from tests.unit.domains.builders import make_node, make_pod

DIMENSIONS = ("cpu", "log", "memory")
PEAKS = {"web": {"cpu": 333, "log": 7}, "api": {"cpu": 1, "memory": 10**15, "log": 10**18}}


def make_ledger(**peaks: dict[str, int]) -> PeakLedger:
    predictor = Predictor(History(peaks or PEAKS), DIMENSIONS)
    return PeakLedger("predicted-peaks/test", predictor, [default_capacity(name) for name in DIMENSIONS])


is_a_ledger: Ledger = make_ledger()
"""mypy compares the class with the Protocol here."""


def pod_of(service: str, name: str, cpu: int = 0, memory: int = 0) -> Pod:
    return make_pod(name, labels={"multisched.io/service": service}, requests={"cpu": cpu, "memory": memory})


@pytest.mark.parametrize(
    ("labels", "owner", "service"),
    [
        ({"multisched.io/service": "s", "app": "a"}, Owner("ReplicaSet", "r", "u"), "s"),
        ({"pod-template-hash": "5d4f", "app": "a"}, Owner("ReplicaSet", "web-5d4f", "u"), "web"),
        ({}, Owner("ReplicaSet", "web-5d4f", "u"), "web-5d4f"),
        ({"app": "a"}, Owner("StatefulSet", "db", "u"), "db"),
        ({}, Owner("Job", "nightly-29387520", "u"), "nightly"),
        ({}, Owner("Job", "import-42", "u"), "import-42"),
        ({"app.kubernetes.io/name": "n", "app": "a"}, None, "a"),
        ({"app.kubernetes.io/name": "n"}, None, "n"),
        ({"tier": "t"}, None, ""),
    ],
)
def test_a_pod_belongs_to_its_labelled_service_else_its_workload_else_its_app(
    labels: dict[str, str], owner: Owner | None, service: str
) -> None:
    assert service_of(make_pod("p", labels=labels, owner=owner)) == service


@pytest.mark.parametrize(
    ("service", "peaks", "fallback"),
    [
        ("full", (5, 6, 7), ""),
        ("web", (333, 7, 2_000), "partial_history"),
        ("new", (250, 0, 2_000), "no_history"),
        ("", (250, 0, 2_000), "no_service"),
    ],
)
def test_requests_stand_in_where_history_is_silent(service: str, peaks: tuple[int, ...], fallback: str) -> None:
    predictor = Predictor(History({**PEAKS, "full": {"cpu": 5, "log": 6, "memory": 7}}), DIMENSIONS)

    prediction = predictor.predict(pod_of(service, "p", cpu=250, memory=2))

    assert (prediction.peaks, prediction.fallback) == (peaks, fallback)


def test_a_pod_counts_from_its_assumption_on_and_once() -> None:
    ledger = make_ledger()
    pod = pod_of("web", "p")

    assert ledger.take(pod, 2) == {}
    version = ledger.version(2)
    ledger.place(pod, 2)

    assert ledger.peak(np.array([0, 2])).T.tolist() == [[0, 0, 0], [333, 7, 0]]
    assert ledger.version(2) == version
    assert (ledger.fits(pod, 2), ledger.concerns(pod)) == ("", True)


def test_a_pod_that_changes_its_service_is_counted_anew() -> None:
    ledger = make_ledger()
    ledger.place(pod_of("web", "p"), 0)
    before = ledger.version(0)
    ledger.place(pod_of("api", "p"), 0)

    assert ledger.held() == {"uid-p": (0, (1, 10**18, 10**15))}
    assert ledger.version(0) > before


def test_capacity_comes_with_the_node_and_goes_with_it() -> None:
    ledger = make_ledger()
    rows = np.array([1])
    node = make_node("n", annotations={"multisched.io/capacity-log": "40M"}, cpu=4_000, memory=2**30)
    ledger.set_node(1, node)
    version = ledger.version(1)
    ledger.set_node(1, node)

    assert ledger.capacity(rows).T.tolist() == [[4_000, 40_000_000_000, 2**30 * 1000]]
    assert ledger.version(1) == version
    ledger.set_node(1, None)
    assert ledger.capacity(rows).T.tolist() == [[-1, -1, -1]]
    assert ledger.version(1) > version


@pytest.mark.parametrize(
    ("capacity", "expected"),
    [
        (Capacity(Source.LABEL, "disk"), 5_000),
        (Capacity(Source.LABEL, "odd"), -1),
        (Capacity(Source.LABEL, "negative"), -1),
        (Capacity(Source.LABEL, "none"), -1),
        (Capacity(Source.ANNOTATION, "net"), 10**13),
        (Capacity(Source.ALLOCATABLE, "pods"), 7_000),
        (Capacity(Source.ALLOCATABLE, "cpu"), -1),
        (Capacity(Source.ALLOCATABLE, "missing"), -1),
        (Capacity(Source.NUMBER, milli=9), 9),
    ],
)
def test_a_capacity_that_a_node_states_badly_is_unknown(capacity: Capacity, expected: int) -> None:
    labels = {"disk": "5", "odd": "five", "negative": "-1"}
    assert capacity.of(make_node("n", labels=labels, annotations={"net": "10G"}, pods=7, cpu=-5)) == expected


services = st.sampled_from(["web", "api", "new", ""])
steps = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 100), services, st.integers(0, 3), st.booleans()))


@given(steps)
def test_sums_are_what_the_present_pods_add_up_to(
    moves: list[tuple[int, int, str, int, bool]],
) -> None:
    ledger = make_ledger()
    present: dict[str, tuple[Pod, int]] = {}
    for number, cpu, service, choice, is_leaving in moves:
        row = (0, 1, 63, 64)[choice]
        pod = pod_of(service, f"p{number}", cpu=cpu, memory=cpu)
        if is_leaving:
            ledger.give(pod.uid)
            present.pop(pod.uid, None)
        else:
            ledger.place(pod, row)
            present[pod.uid] = (pod, row)
    rows = np.array([0, 1, 63, 64])
    expected = np.zeros((4, 3), object)
    for pod, row in present.values():
        expected[rows.tolist().index(row)] += np.array(ledger.predictor.predict(pod).peaks, object)

    assert ledger.peak(rows).T.tolist() == [[float(total) for total in line] for line in expected.tolist()]
    twin = rebuild(ledger, [], present.values())
    assert twin.held() == ledger.held()
    for uid in present:
        ledger.give(uid)
    assert not ledger.peak(rows).any()


def test_sums_beyond_what_floats_tell_apart_come_back_exactly() -> None:
    ledger = make_ledger()
    pods = [pod_of("api", f"p{n}") for n in range(40)]
    for pod in pods:
        ledger.place(pod, 0)
    assert ledger.peak(np.array([0])).T.tolist() == [[40, 4e19, 4e16]]

    for pod in pods[1:]:
        ledger.give(pod.uid)
    assert ledger.peak(np.array([0])).T.tolist() == [[1, 1e18, 1e15]]
    assert ledger.held() == {"uid-p0": (0, (1, 10**18, 10**15))}

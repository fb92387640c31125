"""PeakLedger: sums that never drift, whatever comes and goes in whatever order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from domains.forecast.curves.capacity import Capacity, Source
from domains.forecast.curves.predictor import Demand, Predictor
from domains.forecast.curves.quantized_profiles import FLOAT_QUANTA, QuantizedProfiles
from domains.forecast.ledger.peak_ledger import CATCH_UP_ROWS, PeakLedger
from domains.forecast.service import service_of
from multisched.forecasting.profiles import Profiles
from multisched.framework.ledger import Ledger, rebuild
from multisched.model.objects import Owner, Pod
from multisched.testing.builders import make_node, make_pod

DIMENSIONS = ("cpu", "log", "memory")
SLOTS = 168
rng = np.random.default_rng(1)
PEAKS = {
    "web": {"cpu": rng.random(SLOTS), "log": 7 * rng.random(SLOTS)},
    "api": {"cpu": np.full(SLOTS, 1e-3), "memory": np.full(SLOTS, 1e12), "log": np.full(SLOTS, 1e15)},
}


def make_profiles(peaks: Mapping[str, Mapping[str, NDArray[np.float64]]], version: int = 1) -> Profiles:
    peak = np.full((len(peaks), len(DIMENSIONS), SLOTS), np.nan, np.float32)
    for number, found in enumerate(peaks.values()):
        for name, curve in found.items():
            peak[number, DIMENSIONS.index(name)] = curve
    flat = np.zeros(peak.shape[:2])
    return Profiles(
        version, 0.0, 0.0, tuple(peaks), DIMENSIONS, peak, peak, peak, flat.astype(np.uint8), flat.astype(np.float32)
    )


def make_predictor(peaks: Mapping[str, Mapping[str, NDArray[np.float64]]]) -> Predictor:
    return Predictor(DIMENSIONS, QuantizedProfiles(make_profiles(peaks), DIMENSIONS) if peaks else None)


def make_ledger(peaks: Mapping[str, Mapping[str, NDArray[np.float64]]] = PEAKS) -> PeakLedger:
    return PeakLedger("predicted-peaks/test", make_predictor(peaks), {})


def load(ledger: PeakLedger, *rows: int) -> NDArray[np.int32]:
    at = np.array(rows, np.intp)
    return ledger.settled(at).of(at)


is_a_ledger: Ledger = make_ledger()
"""mypy compares the class with the Protocol here."""


def pod_of(service: str, name: str, cpu: int = 0, memory: int = 0) -> Pod:
    return make_pod(name, labels={"multisched.io/service": service}, cpu_milli=cpu, memory_bytes=memory)


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
def test_service_of_a_pod_is_its_label_then_workload_then_app(
    labels: dict[str, str], owner: Owner | None, service: str
) -> None:
    assert service_of(make_pod("p", labels=labels, owner=owner)) == service


FULL = {name: np.ones(SLOTS) for name in DIMENSIONS}


@pytest.mark.parametrize(
    ("namespace", "service", "service_class", "log", "fallback"),
    [
        ("shop", "full", "", 1, ""),
        ("shop", "web", "", None, "partial_history"),
        ("shop", "new", "", 3, "namespace"),
        ("shop", "", "", 3, "namespace"),
        ("shop", "new", "full", 1, "class"),
        ("shop", "new", "unheard-of", 3, "namespace"),
        ("blog", "new", "", 0, "no_history"),
        ("blog", "", "", 0, "no_service"),
        ("blog", "cart", "", 0, "no_history"),
        ("shop", "cart", "", 2, ""),
    ],
)
def test_fallback_of_a_profile_is_class_then_namespace_then_requests(
    namespace: str, service: str, service_class: str, log: int | None, fallback: str
) -> None:
    ofs = {
        f"shop/{name}": {one: np.full(SLOTS, amount) for one in DIMENSIONS}
        for name, amount in (("cart", 2.0), ("pay", 4.0))
    }
    predictor = make_predictor({**PEAKS, "full": FULL, **ofs})
    labels = {"multisched.io/service": service, "multisched.io/service-class": service_class}
    pod = make_pod("p", namespace=namespace, labels=labels, cpu_milli=250, memory_bytes=2**30)

    prediction = predictor.predict(pod)

    assert prediction.fallback == fallback
    assert prediction.curve is not None
    assert predictor.quantized is not None
    if log is not None:
        quantum = predictor.quantized.quantum_milli[1, 0]
        assert np.abs(prediction.curve.quanta[1] * quantum - log * 1000).max() <= quantum / 2
    if log == 0:
        assert prediction.curve.quanta[:, 0].tolist() == [
            1000,
            0,
            -(-(2**30) * 1000 // round(predictor.quantized.quantum_milli[2, 0])),
        ]


def test_pod_cannot_use_the_profile_of_a_service_in_another_namespace() -> None:
    """The name of an owner is whatever the pod's author writes."""
    ofs = {f"shop/{name}": {one: np.full(SLOTS, 9.0) for one in DIMENSIONS} for name in ("cart", "pay")}
    predictor = make_predictor(ofs)
    forged = make_pod("p", namespace="blog", owner=Owner("StatefulSet", "shop/cart", "uid"), cpu_milli=250)

    assert predictor.predict(forged).fallback == "no_history"


def test_gap_in_a_profile_counts_as_its_peak() -> None:
    curve = np.arange(SLOTS, dtype=np.float64)
    curve[3] = np.nan
    curve[5] = np.inf
    predictor = make_predictor({"web": {"cpu": curve, "log": curve, "memory": curve * 2**30}})
    found = predictor.predict(pod_of("web", "p")).curve

    assert found is not None
    assert (found.quanta[0] / found.quanta[0].max() * 167).round(2).tolist() == [
        167.0 if slot in (3, 5) else float(slot) for slot in range(SLOTS)
    ]


def test_requests_count_as_one_number_without_profiles() -> None:
    ledger = make_ledger({})
    ledger.restore(pod_of("web", "p", cpu=250, memory=2), 2)
    ledger.restore(pod_of("", "q", cpu=1, memory=2), 2)

    assert ledger.peak(np.array([0, 2])).T.tolist() == [[0, 0, 0], [251, 0, 4_000]]
    assert ledger.predictor.predict(pod_of("web", "p")).fallback == "no_history"
    assert ledger.predictor.predict(pod_of("", "p")).fallback == "no_service"


def test_pod_counts_once_from_its_assumption() -> None:
    ledger = make_ledger()
    pod = pod_of("web", "p")

    assert ledger.take(pod, 2) == {}
    version = ledger.version(2)
    ledger.restore(pod, 2)

    curve = ledger.predictor.predict(pod).curve
    assert curve is not None
    assert load(ledger, 0, 2).tolist() == [np.zeros((3, SLOTS)).tolist(), curve.quanta.tolist()]
    assert ledger.version(2) == version
    assert (ledger.fits(pod, 2), ledger.is_used_by(pod)) == ("", True)


def test_pod_that_changes_its_service_is_recounted() -> None:
    ledger = make_ledger()
    ledger.restore(pod_of("web", "p"), 0)
    before, version = load(ledger, 0).tolist(), ledger.version(0)
    ledger.restore(pod_of("api", "p"), 0)

    assert [(row, demand.service) for row, demand in _held(ledger).values()] == [(0, "api")]
    assert load(ledger, 0).tolist() != before
    assert ledger.version(0) > version


def _held(ledger: PeakLedger) -> dict[str, tuple[int, Demand]]:
    return cast("dict[str, tuple[int, Demand]]", ledger.held())


def test_capacity_is_added_and_removed_with_the_node() -> None:
    ledger = make_ledger()
    rows = np.array([1])
    node = make_node("n", annotations={"multisched.io/capacity-log": "40M"}, cpu_milli=4_000, memory_bytes=2**30)
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
def test_invalid_capacity_annotation_is_unknown_capacity(capacity: Capacity, expected: int) -> None:
    labels = {"disk": "5", "odd": "five", "negative": "-1"}
    node = make_node("n", labels=labels, annotations={"net": "10G"}, allocatable={"pods": 7, "cpu": -5})
    assert capacity.of(node) == expected


services = st.sampled_from(["web", "api", "new", ""])
steps = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 100), services, st.integers(0, 3), st.booleans()))


@given(steps, st.sampled_from(["profiles", "requests", "adopted late", "adopted between"]))
def test_sums_equal_those_of_the_present_pods(moves: list[tuple[int, int, str, int, bool]], when: str) -> None:
    """Whatever comes and goes in whatever order, and whenever profiles change: nothing is left of what is gone."""
    ledger = make_ledger({} if when in ("requests", "adopted late") else PEAKS)
    present: dict[str, tuple[Pod, int]] = {}
    rows = np.array([0, 1, 63, 300])
    for step, (number, cpu, service, choice, is_leaving) in enumerate(moves):
        pod, row = pod_of(service, f"p{number}", cpu=cpu, memory=cpu), rows.item(choice)
        if is_leaving:
            ledger.release(pod.uid)
            present.pop(pod.uid, None)
        else:
            ledger.restore(pod, row)
            present[pod.uid] = (pod, row)
        if when == "adopted between" and step % 3 == 1:
            if step % 2:
                load(ledger, 1)
            ledger.adopt(make_predictor({"web": PEAKS["api"]}))
    if when == "adopted late":
        ledger.adopt(make_predictor(PEAKS))
    assert rebuild(ledger, [], present.values()).held() == ledger.held()
    if when == "requests":
        expected = np.zeros((4, 3))
        for pod, row in present.values():
            expected[rows.tolist().index(row)] += ledger.predictor.predict(pod).peaks
        assert ledger.peak(rows).T.tolist() == expected.tolist()
        for uid in present:
            ledger.release(uid)
        assert not ledger.peak(rows).any()
        return
    curves = np.zeros((4, 3, SLOTS), np.int64)
    for pod, row in present.values():
        curve = ledger.predictor.predict(pod).curve
        assert curve is not None
        curves[rows.tolist().index(row)] += curve.quanta
    assert load(ledger, *rows.tolist()).tolist() == curves.tolist()
    for uid in present:
        ledger.release(uid)
    assert not load(ledger, *rows.tolist()).any()
    assert not ledger.fleet_load().any()


@given(
    st.lists(st.tuples(st.sampled_from([0, 1, 510, 511, 512, 700]), services, st.integers(0, 10**5)), max_size=30),
    st.sampled_from(
        [[0], [1, 512], [0, 1, 510, 511, 512, 700], list(range(30)), list(range(400, 600)), list(range(701))]
    ),
)
def test_prediction_of_a_row_is_independent_of_other_requested_rows(
    placed: list[tuple[int, str, int]], asked: list[int]
) -> None:
    ledger = make_ledger()
    for number, (row, service, cpu) in enumerate(placed):
        ledger.restore(pod_of(service, f"p{number}", cpu=cpu), row)
    curve = ledger.predictor.predict(pod_of("web", "next")).curve
    assert curve is not None
    together = ledger.outlook(np.array(asked), curve)
    every = ledger.outlook(np.arange(900), curve)
    exact = load(ledger, *asked) * FLOAT_QUANTA

    for found, whole in zip(together, every, strict=True):
        assert found.tobytes() == whole[:, asked].tobytes()
    with_pod = exact + curve.floats
    np.testing.assert_allclose(together.peak, with_pod.max(axis=2).T, rtol=1e-6)
    thirds = (with_pod.astype(np.float64) ** 3).sum(axis=2)
    growth = thirds - (exact.astype(np.float64) ** 3).sum(axis=2)
    assert (np.abs(together.growth - growth.T) <= 1e-4 * thirds.T).all()


def test_new_profiles_are_counted_in_slices_or_on_read() -> None:
    ledger = make_ledger()
    for number in range(2_000):
        ledger.restore(pod_of(("web", "api", "new")[number % 3], f"p{number}", cpu=number % 7), number % 1_000)
    load(ledger, 0)
    held, version = ledger.held(), ledger.version(5)
    ledger.adopt(make_predictor({"api": FULL}))

    assert ledger.held() == held
    assert ledger.version(5) > version
    seen = load(ledger, 3, 4).tolist()
    slices = 1
    while ledger.catch_up():
        slices += 1
    assert slices == -(-998 // CATCH_UP_ROWS) + -(-1_000 // CATCH_UP_ROWS), "first the numbers, then their floats"
    assert load(ledger, 3, 4).tolist() == seen
    fresh = make_ledger({"api": FULL})
    for number in range(2_000):
        fresh.restore(pod_of(("web", "api", "new")[number % 3], f"p{number}", cpu=number % 7), number % 1_000)
    assert load(fresh, *range(1_000)).tolist() == load(ledger, *range(1_000)).tolist()


def test_unread_ledger_holds_no_curves() -> None:
    ledger = make_ledger()
    for number in range(100):
        ledger.restore(pod_of("web", f"p{number}"), number)

    assert ledger.curves is not None
    assert ledger.curves.nbytes == 0


def test_memory_of_5000_rows_is_as_documented() -> None:
    ledger = make_ledger()
    load(ledger, 4_999)

    assert ledger.curves is not None
    per_cell = ledger.curves.nbytes / (5_000 * len(DIMENSIONS) * SLOTS)
    assert 8 <= per_cell < 8.5


@pytest.mark.parametrize("peaks", [PEAKS, {}], ids=["profiles", "requests"])
def test_reservation_counts_until_withdrawn_and_is_no_held_pod(
    peaks: Mapping[str, Mapping[str, NDArray[np.float64]]],
) -> None:
    def sums(ledger: PeakLedger) -> list[float]:
        at = np.array([0, 1], np.intp)
        found = ledger.settled(at).of(at) if ledger.curves is not None else ledger.peak(at)
        return found.astype(np.float64).ravel().tolist()

    ledger, wanted = make_ledger(peaks), make_ledger(peaks)
    for one in (ledger, wanted):
        for row in (0, 1):
            one.set_node(row, make_node(f"n{row}", cpu_milli=4000))
        one.restore(pod_of("web", "w", cpu=100), 0)
    before, version = sums(ledger), ledger.version(1)
    ledger.reserve(pod_of("api", "a", cpu=200), 1)
    wanted.restore(pod_of("api", "a", cpu=200), 1)
    assert sums(ledger) == sums(wanted) != before
    assert ledger.version(1) != version
    assert ledger.held() == make_held(ledger), "the audit's twin knows nothing of it"
    ledger.adopt(make_predictor(peaks))
    wanted.adopt(make_predictor(peaks))
    assert sums(ledger) == sums(wanted)
    ledger.withdraw()
    ledger.withdraw()
    assert sums(ledger) == before
    ledger.reserve(pod_of("api", "a", cpu=200), 1)
    ledger.set_node(1, None)
    assert not ledger.has_reservation(1), "another node may have the row next"
    assert sums(ledger) == before


def make_held(ledger: PeakLedger) -> Mapping[str, object]:
    """Of the one pod that stands."""
    return {"uid-w": (0, ledger.predictor.predict(pod_of("web", "w", cpu=100)).demand)}

"""Documents about predicted loads of nodes: all nodes, one node with its pods, and all nodes at one time of the week.

Pure functions of a `ForecastSnapshot`. Shares are load / capacity of the node; if a node states no capacity, amounts are
given and shares are null.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from domains.forecast.curves.predictor import CLASS, NAMESPACE, PARTIAL_HISTORY, Predictor
from domains.forecast.views.documents import head_of, hint, services_at, slots_at
from domains.forecast.views.forecast_snapshot import Fleet, ForecastSnapshot, PlacedPodDemand
from multisched.framework.views import NUMBER_MAX, Document, NoViewError, ViewQuery

SPEAKS: Final = {"": "profile", CLASS: "class", NAMESPACE: "namespace", PARTIAL_HISTORY: "profile and requests"}
"""`Prediction.fallback` -> basis of the prediction for display; "requests" for other values."""
ROWS_PER_PIECE: Final = 256

Floats = NDArray[np.float64]


class Peaks(NamedTuple):
    """Peaks of nodes, float64[nodes, dimensions] each."""

    amount: Floats
    """Predicted use in the fullest slot, in plain units."""
    slot: NDArray[np.intp]
    """The fullest slot."""
    share: Floats
    """`amount` / capacity; NaN if the node states none."""
    now: Floats
    """Predicted use in the current slot, in plain units."""


def nodes(snapshot: ForecastSnapshot, query: ViewQuery) -> Document:
    """Returns nodes with their predicted peak in each dimension, the fullest first. Raises NoViewError.

    The options `match` (part of a name), `offset` and `limit` select some; `count` is the number of those that match.
    """
    fleet, match = snapshot.known_fleet(), query.options.get("match", "")
    peaks, counts = peaks_of(snapshot, fleet), pods_on(fleet)
    found = [number for number in fullest_first(peaks.share) if match in fleet.nodes[number]]
    begin = query.number("offset", 0)
    return {
        **head_of(snapshot),
        "dimensions": list(fleet.dimensions),
        "count": len(found),
        "nodes": [
            _node(snapshot, fleet, peaks, counts, number)
            for number in found[begin : begin + query.number("limit", len(found))]
        ],
    }


def node(snapshot: ForecastSnapshot, query: ViewQuery) -> Document:
    """Returns one node: the week of each dimension with its band; its pods by their share of its peak; its peak without each pod."""
    fleet, name = snapshot.known_fleet(), query.option("name")
    if name not in fleet.nodes:
        end = hint(name, fleet.nodes, "multisched forecast nodes")
        raise NoViewError(f"domain {snapshot.domain} has no node {name}{end}")
    number = fleet.nodes.index(name)
    peaks = peaks_of(snapshot, fleet)
    found = _node(snapshot, fleet, peaks, pods_on(fleet), number)
    loads = fleet.loads[number] * fleet.quantum()[:, None]
    low, high = _band(snapshot, fleet, number)
    for index, row in enumerate(found["dimensions"]):
        row |= {"week": loads[index].tolist(), "low": low[index].tolist(), "high": high[index].tolist()}
    return {
        **head_of(snapshot),
        "node": found,
        "pods": _pods_on_node(snapshot, fleet, number, peaks),
    }


def at(snapshot: ForecastSnapshot, query: ViewQuery) -> Document:
    """Returns predicted use of services and load of nodes in one slot of the week, or at one time of each day (highest of
    all days); the option `limit` selects the largest. Raises NoViewError."""
    slots, limit = slots_at(snapshot, query.option("moment")), query.number("limit", NUMBER_MAX)
    services = services_at(snapshot, slots)[:limit]
    found = {**head_of(snapshot), "at": query.option("moment"), "services": services}
    fleet = snapshot.fleet
    if fleet is None:
        return found
    amounts = fleet.loads[:, :, slots].max(axis=2) * fleet.quantum()
    shares = amounts / _positive(fleet.capacity.T)
    found["dimensions"] = list(fleet.dimensions)
    found["nodes"] = [
        {
            "node": fleet.nodes[number],
            "amounts": dict(zip(fleet.dimensions, amounts[number].tolist(), strict=True)),
            "shares": dict(zip(fleet.dimensions, shares[number].tolist(), strict=True)),
        }
        for number in fullest_first(shares)[:limit]
    ]
    found["count"] = len(fleet.nodes)
    return found


def peaks_of(snapshot: ForecastSnapshot, fleet: Fleet) -> Peaks:
    """Computes the peaks of all nodes."""
    quantum = fleet.quantum()
    slot = np.empty(fleet.loads.shape[:2], np.intp)
    for begin in range(0, len(fleet.loads), ROWS_PER_PIECE):
        slot[begin : begin + ROWS_PER_PIECE] = fleet.loads[begin : begin + ROWS_PER_PIECE].argmax(axis=2)
    amount = np.take_along_axis(fleet.loads, slot[:, :, None], axis=2)[:, :, 0] * quantum
    now = fleet.loads[:, :, snapshot.profiles.slot_of(snapshot.now_s)] * quantum
    return Peaks(amount, slot, amount / _positive(fleet.capacity.T), now)


def worst_of(share: Floats) -> Floats:
    """Returns float64[nodes]: the largest share over dimensions; NaN if the node states no capacity in any dimension."""
    largest = np.nan_to_num(share, nan=-1.0).max(axis=1, initial=-1.0)
    return np.where(largest >= 0, largest, np.nan)


def pods_on(fleet: Fleet) -> dict[int, tuple[int, int]]:
    """Returns number of the node -> (number of pods, number of pods without a profile of their own service)."""
    predictor = fleet.predictor()
    found: dict[int, tuple[int, int]] = {}
    for (row, demand), pods in fleet.counts().items():
        number = fleet.index_of_row.get(row)
        if number is not None:
            all_pods, unknown = found.get(number, (0, 0))
            found[number] = all_pods + pods, unknown + (pods if predictor.of(demand).fallback else 0)
    return found


def _positive(capacity: Floats) -> Floats:
    """Returns the capacity as a divisor; zero becomes a tiny value, so that any use exceeds it."""
    return np.where(capacity > 0, capacity, np.where(np.isnan(capacity), np.nan, 1e-9))


def _node(
    snapshot: ForecastSnapshot, fleet: Fleet, peaks: Peaks, counts: dict[int, tuple[int, int]], number: int
) -> Document:
    pods, unknown = counts.get(number, (0, 0))
    capacity = fleet.capacity[:, number]
    now_share = peaks.now[number] / _positive(capacity)
    rows = [
        {
            "dimension": dimension,
            "capacity": float(capacity[index]),
            "peak": float(peaks.amount[number, index]),
            "share": float(peaks.share[number, index]),
            "at": snapshot.profiles.slot_name(int(peaks.slot[number, index])),
            "now": float(peaks.now[number, index]),
            "nowShare": float(now_share[index]),
        }
        for index, dimension in enumerate(fleet.dimensions)
    ]
    shares = peaks.share[number]
    worst = None if np.isnan(shares).all() else fleet.dimensions[int(np.nanargmax(shares))]
    return {"node": fleet.nodes[number], "pods": pods, "unknown": unknown, "worst": worst, "dimensions": rows}


def _band(snapshot: ForecastSnapshot, fleet: Fleet, number: int) -> tuple[Floats, Floats]:
    """Returns float64[dimensions, slots] twice: the sums of the lower and of the upper bounds of the pods' services.

    Services rarely reach their bounds together, so the node stays between the sums more often than each service does. A pod
    counts as predicted, without a band, where no service's profile predicts it.
    """
    predictor, quantum, profiles = fleet.predictor(), fleet.quantum()[:, None], snapshot.profiles
    low, high = np.zeros(fleet.loads.shape[1:]), np.zeros(fleet.loads.shape[1:])
    at = [profiles.dimensions.index(name) if name in profiles.dimensions else -1 for name in fleet.dimensions]
    for pod in fleet.pods_on.get(number, ()):
        prediction = predictor.of(pod.demand)
        assert prediction.curve is not None, "a predictor with profiles predicts curves"
        amount = prediction.curve.quanta * quantum
        service = prediction.curve.source
        for total, bounds in ((low, profiles.low), (high, profiles.high)):
            bound = np.full_like(amount, np.nan) if not isinstance(service, int) else bounds[service][at].astype(float)
            bound[[index < 0 for index in at]] = np.nan
            total += np.where(np.isfinite(bound), bound, amount)
    return low, high


def _pods_on_node(snapshot: ForecastSnapshot, fleet: Fleet, number: int, peaks: Peaks) -> list[Document]:
    """Returns the pods of a node, sorted by their share of its peak, descending."""
    predictor, quantum = fleet.predictor(), fleet.quantum()
    shares = peaks.share[number]
    index = 0 if np.isnan(shares).all() else int(np.nanargmax(shares))
    slot = int(peaks.slot[number, index])
    capacity = _positive(fleet.capacity[:, number])
    rows = [_pod(snapshot, fleet, predictor, pod, number) for pod in fleet.pods_on.get(number, ())]
    for row, pod in zip(rows, fleet.pods_on.get(number, ()), strict=True):
        curve = predictor.of(pod.demand).curve
        assert curve is not None, "a predictor with profiles predicts curves"
        amount = float(curve.quanta[index, slot] * quantum[index])
        row |= {"dimension": fleet.dimensions[index], "amount": amount, "share": float(amount / capacity[index])}
    return sorted(rows, key=lambda row: (-row["amount"], row["pod"]))


def _pod(snapshot: ForecastSnapshot, fleet: Fleet, predictor: Predictor, pod: PlacedPodDemand, number: int) -> Document:
    """Returns a pod, with the node's peak if the pod left."""
    prediction = predictor.of(pod.demand)
    assert prediction.curve is not None, "a predictor with profiles predicts curves"
    left = (fleet.loads[number] - prediction.curve.quanta) * fleet.quantum()[:, None]
    share = left / _positive(fleet.capacity[:, number])[:, None]
    found: Document = {
        "pod": pod.name,
        "service": pod.demand.service,
        "by": SPEAKS.get(prediction.fallback, "requests"),
        "left": {"dimension": None, "share": None, "at": None},
    }
    if not np.isnan(share).all():
        dimension, slot = divmod(int(np.nanargmax(share)), share.shape[1])
        found["left"] = {
            "dimension": fleet.dimensions[dimension],
            "share": float(share[dimension, slot]),
            "at": snapshot.profiles.slot_name(slot),
        }
    return found


def fullest_first(share: Floats) -> list[int]:
    """Returns the numbers of the nodes, sorted by their largest share, descending."""
    order: list[int] = np.argsort(-np.nan_to_num(worst_of(share), nan=-1.0), kind="stable").tolist()
    return order

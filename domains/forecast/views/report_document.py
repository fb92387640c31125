"""The document of the report page: each curve takes a byte per slot, deflated, so that large fleets fit into one page.

A pure function of a `ForecastSnapshot`. `data` of each part is base64 of deflated bytes, one code per slot: up to
CODE_MAX steps of the series' `scale`, or CODE_NAN if unknown. Limited by CODES_MAX and LOADS_MAX; the document contains
the number of omitted services and nodes.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from domains.forecast.views.documents import head_of, pods_of, words_of
from domains.forecast.views.forecast_snapshot import Fleet, ForecastSnapshot
from domains.forecast.views.node_documents import Floats, fullest_first, peaks_of, pods_on
from multisched.forecasting.profiles import Origin, Profiles
from multisched.forecasting.recent import CODE_MAX, CODE_NAN, DAYS, Recent
from multisched.forecasting.slot_grid import slots_of
from multisched.forecasting.time_units import DAY_S
from multisched.framework.views import Document, ViewQuery

CODES_MAX: Final = 8_000_000
"""Limit of bytes of services' curves and history before compression: 1,360 services, 5 dimensions, hourly slots."""
LOADS_MAX: Final = 4_500_000
"""Limit of bytes of nodes' curves: 5,350 nodes, 5 dimensions, hourly slots."""
DIGITS: Final = 5
"""Significant digits of amounts."""
HISTORY_STEP, BAND_STEP = 2, 4
"""Codes of history and bands are rounded to multiples of these: a pixel or two of a plot."""
_LEVEL: Final = 6


def report(snapshot: ForecastSnapshot, query: ViewQuery) -> Document:
    """Returns the whole document."""
    profiles = snapshot.profiles
    pods = pods_of(snapshot)
    chosen = _chosen_services(profiles, pods)
    found = {
        **head_of(snapshot),
        "slots": profiles.slots,
        "dimensions": list(profiles.dimensions),
        "services": [_service(profiles, number, pods) for number in chosen],
        "servicesLeftOut": len(profiles.services) - len(chosen),
        "curves": _curves(profiles, chosen),
        "history": None,
        "nodes": None,
    }
    if profiles.recent is not None:
        found = with_history(found, profiles.recent)
    if snapshot.fleet is not None:
        found["nodes"] = _nodes(snapshot, snapshot.fleet, chosen)
    return found


def with_history(document: Document, recent: Recent) -> Document:
    """Returns the document with this history added, recorded by the program or read from files (--usage)."""
    numbers = {name: number for number, name in enumerate(recent.services)}
    columns = {name: number for number, name in enumerate(recent.dimensions)}
    services, dimensions = document["services"], document["dimensions"]
    shape = (len(services), len(dimensions))
    slots = recent.mean.shape[2]
    mean, top = np.full((2, *shape, slots), CODE_NAN, np.uint8)
    scale = np.zeros(shape, np.float32)
    rows = [(at, numbers[one["service"]]) for at, one in enumerate(services) if one["service"] in numbers]
    for index, name in enumerate(dimensions):
        if name in columns and rows:
            to, of = (list(side) for side in zip(*rows, strict=True))
            mean[to, index] = recent.mean[of, columns[name]]
            top[to, index] = recent.top[of, columns[name]]
            scale[to, index] = recent.scale[of, columns[name]]
    moments = recent.start_s + recent.slot_s * np.arange(slots, dtype=np.float64)
    history = {
        "startSeconds": recent.start_s,
        "slotSeconds": recent.slot_s,
        "weekSlots": slots_of(moments, document["zone"], document["slotSeconds"]).tolist(),
        "scale": [_rounded(row) for row in scale.astype(np.float64)],
        "data": packed(_coarse(mean, HISTORY_STEP), _coarse(top, HISTORY_STEP)),
    }
    return {**document, "history": history}


def packed(*codes: NDArray[np.uint8]) -> str:
    """Returns base64 of the deflated, concatenated arrays. Stores the difference of each code from the previous one (modulo
    256), because neighbouring slots are similar."""
    lessened = [np.diff(array, axis=-1, prepend=np.uint8(0)).tobytes() for array in codes]
    return base64.b64encode(zlib.compress(b"".join(lessened), _LEVEL)).decode()


def _chosen_services(profiles: Profiles, pods: Mapping[int, int] | None) -> Sequence[int]:
    """Returns the numbers of the services with the largest use in any dimension, ascending; all if they fit."""
    slots = 3 * profiles.slots + 2 * DAYS * DAY_S // profiles.slot_s
    most = max(1, CODES_MAX // max(1, len(profiles.dimensions) * slots))
    if len(profiles.services) <= most:
        return range(len(profiles.services))
    peak = np.nan_to_num(profiles.peak).max(axis=2)
    if pods is not None:
        peak = peak * np.array([[pods.get(number, 0) + 0.01] for number in range(len(peak))])
    weight = (peak / np.maximum(peak.sum(axis=0), 1e-30)).max(axis=1)
    return sorted(np.argsort(-weight, kind="stable")[:most].tolist())


def _service(profiles: Profiles, number: int, pods: Mapping[int, int] | None) -> Document:
    rows: list[Document | None] = []
    for index in range(len(profiles.dimensions)):
        origin, curve = Origin(int(profiles.origin[number, index])), profiles.peak[number, index]
        if origin is Origin.NONE or np.isnan(curve).all():
            rows.append(None)
            continue
        slot = int(np.nanargmax(curve))
        figures = _rounded([float(curve[slot]), float(np.nanmean(curve)), float(profiles.error[number, index])])
        rows.append(
            {"origin": words_of(origin), "peak": figures[0], "slot": slot, "mean": figures[1], "error": figures[2]}
        )
    found: Document = {"service": profiles.services[number], "dimensions": rows}
    return found if pods is None else {**found, "pods": pods.get(number, 0)}


def _curves(profiles: Profiles, chosen: Sequence[int]) -> Document:
    """Returns peak, low and high of the services, packed, each uint8[services, dimensions, slots]."""
    whole = np.stack([curve[list(chosen)] for curve in (profiles.peak, profiles.low, profiles.high)])
    largest = np.nan_to_num(whole).max(axis=(0, 3), initial=0.0)
    coded = _coded(whole, largest[None, ..., None])
    parts = (coded[0], _coarse(coded[1], BAND_STEP), _coarse(coded[2], BAND_STEP))
    return {"scale": [_rounded(row) for row in largest / CODE_MAX], "data": packed(*parts)}


def _coarse(codes: NDArray[np.uint8], step: int) -> NDArray[np.uint8]:
    """Rounds codes to multiples of `step`, which deflate better; keeps CODE_NAN."""
    rounded = (codes.astype(np.uint16) + step // 2) // step * step
    return np.where(codes == CODE_NAN, CODE_NAN, np.minimum(rounded, CODE_MAX)).astype(np.uint8)


def _coded(values: NDArray[np.floating], largest: NDArray[np.floating]) -> NDArray[np.uint8]:
    steps = np.rint(values / np.where(largest > 0, largest, 1) * CODE_MAX)
    return np.where(np.isnan(steps), CODE_NAN, np.nan_to_num(steps).clip(0, CODE_MAX)).astype(np.uint8)


def _nodes(snapshot: ForecastSnapshot, fleet: Fleet, chosen: Sequence[int]) -> Document:
    peaks, counts = peaks_of(snapshot, fleet), pods_on(fleet)
    slots = snapshot.profiles.slots
    most = max(1, LOADS_MAX // max(1, len(fleet.dimensions) * slots))
    kept = fullest_first(peaks.share)[:most]
    loads = fleet.loads[kept]
    largest = loads.max(axis=2, initial=0)
    quantum = fleet.quantum()
    services_on = _services_on(fleet, kept, chosen)
    nodes = []
    for at, number in enumerate(kept):
        pods, unknown = counts.get(number, (0, 0))
        one = {"node": fleet.nodes[number], "pods": pods, "unknown": unknown, "services": services_on[at]}
        one["capacity"] = _rounded(fleet.capacity[:, number])
        one["slot"] = peaks.slot[number].tolist()
        one["peak"], one["now"] = _rounded(peaks.amount[number]), _rounded(peaks.now[number])
        nodes.append(one)
    return {
        "dimensions": list(fleet.dimensions),
        "nodes": nodes,
        "leftOut": len(fleet.nodes) - len(kept),
        "nowSlot": snapshot.profiles.slot_of(snapshot.now_s),
        "scale": [_rounded(row) for row in largest * quantum / CODE_MAX],
        "data": packed(_coded(loads.astype(np.float32), largest[..., None].astype(np.float32))),
    }


def _services_on(fleet: Fleet, kept: Sequence[int], chosen: Sequence[int]) -> list[list[list[int]]]:
    """Returns per node of the document: [index of the service in the document, number of its pods there]."""
    at_node = {number: at for at, number in enumerate(kept)}
    at_service = {number: at for at, number in enumerate(chosen)}
    found: list[dict[int, int]] = [{} for _ in kept]
    for (row, demand), pods in fleet.counts().items():
        node = at_node.get(fleet.index_of_row.get(row, -1))
        number = fleet.quantized.service(demand.namespace, demand.service)
        if node is not None and isinstance(number, int) and number in at_service:
            service = at_service[number]
            found[node][service] = found[node].get(service, 0) + pods
    return [[list(one) for one in sorted(on_node.items())] for on_node in found]


def _rounded(values: Floats | Sequence[float]) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in values]

"""Documents about services: lists, weeks, times of the week, and backtest results. Pure functions of a `ForecastSnapshot`.

Documents contain JSON values only, with NaN for null; they are the same for a running program, a dump and a profiles
file. Amounts are per replica, in the plain unit of the dimension.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from domains.forecast.views.forecast_snapshot import ForecastSnapshot
from multisched.forecasting.profiles import DAYS, Backtest, Origin, Profiles
from multisched.forecasting.recent import CODE_NAN
from multisched.forecasting.time_units import DAY_S
from multisched.framework.views import Document, NoViewError, ViewQuery

PERCENTILES: Final = (50, 90, 99)
NEAR_NAMES: Final = 3
NEARNESS: Final = 0.6
"""Smallest similarity for a "did you mean" suggestion."""
_DAYS: Final = [day.lower() for day in DAYS]
_MOMENT: Final = re.compile(rf"(?:(?P<day>{'|'.join(_DAYS)}) )?(?P<hour>\d{{1,2}}):(?P<minute>\d{{2}})", re.ASCII)


def head_of(snapshot: ForecastSnapshot) -> Document:
    """Returns the fields common to all documents."""
    profiles = snapshot.profiles
    return {
        "version": profiles.version,
        "madeSeconds": profiles.made_s,
        "newestSeconds": profiles.newest_s,
        "zone": profiles.zone,
        "slotSeconds": profiles.slot_s,
        "domain": snapshot.domain,
        "state": snapshot.state,
        "now": profiles.slot_name(profiles.slot_of(snapshot.now_s)),
        "nowSeconds": snapshot.now_s,
    }


def services(snapshot: ForecastSnapshot, query: ViewQuery) -> Document:
    """Returns one row per service and dimension: peak, its time, mean, origin and error of the profile, number of pods.

    The option `match` selects services by a part of their name, `limit` those with the most pods.
    """
    pods, match, names = pods_of(snapshot), query.options.get("match", ""), snapshot.profiles.services
    found = [number for number in range(len(names)) if match in names[number]]
    limit = query.number("limit", len(found))
    if limit < len(found):
        found = sorted(found, key=lambda number: -(pods or {}).get(number, 0))
    rows = [row for number in found[:limit] for row in _rows(snapshot.profiles, number, pods)]
    return {**head_of(snapshot), "services": rows, "servicesLeftOut": max(0, len(found) - limit)}


def service(snapshot: ForecastSnapshot, query: ViewQuery) -> Document:
    """Returns one service with the week of each dimension. Raises NoViewError."""
    profiles, name = snapshot.profiles, query.option("name")
    numbers = profiles.numbers()
    candidates = [one for one in numbers if one.endswith(f"/{name}")]
    if name not in numbers and len(candidates) == 1:  # the namespace may be omitted if the name is unique
        name = candidates[0]
    number = numbers.get(name)
    if number is None:
        raise NoViewError(f"no profile of {name}{hint(name, profiles.services, 'multisched forecast services')}")
    rows = list(_rows(profiles, number, pods_of(snapshot)))
    for row in rows:
        at = profiles.dimensions.index(row["dimension"])
        row["highest"] = row["peak"]
        row |= {curve: getattr(profiles, curve)[number, at].tolist() for curve in ("peak", "low", "high")}
    return {**head_of(snapshot), "service": name, "dimensions": rows, "history": _history(profiles, name)}


def _history(profiles: Profiles, service: str) -> Document | None:
    """Returns the measured mean and highest sample of each recent slot; None if the program has not recorded them."""
    recent = profiles.recent
    if recent is None or service not in recent.services:
        return None
    at = recent.services.index(service)
    curves = {"mean": recent.mean[at], "top": recent.top[at]}
    return {
        "startSeconds": recent.start_s,
        "slotSeconds": recent.slot_s,
        "dimensions": {
            name: {
                curve: np.where(codes[index] == CODE_NAN, np.nan, codes[index] * recent.scale[at, index]).tolist()
                for curve, codes in curves.items()
            }
            for index, name in enumerate(recent.dimensions)
        },
    }


def hint(name: str, known: Sequence[str], lists: str) -> str:
    """Returns a suggestion for an unknown name, to append to an error.

    If the name has no namespace, it is compared with the known names without their namespaces.
    """
    of_compared: dict[str, list[str]] = {}
    for one in known:
        of_compared.setdefault(one if "/" in name else one.rpartition("/")[2], []).append(one)
    close = difflib.get_close_matches(name, of_compared, n=NEAR_NAMES, cutoff=NEARNESS)
    near = [one for compared in close for one in of_compared[compared]][:NEAR_NAMES]
    return f"; did you mean {' or '.join(near)}?" if near else f"; {lists} lists them"


def slots_at(snapshot: ForecastSnapshot, moment: str) -> list[int]:
    """Returns the slots of a time: one slot for `Tue 20:00` or `now`, one per day for `20:00`. Raises NoViewError."""
    profiles, wanted = snapshot.profiles, " ".join(moment.split()).lower()
    if wanted == "now":
        return [profiles.slot_of(snapshot.now_s)]
    found = _MOMENT.fullmatch(wanted)
    second = 3_600 * int(found["hour"]) + 60 * int(found["minute"]) if found else DAY_S
    if found is None or second >= DAY_S or int(found["minute"]) >= 60:
        raise NoViewError(f'{moment!r} is not a time of the week; write "20:00", "Tue 20:00" or "now"')
    days = range(7) if found["day"] is None else [_DAYS.index(found["day"])]
    return sorted({(day * DAY_S + second) // profiles.slot_s for day in days})


def services_at(snapshot: ForecastSnapshot, slots: Sequence[int]) -> list[Document]:
    """Returns the highest use of each service in these slots; sorted by use of the first dimension, descending."""
    profiles, pods = snapshot.profiles, pods_of(snapshot)
    use = profiles.peak[:, :, list(slots)].max(axis=2)
    # sorted() is stable.
    order = sorted(range(len(use)), key=lambda number: -float(np.nan_to_num(use[number, :1], nan=-1.0).sum()))
    return [
        {"service": profiles.services[number]}
        | ({"pods": pods.get(number, 0)} if pods is not None else {})
        | {name: float(use[number, index]) for index, name in enumerate(profiles.dimensions)}
        for number in order
    ]


def pods_of(snapshot: ForecastSnapshot) -> Mapping[int, int] | None:
    """Returns service number -> pods on the domain's nodes predicted by its profile; None if pods are not known."""
    fleet = snapshot.fleet
    if fleet is None:
        return None
    found: dict[int, int] = {}
    for (row, demand), pods in fleet.counts().items():
        number = fleet.quantized.service(demand.namespace, demand.service)
        if isinstance(number, int) and row in fleet.index_of_row:
            found[number] = found.get(number, 0) + pods
    return found


def _rows(profiles: Profiles, number: int, pods: Mapping[int, int] | None) -> Iterator[dict[str, Any]]:
    for index, dimension in enumerate(profiles.dimensions):
        origin = Origin(int(profiles.origin[number, index]))
        curve = profiles.peak[number, index]
        if origin is Origin.NONE or np.isnan(curve).all():
            continue
        yield {
            "service": profiles.services[number],
            "dimension": dimension,
            "origin": words_of(origin),
            "peak": float(np.nanmax(curve)),
            "at": profiles.slot_name(int(np.nanargmax(curve))),
            "mean": float(np.nanmean(curve)),
            "error": float(profiles.error[number, index]),
        } | ({"pods": pods.get(number, 0)} if pods is not None else {})


def words_of(origin: Origin) -> str:
    """Returns the name for display."""
    return origin.name.lower().replace("_", " ")


# -- backtest ----------------------------------------------------------------------------------------------------------


def backtest(snapshot: ForecastSnapshot, query: ViewQuery) -> Document:
    """Returns per service and dimension the errors of each kind of profile on the last days, the chosen kind, and why.

    Sorted by error, the worst first; with percentiles per dimension. Raises NoViewError for profiles without a backtest.
    """
    profiles = snapshot.profiles
    tested = profiles.tested
    if tested is None:
        text = "these profiles contain no backtest results; a refit by this version adds them"
        raise NoViewError(text, status=422)
    rows = [row for number in range(len(profiles.services)) for row in _judged(profiles, tested, number)]
    rows.sort(key=lambda row: -np.nan_to_num(row["error"], nan=-1.0))
    return {
        **head_of(snapshot),
        "percentiles": [_percentiles(profiles, tested, index) for index in range(len(profiles.dimensions))],
        "series": rows,
    }


def _judged(profiles: Profiles, tested: Backtest, number: int) -> Iterator[Document]:
    for index, dimension in enumerate(profiles.dimensions):
        origin = Origin(int(profiles.origin[number, index]))
        if origin is Origin.NONE:
            continue
        model, plain = float(tested.regression[number, index]), float(tested.slot_quantile[number, index])
        days = float(tested.holdout_days[number, index])
        yield {
            "service": profiles.services[number],
            "dimension": dimension,
            "chosen": words_of(origin),
            "error": float(profiles.error[number, index]),
            "model": model,
            "quantile": plain,
            "flat": float(tested.flat_quantile[number, index]),
            "days": days,
            "why": _why(origin, model, plain, days),
        }


def _why(origin: Origin, model: float, plain: float, days: float) -> str:
    match origin:
        case Origin.ATTRIBUTED:
            return "a share of node totals: not tested"
        case Origin.QUANTILE:
            return "too few days for hours of the week"
        case _ if np.isnan(plain):
            return "no samples on the last days: not tested"
        case Origin.SLOT_QUANTILE if np.isnan(model):
            return "too few days for the model"
        case Origin.SLOT_QUANTILE:
            return f"the quantile was better on the last {days:g} days"
        case _:
            return f"the model was better on the last {days:g} days"


def _percentiles(profiles: Profiles, tested: Backtest, index: int) -> Document:
    """Returns percentiles over the services of one dimension."""
    origin = profiles.origin[:, index]
    return {
        "dimension": profiles.dimensions[index],
        "services": int(np.count_nonzero(origin)),
        "chosen": {words_of(kind): int(np.count_nonzero(origin == kind)) for kind in Origin if kind is not Origin.NONE},
        "error": _spread(profiles.error[:, index]),
        "model": _spread(tested.regression[:, index]),
        "quantile": _spread(tested.slot_quantile[:, index]),
    }


def _spread(values: NDArray[np.float32]) -> Document:
    known = values[~np.isnan(values)]
    return {f"p{p}": float(np.percentile(known, p)) if len(known) else np.nan for p in PERCENTILES}

"""`multisched forecast`: what learned profiles say, read from the file that PeakForecast keeps (`profilesFile`).

Pure but for reading the file. Amounts are those of one replica, in the plain units of the dimension.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from domains.forecast.profiles import DAYS, Origin, Profiles
from domains.forecast.profiles_file import ProfilesFileError, loads
from multisched.cli_tables import as_document, as_table

BARS: Final = " ▁▂▃▄▅▆▇█"
HOURS: Final = 24


class ForecastError(ValueError):
    """What was asked for is not there, or the file cannot be used; the message says what to do."""


def read(file: Path) -> Profiles:
    """Raises ForecastError."""
    try:
        return loads(file.read_bytes())
    except OSError as error:
        raise ForecastError(f"{file}: {error.strerror}; name the profilesFile of PeakForecast") from error
    except ProfilesFileError as error:
        raise ForecastError(f"{file}: {error}") from error


def services(profiles: Profiles, output: str) -> str:
    """One row per service and dimension: its highest moment, what the profile is made of, and how far it was off."""
    rows = [row for number in range(len(profiles.services)) for row in _rows(profiles, number)]
    if output in ("json", "yaml"):
        return as_document({**_head(profiles), "services": rows}, output)
    cells = [
        (r["service"], r["dimension"], r["origin"], _amount(r["peak"]), r["at"], _amount(r["mean"]), _share(r["error"]))
        for r in rows
    ]
    head = ("service", "dimension", "from", "peak", "at", "mean", "error")
    return as_table(head, cells, is_wide=output == "wide")


def service(profiles: Profiles, name: str, output: str) -> str:
    """One service: each dimension's week as a plot, a line per day. Raises ForecastError."""
    number = profiles.numbers().get(name)
    if number is None:
        near = difflib.get_close_matches(name, profiles.services, n=3, cutoff=0.4)
        hint = f"; did you mean {' or '.join(near)}?" if near else "; multisched forecast services lists them"
        raise ForecastError(f"no profile of {name}{hint}")
    rows = list(_rows(profiles, number))
    if output in ("json", "yaml"):
        for row in rows:
            at = profiles.dimensions.index(row["dimension"])
            row |= {
                curve: [_plain(value) for value in getattr(profiles, curve)[number, at].tolist()]
                for curve in ("peak", "low", "high")
            }
        return as_document({**_head(profiles), "service": name, "dimensions": rows}, output)
    return "\n\n".join([_told(profiles, name), *(_plot(profiles, number, row) for row in rows)])


def at(profiles: Profiles, moment: str, output: str) -> str:
    """What each service uses in one slot of the week, or at one time of every day; fullest first. Raises ForecastError."""
    slots = _slots(profiles, moment)
    use = profiles.peak[:, :, slots].max(axis=2)
    # By the first dimension; sorted() keeps the order of equals.
    order = sorted(range(len(use)), key=lambda number: -float(np.nan_to_num(use[number, :1], nan=-1.0).sum()))
    rows: list[dict[str, Any]] = [
        {"service": profiles.services[number]}
        | {name: _plain(float(use[number, place])) for place, name in enumerate(profiles.dimensions)}
        for number in order
    ]
    if output in ("json", "yaml"):
        return as_document({**_head(profiles), "at": moment, "services": rows}, output)
    cells = [(row["service"], *(_amount(row[name]) for name in profiles.dimensions)) for row in rows]
    return as_table(("service", *profiles.dimensions), cells, is_wide=output == "wide")


def _head(profiles: Profiles) -> dict[str, Any]:
    return {
        "version": profiles.version,
        "madeSeconds": profiles.made_s,
        "newestSeconds": profiles.newest_s,
        "zone": profiles.zone,
        "slotSeconds": profiles.slot_s,
    }


def _rows(profiles: Profiles, number: int) -> Iterator[dict[str, Any]]:
    for place, dimension in enumerate(profiles.dimensions):
        origin = Origin(int(profiles.origin[number, place]))
        if origin is Origin.NONE:
            continue
        curve = profiles.peak[number, place]
        yield {
            "service": profiles.services[number],
            "dimension": dimension,
            "origin": origin.name.lower().replace("_", " "),
            "peak": float(curve.max()),
            "at": profiles.slot_name(int(curve.argmax())),
            "mean": float(curve.mean()),
            "error": _plain(float(profiles.error[number, place])),
        }


def _told(profiles: Profiles, name: str) -> str:
    return f"{name}   per replica, hour by hour in {profiles.zone}; profiles {profiles.version}"


def _plot(profiles: Profiles, number: int, row: dict[str, Any]) -> str:
    curve = profiles.peak[number, profiles.dimensions.index(row["dimension"])]
    by_hour = curve.reshape(len(DAYS), HOURS, -1).max(axis=2)
    top = float(by_hour.max())
    head = f"{row['dimension']}   peak {_amount(row['peak'])} at {row['at']}, mean {_amount(row['mean'])}"
    lines = [f"{head}, from {row['origin']}, error {_share(row['error'])}"]
    for day, hours in zip(DAYS, by_hour.tolist(), strict=True):
        bars = "".join(BARS[math.ceil(value / top * (len(BARS) - 1)) if top > 0 else 0] for value in hours)
        lines.append(f"  {day}  {bars}  {_amount(max(hours))}")
    return "\n".join([*lines, "       0     6     12    18"])


def _slots(profiles: Profiles, moment: str) -> list[int]:
    """`Tue 20:00`, or `20:00` for that time of all days."""
    names = [profiles.slot_name(slot) for slot in range(profiles.slots)]
    wanted = " ".join(moment.split())
    found = [slot for slot, name in enumerate(names) if wanted.lower() in (name.lower(), name.partition(" ")[2])]
    if not found:
        raise ForecastError(f'{moment!r} is no slot of these profiles; write "20:00" or "Tue 20:00"')
    return found


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else value


def _amount(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 1_000 else f"{value:,.0f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"

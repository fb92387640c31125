"""Documents of `multisched forecast` as tables and terminal plots. Pure.

Amounts are rounded to three digits with SI prefixes; shares are in percent of a node's capacity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from multisched.model.visible_text import escaped
from multisched.observe.tables import as_table

BARS: Final = " ▁▂▃▄▅▆▇█"
HOURS: Final = 24
DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
PREFIXES: Final = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))

Document = dict[str, Any]


def services(found: Document, *, is_wide: bool) -> str:
    """Renders one row per service and dimension."""
    head = ["service", "dimension", "from", "peak", "at", "mean", "error"]
    rows = [
        [r["service"], r["dimension"], r["origin"], amount(r["peak"]), r["at"], amount(r["mean"]), fraction(r["error"])]
        for r in found["services"]
    ]
    if any("pods" in r for r in found["services"]):
        head.append("pods")
        for row, r in zip(rows, found["services"], strict=True):
            row.append(r["pods"])
    return as_table(head, rows, is_wide=is_wide)


def service(found: Document, *, is_wide: bool) -> str:
    """Renders the week of each dimension as a plot with a line per day."""
    parts = [f"{escaped(found['service'])}   per replica, hour by hour in {found['zone']}; {_version(found)}"]
    for row in found["dimensions"]:
        head = f"{row['dimension']}   peak {amount(row['highest'])} at {row['at']}, mean {amount(row['mean'])}"
        line = f"{head}, from {row['origin']}, error {fraction(row['error'])}"
        parts.append(week(line, row["highest"], row["peak"]))
    return "\n\n".join(parts)


def nodes(found: Document, limit: int, *, is_wide: bool) -> str:
    """Renders a row per node, the fullest first."""
    head = ["node", "pods", "no profile", "fullest", "at", "peak", "now"]
    if is_wide:
        head += [f"{name}{end}" for name in found["dimensions"] for end in ("", " at", " now")]
    rows = [_node_row(one, is_wide=is_wide) for one in found["nodes"][:limit]]
    parts = [as_table(head, rows, is_wide=is_wide)] if found["nodes"] else ["no nodes"]
    return "\n\n".join([*parts, *_more(found["nodes"], limit), _footer(found)])


def _node_row(one: Document, *, is_wide: bool) -> list[object]:
    fullest = next((row for row in one["dimensions"] if row["dimension"] == one["worst"]), None)
    row: list[object] = [one["node"], one["pods"], one["unknown"]]
    if fullest is None:
        row += ["-", "-", "no capacity stated", "-"]
    elif not fullest["peak"]:
        row += ["-", "-", share(0), share(0)]
    else:
        row += [fullest["dimension"], fullest["at"], share(fullest["share"]), share(fullest["nowShare"])]
    if is_wide:
        for each in one["dimensions"]:
            row += [of_capacity(each["share"], each["peak"]), each["at"], of_capacity(each["nowShare"], each["now"])]
    return row


def node(found: Document, limit: int, *, is_wide: bool) -> str:
    """Renders a node's week, then its pods by their share of its peak."""
    one = found["node"]
    line = f"{one['node']}   {one['pods']} pods, {one['unknown']} of them without a profile of their own"
    parts = [f"{line}; hour by hour in {found['zone']}"]
    for row in one["dimensions"]:
        line = f"{row['dimension']}   peak {of_capacity(row['share'], row['peak'])} at {row['at']}"
        if row["share"] is not None:
            line += f" ({amount(row['peak'])} of {amount(row['capacity'])})"
        parts.append(
            week(f"{line}, now {of_capacity(row['nowShare'], row['now'])}", row["peak"], row["week"], row["capacity"])
        )
    if found["pods"]:
        first = found["pods"][0]
        fullest = next(row for row in one["dimensions"] if row["dimension"] == first["dimension"])
        when = f"{first['dimension']} at {fullest['at']}"
        head = ["pod", "service", "by", f"share of {when}", "amount", "if it left, fullest is"]
        rows = [
            [p["pod"], p["service"], p["by"], share(p["share"]), amount(p["amount"]), _left(p["left"])]
            for p in found["pods"][:limit]
        ]
        parts.append(as_table(head, rows, is_wide=is_wide))
    return "\n\n".join([*parts, *_more(found["pods"], limit), _footer(found)])


def _left(left: Document) -> str:
    return "-" if left["dimension"] is None else f"{left['dimension']} {share(left['share'])} at {left['at']}"


def at(found: Document, limit: int, *, is_wide: bool) -> str:
    """Renders nodes (if known) and services at one time of the week."""
    rows = found["services"]
    names = [name for name in (rows[0] if rows else {}) if name not in ("service", "pods")]
    pods = ["pods"] if rows and "pods" in rows[0] else []
    cells = [[r["service"], *(r[key] for key in pods), *(amount(r[name]) for name in names)] for r in rows[:limit]]
    parts = [as_table(("service", *pods, *names), cells, is_wide=is_wide), *_more(rows, limit)]
    if "nodes" not in found:
        return "\n\n".join(parts)
    dimensions = found["dimensions"]
    cells = [
        [one["node"], *(of_capacity(one["shares"][name], one["amounts"][name]) for name in dimensions)]
        for one in found["nodes"][:limit]
    ]
    table = as_table(("node", *dimensions), cells, is_wide=is_wide)
    return "\n\n".join([table, *_more(found["nodes"], limit), *parts, _footer(found)])


def backtest(found: Document, limit: int, *, is_wide: bool) -> str:
    """Renders percentiles per dimension, then series, the worst first."""
    head = [
        "dimension",
        "services",
        "chosen",
        *(f"{kind} {p}" for kind in ("error", "model", "quantile") for p in _SPREAD),
    ]
    rows = []
    for one in found["percentiles"]:
        chosen = ", ".join(f"{count} {kind}" for kind, count in one["chosen"].items() if count)
        figures = [fraction(one[kind][p], 2) for kind in ("error", "model", "quantile") for p in _SPREAD]
        rows.append([one["dimension"], one["services"], chosen, *figures])
    parts = [as_table(head, rows, is_wide=True)]
    head = ["service", "dimension", "chosen", "error", "model", "quantile", *(["flat"] if is_wide else []), "why"]
    rows = []
    for one in found["series"][:limit]:
        figures = [fraction(one[kind], 2) for kind in ("error", "model", "quantile", *(["flat"] if is_wide else []))]
        rows.append([one["service"], one["dimension"], one["chosen"], *figures, one["why"]])
    parts += [as_table(head, rows, is_wide=is_wide), *_more(found["series"], limit)]
    line = (
        "errors: mean pinball loss of the peak over the mean use; of the chosen kind, the model, the quantile by hour"
    )
    return "\n\n".join([*parts, line])


_SPREAD: Final = ("p50", "p90", "p99")


def week(head: str, top: float, curve: Sequence[float | None], capacity: float | None = None) -> str:
    """Renders a line per day with a bar per hour and the day's maximum. `top`: value of a full bar."""
    per_day = len(curve) // len(DAYS)
    lines = [escaped(head)]
    for number, day in enumerate(DAYS):
        hours = _hours(curve[number * per_day : (number + 1) * per_day])
        bars = "".join(_bar(value, top) for value in hours)
        highest = max((value for value in hours if value is not None), default=None)
        end = amount(highest) if not capacity or highest is None else share(highest / capacity)
        lines.append(f"  {day}  {bars}  {end}")
    return "\n".join([*lines, "       0     6     12    18"])


def _hours(slots: Sequence[float | None]) -> list[float | None]:
    """Returns the highest value of each hour; repeats values of slots longer than an hour."""
    found: list[float | None] = []
    for hour in range(HOURS):
        begin = hour * len(slots) // HOURS
        part = [value for value in slots[begin : max(begin + 1, (hour + 1) * len(slots) // HOURS)] if value is not None]
        found.append(max(part, default=None))
    return found


def _bar(value: float | None, top: float) -> str:
    if value is None:
        return "·"
    return BARS[min(len(BARS) - 1, math.ceil(value / top * (len(BARS) - 1)))] if top > 0 else BARS[0]


def amount(value: float | None) -> str:
    """Formats an amount with three digits: `1.25`, `340k`."""
    if value is None:
        return "-"
    for size, prefix in PREFIXES:
        if abs(value) >= size * 0.9995:
            return f"{_three(value / size)}{prefix}"
    return f"{value:.3g}"


def _three(value: float) -> str:
    return f"{value:.0f}" if value >= 99.95 else f"{value:.3g}"


def share(value: float | None) -> str:
    """Formats a share of capacity in percent."""
    return "-" if value is None else f"{100 * value:.0f} %" if value < 100 else "> 9999 %"


def fraction(value: float | None, digits: int = 1) -> str:
    """Formats an error in percent of the mean use."""
    return "-" if value is None else f"{100 * value:.{digits}f} %"


def of_capacity(part: float | None, plain: float | None) -> str:
    """Formats the share if the capacity is known, else the amount."""
    return amount(plain) if part is None else share(part)


def _more(rows: Sequence[object], limit: int) -> list[str]:
    return [f"{len(rows) - limit} more; --limit shows them"] if len(rows) > limit else []


def _version(found: Document) -> str:
    return f"profiles {found['version']}" if found["version"] else "profiles from files"


def _footer(found: Document) -> str:
    domain = f"domain {found['domain']}; " if found.get("domain") else ""
    line = escaped(found["state"]) or _version(found)
    return f"{domain}{line}; it is {found['now']} ({found['zone']})"

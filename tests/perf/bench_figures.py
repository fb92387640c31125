"""What a round of the benchmark measured, the medians of several, and the bars they are held against.

Pure values and text: no network, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final

from tests.perf import gangs
from tests.perf.contenders import KUBE_SCHEDULER, MULTISCHED
from tests.perf.shapes import Shape

MEBIBYTE: Final = 1 << 20

MIN_RATE_SHARE: Final = 1.0
MAX_CPU_SHARE: Final = 0.95
"""Against the reference commit."""
MAX_RSS_SHARE: Final = 1.0
MAX_FIRST_BIND_S: Final = 5.0
MAX_LARGE_FIRST_BIND_S: Final = 12.0
MAX_LARGE_RSS_MIB: Final = 450 * 1_000_000 / MEBIBYTE
MAX_STDDEV_SHARE: Final = 1.05
"""Pods per node may spread a twentieth wider than kube-scheduler's, which places by chance among equals as we do."""
MAX_STEADY_P99_MS: Final = 250.0
MIN_EVENTS_STORED: Final = 0.99
MIN_GANG_RATE_SHARE: Final = 0.8
"""A gang of thousands is bound as fast as pods without gangs, or nearly."""
MIN_FRACTION_RATE_SHARE: Final = 0.8
MIN_PAGES_RATE_SHARE: Final = 0.98
"""The same of parts of GPUs."""


@dataclass(frozen=True, slots=True)
class Round:
    """One run of one scheduler on waiting pods. Times are the client's; CPU and memory the kernel's.

    `cpu_ms_per_pod` counts from the start of the process until its events are stored; `start_cpu_s` is what of it was used
    until the first bind, `started_cpu_ms_per_pod` the rest, over all pods; `events_stored` is the share of
    pods with their Scheduled event `EVENTS_WAIT_S` after the last bind at the latest; `dropped` the pods without.
    """

    pods: int
    bound: int
    pods_per_s: float
    span_s: float
    first_bind_s: float
    cpu_ms_per_pod: float
    start_cpu_s: float
    started_cpu_ms_per_pod: float
    peak_rss_mib: float
    overcommitted: int
    against_rules: int
    """Pods that stand against a required rule, says the judge of `multisched verify`."""
    node_stddev: float
    events_stored: float
    events_after_s: float
    dropped: int


@dataclass(frozen=True, slots=True)
class GangRound(Round):
    """A round whose pods come in gangs, with one more gang that has no room.

    `gangs_in_part` counts gangs that have some of their pods on nodes when the round ends, and not all; `conditions` the
    PodGroups whose status says that they are scheduled.
    """

    gangs: int
    gangs_per_s: float
    cpu_ms_per_gang: float
    gangs_in_part: int
    conditions: int

    @classmethod
    def of(cls, measured: Round, size: int, bound: Iterable[str], conditions: int) -> GangRound:
        """`bound`: names of the pods that were bound."""
        whole, in_part = gangs.started(bound, size)
        return cls(
            **asdict(measured),
            gangs=whole,
            gangs_per_s=whole / measured.span_s if measured.span_s else 0.0,
            cpu_ms_per_gang=measured.cpu_ms_per_pod * measured.bound / max(whole, 1),
            gangs_in_part=in_part,
            conditions=conditions,
        )


@dataclass(frozen=True, slots=True)
class CeilingRound:
    """A client that only posts bindings."""

    binds_per_s: float
    client_cpu_ms: float


@dataclass(frozen=True, slots=True)
class SteadyRound:
    """Online pods at a steady rate while another domain takes a burst; latencies from created to bound.

    Created is when the API server's answer to the create was here; `p99_from_sent_ms` counts the create itself too.
    """

    pods: int
    bound: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    p99_from_sent_ms: float
    burst_bound: int
    burst_span_s: float
    overcommitted: int
    against_rules: int


@dataclass(frozen=True, slots=True)
class Bar:
    """One figure against its limit."""

    text: str
    value: float
    met: bool


def quantile_ms(ordered: Sequence[float], share: float) -> float:
    """Nearest rank; infinite when nothing was bound."""
    return 1_000 * ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.inf


def medians(rounds: Sequence[Any]) -> dict[str, float]:
    """Field by field over rounds of one kind."""
    rows = [asdict(each) for each in rounds]
    return {field: median(row[field] for row in rows) for field in rows[0]}


def table(results: Mapping[str, Sequence[Any]]) -> str:
    """A column per contender, a line per figure: the median, and in brackets each round's where rounds differ."""
    fields = list(dict.fromkeys(field for rounds in results.values() for field in asdict(rounds[0])))
    lines = [["", *results]]
    for field in fields:
        cells = [_cell([asdict(each).get(field) for each in rounds]) for rounds in results.values()]
        lines.append([field, *cells])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def _cell(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None and not math.isnan(value)]
    if not known:
        return "-"
    middle = _number(median(known))
    each = [_number(value) for value in known]
    return middle if len(set(each)) == 1 else f"{middle} ({' '.join(each)})"


def _number(value: float) -> str:
    if math.isinf(value):
        return "never"
    return f"{value:.0f}" if value == round(value) or abs(value) >= 100 else f"{value:.3g}"


def shape_bars(shape: Shape, results: Mapping[str, Sequence[Round]]) -> list[Bar]:
    """What multisched must show on a shape; the ratios only when kube-scheduler ran too."""
    if MULTISCHED not in results:
        return []
    ours = medians(results[MULTISCHED])
    waits_for_victims = bool(shape.victims_per_node)
    bars = (
        [] if waits_for_victims else [at_most("process start to first bind, s", ours["first_bind_s"], MAX_FIRST_BIND_S)]
    )
    bars += [
        *_safety_bars(results[MULTISCHED]),
        at_least("events stored in time, worst round", _worst_events(results[MULTISCHED]), MIN_EVENTS_STORED),
    ]
    if shape.gang_size:
        bars += _gang_bars([each for each in results[MULTISCHED] if isinstance(each, GangRound)])
    if math.isfinite(shape.rss_mib):
        bars.append(at_most("peak RSS, MiB", ours["peak_rss_mib"], shape.rss_mib))
    if KUBE_SCHEDULER in results:
        theirs = medians(results[KUBE_SCHEDULER])

        def ratio(figure: str) -> float:
            if theirs[figure]:
                return ours[figure] / theirs[figure]
            return math.inf if ours[figure] else 1.0

        if waits_for_victims:
            faster = at_least(
                "pods/s from process start, times kube-scheduler's",
                _from_start(ours) / _from_start(theirs),
                shape.speedup,
            )
        elif shape.gang_size:
            faster = at_least("gangs/s, times kube-scheduler's", ratio("gangs_per_s"), shape.speedup)
        else:
            faster = at_least("pods/s, times kube-scheduler's", ratio("pods_per_s"), shape.speedup)
        bars += [
            faster,
            at_most("CPU/pod from process start, times kube-scheduler's", ratio("cpu_ms_per_pod"), shape.cpu_share),
            at_most(
                "pods per node, standard deviation, times kube-scheduler's", ratio("node_stddev"), MAX_STDDEV_SHARE
            ),
        ]
        if math.isinf(shape.rss_mib):
            bars.append(at_most("peak RSS, times kube-scheduler's", ratio("peak_rss_mib"), MAX_RSS_SHARE))
        if not waits_for_victims:  # there kube-scheduler has decided nearly all before the first pod is bound
            started = ratio("started_cpu_ms_per_pod")
            bars.append(at_most("CPU/pod once started, times kube-scheduler's", started, shape.cpu_share))
    return bars


def against_bars(here: Sequence[Round], there: Sequence[Round]) -> list[Bar]:
    """This tree against another commit: medians of the ratios of rounds that followed one another."""

    def ratio(figure: str) -> float:
        pairs = zip(here, there, strict=True)
        return float(median(getattr(own, figure) / getattr(other, figure) for own, other in pairs))

    return [
        at_least("pods/s, times the other commit's", ratio("pods_per_s"), MIN_RATE_SHARE),
        at_most("CPU/pod from process start, times the other commit's", ratio("cpu_ms_per_pod"), MAX_CPU_SHARE),
        at_most("CPU/pod once started, times the other commit's", ratio("started_cpu_ms_per_pod"), MAX_CPU_SHARE),
        at_most("CPU before the first bind, times the other commit's", ratio("start_cpu_s"), 1.0),
        *_safety_bars(here),
    ]


def large_gang_bars(plain: Sequence[Round], gang: Sequence[GangRound]) -> list[Bar]:
    """One gang of thousands against as many pods without gangs, in the same run."""
    whole, singly = medians(gang), medians(plain)
    return [
        at_least(
            "pods/s of a gang, times the plain rate", whole["pods_per_s"] / singly["pods_per_s"], MIN_GANG_RATE_SHARE
        ),
        at_least(
            "pods/s of a gang from process start, times the plain rate",
            _from_start(whole) / _from_start(singly),
            MIN_GANG_RATE_SHARE,
        ),
        *_safety_bars([*plain, *gang]),
        *_gang_bars(gang),
    ]


def fraction_bars(plain: Sequence[Round], fractions: Sequence[Round]) -> list[Bar]:
    """Parts of GPUs against as many plain pods, in the same run."""
    shared, whole = medians(fractions), medians(plain)
    return [
        at_least(
            "pods/s of fractions, times the plain rate",
            shared["pods_per_s"] / whole["pods_per_s"],
            MIN_FRACTION_RATE_SHARE,
        ),
        *_safety_bars([*plain, *fractions]),
    ]


def page_bars(without: Sequence[Round], pages: Sequence[Round]) -> list[Bar]:
    """Open pages against none, in the same run."""
    share = medians(pages)["pods_per_s"] / medians(without)["pods_per_s"]
    return [at_least("pods/s with open pages, times the rate without", share, MIN_PAGES_RATE_SHARE)]


def _gang_bars(rounds: Sequence[GangRound]) -> list[Bar]:
    return [
        at_most("gangs bound in part, all rounds", sum(each.gangs_in_part for each in rounds), 0),
        at_most(
            "started gangs without a condition, all rounds", sum(each.gangs - each.conditions for each in rounds), 0
        ),
    ]


def _from_start(figures: Mapping[str, float]) -> float:
    """Pods per second from process start to last bind: a scheduler may delete all victims first and then bind in one go."""
    return figures["bound"] / (figures["first_bind_s"] + figures["span_s"])


def large_bars(rounds: Sequence[Round]) -> list[Bar]:
    figures = medians(rounds)
    return [
        at_most("process start to first bind, s", figures["first_bind_s"], MAX_LARGE_FIRST_BIND_S),
        at_most("peak RSS, MiB", figures["peak_rss_mib"], MAX_LARGE_RSS_MIB),
        *_safety_bars(rounds),
    ]


def steady_bars(rounds: Sequence[SteadyRound]) -> list[Bar]:
    p99 = medians(rounds)["p99_ms"]
    return [at_most("created to bound beside a burst, p99, ms", p99, MAX_STEADY_P99_MS), *_safety_bars(rounds)]


def _safety_bars(rounds: Sequence[Round] | Sequence[SteadyRound]) -> list[Bar]:
    return [
        at_most("overcommitted nodes, all rounds", sum(each.overcommitted for each in rounds), 0),
        at_most("pods against a required rule, all rounds", sum(each.against_rules for each in rounds), 0),
        at_most("pods not bound, all rounds", sum(each.pods - each.bound for each in rounds), 0),
    ]


def _worst_events(rounds: Sequence[Round]) -> float:
    return min(each.events_stored for each in rounds)


def at_most(text: str, value: float, limit: float) -> Bar:
    return Bar(f"{text} <= {_number(limit)}", value, value <= limit)


def at_least(text: str, value: float, limit: float) -> Bar:
    return Bar(f"{text} >= {_number(limit)}", value, value >= limit)


def verdict(bars: Sequence[Bar]) -> str:
    return "\n".join(f"{'pass' if bar.met else 'FAIL'}  {bar.text}: {_number(bar.value)}" for bar in bars)

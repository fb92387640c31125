"""What the rounds of `burst_bench` measured, and the bars they are held against. Pure values: no network, no clock."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

from tests.perf.bench_figures import Bar, at_least, at_most, quantile_ms

MAX_SPAN_SHARE: Final = 1.10
MAX_SPAN_SHARE_BESIDE: Final = 1.15
MAX_CRON_P99_SHARE: Final = 1.25
MAX_FORECAST_P99_MS: Final = 60.0
MAX_FORECAST_P99_SHARE: Final = 2.0
"""The larger of the two applies."""
MAX_GAP_P50_MS: Final = 25.0
MAX_GAP_P99_MS: Final = 200.0
MIN_SLOTS_USED: Final = 0.97


@dataclass(frozen=True, slots=True)
class BurstRound:
    """A burst, forecast pods, or both. `span_s`: from the first create to the last bind; `create_s`: to the last create."""

    pods: int
    bound: int
    span_s: float
    create_s: float
    forecast_pods: int
    forecast_p50_ms: float
    forecast_p99_ms: float
    """Created to bound."""
    overcommitted: int
    against_rules: int
    load: float
    """Of the machine in the last minute; others use it too."""


@dataclass(frozen=True, slots=True)
class CronRound:
    """Pods that were sent within `sent_s`; from the answer to their create, or from sending it, to the bind."""

    pods: int
    bound: int
    sent_s: float
    p50_ms: float
    p99_ms: float
    p99_from_sent_ms: float
    overcommitted: int
    against_rules: int
    load: float


@dataclass(frozen=True, slots=True)
class TurnoverRound:
    """Slots with one pod at a time. The gap is from Succeeded seen to the next bind on that node seen.

    `slots_used`: seconds in which a pod had a slot / (slots x seconds), from the first bind to the last: until then a pod waits.
    """

    pods: int
    bound: int
    gap_p50_ms: float
    gap_p99_ms: float
    gap_max_ms: float
    slots_used: float
    span_s: float
    load: float


def burst_round(
    bound_at: Mapping[str, float],
    burst: Collection[str],
    created: Mapping[str, float],
    began_s: float,
    create_s: float,
    wrong: tuple[int, int],
    load: float,
) -> BurstRound:
    """`created`: forecast pod -> when the answer to its create was here. `wrong`: overcommitted nodes, pods against rules."""
    waits = sorted(max(0.0, bound_at[name] - at) if name in bound_at else math.inf for name, at in created.items())
    last = max((bound_at[name] for name in burst if name in bound_at), default=math.nan)
    bound = sum(name in bound_at for name in (*burst, *created))
    return BurstRound(
        pods=len(burst) + len(created),
        bound=bound,
        span_s=last - began_s,
        create_s=create_s,
        forecast_pods=len(created),
        forecast_p50_ms=quantile_ms(waits, 0.5) if waits else math.nan,
        forecast_p99_ms=quantile_ms(waits, 0.99) if waits else math.nan,
        overcommitted=wrong[0],
        against_rules=wrong[1],
        load=load,
    )


def cron_round(
    bound_at: Mapping[str, float],
    sent: Mapping[str, float],
    created: Mapping[str, float],
    wrong: tuple[int, int],
    load: float,
) -> CronRound:
    """Times of each pod, by name."""
    waits = sorted(max(0.0, bound_at.get(name, math.inf) - at) for name, at in created.items())
    return CronRound(
        pods=len(created),
        bound=sum(name in bound_at for name in created),
        sent_s=max(sent.values()) - min(sent.values()),
        p50_ms=quantile_ms(waits, 0.5),
        p99_ms=quantile_ms(waits, 0.99),
        p99_from_sent_ms=quantile_ms(sorted(bound_at.get(name, math.inf) - at for name, at in sent.items()), 0.99),
        overcommitted=wrong[0],
        against_rules=wrong[1],
        load=load,
    )


def turnover_round(
    bound_at: Mapping[str, float],
    ended_at: Mapping[str, float],
    node_of: Mapping[str, str],
    slots: int,
    pods: int,
    load: float,
) -> TurnoverRound:
    """Times and node of each pod, by name."""
    on_node: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for name, node in node_of.items():
        on_node[node].append((bound_at[name], name))
    gaps = list[float]()
    for found in on_node.values():
        found.sort()
        for (_, name), (next_s, _) in pairwise(found):
            gaps.append(max(0.0, next_s - ended_at.get(name, math.inf)))
    gaps.sort()
    last_s = max(bound_at.values(), default=math.inf)
    span_s = last_s - min(bound_at.values(), default=0.0)
    used_s = sum(min(ended_at.get(name, last_s), last_s) - at for name, at in bound_at.items())
    return TurnoverRound(
        pods=pods,
        bound=len(bound_at),
        gap_p50_ms=quantile_ms(gaps, 0.5),
        gap_p99_ms=quantile_ms(gaps, 0.99),
        gap_max_ms=quantile_ms(gaps, 1.0),
        slots_used=used_s / (slots * span_s),
        span_s=span_s,
        load=load,
    )


def burst_bars(
    ours: Sequence[BurstRound], echo: Sequence[BurstRound], alone: Sequence[BurstRound], beside: Sequence[BurstRound]
) -> list[Bar]:
    """Medians of the ratios of rounds that followed one another, and of the latencies."""
    p99_alone = median(each.forecast_p99_ms for each in alone)
    limit = max(MAX_FORECAST_P99_MS, MAX_FORECAST_P99_SHARE * p99_alone)
    return [
        at_most(
            "first create to last bind, times the echo's",
            _ratio([each.span_s for each in ours], [each.span_s for each in echo]),
            MAX_SPAN_SHARE,
        ),
        at_most(
            "the same with forecast pods beside it, times without",
            _ratio([each.span_s for each in beside], [each.span_s for each in ours]),
            MAX_SPAN_SHARE_BESIDE,
        ),
        at_most(
            f"forecast pods beside the burst, created to bound, p99, ms (alone: {p99_alone:.0f})",
            median(each.forecast_p99_ms for each in beside),
            limit,
        ),
        *_safety_bars([*ours, *alone, *beside]),
        at_most("pods not bound by the echo", sum(each.pods - each.bound for each in echo), 0),
    ]


def cron_bars(ours: Sequence[CronRound], echo: Sequence[CronRound]) -> list[Bar]:
    """Medians of the ratios of rounds that followed one another."""
    return [
        at_most(
            "created to bound, p99, times the echo's",
            _ratio([each.p99_ms for each in ours], [each.p99_ms for each in echo]),
            MAX_CRON_P99_SHARE,
        ),
        *_safety_bars(ours),
        at_most("pods not bound by the echo", sum(each.pods - each.bound for each in echo), 0),
    ]


def turnover_bars(rounds: Sequence[TurnoverRound]) -> list[Bar]:
    """Medians over the rounds."""
    return [
        at_most("Succeeded to the next bind, p50, ms", median(each.gap_p50_ms for each in rounds), MAX_GAP_P50_MS),
        at_most("Succeeded to the next bind, p99, ms", median(each.gap_p99_ms for each in rounds), MAX_GAP_P99_MS),
        at_least("slots used, of the fluid bound", median(each.slots_used for each in rounds), MIN_SLOTS_USED),
        at_most("pods not bound, all rounds", sum(each.pods - each.bound for each in rounds), 0),
    ]


def _ratio(ours: Sequence[float], others: Sequence[float]) -> float:
    return median(own / other for own, other in zip(ours, others, strict=True))


def _safety_bars(rounds: Sequence[BurstRound] | Sequence[CronRound]) -> list[Bar]:
    return [
        at_most("overcommitted nodes, all rounds", sum(each.overcommitted for each in rounds), 0),
        at_most("pods against a required rule, all rounds", sum(each.against_rules for each in rounds), 0),
        at_most("pods not bound, all rounds", sum(each.pods - each.bound for each in rounds), 0),
    ]

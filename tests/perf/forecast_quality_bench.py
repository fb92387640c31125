"""How even the forecast domain keeps fleets of many kinds, against plain sums: `python -m tests.perf.forecast_quality_bench`.

Each kind of `fleet_kinds` is made with several seeds, and the pods of each fleet come in several orders: one order alone
moves a figure by a third. The product places by the whole program on the profile as it ships, as `multisched simulate`
does. Beside it pods go to the node with the lowest sum of each service's p95 over the history (`p95 sum`), of its mean,
and of its requests. The 14 days after are judged. Printed are means per kind, and how much higher the forecast is than
each plain sum, with 95 % confidence over the fleets (Student's t): below zero the forecast is better.

With `--alone` the score places without the rest of the program (`fleet_scores`): a hundred fleets of a kind take minutes.

Seeds from 0 are those that rules may be chosen by. HELD_OUT are for one look at the end.
`--profile` places on another profile as well, a JSON document as below `profile:` in a configuration.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np

from multisched.forecasting.profiles import Profiles
from tests.perf.fleet_kinds import KINDS, Fleet, make_fleet
from tests.perf.fleet_placements import Evenness, Nodes, all_figures, beside_sums, policy
from tests.perf.fleet_scores import place_by_score, profiles_of

FORECAST: Final = "peak-forecast"
HELD_OUT: Final = 1_000
"""Seeds from here on are held out."""
T_95: Final = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""By degrees of freedom, from 1."""
T_MANY: Final = 2.23
"""Of ten degrees; more have less."""
NAMES: Final = ("peak CV", "peak max/mean", "busy CV", "busy max/mean")

Runs = Mapping[str, Sequence[Sequence[Evenness]]]
"""By name: of each fleet the figures of each order."""


def measured(kind: str, seeds: Sequence[int], orders: int, profiles: Sequence[str]) -> Runs:
    """The figures of fleets of one kind."""
    policies = [policy(FORECAST), *(policy(f"profile-{n}", json.loads(one)) for n, one in enumerate(profiles, 1))]
    found: dict[str, list[Sequence[Evenness]]] = {}
    for seed in seeds:
        drawn = [order + 100 * seed for order in range(orders)]
        for name, figures in all_figures(make_fleet(kind, seed), policies, drawn).items():
            found.setdefault(name, []).append(figures)
    return found


def measured_alone(kind: str, seeds: Sequence[int], orders: int) -> Runs:
    """The same by the score alone."""
    found: dict[str, list[Sequence[Evenness]]] = {}
    for seed in seeds:
        fleet = make_fleet(kind, seed)
        drawn = [order + 100 * seed for order in range(orders)]
        for name, figures in beside_sums(fleet, drawn, partial(_by_score, fleet, profiles_of(fleet))).items():
            found.setdefault(name, []).append(figures)
    return found


def _by_score(fleet: Fleet, profiles: Profiles, order: Nodes, seed: int) -> Iterator[tuple[str, Nodes, Nodes]]:
    yield FORECAST, order, place_by_score(fleet, profiles, order, seed)


def higher(ours: Sequence[Sequence[Evenness]], others: Sequence[Sequence[Evenness]]) -> list[tuple[float, float]]:
    """Per figure: from and to how many percent ours is higher, with confidence."""
    ratios = np.log(np.array(ours) / np.array(others)).mean(axis=1)
    count = len(ratios)
    factor = T_95[count - 2] if count - 2 < len(T_95) else T_MANY
    halves = factor * ratios.std(axis=0, ddof=1) / np.sqrt(count)
    bounds = 100 * np.expm1([ratios.mean(axis=0) - halves, ratios.mean(axis=0) + halves])
    return [(float(low), float(high)) for low, high in bounds.T]


def table(kind: str, runs: Runs) -> str:
    """Of one kind."""
    lines = [f"{kind:<14}" + "".join(f"{name:>18}" for name in NAMES)]
    for name, figures in runs.items():
        lines.append(f"  {name:<12}" + "".join(f"{mean:>18.3f}" for mean in np.array(figures).mean(axis=(0, 1))))
    for name in runs:
        if name != FORECAST:
            shown = (f"{low:+.1f} to {high:+.1f} %" for low, high in higher(runs[FORECAST], runs[name]))
            lines.append(f"  to {name:<9}" + "".join(f"{text:>18}" for text in shown))
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--seeds", type=int, default=5, help="fleets of each kind")
    parser.add_argument("--first", type=int, default=0, help=f"the first seed; held-out seeds begin at {HELD_OUT}")
    parser.add_argument("--orders", type=int, default=8, help="orders in which the pods of each fleet come")
    parser.add_argument("--alone", action="store_true", help="place by the score, without the rest of the program")
    parser.add_argument("--profile", action="append", default=[], help="another profile to place on as well")
    options = parser.parse_args()
    if options.seeds < 2:
        parser.error("--seeds: confidence needs two fleets of each kind at least")
    if options.alone and options.profile:
        parser.error("--profile: with --alone no profile is in force")
    logging.disable(logging.ERROR)
    for kind in options.kinds:
        seeds = range(options.first, options.first + options.seeds)
        runs = (
            measured_alone(kind, seeds, options.orders)
            if options.alone
            else measured(kind, seeds, options.orders, options.profile)
        )
        print(table(kind, runs), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

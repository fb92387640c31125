"""The results of all runs of a scenario: one document for `-o json`, and the table made from it.

Everything is in the order of the scenario and rounded to DIGITS, so that the same scenario gives the same bytes. The document
has means and medians over the seeds; `seeds` has each run separately. Loads are shares of capacity: 1 is full.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

import msgspec

from multisched.model.visible_text import escaped
from multisched.observe.tables import as_table
from multisched.simulate.fits import FitCache
from multisched.simulate.judge import Busiest, Figures, RunFigures, Worst, judge
from multisched.simulate.recorded_run import RunResult, run_policy
from multisched.simulate.repairs import WindowResult
from multisched.simulate.scenario import Policy, Scenario
from multisched.simulate.scenario_schema import API_VERSION
from multisched.simulate.scenario_time import DAY_S, format_time

KIND = "SimulationReport"
DIGITS = 6
SHOWN_MAX = 10
"""Sentences of one kind in the table; the document has all."""

HEAD = (
    "policy", "dimension", "cv", "max/mean", "top", "nodes > 80%", "nodes > 100%", "moves", "per 100 replicas", "unplaced"
)  # fmt: skip

Document = dict[str, Any]


class Outcome(msgspec.Struct, frozen=True):
    """Figures of one run."""

    seed: int
    figures: RunFigures
    moves: int
    created: int
    unplaced: tuple[str, ...]
    failures: tuple[str, ...]
    repairs: tuple[WindowResult, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Reports whether every pod was placed and no plugin failed."""
        return not self.unplaced and not self.failures


def run_one(scenario: Scenario, policy: Policy, seed: int, fits: FitCache) -> Outcome:
    """Runs and judges one policy and seed. Raises PluginSetupError if a plugin cannot be built."""
    result: RunResult = run_policy(scenario, policy, seed, fits)
    figures = judge(scenario, result)
    return Outcome(seed, figures, result.moves, result.created, result.unplaced, result.failures, result.repairs)


def document_of(scenario: Scenario, outcomes: Mapping[str, Sequence[Outcome]]) -> Document:
    """Returns the report; `outcomes`: policy -> runs in the order of the seeds."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "scenario": scenario.name,
        "known": {"until": format_time(scenario.known_until_s)},
        "created": {"at": format_time(scenario.create_s), "order": scenario.order},
        "judged": {"from": format_time(scenario.judged_from_s), "to": format_time(scenario.judged_to_s)},
        "nodes": len(scenario.nodes),
        "services": len(scenario.services),
        "replicas": scenario.replicas,
        "dimensions": list(scenario.usage.dimensions),
        "seeds": list(scenario.seeds),
        "notes": list(scenario.notes),
        "policies": [_policy(scenario, policy.name, outcomes[policy.name]) for policy in scenario.policies],
    }


def _policy(scenario: Scenario, name: str, outcomes: Sequence[Outcome]) -> Document:
    names = scenario.usage.dimensions
    wholes = [_by_dimension(names, outcome.figures.whole) for outcome in outcomes]
    moves, unplaced = [outcome.moves for outcome in outcomes], [len(outcome.unplaced) for outcome in outcomes]
    days = range(len(outcomes[0].figures.days))
    return {
        "name": name,
        "mean": _figures_of(scenario, moves, unplaced, wholes, _mean),
        "median": _figures_of(scenario, moves, unplaced, wholes, _median),
        "days": [
            {
                "date": format_time(scenario.judged_from_s + day * DAY_S)[:10],
                "mean": _over([_by_dimension(names, outcome.figures.days[day]) for outcome in outcomes], _mean),
                "median": _over([_by_dimension(names, outcome.figures.days[day]) for outcome in outcomes], _median),
            }
            for day in days
        ],
        "seeds": [_seed(scenario, outcome) for outcome in outcomes],
    }


def _figures_of(
    scenario: Scenario, moves: Sequence[int], unplaced: Sequence[int], wholes: Sequence[Document], total: Any
) -> Document:
    per_100 = [100 * count / max(1, scenario.replicas) for count in moves]
    return {
        "moves": total(moves),
        "movesPer100Replicas": total(per_100),
        "unplaced": total(unplaced),
        "dimensions": _over(wholes, total),
    }


def _seed(scenario: Scenario, outcome: Outcome) -> Document:
    names = scenario.usage.dimensions
    return {
        "seed": outcome.seed,
        "moves": outcome.moves,
        "repairs": [
            {"at": format_time(one.opens_s), "moves": one.moves, "stopped": one.reason} for one in outcome.repairs
        ],
        "podsCreated": outcome.created,
        "unplaced": list(outcome.unplaced),
        "failures": list(outcome.failures),
        "dimensions": _by_dimension(names, outcome.figures.whole),
        "days": [
            {
                "date": format_time(scenario.judged_from_s + day * DAY_S)[:10],
                "dimensions": _by_dimension(names, figures),
            }
            for day, figures in enumerate(outcome.figures.days)
        ],
    }


def _by_dimension(names: Sequence[str], figures: Sequence[Figures]) -> Document:
    return {name: _figures(one) for name, one in zip(names, figures, strict=True)}


def _figures(found: Figures) -> Document:
    worst = found.worst
    return {
        "busiestHours": _spread(found.busiest),
        "worstSlot": {
            "load": _rounded(worst.load),
            "at": format_time(worst.at_s),
            "node": worst.node,
            **_spread(worst),
        },
        "nodesOver80": found.nodes_over_80,
        "nodesOver100": found.nodes_over_100,
    }


def _spread(found: Busiest | Worst) -> Document:
    return {
        "cv": _rounded(found.cv),
        "maxOverMean": _rounded(found.max_over_mean),
        "nodesOver80": found.nodes_over_80,
        "nodesOver100": found.nodes_over_100,
    }


def _over(documents: Sequence[Document], total: Any) -> Document:
    """Returns the same document with every number aggregated by `total`; omits texts, which differ between runs."""
    found: Document = {}
    for key, first in documents[0].items():
        values = [document[key] for document in documents]
        if isinstance(first, dict):
            found[key] = _over(values, total)
        elif not isinstance(first, str):
            found[key] = total(values)
    return found


def _mean(values: Sequence[float]) -> float:
    return _rounded(fmean(values))


def _median(values: Sequence[float]) -> float:
    return _rounded(float(median(values)))


def _rounded(value: float) -> float:
    return round(value, DIGITS)


# -- as a table ----------------------------------------------------------------------------------------------------


def table_of(document: Document) -> str:
    """Formats means over the seeds, a line per policy and dimension; then notes on filled gaps and failures."""
    rows = []
    for policy in document["policies"]:
        mean = policy["mean"]
        for name, found in mean["dimensions"].items():
            busiest = found["busiestHours"]
            figures = (busiest["cv"], busiest["maxOverMean"], found["worstSlot"]["load"])
            moves = (mean["moves"], mean["movesPer100Replicas"])
            counts = (found["nodesOver80"], found["nodesOver100"], *moves, mean["unplaced"])
            rows.append((policy["name"], name, *(f"{f:.3f}" for f in figures), *(f"{c:.3g}" for c in counts)))
    judged = document["judged"]
    head = (
        f"{document['scenario']}: {document['replicas']} replicas of {document['services']} services on"
        f" {document['nodes']} nodes; judged {judged['from']} to {judged['to']}; means over {len(document['seeds'])} seeds"
    )
    legend = "cv, max/mean: at the two busiest hours of each day; top: the highest load of any node, 1 is its capacity"
    return "\n".join(
        [head, "", as_table(HEAD, rows), "", legend, *(f"note: {escaped(note)}" for note in notes_of(document))]
    )


def notes_of(document: Document) -> list[str]:
    """Returns notes that a reader needs in addition to the figures; at most SHOWN_MAX."""
    found = list(document["notes"])
    for policy in document["policies"]:
        for run in policy["seeds"]:
            stops = [f"repair of {one['at']}: {one['stopped']}" for one in run["repairs"] if one["stopped"]]
            texts = (*run["unplaced"], *run["failures"], *stops)
            found += [f"{policy['name']}, seed {run['seed']}: {text}" for text in texts]
    return [*found[:SHOWN_MAX], f"{len(found) - SHOWN_MAX} more; -o json has all"] if len(found) > SHOWN_MAX else found

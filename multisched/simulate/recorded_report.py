"""The report on runs of recorded services: figures per policy, dimension and day.

The document has means and medians over the seeds; `seeds` contains each run separately. Loads are shares of capacity: 1 is full.
Each dimension has two plots: the load of the fullest node in each hour (mean over the seeds), and the coefficient of variation
of the nodes' load in the two busiest hours of each day.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

import msgspec
import numpy as np

from multisched.simulate.judge import Busiest, Figures, RunFigures, Worst
from multisched.simulate.report import Document, Plot, Report, Table, rounded, verdict_of
from multisched.simulate.scenario import Scenario
from multisched.simulate.scenario_schema import API_VERSION
from multisched.simulate.scenario_time import DAY_S, format_time

KIND = "SimulationReport"

HEAD = (
    "policy", "dimension", "cv", "max/mean", "top", "nodes > 80%", "nodes > 100%", "moves", "per 100 replicas", "unplaced"
)  # fmt: skip

HTML_HEAD = (
    "policy", "dimension", "CV", "max/mean", "top", "median top", "nodes > 80 %", "nodes > 100 %", "moves", "per 100"
)  # fmt: skip


class RecordedOutcome(msgspec.Struct, frozen=True):
    """Figures of one run."""

    seed: int
    figures: RunFigures
    moves: int
    created: int
    unplaced: tuple[str, ...]
    failures: tuple[str, ...]
    fields: Mapping[str, Any] = {}
    """JSON fields of domains."""
    notes: tuple[str, ...] = ()
    """Notes of domains."""

    @property
    def is_whole(self) -> bool:
        """Reports whether every pod was placed and no plugin failed."""
        return not self.unplaced and not self.failures


Outcomes = Mapping[str, Sequence[RecordedOutcome]]
"""Policy -> runs in the order of the seeds."""


def report_of(scenario: Scenario, outcomes: Outcomes) -> Report:
    """Returns the report."""
    document = _document(scenario, outcomes)
    names = tuple(policy.name for policy in scenario.policies)
    plots = {name: _plots(number, name, document, outcomes) for number, name in enumerate(scenario.usage.dimensions)}
    table, html_table = _table(document), _html_table(document)
    first = scenario.usage.dimensions[0]
    tops = {one["name"]: 100.0 * one["mean"]["dimensions"][first]["worstSlot"]["load"] for one in document["policies"]}
    verdict = verdict_of(f"highest load of a node in {first}", tops, " % of capacity")
    return Report(scenario.name, document, names, table, html_table, verdict, tuple(_notes(scenario, outcomes)), plots)


def _document(scenario: Scenario, outcomes: Outcomes) -> Document:
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


def _policy(scenario: Scenario, name: str, outcomes: Sequence[RecordedOutcome]) -> Document:
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


def _seed(scenario: Scenario, outcome: RecordedOutcome) -> Document:
    names = scenario.usage.dimensions
    return {
        "seed": outcome.seed,
        "moves": outcome.moves,
        **outcome.fields,
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
            "load": rounded(worst.load),
            "at": format_time(worst.at_s),
            "node": worst.node,
            **_spread(worst),
        },
        "nodesOver80": found.nodes_over_80,
        "nodesOver100": found.nodes_over_100,
    }


def _spread(found: Busiest | Worst) -> Document:
    return {
        "cv": rounded(found.cv),
        "maxOverMean": rounded(found.max_over_mean),
        "nodesOver80": found.nodes_over_80,
        "nodesOver100": found.nodes_over_100,
    }


def _over(documents: Sequence[Document], total: Any) -> Document:
    """Returns a document of the same form with `total` of each number; omits texts, which differ between runs."""
    found: Document = {}
    for key, first in documents[0].items():
        values = [document[key] for document in documents]
        if isinstance(first, dict):
            found[key] = _over(values, total)
        elif not isinstance(first, str):
            found[key] = total(values)
    return found


def _mean(values: Sequence[float]) -> float:
    return rounded(fmean(values))


def _median(values: Sequence[float]) -> float:
    return rounded(float(median(values)))


# -- for readers ---------------------------------------------------------------------------------------------------


def _table(document: Document) -> Table:
    """Returns the table of means over the seeds, with a row per policy and dimension."""
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
    intro = (
        f"{document['scenario']}: {document['replicas']} replicas of {document['services']} services on"
        f" {document['nodes']} nodes; judged {judged['from']} to {judged['to']}; means over {len(document['seeds'])} seeds"
    )
    legend = "cv, max/mean: at the two busiest hours of each day; top: the highest load of any node, 1 is its capacity"
    return Table(intro, HEAD, tuple(rows), legend)


def _html_table(document: Document) -> Table:
    """Returns a table with the same rows, and the median of the highest load."""
    rows = []
    for policy in document["policies"]:
        for name, mean in policy["mean"]["dimensions"].items():
            busiest = mean["busiestHours"]
            middle = policy["median"]["dimensions"][name]["worstSlot"]["load"]
            figures = (busiest["cv"], busiest["maxOverMean"], mean["worstSlot"]["load"], middle)
            moves = (policy["mean"]["moves"], policy["mean"]["movesPer100Replicas"])
            counts = (mean["nodesOver80"], mean["nodesOver100"], *moves)
            rows.append((policy["name"], name, *(f"{f:.3f}" for f in figures), *(f"{c:.3g}" for c in counts)))
    judged = document["judged"]
    intro = (
        f"{document['replicas']} replicas of {document['services']} services on {document['nodes']} nodes, created"
        f" {document['created']['at']}; known until {document['known']['until']}, judged {judged['from']} to"
        f" {judged['to']} (UTC); {len(document['seeds'])} seeds."
    )
    legend = (
        "Means over the seeds. CV and max/mean of the nodes' load at the two busiest hours of each day; top: the highest"
        " load of any node in any slot, 1 is its capacity; nodes that pass 80 % and 100 % in any slot; moves, also per 100 replicas."
    )
    return Table(intro, HTML_HEAD, tuple(rows), legend)


def _notes(scenario: Scenario, outcomes: Outcomes) -> list[str]:
    found = list(scenario.notes)
    for policy in scenario.policies:
        for run in outcomes[policy.name]:
            texts = (*run.unplaced, *run.failures, *run.notes)
            found += [f"{policy.name}, seed {run.seed}: {text}" for text in texts]
    return found


def _plots(number: int, dimension: str, document: Document, outcomes: Outcomes) -> list[Plot]:
    policies = document["policies"]
    tops = {
        policy["name"]: np.mean([run.figures.tops[number] for run in outcomes[policy["name"]]], axis=0)
        for policy in policies
    }
    days = [day["date"].partition("-")[2] for day in policies[0]["days"]]
    uneven = {p["name"]: [float(day["mean"][dimension]["busiestHours"]["cv"]) for day in p["days"]] for p in policies}
    return [
        Plot(
            "The fullest node, % of capacity, highest of each hour",
            {name: (values * 100).tolist() for name, values in tops.items()},
            days,
            marks=(80, 100),
            unit="% of capacity",
            axis="day",
        ),
        Plot("Coefficient of variation at the two busiest hours of each day", uneven, days, unit="CV", axis="day"),
    ]

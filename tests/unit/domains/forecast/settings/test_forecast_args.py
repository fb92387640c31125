"""What `config validate` says of PeakForecast's args: file, line, column, field and fix, before anything is built or asked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from multisched.config import loading
from multisched.config.document import ConfigError, Problem

HEAD = "apiVersion: multisched.io/v1\nkind: MultischedConfiguration\n"
PROMETHEUS = {"type": "prometheus", "url": "http://prometheus:9090"}
ARGS = "domains[0].profile.plugins.enabled[0].args"


def refusals(args: dict[str, Any]) -> list[str]:
    """What is wrong, without the place in the file, which every one of them has."""
    plugin = {"name": "PeakForecast", "args": args}
    domains = [{"name": "forecast", "profile": {"plugins": {"enabled": [plugin]}}}]
    problems: Sequence[Problem] = ()
    try:
        loading.parse(f"{HEAD}domains: {json.dumps(domains)}", "house.yaml")
    except ConfigError as error:
        problems = error.problems
    assert all((problem.file, problem.line) == ("house.yaml", 3) for problem in problems)
    return [f"{problem.path.removeprefix(ARGS + '.')}: {problem.message}" for problem in problems]


def history(*dimensions: dict[str, Any], sources: list[dict[str, Any]] | None = None, **more: Any) -> dict[str, Any]:
    return {"history": {"sources": sources or [PROMETHEUS], "dimensions": list(dimensions), **more}}


CPU = {"name": "cpu", "ready": "cadvisor-cpu"}


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (
            history({"name": "log", "query": "sum by (pod (x)"}),
            "history.dimensions[0].query: does not parse: ( is not closed (query: sum by (pod (x))",
        ),
        (
            history({"name": "log", "query": 'x{a="b}'}),
            'history.dimensions[0].query: does not parse: the quote " is not closed (query: x{a="b})',
        ),
        (history({"name": "log", "query": " "}), "history.dimensions[0].query: is empty; write PromQL"),
        (history(CPU, {"name": "log"}), "history.dimensions[1]: log is measured by no source; write ready or query"),
        (
            history({"name": "log"}, sources=[{"type": "metrics-api"}]),
            "history.dimensions[0]: log is measured by no source",
        ),
        (history(CPU | {"ready": "cadvisor-cpuu"}), "dimensions[0].ready: 'cadvisor-cpuu' is not known; did you mean"),
        (history(CPU | {"capacity": 0}), "history.dimensions[0].capacity: must be above zero; write a number"),
        (history(CPU | {"capacity": {"number": "0"}}), "history.dimensions[0].capacity: must be above zero"),
        (history(CPU | {"capacity": "40 M"}), "history.dimensions[0].capacity: "),
        (
            history(CPU | {"capacity": {"query": "max by (node) (x[5m])) "}}),
            "history.dimensions[0].capacity: does not parse: ) closes nothing",
        ),
        ({"capacities": {"cpu": -1}}, "capacities.cpu: must be above zero"),
        ({"dimensions": ["log"], "capacities": {"lgo": 1}}, "capacities.lgo: no dimension is called lgo; did you mean log?"),
        ({"dimensions": ["log"], "weights": {"lgo": 1}}, "weights.lgo: no dimension is called lgo; did you mean log?"),
        (history(CPU) | {"weights": {"disk": 1}}, "weights.disk: no dimension is called disk; known here: cpu"),
        ({"historyDir": "/not/here"}, "historyDir: /not/here: No such file or directory; name a readable directory"),
        ({"files": ["/not/here.csv"]}, "files[0]: /not/here.csv: there is no such file; name a readable CSV file"),
        (history(CPU) | {"fit": {"zone": "Europe/Berlni"}}, "fit.zone: 'Europe/Berlni' is not a known time zone; write an IANA name"),
        (history(CPU) | {"fit": {"holidays": ["25.12."]}}, "fit.holidays[0]: '25.12.' is not a date; write it as"),
        ({"fit": {"zone": "UTC"}}, "fit: has no effect without history, files or historyDir; remove it"),
        (history(CPU, windowDays=0), "history.windowDays: 0 is not within 0.0416667..3660"),
        (history(CPU | {"weight": 101}), "history.dimensions[0].weight: 101 is not within 0..100"),
        ({"weights": {"cpu": 101}}, "weights.cpu: 101 is not within 0..100"),
        ({"weights": {"cpu": "2"}}, "weights.cpu: '2' is text; write the number without quotes"),
        ({"weights": ["log"]}, "weights: write a mapping by dimension, such as {cpu: 2}"),
        ({"dimensions": ["log"], "weights": {"blah": 1}}, "weights.blah: no dimension is called blah; known here: log"),
        (
            {"dimensions": ["log"], "repair": {"thresholdPercent": {"foo": 90}}},
            "repair.thresholdPercent.foo: no dimension is called foo; known here: log",
        ),
        (
            history(CPU) | {"repair": {"thresholdPercent": {"cpuu": 90}}},
            "repair.thresholdPercent.cpuu: no dimension is called cpuu; did you mean cpu?",
        ),
        ({"weights": {"cpuu": 2}}, "weights.cpuu: no dimension is called cpuu; did you mean cpu?"),
        ({"capacities": {"log": "40M"}}, "capacities.log: no dimension is called log; known here: cpu, memory"),
        ({"repair": {"thresholdPercent": {"log": 90}}}, "repair.thresholdPercent.log: no dimension is called log; known here: cpu, memory"),
        ({"files": []}, "files: is empty; name at least one CSV file, or leave it out"),
        ({"dimensions": ["log", "cpu", "log"]}, "dimensions[2]: names log twice; remove one"),
        ({"windowDays": "28"}, "windowDays: '28' is text; write the number without quotes"),
        ({"windowDays": "four weeks"}, "windowDays: is a text; write a number above 0 and at most 3660"),
        (history(CPU, stepSeconds="60"), "history.stepSeconds: '60' is text; write the number without quotes"),
        (history(CPU, windowDays="28"), "history.windowDays: '28' is text; write the number without quotes"),
        (history(CPU, stepSecond=5), "history.stepSecond: unknown field; did you mean stepSeconds?"),
    ],
)  # fmt: skip
def test_invalid_setting_is_reported_at_its_field(args: dict[str, Any], told: str) -> None:
    (found,) = refusals(args)
    assert told in found


def test_all_problems_of_history_are_reported_together() -> None:
    found = refusals(history(CPU | {"capacity": 0}, {"name": "log", "query": "rate(x"}, windowDays=0))
    assert [line.partition(":")[0] for line in found] == [
        "history.dimensions[0].capacity",
        "history.dimensions[1].query",
        "history.windowDays",
    ]


def test_all_problems_of_the_args_are_reported_together() -> None:
    windows = [{"from": "1", "to": "02:00"}, {"from": "01:00"}]
    found = refusals(
        history(CPU | {"capacity": 0}, {"name": "log"})
        | {"files": ["/not/here.csv"], "percentile": 101, "windowDays": "28", "mode": "refuse", "thresholdPercent": 0}
        | {"fit": {"zone": "Nowhere", "restDays": ["sonntag"]}, "profilesFile": 5, "dimension": ["cpu"]}
        | {"weights": {"blah": 1}, "capacities": {"cpu": -1, "blubb": 1}}
        | {"repair": {"thresholdPercent": {"foo": 90}, "movesPerNode": -1, "windows": windows}}
    )
    assert sorted(line.partition(":")[0] for line in found) == [
        "capacities.blubb",
        "capacities.cpu",
        "dimension",
        "files",
        "fit.restDays[0]",
        "fit.zone",
        "history.dimensions[0].capacity",
        "mode",
        "percentile",
        "profilesFile",
        "repair.movesPerNode",
        "repair.thresholdPercent.foo",
        "repair.windows[0].from",
        "repair.windows[1].to",
        "thresholdPercent",
        "weights.blah",
        "windowDays",
    ]


def test_unmeasured_dimension_is_reported_despite_other_problems() -> None:
    found = refusals(history(CPU, {"name": "log"}) | {"percentile": 0})
    assert "history.dimensions[1]: log is measured by no source; write ready or query" in found


@pytest.mark.parametrize(
    "query",
    [
        'sum by (namespace, pod) (rate(x{path=~"/var/(log|lib)/.+[)]"}[$window]))',
        'sum(x{a="it \\" is ("} or y{a=`\\(`}) # a comment with a ( of its own\n + 1',
    ],
)
def test_brackets_in_strings_and_comments_are_ignored(query: str) -> None:
    assert refusals(history({"name": "log", "query": query})) == []

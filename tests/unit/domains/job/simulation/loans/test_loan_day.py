"""The workload `loanDay`: a small fleet through the whole command, and scenarios with mistakes."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from domains.job.simulation.loans.fleet import fluid
from domains.job.simulation.loans.run import best_lost_core_s
from multisched.cli.commands import app
from multisched.config.document import ConfigError
from multisched.simulate.simulation_file import load_simulation

DAYS, STEPS = 5, 48
POLICIES = ("forecast", "daily-peak", "current-use")


def scenario(folder: Path, change: Callable[[dict[str, Any]], object] = lambda document: None, usage: str = "") -> Path:
    section = {
        "usage": {"files": ["usage.csv"]},
        "services": {"file": "services.csv"},
        "judgedDays": 1,
        "nodes": {"count": 3, "peakPercent": 60},
        "return": {"notice": "30s", "grace": "30s"},
        "jobs": {"owners": 5, "cores": [0.5, 1]},
    }
    document = {
        "apiVersion": "multisched.io/v1alpha1",
        "kind": "Scenario",
        "name": "small",
        "policies": list(POLICIES),
        "loanDay": section,
    }
    change(document)
    (folder / "services.csv").write_text("service,replicas\nday,8\nnight,5\n")
    (folder / "usage.csv").write_text(usage or "timestamp,service,dimension,value\n" + "\n".join(samples()))
    path = folder / "scenario.yaml"
    path.write_text(json.dumps(document))
    return path


def samples() -> list[str]:
    """One service is used most at noon and one at midnight, with a deviation that differs from day to day."""
    rng, found = np.random.default_rng(3), []
    for name, turn in (("day", 0.5), ("night", 0.0)):
        for step in range(DAYS * STEPS):
            value = 1.0 + 0.8 * np.cos(2 * np.pi * (step / STEPS - turn)) + rng.normal(0.0, 0.05)
            at = f"2026-01-{5 + step // STEPS:02}T{step % STEPS // 2:02}:{step % 2 * 30:02}"
            found.append(f"{at},{name},cpu,{max(0.0, value):.3f}")
    return found


def simulated(path: Path) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["simulate", str(path), "-o", "json", "--jobs", "1"])
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_report_has_the_figures_of_each_policy(tmp_path: Path) -> None:
    document = simulated(scenario(tmp_path))
    assert document["kind"] == "LoanDayReport"
    assert (document["nodes"], document["pods"], document["judgedDays"]) == (3, 13, 1)
    assert [one["name"] for one in document["policies"]] == list(POLICIES)
    runs = {one["name"]: one["runs"][0] for one in document["policies"]}
    for run in runs.values():
        assert run["gain"] == pytest.approx(1.0 + run["lentCoreHours"] / run["onlineCoreHours"], rel=1e-4)
        assert run["gainOfBound"] == pytest.approx(run["gain"] / run["boundGain"], rel=1e-4)
        assert run["gainOverDailyPeak"] == pytest.approx(run["gain"] / runs["daily-peak"]["gain"], rel=1e-4)
        assert run["late"] == 0
        assert run["evicted"] + run["withdrawn"] <= run["notices"]
        assert run["lostCoreHours"] < run["lentCoreHours"]
        assert run["lostOverBest"] is None or run["lostOverBest"] >= 1.0
        assert run["finishedJobs"] > 0
    forecast, daily = runs["forecast"], runs["daily-peak"]
    assert forecast["onlineCoreHours"] == daily["onlineCoreHours"]
    assert daily["lentCoreHours"] < forecast["lentCoreHours"] < forecast["boundCoreHours"]
    assert forecast["recalls"] > 0
    assert forecast["overPercent"] <= 0.5


def test_table_and_page_are_made_and_are_the_same_again(tmp_path: Path) -> None:
    path = scenario(tmp_path, lambda document: document.update(policies=["current-use"]))
    texts = []
    for output, words in (
        ("table", "core-hours lent over those of the fluid"),
        ("html", "</html>"),
        ("table", "small"),
    ):
        result = CliRunner().invoke(app, ["simulate", str(path), "-o", output, "--jobs", "1"])
        assert result.exit_code == 0, result.stderr
        assert words in result.stdout
        texts.append(result.stdout)
    assert texts[0] == texts[2]


def section_with(**fields: Any) -> Callable[[dict[str, Any]], object]:
    return lambda document: document["loanDay"].update(fields)


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        (lambda document: document.update(policies=["forecast", "tide"]), "policies[1]", "write some of forecast"),
        (section_with(judgedDays=4), "loanDay.judgedDays", "write at most 3"),
        (section_with(judgedDays=0), "loanDay.judgedDays", "equal to 1, got 0"),
        (section_with(**{"return": {"notice": "25s"}}), "loanDay.return.notice", "write for instance 30s"),
        (section_with(**{"return": {"notice": "1m", "grace": "1m", "deadline": "90s"}}), "loanDay.return", "at least as long"),
        (section_with(**{"return": None}), "loanDay.return", "null"),
        (section_with(thresholdPercent=101), "loanDay.thresholdPercent", "equal to 100, got 101"),
        (section_with(jobs={"cores": [0]}), "loanDay.jobs.cores", "equal to 0.1"),
        (section_with(jobs={"minutes": 3}), "loanDay.jobs.minutes", "unknown"),
        (section_with(nodes={"count": 0}), "loanDay.nodes.count", "equal to 1, got 0"),
    ],
)  # fmt: skip
def test_mistakes_name_field_and_fix(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], field: str, words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_simulation(scenario(tmp_path, change))
    (problem,) = caught.value.problems
    assert f" {field}" in str(problem)
    assert words in str(problem)


@pytest.mark.parametrize(
    ("usage", "words"),
    [
        ([line.replace("cpu", "log") for line in samples()], "no dimension cpu"),
        (samples()[: DAYS * STEPS], "no samples of the service 'night'"),
        ([line for line in samples() if "T00:" not in line], "begin and end at midnight"),
        (["2026-01-05T00:00,day,cpu,much"], "is not a plain number"),
    ],
)
def test_usage_that_cannot_be_played_is_refused(tmp_path: Path, usage: list[str], words: str) -> None:
    text = "timestamp,service,dimension,value\n" + "\n".join(usage)
    with pytest.raises(ConfigError) as caught:
        load_simulation(scenario(tmp_path, usage=text))
    assert words in str(caught.value)


@given(st.lists(st.tuples(st.integers(1, 20), st.floats(0.0, 1e3)), min_size=1, max_size=8), st.data())
def test_best_loss_is_that_of_the_best_of_all_sets(pods: list[tuple[int, float]], data: st.DataObject) -> None:
    sized = [(100 * tenths, age_s) for tenths, age_s in pods]
    free = data.draw(st.integers(1, sum(milli for milli, _ in sized)))
    sets = (one for count in range(1, len(sized) + 1) for one in combinations(sized, count))
    least = min(sum(m * a / 1000 for m, a in one) for one in sets if sum(m for m, _ in one) >= free)
    assert best_lost_core_s(sized, free) == pytest.approx(least)


def test_fluid_lends_what_no_step_ahead_needs() -> None:
    use = np.array([[1.0], [5.0], [2.0], [9.0], [3.0]])
    assert fluid(use, 8.0, 30.0)[:, 0].tolist() == [3.0, 3.0, 0.0, 0.0, 5.0]

"""`multisched simulate` as a command: three policies over a small fleet, the real scheduler, and what is said of bad input."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from multisched.cli.commands import app
from multisched.simulate.contribution import run_extensions
from multisched.simulate.recorded_run import RunResult, run_policy
from multisched.simulate.scenario import Scenario
from tests.unit.simulate.scenarios import STEPS, Line, at, load_scenario, write

EXAMPLES = Path(__file__).parents[3] / "config/examples/simulate"
POLICIES = ["least-allocated", "realtime", "peak-forecast"]
NODES = [{"name": "node", "count": 4, "allocatable": {"cpu": 8, "memory": "32Gi"}, "capacity": {"cpu": 10, "log": 10}}]

HISTORY = {
    "sources": [{"type": "prometheus", "url": "http://prometheus:9090"}],
    "dimensions": [{"name": "cpu", "ready": "cadvisor-cpu"}],
}
WITH_LOG = HISTORY | {
    "refreshSeconds": 86_400,
    "dimensions": [*HISTORY["dimensions"], {"name": "log", "ready": "promtail-log"}],
}


def fleet() -> list[Line]:
    """Evening and morning: each uses 4 cores at its own hour and 1 else. Noisy logs all day, and asks for little."""
    cpu = {"evening": (1, 1, 1, 4), "morning": (1, 4, 1, 1), "noisy": (0.1,) * 4}
    log = {"evening": 0.1, "morning": 0.1, "noisy": 4.0}
    lines = [(at(n), s, "cpu", str(values[n % 4])) for s, values in cpu.items() for n in range(STEPS)]
    return lines + [(at(n), s, "log", str(value)) for s, value in log.items() for n in range(STEPS)]


def services(**replicas: int) -> dict[str, Any]:
    requests = {"cpu": "1", "memory": "1Gi"}
    return {"list": [{"name": name, "replicas": count, "requests": requests} for name, count in replicas.items()]}


def scenario(folder: Path, **changes: Any) -> Path:
    plain = {"nodes": NODES, "services": services(evening=4, morning=4, noisy=4), "lines": fleet()}
    return write(folder, **(plain | changes))


def run(path: Path, output: str = "json", *options: str) -> str:
    result = CliRunner().invoke(app, ["simulate", str(path), "-o", output, "--jobs", "1", *options])
    assert result.exit_code == 0, result.stderr
    return result.stdout


def run_named(path: Path, policy: str, seed: int = 0) -> tuple[Scenario, RunResult]:
    made = load_scenario(path)
    chosen = next(one for one in made.policies if one.name == policy)
    return made, run_policy(made, chosen, seed, run_extensions(made))


def standing(made: Scenario, result: RunResult) -> list[list[str]]:
    """Per node the services that stand there at the end, in order of names."""
    nodes: list[list[str]] = [[] for _ in made.nodes]
    for stay in result.placement_intervals:
        if stay.end_s == float("inf"):
            nodes[stay.node].append(made.usage.services[stay.series])
    return [sorted(names) for names in nodes]


def test_policies_are_compared_and_the_document_has_all_figures(tmp_path: Path) -> None:
    document = json.loads(run(scenario(tmp_path)))
    assert (document["apiVersion"], document["kind"]) == ("multisched.io/v1alpha1", "SimulationReport")
    assert document["judged"] == {"from": "2026-01-07 00:00", "to": "2026-01-09 00:00"}
    assert (document["nodes"], document["replicas"], document["dimensions"]) == (4, 12, ["cpu", "log"])
    assert [policy["name"] for policy in document["policies"]] == POLICIES
    spread = {"cv", "maxOverMean", "nodesOver80", "nodesOver100"}
    for policy in document["policies"]:
        assert [run["seed"] for run in policy["seeds"]] == [0, 1]
        assert [day["date"] for day in policy["days"]] == ["2026-01-07", "2026-01-08"]
        for run_ in policy["seeds"]:
            assert (run_["podsCreated"], run_["moves"], run_["unplaced"], run_["failures"]) == (12, 0, [], [])
            for figures in [run_["dimensions"], *(day["dimensions"] for day in run_["days"])]:
                assert list(figures) == ["cpu", "log"]
                for found in figures.values():
                    assert set(found) == {"busiestHours", "worstSlot", "nodesOver80", "nodesOver100"}
                    assert set(found["busiestHours"]) == spread
                    assert set(found["worstSlot"]) == {"load", "at", "node", *spread}
        tops = [run_["dimensions"]["cpu"]["worstSlot"]["load"] for run_ in policy["seeds"]]
        mean = policy["mean"]["dimensions"]["cpu"]["worstSlot"]
        assert mean["load"] == pytest.approx(sum(tops) / 2)
        assert "at" not in mean


def test_forecast_separates_coinciding_peaks_and_spreads_logs(tmp_path: Path) -> None:
    """Requests are all alike and the release comes at a quiet hour: only use over time tells the services apart."""
    alone = {"plugins": {"enabled": [{"name": "PodTopologySpread", "weight": 0}]}}
    path = scenario(
        tmp_path,
        services=services(noisy=4, evening=4),
        policies=[{"name": "alone", "profile": {"base": "forecast", **alone}}],
    )
    for seed in range(3):
        made, found = run_named(path, "alone", seed)
        assert standing(made, found) == [["evening", "noisy"]] * 4


@pytest.mark.parametrize(
    ("args", "beside"),
    [
        ({}, "grown"),
        ({"percentile": 90}, "grown"),
        (
            {"history": HISTORY | {"refreshSeconds": 86_400}, "profilesFile": "/nowhere", "fit": {"restDays": []}},
            "steady",
        ),
        ({"history": HISTORY | {"refreshSeconds": 604_800}}, "grown"),
        # What is said of a dimension that the scenario does not have is left out.
        (
            {"history": WITH_LOG, "weights": {"log": 2}, "repair": {"thresholdPercent": {"cpu": 90, "log": 80}}},
            "steady",
        ),
    ],
)
def test_policies_learn_once_or_at_each_refresh(tmp_path: Path, args: dict[str, Any], beside: str) -> None:
    """A service that was small grows tenfold after the known days; a third one comes a day later, to whichever seems smaller."""
    use = {"steady": [2.0] * STEPS, "grown": [0.4] * 8 + [9.0] * 8, "new": [1.0] * STEPS}
    plugins = {"enabled": [{"name": "PeakForecast", "args": args}]}
    path = scenario(
        tmp_path,
        lines=[(at(n), name, "cpu", str(values[n])) for name, values in use.items() for n in range(STEPS)],
        nodes=[{"name": "node", "count": 2, "allocatable": {"cpu": 8, "memory": "32Gi"}, "capacity": {"cpu": 20}}],
        services=services(steady=1, grown=1, new=0),
        events=[{"at": "day 4", "scale": {"new": 1}}],
        policies=[{"name": "learning", "profile": {"base": "forecast", "plugins": plugins}}],
    )
    made, found = run_named(path, "learning")
    assert sorted([beside, "new"]) in standing(made, found)


def test_a_service_can_request_devices(tmp_path: Path) -> None:
    nodes = [{**NODES[0], "allocatable": {"cpu": 8, "memory": "32Gi", "nvidia.com/gpu": 1}}]
    trained = {"list": [{"name": "evening", "replicas": 4, "requests": {"cpu": 1, "nvidia.com/gpu": 1}}]}
    made, found = run_named(scenario(tmp_path, nodes=nodes, services=trained), "least-allocated")
    assert standing(made, found) == [["evening"]] * 4


def test_least_allocated_only_evens_requests(tmp_path: Path) -> None:
    made, found = run_named(scenario(tmp_path), "least-allocated")
    assert [len(names) for names in standing(made, found)] == [3, 3, 3, 3]


def test_service_replicas_spread_by_default_as_those_of_a_deployment(tmp_path: Path) -> None:
    """By requests alone the large node would take both."""
    nodes = [
        {**NODES[0], "name": name, "count": 1, "allocatable": {"cpu": cpu, "memory": "32Gi"}}
        for name, cpu in (("l", 64), ("s", 4))
    ]
    events = [{"at": "day 3 06:00", "release": ["evening"]}]
    made, found = run_named(
        scenario(tmp_path, nodes=nodes, services=services(evening=2), events=events), "least-allocated"
    )
    assert standing(made, found) == [["evening"], ["evening"]]
    assert sorted(stay.node for stay in found.placement_intervals) == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("hour", "expected"),
    [
        ("18:00", [["evening"], ["evening"], ["morning"] * 4, ["morning"] * 4]),
        ("06:00", [["evening", "morning", "morning"]] * 2 + [["morning", "morning"]] * 2),
    ],
)
def test_realtime_uses_only_the_hour_of_creation(tmp_path: Path, hour: str, expected: list[list[str]]) -> None:
    """At six in the evening an evening replica uses as much as four of the morning, at six in the morning the reverse."""
    create = {"at": f"day 2 {hour}", "order": "listed"}
    path = scenario(tmp_path, services=services(evening=2, morning=8), policies=["realtime"], create=create)
    assert sorted(standing(*run_named(path, "realtime"))) == expected


def test_release_replaces_every_replica_and_counts_changed_nodes(tmp_path: Path) -> None:
    events = [{"at": "day 3 06:00", "release": ["evening"]}]
    made, found = run_named(scenario(tmp_path, events=events), "least-allocated")
    assert found.created == 16
    assert not found.unplaced
    released = [stay for stay in found.placement_intervals if made.usage.services[stay.series] == "evening"]
    at_s = made.judged_from_s + 6 * 3600
    old = sorted(stay.node for stay in released if stay.end_s < float("inf"))
    new = sorted(stay.node for stay in released if stay.end_s == float("inf"))
    assert len(old) == len(new) == 4
    assert all(at_s <= stay.begin_s < at_s + 60 for stay in released if stay.end_s == float("inf"))
    assert found.moves <= 4
    assert found.moves >= sum(new.count(node) > old.count(node) for node in range(4))


def test_scaling_creates_and_removes_replicas_at_its_time(tmp_path: Path) -> None:
    events = [{"at": "day 3 06:00", "scale": {"morning": 6, "noisy": 1}}]
    made, found = run_named(scenario(tmp_path, events=events), "peak-forecast")
    names = sorted(name for node in standing(made, found) for name in node)
    assert names == ["evening"] * 4 + ["morning"] * 6 + ["noisy"]
    assert (found.created, found.moves) == (14, 0)


def test_pods_without_a_node_are_reported_with_an_exit_code(tmp_path: Path) -> None:
    path = scenario(tmp_path, services=services(evening=40), policies=["least-allocated"], seeds=1)
    result = CliRunner().invoke(app, ["simulate", str(path), "--jobs", "1"])
    assert result.exit_code == 1
    assert re.search(r"least-allocated +cpu .* 8$", result.stdout, re.MULTILINE), result.stdout
    assert "found no node" in result.stdout
    assert "some pods were not placed" in result.stderr


def test_release_without_a_node_stops_and_keeps_the_old_replicas(tmp_path: Path) -> None:
    """All room is taken, and the new replica comes before the old one goes."""
    events = [{"at": "day 3 06:00", "release": ["evening"]}]
    made, found = run_named(scenario(tmp_path, services=services(evening=32), events=events), "least-allocated")
    assert [len(names) for names in standing(made, found)] == [8, 8, 8, 8]
    (told,) = found.unplaced
    assert told.startswith("release of evening stopped at evening-0-2: 0/4 nodes are available: 4 Insufficient cpu")


@pytest.mark.slow
def test_same_scenario_gives_equal_bytes_in_any_process(tmp_path: Path) -> None:
    path = scenario(tmp_path, events=[{"at": "day 3 06:00", "release": ["*"]}], seeds=[3, 1])
    reports = {run(path)}
    for jobs in ("1", "2"):
        command = [sys.executable, "-m", "multisched", "simulate", str(path), "-o", "json", "--jobs", jobs]
        environment = {**os.environ, "PYTHONHASHSEED": jobs}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=240)
        reports.add(done.stdout)
    assert len(reports) == 1


def test_seeds_give_different_orders(tmp_path: Path) -> None:
    document = json.loads(run(scenario(tmp_path, policies=["peak-forecast"], seeds=6)))
    assert len({json.dumps(one["dimensions"]) for one in document["policies"][0]["seeds"]}) > 1


def test_wrong_plugin_setting_is_reported_at_its_position(tmp_path: Path) -> None:
    enabled = [{"name": "PeakForecast", "args": {"percentil": 95}}]
    bad = [{"name": "own", "profile": {"base": "forecast", "plugins": {"enabled": enabled}}}]
    result = CliRunner().invoke(app, ["simulate", str(scenario(tmp_path, policies=bad)), "--jobs", "1"])
    assert result.exit_code == 2
    assert (
        "policies[0].profile.plugins.enabled[0].args.percentil: unknown field; did you mean percentile?"
        in result.stderr
    )


def test_bad_input_reports_every_problem_and_exits_with_usage(tmp_path: Path) -> None:
    path = scenario(tmp_path, policies=["best"], seeds=[1, 1], lines=[*fleet(), (at(0), "noisy", "cpu", "1 core")])
    result = CliRunner().invoke(app, ["simulate", str(path)])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 3
    result = CliRunner().invoke(app, ["simulate", str(tmp_path / "none.yaml")])
    assert (result.exit_code, "cannot be read" in result.stderr) == (2, True)


def test_page_is_self_contained_and_shows_every_policy_and_dimension(tmp_path: Path) -> None:
    page = run(scenario(tmp_path, name="<fleet> & co"), "html")
    assert page.startswith("<!doctype html>")
    assert "&lt;fleet&gt; &amp; co" in page
    assert "<fleet>" not in page
    assert not re.search(r"<link|src=|@import|url\(|fetch\(|\bimport\b.*from", page)
    document = json.loads(page.split('id="document">')[1].split("</script>")[0])
    plots = [plot for part in document for plot in part["plots"]]
    assert len(plots) == 4, "two plots for each dimension"
    assert all([line["name"] for line in plot["lines"]] == [*POLICIES] and plot["unit"] for plot in plots)
    assert all(f"<td>{policy}</td>" in page for policy in POLICIES)
    assert re.search(
        r'<p class="lead">(Policy \S+ has the lowest|All \d policies have the same) highest load of a node in cpu', page
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["evening.yaml", "profiles.yaml"])
def test_the_examples_run(name: str) -> None:
    table = run(EXAMPLES / name, "table")
    assert table.count("peak-forecast" if name == "evening.yaml" else "forecast-alone") == 2
    assert re.findall("note: (.*?);", table) == ["the history has 6.0 days, less than a week"]


BLIND = {
    "base": "forecast",
    "plugins": {
        "disabled": ["PodTopologySpread"],
        "enabled": [{"name": "NodeResourcesFit", "weight": 1}, {"name": "PeakForecast", "weight": 0}],
    },
}
"""Placed by requests; the forecast has no say but in repair."""


def repaired(*windows: tuple[str, str], **changes: Any) -> dict[str, Any]:
    section = {"windows": [{"from": opens, "to": closes} for opens, closes in windows], **changes}
    return {"name": "repaired", "profile": BLIND, "repair": section}


def repairs_of(result: RunResult) -> list[dict[str, Any]]:
    """The windows in which the policy could repair."""
    (report,) = result.reports
    found: list[dict[str, Any]] = report.fields["repairs"]
    return found


def crowded(folder: Path, *policies: Any, **changes: Any) -> Path:
    """Eight of each, which requests do not tell apart."""
    return scenario(folder, services=services(evening=8, morning=8, noisy=8), policies=list(policies), **changes)


def test_repair_moves_within_window_and_budget_and_lowers_peaks(tmp_path: Path) -> None:
    section = repaired(("01:00", "03:00"), movesPer100Replicas=13)
    path = crowded(tmp_path, {"name": "plain", "profile": BLIND}, section, seeds=3)
    plain, mended = json.loads(run(path))["policies"]
    assert plain["mean"]["moves"] == 0
    assert [run_["repairs"] for run_ in plain["seeds"]] == [[], [], []]
    for before, after in zip(plain["seeds"], mended["seeds"], strict=True):
        assert 1 <= after["moves"] <= 3, "13 of 100, of 24 replicas"
        assert sum(one["moves"] for one in after["repairs"]) == after["moves"]
        assert [one["stopped"] for one in after["repairs"]] == [""] * len(after["repairs"])
        assert (after["unplaced"], after["failures"]) == ([], [])
        assert after["podsCreated"] == before["podsCreated"] + after["moves"]
    assert mended["mean"]["movesPer100Replicas"] == pytest.approx(100 * mended["mean"]["moves"] / 24, abs=1e-5)
    tops = [sum(p["mean"]["dimensions"][d]["worstSlot"]["load"] for d in ("cpu", "log")) for p in (plain, mended)]
    assert tops[1] < tops[0]


def test_fleet_is_unchanged_before_the_first_repair_window(tmp_path: Path) -> None:
    """Even if a window is open while it is created."""
    section = repaired(("00:00", "23:00"), movesPer100Replicas=13)
    path = crowded(tmp_path, {"name": "plain", "profile": BLIND}, section)
    made, plain = run_named(path, "plain")
    _, mended = run_named(path, "repaired")
    from_s = made.judged_from_s
    first = [[(s.series, s.node) for s in c.placement_intervals if s.begin_s < from_s] for c in (plain, mended)]
    assert sorted(first[0]) == sorted(first[1])
    moved = [stay for stay in mended.placement_intervals if stay.begin_s >= from_s]
    assert len(moved) == sum(window["moves"] for window in repairs_of(mended)) > 0


def test_replicas_move_one_at_a_time_and_all_run_at_the_end(tmp_path: Path) -> None:
    path = crowded(tmp_path, repaired(("01:00", "03:00"), movesPer100Replicas=20))
    made, found = run_named(path, "repaired")
    assert sum(len(names) for names in standing(made, found)) == 24
    from_s = made.judged_from_s + 3600
    left = sorted(stay.end_s for stay in found.placement_intervals if from_s <= stay.end_s < float("inf"))
    came = sorted(stay.begin_s for stay in found.placement_intervals if stay.begin_s >= from_s)
    assert len(left) == len(came) > 1
    assert all(gone <= new for gone, new in zip(left, came, strict=True))
    assert all(new < gone for new, gone in zip(came, left[1:], strict=False)), (
        "the next leaves when the one before stands"
    )
    assert all(from_s <= moment < from_s + 2 * 3600 for moment in (*left, *came))


def test_budget_per_window_spreads_moves_over_days(tmp_path: Path) -> None:
    path = crowded(tmp_path, repaired(("01:00", "03:00"), movesPer100Replicas=26, movesPerWindow=3))
    _, found = run_named(path, "repaired")
    assert [window["at"] for window in repairs_of(found)] == ["2026-01-07 01:00", "2026-01-08 01:00"]
    first, second = (window["moves"] for window in repairs_of(found))
    assert first == 3 >= second > 0, "6 are allowed in all"
    assert found.moves == first + second
    _, again = run_named(path, "repaired")
    assert again == found

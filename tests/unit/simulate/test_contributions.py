"""What domains add to `multisched simulate`: a workload with a section of its own, and policies by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import domains
from multisched.cli.commands import app
from multisched.config.document import ConfigError
from multisched.simulate.contribution import contributions
from multisched.simulate.simulation_file import load_simulation
from tests.unit.simulate.scenarios import refusals, write

TRACE = "tests.unit.simulate.trace_workload:SIMULATION"


@pytest.fixture(autouse=True)
def with_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A domain more, with the workload `trace`."""
    monkeypatch.setattr(domains, "SIMULATIONS", {**domains.SIMULATIONS, "trace": TRACE})


def trace(folder: Path, **changes: Any) -> Path:
    """Six pods that fill two nodes exactly, if they are packed: two of four cores would need whole nodes."""
    (folder / "pods.txt").write_text("".join(f"{cores}\n" for cores in (4, 1, 1, 1, 1)))
    plain = {
        "apiVersion": "multisched.io/v1alpha1",
        "kind": "Scenario",
        "name": "<packed>",
        "trace": {"nodes": 2, "pods": "pods.txt"},
        "seeds": 4,
    }
    path = folder / "scenario.yaml"
    path.write_text(json.dumps(plain | changes))
    return path


def run(path: Path, output: str) -> str:
    result = CliRunner().invoke(app, ["simulate", str(path), "-o", output, "--jobs", "1"])
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_domain_workload_replaces_nodes_pods_and_figures(tmp_path: Path) -> None:
    document = json.loads(run(trace(tmp_path), "json"))
    packing, least = document["policies"]
    assert packing == {"name": "most-allocated", "allocated": {"mean": 1.0, "std": 0.0}, "dropped": 0.0}
    assert least["name"] == "least-allocated"
    assert least["allocated"]["mean"] < 1
    assert least["dropped"] > 0


def test_domain_workload_uses_the_table_and_page_of_the_engine(tmp_path: Path) -> None:
    path = trace(tmp_path, policies=["most-allocated"])
    assert run(path, "table").splitlines()[0] == "<packed>: 5 pods"
    page = run(path, "html")
    assert "<h1>&lt;packed&gt;</h1>" in page
    assert '"title":"Allocated share & arrived pods"' in page
    assert "Policy most-allocated has allocated share: 1." in page


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"trace": {"nods": 2, "pods": "pods.txt"}}, "trace.nods: unknown key (did you mean nodes?)"),
        ({"trace": {"nodes": 0, "pods": "pods.txt"}}, "trace.nodes: write at least 1"),
        ({"usage": {"files": ["usage.csv"]}}, "usage: unknown key"),
        ({"policies": ["pack"]}, "policies[0]: no policy is called 'pack'; write one of least-allocated, realtime, "),
        (
            {"policies": [{"name": "a", "profile": {"base": "forecast"}, "repair": {"windows": []}}]},
            "policies[0].repair: unknown key",
        ),
    ],
)
def test_problems_of_a_workloads_section_have_their_position(
    tmp_path: Path, changes: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ConfigError, match=r"scenario\.yaml:1:") as raised:
        load_simulation(trace(tmp_path, **changes))
    assert any(expected in str(problem) for problem in raised.value.problems), str(raised.value)


def test_every_bad_line_of_a_workload_file_is_reported(tmp_path: Path) -> None:
    path = trace(tmp_path)
    (tmp_path / "pods.txt").write_text("4\nmany\n1\n5\n")
    with pytest.raises(ConfigError) as raised:
        load_simulation(path)
    assert [str(problem).removeprefix(f"{tmp_path}/") for problem in raised.value.problems] == [
        "pods.txt:2:1: 'many' is not a number of cores; write 1 to 4",
        "pods.txt:4:1: '5' is not a number of cores; write 1 to 4",
    ]


def test_unreadable_workload_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no\.txt:1:1: cannot be read: No such file") as raised:
        load_simulation(trace(tmp_path, trace={"nodes": 0, "pods": "no.txt"}))
    assert "trace.nodes: write at least 1" in str(raised.value)


def test_policies_of_domains_run_in_scenarios_of_recorded_services(tmp_path: Path) -> None:
    path = write(tmp_path, policies=["most-allocated"])
    (policy,) = load_simulation(path).policies
    assert policy.name == "most-allocated"
    (problem,) = refusals(write(tmp_path, policies=["packed"]))
    of_domains = "random, best-fit, packing, spread, fragmentation, tide, static, fifo, deadline, price, cheapest"
    known = f"{of_domains}, forecast, daily-peak, current-use, most-allocated"
    assert f"write one of least-allocated, realtime, peak-forecast, {known}" in problem


def test_policies_of_workloads_are_not_defaults_of_recorded_services(tmp_path: Path) -> None:
    names = [policy.name for policy in load_simulation(write(tmp_path)).policies]
    assert names == ["least-allocated", "realtime", "peak-forecast"]


def test_every_built_in_contribution_can_be_loaded() -> None:
    assert len(contributions()) == len(domains.SIMULATIONS)

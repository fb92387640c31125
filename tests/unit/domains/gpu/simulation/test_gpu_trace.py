"""The workload `gpuTrace`: a small trace through the whole command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from domains.gpu.simulation.openb import TraceNode, TracePod, typical_pods
from domains.gpu.simulation.trace_run import Trace, arrivals_of
from domains.gpu.typical_pods import PodShape
from multisched.cli.commands import app
from multisched.config.document import ConfigError
from multisched.simulate.simulation_file import load_simulation

SHAPES = (
    [(4000, 1, 460)] * 12 + [(4000, 1, 810)] * 8 + [(2000, 1, 230)] * 8 + [(8000, 1, 1000)] * 10 + [(16000, 4, 1000)] * 2
    + [(32000, 8, 1000)] + [(2000, 0, 0)] * 4
)  # fmt: skip
"""CPU, GPUs and thousandths of each, in proportions like those of openb."""
NODES = [(96_000, 8, "T4")] * 6 + [(64_000, 2, "V100M16")] * 5
CAPACITY = 58


def scenario(folder: Path, **changes: Any) -> Path:
    nodes = [f"n-{at},{cpu},262144,{gpus},{model}" for at, (cpu, gpus, model) in enumerate(NODES)]
    (folder / "nodes.csv").write_text("\n".join(["sn,cpu_milli,memory_mib,gpu,model", *nodes]))
    pods = [f"p-{at},{cpu},1024,{count},{milli},," for at, (cpu, count, milli) in enumerate(SHAPES)]
    (folder / "pods.csv").write_text("\n".join(["name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos", *pods]))
    plain = {
        "apiVersion": "multisched.io/v1alpha1",
        "kind": "Scenario",
        "name": "small",
        "gpuTrace": {"nodes": "nodes.csv", "pods": "pods.csv", "load": 1.3},
        "seeds": 5,
    }
    path = folder / "scenario.yaml"
    path.write_text(json.dumps(plain | changes))
    return path


def run(path: Path, output: str = "json") -> str:
    result = CliRunner().invoke(app, ["simulate", str(path), "-o", output, "--jobs", "1"])
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_report_has_what_each_policy_allocates(tmp_path: Path) -> None:
    document = json.loads(run(scenario(tmp_path)))

    found = {one["name"]: one for one in document["policies"]}
    assert list(found) == ["random", "best-fit", "packing", "spread", "fragmentation"]
    assert (document["gpus"], document["nodes"], document["load"]) == (CAPACITY, 11, 1.3)
    for one in found.values():
        assert one["gpuAllocated"]["mean"] + one["fragmented"]["mean"] <= 100
        assert one["gpuAllocated"]["mean"] == pytest.approx(
            np.mean([run["gpuAllocated"] for run in one["runs"]]), abs=1e-4
        )
        assert one["arrived"] > len(SHAPES)
    assert found["fragmentation"]["gpuAllocated"]["mean"] > found["random"]["gpuAllocated"]["mean"]
    assert found["fragmentation"]["fragmented"]["mean"] < found["random"]["fragmented"]["mean"]


def test_same_scenario_gives_the_same_bytes(tmp_path: Path) -> None:
    path = scenario(tmp_path, policies=["fragmentation", "random"], seeds=[3])

    assert run(path) == run(path)


def test_table_and_page_name_the_policies(tmp_path: Path) -> None:
    path = scenario(tmp_path, policies=["fragmentation"], seeds=[0])

    assert "small: 58 GPUs on 11 nodes, load 1.3" in run(path, "table")
    assert "Allocated GPUs in percent" in run(path, "html")


def test_policies_learn_the_mix_if_the_scenario_enables_it(tmp_path: Path) -> None:
    trace = {"nodes": "nodes.csv", "pods": "pods.csv", "typicalPods": "learned"}
    (policy,) = load_simulation(scenario(tmp_path, policies=["fragmentation"], gpuTrace=trace)).policies
    (use,) = [one for one in policy.configuration.domains[0].profile.plugins.enabled if one.name == "GpuShare"]
    assert use.args == {"policy": "fragmentation"}

    document = json.loads(run(scenario(tmp_path, policies=["fragmentation", "random"], gpuTrace=trace)))
    learned, random = document["policies"]
    assert learned["gpuAllocated"]["mean"] > random["gpuAllocated"]["mean"]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"gpuTrace": {"nodes": "nodes.csv", "pods": "none.csv"}}, "none.csv:1:1: cannot be read"),
        ({"gpuTrace": {"nodes": "nodes.csv", "pods": "pods.csv", "load": 0}}, "gpuTrace.load"),
        ({"gpuTrace": {"nodes": "nodes.csv"}}, "gpuTrace"),
        ({"policies": ["least-allocated"]}, "policy 'least-allocated' does not run GpuShare"),
        ({"policies": ["fragmentaton"]}, "did you mean fragmentation?"),
    ],
)
def test_bad_scenarios_are_refused_with_the_field(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_simulation(scenario(tmp_path, **changes))

    assert problem in str(raised.value)


def shapes(pods: Sequence[tuple[int, int, int]]) -> tuple[TracePod, ...]:
    return tuple(TracePod(1024, PodShape(cpu, milli, count)) for cpu, count, milli in pods)


@pytest.mark.parametrize(("load", "least", "most"), [(0.5, 0.5, 0.6), (2.0, 2.0, 2.14)])
def test_every_pod_arrives_once_before_any_is_repeated(load: float, least: float, most: float) -> None:
    pods, nodes = shapes(SHAPES), tuple(TraceNode("n", cpu, 0, gpus, model) for cpu, gpus, model in NODES)
    trace = Trace(nodes, pods, load, typical_pods(pods))

    found = arrivals_of(trace, np.random.default_rng(0))

    requested = sum(pods[number].gpu_milli for number in found) / trace.capacity_milli
    assert least <= requested <= most
    first = found[: len(pods)]
    assert len(set(first)) == len(first), "no pod twice before each has arrived"

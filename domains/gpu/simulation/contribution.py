"""The contribution of the gpu domain to `multisched simulate`: the workload `gpuTrace` with a policy for each
placement policy, and the workload `gpuTide`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from domains.gpu.fragmentation import Fragmentation
from domains.gpu.gpu_share import GpuShare
from domains.gpu.policies import BestFit, Packing, RandomNode, Spread
from domains.gpu.settings import gpu_settings
from domains.gpu.simulation.openb import read_nodes, read_pods, typical_pods
from domains.gpu.simulation.tide.report import POLICIES, read_tide
from domains.gpu.simulation.tide.section import GpuTideFile
from domains.gpu.simulation.trace_run import Trace, TraceOutcome, means_over, play
from domains.gpu.typical_pods import Typical, TypicalPod
from multisched.config.document import Document, Problem
from multisched.config.sections import Section
from multisched.simulate.contribution import Contribution, Workload
from multisched.simulate.policies import plugins_of, with_plugin
from multisched.simulate.report import Plot, Report, Table, rounded, verdict_of
from multisched.simulate.scenario import Policy
from multisched.simulate.scenario_schema import API_VERSION, ScenarioHeader

KIND: Final = "GpuTraceReport"
LOAD_MAX: Final = 10.0
PLACEMENTS: Final = (RandomNode.name, BestFit.name, Packing.name, Spread.name, Fragmentation.name)
LEGEND: Final = (
    "percent of the capacity of all GPUs; fragmented: idle GPU that typical pods of the trace could not use where it is"
)


class GpuTraceSection(Section, frozen=True):
    """The section `gpuTrace`."""

    nodes: str
    """CSV of openb, relative to the scenario: sn, cpu_milli, memory_mib, gpu, model."""
    pods: str
    """CSV of openb, relative to the scenario: cpu_milli, memory_mib, num_gpu, gpu_milli, gpu_spec."""
    load: Annotated[float, Meta(gt=0, le=LOAD_MAX)] = 1.3
    """Requests of all arriving pods over the capacity of all GPUs."""
    typical_pods: Literal["trace", "learned"] = "trace"
    """The typical pods that policies with fragments use: those of the whole trace, or those that they learn during the run."""


class GpuTraceFile(ScenarioHeader, frozen=True, kw_only=True):
    """A scenario file with the section."""

    gpu_trace: GpuTraceSection


class TraceSimulation(msgspec.Struct, frozen=True):
    """Implements `simulate.contribution.Simulation`."""

    name: str
    policies: tuple[Policy, ...]
    seeds: tuple[int, ...]
    trace: Trace

    def runner(self) -> Callable[[Policy, int], TraceOutcome]:
        return partial(play, self.trace)

    def report(self, outcomes: Mapping[str, Sequence[TraceOutcome]]) -> Report:
        policies = [{"name": name, **_figures(runs)} for name, runs in outcomes.items()]
        trace = self.trace
        document = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "scenario": self.name,
            "nodes": len(trace.nodes),
            "gpus": sum(node.gpus for node in trace.nodes),
            "pods": len(trace.pods),
            "load": trace.load,
            "seeds": list(self.seeds),
            "units": {"gpuAllocated": "percent of all GPUs", "fragmented": "percent of all GPUs"},
            "policies": policies,
        }
        head = ("policy", "allocated", "±", "fragmented", "±", "dropped pods")
        rows = tuple(
            (one["name"], *_cells(one["gpuAllocated"]), *_cells(one["fragmented"]), f"{one['dropped']:.0f}")
            for one in policies
        )
        intro = f"{self.name}: {document['gpus']} GPUs on {len(trace.nodes)} nodes, load {trace.load:g}; means over {len(self.seeds)} seeds"
        table = Table(intro, head, rows, LEGEND)
        lines = {name: means_over(runs) for name, runs in outcomes.items()}
        labels, title = ["0", f"{trace.load:g}"], "Allocated GPUs in percent, by arrived load"
        allocated = Plot(title, lines, labels, unit="% of all GPUs", axis="arrived load / capacity")
        means = {str(one["name"]): float(one["gpuAllocated"]["mean"]) for one in policies}
        verdict = verdict_of("share of allocated GPUs", means, " %", most=True)
        plots = {"allocation": [allocated]}
        notes = tuple(dict.fromkeys(failure for runs in outcomes.values() for run in runs for failure in run.failures))
        return Report(self.name, document, tuple(outcomes), table, table, verdict, notes, plots)


def _figures(runs: Sequence[TraceOutcome]) -> dict[str, Any]:
    allocated, fragmented = [run.allocated_percent[-1] for run in runs], [run.fragmented_percent for run in runs]
    return {
        "gpuAllocated": _spread(allocated),
        "fragmented": _spread(fragmented),
        "arrived": rounded(fmean(run.arrived for run in runs)),
        "dropped": rounded(fmean(run.dropped for run in runs)),
        "runs": [
            {
                "seed": run.seed,
                "gpuAllocated": rounded(run.allocated_percent[-1]),
                "fragmented": rounded(run.fragmented_percent),
                "arrived": run.arrived,
                "dropped": run.dropped,
            }
            for run in runs
        ],
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    """Returns mean and sample standard deviation; 0 for one value."""
    return {"mean": rounded(fmean(values)), "std": rounded(stdev(values) if len(values) > 1 else 0.0)}


def _cells(figures: Mapping[str, float]) -> tuple[str, str]:
    return f"{figures['mean']:.2f}", f"{figures['std']:.2f}"


def read_trace(document: Document, file: GpuTraceFile, policies: tuple[Policy, ...], path: Path) -> TraceSimulation:
    """Reads the trace that a validated scenario names; adds problems to the document."""
    section, of_nodes, of_pods = file.gpu_trace, list[Problem](), list[Problem]()
    nodes = read_nodes(path.parent / section.nodes, of_nodes)
    pods = read_pods(path.parent / section.pods, of_pods)
    document.problems += of_nodes + of_pods
    typical = typical_pods(pods)
    known = [_knowing(document, number, policy, typical, section) for number, policy in enumerate(policies)]
    trace = Trace(nodes, pods, section.load, typical)
    return TraceSimulation(file.name or path.stem, tuple(known), file.seeds, trace)


def _knowing(document: Document, number: int, policy: Policy, typical: Typical, section: GpuTraceSection) -> Policy:
    """Returns the policy with the typical pods of the trace if its GpuShare uses them and its args name none."""
    domains = policy.configuration.domains
    index, domain = next((at, one) for at, one in enumerate(domains) if policy.scheduler_name in one.scheduler_names)
    use = plugins_of(domain).get(GpuShare.name)
    if use is None:
        text = f"policy {policy.name!r} does not run {GpuShare.name}, without which GPUs are not counted; enable it"
        document.add(("policies", number), text)
        return policy
    settings = gpu_settings(use.args)
    if settings.policy != Fragmentation.name or settings.typical is not None or section.typical_pods == "learned":
        return policy
    args = {**use.args, "policy": Fragmentation.name, "typicalPods": [_entry(one) for one in typical]}
    return replace(policy, configuration=with_plugin(policy.configuration, index, use.name, use.weight, args))


def _entry(pod: TypicalPod) -> dict[str, Any]:
    """Returns a typical pod as in the args of GpuShare."""
    shape = pod.shape
    entry = {"cpu": f"{shape.cpu_milli}m", "gpuMilli": shape.milli, "gpuCount": shape.count, "share": pod.share}
    return {**entry, "models": list(shape.models)}


def _profile(placement: str) -> dict[str, Any]:
    """Returns the profile of the domain with this placement policy, whose scores alone decide."""
    enabled = [{"name": "NodeResourcesFit", "weight": 0}, {"name": GpuShare.name, "args": {"policy": placement}}]
    return {"base": "gpu", "plugins": {"disabled": ["NodeResourcesBalancedAllocation"], "enabled": enabled}}


SIMULATION = Contribution(
    policies={name: _profile(name) for name in PLACEMENTS} | {name: _profile(Packing.name) for name in POLICIES},
    workloads={
        "gpuTrace": Workload(GpuTraceFile, PLACEMENTS, read_trace),
        "gpuTide": Workload(GpuTideFile, POLICIES, read_tide),
    },
)

"""A workload as a domain adds it: pods of a trace arrive in random order and never leave; a pod that does not fit is dropped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import msgspec
import numpy as np

from multisched.config.document import ConfigError, Document, Problem
from multisched.config.loading import read_text
from multisched.config.sections import Section
from multisched.simulate.contribution import Contribution, Workload
from multisched.simulate.policies import with_plugin
from multisched.simulate.report import Plot, Report, Table, rounded, verdict_of
from multisched.simulate.scenario import Policy
from multisched.simulate.scenario_schema import ScenarioHeader
from multisched.simulate.virtual_cluster import NODES, PODS, VirtualCluster
from multisched.testing.sim_loop import SimLoop, simulate

BEGIN_S = 1_767_571_200
CORES = 4


class TraceSection(Section, frozen=True):
    """Its nodes have four cores each; of its pods the file has the cores, one a line."""

    nodes: int
    pods: str


class TraceFile(ScenarioHeader, frozen=True, kw_only=True):
    """A scenario file with the section."""

    trace: TraceSection


class TraceOutcome(msgspec.Struct, frozen=True):
    seed: int
    allocated: tuple[float, ...]
    """After each pod: the share of all cores."""
    dropped: int
    is_whole: bool = True
    """Dropped pods are a figure here, not a failure."""


class TraceSimulation(msgspec.Struct, frozen=True):
    name: str
    policies: tuple[Policy, ...]
    seeds: tuple[int, ...]
    nodes: int
    pods: tuple[int, ...]

    def runner(self) -> Callable[[Policy, int], TraceOutcome]:
        return self._run

    def _run(self, policy: Policy, seed: int) -> TraceOutcome:
        loop = SimLoop(seed)
        return simulate(self._play(policy, seed, loop), loop)

    async def _play(self, policy: Policy, seed: int, loop: SimLoop) -> TraceOutcome:
        configuration = with_plugin(policy.configuration, 0, "ImageLocality", seed)
        cluster = VirtualCluster(configuration, seed, BEGIN_S, loop)
        for number in range(self.nodes):
            await cluster.create(NODES, node(f"node-{number}"))
        allocated, used = [], 0
        order = np.random.default_rng(seed).permutation(len(self.pods)).tolist()
        async with cluster.running():
            for number in order:
                name = f"pod-{number}"
                await cluster.create(PODS, pod(name, self.pods[number], policy.scheduler_name))
                await cluster.pause()
                if name in cluster.pods.bound:
                    used += self.pods[number]
                else:
                    await cluster.delete_pod(name)
                allocated.append(used / (self.nodes * CORES))
        assert not cluster.failures()
        return TraceOutcome(seed, tuple(allocated), len(self.pods) - len(cluster.pods.bound))

    def report(self, outcomes: Mapping[str, Sequence[TraceOutcome]]) -> Report:
        policies = [{"name": name, **_figures(runs)} for name, runs in outcomes.items()]
        rows = tuple((one["name"], f"{one['allocated']['mean']:.3f}", f"{one['dropped']:.3g}") for one in policies)
        table = Table(
            f"{self.name}: {len(self.pods)} pods", ("policy", "allocated", "dropped"), rows, "means over seeds"
        )
        lines = {name: np.mean([run.allocated for run in runs], axis=0).tolist() for name, runs in outcomes.items()}
        plots = {"allocation": [Plot("Allocated share & arrived pods", lines, ["0 %", "50 %"])]}
        document = {"scenario": self.name, "policies": policies}
        shares = {str(one["name"]): float(one["allocated"]["mean"]) for one in policies}
        verdict = verdict_of("allocated share", shares, most=True)
        return Report(self.name, document, tuple(outcomes), table, table, verdict, plots=plots)


def _figures(runs: Sequence[TraceOutcome]) -> dict[str, Any]:
    last = [run.allocated[-1] for run in runs]
    dropped = fmean(run.dropped for run in runs)
    return {"allocated": {"mean": rounded(fmean(last)), "std": rounded(pstdev(last))}, "dropped": dropped}


def node(name: str) -> dict[str, Any]:
    amounts = {"cpu": str(CORES), "memory": "64Gi", "pods": "110"}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"allocatable": amounts}}


def pod(name: str, cores: int, scheduler: str) -> dict[str, Any]:
    container = {"name": "main", "image": "trace:v1", "resources": {"requests": {"cpu": str(cores)}}}
    spec = {"schedulerName": scheduler, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def read(document: Document, file: TraceFile, policies: tuple[Policy, ...], path: Path) -> TraceSimulation:
    if file.trace.nodes < 1:
        document.add(("trace", "nodes"), "write at least 1")
    pods = read_pods(document, path.parent / file.trace.pods)
    return TraceSimulation(file.name or path.stem, policies, file.seeds, file.trace.nodes, pods)


def read_pods(document: Document, path: Path) -> tuple[int, ...]:
    """Reads the cores of each pod. Adds a problem for each line that is none, and for a file that cannot be read."""
    try:
        lines = read_text(path).splitlines()
    except ConfigError as error:
        document.problems += error.problems
        return ()
    cores = []
    for line, text in enumerate(lines, 1):
        if text in map(str, range(1, CORES + 1)):
            cores.append(int(text))
        else:
            message = f"{text[:40]!r} is not a number of cores; write 1 to {CORES}"
            document.problems.append(Problem(str(path), line, 1, "", message))
    return tuple(cores)


SIMULATION = Contribution(
    policies={
        "most-allocated": {
            "base": "default",
            "plugins": {
                "disabled": ["NodeResourcesBalancedAllocation"],
                "enabled": [
                    {
                        "name": "NodeResourcesFit",
                        "args": {
                            "scoringStrategy": {"type": "MostAllocated", "resources": [{"name": "cpu", "weight": 1}]}
                        },
                    }
                ],
            },
        }
    },
    workloads={"trace": Workload(TraceFile, ("most-allocated", "least-allocated"), read)},
)

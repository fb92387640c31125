"""One run of a trace: pods arrive in random order and stay; a pod that does not fit is dropped.

Source of the procedure: Weng et al., "Beware of Fragmentation", USENIX ATC 2023, section 6, and the authors' simulator.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from domains.gpu.cards import CARD_MILLI
from domains.gpu.dialects.fgd import MILLI, MODELS_SEPARATOR
from domains.gpu.dialects.whole import FGD_COUNT, FGD_MODEL
from domains.gpu.gpu_share import GpuShare
from domains.gpu.simulation.openb import TraceNode, TracePod
from domains.gpu.typical_pods import Typical
from multisched.model.objects import Pod
from multisched.simulate.bare_core import BareCore
from multisched.simulate.scenario import Policy

STEPS: Final = 100
"""Equal parts of the arriving load after each of which the allocated amount is noted."""
PODS_PER_NODE: Final = "100000"
"""The trace has no limit on pods a node."""


class Trace(msgspec.Struct, frozen=True):
    """A trace and the load to play."""

    nodes: tuple[TraceNode, ...]
    pods: tuple[TracePod, ...]
    load: float
    """Requests of all arriving pods over the capacity of all GPUs."""
    typical: Typical
    """Typical pods, against which fragments are measured."""

    @property
    def capacity_milli(self) -> int:
        return CARD_MILLI * sum(node.gpus for node in self.nodes)


class TraceOutcome(msgspec.Struct, frozen=True):
    """One run."""

    seed: int
    allocated_percent: tuple[float, ...]
    """Allocated share of the capacity of all GPUs, after each of STEPS parts of the load; the last is the result."""
    fragmented_percent: float
    """At the end: idle GPU that typical pods could not use where it is, of the capacity of all GPUs."""
    arrived: int
    dropped: int
    failures: tuple[str, ...] = ()
    """Failures of plugins."""

    @property
    def is_whole(self) -> bool:
        return not self.failures


def play(trace: Trace, policy: Policy, seed: int) -> TraceOutcome:
    """Plays the trace on the core of the policy. Deterministic in its arguments."""
    rng = np.random.default_rng(seed)
    core = core_of(trace, policy, seed, rng)
    load_milli, allocated, arrived_milli, arrived, dropped = trace.load * trace.capacity_milli, 0, 0, 0, 0
    noted: list[float] = []
    for of_trace, pod in arrived_pods(trace, policy, core, rng):
        is_placed = bool(core.place(pod))
        allocated += of_trace.gpu_milli * is_placed
        arrived_milli += of_trace.gpu_milli
        arrived, dropped = arrived + 1, dropped + (not is_placed)
        while len(noted) < STEPS and arrived_milli * STEPS >= load_milli * (len(noted) + 1):
            noted.append(100 * allocated / trace.capacity_milli)
    noted += [100 * allocated / trace.capacity_milli] * (STEPS - len(noted))
    fragmented = _fragmented_milli(core, trace)
    return TraceOutcome(
        seed,
        (*noted[:-1], 100 * allocated / trace.capacity_milli),
        100 * fragmented / trace.capacity_milli,
        arrived,
        dropped,
        core.failures(),
    )


def core_of(trace: Trace, policy: Policy, seed: int, rng: np.random.Generator) -> BareCore:
    """Returns a core with the nodes of the trace in random order: equally good nodes are taken in this order."""
    core = BareCore(policy, seed)
    for number in rng.permutation(len(trace.nodes)).tolist():
        core.add_node(node_document(trace.nodes[number]))
    return core


def arrived_pods(
    trace: Trace, policy: Policy, core: BareCore, rng: np.random.Generator
) -> Iterator[tuple[TracePod, Pod]]:
    """Yields the arriving pods, each as in the trace and as the core knows it. Copies share spec and annotations."""
    read: dict[int, Pod] = {}
    for position, number in enumerate(arrivals_of(trace, rng)):
        if number not in read:
            read[number] = core.read_pod(pod_document(trace.pods[number], policy.scheduler_name))
        name = f"pod-{position}"
        yield trace.pods[number], msgspec.structs.replace(read[number], name=name, uid=name)


def arrivals_of(trace: Trace, rng: np.random.Generator) -> list[int]:
    """Returns numbers of pods: all in random order, then pods drawn again, until their requests reach the load."""
    left_milli = trace.load * trace.capacity_milli
    found: list[int] = []
    drawn = rng.permutation(len(trace.pods)).tolist()
    while True:
        for number in drawn:
            if left_milli <= 0:
                return found
            found.append(number)
            left_milli -= trace.pods[number].gpu_milli
        drawn = rng.integers(len(trace.pods), size=len(trace.pods)).tolist()


def _fragmented_milli(core: BareCore, trace: Trace) -> float:
    (plugin,) = (one for one in core.plugins() if isinstance(one, GpuShare))
    rows = np.array(sorted(row for node in trace.nodes if (row := core.nodes.row_of(node.name)) is not None), np.intp)
    return float(plugin.fragments(core.nodes, rows, trace.typical).sum())


def node_document(node: TraceNode) -> dict[str, Any]:
    """Returns the Node in the dialect alibabacloud.com."""
    amounts = {"cpu": f"{node.cpu_milli}m", "memory": f"{node.memory_mib}Mi", "pods": PODS_PER_NODE}
    labels = {FGD_MODEL: node.model} if node.model else {}
    if node.gpus:
        amounts[FGD_COUNT] = str(node.gpus)
    metadata = {"name": node.name, "uid": f"node-{node.name}", "labels": labels}
    return {"metadata": metadata, "status": {"allocatable": amounts, "capacity": amounts}}


def pod_document(pod: TracePod, scheduler: str) -> dict[str, Any]:
    """Returns the Pod in the dialect alibabacloud.com."""
    shape = pod.shape
    annotations = {MILLI: str(shape.milli), FGD_COUNT: str(shape.count)} if shape.count else {}
    if shape.count and shape.models:
        annotations[FGD_MODEL] = MODELS_SEPARATOR.join(shape.models)
    requests = {"cpu": f"{shape.cpu_milli}m", "memory": f"{pod.memory_mib}Mi"}
    container = {"name": "main", "image": "trace:v1", "resources": {"requests": requests}}
    return {
        "metadata": {"name": "pod", "namespace": "default", "uid": "pod", "annotations": annotations},
        "spec": {"schedulerName": scheduler, "containers": [container]},
    }


def means_over(outcomes: Sequence[TraceOutcome]) -> list[float]:
    """Returns the allocated percentages after each part of the load, as means over the runs."""
    found: list[float] = np.mean([one.allocated_percent for one in outcomes], axis=0).tolist()
    return found

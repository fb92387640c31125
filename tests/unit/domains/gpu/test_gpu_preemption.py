"""Preemption with GpuShare: all rows at once and row by row decide the same."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from domains.gpu.dialects.own import GPU_COUNT, GPU_DEVICES, GPU_MILLI
from domains.gpu.dialects.whole import GPU, GPU_INDICES, HONOURED
from domains.gpu.gpu_share import GpuShare
from multisched.cycle.results import Unplaced
from multisched.framework.cycle_state import CycleState
from multisched.framework.dependency import Dependency
from multisched.framework.points import CycleView
from multisched.model.objects import Node, Pod
from multisched.testing.builders import make_node, make_pod
from tests.unit.cycle.cycle_kit import Domain, FilterBy

IN_TREE = ("NodeResourcesFit", "DefaultPreemption")
NODES = ("n0", "n1", "n2", "n3")
DEVICES = st.sampled_from(["0", "1", "0,1", "2", "unreadable"])


def domain_of(nodes: Sequence[Node], pods: Sequence[Pod], *, row_by_row: bool = False) -> Domain:
    """`row_by_row`: beside a plugin of which nothing is known but that it reads pods."""
    careful = [FilterBy("Careful", lambda pod, name: "", depends_on=Dependency.CLUSTER, sign=lambda pod: ())]
    domain = Domain(*nodes, plugins=careful if row_by_row else (), in_tree=IN_TREE, factories=[GpuShare])
    for pod in pods:
        domain.cache.place(pod)
    return domain


def gpu_pod(name: str, *, cpu: int = 100, whole: int = 0, milli: int = 0, count: int = 1, priority: int = 0) -> Pod:
    pod = make_pod(name, cpu_milli=cpu, priority=priority, extra={GPU: whole} if whole else {})
    if whole:
        return pod
    annotations = {GPU_MILLI: str(milli), GPU_COUNT: str(count)} if milli else {}
    return msgspec.structs.replace(pod, annotations=annotations)


def on(node: str, pod: Pod, started_s: float = 1.0, devices: str = "0") -> Pod:
    """`devices`: those that a fraction was given."""
    given = {GPU_DEVICES: devices} if GPU_MILLI in pod.annotations else {}
    annotations = {**pod.annotations, **given}
    return msgspec.structs.replace(pod, node=node, started_s=started_s, phase="Running", annotations=annotations)


def gpu_node(name: str, gpus: int, *, honoured: bool = False) -> Node:
    return make_node(name, cpu_milli=1000, labels={GPU_INDICES: HONOURED} if honoured else {}, extra={GPU: gpus})


@st.composite
def gpu_pods(draw: st.DrawFn, name: str, priorities: Sequence[int]) -> Pod:
    cpu, priority = draw(st.sampled_from([100, 300, 600])), draw(st.sampled_from(priorities))
    match draw(st.integers(0, 3)):
        case 0:
            return gpu_pod(name, cpu=cpu, priority=priority)
        case 1:
            return gpu_pod(name, cpu=cpu, whole=draw(st.integers(1, 3)), priority=priority)
        case _:
            milli, count = draw(st.sampled_from([200, 500, 1000])), draw(st.integers(1, 2))
            return gpu_pod(name, cpu=cpu, milli=milli, count=count, priority=priority)


@given(st.data())
def test_rows_evaluated_together_and_singly_give_the_same_victims(data: st.DataObject) -> None:
    nodes = [gpu_node(name, data.draw(st.integers(0, 3)), honoured=data.draw(st.booleans())) for name in NODES]
    standing = [
        on(data.draw(st.sampled_from(NODES)), data.draw(gpu_pods(f"s{i}", [0, 3, 9])), 1.0 + i, data.draw(DEVICES))
        for i in range(data.draw(st.integers(2, 12)))
    ]
    promised = data.draw(gpu_pods("promised", [9]))
    promised_to = data.draw(st.sampled_from(["", *NODES]))
    pod = data.draw(gpu_pods("preemptor", [5, 9]))

    found = []
    for row_by_row in (False, True):
        domain = domain_of(nodes, standing, row_by_row=row_by_row)
        domain.nominator.nominate(promised, promised_to)
        result = domain.schedule(pod)
        found.append(
            (result.message, result.nominated_node, [victim.name for victim in result.victims])
            if isinstance(result, Unplaced)
            else "placed"
        )
    assert found[0] == found[1]


def test_only_rows_with_held_gpus_are_evaluated_singly() -> None:
    nodes = [gpu_node(name, 2) for name in NODES]
    plain = [on(name, gpu_pod(f"plain-{name}", cpu=1000)) for name in NODES[2:]]
    held = [on("n0", gpu_pod("shares", cpu=100, milli=500)), on("n1", gpu_pod("owns", cpu=100, whole=2))]
    domain = domain_of(nodes, [*held, *plain])
    plugin = next(plugin for plugin in domain.plugins.filter if isinstance(plugin, GpuShare))
    pod = gpu_pod("high", cpu=500, whole=2, priority=9)

    rows_that_matter = plugin.pod_sensitivity(CycleView(domain.cache.nodes, CycleState(), 1), pod).rows_that_matter

    assert rows_that_matter is not None
    assert {name for name in NODES if rows_that_matter(np.array([domain.row(name)])).all()} == {"n0", "n1"}
    domain.cache.remove("uid-shares")
    assert not rows_that_matter(np.array([domain.row("n0")])).any()

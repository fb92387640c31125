"""How long NodeVolumeLimits holds up the loop: `python -m tests.perf.volume_bench [--nodes 5000] [--pods 100000]`.

Every pod on the nodes has a claim bound to a CSI volume that is attached. Told are the CPU milliseconds of the first count, in
one go and by `catch_up`, and of the next Filter call after one pod more. Exits 1 when a call passes CALL_MAX_MS.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time

import numpy as np

from multisched.framework.cycle_state import CycleState
from multisched.framework.points import CycleView
from multisched.model.cluster_objects import (
    CsiNode,
    CsiNodeDriver,
    PersistentVolume,
    PersistentVolumeClaim,
    VolumeAttachment,
)
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import CPU, MEMORY, PODS, Node, Pod, PodSpec
from multisched.model.volumes import PodVolume
from multisched.plugins.volumes.node_volume_limits import NodeVolumeLimits
from multisched.state.node_table import NodeTable
from multisched.state.object_store import ObjectStore
from tests.unit.plugins.scenes import context_of

CALL_MAX_MS = 100.0
DRIVER = "ebs.csi.aws.com"
LIMIT = 39


def make_pod(number: int) -> Pod:
    return Pod("default", f"p{number}", f"p{number}", 1, PodSpec(volumes=(PodVolume(claim=f"c{number}"),)))


def add_storage(objects: ObjectStore, number: int, node: str) -> None:
    """A claim, its volume, and the attachment of it."""
    claim = PersistentVolumeClaim(name=f"c{number}", namespace="default", uid=f"c{number}", volume=f"v{number}")
    objects.set(ObjectKind.PERSISTENT_VOLUME_CLAIM, claim)
    volume = PersistentVolume(name=f"v{number}", csi_driver=DRIVER, csi_handle=f"vol-{number}")
    objects.set(ObjectKind.PERSISTENT_VOLUME, volume)
    attachment = VolumeAttachment(name=f"a{number}", attacher=DRIVER, node=node, volume=f"v{number}", is_attached=True)
    objects.set(ObjectKind.VOLUME_ATTACHMENT, attachment)


def make_cluster(nodes: int, pods: int) -> tuple[NodeTable, ObjectStore]:
    table, objects = NodeTable(), ObjectStore()
    for number in range(nodes):
        allocatable = {CPU: 32_000, MEMORY: 2**37, PODS: 110}
        table.set_node(Node(f"n{number}", f"n{number}", 1, allocatable=allocatable))
        objects.set(
            ObjectKind.CSI_NODE, CsiNode(name=f"n{number}", drivers=(CsiNodeDriver(DRIVER, volumes_max=LIMIT),))
        )
    for number in range(pods):
        row = number % nodes
        table.add_pod(row, make_pod(number))
        add_storage(objects, number, f"n{row}")
    return table, objects


def milliseconds(since_s: float) -> float:
    return (time.process_time() - since_s) * 1000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--pods", type=int, default=100_000)
    asked = parser.parse_args()
    table, objects = make_cluster(asked.nodes, asked.pods)
    gc.collect()
    gc.freeze()  # as the program does once it has listed everything
    rows = np.arange(asked.nodes)
    add_storage(objects, asked.pods, "n0")
    pending = make_pod(asked.pods)

    def ask(plugin: NodeVolumeLimits) -> float:
        started_s = time.process_time()
        codes = plugin.filter(CycleView(table, CycleState()), pending, rows)
        assert not codes.any()
        return milliseconds(started_s)

    at_once = ask(NodeVolumeLimits(context_of(table, objects)))
    gc.collect()
    plugin = NodeVolumeLimits(context_of(table, objects))
    calls: list[float] = []
    is_behind = True
    while is_behind:
        started_s = time.process_time()
        is_behind = plugin.catch_up()
        calls.append(milliseconds(started_s))
    first = ask(plugin)
    table.add_pod(1, make_pod(asked.pods + 1))
    add_storage(objects, asked.pods + 1, "n1")
    later = ask(plugin)
    print(f"all at once: {at_once:.0f} ms")
    print(f"caught up: {sum(calls):.0f} ms in {len(calls)} calls, the longest {max(calls):.1f} ms")
    print(f"Filter then: {first:.2f} ms; after one pod more: {later:.2f} ms")
    return 0 if max(*calls, first, later) <= CALL_MAX_MS else 1


if __name__ == "__main__":
    sys.exit(main())

"""Corruptions of a process's memory: numbers of a row, a pod missing from its queue, objects that differ from the API server.

The program does not do that by itself, so only its audit can detect it. The audit is run at once, and must repair everything.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec
import numpy as np
import orjson

from multisched.cluster.patching.patch import merge
from multisched.model.objects import CPU, Pod
from multisched.queueing.transitions import QueueState
from multisched.state.cluster_cache import PodState
from multisched.state.columns.resources import SCORING
from multisched.state.row_check import row_faults
from tests.kit.disruptions.run_context import Disruption, RunContext
from tests.kit.plugins.faulty import FAULTY
from tests.kit.processes.process import Process

WRONG_PODS_MAX: Final = 24
"""Pods that are delivered wrongly: more differences than the audit logs."""
AUDITS: Final = 2
"""Audits to run: the first one ignores state that may have changed meanwhile."""
WRONG: Final = {"sim/wrong": "wrong"}
PORT: Final = 9_977


# -- numbers -----------------------------------------------------------------------------------------------------------


async def _corrupt_rows(context: RunContext) -> bool:
    """Corrupts rows while the process is paused, so that nothing is decided from them, and checks that the audit repairs them."""
    process = context.replicas.leader()
    if process is None:
        return False
    cache = process.program.cache
    live = [row for row, _ in cache.nodes.live_rows()]
    audits = process.program.audit.statistics().audits
    context.replicas.was_corrupted = True
    with _paused_process(context, process):
        for row, make_wrong in zip(
            context.rng.sample(live, min(len(live), len(_CORRUPTIONS))), _CORRUPTIONS, strict=False
        ):
            make_wrong(process, row)
        lost = _drop_from_queue(context, process)
        for _ in range(AUDITS):
            await process.program.audit.once(())
    is_whole = process.program.audit.statistics().audits == audits + AUDITS
    left = row_faults(cache.nodes, range(cache.nodes.size))
    if is_whole and left:
        context.bind_checker.report_violation(f"I4: the audit leaves rows as they are: {next(iter(left.values()))}")
    if is_whole and lost is not None and process.program.pod_repair.is_lost(lost):
        context.bind_checker.report_violation(f"I3: the audit leaves {lost.key} in no queue")
    return True


@contextmanager
def _paused_process(context: RunContext, process: Process) -> Iterator[None]:
    context.replicas.disturbed.add(process.identity)
    context.loop.pause(process.identity)
    process.checker.is_tampered_with = True
    try:
        yield
    finally:
        process.checker.is_tampered_with = False
        context.loop.resume(process.identity)
        context.replicas.disturbed.discard(process.identity)


def _drop_from_queue(context: RunContext, process: Process) -> Pod | None:
    """Removes a pending pod from its queue silently. Returns it; None for none. Pods that the server refuses are excluded, since
    their count of refusals would be lost.
    """
    waiting = [
        (worker, entry)
        for worker in process.program.router.workers()
        for entry in worker.queue.entries()
        if entry.state in (QueueState.UNSCHEDULABLE, QueueState.BACKOFF, QueueState.ACTIVE)
        and not context.bind_checker.policies.policy_of(entry.pod.name)
    ]
    if not waiting:
        return None
    worker, entry = context.rng.choice(waiting)
    worker.queue.remove(entry.uid)
    return process.program.pods.pending.get(entry.uid)


def _add_ghost(process: Process, row: int) -> None:
    """Adds a pod that does not exist, with a host port, to the row."""
    table = process.program.cache.nodes
    ports = [{"containerPort": 80, "hostPort": PORT}]
    spec = {"nodeName": table.node(row).name, "containers": [{"name": "main", "ports": ports}]}
    table.add_pod(row, process.program.decoder.pod(_ghost("counted", spec)))


def _forget_pod(process: Process, row: int) -> None:
    """Removes a placed pod from the counts of its row."""
    entries = (entry for entry in process.program.cache if entry.state is PodState.CONFIRMED and entry.row >= 0)
    found = next(entries, None)
    if found is not None:
        process.program.cache.nodes.remove_pod(found.row, found.pod.uid)


def _toggle_cordon(process: Process, row: int) -> None:
    flags = process.program.cache.nodes._unschedulable
    flags[row] = not flags[row]


def _shift_requested(process: Process, row: int) -> None:
    columns = process.program.cache.nodes._resources
    columns._requested[columns._index[CPU], row] += 1


def _shift_scored(process: Process, row: int) -> None:
    process.program.cache.nodes._resources._requested[SCORING.start, row] += 1


def _shift_allocatable(process: Process, row: int) -> None:
    columns = process.program.cache.nodes._resources
    columns._allocatable[columns._index[CPU], row] += 1


def _forget_labels(process: Process, row: int) -> None:
    for _, column in process.program.cache.nodes.label_columns():
        column.codes[row] = 0


def _shift_ledgers(process: Process, row: int) -> None:
    """Adds one to every amount that ledgers count for the row."""
    for ledger in process.program.cache.ledgers:
        for column in vars(ledger).values() if ledger.name != FAULTY else ():
            if isinstance(column, np.ndarray) and column.ndim == 1 and column.dtype.kind == "i" and row < len(column):
                column[row] += 1


_CORRUPTIONS: Final = (
    _add_ghost,
    _forget_pod,
    _toggle_cordon,
    _forget_labels,
    _shift_ledgers,
    _shift_requested,
    _shift_scored,
    _shift_allocatable,
)
"""Functions that each corrupt one row."""


# -- objects -----------------------------------------------------------------------------------------------------------


async def _deliver_wrong_objects(context: RunContext) -> bool:
    """Delivers objects that differ from the server's at the same version, and a pod that does not exist."""
    process = context.replicas.leader()
    if process is None or not process.checker.delivered.nodes:
        return False
    context.replicas.was_corrupted = process.checker.watches.may_hear_twice = True
    _deliver_wrong_pods(context, process)
    _deliver_wrong_nodes(context, process)
    await context.pause(0.0, 0.5)
    for _ in range(AUDITS):
        await process.program.audit.once()
    return True


def _deliver_wrong_pods(context: RunContext, process: Process) -> None:
    delivered = process.checker.delivered
    found = [
        stored.document()
        for _, stored in context.server.store.collection("pods").items()
        if stored.document()["metadata"]["uid"] in delivered.pods
    ]
    known = [
        one
        for one in found
        if delivered.pods[one["metadata"]["uid"]].version == int(one["metadata"]["resourceVersion"])
    ]
    context.rng.shuffle(known)
    for document in known[:WRONG_PODS_MAX]:
        metadata = document["metadata"]
        metadata["labels"] = {**metadata.get("labels", {}), **WRONG}
        _deliver(process, document)
        for _ in ("wrong", "mended"):  # as far as the process knows, either change may help a quarantined pod
            context.bind_checker.policies.pod_changed(metadata["uid"])
    moved = next((one for one in known if _is_plain(one)), None)
    names = sorted(delivered.nodes)
    if moved is not None:
        context.bind_checker.misreported_nodes.add(moved["spec"]["nodeName"])
        moved["spec"]["nodeName"] = context.rng.choice(names)
        _deliver(process, moved)
        delivered.unknowable.add(moved["metadata"]["uid"])
    spec = {
        "nodeName": context.rng.choice(names),
        "schedulerName": "default-scheduler",
        "containers": [{"name": "main"}],
    }
    _deliver(process, orjson.loads(_ghost(f"wrong-{context.mark()}", spec)))


def _is_plain(pod: dict[str, Any]) -> bool:
    """Reports whether the pod is on a node, and only requests depend on its node."""
    spec = pod["spec"]
    return (
        bool(spec.get("nodeName"))
        and not {"volumes", "affinity"} & spec.keys()
        and not pod["metadata"].get("annotations")
    )


def _deliver(process: Process, document: dict[str, Any]) -> None:
    metadata = document["metadata"]
    process.program.pods.upsert(f"{metadata['namespace']}/{metadata['name']}", msgspec.Raw(orjson.dumps(document)))


def _deliver_wrong_nodes(context: RunContext, process: Process) -> None:
    """Delivers some nodes with less room than they have."""
    delivered = process.checker.delivered
    stored = dict(context.server.store.collection("nodes").items())
    documents = [one.document() for one in stored.values()]
    known = [
        one
        for one in documents
        if one["metadata"]["name"] in delivered.nodes
        and delivered.nodes[one["metadata"]["name"]].version == int(one["metadata"]["resourceVersion"])
    ]
    changes: tuple[dict[str, Any], ...] = (
        {"metadata": {"labels": WRONG}},
        {"spec": {"unschedulable": True}},
        {"spec": {"taints": [{"key": "sim/wrong", "value": "", "effect": "NoSchedule"}]}},
        {"status": {"allocatable": {CPU: "1"}}},
    )
    for document, change in zip(context.rng.sample(known, min(len(known), len(changes))), changes, strict=False):
        process.program.nodes.upsert(document["metadata"]["name"], msgspec.Raw(orjson.dumps(merge(document, change))))


def _ghost(name: str, spec: dict[str, Any]) -> bytes:
    metadata = {"name": f"ghost-{name}", "namespace": "default", "uid": f"ghost-{name}", "resourceVersion": "1"}
    return orjson.dumps({"metadata": metadata, "spec": spec})


TABLE = (
    Disruption("memory miscounted", _corrupt_rows, 3),
    Disruption("wrong objects delivered", _deliver_wrong_objects, 3),
)

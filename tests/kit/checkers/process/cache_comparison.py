"""Compares the cache of one process with what it has observed: each delivered event takes effect at once, and nothing else does.

A wrong sum would otherwise only show when it lets a pod onto a full node. Here it shows at the next look, on every node.
`DeliveredState` is kept apart from the program, so that both share no code but the decoder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final

from multisched.framework.ledger import SummingLedger, rebuild
from multisched.model.objects import PODS, Pod
from multisched.queueing.transitions import QueueState
from multisched.shell.program import Program
from multisched.state.cluster_cache import PlacedPod, PodState
from multisched.state.reservations import is_stand_in
from tests.kit.checkers.delivered_state import DeliveredState
from tests.kit.checkers.elastic_nodes import limits_of
from tests.kit.checkers.linked_quotas import LABEL
from tests.kit.plugins.faulty import FAULTY

COPIED: Final = frozenset({"topology.kubernetes.io/zone", "topology.kubernetes.io/region"})
"""Labels that a bind copies from the node: an assumed pod may already have them."""

EqualPods = dict[str, tuple[Pod, Pod]]
"""uid -> pod in the cache and observed pod that were found equal. Neither object is ever modified."""


def fault_of_cache(program: Program, delivered: DeliveredState, equal: EqualPods) -> str:
    """Returns the first pod or node that differs from what was observed; empty for none (I4)."""
    there = {uid: pod.node or delivered.held.get(uid, "") for uid, pod in delivered.pods.items()}
    entries = {entry.pod.uid: entry for entry in program.cache}
    for uid, node in there.items():
        if node and uid not in entries:
            return f"I4: {delivered.pods[uid].key} counts nowhere, and was delivered on {node}"
    for uid, entry in entries.items():
        pod = delivered.pods.get(uid)
        if pod is None:
            return f"I4: {entry.pod.key} counts on {entry.node}, and was delivered as gone"
        if there[uid] != entry.node:
            return f"I4: {pod.key} counts on {entry.node}, and was delivered on {there[uid]!r}"
        known = equal.get(uid)
        if known is not None and known[0] is entry.pod and known[1] is pod:
            continue
        fault = _fault_of_entry(entry, pod)
        if fault:
            return f"I4: {pod.key} counts with {fault}"
        equal[uid] = entry.pod, pod
    here = {node.name: node.version for _, node in program.cache.nodes.live_rows()}
    said = {node.name: node.version for node in delivered.nodes.values()}
    if here != said:
        return f"I4: nodes are known as {sorted(here.items() ^ said.items())[:2]}, as here and as they were delivered"
    return ""


def _fault_of_entry(entry: PlacedPod, pod: Pod) -> str:
    if pod.malformed or entry.pod.malformed:
        return ""  # its requests are decoded differently here
    if entry.pod.requests != pod.requests:
        return f"{dict(entry.pod.requests)}, and was delivered with {dict(pod.requests)}"
    copied = COPIED if entry.state is PodState.ASSUMED else frozenset()
    if _labels_but(entry.pod, copied) != _labels_but(pod, copied):
        return f"labels {dict(entry.pod.labels)}, and was delivered with {dict(pod.labels)}"
    if entry.pod.is_deleting != pod.is_deleting:
        return f"is_deleting {entry.pod.is_deleting}, and was delivered otherwise"
    return ""


def _labels_but(pod: Pod, copied: Collection[str]) -> Mapping[str, str]:
    """Returns the labels without the one that is fixed at the bind, and without `copied`."""
    return {key: value for key, value in pod.labels.items() if key != LABEL and key not in copied}


def fault_of_rows(program: Program, delivered: DeliveredState) -> str:
    """Returns the first node whose columns differ from the sums of observed pods (I4)."""
    table = program.cache.nodes
    sums: dict[str, Counter[str]] = {name: Counter() for name in delivered.nodes}
    for pod, node in delivered.pods_on_nodes():
        sums[node.name].update({**pod.requests, PODS: 1})
    columns = {resource: table.requested(resource) for resource in table.resources}
    offered = {resource: table.allocatable(resource) for resource in table.resources}
    for name, used in sums.items():
        row = table.row_of(name)
        if row is None:
            return f"I4: node {name} is not known, and was delivered"
        for resource, column in columns.items():
            if int(column[row]) != used[resource]:
                return f"I4: {name} counts {int(column[row])} {resource} in use, and was delivered {used[resource]}"
            node = delivered.nodes[name]
            amount = 0 if node.malformed else limits_of(node).get(resource, 0)
            if int(offered[resource][row]) != amount:
                return (
                    f"I4: {name} counts with {int(offered[resource][row])} {resource}, and was delivered with {amount}"
                )
    return ""


def fault_of_nominations(program: Program) -> str:
    """Returns the first nomination of a pod that is not pending, or whose requests are counted wrongly (I5)."""
    nominator, table = program.nominator, program.cache.nodes
    kept: dict[str, Counter[str]] = {}
    for pod in nominator.pods():
        if is_stand_in(pod):
            return ""
        if pod.uid not in program.pods.pending:
            return f"I5: {pod.nominated_node} is promised to {pod.key}, which does not wait"
        if program.cache.placed(pod.uid) is not None:
            return f"I5: {pod.nominated_node} is promised to {pod.key}, which is on its way to a node"
        kept.setdefault(pod.nominated_node, Counter()).update({**pod.requests, PODS: 1})
    if not kept:
        return ""
    lowest_pod = Pod(namespace="sim", name="anybody", uid="anybody", version=0)
    lowest = all(pod.spec.priority >= lowest_pod.spec.priority for pod in nominator.pods())
    nominated = nominator.requests(lowest_pod, table)
    if nominated is None or not lowest:
        return ""
    for resource in (PODS, "cpu", "memory"):
        amounts = dict(zip(nominated.rows.tolist(), nominated.amounts(resource).tolist(), strict=True))
        for name, wanted in kept.items():
            row = table.row_of(name)
            if row is not None and amounts.get(row, 0) != wanted[resource]:
                return f"I5: {amounts.get(row, 0)} {resource} of {name} is kept, and {wanted[resource]} was promised"
    return ""


def fault_of_ledgers(program: Program) -> str:
    """Returns the first ledger whose sums differ from the pods on its rows (I4). Ledgers that are marked as broken are skipped."""
    cache = program.cache
    live = list(cache.nodes.live_rows())
    for ledger in cache.ledgers:
        if not isinstance(ledger, SummingLedger) or ledger.name in cache.ledgers.broken:
            continue
        fresh = rebuild(ledger, live, cache.holders(ledger))
        here, wanted = dict(ledger.held()), dict(fresh.held())
        if here != wanted:
            return f"I4: ledger {ledger.name} holds {_first_difference(here, wanted)}"
        assert isinstance(fresh, SummingLedger), "a copy is of the same kind"
        for row, node in live:
            if ledger.sums(row) != fresh.sums(row):
                return f"I4: ledger {ledger.name} has {ledger.sums(row)} on {node.name}, not {fresh.sums(row)}"
    return ""


def _first_difference(here: Mapping[str, object], wanted: Mapping[str, object]) -> str:
    uid = next(uid for uid in sorted(here.keys() | wanted.keys()) if here.get(uid) != wanted.get(uid))
    return f"{here.get(uid)} for {uid}, not {wanted.get(uid)}"


def unfinished_work(program: Program) -> str:
    """Returns what a process still works on when nothing is left to do; empty for nothing (I5)."""
    for worker in program.router.workers():
        for what, count in (
            ("binds in flight", worker.limit.in_flight),
            ("binds of unknown outcome", worker.counters.unknown),
            ("pods held at Permit", len(worker.waiting)),
        ):
            if count:
                return f"I5: {worker.name} has {count} {what} at rest"
        if not worker.is_drained:
            return f"I5: {worker.name} is not drained at rest"
        for entry in worker.queue.entries(QueueState.GATED):
            if worker.is_leading and program.nominator.node_of(entry.uid):
                return (
                    f"I13: {entry.pod.key} is gated at rest, and {program.nominator.node_of(entry.uid)} is kept for it"
                )
    if len(program.preemptor):
        return f"I5: {len(program.preemptor)} preemptions are under way at rest"
    if program.conditions.statistics().backlog:
        return f"I5: {program.conditions.statistics().backlog} conditions wait to be written at rest"
    return ""


def fault_of_leftovers(program: Program) -> str:
    """Returns what a process keeps when there are no pods; empty for nothing (I5)."""
    cache, table = program.cache, program.cache.nodes
    claims, disks = table.volume_users.counts()
    for what, kept in (
        ("pods", [entry.pod.key for entry in cache]),
        ("strays", cache.stray_count()),
        ("promised nodes", [pod.key for pod in program.nominator.pods() if not is_stand_in(pod)]),
        ("waiting pods", [pod.key for pod in program.pods.pending.values()]),
        ("refused pods", [one.pod.key for one in program.pods.refused.values()]),
        ("host ports", dict(table.ports)),
        ("claims in use", dict(claims)),
        ("disks in use", dict(disks)),
        *((f"queued pods of {worker.name}", len(worker.queue)) for worker in program.router.workers()),
        *((f"holds of ledger {one.name}", dict(one.held())) for one in cache.ledgers if one.name != FAULTY),
    ):
        if kept:
            return f"I5: no pod is left, and {str(kept)[:120]} {what} are kept"
    for resource in table.resources:
        if table.requested(resource).any():
            return f"I5: no pod is left, and {resource} is in use"
    return ""

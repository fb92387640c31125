"""Compares a quiescent program with the API server's store (I3, I4, I5)."""

from __future__ import annotations

from collections.abc import Mapping

from multisched.cluster.api.server import ApiServer
from multisched.framework.ledger import SummingLedger, rebuild
from multisched.model.decode import Decoder
from multisched.model.objects import PODS, Node, Pod
from multisched.shell.program import Program
from multisched.state.cluster_cache import CacheCorruptedError, ClusterCache, PodState
from multisched.state.row_check import row_faults


def differences(program: Program, server: ApiServer) -> list[str]:
    """Returns differences between the program's caches and queues and the server's store; none when the run is quiescent."""
    decoder = Decoder()
    pods = [decoder.pod(stored.raw) for _, stored in server.store.collection("pods").items()]
    nodes = [decoder.node(stored.raw) for _, stored in server.store.collection("nodes").items()]
    return compare(program, {pod.key: pod for pod in pods}, {node.name: node for node in nodes})


def compare(program: Program, pods: Mapping[str, Pod], nodes: Mapping[str, Node]) -> list[str]:
    """Does the same with decoded objects, by NAMESPACE/NAME and by name."""
    found = []
    try:
        program.cache.validate()
        for worker in program.router.workers():
            worker.queue.validate()
    except (CacheCorruptedError, AssertionError) as error:
        found.append(f"I4: {error}")
    found += _pod_differences(program.cache, pods)
    found += [f"I5: {e.pod.key} is still assumed" for e in program.cache if e.state is PodState.ASSUMED]
    found += _node_differences(program.cache, nodes, pods)
    served = {name for names in program.scheduler_names.values() for name in names}
    waiting = {
        p.uid
        for p in pods.values()
        if p.spec.scheduler_name in served and not (p.node or p.is_deleting or p.is_terminal or p.malformed)
    }
    queued = {entry.uid for worker in program.router.workers() for entry in worker.queue.entries()}
    found += [f"I3: {uid} waits in the API and in no queue" for uid in sorted(waiting - queued)]
    found += [f"I3: {uid} waits in a queue and not in the API" for uid in sorted(queued - waiting)]
    known = {uid: pod.key for uid, pod in program.pods.pending.items()}
    left = sorted(known.keys() - {pod.uid for pod in pods.values()})
    found += [f"I5: {known[uid]} ({uid}) waits here and is gone from the API" for uid in left]
    for worker in program.router.workers():
        in_flight = worker.queue.statistics().in_flight
        if in_flight:
            found.append(f"I3: {in_flight} pods of {worker.name} are in flight at rest")
    found += [f"I4: {fault}" for fault in row_faults(program.cache.nodes, range(program.cache.nodes.size)).values()]
    for ledger in program.cache.ledgers:
        fresh = rebuild(ledger, program.cache.nodes.live_rows(), program.cache.holders(ledger))
        if dict(fresh.held()) != dict(ledger.held()):
            found.append(f"I4: ledger {ledger.name} differs from what the pods say")
        if isinstance(ledger, SummingLedger) and isinstance(fresh, SummingLedger):
            rows = [row for row, _ in program.cache.nodes.live_rows()]
            wrong = [row for row in rows if fresh.sums(row) != ledger.sums(row)]
            found += [f"I4: ledger {ledger.name} has {ledger.sums(row)}, not {fresh.sums(row)}" for row in wrong]
    return found


def _pod_differences(cache: ClusterCache, pods: Mapping[str, Pod]) -> list[str]:
    """Compares node, version and requests of each placed pod."""
    there = {p.uid: (p.node, p.version, dict(p.requests)) for p in pods.values() if p.node and not p.is_terminal}
    here = {e.pod.uid: (e.node, e.pod.version, dict(e.pod.requests)) for e in cache if e.state is PodState.CONFIRMED}
    return [
        f"I4: cache has {uid} as {here.get(uid)}, the API as {there.get(uid)}"
        for uid in sorted(here.keys() | there.keys())
        if here.get(uid) != there.get(uid)
    ]


def _node_differences(cache: ClusterCache, nodes: Mapping[str, Node], pods: Mapping[str, Pod]) -> list[str]:
    """Compares each node, and the sums of each row with the API server's pods."""
    table = cache.nodes
    rows = {node.name: row for row, node in table.live_rows()}
    if rows.keys() != nodes.keys():
        return [f"I4: nodes differ: {sorted(rows.keys() ^ nodes.keys())}"]
    found = []
    pods_on_nodes: dict[str, list[Pod]] = {name: [] for name in nodes}
    for pod in pods.values():
        if pod.node in pods_on_nodes and not pod.is_terminal:
            pods_on_nodes[pod.node].append(pod)
    for name, node in nodes.items():
        known = table.node(rows[name])
        labels = node.labels if known.malformed else known.labels  # the labels of a malformed node are unknown
        if (known.uid, known.version, labels) != (node.uid, node.version, node.labels):
            found.append(f"I4: cache has node {name} at {known.version}, the API at {node.version}")
        sums = {**dict.fromkeys(table.resources, 0), PODS: len(pods_on_nodes[name])}
        for pod in pods_on_nodes[name]:
            for resource, amount in pod.requests.items():
                if table.has_column(resource):  # resources that no node has ever had are not counted
                    sums[resource] = sums.get(resource, 0) + amount
        here = {resource: int(table.requested(resource)[rows[name]]) for resource in sums}
        if here != sums:
            found.append(f"I4: row of {name} holds {here}, the API's pods take {sums}")
    return found

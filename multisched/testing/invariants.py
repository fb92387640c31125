"""The invariants of DESIGN 10, checked against the API server's own store: the truth that no cache of ours can bend."""

from __future__ import annotations

import re
from collections.abc import Mapping

import orjson

from multisched.cluster.server import ApiServer
from multisched.config_nodes import NodeRouter
from multisched.config_schema import Configuration
from multisched.framework.ledger import rebuild
from multisched.model.decode import Decoder
from multisched.model.objects import PODS, Node, Pod
from multisched.model.wire import Response
from multisched.shell.program import Program
from multisched.state.cluster_cache import CacheCorruptedError, ClusterCache, PodState
from multisched.state.row_check import row_faults

_BINDING = re.compile(r"/namespaces/([^/]+)/pods/([^/]+)/binding")
BROKEN_MAX = 20


class Books:
    """Sees every binding at the moment it takes effect."""

    def __init__(self, server: ApiServer, broken: list[str]) -> None:
        self._server = server
        self._broken = broken
        self._decoder = Decoder()
        self.bound: dict[str, str] = {}
        """uid -> node of every successful binding."""
        self.history: list[tuple[str, str]] = []

    def bind_seen(self, path: str, body: bytes, answer: Response) -> None:
        """I1, I2 and I7 after each successful binding."""
        if answer.status != 201:
            return
        match = _BINDING.search(path)
        if match is None:
            raise AssertionError(path)
        key = f"{match[1]}/{match[2]}"
        pods = self.pods()
        pod = pods.get(key)
        if pod is None:
            self.complain(f"I7: {key} was bound but does not exist")
            return
        node = str(orjson.loads(body)["target"]["name"])
        self.history.append((key, node))
        if pod.uid in self.bound:
            self.complain(f"I2: {key} was bound to {self.bound[pod.uid]} and again to {node}")
        self.bound[pod.uid] = node
        if pod.gates or pod.is_deleting:
            self.complain(f"I7: {key} was bound while gated or being deleted")
        wanted = str(orjson.loads(body)["metadata"].get("uid", ""))
        if wanted != pod.uid:
            self.complain(f"I7: {key} was bound by a decision about uid {wanted}")
        self._check_node(node, pods)

    def _check_node(self, name: str, pods: Mapping[str, Pod]) -> None:
        node = self.nodes().get(name)
        if node is None:
            return  # it was deleted a moment ago: nothing of it can be overcommitted
        sums: dict[str, int] = {}
        for pod in pods.values():
            if pod.node == name and not pod.is_terminal:
                for resource, amount in {**pod.requests, PODS: 1}.items():
                    sums[resource] = sums.get(resource, 0) + amount
        for resource, amount in sums.items():
            if amount > node.allocatable.get(resource, 0):
                self.complain(f"I1: {name} holds {amount} of {node.allocatable.get(resource, 0)} {resource}")

    def complain(self, sentence: str) -> None:
        if len(self._broken) < BROKEN_MAX:
            self._broken.append(sentence)

    def pods(self) -> dict[str, Pod]:
        """namespace/name -> pod, as the store has it now."""
        items = self._server.store.collection("pods").items()
        return {pod.key: pod for pod in (self._decoder.pod(stored.raw) for _, stored in items)}

    def nodes(self) -> dict[str, Node]:
        items = self._server.store.collection("nodes").items()
        return {node.name: node for node in (self._decoder.node(stored.raw) for _, stored in items)}

    def unbound_feasible(self, configuration: Configuration) -> list[Pod]:
        """Pods that wait although some node of their domain has room for them (I3): counted with plain arithmetic."""
        router = NodeRouter(configuration)
        pods = self.pods().values()
        free = {name: dict(node.allocatable) for name, node in self.nodes().items()}
        for pod in pods:
            if pod.node in free and not pod.is_terminal:
                for resource, amount in {**pod.requests, PODS: 1}.items():
                    free[pod.node][resource] = free[pod.node].get(resource, 0) - amount
        waiting = [p for p in pods if not p.node and not p.gates and not p.is_deleting and not _takes_devices(p)]
        nodes = self.nodes().values()
        return [p for p in waiting if any(_has_room(p, node, free[node.name], router) for node in nodes)]

    def check_feasible(self, configuration: Configuration) -> None:
        late = self.unbound_feasible(configuration)
        if late:
            self.complain(f"I3: {len(late)} feasible pods are not bound, for instance {late[0].key}")
        router = NodeRouter(configuration)
        nodes = self.nodes()
        for pod in self.pods().values():
            domain = pod.spec.scheduler_name.removesuffix("-scheduler")
            if pod.node in nodes and not router.usable_by(domain)(nodes[pod.node]):
                self.complain(f"I8: {pod.key} of {domain} stands on {pod.node}")

    def check_events(self) -> None:
        """What users were told is true: every Scheduled event names the node its pod was bound to (I2)."""
        for stored in dict(self._server.store.collection("events").items()).values():
            event = stored.document()
            if event.get("reason") != "Scheduled":
                continue
            uid = (event.get("regarding") or event.get("involvedObject") or {}).get("uid", "")
            node = str(event.get("note") or event.get("message")).rsplit(" ", 1)[-1]
            if self.bound.get(uid) != node:
                self.complain(f"I2: users were told that {uid} went to {node}; it is on {self.bound.get(uid)}")


def _takes_devices(pod: Pod) -> bool:
    """Devices are shared by rules of their own; their ledger is checked by itself."""
    return "multisched.io/gpu-milli" in pod.annotations or bool(pod.requests.get("nvidia.com/gpu"))


def _has_room(pod: Pod, node: Node, free: Mapping[str, int], router: NodeRouter) -> bool:
    domain = pod.spec.scheduler_name.removesuffix("-scheduler")
    if node.is_unschedulable or not all(free.get(r, 0) >= a for r, a in {**pod.requests, PODS: 1}.items()):
        return False
    if any(not r.matches_value(node.labels.get(r.key)) for r in pod.spec.affinity.node_selector):
        return False
    return router.usable_by(domain)(node)


def check_program(program: Program, server: ApiServer, broken: list[str]) -> None:
    """I3, I4 and I5 of one program at rest."""
    found = list(differences(program, server))
    broken.extend(found[: max(0, BROKEN_MAX - len(broken))])


def differences(program: Program, server: ApiServer) -> list[str]:
    """Where the program's caches and queues differ from the server's store; none at rest."""
    books = Books(server, [])
    found = []
    try:
        program.cache.validate()
        for worker in program.router.workers():
            worker.queue.validate()
    except (CacheCorruptedError, AssertionError) as error:
        found.append(f"I4: {error}")
    pods = books.pods()
    found += _pod_differences(program.cache, pods)
    found += [f"I5: {e.pod.key} is still assumed" for e in program.cache if e.state is PodState.ASSUMED]
    found += _node_differences(program.cache, books.nodes(), pods)
    waiting = {p.uid for p in pods.values() if not p.node and not p.is_deleting and not p.malformed}
    queued = {entry.uid for worker in program.router.workers() for entry in worker.queue.entries()}
    found += [f"I3: {uid} waits in the API and in no queue" for uid in sorted(waiting - queued)]
    found += [f"I3: {uid} waits in a queue and not in the API" for uid in sorted(queued - waiting)]
    placed = [(entry.pod, entry.row) for entry in program.cache if entry.row >= 0]
    found += [f"I4: {fault}" for fault in row_faults(program.cache.nodes, range(program.cache.nodes.size)).values()]
    for ledger in program.cache.ledgers:
        fresh = rebuild(ledger, program.cache.nodes.live_rows(), placed)
        if dict(fresh.held()) != dict(ledger.held()):
            found.append(f"I4: ledger {ledger.name} differs from what the pods say")
    return found


def _pod_differences(cache: ClusterCache, pods: Mapping[str, Pod]) -> list[str]:
    """Each pod on a node, in the cache as in the API: where it is, in which version, and what it takes."""
    there = {p.uid: (p.node, p.version, dict(p.requests)) for p in pods.values() if p.node and not p.is_terminal}
    here = {e.pod.uid: (e.node, e.pod.version, dict(e.pod.requests)) for e in cache if e.state is PodState.CONFIRMED}
    return [
        f"I4: cache has {uid} as {here.get(uid)}, the API as {there.get(uid)}"
        for uid in sorted(here.keys() | there.keys())
        if here.get(uid) != there.get(uid)
    ]


def _node_differences(cache: ClusterCache, nodes: Mapping[str, Node], pods: Mapping[str, Pod]) -> list[str]:
    """Each node, and the sums of each row as the API's own pods make them."""
    table = cache.nodes
    rows = {node.name: row for row, node in table.live_rows()}
    if rows.keys() != nodes.keys():
        return [f"I4: nodes differ: {sorted(rows.keys() ^ nodes.keys())}"]
    found = []
    for name, node in nodes.items():
        known = table.node(rows[name])
        if (known.uid, known.version, known.labels) != (node.uid, node.version, node.labels):
            found.append(f"I4: cache has node {name} at {known.version}, the API at {node.version}")
        standing = [p for p in pods.values() if p.node == name and not p.is_terminal]
        sums = {**dict.fromkeys(table.resources, 0), PODS: len(standing)}
        for pod in standing:
            for resource, amount in pod.requests.items():
                sums[resource] = sums.get(resource, 0) + amount
        here = {resource: int(table.requested(resource)[rows[name]]) for resource in sums}
        if here != sums:
            found.append(f"I4: row of {name} holds {here}, the API's pods take {sums}")
    return found

"""Finds nodes that a pod could use by all that its process has observed, by plain arithmetic.

It is used to check refusals, and preemptions that were not started. If a pod is refused although a node takes it, it is bound
later, by the next event or the flush; no other check would detect that. Pods with volumes are not checked. (`RequeueChecker` checks
that events requeue parked pods.)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from msgspec import structs

from multisched.framework.objects_view import hidden
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Node, Pod
from multisched.shell.program import Program
from multisched.verify.quota_tree import QuotaTree
from tests.kit.checkers.delivered_state import DeliveredState
from tests.kit.checkers.device_rules import surely_fits, wants_devices
from tests.kit.checkers.quota_rules import quota_excess, single_sufficient_victim
from tests.kit.checkers.reference_rules import PodOnNode, Relations, has_room, matches_node_affinity, ports_conflict
from tests.kit.checkers.victim_rules import is_plain, needs_only_room_or_devices
from tests.kit.world.labels import GUEST, LOAN, TIDE, UNIT


@dataclass(slots=True)
class FeasibleNodes:
    """The feasible nodes of one process."""

    program: Program
    delivered: DeliveredState
    _known: dict[str, tuple[tuple[int, int], DomainNodes]] = field(default_factory=dict)
    """Domain -> versions from which its nodes were computed, and the nodes."""

    def nodes_of(self, domain: str) -> DomainNodes | None:
        """Returns the domain's nodes as observed now; None if the result cannot be known."""
        if hidden(self.program.cache.objects, ObjectKind.NAMESPACE):
            return None  # terms may select namespaces
        router = self.program.router
        rows = next(router.rows_of(worker) for worker in router.workers() if worker.name == domain)
        made_of = self.delivered.changes, rows.generation
        known = self._known.get(domain)
        if known is None or known[0] != made_of:
            known = self._known[domain] = made_of, self._compute(domain)
        return known[1]

    def _compute(self, domain: str) -> DomainNodes:
        pods_on_nodes = self.delivered.pods_on_nodes()
        on: dict[str, list[Pod]] = {name: [] for name in self.delivered.nodes}
        for one, there in pods_on_nodes:
            on[there.name].append(one)
        is_used = used_by(self.program, domain)
        nodes = [
            node
            for node in self.delivered.nodes.values()
            if not (node.is_unschedulable or node.malformed) and is_used(node)
        ]
        return DomainNodes(self, domain, pods_on_nodes, on, nodes, self.delivered.is_usable(domain))

    def is_victim(self, uid: str) -> bool:
        """Reports whether the process has decided to evict the pod."""
        placed = self.program.cache.placed(uid)
        return placed is not None and placed.pod.is_victim

    def is_nominated(self, pod: Pod) -> bool:
        """Reports whether the pod need not preempt or does not: it is nominated, or budgets cannot be read."""
        unread = hidden(self.program.cache.objects, ObjectKind.POD_DISRUPTION_BUDGET)
        return bool(self.program.nominator.node_of(pod.uid) or pod.nominated_node or unread)


@dataclass(slots=True)
class DomainNodes:
    """The nodes of one domain at one moment, as observed."""

    _feasible: FeasibleNodes
    _domain: str
    _pods_on_nodes: Sequence[PodOnNode]
    _on: Mapping[str, Sequence[Pod]]
    """Node -> pods on it."""
    _nodes: list[Node]
    _is_usable: Callable[[Node], bool]
    """Includes nodes that are withheld: spreading counts them."""
    _hypothetical: Sequence[Pod] = ()
    """Hypothetical pods, each with its node."""

    def with_pod(self, pod: Pod, name: str) -> DomainNodes:
        """Returns a copy with the pod added to the node."""
        node = self._feasible.delivered.nodes[name]
        on = {**self._on, name: [*self._on[name], pod]}
        return replace(
            self,
            _pods_on_nodes=[*self._pods_on_nodes, (pod, node)],
            _on=on,
            _hypothetical=[*self._hypothetical, structs.replace(pod, node=name)],
        )

    def by_domain(self, keys: Sequence[str]) -> Iterator[DomainNodes]:
        """Yields a copy with the nodes of one topology domain, for each domain; one with all nodes if no key is given."""
        values = {tuple(node.labels.get(key) for key in keys) for node in self._nodes}
        for domain in sorted(one for one in values if None not in one):
            nodes = [node for node in self._nodes if tuple(node.labels.get(key) for key in keys) == domain]
            yield replace(self, _nodes=nodes)

    def without_less_urgent(self, priority: int) -> DomainNodes:
        """Returns a copy without all pods below this priority."""
        on = {name: [one for one in pods if one.spec.priority >= priority] for name, pods in self._on.items()}
        pods_on_nodes = [(one, node) for one, node in self._pods_on_nodes if one.spec.priority >= priority]
        return replace(self, _pods_on_nodes=pods_on_nodes, _on=on)

    def node_for(self, pod: Pod) -> str:
        """Returns the name of a node that takes the pod; empty if there is none, or if that is unknown."""
        delivered = self._feasible.delivered
        pod = delivered.pods.get(pod.uid, pod)
        placed = [*delivered.placed(), *self._hypothetical, *self._nominated(pod)]
        is_held = quota_excess(delivered.quotas.tree, pod, placed)
        nodes = self._nodes if is_judged(pod) and not is_held else ()
        relations = Relations(pod, delivered.nodes.values(), self._pods_on_nodes, self._is_usable)
        return next(
            (
                node.name
                for node in nodes
                if matches_node_affinity(pod, node)
                and has_room(pod, node, self._on[node.name])
                and self._takes(pod, node, relations)
            ),
            "",
        )

    def node_by_preemption(self, pod: Pod) -> str:
        """Returns the name of a node that takes a plain pod after all less important pods on it are evicted; empty if there is
        none.

        The pod may also request devices. Under a quota: after one borrowing pod is evicted.
        """
        delivered = self._feasible.delivered
        pod = delivered.pods.get(pod.uid, pod)
        tree = delivered.quotas.tree
        is_simple = is_plain(pod) or (needs_only_room_or_devices(pod) and wants_devices(pod))
        nodes = self._nodes if is_judged(pod) and is_simple and pod.spec.can_preempt else ()
        if tree is not None and tree.leaf_of(pod.namespace) is not None:  # priority does not matter between leaves
            return self._node_by_reclaim(tree, pod, nodes)
        return next((node.name for node in nodes if self._makes_room(pod, node)), "")

    def _node_by_reclaim(self, tree: QuotaTree, pod: Pod, nodes: Collection[Node]) -> str:
        """Returns the name of a node that takes the pod after a single borrowing pod is evicted. Empty if there is none, or if
        other pods are nominated.
        """
        delivered = self._feasible.delivered
        if self._nominated(pod):
            return ""
        placed = delivered.placed()
        relations = Relations(pod, delivered.nodes.values(), self._pods_on_nodes, self._is_usable)
        free = (
            node
            for node in nodes
            if not delivered.fault_of_node(pod, self._domain, node)
            and not delivered.fault_of_domain(pod, node)
            and pod.spec.required_features <= set(node.declared_features)
            and not _has_guest(self._on[node.name])
            and surely_fits(pod, node, self._on[node.name])
            and relations.allow(node)
        )
        return next((node.name for node in free if single_sufficient_victim(tree, pod, node, placed)), "")

    def _makes_room(self, pod: Pod, node: Node) -> bool:
        delivered = self._feasible.delivered
        going = {one.uid for one in self._on[node.name] if _is_less_urgent(one, pod)}
        if not going or delivered.fault_of_node(pod, self._domain, node) or self._is_nominated(node.name, pod):
            return False
        if delivered.fault_of_domain(pod, node):
            return False
        here = [one for one in self._on[node.name] if one.uid not in going]
        if not has_room(pod, node, here) or not pod.spec.required_features <= set(node.declared_features):
            return False
        if _has_guest(here) or not surely_fits(pod, node, here):
            return False
        left = [(one, there) for one, there in self._pods_on_nodes if one.uid not in going]
        return Relations(pod, delivered.nodes.values(), left, self._is_usable).allow(node)

    def _takes(self, pod: Pod, node: Node, relations: Relations) -> bool:
        """Reports whether the node takes the pod, apart from requests."""
        delivered = self._feasible.delivered
        if delivered.fault_of_node(pod, self._domain, node) or self._is_nominated(node.name, pod):
            return False
        if delivered.fault_of_domain(pod, node):
            return False
        if not pod.spec.required_features <= set(node.declared_features):
            return False
        here = self._on[node.name]
        if any(ports_conflict(pod, one) for one in here) or not surely_fits(pod, node, here):
            return False
        if _has_guest(here):
            return False
        return relations.allow(node)

    def _nominated(self, pod: Pod) -> list[Pod]:
        """Returns other pods that are nominated and have no node: quotas count them already."""
        there = {one.uid for one, _ in self._pods_on_nodes}
        nominated = self._feasible.program.nominator.pods()
        return [one for one in nominated if one.uid != pod.uid and one.uid not in there]

    def _is_nominated(self, node: str, pod: Pod) -> bool:
        nominator = self._feasible.program.nominator
        return any(p.uid != pod.uid and nominator.rank_of(p) >= pod.spec.priority for p in nominator.on(node))


def used_by(program: Program, domain: str) -> Callable[[Node], bool]:
    """Returns a function that reports whether the process may use a node for the domain now: a node that joined may be withheld for
    a while.
    """
    router, table = program.router, program.cache.nodes
    rows = next(router.rows_of(worker) for worker in router.workers() if worker.name == domain)

    def is_used(node: Node) -> bool:
        row = table.row_of(node.name)
        return row is not None and rows.has(row)

    return is_used


def is_judged(pod: Pod) -> bool:
    """Reports whether the pod can be checked."""
    spec = pod.spec
    is_odd = spec.volumes or spec.resource_claims or spec.pod_group or spec.unsupported or pod.malformed or pod.gates
    is_mistaken = any(one.weight and not one.term.is_valid for one in spec.affinity.preferred)
    return not (is_odd or is_mistaken or {GUEST, LOAN, TIDE, UNIT} & pod.labels.keys())


def _has_guest(here: Collection[Pod]) -> bool:
    """Reports whether a guest is on the node. The pods that it excludes depend on labels of namespaces, which are not observed
    here.
    """
    return any(GUEST in pod.labels for pod in here)


def _is_less_urgent(pod: Pod, than: Pod) -> bool:
    return pod.spec.priority < than.spec.priority

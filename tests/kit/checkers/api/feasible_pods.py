"""Finds pending pods that fit a node, by plain arithmetic over the objects of the API server.

A pod that its quota holds back is not feasible, nor is a member of a gang that does not fit as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

from multisched.config.schema import Configuration
from multisched.model.objects import PODS, Node, Pod
from multisched.model.selectors import NO_EXECUTE, NO_SCHEDULE
from multisched.verify.gang_objects import GangKey
from multisched.verify.gangs import GangState
from tests.kit.checkers.api.gang_checker import GangChecker
from tests.kit.checkers.api.quota_checker import QuotaChecker
from tests.kit.checkers.delivered_state import DomainNodeFilter
from tests.kit.checkers.device_rules import surely_fits
from tests.kit.checkers.elastic_nodes import limits_of
from tests.kit.checkers.quota_rules import node_by_reclaim, quota_excess
from tests.kit.checkers.reference_rules import PodOnNode, Relations, matches_node_affinity, ports_conflict
from tests.kit.world.storage import Storage
from tests.kit.world.store_view import StoreView


@dataclass(slots=True)
class _Cluster:
    """All nodes and the pods on them. Pods may be added hypothetically."""

    nodes: Mapping[str, Node]
    placed: list[Pod]
    """Includes pods on nodes that were deleted: they still count for their quotas."""
    pods_on_nodes: list[PodOnNode]
    on: dict[str, list[Pod]]
    free: dict[str, dict[str, int]]

    @staticmethod
    def of(nodes: Mapping[str, Node], pods: Iterable[Pod]) -> _Cluster:
        free = {name: dict(limits_of(node)) for name, node in nodes.items()}
        found = _Cluster(nodes, [], [], {name: [] for name in nodes}, free)
        for pod in pods:
            if pod.node in nodes and not pod.is_terminal:
                found.add(pod, nodes[pod.node])
            elif pod.node and not pod.is_terminal:
                found.placed.append(pod)
        return found

    def add(self, pod: Pod, node: Node) -> None:
        self.placed.append(pod)
        self.pods_on_nodes.append((pod, node))
        self.on[node.name].append(pod)
        free = self.free[node.name]
        for resource, amount in {**pod.requests, PODS: 1}.items():
            free[resource] = free.get(resource, 0) - amount

    def by_domain(self, keys: Sequence[str]) -> Iterator[_Cluster]:
        """Yields, for each topology domain, a copy in which only its nodes have room; one copy with all room if no key is given."""
        values = {tuple(node.labels.get(key) for key in keys) for node in self.nodes.values()}
        for domain in sorted(one for one in values if None not in one):
            is_in = {name: tuple(node.labels.get(key) for key in keys) == domain for name, node in self.nodes.items()}
            free = {name: dict(room) if is_in[name] else {} for name, room in self.free.items()}
            on = {name: list(pods) for name, pods in self.on.items()}
            yield _Cluster(self.nodes, list(self.placed), list(self.pods_on_nodes), on, free)

    def has_room(self, pod: Pod, node: Node) -> bool:
        return all(self.free[node.name].get(r, 0) >= amount for r, amount in {**pod.requests, PODS: 1}.items())


class FeasiblePods:
    """The feasible pods of all domains of one configuration."""

    def __init__(
        self,
        objects: StoreView,
        configuration: Configuration,
        node_filter: DomainNodeFilter,
        storage: Callable[[], Storage | None],
        quotas: QuotaChecker,
        gangs: GangChecker,
    ) -> None:
        """`storage`: returns the storage of the run; None if there are no volumes."""
        self._objects = objects
        self._node_filter = node_filter
        self._domain_of = {name: d.name for d in configuration.domains for name in d.scheduler_names}
        self._policy_tolerations = {d.name: d.policy.compile() for d in configuration.domains}
        self._storage = storage
        self._quotas = quotas
        self._gangs = gangs

    def of(self, waiting: Collection[Pod]) -> Iterator[Pod]:
        """Yields the pods for which a node has room."""
        if not waiting:
            return
        self._quotas.follow()
        self._gangs.follow()
        cluster = self._cluster()
        tree = self._quotas.judge.tree
        by_uid = {pod.uid: pod for pod in waiting}
        fits = cache(partial(self._fits, waiting=by_uid))
        for pod in waiting:
            is_held = self._waits_for_its_gang(pod, fits) or quota_excess(tree, pod, cluster.placed)
            if not is_held and self._node_for(pod, cluster) is not None:
                yield pod
        for state in self._gangs.judge.states():
            members = [by_uid[uid] for uid in sorted(state.waiting & by_uid.keys())]
            if members and not self._gangs.judge.has_started(state.key) and fits(state.key):
                yield members[0]

    def entitled(self, waiting: Collection[Pod]) -> Iterator[Pod]:
        """Yields pods within their quota's min that a node would take if all borrowed amounts were given back."""
        tree = self._quotas.judge.tree
        if not waiting or tree is None:
            return
        cluster = self._cluster()
        for pod in waiting:
            domain = self._domain_of.get(pod.spec.scheduler_name)
            is_held = domain is None or not pod.spec.can_preempt or self._gangs.judge.gang_of(pod.uid) is not None
            if is_held or tree.leaf_of(pod.namespace) is None:
                continue
            is_usable = self._node_filter.usable_by(domain or "")
            nodes = [node for node in cluster.nodes.values() if is_usable(node)]
            if node_by_reclaim(tree, pod, nodes, cluster.placed, self._takes_plain_pod):
                yield pod

    def _fits(self, key: GangKey, waiting: Mapping[str, Pod]) -> bool:
        return self.is_feasible(self._gangs.judge.state(key), waiting)

    def is_feasible(self, state: GangState, waiting: Mapping[str, Pod], *, is_for_good: bool = True) -> bool:
        """Reports whether the members that the gang needs, and those of the gangs that start with it, fit all at once.

        Gangs that start together must name one scheduler; otherwise they never start. `is_for_good`: the run is quiescent. If it is
        not, nominated pods count for their quotas too, since their leader may have stopped.
        """
        nominated: list[Pod] = []
        if not is_for_good:
            own = state.waiting.union(*(self._gangs.judge.state(key).waiting for key in state.groups))
            others = (pod for pod in waiting.values() if pod.uid not in own)
            nominated = [pod for pod in others if pod.nominated_node]
        states = [state, *(self._gangs.judge.state(key) for key in state.groups if key != state.key)]
        members = (waiting[uid] for one in states for uid in one.waiting & waiting.keys())
        is_one = len({pod.spec.scheduler_name for pod in members}) == 1
        if not is_one:
            return False
        for cluster in self._cluster().by_domain(state.required):
            cluster.placed += nominated
            if all(self._places(one, waiting, cluster) for one in states):
                return True
        return False

    def _places(self, state: GangState, waiting: Mapping[str, Pod], cluster: _Cluster) -> bool:
        """Places the missing members one by one, each on the first node where it fits. Reports whether all were placed."""
        if state.minimum is None:
            return False
        missing = state.minimum - len(state.bound)
        members = [waiting[uid] for uid in sorted(state.waiting & waiting.keys())]
        for pod in members if missing <= len(members) else ():
            if missing <= 0:
                break
            node = None if quota_excess(self._quotas.judge.tree, pod, cluster.placed) else self._node_for(pod, cluster)
            if node is not None:
                cluster.add(pod, node)
                missing -= 1
        return missing <= 0

    def _waits_for_its_gang(self, pod: Pod, fits: Callable[[GangKey], bool]) -> bool:
        """Reports whether the pod must wait for its gang: the gang has not started, has lost more members than can start again now,
        or is invalid.
        """
        key = self._gangs.judge.gang_of(pod.uid)
        if key is None:
            return f"Pod {pod.key}" in self._gangs.judge.problems
        state = self._gangs.judge.state(key)
        return not self._gangs.judge.has_started(key) or not (state.is_whole or fits(key))

    def _cluster(self) -> _Cluster:
        return _Cluster.of(self._objects.nodes(), self._objects.pods().values())

    def _node_for(self, pod: Pod, cluster: _Cluster) -> Node | None:
        domain = self._domain_of.get(pod.spec.scheduler_name)
        if domain is None:
            return None
        is_usable, nodes = self._node_filter.usable_by(domain), cluster.nodes.values()
        relations = Relations(pod, nodes, cluster.pods_on_nodes, is_usable)
        return next(
            (
                node
                for node in nodes
                if cluster.has_room(pod, node)
                and is_usable(node)
                and self._is_in_domain(pod, node, cluster)
                and self._takes(pod, node, cluster.on[node.name])
                and relations.allow(node)
            ),
            None,
        )

    def _is_in_domain(self, pod: Pod, node: Node, cluster: _Cluster) -> bool:
        """Reports whether the node is in the topology domain of the gang's other members, if the gang requires one domain."""
        key = self._gangs.judge.gang_of(pod.uid)
        required = () if key is None else self._gangs.judge.state(key).required
        if not required:
            return True
        others = [there for one, there in cluster.pods_on_nodes if self._gangs.judge.gang_of(one.uid) == key]
        return all(
            label in node.labels and all(there.labels.get(label) == node.labels[label] for there in others)
            for label in required
        )

    def _takes_plain_pod(self, pod: Pod, node: Node, there: Collection[Pod]) -> bool:
        """Does the same for a pod without rules about other pods; False for other pods."""
        is_plain = not (pod.spec.pod_affinity or pod.spec.spread or pod.spec.volumes)
        return is_plain and self._takes(pod, node, there)

    def _takes(self, pod: Pod, node: Node, there: Collection[Pod]) -> bool:
        """Reports whether the node takes the pod, apart from requests."""
        if node.is_unschedulable or not matches_node_affinity(pod, node) or not self._tolerates(pod, node):
            return False
        if not pod.spec.required_features <= set(node.declared_features):
            return False
        if any(one.weight and not one.term.is_valid for one in pod.spec.affinity.preferred):
            return False  # upstream treats preferences that do not parse as an error
        if any(ports_conflict(pod, one) for one in there) or not surely_fits(pod, node, there):
            return False
        storage = self._storage()
        return storage is None or storage.allows(pod, node, there)

    def _tolerates(self, pod: Pod, node: Node) -> bool:
        tolerations = (
            *pod.spec.tolerations,
            *self._policy_tolerations.get(self._domain_of[pod.spec.scheduler_name], ()),
        )
        hard = [taint for taint in node.taints if taint.effect in (NO_SCHEDULE, NO_EXECUTE)]
        return all(any(one.tolerates(taint) for one in tolerations) for taint in hard)

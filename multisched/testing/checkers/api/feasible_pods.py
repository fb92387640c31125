"""Which waiting pods some node would take, in plain arithmetic over what the API server has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from multisched.config.schema import Configuration
from multisched.model.objects import PODS, Node, Pod
from multisched.model.selectors import NO_EXECUTE, NO_SCHEDULE
from multisched.testing.checkers.delivered_state import Homes
from multisched.testing.rules.devices import fits_for_certain
from multisched.testing.rules.inter_pod import Standing, allows, clash
from multisched.testing.rules.node_affinity import wants
from multisched.testing.world.storage import Storage
from multisched.testing.world.store_view import StoreView


class FeasiblePods:
    """Of all domains of one configuration."""

    def __init__(
        self,
        objects: StoreView,
        configuration: Configuration,
        homes: Homes,
        storage: Callable[[], Storage | None],
    ) -> None:
        """`storage`: where there are volumes."""
        self._objects = objects
        self._homes = homes
        self._domain_of = {name: d.name for d in configuration.domains for name in d.scheduler_names}
        self._policy_tolerations = {d.name: d.policy.compile() for d in configuration.domains}
        self._storage = storage

    def of(self, waiting: Collection[Pod]) -> Iterator[Pod]:
        """Those for which some node has room: counted with plain arithmetic."""
        if not waiting:
            return
        nodes = self._objects.nodes()
        placed = [pod for pod in self._objects.pods().values() if pod.node in nodes and not pod.is_terminal]
        standing = [(pod, nodes[pod.node]) for pod in placed]
        there: dict[str, list[Pod]] = {name: [] for name in nodes}
        for pod in placed:
            there[pod.node].append(pod)
        free = {name: dict(node.allocatable) for name, node in nodes.items()}
        for pod in placed:
            for resource, amount in {**pod.requests, PODS: 1}.items():
                free[pod.node][resource] = free[pod.node].get(resource, 0) - amount
        for pod in waiting:
            if self._fits_somewhere(pod, nodes.values(), free, standing, there):
                yield pod

    def _fits_somewhere(
        self,
        pod: Pod,
        nodes: Collection[Node],
        free: Mapping[str, Mapping[str, int]],
        standing: Collection[Standing],
        there: Mapping[str, Collection[Pod]],
    ) -> bool:
        """`there`: name of a node -> the pods on it."""
        domain = self._domain_of.get(pod.spec.scheduler_name)
        if domain is None:
            return False
        is_usable = self._homes.usable_by(domain)
        wanted = {**pod.requests, PODS: 1}
        return any(
            all(free[node.name].get(r, 0) >= a for r, a in wanted.items())
            and is_usable(node)
            and self._would_take(pod, node, there[node.name])
            and allows(pod, node, nodes, standing, is_usable)
            for node in nodes
        )

    def _would_take(self, pod: Pod, node: Node, there: Collection[Pod]) -> bool:
        """Whatever room there is."""
        if node.is_unschedulable or not wants(pod, node) or not self._tolerates(pod, node):
            return False
        if not pod.spec.required_features <= set(node.declared_features):
            return False
        if any(one.weight and not one.term.is_valid for one in pod.spec.affinity.preferred):
            return False  # upstream takes preferences that do not parse for an error
        if any(clash(pod, one) is not None for one in there) or not fits_for_certain(pod, node, there):
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

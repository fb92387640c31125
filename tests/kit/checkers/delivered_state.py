"""What one simulated process has observed: it determines what the process can know.

A binding is checked against the API server, and excused only by what its sender cannot have known: pods as its watches delivered
them when it decided, and nodes as delivered when it sent. Nothing is read from the caches of the program.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache

import msgspec
import orjson
from msgspec.structs import replace

from multisched.config.nodes import NodeRouter
from multisched.config.schema import Configuration
from multisched.model.decode import DecodeError
from multisched.model.objects import PODS, Node, Pod, Requests
from multisched.model.selectors import NO_EXECUTE, NO_SCHEDULE, Taint, Toleration
from multisched.verify.fields import Json
from multisched.verify.gangs import GangJudge
from multisched.verify.quota_tree import QuotaTree
from tests.kit.checkers.card_rules import node_resources
from tests.kit.checkers.device_rules import fraction_wanted
from tests.kit.checkers.elastic_nodes import limits_of
from tests.kit.checkers.linked_quotas import LinkedQuotaJudge
from tests.kit.checkers.quota_messages import Bound
from tests.kit.checkers.reference_rules import PodOnNode, matches_node_affinity
from tests.kit.world.labels import GPU_DEVICES
from tests.kit.world.store_view import Reader

CORDON = Taint("node.kubernetes.io/unschedulable", effect=NO_SCHEDULE)
"""The taint that a cordon corresponds to. Pods that tolerate it may use the node."""


class DomainNodeFilter:
    """Which nodes each domain of a configuration may use. Results are cached per pod and node."""

    def __init__(self, configuration: Configuration) -> None:
        self._router = NodeRouter(configuration)
        self._tests: dict[str, Callable[[Node], bool]] = {}

    def usable_by(self, domain: str) -> Callable[[Node], bool]:
        """See `NodeRouter.usable_by`."""
        if domain not in self._tests:
            # A changed node is a new object; all observed versions are kept.
            self._tests[domain] = cache(self._router.usable_by(domain))
        return self._tests[domain]


@dataclass(frozen=True, slots=True)
class DecisionBasis:
    """The state on which a binding was decided and sent."""

    sender: str
    node: Node | None
    """The node as observed when the binding was sent; None if it was not observed."""
    size: Requests
    """The pod's requests, as observed when the binding was sent."""
    pods: Mapping[str, Pod]
    """uid -> pod, as observed when the pod was assumed."""
    unknowable: frozenset[str]
    """uids of pods about which the sender lacked events when it sent."""
    tree: QuotaTree | None = None
    """The tree of quotas in force when the pod was assumed."""

    def predates(self, node: Node) -> bool:
        """Reports whether the sender had observed an earlier node of the same name when it sent the binding."""
        return self.node is not None and self.node.uid != node.uid


@dataclass(slots=True)
class DeliveredState:
    """All that the watches of one process have delivered, and what it holds itself."""

    reader: Reader
    is_usable: Callable[[str], Callable[[Node], bool]]
    """Domain -> function that reports whether the domain may use a node, by the configuration of this process."""
    tolerations: Mapping[str, tuple[Toleration, ...]]
    """Domain -> tolerations that its policy adds."""
    pods: dict[str, Pod] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    held: dict[str, str] = field(default_factory=dict)
    """uid -> node of each pod that the process has assumed and not forgotten, until the watch shows the pod on a node."""
    unknowable: set[str] = field(default_factory=set)
    """uids of pods about which an event was silently lost, or which a restored backup has changed, without a later event."""
    changes: int = 0
    """Increased with each change that `pods_on_nodes` and `placed` depend on."""
    _pods_on_nodes: list[PodOnNode] = field(default_factory=list)
    _on: dict[str, list[Pod]] = field(default_factory=dict)
    """Node -> pods on it."""
    _indexed_at: int = -1
    """The value of `changes` for which both were computed."""
    _placed: list[Pod] = field(default_factory=list)
    _placed_at: int = -1
    """The value of `changes` for which it was computed."""
    quotas: LinkedQuotaJudge = field(default_factory=LinkedQuotaJudge)
    """The observed trees of quotas, without pods."""
    quota_bounds: set[Bound] = field(default_factory=set)
    """Every max of every tree that has been in force: a message may refer to an earlier one."""
    gangs: GangJudge | None = None
    """Pods and PodGroups as observed; None if the run has no gangs."""
    last_messages: dict[str, str] = field(default_factory=dict)
    """uid -> message of the last condition that the process wrote for the pod."""
    _uids: dict[str, str] = field(default_factory=dict)
    _restored: dict[str, str] = field(default_factory=dict)
    """uid -> node of each pod of the last restored backup; empty if the pod was not bound in it."""
    _finished: dict[str, Json] = field(default_factory=dict)
    """NAMESPACE/NAME -> succeeded pod, as the watch of ended pods delivered it. Such members still count for their gangs."""
    _assumed: dict[str, tuple[dict[str, Pod], Node | None, QuotaTree | None]] = field(default_factory=dict)
    """uid -> observed pods, node and tree of quotas when the pod was assumed."""

    # -- as the watches hand on ------------------------------------------------------------------------------------

    def pod_delivered(self, key: str, raw: msgspec.Raw) -> str:
        """Records a delivered pod. Returns the node on which it requests less than before; empty for none."""
        try:
            pod = self.reader.pod(raw)
        except (DecodeError, UnicodeDecodeError, msgspec.DecodeError):
            return ""
        before = self.pods.get(pod.uid)
        self.changes += 1
        if self.gangs is not None:
            with suppress(orjson.JSONDecodeError):  # text that is not UTF-8; no gang of a run has it
                self.gangs.add("Pod", orjson.loads(bytes(raw)))
        self.pods[pod.uid], self._uids[key] = pod, pod.uid
        if pod.node or not self._restored.get(pod.uid):
            self.unknowable.discard(pod.uid)
        if pod.node or pod.is_terminal:
            self.held.pop(pod.uid, None)
        if pod.is_terminal:
            self._left(pod.uid)
        is_less = before is not None and any(pod.requests.get(r, 0) < amount for r, amount in before.requests.items())
        return pod.node if is_less or pod.is_terminal else ""

    def read(self, pod: Pod) -> None:
        """Records a pod that the process read from the server and that no watch has delivered."""
        self.changes += 1
        self.pods[pod.uid], self._uids[pod.key] = pod, pod.uid

    def pod_gone(self, key: str) -> None:
        self.drop(self._uids.pop(key, ""))

    def drop(self, uid: str) -> None:
        self.changes += 1
        if self.gangs is not None and uid in self.pods:
            pod = self.pods[uid]
            finished = self._finished.get(pod.key)
            if finished is not None and finished["metadata"]["uid"] == uid:
                self.gangs.add("Pod", finished)
            else:
                self.gangs.forget("Pod", {"metadata": {"name": pod.name, "namespace": pod.namespace, "uid": uid}})
        self._left(uid)
        self.held.pop(uid, None)
        self.last_messages.pop(uid, None)

    def _left(self, uid: str) -> None:
        """Removes a pod that was delivered as deleted or ended.

        The event may be older than a restored backup. In this case the server has the pod again, and the process cannot know that.
        """
        self.pods.pop(uid, None)
        if uid in self._restored:
            self.unknowable.add(uid)
        else:
            self.unknowable.discard(uid)

    def ended_delivered(self, key: str, raw: msgspec.Raw) -> None:
        """Records a succeeded pod of the watch of ended pods. The watch of running pods may not have removed it yet."""
        if self.gangs is not None:
            with suppress(orjson.JSONDecodeError):
                pod = orjson.loads(bytes(raw))
                if pod["status"]["phase"] == "Succeeded":
                    self._finished[key] = pod
                    self.gangs.add("Pod", pod)

    def ended_gone(self, key: str) -> None:
        finished = self._finished.pop(key, None)
        if self.gangs is not None and finished is not None and finished["metadata"]["uid"] not in self.pods:
            self.gangs.forget("Pod", finished)

    def node_delivered(self, key: str, raw: msgspec.Raw) -> None:
        self.changes += 1
        try:
            self.nodes[key] = self.reader.node(raw)
        except (DecodeError, UnicodeDecodeError, msgspec.DecodeError):
            return

    def node_gone(self, key: str) -> None:
        self.changes += 1
        self.nodes.pop(key, None)

    # -- as the process decides ------------------------------------------------------------------------------------

    def assumed(self, uid: str, node: str) -> None:
        self.changes += 1
        self._assumed[uid] = dict(self.pods), self.nodes.get(node), self.quotas.tree
        self.held[uid] = node

    def forgotten(self, uid: str) -> None:
        self.changes += 1
        self.held.pop(uid, None)

    def pods_on_nodes(self) -> Sequence[PodOnNode]:
        """Returns observed pods on observed nodes, including assumed ones."""
        self._index_pods()
        return self._pods_on_nodes

    def placed(self) -> Sequence[Pod]:
        """Returns observed pods with a node, including assumed ones and pods on unknown nodes."""
        if self._placed_at != self.changes:
            self._placed_at = self.changes
            self._placed = [
                pod if pod.node else replace(pod, node=self.held[uid], annotations=_as_bound(pod.annotations))
                for uid, pod in self.pods.items()
                if pod.node or uid in self.held
            ]
        return self._placed

    def pods_on(self, node: str) -> Sequence[Pod]:
        """Returns the pods of one node."""
        self._index_pods()
        return self._on.get(node, ())

    def _index_pods(self) -> None:
        if self._indexed_at == self.changes:
            return
        self._pods_on_nodes, self._on, self._indexed_at = [], {}, self.changes
        for uid, pod in self.pods.items():
            node = self.nodes.get(pod.node or self.held.get(uid, ""))
            if node is not None:
                self._pods_on_nodes.append((pod, node))
                self._on.setdefault(node.name, []).append(pod)

    def basis(self, sender: str, pod: Pod, node: str) -> DecisionBasis:
        """Returns the basis of a binding that is sent now."""
        known = self.pods.get(pod.uid, pod)
        there, _, tree = self._assumed.get(pod.uid, (self.pods, None, self.quotas.tree))
        return DecisionBasis(sender, self.nodes.get(node), known.requests, there, frozenset(self.unknowable), tree)

    def assumed_node(self, uid: str) -> Node | None:
        """Returns the node on which the pod was assumed, as observed at that moment."""
        return self._assumed[uid][1] if uid in self._assumed else None

    def on_restored(self, there: Mapping[str, Pod]) -> None:
        """Records that a backup was restored: no process has observed the changes.

        A pod that is unbound again may be bound at any moment, by a bind sent before. Events that were sent before the restore may
        still arrive.
        """
        self._restored = {uid: pod.node for uid, pod in there.items()}
        self.unknowable.update(
            uid for uid, pod in there.items() if uid not in self.pods or self.pods[uid].node != pod.node
        )

    def fault_of_bind(self, pod: Pod, domain: str, name: str) -> str:
        """Returns what the process has observed that forbids to send the binding; empty for nothing."""
        node = self.nodes.get(name)
        if node is None:
            return "which is gone, as it was delivered"
        decided_for = self.assumed_node(pod.uid)
        if decided_for is not None and decided_for.uid != node.uid:
            return "which is another node than the one that it was decided for"
        # It had room when the pod was assumed. The node may have shrunk since, or pods of other clients may have been added or resized.
        return self.fault_of_node(pod, domain, node) or self.excess(node, self.pods.get(pod.uid, pod))

    def excess(self, node: Node, pod: Pod | None = None) -> str:
        """Returns by how much the pods on the node exceed its capacity with this pod added, as observed; empty if they do not.

        With a pod, only the resources that it requests are compared: lost devices do not concern other pods.
        """
        here = {one.uid: one for one in self.pods_on(node.name)}
        sums = Counter({PODS: 0})
        for one in (here | {pod.uid: pod} if pod is not None else here).values():
            sums.update({**node_resources(one.requests), PODS: 1})
        asked = {**node_resources(pod.requests), PODS: 1} if pod is not None else sums
        for resource in asked:
            amount = sums[resource]
            if amount > limits_of(node).get(resource, 0):
                return f"which then holds {amount} of {limits_of(node).get(resource, 0)} {resource}"
        return ""

    def fault_of_node(self, pod: Pod, domain: str, node: Node) -> str:
        """Returns what forbids the pod to use the node, by the node alone; empty for nothing."""
        if not self.is_usable(domain)(node):
            return f"which is not of domain {domain}"
        tolerations = (*pod.spec.tolerations, *self.tolerations.get(domain, ()))
        if node.is_unschedulable and not any(one.tolerates(CORDON) for one in tolerations):
            return "which is cordoned"
        for taint in node.taints:
            is_hard = taint.effect in (NO_SCHEDULE, NO_EXECUTE)
            if is_hard and not any(one.tolerates(taint) for one in tolerations):
                return f"whose taint {taint.key}:{taint.effect} it does not tolerate"
        if not matches_node_affinity(pod, node):
            return "which its node selector or affinity forbids"
        return ""

    def fault_of_domain(self, pod: Pod, node: Node) -> str:
        """Returns the label by which the node is in another topology domain than the gang's other members, if the gang requires one
        domain; empty if it is not.
        """
        key = self.gangs.gang_of(pod.uid) if self.gangs is not None else None
        state = self.gangs.state(key) if self.gangs is not None and key is not None else None
        for label in () if state is None else state.required:
            if label not in node.labels:
                return f"which has no label {label}, and its gang requires one domain of it"
            for other, there in self.pods_on_nodes():
                is_member = self.gangs is not None and self.gangs.gang_of(other.uid) == key and other.uid != pod.uid
                if is_member and not other.is_deleting and there.labels.get(label) != node.labels[label]:
                    return f"in another domain of {label} than {other.key}, and its gang requires one"
        return ""


def _as_bound(annotations: Mapping[str, str]) -> Mapping[str, str]:
    """Returns the annotations with as many devices as the pod requests; its bind will choose which."""
    count = fraction_wanted(annotations)
    if not count or GPU_DEVICES in annotations:
        return annotations
    return {**annotations, GPU_DEVICES: ",".join(map(str, range(count)))}

"""What one simulated process has observed, kept beside it: the measure of what it can know.

A binding is judged by what the world is, and excused only by what its sender cannot have known. That is measured by
pods as its watches showed them when it decided, and by nodes when it sent. Nothing is read from the program's own
caches.
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
from multisched.verify.quotas import QuotaJudge
from tests.kit.checkers.card_rules import listed
from tests.kit.checkers.device_rules import fraction_wanted
from tests.kit.checkers.linked_quotas import LinkedQuotaJudge
from tests.kit.checkers.quota_messages import Bound
from tests.kit.checkers.reference_rules import PodOnNode, matches_node_affinity
from tests.kit.world.labels import GPU_DEVICES
from tests.kit.world.store_view import Reader

CORDON = Taint("node.kubernetes.io/unschedulable", effect=NO_SCHEDULE)
"""What a cordon counts as; who tolerates it goes there all the same."""


class DomainNodeFilter:
    """Which nodes a configuration lets its domains use: asked for each pod and node, and answered once for each node."""

    def __init__(self, configuration: Configuration) -> None:
        self._router = NodeRouter(configuration)
        self._tests: dict[str, Callable[[Node], bool]] = {}

    def usable_by(self, domain: str) -> Callable[[Node], bool]:
        """See `NodeRouter.usable_by`."""
        if domain not in self._tests:
            # A node that changed is another object, and as many as were observed are kept.
            self._tests[domain] = cache(self._router.usable_by(domain))
        return self._tests[domain]


@dataclass(frozen=True, slots=True)
class DecisionBasis:
    """What a binding was decided and sent on."""

    sender: str
    node: Node | None
    """As it was observed when the binding was sent; None: not at all."""
    size: Requests
    """Of the pod, as observed when the binding was sent."""
    pods: Mapping[str, Pod]
    """uid -> pod, as observed when the pod was assumed."""
    unknowable: frozenset[str]
    """uids of pods of which the sender had observed less than is so, when it sent."""
    tree: QuotaTree | None = None
    """Of quotas, as in force when the pod was assumed."""

    def predates(self, node: Node) -> bool:
        """The name was another node's when the binding was sent, as far as its sender had observed."""
        return self.node is not None and self.node.uid != node.uid


@dataclass(slots=True)
class DeliveredState:
    """One process: all that its watches have handed on, and what it holds itself."""

    reader: Reader
    is_usable: Callable[[str], Callable[[Node], bool]]
    """Domain -> the test of its nodes, by this process' own configuration."""
    tolerations: Mapping[str, tuple[Toleration, ...]]
    """Domain -> those its policy adds."""
    pods: dict[str, Pod] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    held: dict[str, str] = field(default_factory=dict)
    """uid -> node of each pod that it has assumed and not given up; until the watch shows it."""
    unknowable: set[str] = field(default_factory=set)
    """uids of pods of which a line was lost without a word, or that a restored backup has changed, and nothing came since."""
    changes: int = 0
    """Moves with whatever `pods_on_nodes` and `placed` go by."""
    _pods_on_nodes: list[PodOnNode] = field(default_factory=list)
    _on: dict[str, list[Pod]] = field(default_factory=dict)
    """Node -> the pods that stand there."""
    _indexed_at: int = -1
    """The changes by which both were counted."""
    _placed: list[Pod] = field(default_factory=list)
    _placed_at: int = -1
    """The changes by which it was listed."""
    quotas: QuotaJudge = field(default_factory=LinkedQuotaJudge)
    """The trees of quotas that were observed, and no pods."""
    quota_bounds: set[Bound] = field(default_factory=set)
    """Every max of every tree that has been in force: what is said of one may be said later."""
    gangs: GangJudge | None = None
    """Pods and groups as they were observed; None where there are no gangs."""
    said: dict[str, str] = field(default_factory=dict)
    """uid -> what it last had to tell the pod's owner."""
    _uids: dict[str, str] = field(default_factory=dict)
    _restored: dict[str, str] = field(default_factory=dict)
    """uid -> node of each pod of the last restored backup; the node is empty if the pod was not bound in it."""
    _finished: dict[str, Json] = field(default_factory=dict)
    """NAMESPACE/NAME -> pod that has succeeded, as the watch of finished pods showed it: members of gangs count on."""
    _assumed: dict[str, tuple[dict[str, Pod], Node | None, QuotaTree | None]] = field(default_factory=dict)
    """uid -> the pods, the node it was assumed on, and the tree of quotas, as observed at that moment."""

    # -- as the watches hand on ------------------------------------------------------------------------------------

    def pod_delivered(self, key: str, raw: msgspec.Raw) -> str:
        """The node on which the pod takes less than before; empty for none."""
        try:
            pod = self.reader.pod(raw)
        except (DecodeError, UnicodeDecodeError, msgspec.DecodeError):
            return ""
        before = self.pods.get(pod.uid)
        self.changes += 1
        if self.gangs is not None:
            with suppress(orjson.JSONDecodeError):  # as with text that is no text, which no gang of a run has
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
        """The server has shown the pod when it was asked, and no watch has."""
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
        self.said.pop(uid, None)

    def _left(self, uid: str) -> None:
        """The pod is gone or has ended, as it was told.

        A line may have been sent before a backup was restored. Then the server has the pod again, and the process cannot know that.
        """
        self.pods.pop(uid, None)
        if uid in self._restored:
            self.unknowable.add(uid)
        else:
            self.unknowable.discard(uid)

    def finished_delivered(self, key: str, raw: msgspec.Raw) -> None:
        """The watch of finished pods shows a pod that has succeeded; that of running pods may not have dropped it yet."""
        if self.gangs is not None:
            with suppress(orjson.JSONDecodeError):
                self._finished[key] = orjson.loads(bytes(raw))
                self.gangs.add("Pod", self._finished[key])

    def finished_gone(self, key: str) -> None:
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
        """Pods that it knows on nodes that it knows, its own on their way among them."""
        self._index_pods()
        return self._pods_on_nodes

    def placed(self) -> Sequence[Pod]:
        """Pods that it knows on nodes, whether it knows these or not, and its own on their way, each with its node."""
        if self._placed_at != self.changes:
            self._placed_at = self.changes
            self._placed = [
                pod if pod.node else replace(pod, node=self.held[uid], annotations=_as_bound(pod.annotations))
                for uid, pod in self.pods.items()
                if pod.node or uid in self.held
            ]
        return self._placed

    def pods_on(self, node: str) -> Sequence[Pod]:
        """Those of one node."""
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
        """Of a binding that is sent at this moment."""
        known = self.pods.get(pod.uid, pod)
        there, _, tree = self._assumed.get(pod.uid, (self.pods, None, self.quotas.tree))
        return DecisionBasis(sender, self.nodes.get(node), known.requests, there, frozenset(self.unknowable), tree)

    def assumed_node(self, uid: str) -> Node | None:
        """The node on which the pod was assumed, as observed at that moment."""
        return self._assumed[uid][1] if uid in self._assumed else None

    def on_restored(self, there: Mapping[str, Pod]) -> None:
        """A backup was restored: what it has changed, nobody has observed.

        A pod that came back unbound may be bound in a moment, by what was sent before it was deleted. Lines that were
        sent before may still come.
        """
        self._restored = {uid: pod.node for uid, pod in there.items()}
        self.unknowable.update(
            uid for uid, pod in there.items() if uid not in self.pods or self.pods[uid].node != pod.node
        )

    def fault_of_bind(self, pod: Pod, domain: str, name: str) -> str:
        """What its process had observed of the node that forbids to send the binding; empty for nothing."""
        node = self.nodes.get(name)
        if node is None:
            return "which is gone, as it was delivered"
        decided_for = self.assumed_node(pod.uid)
        if decided_for is not None and decided_for.uid != node.uid:
            return "which is another node than the one that it was decided for"
        # It had room when the pod was assumed: it has shrunk since, or somebody else's pods came, or those there grew.
        return self.fault_of_node(pod, domain, node) or self.excess(node, self.pods.get(pod.uid, pod))

    def excess(self, node: Node, pod: Pod | None = None) -> str:
        """What the node holds beyond its capacity, as observed, with this pod added; empty for nothing.

        With a pod, of what that pod asks for alone: devices that have gone are the business of who wants devices.
        """
        here = {one.uid: one for one in self.pods_on(node.name)}
        sums = Counter({PODS: 0})
        for one in (here | {pod.uid: pod} if pod is not None else here).values():
            sums.update({**listed(one.requests), PODS: 1})
        asked = {**listed(pod.requests), PODS: 1} if pod is not None else sums
        for resource in asked:
            amount = sums[resource]
            if amount > node.allocatable.get(resource, 0):
                return f"which then holds {amount} of {node.allocatable.get(resource, 0)} {resource}"
        return ""

    def fault_of_node(self, pod: Pod, domain: str, node: Node) -> str:
        """What of the node alone forbids the pod to go there; empty for nothing."""
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
        """Members of its gang are elsewhere, and it requires one topology domain; empty if nothing forbids the node."""
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
    """With as many devices as the pod asks for: which ones it gets, its bind will say."""
    count = fraction_wanted(annotations)
    if not count or GPU_DEVICES in annotations:
        return annotations
    return {**annotations, GPU_DEVICES: ",".join(map(str, range(count)))}

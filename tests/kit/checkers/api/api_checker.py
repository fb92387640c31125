"""Checks every binding when it takes effect, against the API server's own store.

No part of the program under test is used. Each rule names its invariant of ARCHITECTURE.md; each violation is a sentence in
`broken`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from multisched.cluster.api.server import ApiServer
from multisched.model.objects import PODS, Node, Pod, Requests
from multisched.model.wire import Response
from tests.kit.checkers.card_rules import node_resources
from tests.kit.checkers.delivered_state import DecisionBasis
from tests.kit.checkers.elastic_nodes import limits_of
from tests.kit.checkers.reference_rules import keep_apart, matches_node_affinity, ports_conflict
from tests.kit.world.labels import GPU, GPU_DEVICES, GPU_INDICES, GPU_MILLI, HONOURED
from tests.kit.world.storage import Storage
from tests.kit.world.store_view import StoreView

_BINDING = re.compile(r"/namespaces/([^/]+)/pods/([^/]+)/binding(?:\?timeout=(\d+)ms)?")
_POD = re.compile(r"/namespaces/([^/]+)/pods/([^/?]+)")
BROKEN_MAX = 20


class ApiChecker:
    """Checks each binding when it takes effect."""

    def __init__(self, server: ApiServer, broken: list[str]) -> None:
        self._server = server
        self._broken = broken
        self.objects = StoreView(server)
        self._devices: dict[str, tuple[str, tuple[str, ...], int]] = {}
        """uid -> node, devices and milli of each device, as written by the binding. A later edit of the annotations does not change
        it.
        """
        self.bound: dict[str, str] = {}
        """uid -> node of every successful binding."""
        self.faked: set[tuple[str, str]] = set()
        """(uid, node) of bindings that were reported as successful and never stored, or that a restored backup has removed. No
        process can detect that at once.
        """
        self.history: list[tuple[str, str]] = []
        self.was_restored = False
        """A backup was restored."""
        self.storage: Storage | None = None
        """Checks bindings of pods with claims; None if the test has no volumes."""

    def on_bind_applied(self, path: str, body: bytes, answer: Response) -> None:
        """Checks I1, I2 and I7 after a successful binding."""
        if answer.status != 201:
            return
        key, _ = target_of(path)
        pods = self.pods()
        pod = pods.get(key)
        if pod is None:
            self.report_violation(f"I7: {key} was bound but does not exist")
            return
        wanted, node = decision_of(body)
        self.history.append((key, node))
        if pod.uid in self.bound:
            self.report_violation(f"I2: {key} was bound to {self.bound[pod.uid]} and again to {node}")
        self.bound[pod.uid] = node
        if pod.gates or pod.is_deleting:
            self.report_violation(f"I7: {key} was bound while gated or being deleted")
        if wanted != pod.uid:
            self.report_violation(f"I7: {key} was bound by a decision about uid {wanted!r}")
        self._judge_node(pod, node, pods)

    def _judge_node(self, pod: Pod, node: str, pods: Mapping[str, Pod]) -> None:
        basis = self.basis_of(pod.uid, node)
        others = [one for one in pods.values() if one.node == node and one.uid != pod.uid and not one.is_terminal]
        counted = [one for one in others if not self.is_excused(one, basis)]
        self._note_devices(pod, node)
        self._check_node(pod, node, counted, basis)
        self._check_selector(pod, node, basis)
        self._check_ports(pod, node, counted)
        self._check_volumes(pod, node)
        self._check_neighbours(pod, node, counted)

    def basis_of(self, uid: str, node: str) -> DecisionBasis | None:
        """Returns the state on which the binding was decided; None if its sender knew everything."""
        return None

    def is_later(self, one: str, than: str) -> bool:
        """Reports whether the pod `one` was decided on after the pod `than`."""
        return False

    def on_bind_faked(self, body: bytes) -> None:
        self.faked.add(decision_of(body))

    def is_excused(self, pod: Pod, basis: DecisionBasis | None) -> bool:
        """Reports whether the sender of a binding cannot know that this pod is on the node."""
        return False

    def _check_node(self, pod: Pod, name: str, others: list[Pod], basis: DecisionBasis | None) -> None:
        """Checks I1 for resources. A smaller node, and a pod that was resized up, count from the time at which the sender observed
        the change.

        A bind that takes effect late is compared with the same capacity as the binds decided after it: the node may have been
        larger at that time, or may have seemed to hold less.
        """
        node = self.nodes().get(name)
        if node is None:
            return  # it was just deleted, so it cannot be overcommitted
        if basis is not None and basis.predates(node):
            return
        room = dict(limits_of(node))
        later = [self.basis_of(one.uid, name) for one in others if self.is_later(one.uid, pod.uid)]
        others = [one for one in others if not any(self.is_excused(one, than) for than in later)]
        for decided_on in (basis, *later):
            if decided_on is not None and decided_on.node is not None and decided_on.node.uid == node.uid:
                room = {
                    r: max(room.get(r, 0), amount) for r, amount in (room | dict(limits_of(decided_on.node))).items()
                }
        sizes = [pod.requests if basis is None else smaller(pod.requests, basis.size)]
        sizes += [self._size(other, basis) for other in others]
        sums: dict[str, int] = {}
        for size in sizes:
            for resource, amount in {**size, PODS: 1}.items():
                sums[resource] = sums.get(resource, 0) + amount
        for resource in {**node_resources(pod.requests), PODS: 1}:
            amount = sums[resource]
            if amount > room.get(resource, 0):
                self.report_violation(f"I1: {name} holds {amount} of {room.get(resource, 0)} {resource} with {pod.key}")
        self._check_devices(node, room.get(GPU, 0), [pod, *others])

    def _size(self, other: Pod, basis: DecisionBasis | None) -> Requests:
        """Returns the pod's requests as the sender observed them when it decided. If it had not observed the pod by then, as they
        were when the pod's own bind was sent.
        """
        if basis is None:
            return other.requests
        delivered = basis.pods.get(other.uid)
        if delivered is not None:
            return smaller(other.requests, delivered.requests)
        later = self.basis_of(other.uid, other.node)
        return other.requests if later is None else smaller(other.requests, later.size)

    def _check_neighbours(self, pod: Pod, name: str, others: list[Pod]) -> None:
        """Checks I1 for required anti-affinity between pods on one node."""
        for other in others:
            if keep_apart(pod, other):
                self.report_violation(
                    f"I1: {pod.key} was bound to {name} beside {other.key}, which an anti-affinity forbids"
                )

    def _check_selector(self, pod: Pod, name: str, basis: DecisionBasis | None) -> None:
        """Checks I1 for node selector and node affinity, by the node labels that the sender had observed."""
        node = self.nodes().get(name) if basis is None or basis.node is None else basis.node
        if node is not None and not matches_node_affinity(pod, node):
            self.report_violation(f"I1: {pod.key} was bound to {name}, which its node selector forbids")

    def _check_ports(self, pod: Pod, name: str, others: list[Pod]) -> None:
        """Checks I1 for host ports."""
        for other in others if pod.spec.host_ports else ():
            if ports_conflict(pod, other):
                self.report_violation(f"I1: {pod.key} was bound to {name}, where {other.key} has its port")

    def _check_volumes(self, pod: Pod, name: str) -> None:
        """Checks I1 for volumes: all claims of a pod are bound, to volumes that the node reaches."""
        node = self.nodes().get(name)
        if self.storage is None or node is None or self.was_restored:
            return  # processes do not observe at once which claims a restored backup has unbound
        fault = self.storage.fault_of_bind(pod, node)
        if fault:
            self.report_violation(f"I1: {fault}")

    def _note_devices(self, pod: Pod, node: str) -> None:
        """Records the devices of a binding, from the annotations that the node's device plugin reads."""
        known = self.nodes().get(node)
        is_named = known is not None and known.labels.get(GPU_INDICES) == HONOURED
        milli = "1000" if pod.requests.get(GPU) and is_named else pod.annotations.get(GPU_MILLI)
        if milli is not None:
            self._devices[pod.uid] = node, tuple(pod.annotations.get(GPU_DEVICES, "").split(",")), int(milli)

    def _check_devices(self, node: Node, count: int, pods: list[Pod]) -> None:
        """Checks I1 for each device that the first pod got from its binding.

        Devices that only the other pods share were checked at their own bindings, and may have been excused, for instance after a
        restored backup.
        """
        used: dict[int, int] = {}
        shared = [pod for pod in pods if self._devices.get(pod.uid, ("",))[0] == node.name]
        for pod in shared:
            _, devices, milli = self._devices[pod.uid]
            for text in devices:
                if pod is pods[0] and (not text.isdigit() or int(text) >= count):
                    self.report_violation(f"I1: {pod.key} is to use device {text!r} of {node.name}")
                elif text.isdigit():
                    used[int(text)] = used.get(int(text), 0) + milli
        own = self._devices.get(pods[0].uid, ("", ()))[1]
        for device, milli in used.items():
            if milli > 1000 and str(device) in own:
                self.report_violation(f"I1: device {device} of {node.name} is given out for {milli} milli")
        is_mixed = shared and any(pod.requests.get(GPU) for pod in pods)
        if is_mixed and node.labels.get(GPU_INDICES) != HONOURED:
            self.report_violation(f"I1: whole and shared GPUs meet on {node.name}")

    # -- reading ---------------------------------------------------------------------------------------------------

    def report_violation(self, sentence: str) -> None:
        if len(self._broken) < BROKEN_MAX:
            self._broken.append(sentence)

    def pods(self) -> Mapping[str, Pod]:
        """namespace/name -> pod, as the store has it now."""
        return self.objects.pods()

    def nodes(self) -> Mapping[str, Node]:
        return self.objects.nodes()

    def events(self) -> list[dict[str, Any]]:
        """All Events, as the store has them now."""
        return [stored.document() for stored in dict(self._server.store.collection("events").items()).values()]

    def check_events(self) -> None:
        """Events are true: every Scheduled event names the node its pod was bound to (I2)."""
        for event in self.events():
            if event.get("reason") != "Scheduled":
                continue
            uid = (event.get("regarding") or event.get("involvedObject") or {}).get("uid", "")
            node = str(event.get("note") or event.get("message")).rsplit(" ", 1)[-1]
            if self.bound.get(uid) != node and (uid, node) not in self.faked:
                self.report_violation(f"I2: an Event says that {uid} went to {node}; it is on {self.bound.get(uid)}")


def smaller(size: Requests, other: Requests) -> Requests:
    """Of each resource the lesser amount."""
    return {resource: min(amount, other.get(resource, 0)) for resource, amount in size.items()}


def target_of(path: str) -> tuple[str, float]:
    """(namespace/name, server-side deadline in seconds)."""
    match = _BINDING.search(path)
    if match is None:
        raise AssertionError(path)
    return f"{match[1]}/{match[2]}", int(match[3] or 0) / 1000


def pod_of(path: str) -> str:
    """namespace/name"""
    match = _POD.search(path)
    if match is None:
        raise AssertionError(path)
    return f"{match[1]}/{match[2]}"


def decision_of(body: bytes) -> tuple[str, str]:
    """(uid, node)"""
    binding = orjson.loads(body)
    return str(binding["metadata"].get("uid", "")), str(binding["target"]["name"])

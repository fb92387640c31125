"""The PodDisruptionBudgets of a simulated cluster, and what they say of a preemption, told plainly.

Budgets stand over the apps of the mixture, and their statuses are kept as a disruption controller does. A preemption is
judged as it is decided, by what its own process believes at that moment, and by what holds in whatever order pods of
equal importance are counted: a budget is broken for certain where more of its pods are to go than it allows, and need not
have been for certain where the pod would fit with every pod left standing that some budget might hold back. Nothing of
the preemption plugin takes part.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

from multisched.cluster.api.server import ApiServer
from multisched.model.cluster_objects import ClusterObject, PodDisruptionBudget
from multisched.model.decode_objects import decode_disruption_budget
from multisched.model.objects import PODS, Node, Pod
from multisched.model.wire import JSON, MERGE_PATCH, Response
from multisched.testing.rules.inter_pod import Standing, allows, is_tolerated

MAY_BE_AWAY = {"app-0": 0, "app-1": 1, "app-2": 3}
"""App -> how many of its pods may be missing at a time; the other apps have no budget."""
PROTECTED, FREE = ("app-0", "app-1"), ("app-3", "app-4")

KEPT_EVERY_S = 0.5
BUDGETS_PATH = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"

Send = Callable[[str, str, Mapping[str, Any], str], Awaitable[Response]]
"""(method, path, document, content type): asked again while the server is away."""


class Budgets:
    """The budgets of one run."""

    def __init__(self, server: ApiServer, send: Send, pods: Callable[[], Collection[Pod]]) -> None:
        self._store = server.store
        self._send = send
        self._pods = pods
        self._written: dict[str, tuple[int, int]] = {}

    async def build(self) -> None:
        for app, most in MAY_BE_AWAY.items():
            spec = {"selector": {"matchLabels": {"app": app}}, "maxUnavailable": most}
            answer = await self._send("POST", BUDGETS_PATH, {"metadata": {"name": app}, "spec": spec}, JSON)
            if answer.status not in (201, 409):
                raise AssertionError(answer.body)

    async def keep(self) -> None:
        """The statuses, until cancelled: pods that are asked to go count as missing until they are gone."""
        while True:
            placed = [pod for pod in self._pods() if pod.node and not pod.is_terminal]
            expected = Counter(pod.labels.get("app", "") for pod in placed)
            going = Counter(pod.labels.get("app", "") for pod in placed if pod.is_deleting)
            for app in MAY_BE_AWAY:
                await self._write(app, expected[app], going[app])
            await asyncio.sleep(KEPT_EVERY_S)

    async def _write(self, app: str, expected: int, going: int) -> None:
        if self._written.get(app) == (expected, going):
            return
        most = MAY_BE_AWAY[app]
        status = {
            "expectedPods": expected,
            "currentHealthy": expected - going,
            "desiredHealthy": max(0, expected - most),
            "disruptionsAllowed": min(max(0, most - going), expected),
        }
        answer = await self._send("PATCH", f"{BUDGETS_PATH}/{app}/status", {"status": status}, MERGE_PATCH)
        if answer.status == 200:
            self._written[app] = expected, going

    def differences(self, known: Collection[ClusterObject]) -> list[str]:
        """Where what a process knows of the budgets differs from the server's store (I4)."""
        stored = [
            decode_disruption_budget(one.raw)
            for _, one in self._store.collection("poddisruptionbudgets.policy").items()
        ]
        # A restored backup may bring another one back (`Disks.break_objects`).
        there = {b.name: b.version for b in stored if b.name in MAY_BE_AWAY}
        here = {b.name: b.version for b in known if b.name in MAY_BE_AWAY}
        return [] if there == here else [f"I4: budgets are known at {here}, the API has them at {there}"]


def broken_for_certain(budgets: Collection[PodDisruptionBudget], victims: Collection[Pod]) -> str:
    """The name of a budget that allows fewer of its pods to go than these victims are; empty for none."""
    for budget in budgets:
        if sum(_holds(budget, victim) for victim in victims) > budget.disruptions_allowed:
            return budget.name
    return ""


def spared_for_certain(budgets: Collection[PodDisruptionBudget], lower: Collection[Pod]) -> list[Pod]:
    """Of the less important pods of one node: all that stay if no budget is to be broken, in whatever order they are counted."""
    tight = [b for b in budgets if sum(_holds(b, pod) for pod in lower) > b.disruptions_allowed]
    return [pod for pod in lower if any(_holds(budget, pod) for budget in tight)]


def is_plain(pod: Pod) -> bool:
    """What keeps it off a node is room, the labels and taints of nodes, and other pods' rules: pods more do not help it."""
    return is_bare(pod) and not (pod.annotations or pod.requests.get("nvidia.com/gpu"))


def is_bare(pod: Pod) -> bool:
    """As a plain one, but for devices."""
    return not (pod.spec.pod_affinity or pod.spec.spread or pod.spec.volumes or pod.spec.host_ports)


def would_do(
    pod: Pod,
    node: Node,
    budgets: Collection[PodDisruptionBudget],
    nodes: Collection[Node],
    standing: Collection[Standing],
    is_usable: Callable[[Node], bool],
) -> bool:
    """A plain pod would fit on the node if the less urgent pods went there that no budget might hold back.

    `standing`: pods that are on nodes and those that nodes are promised to before this one, each with its node.
    """
    if node.is_unschedulable or not is_usable(node) or not is_tolerated(pod, node):
        return False
    if not all(r.matches_value(node.labels.get(r.key)) for r in pod.spec.affinity.node_selector):
        return False
    lower = [one for one, there in standing if there.name == node.name and one.spec.priority < pod.spec.priority]
    spared = {one.uid for one in spared_for_certain(budgets, lower)}
    going = {one.uid for one in lower} - spared
    left = [(one, there) for one, there in standing if one.uid not in going]
    used: Counter[str] = Counter()
    for one in [pod, *(one for one, there in left if there.name == node.name)]:
        used.update({**one.requests, PODS: 1})
    has_room = all(amount <= node.allocatable.get(resource, 0) for resource, amount in used.items())
    return bool(going) and has_room and allows(pod, node, nodes, left, is_usable)


def fault_of_victims(
    pod: Pod,
    node: Node,
    victims: Collection[Pod],
    nodes: Collection[Node],
    standing: Collection[Standing],
    is_usable: Callable[[Node], bool],
    budgets: Collection[PodDisruptionBudget] = (),
) -> str:
    """What is wrong with taking these pods from the node for a plain pod; empty for nothing. `standing` as for `would_do`."""
    going = {victim.uid for victim in victims}

    def fits_without(uids: Collection[str]) -> bool:
        left = [(one, there) for one, there in standing if one.uid not in uids]
        used: Counter[str] = Counter()
        for one in [pod, *(one for one, there in left if there.name == node.name)]:
            used.update({**one.requests, PODS: 1})
        has_room = all(used[r] <= node.allocatable.get(r, 0) for r in {**pod.requests, PODS: 1})
        return has_room and allows(pod, node, nodes, left, is_usable)

    if not fits_without(going):
        return f"it does not fit when {sorted(victim.key for victim in victims)} are gone"
    spared = next((victim for victim in victims if fits_without(going - {victim.uid})), None)
    if spared is not None:
        return f"{spared.key} might as well stay"
    left = [one for one, there in standing if there.name == node.name and one.uid not in going]
    free, staying = ([one for one in some if not any(_holds(b, one) for b in budgets)] for some in (victims, left))
    return next((fault for victim in free for one in staying if (fault := _fault_of_choice(pod, victim, one))), "")


def _fault_of_choice(pod: Pod, victim: Pod, staying: Pod) -> str:
    """Of two pods that might go, the more important goes only where the other is smaller, or where its own rules keep the pod off."""
    is_choice = staying.spec.priority < pod.spec.priority and victim.spec.pod_affinity is None
    is_as_large = all(staying.requests.get(resource, 0) >= amount for resource, amount in victim.requests.items())
    if is_choice and is_as_large and _importance(victim) > _importance(staying):
        return f"{victim.key} goes, and {staying.key}, which is less important, stays"
    return ""


def _importance(pod: Pod) -> tuple[int, float]:
    """The earlier it has started the more important; as upstream, one that has not comes last."""
    return pod.spec.priority, -(pod.started_s or math.inf)


def _holds(budget: PodDisruptionBudget, pod: Pod) -> bool:
    is_selected = budget.selector is not None and budget.selector.matches(pod.labels)
    return is_selected and budget.namespace == pod.namespace and pod.name not in budget.disrupted_pods

"""Dedicated nodes of a scenario, which no other pod tolerates, and pods that are refused there until one event occurs.

Each pod is requeued by its own event; the event of one pod helps no other one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from multisched.model.objects import Node, Pod
from multisched.model.version import Version
from multisched.queueing.transitions import QueueState
from multisched.shell.program import Program
from tests.kit.disruptions.run_context import RunContext
from tests.kit.processes.process import Process
from tests.kit.scenarios.steps import DOMAIN, are_bound, create_pod, leaders, leading_queues, pods_named
from tests.kit.world.labels import HOSTNAME

LED_S: Final = 40.0
"""Time until a process leads after all others were killed: their lease expires first."""
NODE_PREFIX: Final = "room-"
"""Prefix of the names of dedicated nodes."""
GROUP_LABEL: Final = "sim/bed"
"""The label of dedicated nodes that their pods select."""
DEDICATED_TAINT: Final = {"key": "sim/kept", "effect": "NoSchedule"}
TOLERATED: Final = {"key": "sim/kept", "operator": "Exists"}
BACKED_OFF_S: Final = 1.2, 1.8
"""Time after the first refusal until the backoff is over and the condition is written."""
OBSERVED_S: Final = 5.0
"""Time in which an event is delivered; most watches deliver it at once, a broken one is opened again first."""
SETTLED_S: Final = 0.3, 0.5
"""Time for an event to take effect."""
DECIDED_S: Final = 4.0
"""Time until all requeued pods are bound: some attempts are rejected at Permit first."""


def is_observed_at_once(program: Program) -> bool:
    """Returns True: events of pods and nodes are compared with the cache."""
    del program
    return True


class ParkedPod(NamedTuple):
    """A parked pod, a description of the event that helps it, the function that causes the event, and one that reports whether a
    program has observed it.
    """

    pod: str
    awaits: str
    event: Callable[[], Awaitable[object]]
    is_observed: Callable[[Program], bool] = is_observed_at_once


Case = Callable[["DedicatedNodes"], Awaitable[ParkedPod]]


class DedicatedNodes:
    """The dedicated nodes of one scenario."""

    def __init__(self, context: RunContext) -> None:
        self.context = context
        self._names: list[str] = []
        self._before = sum(name.startswith(NODE_PREFIX) for name in context.bind_checker.nodes())
        """Number of dedicated nodes of earlier scenarios."""
        self._uids: list[str] = []
        self.mark = context.mark()

    async def add_node(
        self, group: str, labels: Mapping[str, str] | None = None, *, cpu: str = "4", **spec: Any
    ) -> str:
        """Creates a node. Returns its name."""
        name = f"{NODE_PREFIX}{self._before + len(self._names) + 1}"
        self._names.append(name)
        amounts = {"cpu": cpu, "memory": "8Gi", "pods": "20"}
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {HOSTNAME: name, GROUP_LABEL: group, **(labels or {})}},
            "spec": {"taints": [DEDICATED_TAINT], **spec},
            "status": {"capacity": amounts, "allocatable": amounts},
        }
        await self.context.world.user.send("POST", "/api/v1/nodes", node)
        return name

    async def add_pod(
        self,
        group: str,
        spec: Mapping[str, Any] | None = None,
        *,
        milli: int = 10,
        labels: Mapping[str, str] | None = None,
        is_urgent: bool = False,
    ) -> str:
        """Creates a pod for the nodes of the group, or for any node if empty. Waits until all processes have observed nodes and
        placed pods. Returns its name.
        """
        await self.context.until(self._are_known, OBSERVED_S)
        selector = {"nodeSelector": {GROUP_LABEL: group}} if group else {}
        whole = {"tolerations": [TOLERATED], **selector, **(spec or {})}
        return await create_pod(self.context, "", milli, spec=whole, is_urgent=is_urgent, labels=dict(labels or {}))

    async def add_placed_pod(self, node: str, *, milli: int = 10, **more: Any) -> str:
        """Places a pod of another scheduler on the node. Returns its uid."""
        uid = await self.context.world.external_actors.place(node, annotations={}, cpu=f"{milli}m", **more)
        self._uids.append(uid)
        return uid

    def _are_known(self) -> bool:
        delivered = [process.checker.delivered for process in self.context.replicas.running]
        return all(one.nodes.keys() >= set(self._names) and one.pods.keys() >= set(self._uids) for one in delivered)

    async def patch(self, node: str, **fields: Any) -> None:
        await self.context.world.nodes.patch(node, fields)

    async def patch_pod(self, name: str, **fields: Any) -> None:
        """Patches the pod with this name."""
        for pod in pods_named(self.context, [name]):
            await self.context.world.patch_pod(pod, fields)

    async def relabel(self, uid: str, labels: Mapping[str, str | None]) -> None:
        for pod in self.context.world.pods():
            if pod.uid == uid:
                await self.context.world.patch_pod(pod, {"metadata": {"labels": dict(labels)}})

    async def delete_pod(self, uid: str) -> None:
        await self.context.world.delete_uid(uid)


async def requeue_each(context: RunContext, cases: Sequence[Case]) -> bool:
    """Causes one event after the other, in this order; each must requeue its pod."""
    dedicated = DedicatedNodes(context)
    waiting_pods = [await case(dedicated) for case in cases]
    await wait_until_parked(context, waiting_pods)
    for waiting_pod in waiting_pods:
        await check_requeue(context, waiting_pod.event, [waiting_pod])
    await _decided(context, waiting_pods)
    return True


async def requeue_all(
    context: RunContext, waiting_pods: Sequence[ParkedPod], event: Callable[[], Awaitable[object]]
) -> bool:
    """Causes one event, which must requeue all pods."""
    await wait_until_parked(context, waiting_pods)
    await check_requeue(context, event, waiting_pods)
    await _decided(context, waiting_pods)
    return True


async def wait_until_parked(context: RunContext, waiting_pods: Sequence[ParkedPod]) -> None:
    await context.until(lambda: all(is_parked(context, one.pod) for one in waiting_pods))
    await context.pause(*BACKED_OFF_S)


async def check_requeue(
    context: RunContext, event: Callable[[], Awaitable[object]], waiting_pods: Sequence[ParkedPod]
) -> None:
    before = leader(context)
    waiting = [one for one in waiting_pods if is_parked(context, one.pod)]
    await event()
    await context.until(lambda: not any(is_parked(context, one.pod) for one in waiting), OBSERVED_S)
    await check_requeued(context, waiting, before)


async def _decided(context: RunContext, waiting_pods: Sequence[ParkedPod]) -> None:
    names = [one.pod for one in waiting_pods]
    await context.until(lambda: are_bound(context, names), DECIDED_S)


def is_parked(context: RunContext, name: str, domain: str = DOMAIN) -> bool:
    """Reports whether the leader waits for an event before it tries the pod again."""
    places = (QueueState.UNSCHEDULABLE, QueueState.GATED)
    return any(
        entry.pod.name == name and entry.state in places
        for queue in leading_queues(context, domain)
        for entry in queue.entries()
    )


def leader(context: RunContext, domain: str = DOMAIN) -> Process | None:
    """Returns the process that leads the domain; None for none, or for two."""
    found = leaders(context, domain)
    return found[0][0] if len(found) == 1 else None


async def until_led(context: RunContext, *domains: str) -> None:
    """Waits until one process leads each of these domains, for LED_S at most."""
    await context.until(lambda: all(leader(context, domain) is not None for domain in domains), LED_S)


async def check_requeued(context: RunContext, waiting: Sequence[ParkedPod], before: Process | None) -> None:
    """Reports pods that the event did not requeue. `before`: the process that led at the event.

    Nothing is checked with drawn plugins, which may refuse any pod, or after a restored backup: new nodes may be withheld, and
    claims may be delivered after pods. Nodes that another leader may use are withheld too.
    """
    late = [one for one in waiting if is_parked(context, one.pod)]
    if (
        not late
        or before is None
        or context.setting.is_drawn
        or context.bind_checker.was_restored
        or before.program.handover.waiting()
        or not _has_observed(context, before)
    ):
        return
    await context.pause(*SETTLED_S)
    if leader(context) is not before or not _has_observed(context, before):
        return
    for one in late:
        if is_parked(context, one.pod) and one.is_observed(before.program):
            context.bind_checker.report_violation(f"I3: {one.pod} was not woken by {one.awaits}")


def _has_observed(context: RunContext, process: Process) -> bool:
    """Reports whether the process has observed the current versions of all dedicated nodes and of all pods that may use them."""
    delivered, bind_checker = process.checker.delivered, context.bind_checker
    pods = _versions(delivered.pods.values()) == _versions(bind_checker.pods().values())
    return (
        pods
        and _dedicated_nodes(delivered.nodes) == _dedicated_nodes(bind_checker.nodes())
        and not any(map(delivered.held.get, _versions(delivered.pods.values())))
    )


def _versions(pods: Iterable[Pod]) -> Mapping[str, Version]:
    return {
        pod.uid: pod.version
        for pod in pods
        if pod.node.startswith(NODE_PREFIX) or any(one.key == TOLERATED["key"] for one in pod.spec.tolerations)
    }


def _dedicated_nodes(nodes: Mapping[str, Node]) -> Mapping[str, Version]:
    return {name: node.version for name, node in nodes.items() if name.startswith(NODE_PREFIX)}

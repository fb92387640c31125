"""Scenarios of edits: a pod waits, and one change of an object or of the configuration file is all that helps it.

They are played in runs from EDITED_FROM on, in an order drawn from the seed, when all disruptions are over. Each has nodes of its
own, which no other pod tolerates, and pods of its own, which it deletes at its end.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from multisched.model.objects import CPU, Pod
from multisched.queueing.transitions import QueueState
from multisched.shell.domain import DomainWorker
from tests.kit.disruptions.run_context import RunContext
from tests.kit.processes.configuration_files import LATE_MAX_S
from tests.kit.processes.process import Process
from tests.kit.scenarios.steps import sees_objects
from tests.kit.settings.changed_files import ChangedFile
from tests.kit.settings.setting import EDITED_DOMAIN, EDITED_TAINT, edited_document, text_of
from tests.kit.world.gang_plans import ACK
from tests.kit.world.gang_workloads import FINALIZER, POOL, GangWorkloads
from tests.kit.world.labels import GPU_MILLI, HOSTNAME
from tests.kit.world.pod_manifests import small_spec
from tests.kit.world.quota_trees import Level

FORECAST, GPUS = EDITED_DOMAIN, "gpu"
URGENT, MOST_URGENT = "system-cluster-critical", "system-node-critical"
REFUSED_S: Final = 6.0
"""Until a new pod was tried and waits for an event."""
COMES_S: Final = 12.0
"""Until a pod is bound after the event that it waits for: the leader hears of the event, the backoff ends, and the bind takes its time."""
GANG_COMES_S: Final = 24.0
"""The same for a gang: if it held capacity when it failed, gangs that were refused meanwhile are tried first."""
STAYS_S: Final = 6.0
"""For so long a pod is watched that must not be bound, or must not be evicted."""
COUNTED_S: Final = 4.0
"""Until an edited tree is in force."""
LED_S: Final = 40.0
"""Until a process leads after all others were killed: their lease expires first."""
MANY: Final = 18
"""Members of a gang that is not tried anew for every event."""
NAMESPACES: Final = ("edits-a", "edits-b")
"""Those of the leaves of the tree that these scenarios write."""


class EditScenario:
    """One scenario: its pool of nodes, its pods, and what is judged."""

    def __init__(self, context: RunContext, gangs: GangWorkloads, rng: random.Random) -> None:
        self.context = context
        self.gangs = gangs
        self.rng = rng
        self.pool = gangs.pool()
        self._pods: list[tuple[str, str]] = []
        """Namespace and name of each pod of the scenario."""
        self._nodes: list[str] = []

    # -- objects ---------------------------------------------------------------------------------------------------

    async def node(self, cpu: int, *, domain: str = "", gpus: int = 0) -> str:
        """The name of a new node of the pool."""
        name = await self.gangs.node(self.pool, cpu, domain=domain)
        self._nodes.append(name)
        if gpus:
            await self.context.world.nodes.set_gpus(name, gpus)
        return name

    async def resize_node(self, node: str, cpu: int) -> None:
        amounts = {"cpu": str(cpu)}
        await self.context.world.nodes.patch(node, {"status": {"allocatable": amounts, "capacity": amounts}})

    async def pod(
        self,
        cpu: str,
        *,
        namespace: str = "default",
        domain: str = FORECAST,
        node: str = "",
        priority: str = "",
        gang: tuple[str, int] | None = None,
        annotations: Mapping[str, str] | None = None,
        claim: str = "",
        has_finalizer: bool = False,
    ) -> str:
        """The name of a new pod for the pool. `gang`: name and minimum."""
        name = f"{self.pool}-edit-{len(self._pods)}"
        spec = small_spec(f"{domain}-scheduler", cpu)
        spec["nodeSelector"] = {POOL: self.pool, **({HOSTNAME: node} if node else {})}
        spec["tolerations"] = [{"key": POOL, "operator": "Equal", "value": self.pool, "effect": "NoSchedule"}]
        if priority:
            spec["priorityClassName"] = priority
        if claim:
            spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]
        labels = {"gang": gang[0], f"{ACK}name": gang[0], f"{ACK}min-available": str(gang[1])} if gang else {}
        metadata = {
            "name": name,
            "namespace": namespace,
            "labels": labels,
            "annotations": dict(annotations or {}),
            "finalizers": [FINALIZER] if has_finalizer else [],
        }
        await self.context.world.user.create_pod(
            {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        )
        self._pods.append((namespace, name))
        return name

    async def delete(self, name: str) -> None:
        """As `kubectl delete` does, with the pod's grace period."""
        for namespace in {one for one, other in self._pods if other == name}:
            await self.context.world.user.send("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}")

    async def end(self, name: str) -> None:
        """Removes the pod's finalizer."""
        if (pod := self.found(name)) is not None:
            await self.gangs.end(pod)

    async def clear(self) -> None:
        """The scenario's pods are deleted, and nothing more comes to its nodes."""
        for node in self._nodes:
            await self.gangs.cordon(node)
        for namespace, name in self._pods:
            await self.end(name)
            await self.context.world.user.delete_named(name, namespace)

    # -- looking ---------------------------------------------------------------------------------------------------

    def found(self, name: str) -> Pod | None:
        return self.gangs.named(name)

    def is_bound(self, name: str) -> bool:
        pod = self.found(name)
        return pod is not None and bool(pod.node) and not pod.is_deleting

    def is_nominated(self, name: str) -> bool:
        pod = self.found(name)
        return pod is not None and bool(pod.nominated_node) and not pod.node

    def leaders(self, domain: str) -> list[tuple[Process, DomainWorker]]:
        """Processes that decide about the domain's pods, with their workers."""
        return [
            (process, worker)
            for process in self.context.replicas.running
            for worker in process.program.router.workers()
            if worker.name == domain and worker.is_leading
        ]

    def leader(self, domain: str = FORECAST) -> Process | None:
        found = self.leaders(domain)
        return found[0][0] if len(found) == 1 else None

    def is_parked(self, name: str, domain: str = FORECAST) -> bool:
        """The pod waits for an event."""
        states = (QueueState.UNSCHEDULABLE, QueueState.GATED)
        return any(
            entry.pod.name == name and entry.state in states
            for _, worker in self.leaders(domain)
            for entry in worker.queue.entries()
        )

    # -- judging ---------------------------------------------------------------------------------------------------

    async def parks(self, *names: str, domain: str = FORECAST) -> bool:
        """Waits until each pod, or the gang that it leads, waits for an event; whether one does."""
        await self.gangs.until(lambda: all(self.is_parked(name, domain) for name in names), REFUSED_S)
        return all(self.is_parked(name, domain) for name in names)

    async def comes(self, why: str, *names: str, domain: str = FORECAST, within_s: float = COMES_S) -> bool:
        """All of the pods are bound in time, or a violation is reported. `why`: the event that they waited for."""
        before = self.leader(domain)
        is_over = await self.gangs.until(lambda: all(map(self.is_bound, names)), within_s)
        if not is_over:
            late = next(name for name in names if not self.is_bound(name))
            self._report(domain, before, f"I3: {late} is not bound {within_s:g} s after {why}")
        return is_over

    async def stays(self, what: str, holds: Callable[[], bool], *, invariant: str, domain: str = FORECAST) -> None:
        """It holds for a while, or a violation is reported."""
        before = self.leader(domain)
        if await self.gangs.until(lambda: not holds(), STAYS_S):
            self._report(domain, before, f"{invariant}: {what}")

    def _report(self, domain: str, before: Process | None, what: str) -> None:
        """Unless the leader changed, or does not hear of changes."""
        checker = self.context.bind_checker
        is_judged = before is not None and before is self.leader(domain) and not before.program.handover.waiting()
        if is_judged and sees_objects(self.context) and not checker.was_restored:
            checker.report_violation(what)

    # -- quotas -----------------------------------------------------------------------------------------------

    async def use_tree(self, *leaves: tuple[str, int]) -> None:
        """Leaves for NAMESPACES, in this order, each with its name and its max of CPU, are in force."""
        quotas = self.context.world.quotas
        assert quotas is not None
        for namespace in NAMESPACES:
            await self.context.world.user.send("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        children = [
            {"name": name, "min": {CPU: "0"}, "max": {CPU: str(most)}, "namespaces": [name]} for name, most in leaves
        ]
        root: Level = {"name": "root", "min": {CPU: "100"}, "max": {CPU: "100"}, "children": children}
        await quotas.put(root)
        await self.context.pause(COUNTED_S, COUNTED_S)


Scenario = Callable[[EditScenario], Awaitable[None]]


async def run_edit_scenarios(context: RunContext, struck: Counter[str]) -> None:
    """All scenarios, one after the other."""
    gangs = context.world.gang_workloads
    if gangs is None or not context.setting.is_edited:
        return
    context.faults.is_on = False
    rng = random.Random(f"{context.seed}/edits")
    for name in rng.sample(sorted(SCENARIOS), len(SCENARIOS)):
        scenario = EditScenario(context, gangs, rng)
        await SCENARIOS[name](scenario)
        await scenario.clear()
        struck[name] += 1


# -- pods and nodes ----------------------------------------------------------------------------------------------------


async def _annotation(scenario: EditScenario) -> None:
    """The amount of an annotation cannot be read, until its author corrects it."""
    await scenario.node(4, domain=GPUS, gpus=1)
    name = await scenario.pod("100m", domain=GPUS, annotations={GPU_MILLI: "half"})
    if await scenario.parks(name, domain=GPUS) and (pod := scenario.found(name)) is not None:
        await scenario.context.world.patch_pod(pod, {"metadata": {"annotations": {GPU_MILLI: "500"}}})
        await scenario.comes("its annotation was corrected", name, domain=GPUS)


async def _member(scenario: EditScenario) -> None:
    """One member of a gang is too large for its node; a further member comes, with which enough fit."""
    await scenario.node(2)
    gang = (f"{scenario.pool}-gang", 2)
    first = [await scenario.pod(cpu, gang=gang) for cpu in ("8", "1")]
    if await scenario.gangs.until(lambda: any(map(scenario.is_parked, first)), REFUSED_S):
        await scenario.context.pause(1.0, 2.0)
        further = await scenario.pod("1", gang=gang)
        await scenario.comes("a member came with which enough fit", first[1], further, within_s=GANG_COMES_S)


async def _node_grows(scenario: EditScenario) -> None:
    """A large gang has room for all members but one, until its node has more CPU."""
    node = await scenario.node(MANY - 1)
    gang = (f"{scenario.pool}-gang", MANY)
    members = [await scenario.pod("1", gang=gang) for _ in range(MANY)]
    if await scenario.gangs.until(lambda: any(map(scenario.is_parked, members)), REFUSED_S):
        await scenario.context.pause(1.0, 2.0)
        await scenario.resize_node(node, MANY)
        await scenario.comes("its node has room for all members", *members, within_s=GANG_COMES_S)


async def _member_deleted(scenario: EditScenario) -> None:
    """Two members of a gang, which are enough, wait for a third one, whose volume does not arrive; the third one is deleted."""
    await scenario.node(3)
    gang = (f"{scenario.pool}-gang", 2)
    claim = await scenario.gangs.claim()
    first = [await scenario.pod("1", gang=gang) for _ in range(2)]
    third = await scenario.pod("1", gang=gang, claim=claim)
    if await scenario.gangs.until(lambda: all(_is_assumed(scenario, name) for name in (*first, third)), REFUSED_S):
        await scenario.context.pause(0.5, 1.0)
        await scenario.context.world.user.delete_named(third)
        await scenario.comes("the member was deleted whose volume had not arrived", *first, within_s=GANG_COMES_S)


async def _lost_bind(scenario: EditScenario) -> None:
    """A pod is deleted while its bind is on its way; another one waits for what it had."""
    node = await scenario.node(1)
    scenario.context.faults.slow_nodes.add(node)
    first = await scenario.pod("1")
    second = await scenario.pod("1")
    is_under_way = await scenario.gangs.until(
        lambda: _is_assumed(scenario, first) and scenario.is_parked(second), REFUSED_S
    )
    await scenario.context.world.user.delete_named(first)
    scenario.context.faults.slow_nodes.discard(node)
    if is_under_way and scenario.found(first) is None:
        await scenario.comes("the pod before it was deleted during its bind", second, within_s=GANG_COMES_S)


def _is_assumed(scenario: EditScenario, name: str) -> bool:
    pod = scenario.found(name)
    return pod is not None and any(
        process.program.cache.is_assumed(pod.uid) for process, _ in scenario.leaders(FORECAST)
    )


# -- preemption --------------------------------------------------------------------------------------------------------


async def _leaving_member(scenario: EditScenario) -> None:
    """One of three members is terminating, two are the minimum: an urgent pod takes what the terminating one leaves."""
    await scenario.node(3)
    gang = (f"{scenario.pool}-gang", 2)
    members = [await scenario.pod("1", gang=gang, has_finalizer=True) for _ in range(3)]
    if not await scenario.gangs.until(lambda: all(map(scenario.is_bound, members)), COMES_S):
        return
    await scenario.delete(members[0])
    await scenario.context.pause(1.0, 2.0)
    urgent = await scenario.pod("1", priority=URGENT)
    others = members[1:]
    await scenario.stays(
        "a member is evicted beside one that leaves", lambda: all(map(scenario.is_bound, others)), invariant="I7"
    )
    await scenario.end(members[0])
    await scenario.comes("a terminating member has ended", urgent)


async def _mixed_gang(scenario: EditScenario) -> None:
    """A gang of a more and a less urgent member is no reason to evict what is more urgent than the lesser one."""
    await scenario.use_tree((NAMESPACES[0], 4), (NAMESPACES[1], 4))
    node, namespace = await scenario.node(8), NAMESPACES[0]
    standing = [await scenario.pod("2", namespace=namespace, priority=URGENT) for _ in range(2)]
    if not await scenario.gangs.until(lambda: all(map(scenario.is_bound, standing)), COMES_S):
        return
    gang = (f"{scenario.pool}-gang", 2)
    for priority in (MOST_URGENT, ""):
        await scenario.pod("2", namespace=namespace, priority=priority, gang=gang, node=node)
    await scenario.stays(
        "a gang evicts a pod that is more urgent than one of its members",
        lambda: all(map(scenario.is_bound, standing)),
        invariant="I14",
    )


# -- quotas ------------------------------------------------------------------------------------------------------------


async def _quota_goes(scenario: EditScenario) -> None:
    """The tree that refuses a pod is deleted."""
    quotas = scenario.context.world.quotas
    assert quotas is not None
    await scenario.use_tree((NAMESPACES[0], 1), (NAMESPACES[1], 1))
    await scenario.node(4)
    name = await scenario.pod("2", namespace=NAMESPACES[0])
    if await scenario.parks(name):
        await quotas.lift()
        await scenario.comes("its quota was deleted", name)


async def _quota_and_resize(scenario: EditScenario) -> None:
    """A pod takes what its quota has left by a resize; another pod then waits."""
    await scenario.use_tree((NAMESPACES[0], 2), (NAMESPACES[1], 2))
    await scenario.node(8)
    first = await scenario.pod("1", namespace=NAMESPACES[0])
    if (
        not await scenario.gangs.until(lambda: scenario.is_bound(first), COMES_S)
        or (pod := scenario.found(first)) is None
    ):
        return
    await scenario.context.world.kubelets.resize(pod, "2")
    await scenario.context.pause(2.0, 3.0)
    second = await scenario.pod("1", namespace=NAMESPACES[0])
    await scenario.stays(
        "a pod is bound although a resize has used its quota", lambda: not scenario.is_bound(second), invariant="I14"
    )


async def _quota_and_nomination(scenario: EditScenario) -> None:
    """A pod is nominated within one leaf while the leaves change places: the other leaf is not charged for it."""
    await scenario.use_tree((NAMESPACES[0], 2), (NAMESPACES[1], 2))
    await scenario.node(2)
    victim = await scenario.pod("2", has_finalizer=True)
    if not await scenario.gangs.until(lambda: scenario.is_bound(victim), COMES_S):
        return
    nominated = await scenario.pod("2", namespace=NAMESPACES[0], priority=URGENT)
    if not await scenario.gangs.until(lambda: scenario.is_nominated(nominated), COMES_S):
        return
    await scenario.use_tree((NAMESPACES[1], 2), (NAMESPACES[0], 2))
    node = await scenario.node(2)
    other = await scenario.pod("2", namespace=NAMESPACES[1], node=node)
    await scenario.comes("it was created, with its quota unused", other)


async def _quota_broken(scenario: EditScenario) -> None:
    """All processes are replaced while the tree has a mistake: the last good tree limits pods all the same."""
    quotas, replicas = scenario.context.world.quotas, scenario.context.replicas
    assert quotas is not None
    await scenario.use_tree((NAMESPACES[0], 1), (NAMESPACES[1], 1))
    await scenario.node(4)
    await quotas.spoil()
    await scenario.context.pause(COUNTED_S, COUNTED_S)
    for process in list(replicas.running):
        await replicas.kill(process)
        replicas.start()
    if await scenario.gangs.until(lambda: scenario.leader() is not None, LED_S):
        name = await scenario.pod("2", namespace=NAMESPACES[0])
        await scenario.stays("a pod exceeds the last good tree", lambda: not scenario.is_bound(name), invariant="I14")
    await scenario.use_tree((NAMESPACES[0], 1), (NAMESPACES[1], 1))


# -- the configuration file --------------------------------------------------------------------------------------------


async def _tolerations(scenario: EditScenario) -> None:
    """A domain gets tolerations for the taint that keeps its pod off."""
    node = await scenario.node(4)
    taints = [
        {"key": POOL, "value": scenario.pool, "effect": "NoSchedule"},
        {"key": EDITED_TAINT, "effect": "NoSchedule"},
    ]
    await scenario.context.world.nodes.patch(node, {"spec": {"taints": taints}})
    name = await scenario.pod("1")
    if await scenario.parks(name):
        document = edited_document(scenario.context.setting.document)
        scenario.context.replicas.change_file(ChangedFile(text_of(document), is_good=True))
        await scenario.comes("its domain tolerates the taint", name, within_s=LATE_MAX_S + COMES_S)


SCENARIOS: Final[Mapping[str, Scenario]] = {
    "annotation corrected": _annotation,
    "domain tolerates a taint": _tolerations,
    "member comes to a parked gang": _member,
    "member leaves a gang beside an urgent pod": _leaving_member,
    "gang of several priorities in a full quota": _mixed_gang,
    "node grows for a large gang": _node_grows,
    "pod deleted during its bind": _lost_bind,
    "member deleted that its gang waits for": _member_deleted,
    "processes replaced beside a broken quota": _quota_broken,
    "quota deleted": _quota_goes,
    "quota used up by a resize": _quota_and_resize,
    "quotas change places beside a nominated pod": _quota_and_nomination,
}

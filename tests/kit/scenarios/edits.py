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
from tests.kit.disruptions.scene import Scene
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


class Stage:
    """One scenario: its pool of nodes, its pods, and what is judged."""

    def __init__(self, scene: Scene, gangs: GangWorkloads, rng: random.Random) -> None:
        self.scene = scene
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
            await self.scene.world.nodes.set_gpus(name, gpus)
        return name

    async def resize_node(self, node: str, cpu: int) -> None:
        amounts = {"cpu": str(cpu)}
        await self.scene.world.nodes.patch(node, {"status": {"allocatable": amounts, "capacity": amounts}})

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
        await self.scene.world.user.create_pod({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        self._pods.append((namespace, name))
        return name

    async def delete(self, name: str) -> None:
        """As `kubectl delete` does, with the pod's grace period."""
        for namespace in {one for one, other in self._pods if other == name}:
            await self.scene.world.user.send("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}")

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
            await self.scene.world.user.delete_named(name, namespace)

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
            for process in self.scene.replicas.running
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
        """All of the pods are bound in time, or it is complained; `why`: the event that they waited for."""
        before = self.leader(domain)
        is_over = await self.gangs.until(lambda: all(map(self.is_bound, names)), within_s)
        if not is_over:
            late = next(name for name in names if not self.is_bound(name))
            self._complain(domain, before, f"I3: {late} is not bound {within_s:g} s after {why}")
        return is_over

    async def stays(self, what: str, holds: Callable[[], bool], *, invariant: str, domain: str = FORECAST) -> None:
        """It holds for a while, or it is complained."""
        before = self.leader(domain)
        if await self.gangs.until(lambda: not holds(), STAYS_S):
            self._complain(domain, before, f"{invariant}: {what}")

    def _complain(self, domain: str, before: Process | None, what: str) -> None:
        """Unless the leader changed, or does not hear of changes."""
        checker = self.scene.bind_checker
        is_judged = before is not None and before is self.leader(domain) and not before.program.handover.waiting()
        if is_judged and sees_objects(self.scene) and not checker.was_rewound:
            checker.complain(what)

    # -- quotas -----------------------------------------------------------------------------------------------

    async def use_tree(self, *leaves: tuple[str, int]) -> None:
        """Leaves for NAMESPACES, in this order, each with its name and its max of CPU, are in force."""
        quotas = self.scene.world.quotas
        assert quotas is not None
        for namespace in NAMESPACES:
            await self.scene.world.user.send("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        children = [
            {"name": name, "min": {CPU: "0"}, "max": {CPU: str(most)}, "namespaces": [name]} for name, most in leaves
        ]
        root: Level = {"name": "root", "min": {CPU: "100"}, "max": {CPU: "100"}, "children": children}
        await quotas.put(root)
        await self.scene.pause(COUNTED_S, COUNTED_S)


Edit = Callable[[Stage], Awaitable[None]]


async def play_edits(scene: Scene, struck: Counter[str]) -> None:
    """All scenarios, one after the other."""
    gangs = scene.world.gang_workloads
    if gangs is None or not scene.setting.is_edited:
        return
    scene.faults.is_on = False
    rng = random.Random(f"{scene.seed}/edits")
    for name in rng.sample(sorted(EDITS), len(EDITS)):
        stage = Stage(scene, gangs, rng)
        await EDITS[name](stage)
        await stage.clear()
        struck[name] += 1


# -- pods and nodes ----------------------------------------------------------------------------------------------------


async def _annotation(stage: Stage) -> None:
    """The amount of an annotation cannot be read, until its author corrects it."""
    await stage.node(4, domain=GPUS, gpus=1)
    name = await stage.pod("100m", domain=GPUS, annotations={GPU_MILLI: "half"})
    if await stage.parks(name, domain=GPUS) and (pod := stage.found(name)) is not None:
        await stage.scene.world.patch_pod(pod, {"metadata": {"annotations": {GPU_MILLI: "500"}}})
        await stage.comes("its annotation was corrected", name, domain=GPUS)


async def _member(stage: Stage) -> None:
    """One member of a gang is too large for its node; a further member comes, with which enough fit."""
    await stage.node(2)
    gang = (f"{stage.pool}-gang", 2)
    first = [await stage.pod(cpu, gang=gang) for cpu in ("8", "1")]
    if await stage.gangs.until(lambda: any(map(stage.is_parked, first)), REFUSED_S):
        await stage.scene.pause(1.0, 2.0)
        further = await stage.pod("1", gang=gang)
        await stage.comes("a member came with which enough fit", first[1], further)


async def _node_grows(stage: Stage) -> None:
    """A large gang has room for all members but one, until its node has more CPU."""
    node = await stage.node(MANY - 1)
    gang = (f"{stage.pool}-gang", MANY)
    members = [await stage.pod("1", gang=gang) for _ in range(MANY)]
    if await stage.gangs.until(lambda: any(map(stage.is_parked, members)), REFUSED_S):
        await stage.scene.pause(1.0, 2.0)
        await stage.resize_node(node, MANY)
        await stage.comes("its node has room for all members", *members)


async def _member_deleted(stage: Stage) -> None:
    """Two members of a gang, which are enough, wait for a third one, whose volume does not arrive; the third one is deleted."""
    await stage.node(3)
    gang = (f"{stage.pool}-gang", 2)
    claim = await stage.gangs.claim()
    first = [await stage.pod("1", gang=gang) for _ in range(2)]
    third = await stage.pod("1", gang=gang, claim=claim)
    if await stage.gangs.until(lambda: all(_is_assumed(stage, name) for name in (*first, third)), REFUSED_S):
        await stage.scene.pause(0.5, 1.0)
        await stage.scene.world.user.delete_named(third)
        await stage.comes("the member was deleted whose volume had not arrived", *first)


async def _lost_bind(stage: Stage) -> None:
    """A pod is deleted while its bind is on its way; another one waits for what it had."""
    node = await stage.node(1)
    stage.scene.faults.slow_nodes.add(node)
    first = await stage.pod("1")
    second = await stage.pod("1")
    is_under_way = await stage.gangs.until(lambda: _is_assumed(stage, first) and stage.is_parked(second), REFUSED_S)
    await stage.scene.world.user.delete_named(first)
    stage.scene.faults.slow_nodes.discard(node)
    if is_under_way and stage.found(first) is None:
        await stage.comes("the pod before it was deleted during its bind", second, within_s=2 * COMES_S)


def _is_assumed(stage: Stage, name: str) -> bool:
    pod = stage.found(name)
    return pod is not None and any(process.program.cache.is_assumed(pod.uid) for process, _ in stage.leaders(FORECAST))


# -- preemption --------------------------------------------------------------------------------------------------------


async def _leaving_member(stage: Stage) -> None:
    """One of three members is terminating, two are the minimum: an urgent pod takes what the terminating one leaves."""
    await stage.node(3)
    gang = (f"{stage.pool}-gang", 2)
    members = [await stage.pod("1", gang=gang, has_finalizer=True) for _ in range(3)]
    if not await stage.gangs.until(lambda: all(map(stage.is_bound, members)), COMES_S):
        return
    await stage.delete(members[0])
    await stage.scene.pause(1.0, 2.0)
    urgent = await stage.pod("1", priority=URGENT)
    others = members[1:]
    await stage.stays(
        "a member is evicted beside one that leaves", lambda: all(map(stage.is_bound, others)), invariant="I7"
    )
    await stage.end(members[0])
    await stage.comes("a terminating member has ended", urgent)


async def _mixed_gang(stage: Stage) -> None:
    """A gang of a more and a less urgent member is no reason to evict what is more urgent than the lesser one."""
    await stage.use_tree((NAMESPACES[0], 4), (NAMESPACES[1], 4))
    node, namespace = await stage.node(8), NAMESPACES[0]
    standing = [await stage.pod("2", namespace=namespace, priority=URGENT) for _ in range(2)]
    if not await stage.gangs.until(lambda: all(map(stage.is_bound, standing)), COMES_S):
        return
    gang = (f"{stage.pool}-gang", 2)
    for priority in (MOST_URGENT, ""):
        await stage.pod("2", namespace=namespace, priority=priority, gang=gang, node=node)
    await stage.stays(
        "a gang evicts a pod that is more urgent than one of its members",
        lambda: all(map(stage.is_bound, standing)),
        invariant="I14",
    )


# -- quotas ------------------------------------------------------------------------------------------------------------


async def _quota_goes(stage: Stage) -> None:
    """The tree that refuses a pod is deleted."""
    quotas = stage.scene.world.quotas
    assert quotas is not None
    await stage.use_tree((NAMESPACES[0], 1), (NAMESPACES[1], 1))
    await stage.node(4)
    name = await stage.pod("2", namespace=NAMESPACES[0])
    if await stage.parks(name):
        await quotas.lift()
        await stage.comes("its quota was deleted", name)


async def _quota_and_resize(stage: Stage) -> None:
    """A pod takes what its quota has left by a resize; another pod then waits."""
    await stage.use_tree((NAMESPACES[0], 2), (NAMESPACES[1], 2))
    await stage.node(8)
    first = await stage.pod("1", namespace=NAMESPACES[0])
    if not await stage.gangs.until(lambda: stage.is_bound(first), COMES_S) or (pod := stage.found(first)) is None:
        return
    await stage.scene.world.kubelets.resize(pod, "2")
    await stage.scene.pause(2.0, 3.0)
    second = await stage.pod("1", namespace=NAMESPACES[0])
    await stage.stays(
        "a pod is bound although a resize has used its quota", lambda: not stage.is_bound(second), invariant="I14"
    )


async def _quota_and_nomination(stage: Stage) -> None:
    """A pod is nominated within one leaf while the leaves change places: the other leaf is not charged for it."""
    await stage.use_tree((NAMESPACES[0], 2), (NAMESPACES[1], 2))
    await stage.node(2)
    victim = await stage.pod("2", has_finalizer=True)
    if not await stage.gangs.until(lambda: stage.is_bound(victim), COMES_S):
        return
    nominated = await stage.pod("2", namespace=NAMESPACES[0], priority=URGENT)
    if not await stage.gangs.until(lambda: stage.is_nominated(nominated), COMES_S):
        return
    await stage.use_tree((NAMESPACES[1], 2), (NAMESPACES[0], 2))
    node = await stage.node(2)
    other = await stage.pod("2", namespace=NAMESPACES[1], node=node)
    await stage.comes("it was created, with its quota unused", other)


async def _quota_broken(stage: Stage) -> None:
    """All processes are replaced while the tree has a mistake: the last good tree limits pods all the same."""
    quotas, replicas = stage.scene.world.quotas, stage.scene.replicas
    assert quotas is not None
    await stage.use_tree((NAMESPACES[0], 1), (NAMESPACES[1], 1))
    await stage.node(4)
    await quotas.spoil()
    await stage.scene.pause(COUNTED_S, COUNTED_S)
    for process in list(replicas.running):
        await replicas.kill(process)
        replicas.start()
    if await stage.gangs.until(lambda: stage.leader() is not None, LED_S):
        name = await stage.pod("2", namespace=NAMESPACES[0])
        await stage.stays("a pod exceeds the last good tree", lambda: not stage.is_bound(name), invariant="I14")
    await stage.use_tree((NAMESPACES[0], 1), (NAMESPACES[1], 1))


# -- the configuration file --------------------------------------------------------------------------------------------


async def _tolerations(stage: Stage) -> None:
    """A domain gets tolerations for the taint that keeps its pod off."""
    node = await stage.node(4)
    taints = [{"key": POOL, "value": stage.pool, "effect": "NoSchedule"}, {"key": EDITED_TAINT, "effect": "NoSchedule"}]
    await stage.scene.world.nodes.patch(node, {"spec": {"taints": taints}})
    name = await stage.pod("1")
    if await stage.parks(name):
        document = edited_document(stage.scene.setting.document)
        stage.scene.replicas.change_file(ChangedFile(text_of(document), is_good=True))
        await stage.comes("its domain tolerates the taint", name, within_s=LATE_MAX_S + COMES_S)


EDITS: Final[Mapping[str, Edit]] = {
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

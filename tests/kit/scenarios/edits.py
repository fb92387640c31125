"""Scenarios of edits: a pod is pending or limited, and one change of an object or of the configuration file decides about it.

Runs from EDITED_FROM up to TIDED_FROM have all of them, in an order drawn from the seed, after all disruptions. Each scenario
creates its own nodes, which only its own pods tolerate, and deletes these pods at its end.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from multisched.model.objects import CPU
from tests.kit.disruptions.run_context import RunContext
from tests.kit.processes.configuration_files import LATE_MAX_S
from tests.kit.processes.process import Process
from tests.kit.scenarios.dedicated_nodes import LED_S, is_parked, leader, until_led
from tests.kit.scenarios.steps import are_bound, is_nominated, leaders, pods_named, sees_objects
from tests.kit.settings.changed_files import ChangedFile
from tests.kit.settings.setting import EDITED_DOMAIN, EDITED_TAINT, edited_document, text_of
from tests.kit.world.gang_plans import ACK
from tests.kit.world.gang_workloads import FINALIZER, POOL, GangWorkloads, in_pool
from tests.kit.world.labels import GPU_MILLI, HOSTNAME
from tests.kit.world.pod_manifests import small_spec
from tests.kit.world.quota_trees import Level

FORECAST, GPUS = EDITED_DOMAIN, "gpu"
URGENT, MOST_URGENT = "system-cluster-critical", "system-node-critical"
REFUSED_S: Final = 6.0
"""Time until a new pod was tried and waits for an event."""
COMES_S: Final = 12.0
"""Time until a pod is bound after the event that it waits for: the event arrives, the backoff ends, and the bind is answered."""
GANG_COMES_S: Final = 24.0
"""The same for a gang: if it held capacity when it failed, gangs that were refused meanwhile are tried first."""
STAYS_S: Final = 6.0
"""Time for which a pod is observed that must not be bound or evicted."""
COUNTED_S: Final = 4.0
"""Time until an edited tree is in force."""
MANY: Final = 18
"""Members of a gang that is too large to be retried at every event."""
NAMESPACES: Final = ("edits-a", "edits-b")
"""The namespaces of the leaves of the trees that the scenarios write."""


class EditScenario:
    """The nodes and pods of one scenario, and its checks."""

    def __init__(self, context: RunContext, gangs: GangWorkloads, rng: random.Random) -> None:
        self.context = context
        self.gangs = gangs
        self.rng = rng
        self.pool = gangs.pool()
        assert context.world.quotas is not None
        self.quotas = context.world.quotas
        self._pods: list[tuple[str, str]] = []
        """(namespace, name) of each pod of the scenario."""
        self._nodes: list[str] = []

    # -- objects ---------------------------------------------------------------------------------------------------

    async def node(self, cpu: int, *, domain: str = "", gpus: int = 0) -> str:
        """Creates a node of the pool. Returns its name."""
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
        affinity: Mapping[str, Any] | None = None,
    ) -> str:
        """Creates a pod for the pool. Returns its name. `gang`: name and minimum."""
        name = f"{self.pool}-edit-{len(self._pods)}"
        spec = small_spec(f"{domain}-scheduler", cpu) | in_pool(self.pool, {HOSTNAME: node} if node else None)
        if priority:
            spec["priorityClassName"] = priority
        if affinity:
            spec["affinity"] = affinity
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
        """Deletes the pod with its grace period."""
        for namespace in {one for one, other in self._pods if other == name}:
            await self.context.world.user.send("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}")

    async def end(self, name: str) -> None:
        """Removes the pod's finalizer."""
        for pod in pods_named(self.context, [name]):
            await self.gangs.end(pod)

    async def clear(self) -> None:
        """Cordons the nodes and deletes the pods."""
        for node in self._nodes:
            await self.gangs.cordon(node)
        for namespace, name in self._pods:
            await self.end(name)
            await self.context.world.user.delete_named(name, namespace)

    # -- checks ----------------------------------------------------------------------------------------------------

    async def are_bound(self, names: Sequence[str]) -> bool:
        """Waits until all of the pods are bound. Returns False if they are not in time."""
        return await self.gangs.until(partial(are_bound, self.context, names), COMES_S)

    async def is_refused(self, *names: str, domain: str = FORECAST) -> bool:
        """Waits until one of the pods, which may be a gang's lead, waits for an event. Returns False if none does in time."""
        return await self.gangs.until(lambda: any(is_parked(self.context, name, domain) for name in names), REFUSED_S)

    async def must_be_bound(self, why: str, *names: str, domain: str = FORECAST, within_s: float = COMES_S) -> bool:
        """Reports a violation if a pod is not bound in time. `why`: the event that they waited for. Returns True."""
        before = leader(self.context, domain)
        if not await self.gangs.until(partial(are_bound, self.context, names), within_s):
            late = next(name for name in names if not are_bound(self.context, [name]))
            self._report(domain, before, f"I3: {late} is not bound {within_s:g} s after {why}")
        return True

    async def must_stay(self, what: str, holds: Callable[[], bool], *, invariant: str) -> bool:
        """Reports a violation, `what`, if `holds()` becomes false within STAYS_S. Returns True."""
        before = leader(self.context)
        if await self.gangs.until(lambda: not holds(), STAYS_S):
            self._report(FORECAST, before, f"{invariant}: {what}")
        return True

    def _report(self, domain: str, before: Process | None, what: str) -> None:
        """Reports a violation, unless the leader has changed or misses events."""
        checker = self.context.bind_checker
        is_checked = (
            before is not None and before is leader(self.context, domain) and not before.program.handover.waiting()
        )
        if is_checked and sees_objects(self.context) and not checker.was_restored:
            checker.report_violation(what)

    # -- quotas -----------------------------------------------------------------------------------------------

    async def use_tree(self, *leaves: tuple[str, int]) -> None:
        """Puts a tree in force. `leaves`: (one of NAMESPACES, max of CPU), in their order."""
        await self.use_levels(100, *(leaf(name, 0, most) for name, most in leaves))

    async def use_levels(self, cpu: int, *children: Level) -> None:
        """Puts a tree with this amount of CPU in force."""
        for namespace in NAMESPACES:
            await self.context.world.user.send("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        root: Level = {"name": "root", "min": {CPU: str(cpu)}, "max": {CPU: str(cpu)}, "children": list(children)}
        await self.quotas.put(root)
        await self.context.pause(COUNTED_S, COUNTED_S)


def leaf(name: str, least: int, most: int, **more: Any) -> Level:
    """Returns a leaf for one of NAMESPACES with these bounds of CPU."""
    return {"name": name, "min": {CPU: str(least)}, "max": {CPU: str(most)}, "namespaces": [name], **more}


Scenario = Callable[[EditScenario], Awaitable[bool]]
"""Returns False if it did not come to its edit: pods were not where it needs them."""


async def run_scenarios(context: RunContext, struck: Counter[str], scenarios: Mapping[str, Scenario]) -> None:
    """Runs all of the scenarios, one after the other."""
    gangs = context.world.gang_workloads
    if gangs is None or not context.setting.is_edited:
        return
    context.faults.is_on = False
    rng = random.Random(f"{context.seed}/edits")
    await until_led(context, FORECAST, GPUS)
    for name in rng.sample(sorted(scenarios), len(scenarios)):
        scenario = EditScenario(context, gangs, rng)
        struck[name] += await scenarios[name](scenario)
        await scenario.clear()


# -- pods and nodes ----------------------------------------------------------------------------------------------------


async def _correct_annotation(scenario: EditScenario) -> bool:
    """An annotation with an unreadable amount is corrected."""
    await scenario.node(4, domain=GPUS, gpus=1)
    name = await scenario.pod("100m", domain=GPUS, annotations={GPU_MILLI: "half"})
    if not await scenario.is_refused(name, domain=GPUS):
        return False
    for pod in pods_named(scenario.context, [name]):
        await scenario.context.world.patch_pod(pod, {"metadata": {"annotations": {GPU_MILLI: "500"}}})
    return await scenario.must_be_bound("its annotation was corrected", name, domain=GPUS)


async def _add_member(scenario: EditScenario) -> bool:
    """One member of a gang is too large for its node. Another member is added, with which enough fit."""
    await scenario.node(2)
    gang = (f"{scenario.pool}-gang", 2)
    first = [await scenario.pod(cpu, gang=gang) for cpu in ("8", "1")]
    if not await scenario.is_refused(*first):
        return False
    await scenario.context.pause(1.0, 2.0)
    added = await scenario.pod("1", gang=gang)
    return await scenario.must_be_bound("a member was added", first[1], added, within_s=GANG_COMES_S)


async def _grow_node(scenario: EditScenario) -> bool:
    """A node has room for all members of a large gang but one. Its CPU is increased."""
    node = await scenario.node(MANY - 1)
    gang = (f"{scenario.pool}-gang", MANY)
    members = [await scenario.pod("1", gang=gang) for _ in range(MANY)]
    if not await scenario.is_refused(*members):
        return False
    await scenario.context.pause(1.0, 2.0)
    await scenario.resize_node(node, MANY)
    return await scenario.must_be_bound("its node has room for all members", *members, within_s=GANG_COMES_S)


async def _delete_awaited_member(scenario: EditScenario) -> bool:
    """Two of four members of a gang wait for volumes, and three are the minimum. One of these two is deleted, and the other volume
    is provisioned.
    """
    await scenario.node(4)
    gang = (f"{scenario.pool}-gang", 3)
    claims = [await scenario.gangs.claim() for _ in range(2)]
    before = await scenario.pod("4")
    if not await scenario.are_bound([before]):
        return False
    members = [await scenario.pod("1", gang=gang, claim=claim) for claim in ("", "", *claims)]
    if not await scenario.is_refused(*members):
        return False
    await scenario.delete(before)  # now all four fit, and start together
    if not await scenario.gangs.until(lambda: all(is_assumed(scenario, name) for name in members), GANG_COMES_S):
        return False
    await scenario.context.pause(0.5, 1.0)
    await scenario.context.world.user.delete_named(members[3])
    await scenario.context.pause(0.5, 1.0)
    await scenario.gangs.provision(claims[0])
    return await scenario.must_be_bound("its volumes were provisioned", *members[:3], within_s=GANG_COMES_S)


async def _delete_during_bind(scenario: EditScenario) -> bool:
    """A pod is deleted while its bind is in flight. Another pod waits for its room."""
    node = await scenario.node(1)
    scenario.context.faults.slow_nodes.add(node)
    first = await scenario.pod("1")
    second = await scenario.pod("1")
    is_in_flight = await scenario.gangs.until(
        lambda: is_assumed(scenario, first) and is_parked(scenario.context, second), REFUSED_S
    )
    await scenario.context.world.user.delete_named(first)
    scenario.context.faults.slow_nodes.discard(node)
    if not is_in_flight or pods_named(scenario.context, [first]):
        return False
    return await scenario.must_be_bound("the other pod was deleted during its bind", second, within_s=GANG_COMES_S)


def is_assumed(scenario: EditScenario, name: str) -> bool:
    return any(
        process.program.cache.is_assumed(pod.uid)
        for pod in pods_named(scenario.context, [name])
        for process, _ in leaders(scenario.context)
    )


# -- preemption --------------------------------------------------------------------------------------------------------


async def _preempt_beside_a_leaving_member(scenario: EditScenario) -> bool:
    """One of three members is being deleted, and two are the minimum. An urgent pod gets the room of the deleted one."""
    await scenario.node(3)
    gang = (f"{scenario.pool}-gang", 2)
    members = [await scenario.pod("1", gang=gang, has_finalizer=True) for _ in range(3)]
    if not await scenario.are_bound(members):
        return False
    await scenario.delete(members[0])
    await scenario.context.pause(1.0, 2.0)
    urgent = await scenario.pod("1", priority=URGENT)
    await scenario.must_stay(
        "a member is evicted beside one that is being deleted",
        lambda: are_bound(scenario.context, members[1:]),
        invariant="I7",
    )
    await scenario.end(members[0])
    return await scenario.must_be_bound("the deleted member has ended", urgent)


async def _preempt_for_a_mixed_gang(scenario: EditScenario) -> bool:
    """A gang has members of two priorities. Pods that are more important than the lower one are not evicted for it."""
    await scenario.use_tree((NAMESPACES[0], 4), (NAMESPACES[1], 4))
    node, namespace = await scenario.node(8), NAMESPACES[0]
    bound = [await scenario.pod("2", namespace=namespace, priority=URGENT) for _ in range(2)]
    if not await scenario.are_bound(bound):
        return False
    gang = (f"{scenario.pool}-gang", 2)
    for priority in (MOST_URGENT, ""):
        await scenario.pod("2", namespace=namespace, priority=priority, gang=gang, node=node)
    return await scenario.must_stay(
        "a gang evicts a pod that is more important than one of its members",
        lambda: are_bound(scenario.context, bound),
        invariant="I14",
    )


# -- quotas ------------------------------------------------------------------------------------------------------------


async def _delete_tree(scenario: EditScenario) -> bool:
    """The tree that refuses a pod is deleted."""
    await scenario.use_tree((NAMESPACES[0], 1), (NAMESPACES[1], 1))
    await scenario.node(4)
    name = await scenario.pod("2", namespace=NAMESPACES[0])
    if not await scenario.is_refused(name):
        return False
    await scenario.quotas.lift()
    return await scenario.must_be_bound("its quota was deleted", name)


async def _resize_within_quota(scenario: EditScenario) -> bool:
    """A pod is resized to the max of its quota. No other pod is bound then."""
    await scenario.use_tree((NAMESPACES[0], 2), (NAMESPACES[1], 2))
    await scenario.node(8)
    first = await scenario.pod("1", namespace=NAMESPACES[0])
    if not await scenario.are_bound([first]):
        return False
    for pod in pods_named(scenario.context, [first]):
        await scenario.context.world.kubelets.resize(pod, "2")
    await scenario.context.pause(2.0, 3.0)
    second = await scenario.pod("1", namespace=NAMESPACES[0])
    return await scenario.must_stay(
        "a pod is bound although a resize has used its quota",
        lambda: not are_bound(scenario.context, [second]),
        invariant="I14",
    )


async def _reorder_leaves(scenario: EditScenario) -> bool:
    """A pod is nominated, and the leaves of the tree change their order. The other leaf is not charged for it."""
    await scenario.use_tree((NAMESPACES[0], 2), (NAMESPACES[1], 2))
    await scenario.node(2)
    victim = await scenario.pod("2", namespace=NAMESPACES[0], has_finalizer=True)
    if not await scenario.are_bound([victim]):
        return False
    nominated = await scenario.pod("2", namespace=NAMESPACES[0], priority=URGENT)
    if not await scenario.gangs.until(partial(is_nominated, scenario.context, nominated), COMES_S):
        return False
    await scenario.use_tree((NAMESPACES[1], 2), (NAMESPACES[0], 2))
    node = await scenario.node(2)
    other = await scenario.pod("2", namespace=NAMESPACES[1], node=node)
    return await scenario.must_be_bound("it was created, with its quota unused", other)


async def _restart_beside_an_invalid_tree(scenario: EditScenario) -> bool:
    """All processes are replaced while the tree is invalid. The last valid tree still limits pods."""
    replicas = scenario.context.replicas
    await scenario.use_tree((NAMESPACES[0], 1), (NAMESPACES[1], 1))
    await scenario.node(4)
    await scenario.quotas.spoil()
    await scenario.context.pause(COUNTED_S, COUNTED_S)
    for process in list(replicas.running):
        await replicas.kill(process)
        replicas.start()
    is_led = await scenario.gangs.until(lambda: leader(scenario.context) is not None, LED_S)
    if is_led:
        name = await scenario.pod("2", namespace=NAMESPACES[0])
        await scenario.must_stay(
            "a pod exceeds the last valid tree", lambda: not are_bound(scenario.context, [name]), invariant="I14"
        )
    await scenario.use_tree((NAMESPACES[0], 1), (NAMESPACES[1], 1))
    return is_led


# -- the configuration file --------------------------------------------------------------------------------------------


async def _add_tolerations(scenario: EditScenario) -> bool:
    """A domain gets a toleration for the taint that excludes its pod."""
    node = await scenario.node(4)
    taints = [
        {"key": POOL, "value": scenario.pool, "effect": "NoSchedule"},
        {"key": EDITED_TAINT, "effect": "NoSchedule"},
    ]
    await scenario.context.world.nodes.patch(node, {"spec": {"taints": taints}})
    name = await scenario.pod("1")
    if not await scenario.is_refused(name):
        return False
    document = edited_document(scenario.context.setting.document)
    scenario.context.replicas.change_file(ChangedFile(text_of(document), is_good=True))
    return await scenario.must_be_bound("its domain tolerates the taint", name, within_s=LATE_MAX_S + COMES_S)


SCENARIOS: Final[Mapping[str, Scenario]] = {
    "annotation corrected": _correct_annotation,
    "domain tolerates a taint": _add_tolerations,
    "member comes to a parked gang": _add_member,
    "member leaves a gang beside an urgent pod": _preempt_beside_a_leaving_member,
    "gang of several priorities in a full quota": _preempt_for_a_mixed_gang,
    "node grows for a large gang": _grow_node,
    "pod deleted during its bind": _delete_during_bind,
    "member deleted that its gang waits for": _delete_awaited_member,
    "processes replaced beside a broken quota": _restart_beside_an_invalid_tree,
    "quota deleted": _delete_tree,
    "quota used up by a resize": _resize_within_quota,
    "quotas change places beside a nominated pod": _reorder_leaves,
}

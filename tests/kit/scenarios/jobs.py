"""Scenarios of jobs in units: own nodes, then serverless ones, with policies, providers that fail, and deadlines.

Runs from SERVERLESS_FROM up to RARE_FROM have a sample of them, in an order drawn from the seed, after all disruptions: half, with an even
seed, the other half with an odd one. `UnitHistory` judges each bind; a scenario reports what does not happen in time.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import repeat
from typing import Any, Final

from multisched.cluster.kubelet.provider import ProviderAccount, ScriptedFailure
from multisched.model.object_kinds import ObjectKind
from tests.kit.checkers.api.unit_history import LATER_S, UnitHistory
from tests.kit.disruptions.run_context import RunContext
from tests.kit.processes.process import Process
from tests.kit.scenarios.dedicated_nodes import LED_S, leader, until_led
from tests.kit.scenarios.steps import sees_objects
from tests.kit.settings.setting import ELASTIC_FROM, REFUSED_TEXT, SANDBOX_TIMEOUT_S, SERVERLESS_DOMAIN
from tests.kit.wire.faults import FORBIDDEN
from tests.kit.world.api_user import NAMESPACE
from tests.kit.world.labels import UNIT
from tests.kit.world.unit_workloads import BARE, COST, JOB, OWN, REPLICA_SET, UnitWorkload, UnitWorkloads

RUNS_S: Final = 14.0
"""Time until pods run that have room, at most: they have been tried before, and back off."""
SEEN_S: Final = 10.0
"""Time until each process has seen an object."""
THROTTLED_MAX: Final = 1
"""Creates that a provider may throttle of a burst: 1 % of them, rounded up. After a failover a further burst may be: tokens of the
last seconds are not known.
"""
REOPENED_S: Final = 31.0
"""Time from the recovery of a provider until its unit is used again, if pods need it."""
REPLACED_S: Final = 10.0
"""Time from `sandboxTimeout` until the pod that replaces an evicted one runs."""


def unit(name: str, **more: Any) -> dict[str, Any]:
    """Returns a unit of a policy, of the nodes with this label UNIT."""
    return {"nodeSelector": {UNIT: name}, **more}


class JobScenario:
    """The nodes, policy and workloads of one scenario, and its checks."""

    def __init__(self, context: RunContext, units: UnitWorkloads, history: UnitHistory, rng: random.Random) -> None:
        self.context, self.units, self.history, self.rng = context, units, history, rng
        self.pool = units.pool()
        self.nodes: list[str] = []

    async def node(self, unit: str = OWN, cpu: int = 2) -> str:
        name = await self.units.node(self.pool, unit, cpu=cpu)
        self.nodes.append(name)
        return name

    async def policy(self, *units: Mapping[str, Any], **more: Any) -> bool:
        """Creates or replaces the policy. Returns False if not every process sees it in time."""
        await self.units.policy(self.pool, units, **more)
        return await self.until(lambda: self._is_seen(units), SEEN_S)

    def _is_seen(self, units: Sequence[Mapping[str, Any]]) -> bool:
        found = [
            process.program.cache.objects.get(ObjectKind.RESOURCE_POLICY, NAMESPACE, self.pool)
            for process in self.context.replicas.running
        ]
        return all(one is not None and getattr(one, "spec", {}).get("units") == list(units) for one in found)

    async def settled(self) -> None:
        """Waits until each leader uses the nodes, and until `UnitHistory` takes everything as known."""
        await self.context.until_in_use(self.nodes[0])
        await self.context.pause(7.0, 8.0)

    def workload(self, replicas: int, **more: Any) -> UnitWorkload:
        return self.units.workload(self.pool, replicas, **more)

    async def until(self, holds: Callable[[], bool], limit_s: float) -> bool:
        await self.context.until(holds, limit_s)
        return holds()

    async def kill_leader(self) -> bool:
        """Kills the process that leads, and starts another one. Returns False if none leads."""
        process = leader(self.context, SERVERLESS_DOMAIN)
        if process is None:
            return False
        self.history.is_order_sure = False
        await self.context.replicas.kill(process)
        self.context.replicas.start()
        return True

    async def must_run(self, workload: UnitWorkload, why: str, within_s: float) -> bool:
        """Reports a violation if not all pods of the workload run in time."""
        return await self.must(
            lambda: self.units.runs(workload), f"not all pods of {workload.name} run: {why}", within_s
        )

    async def must(self, holds: Callable[[], bool], what: str, within_s: float) -> bool:
        """Reports a violation if it does not come to hold in time, unless the leader changes or misses events."""
        before = leader(self.context, SERVERLESS_DOMAIN)
        if within_s >= LED_S:
            await self.until(lambda: leader(self.context, SERVERLESS_DOMAIN) is not None, LED_S)
            await self.context.until_in_use(self.nodes[0])  # a new leader may wait for an event of a node
        if await self.until(holds, within_s):
            return True
        self._report(before, f"I16: after {within_s:g} s {what}", within_s)
        return False

    def _report(self, before: Process | None, what: str, within_s: float) -> None:
        now = leader(self.context, SERVERLESS_DOMAIN)
        is_led = now is not None and not now.program.handover.waiting() and (now is before or within_s >= LED_S)
        if is_led and sees_objects(self.context):
            self.context.bind_checker.report_violation(what)

    def in_units(self, workload: UnitWorkload) -> Counter[str]:
        """Returns how many of its pods are in each unit."""
        return Counter(self.units.unit_of(pod) for pod in self.units.pods_of(workload))


Scenario = Callable[[JobScenario], Awaitable[bool]]
"""Returns False if it did not come to its event."""


async def run_job_scenarios(context: RunContext, struck: Counter[str]) -> None:
    """Runs half of the scenarios, one after the other."""
    units, history = context.world.units, context.bind_checker.units
    if units is None or history is None:
        return
    context.faults.is_on = False
    rng = random.Random(f"{context.seed}/job scenarios")
    await until_led(context, SERVERLESS_DOMAIN)
    names = drawn_names(context.seed)
    for name in rng.sample(names, len(names)):
        scenario = JobScenario(context, units, history, rng)
        history.is_order_sure = True
        struck[name] += await (SCENARIOS.get(name) or ELASTIC_SCENARIOS[name])(scenario)
        history.is_order_sure, history.ordered = False, ""
        context.faults.answers.clear()
        context.faults.bind_answers.clear()
        await context.pause(LATER_S, LATER_S + 1.0)  # until doubts are judged
        await units.clear(scenario.pool, scenario.nodes)


# -- order and max -----------------------------------------------------------------------------------------------------------


async def _fill_in_order(scenario: JobScenario) -> bool:
    """Pods fill own nodes, then a serverless unit; pods end, and others take their places."""
    await scenario.node()
    await scenario.node()
    await scenario.node("vk-a", 64)
    if not await scenario.policy(unit(OWN), unit("vk-a")):
        return False
    await scenario.settled()
    workload = scenario.workload(scenario.rng.randint(10, 14), owner=scenario.rng.choice((JOB, REPLICA_SET)))
    if not await scenario.must_run(workload, "own nodes and a serverless unit have room", RUNS_S):
        return False
    own = [pod for pod in scenario.units.pods_of(workload) if scenario.units.unit_of(pod) == OWN]
    for pod in own[: scenario.rng.randint(1, 3)]:
        await scenario.units.delete(pod)
    await scenario.must_run(workload, "pods were deleted", RUNS_S)
    await scenario.context.pause(7.0, 8.0)
    workload.replicas += 3
    await scenario.must_run(workload, "it has grown", RUNS_S)
    return len(own) == 8


async def _max_of_groups(scenario: JobScenario) -> bool:
    """Two groups fill a unit to their max; the leader is killed, and more pods come."""
    await scenario.node(cpu=8)
    await scenario.node("vk-a", 64)
    most, tier = scenario.rng.randint(2, 4), {"tier": "own"}
    more: dict[str, Any] = {"podLabels": tier} if scenario.rng.random() < 0.7 else {}
    if not await scenario.policy(unit(OWN, max=most, **more), unit("vk-a"), matchLabelKeys=["group"]):
        return False
    await scenario.settled()
    one, other = (scenario.workload(most + 1, labels={"group": name}, owner=REPLICA_SET) for name in ("one", "other"))
    if not await scenario.must_run(one, "units have room", RUNS_S):
        return False
    await scenario.must_run(other, "units have room", RUNS_S)
    own = {OWN: most, "vk-a": 1}
    await scenario.must(lambda: scenario.in_units(one) == own, f"{one.name} is not in units as {own}", RUNS_S)
    await scenario.must(lambda: scenario.in_units(other) == own, f"{other.name} is not in units as {own}", RUNS_S)
    is_killed = await scenario.kill_leader()
    one.replicas += 2
    await scenario.must_run(one, "the leader was killed", LED_S + RUNS_S)
    return is_killed


async def _edit_policy(scenario: JobScenario) -> bool:
    """A max is raised, and the policy is deleted, while pods wait for it."""
    await scenario.node(cpu=8)
    await scenario.node()
    if not await scenario.policy(unit(OWN, max=2), whenTryNextUnits={"policy": "ExceedMax"}):
        return False
    await scenario.settled()
    workload = scenario.workload(4)
    await scenario.until(lambda: scenario.in_units(workload)[OWN] == 2, RUNS_S)
    await scenario.context.pause(4.0, 5.0)
    if not await scenario.policy(unit(OWN, max=4), whenTryNextUnits={"policy": "ExceedMax"}):
        return False
    await scenario.must_run(workload, "the max was raised", RUNS_S)
    workload.replicas += 2
    await scenario.context.pause(4.0, 5.0)
    await scenario.units.delete_policy(scenario.pool)
    await scenario.must_run(workload, "the policy was deleted", RUNS_S)
    return True


async def _wait_for_timeout(scenario: JobScenario) -> bool:
    """Pods that find no room in the first unit go on after a timeout, not before."""
    await scenario.node()
    await scenario.node("vk-b", 64)
    following = {"policy": "Timeout", "timeout": "10s"}
    if not await scenario.policy(unit(OWN), unit("vk-b"), whenTryNextUnits=following):
        return False
    await scenario.settled()
    workload = scenario.workload(5)
    await scenario.must_run(workload, "a timeout has run out", 10.0 + RUNS_S)
    return scenario.in_units(workload)["vk-b"] == 1


async def _wait_for_terminating(scenario: JobScenario) -> bool:
    """Pods wait in the first unit while pods of it are terminating, which count for its max or not."""
    await scenario.node()
    await scenario.node("vk-b", 64)
    following = {"policy": scenario.rng.choice(("LackResourceAndNoTerminating", "LackResourceAndNoterminating"))}
    if not await scenario.policy(unit(OWN), unit("vk-b"), whenTryNextUnits=following):
        return False
    await scenario.settled()
    workload = scenario.workload(4, has_finalizers=True)
    if not await scenario.must_run(workload, "the first unit has room", RUNS_S):
        return False
    going = scenario.units.pods_of(workload)[:2]
    for pod in going:
        await scenario.units.delete(pod)
    await scenario.context.pause(13.0, 15.0)
    is_waiting = not scenario.units.runs(workload)
    for pod in going:
        await scenario.units.release(pod)
    await scenario.must_run(workload, "no pod is terminating any more", RUNS_S)
    return is_waiting


async def _replace_terminating(scenario: JobScenario) -> bool:
    """Pods that terminate slowly do not count for max, or do with ignoreTerminatingPod false."""
    await scenario.node(cpu=8)
    is_ignored = scenario.rng.random() < 0.5
    if not await scenario.policy(unit(OWN, max=2), ignoreTerminatingPod=is_ignored):
        return False
    await scenario.settled()
    workload = scenario.workload(2, has_finalizers=True)
    if not await scenario.must_run(workload, "the unit has room", RUNS_S):
        return False
    going = scenario.units.pods_of(workload)
    for pod in going:
        await scenario.units.delete(pod)
    if is_ignored:
        await scenario.must_run(workload, "terminating pods do not count for max", RUNS_S)
    else:
        await scenario.context.pause(8.0, 10.0)
    for pod in going:
        await scenario.units.release(pod)
    await scenario.must_run(workload, "terminated pods are gone", RUNS_S)
    return True


async def _preempt_before_next_unit(scenario: JobScenario) -> bool:
    """Urgent pods preempt in the first unit before they use the next one (BeforeNextUnit)."""
    await scenario.node()
    await scenario.node("vk-a", 64)
    if not await scenario.policy(unit(OWN), unit("vk-a"), preemptPolicy="BeforeNextUnit"):
        return False
    await scenario.settled()
    lower = scenario.workload(4)
    if not await scenario.must_run(lower, "the first unit has room", RUNS_S):
        return False
    await scenario.context.pause(7.0, 8.0)
    urgent = scenario.workload(2, priority="system-cluster-critical")
    await scenario.must_run(urgent, "they preempt in the first unit", RUNS_S)
    in_own = {OWN: 2}
    await scenario.must(lambda: scenario.in_units(urgent) == in_own, f"{urgent.name} did not preempt first", 0.0)
    await scenario.must_run(lower, "the next unit has room", RUNS_S)
    return True


async def _scale_in(scenario: JobScenario) -> bool:
    """A ReplicaSet shrinks in the reverse order of units; other pods and users' own values get no cost."""
    await scenario.node()
    await scenario.node("vk-a", 64)
    if not await scenario.policy(unit(OWN), unit("vk-a", scaleInWeight=scenario.rng.choice((-5, 7)))):
        return False
    await scenario.settled()
    workload = scenario.workload(7, owner=REPLICA_SET)
    own_cost = scenario.workload(1, owner=REPLICA_SET, annotations={COST: "12"})
    job = scenario.workload(1)
    if not await scenario.must_run(workload, "units have room", RUNS_S):
        return False
    await scenario.must_run(own_cost, "units have room", RUNS_S)
    await scenario.must_run(job, "units have room", RUNS_S)
    in_own = scenario.in_units(workload)[OWN]
    workload.replicas = max(in_own, 1)
    wanted = {OWN: in_own} if in_own else {"vk-a": 1}
    await scenario.must(
        lambda: scenario.in_units(workload) == wanted, f"{workload.name} is not only in {wanted}", RUNS_S
    )
    return True


# -- providers ---------------------------------------------------------------------------------------------------------------


async def _keep_to_the_rate(scenario: JobScenario) -> bool:
    """Many pods at once are created no faster than the provider allows."""
    await scenario.node("vk-a", 64)
    if not await scenario.policy(unit("vk-a", resource="eci")):
        return False
    await scenario.settled()
    scenario.context.faults.bind_max_s = 0.0
    account, (burst, per_second) = scenario.units.accounts["vk-a"], scenario.units.limits["vk-a"]
    throttled = account.statistics().throttled
    workload = scenario.workload(30, milli=100)
    is_killed = scenario.rng.random() < 0.4
    if is_killed:
        await scenario.context.pause(2.0, 4.0)
        is_killed = await scenario.kill_leader()
    within_s = 30 / per_second + RUNS_S + is_killed * LED_S
    await scenario.must_run(workload, "the rate allows them", within_s)
    more = account.statistics().throttled - throttled
    if more > THROTTLED_MAX + is_killed * burst:
        what = f"I16: the provider throttled {more} of 30 creates"
        scenario.context.bind_checker.report_violation(what)
    return True


async def _give_tokens_back(scenario: JobScenario) -> bool:
    """Binds to a serverless unit are denied for a while. Their tokens and places in its quota are given back."""
    await scenario.node("vk-b", 64)
    if not await scenario.policy(unit("vk-b")):
        return False
    await scenario.settled()
    answers = scenario.context.faults.bind_answers
    workload = scenario.workload(4, milli=100)
    names = [f"{workload.name}-{number}" for number in range(1, 60)]
    answers.update((name, repeat(FORBIDDEN)) for name in names)
    await scenario.context.pause(16.0, 20.0)
    for name in names:
        del answers[name]
    is_denied = not scenario.units.runs(workload)
    await scenario.must_run(workload, "binds are accepted again", RUNS_S)
    return is_denied


async def _exceed_allocatable(scenario: JobScenario) -> bool:
    """Pods request more than the nodes of two units have: the elastic one runs all of them, up to its quota and the pods of its node."""
    limited = await scenario.node("vk-a", scenario.rng.randint(1, 2))
    await scenario.node("vk-e", 1)
    if not await scenario.policy(unit("vk-a"), unit("vk-e")):
        return False
    await scenario.settled()
    workload = scenario.workload(scenario.rng.randint(14, 18))
    if not await scenario.must_run(workload, "an elastic unit has room", RUNS_S):
        return False
    is_killed = scenario.rng.random() < 0.4 and await scenario.kill_leader()
    workload.replicas += 4
    await scenario.must_run(workload, "an elastic unit still has room", RUNS_S + is_killed * LED_S)
    where = Counter(pod.node for pod in scenario.units.pods_of(workload))
    return 0 < where[limited] <= 4 < where.total() - where[limited]


async def _outage(scenario: JobScenario) -> bool:
    """A provider refuses all creates for a while: the next unit is used, and the first one again after its recovery."""
    await scenario.node("vk-a", 64)
    await scenario.node("vk-b", 64)
    if not await scenario.policy(unit("vk-a"), unit("vk-b")):
        return False
    await scenario.settled()
    scenario.units.fail("vk-a", ScriptedFailure(message="InternalError: the provider is away"))
    workload = scenario.workload(4, restarts=False, milli=100)
    await scenario.must_run(workload, "the next unit works", RUNS_S + 4.0)
    is_avoided = scenario.in_units(workload)["vk-b"] > 0
    await scenario.context.pause(0.0, 6.0)
    scenario.units.fail("vk-a")
    recovered_s = scenario.context.now_s()
    account = scenario.units.accounts["vk-a"]
    # pods must need the unit: probes are pods
    while scenario.context.now_s() - recovered_s < REOPENED_S and not _created_since(account, recovered_s):
        workload.replicas += 1
        await scenario.context.pause(1.0, 1.5)
    what = f"vk-a is not used again {REOPENED_S:g} s after its recovery"
    await scenario.must(lambda: _created_since(account, recovered_s), what, 0.0)
    return is_avoided


async def _evict_stuck(scenario: JobScenario) -> bool:
    """Pods whose sandbox does not start are replaced, if they have a controller; the others stay."""
    await scenario.node("vk-a", 64)
    await scenario.node("vk-b", 64)
    if not await scenario.policy(unit("vk-a"), unit("vk-b")):
        return False
    await scenario.settled()
    scenario.units.fail("vk-a", ScriptedFailure(message="InternalError: the provider is away"))
    bare = scenario.workload(2, owner=BARE, milli=100)
    workload = scenario.workload(3, owner=scenario.rng.choice((JOB, REPLICA_SET)), milli=100)
    await scenario.until(lambda: len(scenario.units.pods_of(bare)) == 2, 5.0)
    before = {pod.uid for pod in scenario.units.pods_of(bare)}
    is_killed = scenario.rng.random() < 0.3 and await scenario.kill_leader()
    within_s = SANDBOX_TIMEOUT_S + REPLACED_S + is_killed * (LED_S + SANDBOX_TIMEOUT_S)
    await scenario.must_run(workload, "their stuck pods are evicted", within_s)
    await scenario.context.pause(SANDBOX_TIMEOUT_S, SANDBOX_TIMEOUT_S + 2.0)
    if {pod.uid for pod in scenario.units.pods_of(bare)} != before:
        scenario.context.bind_checker.report_violation(f"I16: a pod of {bare.name} is gone, and has no controller")
    return any(scenario.units.unit_of(pod) == "vk-a" for pod in scenario.units.pods_of(bare))


async def _avoid_refused_template(scenario: JobScenario) -> bool:
    """A provider refuses one template for good: its pods use the next unit, others stay in the first one."""
    await scenario.node("vk-a", 64)
    await scenario.node("vk-b", 64)
    if not await scenario.policy(unit("vk-a"), unit("vk-b")):
        return False
    await scenario.settled()
    failure = ScriptedFailure(message=f"refused by an {REFUSED_TEXT}", labels={"image": "bad"})
    scenario.units.fail("vk-a", failure)
    image = f"bad-{scenario.pool}:v1"
    refused = scenario.workload(1, labels={"image": "bad"}, image=image, restarts=False, milli=100)
    await scenario.must_run(refused, "the next unit takes the template", RUNS_S)
    account = scenario.units.accounts["vk-a"]
    calls = account.statistics().refused
    refused.replicas += 3
    await scenario.must_run(refused, "the next unit takes the template", RUNS_S)
    again = account.statistics().refused - calls
    what = f"the template was tried {again} times more in the unit that refused it"
    await scenario.must(lambda: not again, what, 0.0)
    other = scenario.workload(2, milli=100)
    await scenario.must_run(other, "the first unit takes others", RUNS_S)
    # after failures a unit creates one sandbox at a time: the second pod may be in the next unit
    await scenario.must(lambda: scenario.in_units(other)["vk-a"] > 0, "other templates are not in vk-a", 0.0)
    return calls > 0


# -- deadlines ---------------------------------------------------------------------------------------------------------------


async def _order_by_deadline(scenario: JobScenario) -> bool:
    """Pods of several Jobs wait for one slot, which becomes free again and again."""
    await scenario.node(cpu=1)
    await scenario.settled()
    slot = scenario.workload(1, milli=1000)
    if not await scenario.must_run(slot, "the node is free", RUNS_S):
        return False
    now_s = scenario.context.clock.now().timestamp()
    waiting: list[UnitWorkload] = []
    for late_s in scenario.rng.sample((600, 900, 1200, 1500), 3):
        workload = scenario.workload(0, milli=1000)
        if scenario.rng.random() < 0.7:
            # the Job is old: its deadline counts from its startTime
            started_s = now_s - scenario.rng.choice((0, 3600))
            limit_s = int(now_s + late_s - started_s)
            await scenario.units.job(workload, active_deadline_s=limit_s, started_s=started_s)
        else:
            text = datetime.fromtimestamp(int(now_s) + late_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            workload.annotations = {"multisched.io/deadline": text}
        workload.replicas = 1
        waiting.append(workload)
    waiting.append(scenario.workload(1, milli=1000))
    scenario.history.ordered = scenario.pool
    await scenario.context.pause(14.0, 16.0)
    holders = [slot]
    for _ in waiting:
        for pod in scenario.units.pods_of(holders[-1]):
            await scenario.units.user.delete_pod(pod)
        holders[-1].replicas = 0
        await scenario.until(lambda: bool(_running(scenario, waiting)), RUNS_S)
        running = _running(scenario, waiting)
        if not running:
            break
        holders.append(running[0])
        await scenario.context.pause(8.0, 12.0)
    return len(holders) > 2


def _running(scenario: JobScenario, workloads: Sequence[UnitWorkload]) -> list[UnitWorkload]:
    return [one for one in workloads if one.replicas and scenario.units.runs(one)]


def _created_since(account: ProviderAccount, since_s: float) -> bool:
    return any(call.outcome == "created" and call.at_s >= since_s for call in account.calls)


SCENARIOS: Final[Mapping[str, Scenario]] = {
    "units filled in order": _fill_in_order,
    "max of groups": _max_of_groups,
    "policy edited": _edit_policy,
    "timeout of a unit": _wait_for_timeout,
    "unit with terminating pods": _wait_for_terminating,
    "terminating pods replaced": _replace_terminating,
    "preempted before the next unit": _preempt_before_next_unit,
    "ReplicaSet scaled in": _scale_in,
    "many sandboxes at once": _keep_to_the_rate,
    "binds to a unit denied": _give_tokens_back,
    "outage of a provider": _outage,
    "stuck pods evicted": _evict_stuck,
    "template refused for good": _avoid_refused_template,
    "one slot by deadline": _order_by_deadline,
}


ELASTIC_SCENARIOS: Final[Mapping[str, Scenario]] = {"elastic unit beyond allocatable": _exceed_allocatable}
"""All of them are in each run from ELASTIC_FROM up to RARE_FROM."""


def drawn_names(seed: int) -> list[str]:
    """Returns the names of the scenarios of this seed."""
    return sorted(SCENARIOS)[seed % 2 :: 2] + (sorted(ELASTIC_SCENARIOS) if seed >= ELASTIC_FROM else [])

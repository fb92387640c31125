"""Common steps of the scenarios at the end of a run, in which nothing else helps or hinders.

While disruptions happen, other events requeue a missed pod, leaders are absent, and bindings are decided again for many reasons.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from multisched.model.objects import CPU, Pod
from multisched.queueing.pod_queue import PodQueue
from multisched.queueing.transitions import QueueState
from multisched.shell.domain import DomainWorker
from tests.kit.disruptions.run_context import Action, RunContext
from tests.kit.processes.process import Process
from tests.kit.world.nodes import CROWDED

Scenarios = Sequence[tuple[str, Action]]
"""(name, action) of each scenario."""
DOMAIN, SCHEDULER = "forecast", "forecast-scheduler"
LED_MAX_S: Final = 10.0
"""Time until a process leads and binds. If none does, no scenario is run: it would take half a minute more."""
PLAIN_MILLI: Final = 4_000
"""CPU of a plain node."""
COMES_S: Final = 5.0
"""Time until a pod is tried again and bound: it was tried once or twice before, and a bind may take two seconds."""


def several(scenarios: Scenarios, count: int) -> Action:
    """Returns an action that runs a drawn sample of scenarios, one after the other."""

    async def action(context: RunContext) -> bool:
        return any([await one(context) for _, one in context.rng.sample(scenarios, count)])

    return action


async def create_pod(
    context: RunContext,
    node: str,
    milli: int,
    *,
    spec: Mapping[str, Any] | None = None,
    is_urgent: bool = False,
    **more: Any,
) -> str:
    """Creates a small pod for this node, or for any if empty. Returns its name."""
    return await context.world.add_small_pod(
        node, spec or {}, is_urgent=is_urgent, scheduler=SCHEDULER, cpu=f"{milli}m", **more
    )


def leaders(context: RunContext, domain: str = DOMAIN) -> list[tuple[Process, DomainWorker]]:
    """Returns the processes that believe to lead the domain, with their workers."""
    workers = [(process, worker) for process in context.replicas.running for worker in process.program.router.workers()]
    return [(process, worker) for process, worker in workers if worker.name == domain and worker.is_leading]


def leading_queues(context: RunContext, domain: str = DOMAIN) -> list[PodQueue]:
    """Returns the queues of these workers."""
    return [worker.queue for _, worker in leaders(context, domain)]


def parked(context: RunContext, names: Sequence[str]) -> list[str]:
    """Returns the names of those pods that are parked."""
    entries = [entry for queue in leading_queues(context) for entry in queue.entries(QueueState.UNSCHEDULABLE)]
    return [entry.pod.name for entry in entries if entry.pod.name in names]


def pods_named(context: RunContext, names: Sequence[str]) -> list[Pod]:
    return [pod for pod in context.world.pods() if pod.name in names]


def bound_pods(context: RunContext, names: Sequence[str]) -> list[Pod]:
    return [pod for pod in pods_named(context, names) if pod.node and not pod.is_deleting]


def are_bound(context: RunContext, names: Sequence[str]) -> bool:
    return len(bound_pods(context, names)) == len(names)


def is_nominated(context: RunContext, name: str) -> bool:
    """Reports whether the pod is nominated or bound."""
    return any(pod.nominated_node or pod.node for pod in pods_named(context, [name]))


def least_used_node(context: RunContext) -> str:
    """Returns the existing node with most free CPU, of those that crowds use."""
    amounts, there = cpu_by_node(context), context.bind_checker.nodes()
    return min((f"node-{number}" for number in CROWDED if f"node-{number}" in there), key=lambda node: amounts[node])


def cpu_by_node(context: RunContext) -> Counter[str]:
    """Returns node -> CPU that its pods request."""
    amounts: Counter[str] = Counter()
    for pod in context.world.pods():
        amounts[pod.node] += pod.requests.get(CPU, 0)
    return amounts


@contextmanager
def checking_every_class(context: RunContext) -> Iterator[None]:
    """Compares each class that a cycle uses with a fresh evaluation while the block runs."""
    try:
        for process in context.replicas.running:
            process.checker.check_every_class(is_on=True)
        yield
    finally:
        for process in context.replicas.running:
            process.checker.check_every_class(is_on=False)


async def expect_bound(context: RunContext, node: str, name: str, why: str) -> None:
    """Checks that the pod is bound. A plain pod that is created now and bound shows that the leader schedules pods."""
    before, second = steady_leader(context), await create_pod(context, node, 10)
    await context.until(partial(are_bound, context, [name, second]), COMES_S)
    may_know = is_led_by(context, before) and sees_objects(context)
    if may_know and bound_pods(context, [second]) and parked(context, [name]):
        context.bind_checker.report_violation(f"I3: {name} waits for {node}, and may go there: {why}")
    await context.world.user.delete_named(second)


async def expect_pending(context: RunContext, node: str, name: str, why: str, *, beside: Sequence[str] = ()) -> None:
    """Checks that the pod is not bound. A plain pod that is created later and bound shows that the pod was tried.

    `beside`: pods that exclude the pod while they are on the node.
    """
    before, second = steady_leader(context), await create_pod(context, node, 10)
    await context.until(lambda: bool(bound_pods(context, [second])), COMES_S)
    await context.until(lambda: bool(bound_pods(context, [name]) or parked(context, [name])), COMES_S)
    if is_led_by(context, before) and bound_pods(context, [name]) and are_bound(context, beside):
        context.bind_checker.report_violation(f"I1: {name} stands on {node}, and must not: {why}")
    await context.world.user.delete_named(second)


def steady_leader(context: RunContext) -> PodQueue | None:
    """Returns the only leading queue, if its profile neither holds nor refuses pods by itself; None otherwise."""
    now = leading_queues(context)
    return now[0] if context.setting.is_shipped and len(now) == 1 else None


def sees_objects(context: RunContext) -> bool:
    """Reports whether each leader has an open watch of every kind; otherwise it cannot know recent changes."""
    programs = [process.program for process in context.replicas.running]
    leaders = [one for one in programs if any(worker.is_leading for worker in one.router.workers())]
    return all(not reflector.staleness_s() for one in leaders for reflector in one.objects.reflectors.values())


def is_led_by(context: RunContext, before: PodQueue | None) -> bool:
    """Reports whether the queue that led before still leads."""
    return before is not None and before is steady_leader(context)

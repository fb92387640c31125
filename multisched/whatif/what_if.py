"""Where pods that do not exist yet would be placed, and which pods they would preempt: placed one by one in a sandbox.

Two things are not known beforehand. One is how admission changes a pod (LimitRange, webhooks), except for its priority,
which `priority_classes` determines. The other is which of several nodes with equal scores is chosen: that depends on
the pod's uid.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from multisched.cycle.results import Conflicted, GangResult, Placed
from multisched.model.objects import Pod
from multisched.model.plural import counted
from multisched.observe.explain_view import NotExplainedError, Placement, WhatIfList, WhatIfView
from multisched.shell.domain import DomainWorker
from multisched.shell.ingest.priority_classes import PlannedPod
from multisched.whatif.explain_known import unserved
from multisched.whatif.queue_ahead import QueueAhead
from multisched.whatif.sandbox import UNASKED, SchedulerSandbox, Tried
from multisched.whatif.what_if_plan import Plan

PREEMPTIONS_MAX = 3
"""Number of preemptions for one replica after which it counts as not placed."""


class _Wanted(msgspec.Struct):
    """The replicas of one manifest."""

    pod: Pod
    worker: DomainWorker
    ones: tuple[Pod, ...]
    notes: list[str]
    placements: Sequence[Placement] = ()

    @property
    def view(self) -> WhatIfView:
        return WhatIfView(
            namespace=self.pod.namespace,
            name=self.pod.name,
            domain=self.worker.name,
            replicas=len(self.ones),
            placements=tuple(self.placements),
            notes=tuple(dict.fromkeys(self.notes)),
        )


def what_if(sandbox: SchedulerSandbox, plan: Plan, replicas: int, *, preempts: bool = True) -> WhatIfList:
    """Places the replicas of each pod in the sandbox, higher priorities first, after the pending pods in front of them.

    `preempts`: False if they may not preempt any pod. Raises NotExplainedError for a pod that no domain would try.
    """
    wanted = [
        _wanted(sandbox, planned, replicas, number, preempts=preempts) for number, planned in enumerate(plan.pods)
    ]
    for kind, item in plan.objects:
        sandbox.add_object(kind, item)
    # the queue's order, whatever the order of the manifests
    ordered = sorted(wanted, key=lambda one: -one.pod.spec.priority)
    with sandbox.with_pending([pod for one in wanted for pod in one.ones]):
        planned_uids = frozenset(pod.uid for one in wanted for pod in one.ones)
        for one in ordered:
            ahead = QueueAhead(sandbox, one.worker, one.ones[0], planned_uids)
            with ahead.placed_first() as trial_uids:
                one.placements = _placements(sandbox, one.worker, one.ones, one.notes)
            if trial_uids:
                verbs = ("waits", "was") if len(trial_uids) == 1 else ("wait", "were")
                waiting = f"{counted(len(trial_uids), 'pod')} that {verbs[0]} in front of it in the queue {verbs[1]}"
                one.notes.append(f"{waiting} placed first{ahead.note}")
    return WhatIfList(items=tuple(one.view for one in wanted), notes=plan.notes)


def _wanted(sandbox: SchedulerSandbox, planned: PlannedPod, replicas: int, number: int, *, preempts: bool) -> _Wanted:
    pod = sandbox.program.pods.with_policy(planned.pod)
    if not preempts:
        pod = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, can_preempt=False))
    worker = sandbox.worker_of(pod)
    if worker is None:
        raise NotExplainedError(unserved(sandbox.program, pod.spec.scheduler_name), status=422)
    if pod.malformed or pod.spec.unsupported:
        text = pod.malformed or f"multisched does not evaluate {', '.join(pod.spec.unsupported)} yet"
        raise NotExplainedError(f"the pod cannot be scheduled: {text}", status=422)
    mark = f"{number}-" if number else ""  # manifests of different kinds may have the same name
    ones = (
        msgspec.structs.replace(pod, name=f"{pod.name}-{mark}{n}", uid=f"what-if-{mark}{n}")
        for n in range(1, replicas + 1)
    )
    return _Wanted(pod, worker, tuple(ones), [*sandbox.notes, *planned.notes])


def _placements(
    sandbox: SchedulerSandbox, worker: DomainWorker, ones: Sequence[Pod], notes: list[str]
) -> list[Placement]:
    gate = sandbox.gate(worker, ones[0])
    if not gate.is_success:
        message = f"{gate.plugin}: {gate.message}"
        return [Placement(replica=number, message=message) for number in range(1, len(ones) + 1)]
    placed_entries = [sandbox.cache.placed(one.uid) for one in ones]
    if any(placed_entries):  # placed with the rest of their gang, by another manifest
        nodes = ["" if one is None else one.node for one in placed_entries]
        return [Placement(replica=number, node=node) for number, node in enumerate(nodes, 1)]
    if sandbox.gang_of(ones[0]) is not None:
        return _place_gang(sandbox, worker, ones, notes)
    placements: list[Placement] = []
    while len(placements) < len(ones):
        number = len(placements) + 1
        placement = _place(sandbox, worker, ones[number - 1], number, notes)
        placements.append(placement)
        if not placement.node:  # those behind it are identical, and the cluster is unchanged
            placements += [msgspec.structs.replace(placement, replica=n + 1) for n in range(number, len(ones))]
    return placements


def _place_gang(
    sandbox: SchedulerSandbox, worker: DomainWorker, ones: Sequence[Pod], notes: list[str]
) -> list[Placement]:
    """Places all at once, with the pending members of their gang, if needed after preemptions."""
    victims: tuple[Pod, ...] = ()
    pods = list(ones)
    result = GangResult((), ())
    for _ in range(PREEMPTIONS_MAX):
        gang = sandbox.gang_of(pods[0])
        if gang is None:
            break
        result, unasked = sandbox.attempt_gang(worker, gang)
        notes.extend(f"{plugin} {UNASKED}" for plugin in unasked)
        preemption = next((one.preemption for one in result.unplaced if one.preemption is not None), None)
        if result.placed or preemption is None:
            break
        for victim in preemption.every_victim:
            sandbox.cache.remove(victim.uid)
        victims = (*victims, *preemption.every_victim)
        pods = [msgspec.structs.replace(pod, nominated_node=preemption.node_of(pod.uid)) for pod in pods]
        sandbox.pending.update({(pod.namespace, pod.name): pod for pod in pods})
    nodes = {placed.pod.uid: placed.node for placed in result.placed}
    words = {refused.pod.uid: refused.message for refused in result.unplaced}
    names = tuple(victim.key for victim in victims)
    return [
        Placement(
            replica=number,
            node=nodes.get(pod.uid, ""),
            victims=names if number == 1 and nodes else (),
            message=words.get(pod.uid, ""),
        )
        for number, pod in enumerate(ones, 1)
    ]


def _place(sandbox: SchedulerSandbox, worker: DomainWorker, pod: Pod, number: int, notes: list[str]) -> Placement:
    """Places one replica, if needed after preemptions."""
    victims: tuple[Pod, ...] = ()
    message = ""
    for _ in range(PREEMPTIONS_MAX):
        tried = sandbox.attempt(worker, pod)
        notes.extend(tried.notes)
        result = tried.result
        if isinstance(result, Placed):
            if result.waits:
                notes.append(f"{', '.join(result.waits)} would delay it at Permit first")
            sandbox.start(pod.uid)
            names = tuple(victim.key for victim in victims)
            total, ties = tried.record.total, _ties(tried)
            return Placement(replica=number, node=result.node, total=total, ties=ties, victims=names)
        if isinstance(result, Conflicted):
            return Placement(replica=number, message=result.refusal or "its nodes are no longer feasible")
        message = result.message
        if result.preemption is None:
            break
        for victim in result.victims:
            sandbox.cache.remove(victim.uid)
        victims = (*victims, *result.victims)
        pod = msgspec.structs.replace(pod, nominated_node=result.preemption.node_of(pod.uid))
    return Placement(replica=number, message=message)


def _ties(tried: Tried) -> int:
    snapshot = tried.record.snapshot
    if snapshot is None or not len(snapshot.total):
        return 0
    return int(np.count_nonzero(snapshot.total == tried.record.total))

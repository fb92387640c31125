"""Where pods that do not exist yet would go, and whom they would preempt: placed one after the other in a sandbox.

Two things are not known beforehand. One is what admission makes of a pod (LimitRange, webhooks), save for its priority,
which `priority_classes` tells. The other is which of several equally good nodes chance takes: it goes by the pod's uid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import orjson

from multisched.cycle.results import Conflicted, GangResult, Placed
from multisched.model.decode import DecodeError, Decoder
from multisched.model.objects import Pod
from multisched.observe.explain_view import NotExplainedError, Placement, WhatIfView
from multisched.shell.domain import DomainWorker
from multisched.shell.ingest.priority_classes import PlannedPod
from multisched.whatif.sandbox import UNASKED, SchedulerSandbox, Tried

PREEMPTIONS_MAX = 3
"""Times one replica may preempt before it counts as going nowhere."""


def planned_pod(document: Mapping[str, Any], decoder: Decoder) -> PlannedPod:
    """The pod of a manifest: a Pod, or the template of a workload. `decoder`: the program's. Raises NotExplainedError."""
    if not isinstance(document, Mapping):
        raise NotExplainedError("the manifest is no object; give one Pod or one workload", status=422)
    metadata, spec = dict(_part(document, "metadata")), _part(document, "spec")
    is_template = False
    if document.get("kind") == "CronJob":
        spec = _part(_part(spec, "jobTemplate"), "spec")
    if "template" in spec:
        is_template = True
        template = _part(spec, "template")
        metadata |= {key: value for key, value in _part(template, "metadata").items() if key != "name"}
        spec = _part(template, "spec")
    elif document.get("kind", "Pod") != "Pod":
        raise NotExplainedError(f"a {document['kind']} has no pod in it; give one Pod or one workload", status=422)
    if not spec.get("containers"):
        raise NotExplainedError("the manifest has no pod spec with containers", status=422)
    if spec.get("nodeName"):
        raise NotExplainedError(f"the pod says where it goes: nodeName {spec['nodeName']}", status=422)
    name = metadata.get("name") or metadata.get("generateName") or "what-if"
    kept = {key: metadata[key] for key in ("labels", "annotations") if metadata.get(key)}
    kept |= {"name": name, "namespace": metadata.get("namespace") or "default", "uid": "what-if"}
    try:
        pod = decoder.pod(orjson.dumps({"metadata": kept, "spec": spec, "status": {"phase": "Pending"}}))
    except (DecodeError, TypeError) as error:
        raise NotExplainedError(f"the pod cannot be read: {error}", status=422) from error
    return PlannedPod(
        pod,
        f"{name}-" if is_template else str(name),
        str(spec.get("priorityClassName") or ""),
        spec.get("priority"),
        spec.get("preemptionPolicy"),
    )


def _part(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Empty if it is not there. Raises NotExplainedError."""
    part = document.get(key)
    if part is None:
        return {}
    if not isinstance(part, Mapping):
        raise NotExplainedError(f"{key} of the manifest is no object; write its fields below it", status=422)
    return part


def what_if(sandbox: SchedulerSandbox, planned: PlannedPod, replicas: int) -> WhatIfView:
    """Places so many of the pod in thought. Raises NotExplainedError for a pod that nobody would look at."""
    notes = [*sandbox.notes, *planned.notes]
    pod = sandbox.program.pods.with_policy(planned.pod)
    worker = sandbox.worker_of(pod)
    if worker is None:
        names = ", ".join(name for names in sandbox.program.scheduler_names.values() for name in names)
        text = f"no domain serves schedulerName {pod.spec.scheduler_name}; there are {names}"
        raise NotExplainedError(text, status=422)
    if pod.malformed or pod.spec.unsupported:
        text = pod.malformed or f"multisched does not evaluate {', '.join(pod.spec.unsupported)} yet"
        raise NotExplainedError(f"the pod cannot be scheduled: {text}", status=422)
    ones = [msgspec.structs.replace(pod, name=f"{pod.name}-{n}", uid=f"what-if-{n}") for n in range(1, replicas + 1)]
    with sandbox.with_pending(ones):
        placements = _placements(sandbox, worker, ones, notes)
    return WhatIfView(
        namespace=pod.namespace,
        name=pod.name,
        domain=worker.name,
        replicas=replicas,
        placements=tuple(placements),
        notes=tuple(dict.fromkeys(notes)),
    )


def _placements(
    sandbox: SchedulerSandbox, worker: DomainWorker, ones: Sequence[Pod], notes: list[str]
) -> list[Placement]:
    gate = sandbox.gate(worker, ones[0])
    if not gate.is_success:
        message = f"{gate.plugin}: {gate.message}"
        return [Placement(replica=number, message=message) for number in range(1, len(ones) + 1)]
    if sandbox.gang_of(ones[0]) is not None:
        return _place_gang(sandbox, worker, ones, notes)
    placements: list[Placement] = []
    while len(placements) < len(ones):
        number = len(placements) + 1
        placement = _place(sandbox, worker, ones[number - 1], number, notes)
        placements.append(placement)
        if not placement.node:  # those behind it are alike, and nothing has changed
            placements += [msgspec.structs.replace(placement, replica=n + 1) for n in range(number, len(ones))]
    return placements


def _place_gang(
    sandbox: SchedulerSandbox, worker: DomainWorker, ones: Sequence[Pod], notes: list[str]
) -> list[Placement]:
    """All at once, with those of their gang that wait already, if need be after others were preempted for them."""
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
    """One replica, if need be after others were preempted for it."""
    victims: tuple[Pod, ...] = ()
    message = ""
    for _ in range(PREEMPTIONS_MAX):
        tried = sandbox.attempt(worker, pod)
        notes.extend(tried.notes)
        result = tried.result
        if isinstance(result, Placed):
            if result.waits:
                notes.append(f"{', '.join(result.waits)} would hold it at Permit first")
            names = tuple(victim.key for victim in victims)
            total, ties = tried.record.total, _ties(tried)
            return Placement(replica=number, node=result.node, total=total, ties=ties, victims=names)
        if isinstance(result, Conflicted):
            return Placement(replica=number, message=result.refusal or "its nodes were taken meanwhile")
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

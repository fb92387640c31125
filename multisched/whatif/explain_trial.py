"""Answers by trial: how an attempt of a pod would end now, why not a certain node, and what would help.

Pure over a `SchedulerSandbox`, which is a copy: the running program is not changed. `complete` adds to the records of a
running program; `DumpExplanations` answers queries about a dump of `kubectl get -o json`, for which there are no
records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import msgspec

from multisched.config.schema import Configuration
from multisched.cycle.results import Placed
from multisched.framework.gangs import GANG_PLUGIN
from multisched.framework.status import SUCCESS, Status
from multisched.model.objects import Pod
from multisched.model.plural import counted
from multisched.observe.explain_attempt import AttemptReader
from multisched.observe.explain_view import (
    Attempt,
    ExplainQuery,
    Fix,
    NotExplainedError,
    PodView,
    PointResult,
    WhatIfList,
    WhatIfView,
)
from multisched.shell.domain import DomainWorker
from multisched.whatif.explain_known import BOUND, key_notes, plugin_notes, require_node, unserved
from multisched.whatif.fixes import find_fixes
from multisched.whatif.queue_ahead import QueueAhead
from multisched.whatif.sandbox import DumpedCluster, SchedulerSandbox, Tried
from multisched.whatif.what_if import what_if
from multisched.whatif.what_if_plan import Plan, plan_of, plan_of_all


class DumpExplanations:
    """Answers the queries of `ExplainSource` about a dump: everything is tried."""

    def __init__(self, configuration: Configuration, known: DumpedCluster) -> None:
        """Raises PluginSetupError for a profile that cannot be built."""
        self._sandbox = SchedulerSandbox(configuration, known)

    def pod(self, query: ExplainQuery) -> PodView:
        """Explains one pod. Raises NotExplainedError."""
        sandbox = self._sandbox
        pod = sandbox.pending.get((query.namespace, query.name))
        if pod is None:
            placed = (entry.pod for entry in sandbox.cache)
            pod = next((one for one in placed if (one.namespace, one.name) == (query.namespace, query.name)), None)
        if pod is None:
            text = f"pod {query.namespace}/{query.name} is not in the dump, or has ended"
            raise NotExplainedError("; ".join((text, *sandbox.notes)))
        if query.node:
            require_node(query.node, [node.name for _, node in sandbox.cache.nodes.live_rows()])
        worker = sandbox.worker_of(pod)
        if worker is None:
            raise NotExplainedError(unserved(sandbox.program, pod.spec.scheduler_name), status=422)
        nodes = dict.fromkeys(filter(None, (pod.node, query.node)))
        view = PodView(
            namespace=pod.namespace,
            name=pod.name,
            uid=pod.uid,
            scheduler=pod.spec.scheduler_name,
            domain=worker.name,
            state=BOUND if pod.node else "pending",
            waiting_for="",
            node=pod.node,
            requests=dict(pod.requests),
            notes=(*plugin_notes(sandbox.program, worker, pod, nodes), *key_notes(sandbox.program, worker, pod, nodes)),
        )
        return complete(view, sandbox, pod, query)

    def what_if(self, document: Mapping[str, Any], replicas: int, *, preempts: bool = True) -> WhatIfView:
        """See `ExplainSource`. Raises NotExplainedError."""
        plan = plan_of(document, self._sandbox.program.decoder)
        return self._what_if(plan, replicas, preempts=preempts).items[0]

    def what_if_list(self, documents: Sequence[Any], replicas: int) -> WhatIfList:
        """See `ExplainSource`. Raises NotExplainedError."""
        return self._what_if(plan_of_all(documents, self._sandbox.program.decoder), replicas)

    def _what_if(self, plan: Plan, replicas: int, *, preempts: bool = True) -> WhatIfList:
        return what_if(self._sandbox, plan.admitted(self._sandbox.classes), replicas, preempts=preempts)


def complete(view: PodView, sandbox: SchedulerSandbox, pod: Pod, query: ExplainQuery) -> PodView:
    """Adds what needs a trial: how an attempt would end now, why not a certain node, and what would help."""
    worker = sandbox.worker_of(pod)
    assert worker is not None, f"{pod.key} belongs to no domain"
    notes = [*view.notes, *sandbox.notes]
    if pod.malformed or pod.spec.unsupported:
        text = pod.malformed or f"multisched does not evaluate {', '.join(pod.spec.unsupported)} yet"
        return msgspec.structs.replace(view, state="refused", waiting_for=f"a change of the pod itself: {text}")
    gate, placed_entry = sandbox.gate(worker, pod), sandbox.cache.placed(pod.uid)
    if placed_entry is not None and gate.plugin == GANG_PLUGIN:
        gate = SUCCESS  # a placed member waits for no other member
    if not gate.is_success:
        notes.append(f"{gate.plugin} gates it: {gate.message}; below, the result without that gate")
    elif placed_entry is None:
        notes.extend(_gang_notes(sandbox, worker, pod))
    world = nullcontext() if placed_entry is None else sandbox.without_pod(placed_entry.pod)
    with world:
        worker.cycle.records.keep_all_snapshots(with_raw=True)
        tried = sandbox.attempt(worker, msgspec.structs.replace(pod, node=""))
        worker.cycle.records.keep_all_snapshots()
        sandbox.undo(worker, tried)
        view = _with_trial(view, sandbox, worker, tried, query)
        if placed_entry is None and isinstance(tried.result, Placed) and tried.result.node != query.node:
            notes.extend(plugin_notes(sandbox.program, worker, pod, (tried.result.node,)))
    if view.now is not None and not gate.is_success:
        view = msgspec.structs.replace(view, now=_held_back(view.now, worker, gate))
    notes.extend(tried.notes)
    if query.with_fixes and placed_entry is not None:
        notes.append("it has a node, so there is nothing to fix")
    elif query.with_fixes:
        view = _with_fixes(view, sandbox, worker, pod, notes)
    return msgspec.structs.replace(view, notes=tuple(notes))


def _gang_notes(sandbox: SchedulerSandbox, worker: DomainWorker, pod: Pod) -> Iterator[str]:
    """Yields the result for its gang, if it has one: the results per node are about the pod alone."""
    gang = sandbox.gang_of(pod)
    result = None if gang is None else sandbox.try_gang(worker, gang, pod)
    if result is None:
        return
    alone = "the results per node are about this pod alone"
    if isinstance(result, Placed):
        yield f"it is placed with its gang, on {result.node}; {alone}"
    else:
        yield f"it is placed with its gang or not at all, and {alone}: {result.message}"


def _with_trial(
    view: PodView, sandbox: SchedulerSandbox, worker: DomainWorker, tried: Tried, query: ExplainQuery
) -> PodView:
    rows, now_s = sandbox.program.router.rows_of(worker), sandbox.program.clock.monotonic()
    reader = AttemptReader(worker.plugins, sandbox.cache.nodes, rows, now_s, query.names)
    now = reader.attempt(tried.record)
    on_node = view.on_node
    if query.node and on_node is None:
        on_node = reader.on_node(tried.record, query.node)
    return msgspec.structs.replace(view, now=now, on_node=on_node)


def _held_back(attempt: Attempt, worker: DomainWorker, gate: Status) -> Attempt:
    """Returns the attempt, made without the gate, with the real PreEnqueue results: plugins after the gate are not called."""
    names = [plugin.name for plugin in worker.plugins.pre_enqueue]
    asked = names[: names.index(gate.plugin)] if gate.plugin in names else []
    said = [PointResult(point="PreEnqueue", plugin=name, said="admits it") for name in asked]
    said.append(PointResult(point="PreEnqueue", plugin=gate.plugin, said=f"gates it: {gate.message}"))
    return msgspec.structs.replace(attempt, points=(*said, *(p for p in attempt.points if p.point != "PreEnqueue")))


def _with_fixes(view: PodView, sandbox: SchedulerSandbox, worker: DomainWorker, pod: Pod, notes: list[str]) -> PodView:
    ahead = QueueAhead(sandbox, worker, pod)
    alone = sandbox.fits(worker, pod)
    with ahead.placed_first() as trial_uids:
        fits = sandbox.fits(worker, pod) if trial_uids else alone
        found = () if fits is not None else find_fixes(sandbox, worker, pod, ahead, trial_uids)
    if fits is not None:
        notes.append(f"it fits now, on {fits}, and only has to be retried")
        return msgspec.structs.replace(view, fixes=())
    if alone is not None:
        notes.append(f"it would fit {alone}, but pods in front of it in the queue are placed there first")
    if len(ahead):
        notes.append(
            f"{counted(len(ahead), 'pod')} in front of it in the queue were placed first in each trial{ahead.note}"
        )
    fixes = tuple(
        Fix(kind=f.kind, text=f.text, size=f.size, node=f.node, change=f.change, command=f.command) for f in found
    )
    is_member = sandbox.cache.gangs.key_of(pod.uid) is not None
    if is_member and not fixes and view.now is not None and view.now.outcome == "placed":
        notes.append("none of the tried single changes lets it start with its gang")  # the pod alone would fit
    return msgspec.structs.replace(view, fixes=fixes)

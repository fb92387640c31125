"""The facts that a program has about one pod without a trial: its node, its history, and what it waits for.

Read on the program's loop, in one synchronous step.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from multisched.client.paths import pod_path
from multisched.framework.events import Action, ClusterEvent, EventResource, Resource
from multisched.framework.gangs import GANG_PLUGIN, Reserving
from multisched.framework.introspection import ExplainPlugin, PendingNotePlugin
from multisched.framework.points import EnqueueExtensions, Plugin
from multisched.framework.registry import implements
from multisched.model.decode import DecodeError
from multisched.model.objects import Pod
from multisched.model.own_keys import remarks_of_node, remarks_of_pod, unclear_consents
from multisched.model.wire import UNREADABLE, TransportError
from multisched.observe.explain_attempt import AttemptReader
from multisched.observe.explain_view import ExplainQuery, NotExplainedError, PodView, Step, Wake
from multisched.queueing.entry import QueueEntry
from multisched.queueing.quarantine import API_SERVER, ServerRefusals
from multisched.queueing.transitions import POPPED, QueueState
from multisched.shell.domain import DomainWorker
from multisched.shell.program import Program

READ_TIMEOUT_S = 5.0
BOUND, NOT_OURS = "bound", "not ours"
KEPT_FREE_NODES = 3
"""Limit of the nodes for which the nominated pods are named."""
KEPT_FREE_PODS = 3
"""Limit of the pods that are named for each of them."""
NEAR_NAMES = 3
"""Limit of the similar node names that are listed for an unknown node."""
NAME_NEARNESS = 0.85
"""Minimum similarity of a schedulerName. It is high because many end in `-scheduler`, so that default-scheduler is similar to
forecast-scheduler.
"""
NEARNESS = 0.5
"""Minimum similarity of a node name, as difflib computes it; n1 and n2 are just similar enough."""

_THINGS: Mapping[EventResource, str] = {
    Resource.NODE: "a node",
    Resource.ASSIGNED_POD: "a pod on a node",
    Resource.DISTANT_NODE: "a node of another domain",
    Resource.UNSCHEDULED_POD: "a waiting pod",
    Resource.TARGET_POD: "the pod itself",
    Resource.WILDCARD: "anything",
}
_ACTIONS = (
    (Action.ADD, "is added"),
    (Action.DELETE, "is deleted"),
    (Action.UPDATE_NODE_ALLOCATABLE, "changes its allocatable"),
    (Action.UPDATE_NODE_LABEL, "changes its labels"),
    (Action.UPDATE_NODE_TAINT, "changes its taints"),
    (Action.UPDATE_NODE_CONDITION, "changes its conditions"),
    (Action.UPDATE_NODE_ANNOTATION, "changes its annotations"),
    (Action.UPDATE_NODE_DECLARED_FEATURE, "changes its features"),
    (Action.UPDATE_POD_LABEL, "changes its labels"),
    (Action.UPDATE_POD_SCALE_DOWN, "asks for less"),
    (Action.UPDATE_POD_SCALE_UP, "asks for more"),
    (Action.UPDATE_POD_TOLERATION, "changes its tolerations"),
    (Action.UPDATE_POD_GATES, "loses a gate"),
    (Action.UPDATE_POD_OTHER, "changes otherwise"),
    (Action.UPDATE_POD_DELETING, "begins to be deleted"),
    (Action.UPDATE, "changes"),
)


class KnownPod(msgspec.Struct, frozen=True):
    """A pod and the domain that serves it."""

    pod: Pod
    worker: DomainWorker | None
    node: str = ""
    """The node on which it is placed, assumed or not."""
    is_bound: bool = False
    refusal: str = ""
    """Why no queue holds it; only a change of the pod itself helps."""
    refused_at_s: float = 0.0


def find_pod(program: Program, namespace: str, name: str) -> KnownPod:
    """Returns the pod. Raises NotExplainedError if it is not known."""
    uid = program.pods.uid_of(f"{namespace}/{name}")
    refused = program.pods.refused.get(uid)
    if refused is not None:
        worker = program.router.worker_of(refused.pod)
        return KnownPod(refused.pod, worker, refusal=refused.message, refused_at_s=refused.since_s)
    placed = program.cache.placed(uid)
    if placed is not None:
        worker = program.router.worker_of(placed.pod)
        # An assumed pod that is in no queue any more is bound: the bind's response arrived before the watch event.
        is_bound = not program.cache.is_assumed(uid) or worker is None or worker.queue.entry(uid) is None
        return KnownPod(placed.pod, worker, placed.node, is_bound)
    pending = program.pods.pending.get(uid)
    if pending is None:
        names = ", ".join(name for names in program.scheduler_names.values() for name in names)
        text = (
            f"pod {namespace}/{name} is not known here: it does not exist, has ended, or has a schedulerName other than"
        )
        raise NotExplainedError(f"{text} {names}")
    return KnownPod(pending, program.router.worker_of(pending))


async def foreign_pod(program: Program, query: ExplainQuery, unknown: NotExplainedError) -> NotExplainedError:
    """Returns the error for a pod that is not known here; names the schedulerName if that is another one. Reads the API server."""
    try:
        path = pod_path(query.namespace, query.name)
        answer = await program.transport.request("GET", path, timeout_s=READ_TIMEOUT_S)
        pod = program.decoder.pod(answer.body) if answer.status == 200 else None
    except (TransportError, DecodeError, *UNREADABLE):
        return unknown
    if pod is None or pod.is_terminal or program.router.worker_of(pod) is not None:
        return unknown
    return NotExplainedError(f"pod {pod.key}: {unserved(program, pod.spec.scheduler_name)}")


def unserved(program: Program, scheduler_name: str) -> str:
    """Returns the error for a schedulerName that no domain serves, with the names of the configuration or the one that
    was probably meant.
    """
    names = [name for names in program.scheduler_names.values() for name in names]
    near = difflib.get_close_matches(scheduler_name, names, n=1, cutoff=NAME_NEARNESS)
    hint = f"did you mean {near[0]}?" if near else f"the configuration has {', '.join(names)}"
    return f"no domain serves schedulerName {scheduler_name}; {hint}"


def require_node(name: str, known: Sequence[str]) -> None:
    """Raises NotExplainedError with the most similar names if the node is not known.

    The search for similar names takes a tenth of a second in a large cluster, so it must not run on the program's loop.
    """
    if name in known:
        return
    near = difflib.get_close_matches(name, known, n=NEAR_NAMES, cutoff=NEARNESS)
    hint = f"did you mean {' or '.join(near)}?" if near else f"none of the {len(known)} nodes has a name like that"
    raise NotExplainedError(f"node {name} is not known here: {hint}")


def describe(program: Program, known: KnownPod, query: ExplainQuery) -> PodView:
    """Returns all that the program has recorded about the pod."""
    pod, worker, now_s = known.pod, known.worker, program.clock.monotonic()
    base = PodView(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        scheduler=pod.spec.scheduler_name,
        domain="" if worker is None else worker.name,
        state=BOUND if known.is_bound else "refused",
        waiting_for="" if known.is_bound else f"a change of the pod itself: {known.refusal}",
        node=known.node,
        requests=dict(pod.requests),
        since_s=0.0 if known.is_bound else now_s - known.refused_at_s,
    )
    if worker is None:
        note = f"another scheduler placed it: no domain has {pod.spec.scheduler_name}"
        return _changed(base, notes=(note,))
    reader = AttemptReader(worker.plugins, program.cache.nodes, program.router.rows_of(worker), now_s, query.names)
    records = worker.cycle.records.read(pod.uid)
    attempts = tuple(reader.attempt(record) for record in reversed(records))
    on_node = reader.on_node(records[-1], query.node) if query.node and records else None
    made = records[-1].attempt if records else 0
    nodes = dict.fromkeys(filter(None, (known.node, query.node)))
    notes = (*plugin_notes(program, worker, pod, nodes), *key_notes(program, worker, pod, nodes))
    view = _changed(base, attempts=attempts, on_node=on_node, attempts_made=made, notes=notes)
    entry = worker.queue.entry(pod.uid)
    if known.is_bound or known.refusal or entry is None:
        return view
    return _changed(
        view,
        notes=(*notes, *_pending_notes(program, worker, pod), *_kept_free(program, pod, _blocked_nodes(view, query))),
        state=_state(worker, entry),
        waiting_for=_waiting_for(worker, entry, known.node, now_s),
        since_s=now_s - entry.since_s,
        waiting_s=now_s - entry.added_s,
        retry_in_s=None if entry.retry_at_s is None else max(0.0, entry.retry_at_s - now_s),
        attempts_made=entry.attempts,
        wakes=tuple(_wakes(worker, entry)),
        history=tuple(
            Step(ago_s=now_s - at_s, event=event, state=state.value)
            for at_s, event, state in worker.queue.transitions(pod.uid)
        ),
    )


def _blocked_nodes(view: PodView, query: ExplainQuery) -> Sequence[str]:
    """Returns the node that the query names, which may be empty; without one, the nodes that the last attempt refused because of pods
    nominated there.
    """
    if query.node or not view.attempts:
        return (query.node,)
    return [node for verdict in view.attempts[0].refused if verdict.is_for_nominated for node in verdict.nodes]


def _kept_free(program: Program, pod: Pod, nodes: Sequence[str]) -> Iterator[str]:
    """Yields the pods for which nodes keep resources free that this pod therefore cannot use."""
    gangs = program.cache.gangs
    for node in nodes[:KEPT_FREE_NODES]:
        ahead = program.nominator.ahead_on(node, pod)
        if not ahead:
            continue
        names = ", ".join(one.key for one in ahead[:KEPT_FREE_PODS])
        more = f" and {len(ahead) - KEPT_FREE_PODS} more" if len(ahead) > KEPT_FREE_PODS else ""
        keys = (gangs.key_of(one.uid) or "" for one in ahead)
        reserving = sorted({key for key in keys if gangs.reserving(key) is Reserving.NOW})
        why = f"; resources that become free there are reserved for gang {' and '.join(reserving)}" if reserving else ""
        yield f"node {node} is kept free for nominated pods: {names}{more}{why}"


def plugin_notes(program: Program, worker: DomainWorker, pod: Pod, nodes: Iterable[str]) -> Iterator[str]:
    """Yields what plugins know of these nodes in addition to their scores."""
    for node in nodes:
        row = program.cache.nodes.row_of(node)
        if row is None:
            continue
        for built in worker.plugins.built:
            if implements(built.plugin, ExplainPlugin) and (said := built.plugin.describe(pod, row)):
                yield f"{built.plugin.name} about {node}: {said}"


def _pending_notes(program: Program, worker: DomainWorker, pod: Pod) -> Iterator[str]:
    """Yields the notes of plugins on a pending pod."""
    now_s = program.clock.now().timestamp()
    for built in worker.plugins.built:
        if implements(built.plugin, PendingNotePlugin) and (said := built.plugin.note_on_pending(pod, now_s)):
            yield f"{built.plugin.name}: {said}"


def key_notes(program: Program, worker: DomainWorker, pod: Pod, nodes: Iterable[str]) -> Iterator[str]:
    """Yields labels and annotations of the pod and of these nodes that have no effect or are invalid."""
    yield from remarks_of_pod(pod, worker.name, {built.plugin.name for built in worker.plugins.built})
    yield from unclear_consents(pod)
    for name in nodes:
        row = program.cache.nodes.row_of(name)
        node = None if row is None else program.cache.nodes.node(row)
        yield from (f"node {name}: {remark}" for remark in (remarks_of_node(node) if node is not None else ()))


def _changed(view: PodView, **changes: object) -> PodView:
    return msgspec.structs.replace(view, **changes)


def _state(worker: DomainWorker, entry: QueueEntry) -> str:
    if entry.is_quarantined:
        return "quarantined"
    if entry.state not in POPPED:
        return entry.state.value
    return "permit" if worker.waiting.holders(entry.uid) else "binding"


def _waiting_for(worker: DomainWorker, entry: QueueEntry, node: str, now_s: float) -> str:
    match entry.state:
        case QueueState.ACTIVE:
            return "its turn in the queue"
        case QueueState.BACKOFF:
            return "the end of its backoff"
        case QueueState.UNSCHEDULABLE:
            return f"an event that can help {' and '.join(entry.plugins) or 'it'}"
        case QueueState.GATED:
            return f"{entry.plugins[0]} to admit it: {entry.message}"
        case QueueState.GANG:
            return f"its gang, with which it is tried{': ' if entry.message else ''}{entry.message}"
    holders = worker.waiting.holders(entry.uid)
    if holders:
        waits = (f"{plugin} ({max(0.0, until_s - now_s):.0f} s at most)" for plugin, until_s in sorted(holders.items()))
        return f"the permission of {' and '.join(waits)}, on node {node}"
    return f"its binding to {node}" if node else "the end of an attempt in progress"


def _wakes(worker: DomainWorker, entry: QueueEntry) -> Iterator[Wake]:
    if entry.state not in (QueueState.UNSCHEDULABLE, QueueState.GATED):
        return
    by_name: dict[str, Plugin] = {built.plugin.name: built.plugin for built in worker.plugins.built}
    by_name[API_SERVER] = ServerRefusals()
    for name in entry.plugins:
        plugin = by_name.get(name)
        if name == GANG_PLUGIN and entry.state is QueueState.GATED:
            yield Wake(
                plugin=name, events=("a member of its gang is added or changes", "what its gang asks for changes")
            )
        elif isinstance(plugin, EnqueueExtensions):
            events = (_event_words(registration.event) for registration in plugin.events_to_register())
            yield Wake(plugin=name, events=tuple(dict.fromkeys(events)))
        else:
            yield Wake(plugin=name, events=("anything happens",))


def _event_words(event: ClusterEvent) -> str:
    kind = event.resource.value
    thing = _THINGS.get(event.resource, f"{'an' if kind.startswith(tuple('AEIO')) else 'a'} {kind}")
    if event.action & Action.ALL == Action.ALL:
        return f"{thing} is added, changes or is deleted"
    return f"{thing} {' or '.join(words for action, words in _ACTIONS if action & event.action)}"

"""The smallest single changes after which a pod fits. Each is tried in a sandbox with all plugins before it is shown.

Candidates are derived from the last refusal: changes of the pod, of its quota, of a node, and deletions of other pods.
`FoundFix.size` says how much a fix changes, and orders the fixes: 0 for removing a scheduling gate; for a lower request or annotation, the
fraction by which it is lowered (0..1); 0.3 for a toleration; 0.35 for the schedulerName of another domain; 0.4 for a loosened constraint;
0.5 for a dropped one; 0.6 for a quota's max; 0.7 for a node's label, taint or cordon; 1 for deleting a pod, or 2 if that pod's priority
is higher than this pod's.
If a change may also help other pods, those in front of the pod in the queue are placed first. The number of trials is bounded: if
thousands of nodes refuse for many reasons, a fix may be missed, but every fix that is shown works.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from multisched.cycle.classes.score_snapshot import ScoreSnapshot
from multisched.framework.introspection import RoomPlugin
from multisched.framework.node_view import Bools, Int64, Rows, any_true
from multisched.framework.points import Plugin
from multisched.framework.registry import implements
from multisched.framework.status import Code
from multisched.model.objects import CPU, MEMORY, PODS, ExtendedRequests, Node, Pod
from multisched.model.quota_tree import quota_amount, shown_amount
from multisched.model.selectors import NO_EXECUTE, NO_SCHEDULE, NodeSelector, Operator, Requirement, Taint, Toleration
from multisched.shell.domain import DomainWorker
from multisched.whatif.queue_ahead import QueueAhead
from multisched.whatif.quota_fixes import quota_edits, quota_room
from multisched.whatif.sandbox import SchedulerSandbox

TRIALS_MAX = 64
"""Maximum number of trials for one pod; each takes some milliseconds with 5,000 nodes."""
MEMBERS_TRIED_MAX = 20_000
"""Maximum number of pods placed in all trials for one pod. So a pod with a gang, or with many pods in front of it, gets fewer trials."""
TRIALS_PER_KIND = 12
FIXES_PER_KIND = 3
SET_BY_KUBELET = frozenset({"kubernetes.io/hostname", "kubernetes.io/os", "kubernetes.io/arch"})
"""Labels that describe the node. No fix changes them, because the kubelet sets them again."""
SET_BY_CLOUD = frozenset({
    "topology.kubernetes.io/zone", "topology.kubernetes.io/region", "node.kubernetes.io/instance-type",
    "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region",
    "beta.kubernetes.io/instance-type", "beta.kubernetes.io/os", "beta.kubernetes.io/arch",
})  # fmt: skip
"""Labels that describe the node's machine and location. A fix may add a missing one, but does not change an existing one."""
NODES_TRIED = 200
"""Maximum number of nodes examined for a label, a taint or a victim. For victims, nodes with the fewest refusals are first."""
SKEWS_TRIED = (1, 2, 3, 5, 10, 20)
"""Increments of maxSkew, tried in this order until the pod fits."""
RESOURCES_FIT = "NodeResourcesFit"
NO_LIMIT = np.iinfo(np.int64).max
UNSCHEDULABLE_TAINT = "node.kubernetes.io/unschedulable"


class FoundFix(msgspec.Struct, frozen=True):
    """A tried change after which the pod fits."""

    kind: str
    text: str
    size: float
    node: str
    change: dict[str, Any]
    command: str


class _Trial(msgspec.Struct, frozen=True):
    """A change to try: the changed pod, in the changed cluster."""

    kind: str
    text: str
    size: float
    change: dict[str, Any]
    pod: Pod
    cluster_change: Callable[[], AbstractContextManager[None]] = nullcontext
    command: str = ""
    goal: str = ""
    """The goal of the trial. After one trial has succeeded, others with the same goal are skipped."""
    worker: DomainWorker | None = None
    """The domain in which the pod is tried; None: its own domain."""

    @property
    def changes_cluster(self) -> bool:
        """True if the change may also make other pods fit."""
        return self.cluster_change is not nullcontext


def find_fixes(
    sandbox: SchedulerSandbox, worker: DomainWorker, pod: Pod, ahead: QueueAhead, trial_uids: frozenset[str]
) -> list[FoundFix]:
    """Returns the fixes for a pod that does not fit, the smallest first; empty if no trial succeeds.

    `ahead`: the pods in front of it in the queue. `trial_uids`: uids of pods that are placed only in the sandbox.
    """
    found: list[FoundFix] = []
    left = min(TRIALS_MAX, max(1, MEMBERS_TRIED_MAX // (len(sandbox.starting_with(pod)) + len(ahead))))
    for trials in _CandidateChanges(sandbox, worker, pod, trial_uids).by_kind():
        reached: set[str] = set()
        for trial in islice(trials, min(left, TRIALS_PER_KIND)):
            if trial.goal in reached or len(reached) >= FIXES_PER_KIND:
                continue
            left -= 1
            with trial.cluster_change(), _queue_of(trial, sandbox, ahead):
                node = sandbox.fits(trial.worker or worker, trial.pod)
            if node is not None:
                reached.add(trial.goal)
                found.append(FoundFix(trial.kind, trial.text, trial.size, node, trial.change, trial.command))
    return sorted(found, key=lambda fix: (fix.size, fix.text))


def _queue_of(trial: _Trial, sandbox: SchedulerSandbox, ahead: QueueAhead) -> AbstractContextManager[object]:
    """Returns a context in which the pods in front of the pod are placed.

    If only the pod changes, and stays in its domain, the context places none: that domain's queue was placed before the trials.
    """
    if trial.worker is not None:
        return QueueAhead(sandbox, trial.worker, trial.pod).placed_first()
    return ahead.placed_first() if trial.changes_cluster else nullcontext()


class _CandidateChanges:
    """Candidate changes for one pod, from the result of each plugin for each node."""

    def __init__(
        self, sandbox: SchedulerSandbox, worker: DomainWorker, pod: Pod, trial_uids: frozenset[str] = frozenset()
    ) -> None:
        self._sandbox = sandbox
        self._worker = worker
        self._trial_uids = trial_uids
        self._table = sandbox.cache.nodes
        self._pod = pod
        tried = sandbox.attempt(worker, pod)
        sandbox.undo(worker, tried)
        self._snapshot = tried.record.snapshot

    def by_kind(self) -> Iterator[Iterator[_Trial]]:
        if self._pod.gates:
            yield self._gates()
            return  # no attempt for a gated pod, so no other change helps
        yield self._requests()
        yield self._quotas()
        yield self._tolerations()
        yield self._schedulers()
        yield self._selectors()
        yield self._spreads()
        yield self._pod_affinities()
        yield self._host_ports()
        yield self._node_states()
        yield self._node_labels()
        yield self._victims()

    # -- the pod ---------------------------------------------------------------------------------------------------

    def _gates(self) -> Iterator[_Trial]:
        names = ", ".join(self._pod.gates)
        yield _Trial(
            "gate",
            f"remove the scheduling gate{'s' if len(self._pod.gates) > 1 else ''} {names}",
            0.0,
            {"remove": list(self._pod.gates)},
            msgspec.structs.replace(self._pod, gates=()),
            command=self._patch([{"op": "remove", "path": "/spec/schedulingGates"}]),
        )

    def _requests(self) -> Iterator[_Trial]:
        """Yields smaller requests of one resource or annotation, for nodes where only this one is insufficient."""
        room_plugins = {p.name: p for p in self._refusing() if implements(p, RoomPlugin)}
        rows = self._refused_by_only(RESOURCES_FIT, *room_plugins)
        if not len(rows):
            return
        found = [plugin.takes_at_most(self._pod, rows) for plugin in room_plugins.values()]
        plugin_limits = {name: amounts for limits in found for name, amounts in limits.items()}
        requests = {name: amount for name, amount in self._pod.requests.items() if amount > 0}
        room = {name: self._room(name)[rows] for name in (PODS, *requests)}
        for name in (name for name in requests if not self._table.has_column(name)):
            # NodeResourcesFit ignores resources that no node has.
            room[name] = np.where(_passing(self._snapshot, RESOURCES_FIT, rows), NO_LIMIT, room[name])
        short = {name: room[name] < amount for name, amount in {PODS: 1, **requests}.items()}
        refused_by_plugins = np.zeros(len(rows), np.bool_)
        for name in room_plugins:
            refused_by_plugins |= ~_passing(self._snapshot, name, rows)
        for name, amount in requests.items():
            others = np.logical_or.reduce([mask for other, mask in short.items() if other != name])
            others = others if name in plugin_limits else others | refused_by_plugins
            limit = np.minimum(room[name], plugin_limits.get(name, NO_LIMIT))
            for fits in _largest(limit[(limit < amount) & ~others]):
                text = f"lower the {name} request from {_shown(name, amount)} to {_shown(name, fits)}"
                change = {"resource": name, "from": amount, "to": fits}
                size = (amount - fits) / amount
                yield _Trial("request", text, size, change, self._with_request(name, fits), goal=name)
        has_room = ~np.logical_or.reduce(list(short.values()))
        for name, amounts in plugin_limits.items():
            if name not in room:
                yield from self._annotations(name, amounts[has_room])

    def _annotations(self, name: str, amounts: Int64) -> Iterator[_Trial]:
        """Yields smaller values of one annotation."""
        amount = int(self._pod.annotations[name])
        for fits in _largest(amounts[amounts < amount]):
            yield _Trial(
                "annotation",
                f"lower the annotation {name} from {amount} to {fits}",
                (amount - fits) / amount,
                {"annotation": name, "from": amount, "to": fits},
                msgspec.structs.replace(self._pod, annotations={**self._pod.annotations, name: str(fits)}),
                command=f"kubectl -n {self._pod.namespace} annotate pod {self._pod.name} {name}={fits} --overwrite",
                goal=name,
            )

    def _quotas(self) -> Iterator[_Trial]:
        """Yields a higher max for every level that the pod would exceed; if only one resource is short, also a smaller request of it."""
        found = quota_room(self._sandbox, self._sandbox.starting_with(self._pod))
        for edit in quota_edits(self._sandbox, found.missing):
            cluster_change = partial(self._sandbox.with_object, edit.kind, edit.item)
            yield _Trial("quota", edit.text, 0.6, edit.change, self._pod, cluster_change, edit.command, goal="quota")
        if len(found.room) == 1:
            ((name, fits),) = found.room.items()
            fits, amount = fits // quota_amount(name, 1), self._pod.requests.get(name, 0)
            if 0 < fits < amount:
                text = f"lower the {name} request from {_shown(name, amount)} to {_shown(name, fits)}"
                change = {"resource": name, "from": amount, "to": fits}
                size = (amount - fits) / amount
                yield _Trial("request", text, size, change, self._with_request(name, fits), goal=name)

    def _with_request(self, name: str, amount: int) -> Pod:
        """Returns the pod with another total request of one resource."""
        spec = self._pod.spec
        less = spec.requests[name] - amount
        changes: dict[str, Any] = {"requests": {**spec.requests, name: amount}}
        changes["extended"] = _with_amount(spec.extended, name, less)
        if name == CPU:
            changes["scoring_cpu_milli"] = max(0, spec.scoring_cpu_milli - less)
            changes["placed_cpu_milli"] = max(0, spec.placed_cpu_milli - less)
        if name == MEMORY:
            changes["scoring_memory_bytes"] = max(0, spec.scoring_memory_bytes - less)
            changes["placed_memory_bytes"] = max(0, spec.placed_memory_bytes - less)
        return self._with(**changes)

    def _tolerations(self) -> Iterator[_Trial]:
        wanted: dict[Toleration, int] = {}
        for node in self._nodes(self._refused_by_only("TaintToleration")):
            toleration = _toleration_for(_untolerated(self._pod, node))
            if toleration is not None:
                wanted[toleration] = wanted.get(toleration, 0) + 1
        if len(self._refused_by_only("NodeUnschedulable")):
            wanted[Toleration(UNSCHEDULABLE_TAINT, "Exists", "", NO_SCHEDULE)] = 0
        for toleration in sorted(wanted, key=lambda one: (-wanted[one], one.key, one.value, one.effect)):
            document = {key: text for key, text in msgspec.to_builtins(toleration).items() if text}
            if self._pod.spec.tolerations:
                patch = {"op": "add", "path": "/spec/tolerations/-", "value": document}
            else:
                patch = {"op": "add", "path": "/spec/tolerations", "value": [document]}
            yield _Trial(
                "toleration",
                f"add a toleration of the taint {_taint_text(toleration)}",
                0.3,
                {"toleration": document},
                self._with(tolerations=(*self._pod.spec.tolerations, toleration)),
                command=self._patch([patch]),
                goal=str(document),
            )

    def _schedulers(self) -> Iterator[_Trial]:
        """Yields the schedulerNames of the program's other domains. The field is immutable, so the pod must be created again."""
        for worker in self._sandbox.program.router.workers():
            names = self._sandbox.program.scheduler_names.get(worker.name, ())
            if worker is not self._worker and names:
                text = f"create the pod again with schedulerName {names[0]} (domain {worker.name})"
                pod = self._sandbox.under(self._pod, names[0])
                change = {"schedulerName": names[0]}
                yield _Trial("scheduler", text, 0.35, change, pod, goal=worker.name, worker=worker)

    def _selectors(self) -> Iterator[_Trial]:
        affinity = self._pod.spec.affinity
        for at, requirement in enumerate(affinity.node_selector):
            left = affinity.node_selector[:at] + affinity.node_selector[at + 1 :]
            pod = self._with(affinity=msgspec.structs.replace(affinity, node_selector=left))
            text = f"drop {_requirement_text(requirement)} from the node selector"
            yield _Trial("selector", text, 0.5, {"nodeSelector": requirement.key}, pod, goal=text)
        if affinity.required is None:
            return
        for number, term in enumerate(affinity.required.terms):
            for at, requirement in enumerate(term.expressions):
                left = term.expressions[:at] + term.expressions[at + 1 :]
                if not left and not term.fields:
                    continue  # an empty term matches nothing
                terms = list(affinity.required.terms)
                terms[number] = msgspec.structs.replace(term, expressions=left)
                pod = self._with(affinity=msgspec.structs.replace(affinity, required=NodeSelector(tuple(terms))))
                text = f"drop {_requirement_text(requirement)} from the required node affinity"
                yield _Trial("affinity", text, 0.5, {"term": number, "expression": at}, pod, goal=text)
        pod = self._with(affinity=msgspec.structs.replace(affinity, required=None))
        yield _Trial("affinity", "drop the required node affinity", 0.5, {"term": None}, pod, goal="all terms")

    def _spreads(self) -> Iterator[_Trial]:
        for at, constraint in enumerate(self._pod.spec.spread):
            if not constraint.is_hard:
                continue
            key = constraint.topology_key
            for more in SKEWS_TRIED:
                skew = constraint.max_skew + more
                text = f"raise maxSkew over {key} from {constraint.max_skew} to {skew}"
                pod = self._spread(at, max_skew=skew)
                yield _Trial("spread", text, 0.4, {"constraint": at, "maxSkew": skew}, pod, goal=f"constraint {at}")
            text = f"spread over {key} with whenUnsatisfiable: ScheduleAnyway"
            pod = self._spread(at, is_hard=False)
            change = {"constraint": at, "whenUnsatisfiable": "ScheduleAnyway"}
            yield _Trial("spread", text, 0.5, change, pod, goal=f"constraint {at}")

    def _spread(self, at: int, **changes: Any) -> Pod:
        constraints = list(self._pod.spec.spread)
        constraints[at] = msgspec.structs.replace(constraints[at], **changes)
        return self._with(spread=tuple(constraints))

    def _pod_affinities(self) -> Iterator[_Trial]:
        affinity = self._pod.spec.pod_affinity
        if affinity is None:
            return
        for name, words in (("required", "podAffinity"), ("anti_required", "podAntiAffinity")):
            terms = getattr(affinity, name)
            for at, term in enumerate(terms):
                changed = msgspec.structs.replace(affinity, **{name: terms[:at] + terms[at + 1 :]})
                text = f"drop the required {words} term over {term.topology_key}"
                pod = self._with(pod_affinity=changed)
                yield _Trial("pod affinity", text, 0.5, {words: at}, pod, goal=f"{words} {at}")

    def _host_ports(self) -> Iterator[_Trial]:
        ports = self._pod.spec.host_ports
        for at, port in enumerate(ports):
            pod = self._with(host_ports=ports[:at] + ports[at + 1 :])
            text = f"drop the host port {port.port}/{port.protocol}"
            yield _Trial("host port", text, 0.5, {"hostPort": port.port}, pod, goal=text)

    # -- nodes -----------------------------------------------------------------------------------------------------

    def _node_states(self) -> Iterator[_Trial]:
        for node in islice(self._nodes(self._refused_by_only("NodeUnschedulable")), FIXES_PER_KIND):
            changed = msgspec.structs.replace(node, is_unschedulable=False)
            yield self._on_node(node, changed, "uncordon", {"uncordon": node.name}, f"kubectl uncordon {node.name}")
        for node in self._nodes(self._refused_by_only("TaintToleration")):
            untolerated = _untolerated(self._pod, node)
            if len(untolerated) == 1:
                taint = untolerated[0]
                changed = msgspec.structs.replace(node, taints=tuple(one for one in node.taints if one != taint))
                command = f"kubectl taint node {node.name} {shlex.quote(f'{taint.key}:{taint.effect}-')}"
                what = f"remove the taint {taint.key}:{taint.effect} from"
                yield self._on_node(node, changed, what, {"taint": taint.key, "node": node.name}, command)

    def _node_labels(self) -> Iterator[_Trial]:
        for node in self._nodes(self._refused_by_only("NodeAffinity")):
            for key, value in self._labels_wanted(node):
                if key in SET_BY_KUBELET or (key in SET_BY_CLOUD and key in node.labels):
                    continue
                labels = {k: v for k, v in node.labels.items() if k != key} | ({} if value is None else {key: value})
                changed = msgspec.structs.replace(node, labels=labels)
                setting = f"{key}-" if value is None else f"{key}={value}"
                command = f"kubectl label node {node.name} {shlex.quote(setting)} --overwrite"
                what = f"remove the label {key} from" if value is None else f"set the label {key}={value} on"
                change = {"node": node.name, "label": key, "value": value}
                yield self._on_node(node, changed, what, change, command, goal=setting)

    def _labels_wanted(self, node: Node) -> Iterator[tuple[str, str | None]]:
        """Yields (label, value): each one alone makes the node match the pod's node affinity. Value None: the label is removed."""
        affinity = self._pod.spec.affinity
        failing = [r for r in affinity.node_selector if not r.matches_value(node.labels.get(r.key))]
        terms = affinity.required.terms if affinity.required is not None else ()
        matches = not terms or any(term.matches(node.labels, node.name) for term in terms)
        choices = [failing] if matches else [failing + _failing(t.expressions, node) for t in terms if t.is_valid]
        for requirements in choices:
            if requirements and len({r.key for r in requirements}) == 1:
                value = _value_for(requirements[0], node.labels.get(requirements[0].key))
                if all(r.matches_value(value) for r in requirements):
                    yield requirements[0].key, value

    def _on_node(
        self, node: Node, changed: Node, what: str, change: dict[str, Any], command: str, *, goal: str = ""
    ) -> _Trial:
        return _Trial(
            "node",
            f"{what} node {node.name}",
            0.7,
            change,
            self._pod,
            cluster_change=lambda: self._sandbox.with_node(changed),
            command=command,
            goal=goal or what,
        )

    # -- other pods ------------------------------------------------------------------------------------------------

    def _victims(self) -> Iterator[_Trial]:
        """Yields deletions of pods that free enough resources on a node. The lowest priority is first, then the smallest requests."""
        known: dict[str, Pod] = {}
        for row in self._resolvable()[:NODES_TRIED].tolist():
            for other in self._table.pods_on(row):
                if other.uid not in self._trial_uids and self._frees_enough(other, row):
                    known[other.uid] = other
        for other in sorted(known.values(), key=lambda one: (one.spec.priority, sum(one.requests.values()), one.key)):
            is_above = other.spec.priority > self._pod.spec.priority
            yield _Trial(
                "victim",
                f"delete the pod {other.key} (priority {other.spec.priority}) from {other.node}",
                2.0 if is_above else 1.0,
                {"namespace": other.namespace, "name": other.name, "node": other.node},
                self._pod,
                cluster_change=lambda victim=other: self._sandbox.without_pod(victim),  # type: ignore[misc]
                command=f"kubectl -n {other.namespace} delete pod {other.name}",
                goal=other.uid,
            )

    def _frees_enough(self, other: Pod, row: int) -> bool:
        """Reports whether the row has enough resources and host ports without the other pod. The trial tests the rest."""
        for name, amount in {PODS: 1, **self._pod.requests}.items():
            freed = 1 if name == PODS else other.requests.get(name, 0)
            if amount > 0 and int(self._room(name)[row]) + freed < amount:
                return False
        taken = {(port.protocol, port.port) for port in self._pod.spec.host_ports}
        users = {
            (p.protocol, p.port) for one in self._table.pods_on(row) if one is not other for p in one.spec.host_ports
        }
        return not taken & users

    # -- results of the last attempt ----------------------------------------------------------------------------------

    def _refusing(self) -> list[Plugin]:
        """Returns the plugins that refuse at least one row."""
        columns = () if self._snapshot is None else self._snapshot.filters
        return [column.plugin for column in columns if any_true(column.codes != 0)]

    def _refused_by_only(self, *plugins: str) -> Rows:
        """Returns the rows that at least one of these plugins refuses, and no other plugin."""
        snapshot = self._snapshot
        if snapshot is None or not len(snapshot.rows):
            return np.zeros(0, np.intp)
        by_others, by_these = np.zeros(len(snapshot.rows), np.bool_), np.zeros(len(snapshot.rows), np.bool_)
        for column in snapshot.filters:
            if column.plugin.name in plugins:
                by_these |= column.codes != 0
            else:
                by_others |= column.codes != 0
        return snapshot.rows[by_these & ~by_others]

    def _resolvable(self) -> Rows:
        """Returns the refused rows that may become feasible if pods are removed. Rows refused by the fewest plugins are first."""
        snapshot: ScoreSnapshot | None = self._snapshot
        if snapshot is None or not len(snapshot.rows):
            return np.zeros(0, np.intp)
        refusals, unresolvable = np.zeros(len(snapshot.rows), np.int64), np.zeros(len(snapshot.rows), np.bool_)
        for column in snapshot.filters:
            refusals += column.codes != 0
            for code in np.unique(column.codes[column.codes != 0]).tolist():
                if column.plugin.reasons.status(code).code is not Code.UNSCHEDULABLE:
                    unresolvable |= column.codes == code
        resolvable = np.flatnonzero((refusals > 0) & ~unresolvable)
        return snapshot.rows[resolvable[np.argsort(refusals[resolvable], kind="stable")]]

    def _nodes(self, rows: Rows) -> Iterator[Node]:
        return (self._table.node(row) for row in rows[:NODES_TRIED].tolist())

    def _room(self, resource: str) -> np.ndarray[Any, np.dtype[np.int64]]:
        return self._table.allocatable(resource) - self._table.requested(resource)

    def _with(self, **changes: Any) -> Pod:
        return msgspec.structs.replace(self._pod, spec=msgspec.structs.replace(self._pod.spec, **changes))

    def _patch(self, operations: list[dict[str, Any]]) -> str:
        patch = shlex.quote(json.dumps(operations))
        return f"kubectl -n {self._pod.namespace} patch pod {self._pod.name} --type=json -p {patch}"


def _toleration_for(taints: list[Taint]) -> Toleration | None:
    """Returns the narrowest toleration that tolerates all of these taints; None if that takes several tolerations."""
    if len(taints) == 1:
        taint = taints[0]
        return Toleration(taint.key, "Equal" if taint.value else "Exists", taint.value, taint.effect)
    if taints and len({taint.key for taint in taints}) == 1:
        return Toleration(taints[0].key, "Exists")
    return None


def _taint_text(toleration: Toleration) -> str:
    value = f"={toleration.value}" if toleration.value else ""
    return f"{toleration.key}{value}{f':{toleration.effect}' if toleration.effect else ''}"


def _largest(amounts: Int64) -> list[int]:
    """Returns the largest distinct positive amounts."""
    return sorted({amount for amount in amounts.tolist() if amount > 0}, reverse=True)[:FIXES_PER_KIND]


def _failing(requirements: tuple[Requirement, ...], node: Node) -> list[Requirement]:
    return [r for r in requirements if not r.matches_value(node.labels.get(r.key))]


def _value_for(requirement: Requirement, current: str | None) -> str | None:
    """Returns a label value that satisfies the requirement; None: no label. `current`: the present value."""
    match requirement.operator:
        case Operator.IN:
            return requirement.values[0] if requirement.values else current
        case Operator.EXISTS:
            return "true"
        case Operator.GT | Operator.LT if len(requirement.values) == 1 and requirement.values[0].lstrip("-").isdigit():
            return str(int(requirement.values[0]) + (1 if requirement.operator is Operator.GT else -1))
        case _:
            return None


def _requirement_text(requirement: Requirement) -> str:
    if requirement.operator is Operator.IN and len(requirement.values) == 1:
        return f"{requirement.key}={requirement.values[0]}"
    return f"{requirement.key} {requirement.operator.value} {', '.join(requirement.values)}".rstrip()


def _untolerated(pod: Pod, node: Node) -> list[Taint]:
    return [
        taint
        for taint in node.taints
        if taint.effect in (NO_SCHEDULE, NO_EXECUTE)
        and not any(toleration.tolerates(taint) for toleration in pod.spec.tolerations)
    ]


def _passing(snapshot: ScoreSnapshot | None, plugin: str, rows: Rows) -> Bools:
    """Returns bool[len(rows)]: whether the plugin's Filter passes each row of the snapshot."""
    assert snapshot is not None, "the rows are rows of the snapshot"
    at = np.searchsorted(snapshot.rows, rows)
    passes: Bools = np.ones(len(rows), np.bool_)
    for column in snapshot.filters:
        if column.plugin.name == plugin:
            passes &= column.codes[at] == 0
    return passes


def _with_amount(containers: tuple[ExtendedRequests, ...], name: str, less: int) -> tuple[ExtendedRequests, ...]:
    """Returns the containers with the extended request for one resource lowered by `less` units.

    It is lowered in the container with the largest request for this resource.
    """
    largest = max(containers, key=lambda one: one.amounts.get(name, 0), default=None)
    if largest is None or name not in largest.amounts:
        return containers
    lower = {**largest.amounts, name: max(0, largest.amounts[name] - less)}
    return tuple(msgspec.structs.replace(one, amounts=lower) if one is largest else one for one in containers)


def _shown(resource: str, amount: int) -> str:
    """Returns a requested amount as a Kubernetes quantity."""
    return shown_amount(resource, quota_amount(resource, amount))

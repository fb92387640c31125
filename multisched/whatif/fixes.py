"""The smallest single changes after which a pod fits, each tried in a sandbox with all plugins before it is shown.

Candidates follow from the last refusal: changes of the pod, of its quota, of a node, then deletions of other pods.
`Fix.size` is the size of a change. A gate counts 0, a request or an annotation the fraction by which it is lowered
(0..1), a toleration 0.3, another domain's schedulerName 0.35. A constraint that is loosened counts 0.4, one that is
dropped 0.5. A quota's max counts 0.6, a node's label, taint or cordon 0.7, another pod 1, one of higher priority 2. In
each trial, pods in front of it in the queue are placed first. The number of trials is bounded, so a fix may be missed
if thousands of nodes refuse for many reasons; every fix shown works.
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
"""Limit of attempts for one pod: some milliseconds each at 5,000 nodes."""
MEMBERS_TRIED_MAX = 20_000
"""Limit of pods in all attempts for one pod: a pod with a gang gets fewer attempts."""
TRIALS_PER_KIND = 12
FIXES_PER_KIND = 3
SET_BY_KUBELET = frozenset({"kubernetes.io/hostname", "kubernetes.io/os", "kubernetes.io/arch"})
"""Labels that describe a node and that its kubelet always sets again. No fix changes them."""
SET_BY_CLOUD = frozenset({
    "topology.kubernetes.io/zone", "topology.kubernetes.io/region", "node.kubernetes.io/instance-type",
    "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region",
    "beta.kubernetes.io/instance-type", "beta.kubernetes.io/os", "beta.kubernetes.io/arch",
})  # fmt: skip
"""Labels that describe a node's location; a fix may add a missing one, but changes none."""
NODES_TRIED = 200
"""Nodes examined for a label or a victim, those that lack the least first."""
SKEWS_TRIED = (1, 2, 3, 5, 10, 20)
"""Increments of maxSkew, tried until the pod fits."""
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
    world: Callable[[], AbstractContextManager[None]] = nullcontext
    command: str = ""
    serves: str = ""
    """Trials with one goal: once one of them has succeeded, the others are skipped."""
    worker: DomainWorker | None = None
    """The domain in which the pod is tried; None: its own."""

    @property
    def changes_cluster(self) -> bool:
        """True if other pods may fit by the change, too."""
        return self.world is not nullcontext


def find_fixes(
    sandbox: SchedulerSandbox, worker: DomainWorker, pod: Pod, ahead: QueueAhead, trial_uids: frozenset[str]
) -> list[FoundFix]:
    """Returns the fixes of a pod that does not fit, the smallest first; empty if no tried change helps.

    `ahead`: the pods in front of it; `trial_uids`: uids of those that are placed only in the sandbox.
    """
    found: list[FoundFix] = []
    left = min(TRIALS_MAX, max(1, MEMBERS_TRIED_MAX // (len(sandbox.starting_with(pod)) + len(ahead))))
    for trials in _Guesses(sandbox, worker, pod, trial_uids).by_kind():
        served: set[str] = set()
        for trial in islice(trials, min(left, TRIALS_PER_KIND)):
            if trial.serves in served or len(served) >= FIXES_PER_KIND:
                continue
            left -= 1
            with trial.world(), _queue_of(trial, sandbox, ahead):
                node = sandbox.fits(trial.worker or worker, trial.pod)
            if node is not None:
                served.add(trial.serves)
                found.append(FoundFix(trial.kind, trial.text, trial.size, node, trial.change, trial.command))
    return sorted(found, key=lambda fix: (fix.size, fix.text))


def _queue_of(trial: _Trial, sandbox: SchedulerSandbox, ahead: QueueAhead) -> AbstractContextManager[object]:
    """Places the pods in front of the pod first. A change of the pod alone affects none of them."""
    if trial.worker is not None:
        return QueueAhead(sandbox, trial.worker, trial.pod).served()
    return ahead.served() if trial.changes_cluster else nullcontext()


class _Guesses:
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
        sandbox.take_back(worker, tried)
        self._snapshot = tried.record.snapshot

    def by_kind(self) -> Iterator[Iterator[_Trial]]:
        if self._pod.gates:
            yield self._gates()
            return  # a gated pod is not tried, so nothing else helps
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
        """Yields smaller requests of one resource or annotation, for nodes where nothing else is short."""
        counting = {p.name: p for p in self._refusing() if implements(p, RoomPlugin)}
        rows = self._refused_by_only(RESOURCES_FIT, *counting)
        if not len(rows):
            return
        most = [plugin.takes_at_most(self._pod, rows) for plugin in counting.values()]
        counted = {name: amounts for found in most for name, amounts in found.items()}
        requests = {name: amount for name, amount in self._pod.requests.items() if amount > 0}
        room = {name: self._room(name)[rows] for name in (PODS, *requests)}
        for name in (name for name in requests if not self._table.has_column(name)):
            # NodeResourcesFit ignores a name that no node lists
            room[name] = np.where(_passing(self._snapshot, RESOURCES_FIT, rows), NO_LIMIT, room[name])
        short = {name: room[name] < amount for name, amount in {PODS: 1, **requests}.items()}
        by_plugins = np.zeros(len(rows), np.bool_)
        for name in counting:
            by_plugins |= ~_passing(self._snapshot, name, rows)
        for name, amount in requests.items():
            others = np.logical_or.reduce([mask for other, mask in short.items() if other != name])
            others = others if name in counted else others | by_plugins
            limit = np.minimum(room[name], counted.get(name, NO_LIMIT))
            for fits in _largest(limit[(limit < amount) & ~others]):
                text = f"lower the {name} request from {_shown(name, amount)} to {_shown(name, fits)}"
                change = {"resource": name, "from": amount, "to": fits}
                size = (amount - fits) / amount
                yield _Trial("request", text, size, change, self._asking(name, fits), serves=name)
        has_room = ~np.logical_or.reduce(list(short.values()))
        for name, amounts in counted.items():
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
                serves=name,
            )

    def _quotas(self) -> Iterator[_Trial]:
        """Yields a smaller request of the one resource that the quota lacks, or a higher max in every level that the
        pod would exceed.
        """
        found = quota_room(self._sandbox, self._sandbox.starting_with(self._pod))
        for edit in quota_edits(self._sandbox, found.missing):
            world = partial(self._sandbox.with_object, edit.kind, edit.item)
            yield _Trial("quota", edit.text, 0.6, edit.change, self._pod, world, edit.command, serves="quota")
        if len(found.room) == 1:
            ((name, fits),) = found.room.items()
            fits, amount = fits // quota_amount(name, 1), self._pod.requests.get(name, 0)
            if 0 < fits < amount:
                text = f"lower the {name} request from {_shown(name, amount)} to {_shown(name, fits)}"
                change = {"resource": name, "from": amount, "to": fits}
                size = (amount - fits) / amount
                yield _Trial("request", text, size, change, self._asking(name, fits), serves=name)

    def _asking(self, name: str, amount: int) -> Pod:
        """Returns the pod with another request, as the sum over its containers."""
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
                serves=str(document),
            )

    def _schedulers(self) -> Iterator[_Trial]:
        """Yields other domains of this program. A pod's schedulerName is immutable: the pod must be created again."""
        for worker in self._sandbox.program.router.workers():
            names = self._sandbox.program.scheduler_names.get(worker.name, ())
            if worker is not self._worker and names:
                text = f"create it again with schedulerName {names[0]} (domain {worker.name})"
                pod = self._sandbox.under(self._pod, names[0])
                change = {"schedulerName": names[0]}
                yield _Trial("scheduler", text, 0.35, change, pod, serves=worker.name, worker=worker)

    def _selectors(self) -> Iterator[_Trial]:
        affinity = self._pod.spec.affinity
        for at, requirement in enumerate(affinity.node_selector):
            left = affinity.node_selector[:at] + affinity.node_selector[at + 1 :]
            pod = self._with(affinity=msgspec.structs.replace(affinity, node_selector=left))
            text = f"drop {_requirement_text(requirement)} from the node selector"
            yield _Trial("selector", text, 0.5, {"nodeSelector": requirement.key}, pod, serves=text)
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
                yield _Trial("affinity", text, 0.5, {"term": number, "expression": at}, pod, serves=text)
        pod = self._with(affinity=msgspec.structs.replace(affinity, required=None))
        yield _Trial("affinity", "drop the required node affinity", 0.5, {"term": None}, pod, serves="all terms")

    def _spreads(self) -> Iterator[_Trial]:
        for at, constraint in enumerate(self._pod.spec.spread):
            if not constraint.is_hard:
                continue
            key = constraint.topology_key
            for more in SKEWS_TRIED:
                skew = constraint.max_skew + more
                text = f"raise maxSkew over {key} from {constraint.max_skew} to {skew}"
                pod = self._spread(at, max_skew=skew)
                yield _Trial("spread", text, 0.4, {"constraint": at, "maxSkew": skew}, pod, serves=f"constraint {at}")
            text = f"spread over {key} with whenUnsatisfiable: ScheduleAnyway"
            pod = self._spread(at, is_hard=False)
            change = {"constraint": at, "whenUnsatisfiable": "ScheduleAnyway"}
            yield _Trial("spread", text, 0.5, change, pod, serves=f"constraint {at}")

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
                yield _Trial("pod affinity", text, 0.5, {words: at}, pod, serves=f"{words} {at}")

    def _host_ports(self) -> Iterator[_Trial]:
        ports = self._pod.spec.host_ports
        for at, port in enumerate(ports):
            pod = self._with(host_ports=ports[:at] + ports[at + 1 :])
            text = f"drop the host port {port.port}/{port.protocol}"
            yield _Trial("host port", text, 0.5, {"hostPort": port.port}, pod, serves=text)

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
                yield self._on_node(node, changed, what, change, command, serves=setting)

    def _labels_wanted(self, node: Node) -> Iterator[tuple[str, str | None]]:
        """Yields labels each of which makes the node match if set to the value (None: removed)."""
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
        self, node: Node, changed: Node, what: str, change: dict[str, Any], command: str, *, serves: str = ""
    ) -> _Trial:
        return _Trial(
            "node",
            f"{what} node {node.name}",
            0.7,
            change,
            self._pod,
            world=lambda: self._sandbox.with_node(changed),
            command=command,
            serves=serves or what,
        )

    # -- other pods ------------------------------------------------------------------------------------------------

    def _victims(self) -> Iterator[_Trial]:
        """Yields pods whose deletion frees enough resources on a node, the lowest priority and the smallest first."""
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
                world=lambda gone=other: self._sandbox.without_pod(gone),  # type: ignore[misc]
                command=f"kubectl -n {other.namespace} delete pod {other.name}",
                serves=other.uid,
            )

    def _frees_enough(self, other: Pod, row: int) -> bool:
        """Returns whether requests and ports suffice without the other pod; other plugins are tried."""
        for name, amount in {PODS: 1, **self._pod.requests}.items():
            freed = 1 if name == PODS else other.requests.get(name, 0)
            if amount > 0 and int(self._room(name)[row]) + freed < amount:
                return False
        taken = {(port.protocol, port.port) for port in self._pod.spec.host_ports}
        users = {
            (p.protocol, p.port) for one in self._table.pods_on(row) if one is not other for p in one.spec.host_ports
        }
        return not taken & users

    # ---- results of the last attempt

    def _refusing(self) -> list[Plugin]:
        """Returns the plugins that refuse some row."""
        columns = () if self._snapshot is None else self._snapshot.filters
        return [column.plugin for column in columns if any_true(column.codes != 0)]

    def _refused_by_only(self, *plugins: str) -> Rows:
        """Returns the rows that one of these plugins refuses and all others pass."""
        snapshot = self._snapshot
        if snapshot is None or not len(snapshot.rows):
            return np.zeros(0, np.intp)
        by_others, by_it = np.zeros(len(snapshot.rows), np.bool_), np.zeros(len(snapshot.rows), np.bool_)
        for column in snapshot.filters:
            if column.plugin.name in plugins:
                by_it |= column.codes != 0
            else:
                by_others |= column.codes != 0
        return snapshot.rows[by_it & ~by_others]

    def _resolvable(self) -> Rows:
        """Returns the rows that may become feasible by removing pods, those refused by the fewest plugins first."""
        snapshot: ScoreSnapshot | None = self._snapshot
        if snapshot is None or not len(snapshot.rows):
            return np.zeros(0, np.intp)
        refusals, hopeless = np.zeros(len(snapshot.rows), np.int64), np.zeros(len(snapshot.rows), np.bool_)
        for column in snapshot.filters:
            refusals += column.codes != 0
            for code in np.unique(column.codes[column.codes != 0]).tolist():
                if column.plugin.reasons.status(code).code is not Code.UNSCHEDULABLE:
                    hopeless |= column.codes == code
        open_to = np.flatnonzero((refusals > 0) & ~hopeless)
        return snapshot.rows[open_to[np.argsort(refusals[open_to], kind="stable")]]

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
    """Returns the narrowest single toleration for all of a node's taints; None if several are needed."""
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


def _value_for(requirement: Requirement, now: str | None) -> str | None:
    """Returns a value that satisfies the requirement."""
    match requirement.operator:
        case Operator.IN:
            return requirement.values[0] if requirement.values else now
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
    assert snapshot is not None, "rows are of the snapshot"
    at = np.searchsorted(snapshot.rows, rows)
    passes: Bools = np.ones(len(rows), np.bool_)
    for column in snapshot.filters:
        if column.plugin.name == plugin:
            passes &= column.codes[at] == 0
    return passes


def _with_amount(containers: tuple[ExtendedRequests, ...], name: str, less: int) -> tuple[ExtendedRequests, ...]:
    """Returns the containers' extended requests, with less of one resource in the container that requests most of it."""
    largest = max(containers, key=lambda one: one.amounts.get(name, 0), default=None)
    if largest is None or name not in largest.amounts:
        return containers
    lower = {**largest.amounts, name: max(0, largest.amounts[name] - less)}
    return tuple(msgspec.structs.replace(one, amounts=lower) if one is largest else one for one in containers)


def _shown(resource: str, amount: int) -> str:
    """Returns a requested amount as a Kubernetes quantity."""
    return shown_amount(resource, quota_amount(resource, amount))

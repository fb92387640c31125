"""A sandbox: the whole scheduler over a copy of the cluster, for trials; nothing is written.

The copy is the program itself, built from the same configuration, with its own caches, plugins and ledgers. Its network
refuses all requests and its clock is stopped. Trials use the real cycle, so that the result is what the scheduler would
do. `ClusterSnapshot.of` copies the state of a running program in one synchronous step on its loop. The sandbox is then
built from it anywhere, for instance in a thread. Plugins that have learned something export it (`StateExportPlugin`).
`DumpedCluster` reads the output of `kubectl get -o json` with the copy's own decoder, which knows the relevant
annotations. A sandbox does not know the responses to plugins' requests; it names these plugins. It also does
not know the results of Permit and bind, or which devices were allocated to a pod whose bind is in flight.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Generator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from multisched.config.options import DUMP_COMMAND
from multisched.config.schema import Configuration
from multisched.cycle.attempt_record import AttemptRecord
from multisched.cycle.results import GangResult, Pause, Placed, RemoteRequest, Result, Unplaced
from multisched.framework.background import CatchUpPlugin
from multisched.framework.introspection import StateExportPlugin
from multisched.framework.points import QueuedGang, QueuedPod
from multisched.framework.registry import Registry, implements
from multisched.framework.runner import Runner
from multisched.framework.status import SUCCESS, Status
from multisched.framework.traits import traits_of
from multisched.model.cluster_objects import ClusterObject, ElasticQuotaTree
from multisched.model.decode import DecodeError, Decoder
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Node, Pod
from multisched.model.wire import UNREADABLE, ConnectFailedError, LineStream, Response
from multisched.observe.logging import only_errors_of_trial
from multisched.plugins.quota.quota_status import IN_FORCE
from multisched.queueing.gang_entries import queued_gang
from multisched.shell.domain import DomainWorker
from multisched.shell.extenders import OfflineExtender
from multisched.shell.garbage import no_collection
from multisched.shell.ingest.gang_objects import note_gang
from multisched.shell.ingest.priority_classes import PriorityClass, class_of
from multisched.shell.kept_objects import keeping, kept_by
from multisched.shell.observer import SilentObserver
from multisched.shell.program import Program, ProgramPorts
from multisched.state.gang_roster_state import GangRosterState, gang_state, restore_gang_state

UNREADABLE_SHOWN = 5
EVALUATIONS_MAX = 20
"""Evaluations in one step of an attempt."""
"""Limit of the unreadable objects of a dump that are named; of the others only the number is given."""
R = TypeVar("R")
SANDBOX_ONLY = Status.error("placed in a sandbox only")


class ClusterSnapshot(msgspec.Struct, frozen=True):
    """The known state of a cluster at one moment. All values are immutable, so that any thread can read it."""

    nodes: tuple[Node, ...]
    placed: tuple[Pod, ...]
    """With the node of each, assumed pods included."""
    pending: tuple[Pod, ...] = ()
    objects: tuple[tuple[ObjectKind, ClusterObject], ...] = ()
    monotonic_s: float = 0.0
    now: datetime = datetime.min
    notes: tuple[str, ...] = ()
    classes: tuple[PriorityClass, ...] | None = None
    """Priority classes if known: a dump may have them."""
    is_raw: bool = False
    """Pending pods are as the API server has them, without the additions of their domain's policy."""
    learned: Mapping[tuple[str, str], object] = msgspec.field(default_factory=dict)
    """(domain, plugin) -> the state that a `StateExportPlugin` exported."""
    removed: tuple[tuple[ObjectKind, ClusterObject], ...] = ()
    """The last deleted object of each kind, from a running program: it may still have an effect."""
    nominated: tuple[Pod, ...] = ()
    """With the nominated node of each, from a running program; in a dump the pods have it."""
    unreadable: tuple[tuple[ObjectKind, str], ...] = ()
    """Kinds that the API server does not return, and why."""
    gangs: GangRosterState | None = None
    """A running program's memory of gangs; for a dump it follows from `finished`."""
    queued_s: Mapping[str, float] = msgspec.field(default_factory=dict)
    """uid -> time at which a running program last queued the pod."""
    finished: tuple[Pod, ...] = ()
    """Pods of a dump that have succeeded, and count for their gangs."""
    enforced: frozenset[str] = frozenset()
    """Keys of quota trees whose status says that a scheduler enforces them."""

    @staticmethod
    def of(program: Program) -> ClusterSnapshot:
        """Copies the state of a running program; call it on its loop."""
        placed = (
            entry.pod if entry.pod.node == entry.node else msgspec.structs.replace(entry.pod, node=entry.node)
            for entry in program.cache
        )
        store = program.cache.objects
        return ClusterSnapshot(
            tuple(node for _, node in program.cache.nodes.live_rows()),
            tuple(placed),
            tuple(program.pods.pending.values()),
            tuple((kind, item) for kind in ObjectKind for item in store.all(kind)),
            program.clock.monotonic(),
            program.clock.now(),
            removed=tuple(_removed(program)),
            learned={place: plugin.export_state() for place, plugin in _learning(program)},
            nominated=tuple(program.nominator.pods()),
            unreadable=tuple((kind, why) for kind in ObjectKind if (why := store.unreadable(kind))),
            gangs=gang_state(program.cache.gangs),
            queued_s={one.uid: one.queued_s for w in program.router.workers() for one in w.queue.entries()},
        )


class DumpedCluster(msgspec.Struct, frozen=True):
    """The output of `kubectl get -o json`, decoded later by a decoder that knows the relevant annotations."""

    items: Sequence[msgspec.Raw]
    now: datetime
    monotonic_s: float = 0.0

    def read(self, decoder: Decoder) -> ClusterSnapshot:
        """Decodes the objects; ignores kinds that scheduling does not read."""
        reader = SnapshotReader(decoder)
        for raw in self.items:
            reader.add(raw)
        if not reader.has_nodes:
            reader.note(f"the dump has no nodes; write one with {DUMP_COMMAND}")
        return reader.snapshot(self.now, self.monotonic_s)


class SnapshotReader:
    """Decodes API objects one by one; keeps nothing of their JSON."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._kinds = {(kind.definition.group, kind.definition.name): kind for kind in ObjectKind}
        self._kinds_by_name = {kind.value: kind for kind in ObjectKind}
        self._nodes: list[Node] = []
        self._placed: list[Pod] = []
        self._pending: list[Pod] = []
        self._finished: list[Pod] = []
        self._enforced: set[str] = set()
        self._objects: list[tuple[ObjectKind, ClusterObject]] = []
        self._classes: list[PriorityClass] = []
        self._unreadable: list[str] = []
        self._notes: list[str] = []

    @property
    def has_nodes(self) -> bool:
        return bool(self._nodes)

    def note(self, text: str) -> None:
        """Adds a note for the user."""
        self._notes.append(text)

    def add(self, raw: msgspec.Raw, kind: str = "", group: str | None = None) -> None:
        """Decodes one object. `kind` and `group`: for items of a list, which have neither."""
        try:
            if not kind:
                typed = msgspec.json.decode(raw, type=_Kind)
                kind, group = typed.kind, typed.group if typed.apiVersion else None
            self._add(raw, kind, group)
        except (DecodeError, *UNREADABLE) as error:
            self._unreadable.append(str(error))

    def _add(self, raw: msgspec.Raw, kind: str, group: str | None) -> None:
        if kind == "Node":
            self._nodes.append(self._decoder.node(raw))
        elif kind == "Pod":
            pod = self._decoder.pod(raw)
            if not pod.is_terminal:
                (self._placed if pod.node else self._pending).append(pod)
            elif pod.phase == "Succeeded":
                self._finished.append(pod)
        elif kind == "PriorityClass":
            self._classes.append(class_of(raw))
        else:
            other = self._kinds_by_name.get(kind) if group is None else self._kinds.get((group, kind))
            if other is not None:
                item = other.definition.decode(raw)
                self._objects.append((other, item))
                if isinstance(item, ElasticQuotaTree) and IN_FORCE in _conditions_of(raw):
                    self._enforced.add(item.key)

    def snapshot(self, now: datetime, monotonic_s: float = 0.0) -> ClusterSnapshot:
        """Returns everything that was added."""
        named = tuple(f"an object of the dump cannot be read: {text}" for text in self._unreadable[:UNREADABLE_SHOWN])
        more = len(self._unreadable) - UNREADABLE_SHOWN
        unnamed = (f"{more} more objects of the dump cannot be read",) if more > 0 else ()
        return ClusterSnapshot(
            tuple(self._nodes),
            tuple(self._placed),
            tuple(self._pending),
            tuple(self._objects),
            monotonic_s,
            now,
            (*named, *unnamed, *self._notes),
            tuple(self._classes) or None,
            is_raw=True,
            finished=tuple(self._finished),
            enforced=frozenset(self._enforced),
        )


class _Kind(msgspec.Struct):
    kind: str = ""
    apiVersion: str = ""

    @property
    def group(self) -> str:
        return self.apiVersion.rpartition("/")[0]


class _Condition(msgspec.Struct):
    type: str = ""
    status: str = ""


class _Status(msgspec.Struct):
    conditions: list[_Condition] = []


class _Reported(msgspec.Struct):
    status: _Status = msgspec.field(default_factory=_Status)


def _conditions_of(raw: msgspec.Raw) -> set[str]:
    """Returns the types of the conditions that are True; empty if there is no valid status."""
    try:
        found = msgspec.json.decode(raw, type=_Reported)
    except UNREADABLE:
        return set()
    return {one.type for one in found.status.conditions if one.status == "True"}


def _removed(program: Program) -> Iterator[tuple[ObjectKind, ClusterObject]]:
    """Yields the last deleted object of each kind, unless the plugin that keeps it says that none is in effect."""
    plugins = [(plugin, worker) for worker in program.router.workers() for plugin in keeping(worker)]
    lapsed = {plugin.kept_kind for plugin, worker in plugins if kept_by(plugin, worker) == b""}
    for kind in ObjectKind:
        item = program.cache.objects.last_removed(kind)
        if item is not None and kind not in lapsed:
            yield kind, item


def _learning(program: Program) -> Iterator[tuple[tuple[str, str], StateExportPlugin]]:
    """Yields ((domain, plugin), plugin) for plugins that know more than the cluster and the configuration contain."""
    for worker in program.router.workers():
        for built in worker.plugins.built:
            if implements(built.plugin, StateExportPlugin):
                yield (worker.name, built.plugin.name), built.plugin


@contextmanager
def trial(
    configuration: Configuration, snapshot: ClusterSnapshot, registry: Registry | None
) -> Iterator[SchedulerSandbox]:
    """Yields a sandbox for a thread of a running program, and frees it at the end, so that other threads never wait for long.

    Its objects refer to one another. A garbage collection would free them all at once, which takes half a second with 100,000 pods.
    """
    with only_errors_of_trial(), no_collection():
        sandbox = SchedulerSandbox(configuration, snapshot, registry)
        try:
            yield sandbox
        finally:
            sandbox.cache.drop()


UNASKED = "would have sent a request; its response is not known here"


class Tried(msgspec.Struct, frozen=True):
    """One attempt in a sandbox."""

    result: Result
    record: AttemptRecord
    unasked: tuple[str, ...]
    """Plugins that would have sent requests; their results are unknown."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings about the result."""
        return (f"{', '.join(self.unasked)} {UNASKED}",) if self.unasked else ()


class SchedulerSandbox:
    """The whole scheduler over a copy of the cluster; it writes nothing.

    Synchronous throughout; for use by one thread at a time.
    """

    def __init__(
        self, configuration: Configuration, known: ClusterSnapshot | DumpedCluster, registry: Registry | None = None
    ) -> None:
        """Builds the copy. Raises PluginSetupError for a plugin that cannot be built."""
        self.pending: dict[tuple[str, str], Pod] = {}
        ports = ProgramPorts(
            _NoNetwork(),
            _StoppedClock(known.monotonic_s, known.now),
            random.Random(0),  # noqa: S311 - ties; nothing is secret here
            "sandbox",
            "kube-system",
            observer=lambda domain: SilentObserver(),
            registry=registry,
            open_extender=OfflineExtender,
            pending=self.pending.values,
            steps=_CountedSteps(),
        )
        self.program = Program(configuration, ports)
        snapshot = known.read(self.program.decoder) if isinstance(known, DumpedCluster) else known
        self.cache = self.program.cache
        self.nominator = self.program.nominator
        self.notes = snapshot.notes
        self.classes = snapshot.classes
        self._queued_s = snapshot.queued_s
        self._attempts = 0
        self._runner = Runner(SilentObserver(), ports.clock.monotonic)
        for worker in self.program.router.workers():
            worker.cycle.records.keep_all_snapshots()
        for place, plugin in _learning(self.program):
            if place in snapshot.learned:
                plugin.import_state(snapshot.learned[place])
        for kind, why in snapshot.unreadable:
            self.cache.objects.set_unreadable(kind, why)
        for kind, item in snapshot.removed:
            self.cache.objects.set_last_removed(kind, item)
        for kind, item in snapshot.objects:
            self._set_object(kind, item)
        for node in snapshot.nodes:
            self.cache.set_node(node)
        for pod in {pod.uid: pod for pod in snapshot.placed}.values():
            self.cache.gangs.set(pod)
            self.cache.place(pod)
        for pod in snapshot.finished:
            self.cache.gangs.finish(pod)
        for pod in map(self.program.pods.with_policy, snapshot.pending) if snapshot.is_raw else snapshot.pending:
            self.pending[pod.namespace, pod.name] = pod
            self.cache.gangs.set(pod)
            if snapshot.is_raw:
                self.nominator.set(pod)
        if snapshot.gangs is not None:
            restore_gang_state(self.cache.gangs, snapshot.gangs)
        for pod in snapshot.nominated:
            self.nominator.nominate(pod, pod.nominated_node)
        for pod in self.nominator.pods():
            worker_of_it = self.worker_of(pod)
            if worker_of_it is not None:
                worker_of_it.nominations.rank_all([pod])

    def worker_of(self, pod: Pod) -> DomainWorker | None:
        """Returns the domain that serves the pod."""
        return self.program.router.worker_of(pod)

    def queued_s(self, pod: Pod) -> float:
        """Returns the queueing time that QueueSort compares: for a dump, the creation time."""
        return self._queued_s.get(pod.uid, pod.created_s)

    def under(self, pod: Pod, scheduler_name: str) -> Pod:
        """Returns the pod with another schedulerName and the additions of that domain's policy."""
        plain = self.program.pods.without_policy(pod)
        spec = msgspec.structs.replace(plain.spec, scheduler_name=scheduler_name)
        return self.program.pods.with_policy(msgspec.structs.replace(plain, spec=spec))

    def gate(self, worker: DomainWorker, pod: Pod) -> Status:
        """Returns the PreEnqueue result: success, or the first refusal."""
        for plugin in worker.plugins.pre_enqueue:
            status = self._runner.status(plugin, "PreEnqueue", plugin.pre_enqueue, pod)
            if not status.is_success:
                return status
        return SUCCESS

    def attempt(self, worker: DomainWorker, pod: Pod) -> Tried:
        """Makes one attempt by the real cycle. A pod that it places stays there until `undo`."""
        self._attempts += 1
        result, unasked = _answered(worker.cycle.attempt(QueuedPod(pod, 0.0, self._attempts)))
        return Tried(result, worker.cycle.records.read(pod.uid)[-1], unasked)

    def start(self, uid: str) -> None:
        """Counts a pod that an attempt placed as running, so that no other pod waits until a device plugin has found it."""
        placed = self.cache.placed(uid)
        assert placed is not None, f"pod {uid} was not placed"
        self.cache.place(msgspec.structs.replace(placed.pod, node=placed.node, phase="Running"))

    def attempt_gang(self, worker: DomainWorker, gang: QueuedGang) -> tuple[GangResult, tuple[str, ...]]:
        """Makes one attempt of all members; also returns the plugins that would have sent requests. Placed members stay
        until they are given up.
        """
        return _answered(worker.cycle.attempt(gang))

    def gang_of(self, pod: Pod) -> QueuedGang | None:
        """Returns the pod, as given, and those that are tried with it; None for a pod that is tried alone.

        Pods that a trial has already placed, because they are before it in the queue, are not tried again.
        """
        gangs = self.cache.gangs
        key = gangs.key_of(pod.uid)
        gang = None if key is None else gangs.gang(key)
        if key is None or gang is None or gang.spec is None or (gang.needs <= 0 and not gang.spec.topology):
            return None
        keys = {key, *(one for one in gangs.together_with(key) if gangs.needs(one))}
        known = [found for one in keys if (found := gangs.gang(one)) is not None]
        held = {uid for one in known for uid, member in one.members.items() if member.is_held}
        waiting = (one for one in self.pending.values() if self.cache.placed(one.uid) is None)
        fellows = {one.uid: one for one in waiting if gang.needs > 0 and gangs.key_of(one.uid) in keys}
        members = [one for one in (fellows | {pod.uid: pod}).values() if one.uid not in held]
        members.sort(key=lambda one: (-one.spec.priority, one.created_s, one.name))
        self._attempts += 1
        queued = [QueuedPod(one, 0.0, self._attempts) for one in members]
        return (
            queued_gang(gangs, queued, {one.uid: gangs.key_of(one.uid) or key for one in members}) if queued else None
        )

    def starting_with(self, pod: Pod) -> Sequence[Pod]:
        """Returns the pod, and as many others of its gang as must start with it."""
        gang = self.gang_of(pod)
        if gang is None:
            return (pod,)
        left, found = dict(gang.needs), list[Pod]()
        for one in (pod, *(entry.pod for entry in gang.members if entry.pod.uid != pod.uid)):
            key = gang.gang_of.get(one.uid, "")
            if left.get(key, 0) > 0 or one is pod:
                left[key] = left.get(key, 0) - 1
                found.append(one)
        return found

    def undo(self, worker: DomainWorker, tried: Tried) -> None:
        """Undoes an attempt that placed its pod."""
        if isinstance(tried.result, Placed):
            worker.cycle.give_up(tried.result, SANDBOX_ONLY)

    def try_gang(self, worker: DomainWorker, gang: QueuedGang, pod: Pod) -> Placed | Unplaced | None:
        """Returns this member's result in an attempt of the gang, already undone; None: it is not among the tried members."""
        result, _ = self.attempt_gang(worker, gang)
        for placed in reversed(result.placed):
            worker.cycle.give_up(placed, SANDBOX_ONLY)
        members: tuple[Placed | Unplaced, ...] = (*result.placed, *result.unplaced)
        return next((one for one in members if one.pod.uid == pod.uid), None)

    def fits(self, worker: DomainWorker, pod: Pod) -> str | None:
        """Returns the node on which an attempt places the pod, with its gang if it has one; None if it does not fit."""
        if pod.malformed or pod.spec.unsupported:
            return None
        placed = self.cache.placed(pod.uid)
        if placed is not None:  # a member of its gang was before it in the queue, and both were placed together
            return placed.node
        with self._as_member(pod):
            if not self.gate(worker, pod).is_success:
                return None
            gang = self.gang_of(pod)
            if gang is None:
                tried = self.attempt(worker, pod)
                self.undo(worker, tried)
                result: Result | None = tried.result
            else:
                result = self.try_gang(worker, gang, pod)
        return result.node if isinstance(result, Placed) else None

    @contextmanager
    def _as_member(self, pod: Pod) -> Iterator[None]:
        """Replaces the pod in its gang by the given one, until the context ends."""
        before = self.pending.get((pod.namespace, pod.name))
        is_other = before is not None and before is not pod and self.cache.gangs.key_of(pod.uid) is not None
        if is_other:
            self.cache.gangs.set(pod)
        try:
            yield
        finally:
            if is_other and before is not None:
                self.cache.gangs.set(before)

    @contextmanager
    def with_node(self, node: Node) -> Iterator[None]:
        """Replaces the node by the given one, until the context ends."""
        row = self.cache.nodes.row_of(node.name)
        assert row is not None, f"node {node.name} is not there to be changed"
        before = self.cache.nodes.node(row)
        self.cache.set_node(node)
        try:
            yield
        finally:
            self.cache.set_node(before)

    @contextmanager
    def with_pending(self, pods: Sequence[Pod]) -> Iterator[None]:
        """Adds pending pods, until the context ends."""
        for pod in pods:
            self.pending[pod.namespace, pod.name] = pod
            self.cache.gangs.set(pod)
        try:
            yield
        finally:
            for pod in pods:
                del self.pending[pod.namespace, pod.name]
                if self.cache.placed(pod.uid) is None:
                    self.cache.gangs.remove(pod.uid)

    def add_object(self, kind: ObjectKind, item: ClusterObject) -> None:
        """Adds the object permanently."""
        self._set_object(kind, item)
        self._catch_up(kind)

    def _set_object(self, kind: ObjectKind, item: ClusterObject) -> None:
        self.cache.objects.set(kind, item)
        note_gang(self.cache.gangs, kind, None, item)

    def _catch_up(self, kind: ObjectKind) -> None:
        """Makes the plugins that read the kind count everything; a running program does this in the background."""
        for worker in self.program.router.workers():
            for built in worker.plugins.built:
                if implements(built.plugin, CatchUpPlugin) and kind in traits_of(built.plugin).reads_objects:
                    while built.plugin.catch_up():
                        pass

    @contextmanager
    def with_object(self, kind: ObjectKind, item: ClusterObject) -> Iterator[None]:
        """Replaces the object by the given one, until the context ends."""
        before = self.cache.objects.get(kind, item.namespace, item.name)
        assert before is not None, f"{kind.value} {item.key} is not there to be changed"
        self.cache.objects.set(kind, item)
        self._catch_up(kind)
        try:
            yield
        finally:
            self.cache.objects.set(kind, before)
            self._catch_up(kind)

    @contextmanager
    def without_pod(self, pod: Pod) -> Iterator[None]:
        """Removes a placed pod, until the context ends."""
        self.cache.remove(pod.uid)
        try:
            yield
        finally:
            self.cache.place(pod)


def _answered(running: Generator[Sequence[RemoteRequest] | Pause, Any, R]) -> tuple[R, tuple[str, ...]]:
    """Returns the result of an attempt whose requests get no response, and the plugins that would have sent them."""
    unasked: dict[str, None] = {}
    try:
        asked = next(running)
        while True:
            if not isinstance(asked, Pause):
                unasked |= dict.fromkeys(one.plugin.name for one in asked)
            asked = running.send({})
    except StopIteration as ended:
        return ended.value, tuple(unasked)


class _CountedSteps:
    """Ends steps after a number of evaluations, because the sandbox's clock is stopped. So equal trials have equal results.

    An attempt may take `cycle.effort.PAUSES_MAX` steps, and makes 10,000 evaluations in these.
    """

    def __init__(self) -> None:
        self._evaluations = 0

    def begin(self) -> None:
        self._evaluations = 0

    def is_spent(self) -> bool:
        self._evaluations += 1
        if self._evaluations <= EVALUATIONS_MAX:
            return False
        self._evaluations = 0  # the caller continues after the pause, without `begin`
        return True

    async def rest(self) -> None:
        """Does nothing: a sandbox is synchronous."""


class _NoNetwork:
    """Refuses all requests: a sandbox must not write, and does not need to read."""

    async def request(self, method: str, path: str, **how: Any) -> Response:
        raise ConnectFailedError(f"{method} {path}: a sandbox has no network")

    @asynccontextmanager
    async def stream(self, path: str, **how: Any) -> AsyncIterator[LineStream]:
        raise ConnectFailedError(f"{path}: a sandbox has no network")
        yield  # makes this a generator, as the port requires


class _StoppedClock(msgspec.Struct, frozen=True):
    monotonic_s: float
    at: datetime

    def monotonic(self) -> float:
        return self.monotonic_s

    def now(self) -> datetime:
        return self.at

"""Applies watch events of pods and nodes to the cache and the queues: each object version once, in order, synchronously.

Pods on a node go to the cache; pending pods go to the queue of the domain that serves their schedulerName. Both handlers
implement `client.object_feed.ReflectorHandler`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from multisched.cycle.preemption.post_filter import CLEARED
from multisched.framework.events import ASSIGNED_POD_ADD, ASSIGNED_POD_DELETE, Action, ClusterEvent, Resource
from multisched.framework.ports import Clock, Event, EventSink, ObjectRef
from multisched.framework.status import Status
from multisched.model.decode import INTERNED_MAX, DecodeError, Decoder
from multisched.model.limited_toleration import tolerations_for
from multisched.model.objects import Node, Pod, PodSpec, differ_in_version_only, have_equal_demands
from multisched.model.own_keys import remarks_of_node
from multisched.model.selectors import Toleration
from multisched.model.version import version_of
from multisched.queueing.entry import QueueOutcome
from multisched.queueing.transitions import QueueState
from multisched.shell.domain import DomainWorker
from multisched.shell.ingest.cluster_changes import assigned_pod_events
from multisched.shell.ingest.key_remarks import IGNORED_KEY, plugin_remarks
from multisched.shell.ingest.router import Router
from multisched.state.cluster_cache import ClusterCache, PlacedPod, PodState
from multisched.state.nominator import Nominator

logger = logging.getLogger(__name__)

UNSCHEDULED_POD_ADD = ClusterEvent(Resource.UNSCHEDULED_POD, Action.ADD, "UnschedulablePodAdd")
UNSCHEDULED_POD_DELETE = ClusterEvent(Resource.UNSCHEDULED_POD, Action.DELETE, "UnschedulablePodDelete")
MALFORMED, UNKNOWN_DOMAIN, UNUSABLE_DATA = "MalformedNode", "UnknownDomain", "UnusableNodeData"
"""Event reasons."""
_DELETED = "the pod was deleted before it was bound"
REPORTED_MAX = 10_000
"""Maximum number of refused pods that are kept; beyond it, the oldest is dropped and may be reported again."""


class RefusedPod(NamedTuple):
    """A pod that is kept out of the queues, because only a change of the pod itself can make it schedulable."""

    pod: Pod
    domain: str
    message: str
    since_s: float


class PodIngest:
    """Ingest of pods into the cache and the queues."""

    def __init__(
        self,
        cache: ClusterCache,
        nominator: Nominator,
        router: Router,
        decoder: Decoder,
        clock: Clock,
        *,
        tolerations: Mapping[str, tuple[Toleration, ...]],
        on_deleting: Callable[[str], None],
        offer: Callable[[Pod], bool] = lambda pod: False,
        remark: Callable[[DomainWorker, Pod], None] = lambda worker, pod: None,
    ) -> None:
        """Callbacks: `on_deleting` is called with the uid of each pod that is deleted or deleting, before domains are notified of the
        freed capacity; `offer` with each new pending pod before it is queued, because capacity may be reserved for it; `remark`
        with each new pending pod, and when its labels or annotations change. `tolerations`: schedulerName -> tolerations that
        the domain's policy adds to its pods."""
        self._on_deleting = on_deleting
        self._remark = remark
        self._offer = offer
        self._tolerations = {name: added for name, added in tolerations.items() if added}
        self._tolerant: dict[tuple[int, tuple[Toleration, ...]], tuple[PodSpec, PodSpec]] = {}
        self._cache = cache
        self._nominator = nominator
        self._router = router
        self._decoder = decoder
        self._clock = clock
        self._refused: dict[str, RefusedPod] = {}
        self._pending: dict[str, Pod] = {}
        self._uids: dict[str, str] = {}
        """Key -> uid of placed, pending and refused pods, to find the pod of a deletion without the object's last state."""
        self.malformed = 0
        self.on_pending: Callable[[Pod], None] | None = None
        """Called with each pod that becomes pending, changes while pending, or stops being pending without a node."""
        self.on_placed: Callable[[DomainWorker, Pod | None, Pod, msgspec.Raw], None] | None = None
        """Called with each version of a pod of a domain that has a node: the worker, the version before, the pod, its document."""

    def upsert(self, key: str, raw: msgspec.Raw) -> None:
        try:
            pod = self._decoder.pod(raw)
        except DecodeError as error:
            self.malformed += 1
            logger.warning("pod cannot be read", extra={"pod": key, "error": str(error)})
            return
        if self._tolerations:
            pod = self.with_policy(pod)
        cached = self._cache.placed(pod.uid)
        if cached is not None and cached.state is PodState.CONFIRMED and cached.node != pod.node:
            # An API server never moves a pod, so a backup was restored, and the new state is valid.
            logger.warning(
                "pod is on another node than cached", extra={"pod": key, "node": cached.node, "now": pod.node}
            )
            self._on_deleted(pod.uid)
        if pod.is_terminal:
            self._on_deleted(pod.uid)
            return
        self._cache.gangs.set(pod)
        if pod.node:
            self._placed(key, pod, raw)
        else:
            self._update_pending(pod)

    def delete(self, key: str, raw: msgspec.Raw | None) -> None:
        """Handles a deletion. `raw`: last state; without it the uid is looked up by key."""
        uid, known = "", self._uids.pop(key, "")
        if raw is not None:
            try:
                uid = self._decoder.pod(raw).uid
            except DecodeError:
                self.malformed += 1
        if uid or known:
            self._on_deleted(uid or known)

    @property
    def refused(self) -> Mapping[str, RefusedPod]:
        """uid -> refused pod; the latest REPORTED_MAX of them."""
        return self._refused

    def uid_of(self, key: str) -> str:
        """Returns the uid of a placed, pending or refused pod. `key`: NAMESPACE/NAME. Empty if the pod is unknown."""
        return self._uids.get(key, "")

    def keys(self) -> list[str]:
        """Returns NAMESPACE/NAME of all placed, pending and refused pods."""
        return list(self._uids)

    @property
    def pending(self) -> Mapping[str, Pod]:
        """uid -> pending pod of any domain, in its latest version."""
        return self._pending

    def drop(self, uid: str) -> None:
        """Removes a deleted pod whose deletion the watch will not show."""
        self._on_deleted(uid)

    def history_rewritten(self) -> None:
        """Adds pods to their gangs that had ended only in the lost history. If such a pod was listed before the ended pods were, the
        roster ignored it.
        """
        gangs = self._cache.gangs
        for pod in [*self._pending.values(), *(entry.pod for entry in self._cache if entry.pod.node)]:
            if gangs.key_of(pod.uid) is None and gangs.set(pod) is not None:
                self._cache.place(pod) if pod.node else self._update_pending(pod)

    def replaced(self, version: str) -> None:
        logger.info("pods listed", extra={"version": version, "placed": len(self._cache)})

    def matches_cache(self, raw: msgspec.Raw) -> bool:
        """Reports whether the cache has the pod on the same node as the API. True for an ended pod, which holds no resources."""
        try:
            pod = self._decoder.pod(raw)
        except DecodeError:
            return True
        entry = self._cache.placed(pod.uid)
        return pod.is_terminal or (entry is not None and entry.node == pod.node)

    def use_policies(self, tolerations: Mapping[str, tuple[Toleration, ...]]) -> None:
        """Changes the tolerations that domains add to their pods, and updates pending and assumed pods accordingly."""
        before, self._tolerations = self._tolerations, {name: added for name, added in tolerations.items() if added}
        changed = {name for name in {*before, *tolerations} if before.get(name) != self._tolerations.get(name)}
        plain = {id(tolerant): spec for spec, tolerant in self._tolerant.values()}
        for pod in [pod for pod in self._pending.values() if pod.spec.scheduler_name in changed]:
            spec = plain.get(id(pod.spec))  # None: evicted from the cache of specs, or nothing was added
            own = _without(pod, before.get(pod.spec.scheduler_name, ())).spec if spec is None else spec
            self._update_pending(self.with_policy(msgspec.structs.replace(pod, spec=own)))

    def with_policy(self, pod: Pod) -> Pod:
        """Returns the pod with the tolerations that its domain's policy adds. The API object is never changed."""
        policy = self._tolerations.get(pod.spec.scheduler_name)
        added = tolerations_for(pod, policy) if policy is not None else ()
        if not added:
            return pod
        key = (id(pod.spec), added)
        known = self._tolerant.get(key)
        if known is None:
            if len(self._tolerant) >= INTERNED_MAX:
                self._tolerant.clear()
            spec = msgspec.structs.replace(pod.spec, tolerations=(*pod.spec.tolerations, *added))
            known = self._tolerant[key] = (pod.spec, spec)  # keeps the object alive whose id is in the key
        return msgspec.structs.replace(pod, spec=known[1])

    def without_policy(self, pod: Pod) -> Pod:
        """Returns the pod without the tolerations that its domain's policy adds, as in the API."""
        return _without(pod, self._tolerations.get(pod.spec.scheduler_name, ()))

    def _placed(self, key: str, pod: Pod, raw: msgspec.Raw) -> None:
        now_s = self._clock.monotonic()
        pending, nominated_node = self._pending.pop(pod.uid, None), self._nominator.remove(pod.uid)
        self._refused.pop(pod.uid, None)
        self._uids[key] = pod.uid
        before = self._cache.place(pod)
        if pod.is_deleting:
            self._on_deleting(pod.uid)
        worker = self._router.worker_of(pod)
        if worker is not None and self.on_placed is not None:
            self.on_placed(worker, None if before is None else before.pod, pod, raw)
        is_ours = before is not None and before.node == pod.node
        if worker is not None and pending is not None and not is_ours:
            # Bound by another client while it was pending, in an attempt, or in a binding cycle for another node.
            worker.queue.remove(pod.uid)
            worker.wake_if_ready()
            worker.binding.cancel(pod.uid, Status.error(f"another client bound it to {pod.node}"))
        if before is None or pending is not None:
            self._router.notify_pod(ASSIGNED_POD_ADD, None, pod, self._cache.nodes.row_of(pod.node), now_s)
            if nominated_node not in ("", pod.node):
                self._router.notify_nomination_ended(pod, nominated_node, now_s)
        if before is not None:
            self._notify_left(before, pod, now_s)

    def _notify_left(self, before: PlacedPod, pod: Pod, now_s: float) -> None:
        """Notifies domains of the capacity that an update of an assumed or bound pod frees."""
        stood = before.pod if before.pod.node else msgspec.structs.replace(before.pod, node=before.node)
        if stood.node != pod.node:
            self._router.notify_pod(ASSIGNED_POD_DELETE, stood, None, self._cache.nodes.row_of(stood.node), now_s)
            return
        for event in assigned_pod_events(stood, pod, self._cache.ledgers.reported):
            self._router.notify_pod(event, stood, pod, self._cache.nodes.row_of(stood.node), now_s)

    def _update_pending(self, pod: Pod) -> None:
        worker = self._router.worker_of(pod)
        if worker is None:
            return
        before = self._pending.get(pod.uid)
        if pod.is_deleting:
            if not self._cache.is_assumed(pod.uid):
                self._cache.gangs.remove(pod.uid)
            if before is not None:
                self._forget_pending(worker, pod.uid)
            if self._refused.pop(pod.uid, None) is not None:
                self._forget_key(pod)
            if self._cache.is_assumed(pod.uid):
                self._cache.revise(pod)  # a deleting pod keeps its resources, but topology spread ignores it
            return
        refusal = refusal_of(pod)
        if refusal:
            self._refuse(worker, pod, refusal)
        else:
            self._wait(worker, pod, before)
        if self._cache.is_assumed(pod.uid) and (before is None or not have_equal_demands(before, pod)):
            self.revise(worker, pod, refusal or ("the pod was gated again" if pod.gates else ""))

    def revise(self, worker: DomainWorker, pod: Pod, refusal: str) -> None:
        """Accounts for an assumed pod that changed, and notifies domains of freed capacity. If `refusal` is not empty, cancels its bind."""
        entry = self._cache.placed(pod.uid)
        assert entry is not None, "an assumed pod has an entry"
        before = msgspec.structs.replace(entry.pod, node=entry.node)  # queueing hints need its node
        worker.binding.revise(pod)
        if refusal:
            worker.binding.cancel(pod.uid, Status.error(refusal))
        if self._cache.placed(pod.uid) is not entry:
            return  # cancelled: the worker has notified domains
        after, row = msgspec.structs.replace(entry.pod, node=entry.node), self._cache.nodes.row_of(entry.node)
        for event in assigned_pod_events(before, after):
            self._router.notify_pod(event, before, after, row, self._clock.monotonic())

    def _wait(self, worker: DomainWorker, pod: Pod, before: Pod | None) -> None:
        self._refused.pop(pod.uid, None)
        self._pending[pod.uid] = pod
        self._uids[pod.key] = pod.uid
        if self.on_pending is not None:
            self.on_pending(pod)
        nominated_node = self._nominator.node_of(pod.uid)
        is_assumed = self._cache.is_assumed(pod.uid)
        if not is_assumed:  # else it is accounted on its row already
            self._nominator.set(pod, before)
            if before is None:
                self._offer(pod)
        now_s = self._clock.monotonic()
        placement = self._enqueue(worker, pod, before, now_s, is_assumed=is_assumed)
        if placement is not None and placement.state is QueueState.GATED:
            if before is None and not pod.gates:
                worker.failures.report_held(pod, placement.status.plugin, placement.status.message)
            worker.nominations.on_gated(pod.uid)  # this version of the pod may have set the nomination
        worker.intake.wake()
        if before is None or before.labels is not pod.labels or before.annotations is not pod.annotations:
            self._remark(worker, pod)
        if before is None:
            self._router.notify_listeners(UNSCHEDULED_POD_ADD, None, pod, now_s)
        elif nominated_node not in ("", self._nominator.node_of(pod.uid)):  # the API may never have shown it
            self._router.notify_nomination_ended(before, nominated_node, now_s)

    def _enqueue(
        self, worker: DomainWorker, pod: Pod, before: Pod | None, now_s: float, *, is_assumed: bool
    ) -> QueueOutcome | None:
        if before is not None:
            return worker.queue.update(before, pod, now_s)
        if is_assumed and pod.uid not in worker.queue:
            return None  # its bind was answered: the pod was refused and then fixed before the watch showed the bind
        return worker.queue.add(pod, now_s)

    def _refuse(self, worker: DomainWorker, pod: Pod, refusal: str) -> None:
        """Refuses a pod that cannot be scheduled at all: writes one condition and does not queue it."""
        if pod.uid in self._pending:
            self._forget_pending(worker, pod.uid, refusal)
        known = self._refused.get(pod.uid)
        if known is not None and known.message == refusal:
            self._refused[pod.uid] = known._replace(pod=pod)
            return
        if len(self._refused) >= REPORTED_MAX:
            del self._refused[next(iter(self._refused))]
        self._refused[pod.uid] = RefusedPod(pod, worker.name, refusal, self._clock.monotonic())
        self._uids[pod.key] = pod.uid
        self.malformed += 1
        worker.failures.report(pod, "Unschedulable", refusal, CLEARED if pod.nominated_node else None)

    def notify_owners(self, worker: DomainWorker) -> None:
        """Writes the conditions of pods that get no attempt (gated and refused). Called when this process becomes the leader."""
        names = self._router.names_of(worker)
        for pod in [pod for pod in self._pending.values() if pod.spec.scheduler_name in names]:
            self._remark(worker, pod)
        for entry in list(worker.queue.entries(QueueState.GATED)):
            if not entry.pod.gates:
                worker.failures.report_held(entry.pod, "".join(entry.plugins), entry.message)
        for refused in self._refused.values():
            if refused.domain == worker.name:
                worker.failures.report(refused.pod, "Unschedulable", refused.message)

    def _forget_pending(self, worker: DomainWorker, uid: str, why: str = _DELETED) -> None:
        pod, nominated_node = self._pending.pop(uid, None), self._nominator.remove(uid)
        worker.queue.remove(uid)
        worker.wake_if_ready()
        worker.binding.cancel(uid, Status.error(why))
        if pod is None:
            return
        if self.on_pending is not None:
            self.on_pending(pod)
        now_s = self._clock.monotonic()
        self._router.notify_listeners(UNSCHEDULED_POD_DELETE, pod, None, now_s)
        if nominated_node:  # the API may never have shown the nomination
            self._router.notify_nomination_ended(pod, nominated_node, now_s)

    def _on_deleted(self, uid: str) -> None:
        self._cache.gangs.remove(uid)
        pending = self._pending.get(uid)
        if pending is not None:
            self._forget_key(pending)
            worker = self._router.worker_of(pending)
            if worker is not None:
                self._forget_pending(worker, uid)
        refused = self._refused.pop(uid, None)
        if refused is not None:
            self._forget_key(refused.pod)
        entry = self._cache.remove(uid)
        if entry is not None:
            self._on_deleting(uid)
            self._forget_key(entry.pod)
            worker = self._router.worker_of(entry.pod)
            if worker is not None:
                worker.binding.cancel(uid, Status.error(_DELETED))
            row = self._cache.nodes.row_of(entry.node)
            # An assumed pod has no node in its spec, and queueing hints ignore a pod without a node.
            freed = entry.pod if entry.pod.node else msgspec.structs.replace(entry.pod, node=entry.node)
            self._router.notify_pod(ASSIGNED_POD_DELETE, freed, None, row, self._clock.monotonic())

    def _forget_key(self, pod: Pod) -> None:
        if self._uids.get(pod.key) == pod.uid:
            del self._uids[pod.key]


class NodeIngest:
    """Ingest of nodes into the cache."""

    def __init__(
        self,
        cache: ClusterCache,
        router: Router,
        decoder: Decoder,
        clock: Clock,
        events: EventSink,
        reporter: str,
        *,
        disputed: Callable[[Node], Sequence[str]],
        unknown_domain: Callable[[Node], str] = lambda node: "",
    ) -> None:
        """`disputed`: returns the domains whose selectors match a node without a loan between them, its home first; usually
        empty. `unknown_domain`: returns what is wrong with a node's domain label; usually empty."""
        self._disputed = disputed
        self._unknown_domain = unknown_domain
        self._cache = cache
        self._router = router
        self._decoder = decoder
        self._clock = clock
        self._events = events
        self._reporter = reporter
        self._reported: dict[str, tuple[tuple[str, str], ...]] = {}
        """Node -> (reason, note) of its current faults."""
        self.unserved: dict[str, str] = {}
        """Node whose domain label names no domain -> what is wrong."""
        self.malformed = 0

    def upsert(self, key: str, raw: msgspec.Raw) -> None:
        try:
            node = self._decoder.node(raw)
        except DecodeError as error:
            self.malformed += 1
            logger.warning("node cannot be read", extra={"node": key, "error": str(error)})
            return
        row = self._cache.nodes.row_of(node.name)
        used = self._router.uses_of(row)
        before = self._cache.set_node(node)
        row = self._cache.nodes.row_of(node.name)
        assert row is not None, "it was just set"
        node = self._cache.nodes.node(row)  # with its elastic resources
        self._report(node)
        uses = self._router.uses_of(row)
        now_s = self._clock.monotonic()
        if before is not None and before.uid != node.uid:
            nobody = self._router.uses_of(None)
            self._router.notify_node(before, None, used, nobody, now_s)
            before, used = None, nobody
        self._router.notify_node(before, node, used, uses, now_s)
        if before is None or not differ_in_version_only(before, node):
            self._recheck_binds(node.name)

    def _recheck_binds(self, name: str) -> None:
        """Checks the pods assumed on a node that changed or was deleted, because they may no longer fit."""
        for pod in self._cache.assumed_on(name):
            worker = self._router.worker_of(pod)
            if worker is not None:
                worker.binding.recheck(pod.uid)

    def delete(self, key: str, raw: msgspec.Raw | None) -> None:
        del raw
        used = self._router.uses_of(self._cache.nodes.row_of(key))
        node = self._cache.remove_node(key)
        self._reported.pop(key, None)
        self.unserved.pop(key, None)
        if node is not None:
            self._router.notify_node(node, None, used, self._router.uses_of(None), self._clock.monotonic())
            self._recheck_binds(key)

    def replaced(self, version: str) -> None:
        self._cache.nodes_listed(version_of(version))
        logger.info("nodes listed", extra={"version": version, "nodes": self._cache.nodes.node_count})

    def _report(self, node: Node) -> None:
        """Records one event per new fault of a node, for example that it cannot be used or has keys without effect."""
        found = tuple(self._faults(node))
        known = self._reported.get(node.name, ())
        if not found:
            self._reported.pop(node.name, None)
            return
        self._reported[node.name] = found
        for reason, note in found:
            if (reason, note) in known:
                continue
            self.malformed += reason in (MALFORMED, UNKNOWN_DOMAIN)
            logger.warning("node has a fault", extra={"node": node.name, "reason": reason, "note": note})
            ref = ObjectRef("Node", "", node.name, node.uid)
            self._events.record(Event(ref, "Warning", reason, "Scheduling", note, self._reporter))

    def _faults(self, node: Node) -> Iterator[tuple[str, str]]:
        """Yields (reason, note) of each fault."""
        unknown = self._unknown_domain(node)
        if unknown:
            self.unserved[node.name] = unknown
        else:
            self.unserved.pop(node.name, None)
        if node.malformed:
            yield MALFORMED, f"No pod is placed here: {node.malformed}"
        elif unknown:
            yield UNKNOWN_DOMAIN, f"No domain uses this node: {unknown}"
        elif claimants := self._disputed(node):
            yield "DisputedNode", _dispute(claimants)
        for remark in remarks_of_node(node):
            yield IGNORED_KEY, remark
        for remark in plugin_remarks(self._router.workers(), lambda plugin: plugin.remarks_of_node(node)):
            yield UNUSABLE_DATA, remark


def _without(pod: Pod, policy: tuple[Toleration, ...]) -> Pod:
    """Returns the pod without the tolerations that a policy appended."""
    added = len(tolerations_for(pod, policy))
    if not added:
        return pod
    own = pod.spec.tolerations[: len(pod.spec.tolerations) - added]
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, tolerations=own))


def _dispute(claimants: Sequence[str]) -> str:
    home, *others = claimants
    return (
        f"The selectors of the domains {', '.join(claimants)} match: it belongs to {home}, and {', '.join(others)} cannot"
        f" use it. Make the selectors disjoint, lend it, or label it multisched.io/domain"
    )


def refusal_of(pod: Pod) -> str:
    """Returns why no domain can place the pod in its current version; usually empty."""
    if pod.malformed:
        return f"the pod cannot be scheduled: {pod.malformed}"
    if pod.spec.unsupported:
        return (
            f"multisched does not evaluate {', '.join(pod.spec.unsupported)} yet; remove them or use another scheduler"
        )
    return ""

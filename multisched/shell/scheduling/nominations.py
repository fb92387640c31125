"""The nominated nodes of one domain's pods, and the start of their preemptions.

A cycle decides the nomination; `Preemptor` removes the victims. When a nomination ends, pods that may have been refused because
of it are requeued. `Preemptor` asks this class about the state of the preemptor pod's domain.

A gated pod whose victims are not being removed loses its nomination: it cannot be scheduled, so the capacity reserved for it
would be wasted. Therefore a gang that is not eligible to start (a member or its PodGroup was deleted, or its minimum was
raised) holds no capacity.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from multisched.cycle.preemption.post_filter import CLEARED
from multisched.cycle.results import Unplaced
from multisched.cycle.scheduling_cycle import SchedulingCycle
from multisched.framework.events import Action, ClusterEvent, Resource
from multisched.framework.gangs import GANG_PLUGIN
from multisched.framework.preemption import RankingPlugin
from multisched.framework.registry import PluginSet, implementing
from multisched.framework.runner import PluginFailure, Runner
from multisched.model.objects import Pod
from multisched.queueing.entry import QueueEntry
from multisched.queueing.pod_queue import PodQueue
from multisched.queueing.transitions import QueueState
from multisched.shell.preemptor import Preemptor
from multisched.shell.scheduling.intake import Intake
from multisched.shell.scheduling.ports import DomainPorts, Listeners
from multisched.shell.scheduling.wait_group import WaitGroup
from multisched.state.cluster_cache import ClusterCache

_PREEMPTED = ClusterEvent(Resource.WILDCARD, Action.ALL, "PreemptionEnded")


class DomainNominations:
    """The nominations of one domain. Implements `Home` for `Preemptor`."""

    def __init__(
        self,
        cycle: SchedulingCycle,
        queue: PodQueue,
        runner: Runner,
        cache: ClusterCache,
        preemptor: Preemptor,
        intake: Intake,
        in_progress: WaitGroup,
        ports: DomainPorts,
        listeners: Listeners,
        *,
        write_timeout_s: float,
    ) -> None:
        self.lease = ports.lease
        self.observer = ports.observer
        self.write_timeout_s = write_timeout_s
        self._rows = cycle.rows
        self._nominator = cycle.nominator
        self._ranking = implementing(cycle.plugins.post_filter, RankingPlugin)
        self._has_gangs = _has_gangs(cycle.plugins)
        self._are_gated = False
        """True if a gated pod may have a nomination that `release_gated` has to end."""
        self._queue = queue
        queue.listen(self.on_gated, lambda node: [pod.uid for pod in cycle.nominator.on(node)])
        self._runner = runner
        self._cache = cache
        self._preemptor = preemptor
        self._intake = intake
        self._in_progress = in_progress
        self._clock = ports.clock
        self._conditions = ports.conditions
        self._listeners = listeners

    def adopt(self, plugins: PluginSet) -> None:
        """Switches to the plugins of another profile. Nominations are kept, and are ranked by the new plugins."""
        self._ranking = implementing(plugins.post_filter, RankingPlugin)
        self._has_gangs = _has_gangs(plugins)
        self.rank_all()

    def node_of(self, uid: str) -> str:
        """Returns the pod's nominated node; empty if it has none."""
        return self._nominator.node_of(uid)

    def nominate(self, result: Unplaced) -> str | None:
        """Updates the nomination of a refused pod and starts its preemption.

        Returns the nominated node to write to the pod's status, or None for no write. Must run before the pod is requeued, because
        the pod must not be retried while its victims are being removed. A preemption for several pods starts with the first result.
        """
        pod, node, preemption = result.pod, result.nominated_node, result.preemption
        known = pod.nominated_node or self._nominator.node_of(pod.uid)
        if node is None and known and not self.may_use(known):
            node = CLEARED  # a plugin failure keeps the nomination, unless the node now belongs to another domain
        if self._is_gang_held_back(pod.uid):  # it may have lost a member while a request to a plugin was in flight
            node, preemption = CLEARED, None
        if node is None or not self._is_known(pod.uid):
            return None
        self._nominator.nominate(pod, node, self._rank(pod) if preemption is None else preemption.rank)
        if preemption is not None and self._preemptor.start(preemption, self):
            self._in_progress.add()
        return node if node != known else None

    def rank_all(self, pods: Iterable[Pod] | None = None) -> None:
        """Ranks nominations again, so that they have the same precedence after a restart as before it.

        `pods`: None for all nominated pods in the queue.
        """
        own = [pod for pod in self._nominator.pods() if self._is_known(pod.uid)] if pods is None else pods
        for pod in own:
            self._nominator.nominate(pod, pod.nominated_node, self._rank(pod))

    def rank_of(self, pod: Pod) -> int:
        """Returns the rank of the pod's nomination: pods of a higher priority ignore it."""
        rank = self._rank(pod)
        return pod.spec.priority if rank is None else rank

    def _rank(self, pod: Pod) -> int | None:
        for plugin in self._ranking:
            try:
                rank = self._runner.call(plugin, "PostFilter", plugin.nomination_rank, pod)
            except PluginFailure:
                continue  # without a rank the pod's own priority is used
            if rank is not None:
                return rank
        return None

    def retry_nominated(self, node: str) -> None:
        """Activates all pods nominated to the node. Called when the node left the domain, or a victim on it was deleted.

        No queueing hint would requeue these pods, and until they are retried, other pods may be refused because of nominations
        that are no longer valid.
        """
        for pod in self._nominator.on(node):
            if self._queue.activate(pod.uid, self._clock.monotonic()) is not None:
                self._intake.wake()

    def on_gated(self, uid: str) -> None:
        """Handles a pod that became gated. If it has a nomination, `release_gated` will end the nomination."""
        if self._nominator.node_of(uid) and not self._preemptor.is_preempting(uid):
            self._are_gated = True
            self._intake.wake()

    def release_gated(self) -> Sequence[QueueEntry]:
        """Ends the nominations of gated pods, and requeues pods that may have been refused because of them.

        Returns the queue entries of the gated pods.
        """
        if not self._are_gated:
            return ()
        self._are_gated, released = False, list[QueueEntry]()
        for pod in self._nominator.pods():
            entry = self._queue.entry(pod.uid)
            if entry is None or entry.state is not QueueState.GATED or self._preemptor.is_preempting(pod.uid):
                continue
            self._nominator.remove(pod.uid)
            self.nomination_ended(pod, pod.nominated_node)
            released.append(entry)
        return released

    def is_preempting(self, uid: str) -> bool:
        """Reports whether victims are being removed for this pod."""
        return self._preemptor.is_preempting(uid)

    def close(self) -> None:
        """Handles the stop of the domain: drops preemptions that have not begun."""
        self._preemptor.drop_waiting(self)

    # -- Home ------------------------------------------------------------------------------------------------------

    def still_waits(self, uid: str) -> bool:
        return self._is_known(uid) and not self._is_gang_held_back(uid)

    def _is_known(self, uid: str) -> bool:
        return self._queue.where(uid) not in (None, QueueState.LEAVING)

    def _is_gang_held_back(self, uid: str) -> bool:
        """Reports whether the pod belongs to a gang that is not eligible to start."""
        gangs = self._cache.gangs
        key = gangs.key_of(uid) if self._has_gangs else None
        return key is not None and bool(gangs.why_not_yet(key))

    def may_use(self, node: str) -> bool:
        """Reports whether the node belongs to the domain and is not withheld."""
        row = self._cache.nodes.row_of(node)
        return row is not None and self._rows.has(row)

    def is_confirmed_on_node(self, uid: str) -> bool:
        """Reports whether the watch has shown the pod on a node, and has not shown it as deleting."""
        entry = self._cache.placed(uid)
        return entry is not None and not entry.pod.is_deleting and not self._cache.is_assumed(uid)

    def preemption_ended(self) -> None:
        """Handles the end of a preemption, after its last write."""
        self._in_progress.done()

    def nomination_ended(self, pod: Pod, node: str) -> None:
        """Notifies all domains that a nomination ended. The watch does not show it if the nomination was never written."""
        self._conditions.end_nomination(pod.uid)
        self._listeners.notify_nomination_ended(pod, node, self._clock.monotonic())

    def release_preemptor(self, pod: Pod, *, failed: bool) -> None:
        """Makes the pod schedulable again after its preemption ended.

        The deletion events of its victims requeue the pod. If the preemption failed, or the pod missed events while it was gated,
        it is requeued here, with backoff: otherwise a scheduler that may not delete pods would preempt in a busy loop.
        """
        now_s = self._clock.monotonic()
        if failed or self._queue.where(pod.uid) is QueueState.GATED:
            self._queue.on_event(_PREEMPTED, None, pod, now_s)
        self._intake.wake()


def _has_gangs(plugins: PluginSet) -> bool:
    """Reports whether this profile schedules the members of a gang together."""
    return any(one.plugin.name == GANG_PLUGIN for one in plugins.built)

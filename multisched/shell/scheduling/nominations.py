"""What a domain has promised to its pods: nominated nodes, and the preemptions that are to make them true.

A cycle decides whom to nominate; the preemptor removes the victims. Owns neither. When a promise ends, pods that left
it room are woken. The preemptor learns how the domain of its pod stands.

A pod that a gate holds, and whose victims are not being removed, keeps no nomination: it cannot be tried, so that others
would leave it room in vain. So a gang that is not eligible to start (a member or its PodGroup is deleted, or its minimum
raised) holds nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from multisched.cycle.preemption.post_filter import CLEARED
from multisched.cycle.results import Unplaced
from multisched.cycle.scheduling_cycle import SchedulingCycle
from multisched.framework.events import Action, ClusterEvent, Resource
from multisched.framework.gangs import GANG_PLUGIN
from multisched.framework.preemption import RankingPlugin
from multisched.framework.registry import PluginSet, those
from multisched.framework.runner import PluginFailure, Runner
from multisched.model.objects import Pod
from multisched.queueing.entry import QueueEntry
from multisched.queueing.pod_queue import PodQueue
from multisched.queueing.transitions import Place
from multisched.shell.preemptor import Preemptor
from multisched.shell.scheduling.intake import Intake
from multisched.shell.scheduling.ports import DomainPorts, Listeners
from multisched.shell.scheduling.wait_group import WaitGroup
from multisched.state.cluster_cache import ClusterCache

_PREEMPTED = ClusterEvent(Resource.WILDCARD, Action.ALL, "PreemptionEnded")


class DomainNominations:
    """Of one domain; to the preemptor it is the `Home` of this domain's preemptors."""

    def __init__(
        self,
        cycle: SchedulingCycle,
        queue: PodQueue,
        runner: Runner,
        cache: ClusterCache,
        preemptor: Preemptor,
        intake: Intake,
        under_way: WaitGroup,
        outside: DomainPorts,
        listeners: Listeners,
        *,
        write_timeout_s: float,
    ) -> None:
        self.lease = outside.lease
        self.observer = outside.observer
        self.write_timeout_s = write_timeout_s
        self._rows = cycle.rows
        self._nominator = cycle.nominator
        self._ranking = those(cycle.plugins.post_filter, RankingPlugin)
        self._has_gangs = _has_gangs(cycle.plugins)
        self._are_gated = False
        """A gated pod may be nominated."""
        self._queue = queue
        queue.listen(self.on_gated)
        self._runner = runner
        self._cache = cache
        self._preemptor = preemptor
        self._intake = intake
        self._under_way = under_way
        self._clock = outside.clock
        self._conditions = outside.conditions
        self._listeners = listeners

    def adopt(self, plugins: PluginSet) -> None:
        """Another profile is in force: promises stand, and are ranked by it from now on."""
        self._ranking = those(plugins.post_filter, RankingPlugin)
        self._has_gangs = _has_gangs(plugins)
        self.rank_all()

    def node_of(self, uid: str) -> str:
        """The node that is promised to the pod; empty: none."""
        return self._nominator.node_of(uid)

    def nominate(self, result: Unplaced) -> str | None:
        """Keeps what a refused pod was promised, and begins to make it true; what is to be written of it, if anything.

        Before the pod is back in its queue: from then on it must not be tried while its victims go. A preemption for several
        pods begins with the first of their results.
        """
        pod, node, preemption = result.pod, result.nominated_node, result.preemption
        known = pod.nominated_node or self._nominator.node_of(pod.uid)
        if node is None and known and not self.may_use(known):
            node = CLEARED  # a plugin failed, which keeps a promise: but not of a node of another domain, whose pods wait for it
        if self._is_gang_held_back(pod.uid):  # while plugins were asked outside, it lost a member for instance
            node, preemption = CLEARED, None
        if node is None or not self._is_known(pod.uid):
            return None
        self._nominator.nominate(pod, node, self._rank(pod) if preemption is None else preemption.rank)
        if preemption is not None and self._preemptor.start(preemption, self):
            self._under_way.add()
        return node if node != known else None

    def rank_all(self, pods: Iterable[Pod] | None = None) -> None:
        """Nominated pods of the domain keep their places from whom they kept them in the process that nominated them.

        `pods`: None for those in the queue.
        """
        own = [pod for pod in self._nominator.pods() if self._is_known(pod.uid)] if pods is None else pods
        for pod in own:
            self._nominator.nominate(pod, pod.nominated_node, self._rank(pod))

    def rank_of(self, pod: Pod) -> int:
        """Pods of a higher priority do not leave the pod the room that it is promised."""
        rank = self._rank(pod)
        return pod.spec.priority if rank is None else rank

    def _rank(self, pod: Pod) -> int | None:
        for plugin in self._ranking:
            try:
                rank = self._runner.call(plugin, "PostFilter", plugin.nomination_rank, pod)
            except PluginFailure:
                continue  # it keeps its place from pods of a lower priority, as any other
            if rank is not None:
                return rank
        return None

    def retry_nominated(self, node: str) -> None:
        """Pods that were promised the node are decided anew: it left the domain, or a victim left it.

        No hint need tell them, and until then others leave them room that they may no longer be able to take.
        """
        for pod in self._nominator.on(node):
            if self._queue.activate(pod.uid, self._clock.monotonic()) is not None:
                self._intake.wake()

    def on_gated(self, uid: str) -> None:
        """A gate refuses the pod: `release_gated` will end its nomination, if it has one."""
        if self._nominator.node_of(uid) and not self._preemptor.is_preempting(uid):
            self._are_gated = True
            self._intake.wake()

    def release_gated(self) -> Sequence[QueueEntry]:
        """Ends the nominations of gated pods, and wakes the pods that left them room. Returns those pods."""
        if not self._are_gated:
            return ()
        self._are_gated, released = False, list[QueueEntry]()
        for pod in self._nominator.pods():
            entry = self._queue.entry(pod.uid)
            if entry is None or entry.place is not Place.GATED or self._preemptor.is_preempting(pod.uid):
                continue
            self._nominator.remove(pod.uid)
            self.nomination_ended(pod, pod.nominated_node)
            released.append(entry)
        return released

    def is_preempting(self, uid: str) -> bool:
        """True while victims are removed for this pod."""
        return self._preemptor.is_preempting(uid)

    def close(self) -> None:
        """The domain stops: preemptions that have not begun never will."""
        self._preemptor.drop_waiting(self)

    # -- the home of its preemptors --------------------------------------------------------------------------------

    def still_waits(self, uid: str) -> bool:
        return self._is_known(uid) and not self._is_gang_held_back(uid)

    def _is_known(self, uid: str) -> bool:
        return self._queue.where(uid) not in (None, Place.LEAVING)

    def _is_gang_held_back(self, uid: str) -> bool:
        """The pod is of a gang that is not eligible to start."""
        gangs = self._cache.gangs
        key = gangs.key_of(uid) if self._has_gangs else None
        return key is not None and bool(gangs.why_not_yet(key))

    def may_use(self, node: str) -> bool:
        """The node is the domain's, and not withheld."""
        row = self._cache.nodes.row_of(node)
        return row is not None and self._rows.has(row)

    def is_standing(self, uid: str) -> bool:
        """True for a pod that the watch has shown on a node, and of which it has not said that it goes."""
        entry = self._cache.placed(uid)
        return entry is not None and not entry.pod.is_deleting and not self._cache.is_assumed(uid)

    def preemption_ended(self) -> None:
        """Nothing more is written for one of this domain's preemptors."""
        self._under_way.done()

    def nomination_ended(self, pod: Pod, node: str) -> None:
        """A pod is promised this node no more. Where the server never got the promise, no watch shows its end."""
        self._conditions.end_nomination(pod.uid)
        self._listeners.notify_nomination_ended(pod, node, self._clock.monotonic())

    def let_go(self, pod: Pod, *, failed: bool) -> None:
        """Victims that go wake the pod by their events; what it missed of them while it was held is made good here.

        After its backoff, also when it failed: who may not delete pods would else preempt in vain, again and again.
        """
        now_s = self._clock.monotonic()
        if failed or self._queue.where(pod.uid) is Place.GATED:
            self._queue.on_event(_PREEMPTED, None, pod, now_s)
        self._intake.wake()


def _has_gangs(plugins: PluginSet) -> bool:
    """Whether the members of a gang are scheduled together by this profile."""
    return any(one.plugin.name == GANG_PLUGIN for one in plugins.built)

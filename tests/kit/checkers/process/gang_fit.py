"""Reports whether a gang could start by all that its process has observed: its members together, not one by one.

A node may take a pending member alone, but no capacity is held for a gang that cannot start. A refusal of a member, and its time in
the queue, is therefore judged by whether the members that the gang lacks fit all at once. When the gang has its minimum, each
member is judged like any pod.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence

from multisched.framework.points import QueuedGang
from multisched.model.objects import Pod
from multisched.queueing.entry import QueueEntry
from multisched.queueing.pod_queue import PodQueue
from multisched.queueing.transitions import QueueState
from multisched.verify.gang_objects import GangKey
from multisched.verify.gangs import GangJudge
from tests.kit.checkers.device_rules import wants_devices
from tests.kit.checkers.process.feasible_nodes import DomainNodes, FeasibleNodes, is_judged
from tests.kit.checkers.victim_rules import needs_only_room_or_devices

WAITING: frozenset[QueueState] = frozenset({QueueState.UNSCHEDULABLE, QueueState.GANG})
"""States of members that could be tried if their gang were requeued."""


class GangFit:
    """The gangs of one domain in one process."""

    def __init__(self, domain: str, feasible: FeasibleNodes, report_violation: Callable[[str], None]) -> None:
        self._domain = domain
        self._feasible = feasible
        self._report_violation = report_violation
        self._tried: dict[str, Sequence[Pod]] = {}
        """uid of a member whose attempt is in progress -> all members of that attempt."""

    # -- missing members -------------------------------------------------------------------------------------------

    def lacking(self, uid: str) -> Counter[GangKey]:
        """Returns the number of members that the pod's gang lacks, and each gang that starts with it; nothing for a pod that starts
        alone.

        Members that the process has decided to evict do not count.
        """
        judge = self._feasible.delivered.gangs
        key = judge.gang_of(uid) if judge is not None else None
        if judge is None or key is None or self._has_started(judge, key):
            return Counter()
        found = Counter[GangKey]()
        for state in (judge.state(one) for one in judge.state(key).groups or (key,)):
            held = self._feasible.delivered.held.keys() & state.waiting
            bound = sum(not self._feasible.is_victim(uid) for uid in state.bound)
            lacks = len(state.waiting) + 1 if state.minimum is None else state.minimum - bound - len(held)
            found[state.key] = 0 if self._has_started(judge, state.key) else max(lacks, 0)
        return found if found[key] else Counter()

    def _has_started(self, judge: GangJudge, key: GangKey) -> bool:
        """Reports whether each further member may start alone: the gang has started, and lacks one member at most.

        A started gang that has lost several members, for instance to evictions, must start them together.
        """
        state = judge.state(key)
        bound = sum(not self._feasible.is_victim(uid) for uid in state.bound)
        return judge.has_started(key) and bound > 0 and (state.minimum is None or state.minimum - bound <= 1)

    # -- refusals --------------------------------------------------------------------------------------------------

    def popped(self, gang: QueuedGang) -> None:
        """Records that an attempt of these members begins."""
        members = [one.pod for one in gang.members]
        self._tried.update(dict.fromkeys((pod.uid for pod in members), members))

    def tried_with(self, uid: str) -> Sequence[Pod]:
        """Returns all members of an attempt that has ended; none for a pod that was tried alone."""
        return self._tried.pop(uid, ())

    def check_refusal(self, pod: Pod, tried: Sequence[Pod], message: str) -> None:
        """Checks that the members of an attempt do not fit together, and would not after evicting all less important pods."""
        lacking, nodes = self.lacking(pod.uid), self._feasible.nodes_of(self._domain)
        if nodes is None or not lacking:
            return
        if self._fits(tried, lacking, nodes):
            self._report_violation(f"I3: {pod.key} was refused, and its gang fits as a whole ({message[:80]})")
            return
        if not all(self._is_simple_preemptor(one) for one in tried):
            return
        if self._fits(tried, lacking, nodes.without_less_urgent(min(one.spec.priority for one in tried))):
            self._report_violation(
                f"I3: {pod.key} preempts nobody, and so its gang would fit as a whole ({message[-80:]})"
            )

    def _is_simple_preemptor(self, pod: Pod) -> bool:
        """Reports whether the pod may preempt, needs only requests and labels, and has no victims already."""
        is_simple = needs_only_room_or_devices(pod) and not wants_devices(pod) and pod.spec.can_preempt
        return is_simple and not self._feasible.is_nominated(pod)

    def _fits(self, members: Sequence[Pod], lacking: Counter[GangKey], nodes: DomainNodes) -> bool:
        """Reports whether the members fit in one of the topology domains that the gang requires, or anywhere if it requires
        none.
        """
        judge = self._feasible.delivered.gangs
        required = judge.state(next(iter(lacking))).required if judge is not None else ()
        return any(self._fits_in(members, lacking, part) for part in nodes.by_domain(required))

    def _fits_in(self, members: Sequence[Pod], lacking: Counter[GangKey], nodes: DomainNodes) -> bool:
        """Reports whether the missing members fit, each placed on the first node that takes it."""
        judge = self._feasible.delivered.gangs
        left = Counter(lacking)
        for pod in members:
            key = judge.gang_of(pod.uid) if judge is not None else None
            if key is None or left[key] <= 0 or not is_judged(pod):
                continue
            node = nodes.node_for(pod)
            if node:
                nodes = nodes.with_pod(pod, node)
                left[key] -= 1
        return max(left.values()) <= 0

    # -- sleep -----------------------------------------------------------------------------------------------------

    def check_parked(self, entry: QueueEntry, queue: PodQueue) -> None:
        """Checks a parked lead: if its gang fits as a whole, it should have been requeued, unless another member is being tried."""
        lacking, nodes = self.lacking(entry.uid), self._feasible.nodes_of(self._domain)
        if nodes is None or not lacking:
            return
        members = [one for uid in sorted(self._uids_of(lacking)) if (one := queue.entry(uid)) is not None]
        if all(one.state in WAITING or one.state is QueueState.GATED for one in members) and self._fits(
            [one.pod for one in members if one.state in WAITING], lacking, nodes
        ):
            refusal = f"{', '.join(entry.plugins)}: {entry.message[:80]}"
            self._report_violation(f"I3: {entry.pod.key} was not woken, and its gang fits as a whole ({refusal})")

    def _uids_of(self, keys: Collection[GangKey]) -> set[str]:
        judge = self._feasible.delivered.gangs
        return set[str]() if judge is None else {uid for key in keys for uid in judge.state(key).waiting}

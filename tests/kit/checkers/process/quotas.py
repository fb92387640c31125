"""Checks elastic quotas of one process by what it has observed: no assumption exceeds a max, and sums are correct (I14)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, cast

from multisched.framework.gangs import GANG_PLUGIN
from multisched.model.objects import Pod
from multisched.plugins.quota.quota_ledger import QuotaLedger
from multisched.queueing.entry import QueueEntry
from multisched.queueing.transitions import QueueState
from multisched.shell.domain import DomainWorker
from multisched.shell.program import Program
from multisched.state.ledgers import RowlessLedger
from multisched.state.reservations import is_stand_in
from multisched.verify.quota_tree import QuotaTree, Usage
from tests.kit.checkers.delivered_state import DeliveredState
from tests.kit.checkers.linked_quotas import misnamed
from tests.kit.checkers.quota_rules import quota_amounts, quota_excess, usage_of

LEDGER: Final = "ElasticQuota"
WAITED_LOOKS: Final = 2
"""Number of looks that find a pod parked before it counts as not requeued."""


class ProcessQuotas:
    """Called at each assumption, and regularly."""

    def __init__(self, program: Program, delivered: DeliveredState) -> None:
        self._program, self._delivered = program, delivered
        self._decided_on: dict[str, tuple[int, int]] = {}
        """uid of each pod in flight -> versions of quotas and nominations when its attempt began."""
        self._waiting: dict[str, dict[str, tuple[float, int]]] = {}
        """Domain -> uid of a pod that its quota refused -> time since which it is parked, and number of looks since then."""
        self._used: Usage | None = None
        self._used_at = -1
        """The value of `changes` for which it was computed."""

    # -- decisions -------------------------------------------------------------------------------------------------

    def popped(self, uids: Iterable[str]) -> None:
        """Records that the attempts of these pods begin."""
        self._decided_on.update(dict.fromkeys(uids, self._moment()))

    def fault_of(self, pod: Pod) -> str:
        """Returns the max that the pod would exceed if it is assumed now; empty for none.

        Amounts of nominated pods of other kinds count, if the attempt was decided on the current state.
        """
        known = self._delivered.pods.get(pod.uid, pod)
        pods_on_nodes = [one for one in self._delivered.placed() if one.uid != pod.uid]
        excess = quota_excess(self._delivered.quotas.tree, known, pods_on_nodes)
        if not excess and self._decided_on.pop(pod.uid, None) == self._moment():
            excess = quota_excess(self._delivered.quotas.tree, known, [*pods_on_nodes, *self._promised(known)])
            excess = excess and f"with what is nominated {excess}"
        return excess

    def _moment(self) -> tuple[int, int]:
        ledger = self._ledger()
        return self._program.nominator.sequence, 0 if ledger is None else ledger.version()

    def _promised(self, pod: Pod) -> list[Pod]:
        """Returns nominated pods, without those of its gang and of its kind: of these, any may be first."""
        tree, gangs = self._delivered.quotas.tree, self._program.cache.gangs
        gang = gangs.key_of(pod.uid)
        kind = _kind(tree, pod)
        return [
            one
            for one in self._nominated()
            if one.uid != pod.uid and (gang is None or gangs.key_of(one.uid) != gang) and _kind(tree, one) != kind
        ]

    def _nominated(self) -> list[Pod]:
        return [one for one in self._program.nominator.pods() if not is_stand_in(one)]

    # -- the ledger ------------------------------------------------------------------------------------------------

    def _ledger(self) -> QuotaLedger | None:
        wrapped = (one.cluster for one in self._program.cache.ledgers if isinstance(one, RowlessLedger))
        return next((one for one in wrapped if isinstance(one, QuotaLedger)), None)

    def fault_of_sums(self) -> str:
        """Returns where the sums of the program's ledger differ from the pods that it has observed; empty for nowhere."""
        tree, ledger = self._delivered.quotas.tree, self._ledger()
        if ledger is None:
            return ""
        ledger.held()  # applies a new tree that was not used yet
        here = cast(Mapping[str, Mapping[str, int]], ledger.sums())
        if tree is None:
            return f"I14: quotas have sums for {sorted(here)}, and there is no tree" if here else ""
        usage = self._usage(tree)
        for level in tree.root.below():
            for resource in sorted(level.min.keys() | level.max.keys()):
                shown, used = here.get(level.path, {}).get(resource, 0), usage.of(level)[resource]
                if shown != used:
                    return f"I14: {level.path} has {shown} {resource} by its ledger, and {used} by its pods"
        return self._fault_of_pods(tree, ledger)

    def _usage(self, tree: QuotaTree) -> Usage:
        """Returns the usage of all placed pods. Cached for each observed state."""
        if self._used is None or self._used.tree is not tree or self._used_at != self._delivered.changes:
            self._used, self._used_at = usage_of(tree, self._delivered.placed()), self._delivered.changes
        return self._used

    def _fault_of_pods(self, tree: QuotaTree, ledger: QuotaLedger) -> str:
        """Returns the first pod with a wrong leaf or a wrong terminating state in the ledger; empty for none."""
        placed = {entry.pod.uid: entry.pod for entry in self._program.cache}
        for pod in (*placed.values(), *self._program.pods.pending.values()):
            leaf, levels = tree.leaf_of(pod.namespace), ledger.levels_of(pod)
            wanted, found = "" if leaf is None else leaf.path, levels[0].path if levels else ""
            if wanted != found:
                return f"I14: {pod.key} belongs to {found!r} by its ledger, and to {wanted!r} by its namespace"
        leaving = {uid for uid, pod in placed.items() if pod.is_leaving and tree.leaf_of(pod.namespace) is not None}
        if leaving != set(ledger.terminating):
            uid = min(leaving.symmetric_difference(ledger.terminating))
            if uid not in placed:
                return f"I14: quotas count {uid} as terminating, and it is gone"
            return f"I14: quotas count {placed[uid].key} as terminating or not, unlike what it is"
        return ""

    # -- pods that wait --------------------------------------------------------------------------------------------

    def fault_of_waiting(self, worker: DomainWorker) -> str:
        """Returns the first pod that is parked only because of its quota although the quota has room for it and for all that start
        with it; empty for none.
        """
        tree, before = self._delivered.quotas.tree, self._waiting.get(worker.name, {})
        waiting = self._waiting[worker.name] = {}
        if tree is None or not worker.is_leading or worker.queue._parked.has_overdue:
            return ""
        found = ""
        for uid, kept in worker.queue._entries.items():
            is_refused = kept.state is QueueState.UNSCHEDULABLE and LEDGER in kept.rejectors | kept.pending
            entry = worker.queue.entry(uid) if is_refused else None
            if entry is None or not {LEDGER, GANG_PLUGIN}.issuperset(entry.plugins):
                continue
            since_s, looks = before.get(entry.uid, (entry.since_s, 0))
            looks = looks + 1 if since_s == entry.since_s else 1
            waiting[entry.uid] = entry.since_s, looks
            if looks >= WAITED_LOOKS and not found and self._has_room(tree, self._together(worker, entry)):
                found = f"I3: {entry.pod.key} was not woken, and its quota has room ({entry.message[:120]})"
        return found

    def _together(self, worker: DomainWorker, entry: QueueEntry) -> list[Pod]:
        uids = {entry.uid, *worker.queue.gangs.uids_with(entry.uid)}
        return [pod for uid in uids if (pod := worker.queue.pod(uid)) is not None and self._is_waiting(uid)]

    def _is_waiting(self, uid: str) -> bool:
        return self._program.cache.placed(uid) is None

    def _has_room(self, tree: QuotaTree, pods: Collection[Pod]) -> bool:
        """Reports whether the quotas have room for these pods in addition to all placed and nominated pods."""
        uids = {pod.uid for pod in pods}
        usage = self._usage(tree).copy()
        for one in self._nominated():
            if one.uid not in uids:
                usage.add(one.namespace, quota_amounts(one))
        for pod in pods:
            if misnamed(tree, pod) or usage.excesses_with(pod.namespace, quota_amounts(pod)):
                return False
            usage.add(pod.namespace, quota_amounts(pod))
        return True


def _kind(tree: QuotaTree | None, pod: Pod) -> object:
    """Returns the kind of the pod. Pods of one kind share their nominated amounts."""
    leaf = None if tree is None else tree.leaf_of(pod.namespace)
    return id(leaf), pod.spec.priority, sorted(quota_amounts(pod).items())

"""Which pods would be evicted under quotas that are not applied yet: pending pods are tried in a sandbox with these
quotas.

Pods are tried in the order of PrioritySort. Victims of a reclaim are removed from the sandbox, so that later pods find
their resources used. Preemption by priority is executed in the sandbox, too, but not reported: it does not depend on
quotas.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from multisched.cycle.results import Placed, Unplaced
from multisched.model.objects import Pod
from multisched.model.plural import counted, verb
from multisched.model.quota_tree import shown_amount
from multisched.plugins.quota.pod_amounts import PodAmounts
from multisched.plugins.quota.quota_ledger import QUOTA, Level, QuotaLedger
from multisched.shell.domain import DomainWorker
from multisched.whatif.quota_use import source_of
from multisched.whatif.sandbox import ClusterSnapshot, SchedulerSandbox

ATTEMPTS_MAX: Final = 2_000
"""Limit of attempts in one trial: some milliseconds each on large clusters."""
PREEMPTIONS_MAX: Final = 3
"""Number of preemptions for one pod after which it counts as not placed."""


class Eviction(msgspec.Struct, frozen=True, rename="camel"):
    """A pod that would be evicted."""

    leaf: str
    """The path of its quota."""
    pod: str
    """NAMESPACE/NAME."""
    node: str
    preemptor: str
    """The pod whose min it is evicted for, NAMESPACE/NAME."""
    preemptor_leaf: str
    why: str


class Trial(msgspec.Struct, frozen=True):
    """Results for the pending pods."""

    evictions: tuple[Eviction, ...]
    placed: int = 0
    """Number of pods that would find a node."""
    waiting: int = 0
    notes: tuple[str, ...] = ()


def try_quotas(sandbox: SchedulerSandbox, after: ClusterSnapshot, attempts_max: int = ATTEMPTS_MAX) -> Trial:
    """Tries the pending pods. `sandbox`: of `after`, the cluster with the quotas in force."""
    return _Run(sandbox, after, attempts_max).run()


class _Run:
    def __init__(self, sandbox: SchedulerSandbox, after: ClusterSnapshot, attempts_max: int) -> None:
        self._sandbox = sandbox
        self._attempts_max = attempts_max
        self._ledger = QuotaLedger(source_of(after.objects), lambda: after.placed, sandbox.cache.ledgers.demands)
        self._ledger.renew()
        self._has_nodes = bool(after.nodes)
        self._evictions: list[Eviction] = []
        self._notes: dict[str, None] = dict.fromkeys(sandbox.notes)
        self._placed = self._waiting = self._attempts = 0

    def run(self) -> Trial:
        if not self._has_nodes:
            return Trial((), 0, 0, (*self._notes, "no node is known, so evictions cannot be tried"))
        ordered = sorted(self._sandbox.pending.values(), key=lambda pod: (-pod.spec.priority, pod.created_s, pod.uid))
        for number, pod in enumerate(ordered):
            if self._attempts >= self._attempts_max:
                left = len(ordered) - number
                waiting = f"{counted(left, 'pod')} that {verb(left, 'waits was', 'wait were')} not tried"
                self._notes[f"{waiting}; {self._attempts_max} attempts are the limit"] = None
                break
            self._try(pod)
        return Trial(tuple(self._evictions), self._placed, self._waiting, tuple(self._notes))

    def _try(self, pod: Pod) -> None:
        worker = self._sandbox.worker_of(pod)
        if worker is None or pod.malformed or pod.spec.unsupported:
            return
        if not self._sandbox.gate(worker, pod).is_success:
            return
        if self._place(worker, pod):
            self._placed += 1
        else:
            self._waiting += 1

    def _place(self, worker: DomainWorker, pod: Pod) -> bool:
        for _ in range(PREEMPTIONS_MAX):
            self._attempts += 1
            tried = self._sandbox.attempt(worker, pod)
            self._notes.update(dict.fromkeys(tried.notes))
            result = tried.result
            if isinstance(result, Placed):
                if self._ledger.is_used_by(pod):
                    self._ledger.take(pod)
                return True
            if not isinstance(result, Unplaced) or result.preemption is None:
                return False
            for victim in result.victims:
                self._evict(victim, pod, is_reclaim=result.preemption.plugin == QUOTA)
            pod = msgspec.structs.replace(pod, nominated_node=result.nominated_node or "")
        return False

    def _evict(self, victim: Pod, pod: Pod, *, is_reclaim: bool) -> None:
        if is_reclaim:
            levels, own = self._ledger.levels_of(victim), self._ledger.levels_of(pod)
            leaf, taker = levels[0].path if levels else "", own[0].path if own else ""
            why = _why(victim, pod, levels, own, self._ledger.amounts)
            self._evictions.append(Eviction(leaf, victim.key, victim.node, pod.key, taker, why))
        self._sandbox.cache.remove(victim.uid)
        self._ledger.release(victim.uid)


def _why(victim: Pod, pod: Pod, levels: tuple[Level, ...], own: tuple[Level, ...], amounts: PodAmounts) -> str:
    """Returns why: what the victim's leaf holds over its min of a resource that the preemptor requests."""
    if not levels or not own:
        return ""
    if levels[0] is own[0]:
        return f"it has a lower priority in the same quota ({victim.spec.priority}, not {pod.spec.priority})"
    for resource, amount in amounts.items(pod):
        level = _borrower(levels, own, resource)
        if amount and level is not None:
            taker = own[0]
            return (
                f"{level.path} holds {resource} {_amount(level.used, resource)}, over its min {_amount(level.min, resource)}; "
                f"{taker.path} holds {_amount(taker.used, resource)} of its min {_amount(taker.min, resource)}"
            )
    return "the resources of its node are needed"


def _borrower(levels: tuple[Level, ...], own: tuple[Level, ...], resource: str) -> Level | None:
    """Returns the lowest level of the victim that is not above both pods and holds more than its min; None if there is none."""
    above = {level.at for level in own}
    over = (one for one in levels if one.at not in above and one.used.get(resource, 0) > one.min.get(resource, 0))
    return next(over, None)


def _amount(amounts: Mapping[str, int], resource: str) -> str:
    return shown_amount(resource, amounts.get(resource, 0))

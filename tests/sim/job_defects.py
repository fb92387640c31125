"""Defects of units, providers and deadlines of jobs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from domains.job.deadlines import latest_starts
from domains.job.deadlines.deadline import DeadlineOrigin, DeadlineRule, rule_of
from domains.job.providers import control
from domains.job.providers.breaker import Attempt, Breaker
from domains.job.providers.control import SandboxControl
from domains.job.providers.rate import SandboxRate, Token
from domains.job.providers.sandbox_ledger import SandboxLedger, Unit
from domains.job.units import unit_ledger
from domains.job.units.policy import Policy
from domains.job.units.policy import Unit as PolicyUnit
from domains.job.units.policy_table import Match
from domains.job.units.reading import DELETION_COST
from domains.job.units.resource_policy import ResourcePolicy
from domains.job.units.unit_ledger import UNIT, Share, UnitLedger
from multisched.framework.moving import Mover
from multisched.framework.node_view import Rows, Scores
from multisched.framework.points import CycleView
from multisched.framework.traits import Traits
from multisched.model.cluster_objects import CronJob, Job
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import CPU, MEMORY, Pod
from tests.sim.defects import defect, put


@defect
def units_are_ordered_by_score() -> None:
    """The order of units is one score among others, not compared first."""
    put(ResourcePolicy, "traits", Traits(reads_objects=(ObjectKind.RESOURCE_POLICY,)))


@defect
def all_units_are_alike() -> None:
    """Nodes of all units have the same score."""

    def score(self: ResourcePolicy, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        return np.zeros(len(rows), np.int64)

    put(ResourcePolicy, "score", score)


@defect
def refused_binds_keep_their_tokens() -> None:
    """A token of a bind that was refused is not given back."""
    put(SandboxRate, "give_back", lambda self, token, now_s: None)


@defect
def rates_are_ignored() -> None:
    """Each unit always has a token."""

    def take(self: SandboxRate, now_s: float) -> Token | None:
        return Token(now_s, False, self.decreases, self._window)

    put(SandboxRate, "take", take)
    put(SandboxRate, "available", lambda self, now_s: 100)


@defect
def max_counts_all_groups() -> None:
    """A unit's max is that of all groups together."""
    put(Policy, "group_of", lambda self, pod: ())


@defect
def counts_of_units_are_lost_after_a_restart() -> None:
    """A process counts only pods that it has placed itself."""
    put(UnitLedger, "_shares", lambda self, pod, row: ())


@defect
def active_deadlines_count_from_the_creation() -> None:
    """A Job's activeDeadlineSeconds counts from its creation."""

    def rule(
        annotated: DeadlineRule | None, job: Job | None, cron_job: CronJob | None, max_wait_s: float
    ) -> DeadlineRule:
        found = rule_of(annotated, job, cron_job, max_wait_s)
        if job is None or job.active_deadline_s is None or found.origin is not DeadlineOrigin.ACTIVE_DEADLINE:
            return found
        return DeadlineRule(found.origin, job.created_s + job.active_deadline_s)

    put(latest_starts, "rule_of", rule)


@defect
def users_deletion_costs_are_overwritten() -> None:
    """The cost of a unit replaces that of the user."""
    genuine = UnitLedger.take

    def take(self: UnitLedger, pod: Pod, row: int) -> Mapping[str, str]:
        answer = genuine(self, pod, row)
        has_own = UNIT in answer and DELETION_COST in pod.annotations
        return {**answer, DELETION_COST: "100"} if has_own else answer

    put(UnitLedger, "take", take)


@defect
def breakers_never_close() -> None:
    """The success of a probe does not close a breaker, and no second probe is sent."""
    genuine = Breaker.ready_in_s

    def ready_in_s(self: Breaker, now_s: float) -> float:
        return 0.0 if genuine(self, now_s) == 0.0 and self._probe_due_s is None else 1.0

    put(Breaker, "ready_in_s", ready_in_s)


@defect
def breakers_never_open() -> None:
    """Failures of sandboxes have no effect."""

    def on_failure(self: Breaker, attempt: Attempt, now_s: float) -> None:
        return None

    put(Breaker, "on_failure", on_failure)


@defect
def bare_pods_are_evicted() -> None:
    """A stuck pod without a controller is evicted, too."""

    async def evict_bare(self: SandboxControl, mover: Mover) -> None:
        for uid, one in list(self._ledger.sandboxes.items()):
            unit = control._unit_of_waiting(one)
            pod = mover.placed_pod(uid)
            if unit is None or pod is None or pod.is_deleting:
                continue
            if self._ledger.now_s - one.since_s >= unit.settings.sandbox_timeout_s:
                await self._evict(mover, pod, unit)

    put(SandboxControl, "_evict_stuck", evict_bare)


@defect
def stuck_pods_are_left() -> None:
    """No stuck pod is evicted."""

    async def evict(self: SandboxControl, mover: Mover, pod: Pod, unit: Unit) -> None:
        return None

    put(SandboxControl, "_evict", evict)


@defect
def terminating_pods_always_count() -> None:
    """Terminating pods count for max although ignoreTerminatingPod is true."""

    def share(policy: Policy, unit: PolicyUnit, pod: Pod) -> Share:
        found = genuine(policy, unit, pod)
        return found._replace(is_counted=True)

    genuine = unit_ledger._share
    put(unit_ledger, "_share", share)


@defect
def labels_of_units_are_not_written() -> None:
    """Bindings carry no podLabels."""
    put(UnitLedger, "binding_labels", lambda self, annotations: {})


@defect
def refused_templates_are_tried_again() -> None:
    """A template that a provider refused for good is not set aside."""
    genuine = SandboxLedger.cause_of

    def cause_of(self: SandboxLedger, unit: Unit, pod: Pod) -> object:
        unit.refused.clear()
        return genuine(self, unit, pod)

    put(SandboxLedger, "cause_of", cause_of)


@defect
def timeouts_of_units_are_ignored() -> None:
    """A pod goes on to the next unit at once."""
    put(ResourcePolicy, "_timeouts", staticmethod(lambda policy, pod, now_s: len(policy.units)))


@defect
def pods_go_on_while_their_victims_terminate() -> None:
    """With BeforeNextUnit a pod goes on to the next unit before its victims have ended."""

    def raise_level(self: ResourcePolicy, match: Match, pod: Pod) -> bool:
        if not match.policy.preempts_before_next:
            return False
        every = self._open_at_any_level(match, pod)
        level = every.after(self._levels.pop(pod.uid, 0), len(match.policy.units))
        if level is not None:
            self._levels[pod.uid] = level
        return level is not None

    put(ResourcePolicy, "_raise_level", raise_level)


@defect
def all_serverless_units_are_elastic() -> None:
    """The allocatable of no node of a unit limits its pods, whatever `capacity` says."""
    put(
        SandboxLedger,
        "elastic",
        lambda self, node: frozenset((CPU, MEMORY)) if self._index_of(node) >= 0 else frozenset(),
    )


@defect
def elastic_units_are_limited() -> None:
    """`capacity: elastic` has no effect."""
    put(SandboxLedger, "elastic", lambda self, node: frozenset())


@defect
def replacements_are_probes() -> None:
    """The pod that replaces a stuck one may be the probe of the same unit."""
    put(Unit, "spare", lambda self, owner, until_s: None)

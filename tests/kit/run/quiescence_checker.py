"""Waits until a run has settled after the last fault, and checks what must hold then (I3, I4, I5)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from itertools import chain

from multisched.model.object_kinds import ObjectKind
from multisched.plugins.extender.http_extender import NAME as EXTENDERS
from multisched.plugins.volumes.volume_binding_args import BIND_TIMEOUT_DEFAULT_S
from multisched.shell.audit.auditor import AUDIT_PERIOD_S
from multisched.shell.object_watch import AUDITED_EVERY
from tests.kit.checkers.invariants import compare
from tests.kit.checkers.process.cache_comparison import unfinished_work
from tests.kit.disruptions.run_context import RunContext
from tests.kit.plugins.faulty import FAULTY
from tests.kit.processes.process import Process
from tests.kit.settings.configurations import EDGE_RANKS
from tests.kit.world.nodes import NODES

QUIET_MAX_S = 75.0
"""Virtual seconds after the last fault within which every feasible pod must be bound and every cache correct (I3, I4): a lease
expires (15), its next holder waits for the last binds (5), lists, and works off its backoffs (10 each).
"""
QUIET_LOST_MAX_S = 210.0
"""The same if a watch has lost an event, or a bind got a false response: three audit periods, a list, and a backoff."""
QUIET_RESTORED_MAX_S = BIND_TIMEOUT_DEFAULT_S + AUDITED_EVERY * AUDIT_PERIOD_S + QUIET_MAX_S
"""The same after a restored backup. The new history may have overtaken the old one before any watch was opened again; the audit
then finds a differing claim when it next compares that kind. A process waits for a lost bind of a volume as for any other.
"""
AUDIT_ONLY_FAULTS = ("lost line", "false answer", "false 404")
"""Faults that only the audit can detect."""
QUARANTINED = "quarantined: the API server has refused this pod"
"""Part of the condition of a pod that the server always refuses."""
OBSERVED_S = 2.0
"""Time after the last fault for requests and events in flight."""
DRAIN_MAX_S = 30.0
"""Time for each process to observe that all pods are deleted: a watch may be broken at that moment."""
OBSERVED_POLL_S, POLL_S = 0.5, 3.0
NUDGE_POLLS = 6
"""Polls between two small events. Permit of a new leader may reject pods, which then wait for an event or for five minutes."""
NUDGED = (NODES - 1, NODES - 2, NODES - 4, int(EDGE_RANKS[1]))
"""Nodes that get these events: a virtual node, one with GPUs, a plain one, and one that a label may assign to a domain. A domain
observes only nodes that it may use.
"""


class QuiescenceChecker:
    """Waits until the run has settled, and checks it."""

    def __init__(self, context: RunContext, is_over: Callable[[], bool]) -> None:
        """`is_over`: reports whether the run has been given up."""
        self._context = context
        self._is_over = is_over
        self._bind_checker, self._report_violation = context.bind_checker, context.bind_checker.report_violation
        self._replicas = context.replicas
        self._faults_over_s = math.inf
        """Time from which no faults have an effect."""

    async def wait_until_settled(self) -> float:
        """Waits until the run has settled, for the allowed time at most. Returns the waiting time in seconds."""
        began_s, nudges = self._context.now_s(), 0
        self._faults_over_s = began_s + OBSERVED_S
        limit_s = QUIET_LOST_MAX_S if self._needs_audit() else QUIET_MAX_S
        limit_s = QUIET_RESTORED_MAX_S if self._bind_checker.was_restored else limit_s
        while self._context.now_s() - began_s < limit_s and not self._is_settled() and not self._is_over():
            await asyncio.sleep(POLL_S)
            nudges += 1
            if nudges % NUDGE_POLLS == 0:
                for number in NUDGED:
                    await self._context.world.nodes.patch(
                        f"node-{number}", {"metadata": {"labels": {"nudge": str(nudges)}}}
                    )
        return self._context.now_s() - began_s

    def _needs_audit(self) -> bool:
        """Reports whether something happened that only the audit can detect, or that reflectors accept late."""
        return (
            self._bind_checker.was_restored
            or self._replicas.was_corrupted
            or any(self._context.faults.injected[kind] for kind in AUDIT_ONLY_FAULTS)
        )

    def _is_settled(self) -> bool:
        waiting = chain(self._bind_checker.unbound_feasible(), self._bind_checker.unbound_entitled())
        if (
            next(waiting, None) is not None
            or self.not_quarantined()
            or any(self._status_faults())
            or not self._bind_checker.is_settled()
        ):
            return False
        return not any(self._differences(p) or unfinished_work(p.program) for p in self._replicas.running)

    def _status_faults(self) -> Iterator[str]:
        yield from self._bind_checker.statuses.faults()
        yield from self._bind_checker.gangs.faults()
        yield from self._bind_checker.quotas.status_faults()
        yield from self._bind_checker.card_faults()

    def not_quarantined(self) -> list[str]:
        """Returns keys of pods that the API server always refuses and that a leader may still try."""
        aside = {
            entry.uid
            for process in self._replicas.running
            for worker in process.program.router.workers()
            if worker.is_leading
            for entry in worker.queue.entries()
            if entry.is_quarantined and QUARANTINED in self._bind_checker.policies.condition_of(entry.pod.name)
        }
        return [pod.key for pod in self._bind_checker.refused_feasible(aside)]

    def _differences(self, process: Process) -> list[str]:
        known = process.program.cache.objects.all(ObjectKind.POD_DISRUPTION_BUDGET)
        found = compare(process.program, self._bind_checker.pods(), self._bind_checker.nodes())
        return [*found, *self._context.world.budgets.differences(known)]

    def check(self) -> None:
        """Checks everything that must hold in a settled run."""
        late = list(self._bind_checker.unbound_feasible())
        if late:
            self._report_violation(f"I3: {len(late)} feasible pods are not bound, for instance {late[0].key}")
        entitled = list(self._bind_checker.unbound_entitled())
        if entitled:
            self._report_violation(f"I14: {len(entitled)} entitled pods are not bound, for instance {entitled[0].key}")
        self._bind_checker.check_gangs()
        self._bind_checker.check_events()
        for fault in self._status_faults():
            self._report_violation(fault)
        if not self._bind_checker.was_restored:  # a restored backup has old conditions
            self._check_messages()
        aside = self.not_quarantined()
        if aside:
            self._report_violation(
                f"I10: {len(aside)} pods are refused for ever and not set aside, for instance {aside[0]}"
            )
        for process in self._replicas.running:
            for sentence in self._differences(process):
                self._report_violation(f"{sentence} ({process.identity})")
            process.checker.reserves.check(is_quiescent=True)
            process.checker.check_quiescent()
            if process.follower is not None:
                process.follower.check_quiescent()
            self._check_audit(process)
        # In a paused process every waiting plugin seems to have timed out.
        was_paused, failures = self._replicas.was_paused, self._replicas.observer.failures
        failures = [f for f in failures if not _is_expected(f) and not (was_paused and _is_late(f))]
        if failures:
            self._report_violation(f"plugins failed: {failures[:3]}")

    def _check_messages(self) -> None:
        events = self._bind_checker.events()
        for process in self._replicas.running:
            process.checker.check_conditions(self._faults_over_s, self._bind_checker.policies.condition_of)
            process.checker.check_nominations()
            process.checker.events.check_true(events)

    def _check_audit(self, process: Process) -> None:
        """Checks I4: the audit has found no more than was made wrong. The ledger of the faulty plugin is meant to need repairs."""
        audit, injected = process.program.audit.statistics(), self._context.faults.injected
        was_tampered_with = self._bind_checker.was_restored or self._replicas.was_corrupted
        is_excused = self._context.setting.has_faulty_plugin or was_tampered_with or bool(injected["false 404"])
        if audit.inner and not is_excused:
            self._report_violation(f"I4: the audit had to mend {audit.inner} contradictions inside the cache")
        if audit.lost and not self._needs_audit():
            self._report_violation(f"I4: the audit found {audit.lost} lost events, and none was lost")
        if audit.unbound and not self._needs_audit():
            self._report_violation(f"I4: the audit took back {audit.unbound} binds, and no answer was false")

    async def drain(self) -> None:
        """Deletes all pods, and checks that no process keeps anything of them (I5). Pending pods are deleted first, so that none is
        tried for the released room.
        """
        if self._context.world.quotas is not None:
            self._context.world.quotas.is_active = False
        if self._context.world.gang_workloads is not None:
            self._context.world.gang_workloads.is_active = False
        if self._context.world.tides is not None:
            self._context.world.tides.is_active = False
        if self._context.world.loans is not None:
            self._context.world.loans.is_active = False
        if self._context.world.units is not None:
            self._context.world.units.is_active = False
        for pod in sorted(self._context.world.objects.pods().values(), key=lambda pod: bool(pod.node)):
            await self._context.world.user.delete_pod(pod)
        until_s = self._context.now_s() + DRAIN_MAX_S
        while self._context.now_s() < until_s and not self._have_all_seen_deletions():  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(OBSERVED_POLL_S)
        for process in self._replicas.running:
            process.checker.check_empty()

    def _have_all_seen_deletions(self) -> bool:
        return all(process.checker.has_seen_all_deletions() for process in self._replicas.running)


def _is_expected(failure: str) -> bool:
    """Reports whether the failure is expected: of the faulty plugin, of extenders, or about preferences that do not parse."""
    return failure.startswith((FAULTY, EXTENDERS)) or ("PreScore" in failure and "Invalid value" in failure)


def _is_late(failure: str) -> bool:
    return "TimeoutError" in failure or "no answer" in failure

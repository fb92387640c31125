"""Checks every binding of a simulation when it is sent, takes effect and is answered, and every lease when it is written.

`ApiChecker` checks the effect of a binding. That is not enough if the server refuses a binding that should not have been sent, or
if two processes compete. `BindChecker` also checks a binding when it leaves its process (I2, I7, I8, I9, I10).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

import orjson
from msgspec.structs import replace

from multisched.cluster.api.server import ApiServer
from multisched.config.nodes import lease_groups_of
from multisched.config.schema import Configuration
from multisched.model.objects import Pod
from multisched.model.wire import Response
from tests.kit.checkers.api.api_checker import ApiChecker, decision_of, pod_of, smaller, target_of
from tests.kit.checkers.api.bind_judge import AT_ASSUMPTION, UNSEEN_MAX_S, BindJudge
from tests.kit.checkers.api.binds_in_flight import BindsInFlight
from tests.kit.checkers.api.card_checker import CardChecker
from tests.kit.checkers.api.decisions import Decisions
from tests.kit.checkers.api.feasible_pods import FeasiblePods
from tests.kit.checkers.api.gang_checker import GangChecker
from tests.kit.checkers.api.lease_checker import LeaseChecker
from tests.kit.checkers.api.loan_history import LoanHistory
from tests.kit.checkers.api.quota_checker import QuotaChecker
from tests.kit.checkers.api.stale_decisions import Decision, fault_of_external_pods, fault_of_pods_there
from tests.kit.checkers.api.status_checker import StatusChecker
from tests.kit.checkers.api.tide_history import TideHistory
from tests.kit.checkers.api.unit_history import UnitHistory
from tests.kit.checkers.api.write_log import WriteLog
from tests.kit.checkers.delivered_state import DecisionBasis, DeliveredState, DomainNodeFilter
from tests.kit.checkers.quota_rules import quota_excess
from tests.kit.world.labels import LOAN, TIDE, UNIT
from tests.kit.world.policies import Policies

PRIORITY_MAX = 2_000_001_000
"""The priority of `system-node-critical`."""
SCHEDULED = "PodScheduled"
UNREADABLE = "the pod cannot be scheduled: "
"""Prefix of the condition of a pod that cannot be decoded. It is true whatever the result of a bind in flight."""


class BindChecker(ApiChecker):
    """An `ApiChecker` that also knows the configuration, the time and the senders of bindings."""

    def __init__(
        self,
        server: ApiServer,
        configuration: Configuration,
        now_s: Callable[[], float],
        broken: list[str],
        policies: Policies,
        unseen_s: Callable[[], float] = lambda: UNSEEN_MAX_S,
        *,
        has_quotas: bool = False,
        has_gangs: bool = False,
    ) -> None:
        """`has_quotas`, `has_gangs`: the run may have quotas, or gangs; otherwise they are not checked."""
        super().__init__(server, broken)
        self.quotas = QuotaChecker(server, self.report_violation, is_on=has_quotas)
        self.gangs = GangChecker(server, now_s, self.report_violation, is_on=has_gangs)
        self.policies = policies
        self._node_filter = DomainNodeFilter(configuration)
        self._groups = lease_groups_of(configuration)
        self._domain_of = {name: d.name for d in configuration.domains for name in d.scheduler_names}
        self.leases = LeaseChecker(configuration, now_s, self.report_violation, self._has_ours)
        self.in_flight = BindsInFlight(configuration, now_s, self.report_violation, self.leases.cannot_know)
        self.decisions = Decisions(self.bound, self.leases.did_not_know)
        self.delivered = self.decisions.delivered
        """Sender -> what it has observed."""
        self.interrupted: set[str] = set()
        """Processes that have ended, were paused, or whose memory was corrupted. What they began may remain unfinished."""
        self.misreported_nodes: set[str] = set()
        """Nodes about which a process was misinformed: it saw a pod of its own on another node, or cannot know that another process
        binds to the node.
        """
        self._feasible = FeasiblePods(
            self.objects, configuration, self._node_filter, lambda: self.storage, self.quotas, self.gangs
        )
        self._judge = BindJudge(server, configuration, now_s, self.decisions, unseen_s)
        self.statuses = StatusChecker(server, configuration, self.leases, self.pods, self.report_violation)
        self.cards: CardChecker | None = None
        """Checks nodes that share GPUs; None if the run has none."""
        self.tide: TideHistory | None = None
        """Checks the tide; None if the run has none."""
        self.units: UnitHistory | None = None
        """Checks units of ResourcePolicies; None if the run has none."""
        self.loans: LoanHistory | None = None
        """Checks limited loans; None if the run has none."""
        server.interceptors.append(WriteLog(self))

    # -- as a binding leaves its process ---------------------------------------------------------------------------

    def on_bind_sent(self, sender: str, path: str, body: bytes) -> None:
        """Checks I2, I7, I9 and I10, independent of the server's response."""
        self._judge.follow()
        key, timeout_s = target_of(path)
        uid, node = decision_of(body)
        is_first = self.in_flight.is_first(sender, uid)
        self.in_flight.sent(sender, key, uid, node, timeout_s)
        self.gangs.history.on_bind_sent(uid)
        self.in_flight.check_alone(sender, key, node, self.bound)
        pod = self.pods().get(key)
        if pod is None or pod.uid != uid:
            return  # it was just deleted
        domain = self._domain_of.get(pod.spec.scheduler_name)
        if domain is None:
            self.report_violation(f"I7: a binding was sent for {key} of {pod.spec.scheduler_name}")
            return
        delivered = self.delivered.get(sender)
        if pod.gates and (delivered is None or uid not in delivered.pods or delivered.pods[uid].gates):
            self.report_violation(f"I7: a binding was sent for {key}, which is gated")
        self.leases.check(sender, domain, f"a binding for {key}")
        if delivered is not None:
            self.decisions.sent(sender, pod, node)
            basis = self.basis_of(uid, node)
            observed = () if basis is None else basis.pods.values()
            self.gangs.history.on_bind_decided(uid, {one.uid for one in observed if one.node and not one.is_deleting})
            # A binding of a pod that is already bound there only asks for an answer; it changes nothing.
            fault = (
                delivered.fault_of_bind(pod, domain, node) or self._fault_of_later_changes(delivered, pod, domain, node)
                if is_first and pod.node != node
                else ""
            )
            if fault:
                self.report_violation(f"I8: {sender} sent {key} to {node}, {fault}")
        if self.leases.is_unaware(sender):
            self.misreported_nodes.add(node)
        self.in_flight.opened(sender, uid, domain)
        self.decisions.placed(sender, uid, self._groups[domain])

    def _fault_of_later_changes(self, delivered: DeliveredState, pod: Pod, domain: str, node: str) -> str:
        """Returns the change by another client since the decision, as far as the sender has observed it, that forbids the binding;
        empty for none.
        """
        basis, assumed_node = self.decisions.basis_of(pod.uid, node), delivered.assumed_node(pod.uid)
        fault = fault_of_pods_there(delivered, pod, node)
        if fault or assumed_node is None or basis is None:
            return fault
        decision = Decision(basis.pods, assumed_node)
        return fault_of_external_pods(delivered, pod, domain, node, decision, self.decisions.external_uids)

    def on_bind_answered(self, sender: str, body: bytes, answer: Response | None) -> None:
        """Records the response that the sender received; None if it was lost, or if the sender has ended."""
        uid, _ = decision_of(body)
        self.in_flight.answered(sender, uid, answer)
        self.gangs.history.on_bind_answered(sender, uid, is_bound=answer is not None and answer.status == 201)
        self._judge_refusal(sender, uid, answer)

    def on_claim_answered(self, sender: str, path: str, answer: Response) -> None:
        uid = self.policies.uid_of_claimant(path)
        if uid:
            self._judge_refusal(sender, uid, answer)

    def on_pod_status_sent(self, sender: str, body: bytes) -> None:
        """Checks I3: the written condition is the latest one, and no old condition is written while the pod's bind is in flight."""
        document = orjson.loads(body)
        conditions = document.get("status", {}).get("conditions") or ()
        message = next((str(one.get("message")) for one in conditions if one.get("type") == SCHEDULED), None)
        uid = str(document.get("metadata", {}).get("uid"))
        last_message = self.delivered[sender].last_messages.get(uid) if sender in self.delivered else None
        if message is None or last_message is None:
            return
        if message != last_message:
            self.report_violation(
                f"I3: {sender} writes to the owner of {uid} {message[:60]!r}, after {last_message[:60]!r}"
            )
        elif self.in_flight.is_open(sender, uid) and not message.startswith(UNREADABLE):
            self.report_violation(f"I3: {sender} writes to the owner of {uid} {message[:60]!r} while it is being bound")

    def on_object_status_sent(self, sender: str, path: str) -> None:
        self.statuses.sent(sender, path)

    def _judge_refusal(self, sender: str, uid: str, answer: Response | None) -> None:
        """Checks I10: the number of attempts that the server always refuses is bounded."""
        fault = self.policies.answered(sender, uid, answer)
        if fault:
            self.report_violation(f"I10: {sender} tried {uid} again: {fault}")

    def forgotten(self, sender: str, uid: str) -> None:
        """Checks I2 when the sender forgets a pod."""
        pod = next((pod for pod in self.pods().values() if pod.uid == uid), None)
        if pod is not None and not pod.is_deleting and not self.was_restored:
            self.in_flight.check_forgotten(sender, pod, is_external=uid in self.decisions.external_uids)

    def on_line_lost(self, sender: str, uid: str) -> None:
        self.decisions.on_line_lost(sender, uid)
        self.gangs.history.misled(uid)

    def _domains_at(self, sender: str, pod: Pod) -> list[str]:
        """Returns the pod's own domain, the domain of a pod that reclaims from it, and the domains that may use its node.

        The node is taken as the sender observed it.
        """
        own = self._domain_of.get(pod.spec.scheduler_name)
        claimant = self._domain_of.get(self.quotas.claimants.get(pod.uid, ""))
        delivered = self.delivered.get(sender)
        node = delivered.nodes.get(pod.node) if delivered is not None else self.nodes().get(pod.node)
        found = [domain for domain in (own, claimant) if domain is not None]
        return found + [
            d for d in self._groups if d != own and node is not None and self._node_filter.usable_by(d)(node)
        ]

    def _has_ours(self) -> bool:
        """Reports whether a pod of our schedulers is on a node."""
        pods = (pod for pod in self.pods().values() if pod.node and not pod.is_terminal)
        return any(pod.spec.scheduler_name in self._domain_of for pod in pods)

    def on_eviction_sent(self, sender: str, path: str) -> None:
        """Checks that the sender of an eviction leads (I9), and that the victim does not have the highest priority (I7).

        The sender must lead the victim's domain, or a domain that may use the victim's node: nodes move between domains.
        """
        victim = self.pods().get(pod_of(path))
        if victim is None:
            return  # it was just deleted
        self.gangs.history.evicted(sender, victim.uid)
        domains = self._domains_at(sender, victim)
        faults = [self.leases.fault_of(sender, domain) for domain in domains]
        if faults and all(faults):
            self.report_violation(f"I9: {sender} sent the deletion of {victim.key} {faults[0]}")
        if victim.spec.priority >= PRIORITY_MAX:
            self.report_violation(f"I7: {sender} asked {victim.key} to go, than which no pod is more urgent")

    def on_lease_read(self, sender: str, path: str) -> None:
        self.leases.read(sender, path)

    def on_lease_written(self, name: str, holder: str, renewed_s: float) -> None:
        holder_before = self.leases.returned_by(name, holder)
        if holder_before:
            self._check_released(name, holder_before)
        self.leases.written(name, holder, renewed_s)

    def on_lease_deleted(self, name: str) -> None:
        self.leases.deleted(name)

    def _check_released(self, name: str, sender: str) -> None:
        """Checks I11: a lease is released only when no binding is in flight, since its next holder does not wait."""
        open_here = self.in_flight.open_count(sender, self.leases.domains_of(name))
        if open_here:
            self.report_violation(f"I11: {sender} gave {name} back with {open_here} bindings on the wire")

    # -- as a binding takes effect ---------------------------------------------------------------------------------

    def on_bind_applied(self, path: str, body: bytes, answer: Response) -> None:
        """Checks what `ApiChecker` checks, every required rule by `BindJudge`, and I8 if the knowledge of the sender is not
        recorded.

        Rules that depend on pods whose binds are in flight are checked at the assumption, by what was observed
        (`AssumptionChecker`).
        """
        super().on_bind_applied(path, body, answer)
        pod = self.pods().get(target_of(path)[0])
        if answer.status != 201 or pod is None:
            return
        if self.cards is not None:
            self.cards.bound(pod)
        name = decision_of(body)[1]
        basis, node = self.basis_of(pod.uid, name), self.nodes().get(name)
        self._check_quota(pod, basis)
        if self.loans is not None and basis is not None and not self.was_restored:
            self.loans.bound(pod, name, self._known_before(pod, basis))
        if basis is None:
            self._check_domain(pod, name)
        elif node is not None and basis.predates(node):
            self.misreported_nodes.add(name)
        # After a restored backup the judge does not undo our own earlier binds; the checks above use what was observed.
        for finding in self._judge.findings(pod.uid, AT_ASSUMPTION) if not self.was_restored else ():
            if finding.node not in self.misreported_nodes:
                self.report_violation(
                    f"I1: {finding.pod} on {finding.node} stands against {finding.rule}: {finding.message}"
                )

    def written(self) -> None:
        """Follows the store before history is compacted. The changes that led to a bind must be seen apart from the bind."""
        self._judge.follow()
        self.quotas.follow()
        self.gangs.follow()

    def _check_quota(self, pod: Pod, basis: DecisionBasis | None) -> None:
        """Checks I14: no level exceeds its max with the pods decided before this one: all pods that we have bound, and the others
        that the sender knew of.
        """
        self.quotas.follow()
        if basis is None or self.was_restored or basis.tree is None:
            return
        ours = self.decisions.placed_by_us()
        sized = self._known_before(pod, basis, lambda uid: uid in ours)
        labels = basis.pods.get(pod.uid, pod).labels
        own = replace(pod, held=smaller(pod.requests, basis.size), labels=labels)
        excess = quota_excess(basis.tree, own, sized)
        if excess:
            self.report_violation(f"I14: {pod.key} was bound, and with it {excess}")

    def _known_before(
        self, pod: Pod, basis: DecisionBasis, counts: Callable[[str], bool] = lambda uid: False
    ) -> list[Pod]:
        """Returns the pods on nodes that the sender of a bind knew of and decided before it, in the size that it knew. `counts`: reports
        whether a pod of this uid counts in any case.
        """
        known = (
            one
            for one in self.pods().values()
            if one.node
            and one.uid != pod.uid
            and not one.is_terminal
            and not self.is_later(one.uid, pod.uid)
            and (counts(one.uid) or self.decisions.knew_of(one, pod.uid, basis))
        )
        return [replace(one, held=self._size(one, basis)) for one in known]

    def assumed(self, uid: str, node: str) -> None:
        """Records that a process has assumed a pod."""
        self.decisions.decided(uid)
        self._judge.assumed(uid, node)

    def basis_of(self, uid: str, node: str) -> DecisionBasis | None:
        return self.decisions.basis_of(uid, node)

    def is_later(self, one: str, than: str) -> bool:
        return self.decisions.is_later(one, than)

    def is_excused(self, pod: Pod, basis: DecisionBasis | None) -> bool:
        return self.decisions.is_excused(pod, basis)

    def on_external_bind(self, uid: str, node: str) -> None:
        """Records a bind by another client. I1 then covers only what we add once the sender can know of it."""
        self.decisions.external_uids.add(uid)
        self.bound[uid] = node

    def on_bind_faked(self, body: bytes) -> None:
        super().on_bind_faked(body)
        self.in_flight.faked(decision_of(body)[0])
        self.gangs.history.misled(decision_of(body)[0])

    def look_at_cards(self) -> None:
        if self.cards is not None:
            self.cards.look()

    def card_faults(self) -> Iterable[str]:
        """Returns violations on nodes that share GPUs when the run is quiescent."""
        return () if self.cards is None else self.cards.faults()

    def bound_pods(self) -> list[Pod]:
        """Returns the pods that our processes have bound, as the store has them; none if the store was restored."""
        ours = self.decisions.placed_by_us() if not self.was_restored else set()
        return [pod for pod in self.pods().values() if pod.uid in ours and pod.node and not pod.is_terminal]

    def on_restored(self) -> None:
        """Records that a backup was restored: later bindings no longer exist, and no process has observed that yet."""
        self.was_restored = True
        if self.cards is not None:
            self.cards.is_on = False
        self.gangs.reservations = None
        self.objects.forget()
        there = {pod.uid: pod for pod in self.pods().values()}
        self.faked.update((uid, node) for uid, node in self.bound.items() if uid not in there or not there[uid].node)
        for uid, node in list(self.bound.items()):
            if uid not in there or there[uid].node != node:
                del self.bound[uid]
        self.in_flight.forget()
        self.decisions.on_restored(there)

    def _check_domain(self, pod: Pod, name: str) -> None:
        """Checks I8 against the current node."""
        domain = self._domain_of.get(pod.spec.scheduler_name)
        node = self.nodes().get(name)
        if domain is not None and node is not None and not self._node_filter.usable_by(domain)(node):
            self.report_violation(f"I8: {pod.key} of {domain} was bound to {name}")

    # -- in a settled run --------------------------------------------------------------------------------------------

    def unbound_feasible(self) -> Iterator[Pod]:
        """Yields pods that are pending although a node of their domain has room for them (I3), unless the server refuses their
        bind.
        """
        return self._feasible.of(
            [
                pod
                for pod in self._waiting()
                if not self.policies.policy_of(pod.name) and not {LOAN, TIDE, UNIT} & pod.labels.keys()
            ]
        )

    def look_at_gangs(self) -> None:
        """Checks I13 for gangs that are partly bound. Called regularly."""
        believed = self._believed_bound()
        waiting = {pod.uid: pod for pod in self._waiting() if pod.uid not in believed}
        self.gangs.look(
            lambda state: (
                self._has_leader(waiting[uid] for uid in state.waiting & waiting.keys())
                and self._feasible.is_feasible(state, waiting, is_for_good=False)
            )
        )
        self.gangs.history.look(self._is_interrupted)
        if self.gangs.reservations is not None:
            self.gangs.reservations.look()

    def _has_leader(self, pods: Iterable[Pod]) -> bool:
        """Reports whether a process leads the domain of one of these pods; otherwise none of the pods is late."""
        domains = {self._domain_of.get(pod.spec.scheduler_name, "") for pod in pods}
        return any(leads(domain) for leads in self.leases.leaders.values() for domain in domains)

    def check_gangs(self) -> None:
        """Checks I13 when the run is quiescent."""
        self.gangs.follow()
        if not self.was_restored:
            self.gangs.history.check_quiescent(self._is_interrupted)

    def is_settled(self) -> bool:
        """Reports whether no gang would violate I13 if the run ended now."""
        self.gangs.follow()
        return self.was_restored or not any(self.gangs.history.faults(self._is_interrupted))

    def _is_interrupted(self, sender: str) -> bool:
        return sender in self.interrupted

    def _believed_bound(self) -> set[str]:
        """Returns uids of pods that a process wrongly believes to be bound, because of a false response. Only the audit can detect
        that, which takes time.
        """
        lied_about = {uid for uid, _ in self.faked}
        running = [self.delivered[one] for one in self.leases.believers.keys() & self.delivered.keys()]
        return {uid for one in running for uid in lied_about & one.held.keys()}

    def unbound_entitled(self) -> Iterator[Pod]:
        """Yields pods that are pending within the min of their quota because others have borrowed it (I14)."""
        return self._feasible.entitled([pod for pod in self._waiting() if not self.policies.policy_of(pod.name)])

    def refused_feasible(self, aside: Collection[str]) -> Iterator[Pod]:
        """Yields pods that fit a node and that the server always refuses: they must be quarantined.

        `aside`: uids of pods that are quarantined.
        """
        refused = [pod for pod in self._waiting() if pod.uid not in aside and self.policies.policy_of(pod.name)]
        return self._feasible.of(refused)

    def _waiting(self) -> list[Pod]:
        pods = self.pods().values()
        # The audit needs minutes to find claims that a watch has missed after a restored backup.
        readable = [p for p in pods if not (self.was_restored and p.spec.volumes)]
        return [p for p in readable if not (p.node or p.gates or p.is_deleting or p.is_terminal or p.malformed)]

"""Checks each preemption of a process when it starts: the victims are sufficient, each is needed, and none is too important."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from multisched.config.schema import Configuration, DomainConfig
from multisched.framework.gangs import GANG_PLUGIN
from multisched.framework.preemption import Preemption
from multisched.model.cluster_objects import PodDisruptionBudget
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Node, Pod
from multisched.shell.preemptor import PreemptorDomain
from multisched.shell.program import Program
from multisched.verify.gangs import GangState
from multisched.verify.quota_tree import QuotaTree
from tests.kit.checkers.api.bind_checker import BindChecker
from tests.kit.checkers.card_rules import fault_of_victims as fault_of_card_victims
from tests.kit.checkers.delivered_state import DeliveredState
from tests.kit.checkers.preemption_rules import fault_of_preemption
from tests.kit.checkers.process.feasible_nodes import used_by
from tests.kit.checkers.process.gang_roster import recount
from tests.kit.checkers.quota_rules import fault_of_reclaim
from tests.kit.checkers.reference_rules import PodOnNode, restricts_by_anti_affinity
from tests.kit.checkers.victim_rules import (
    fault_of_units,
    fault_of_victims,
    fits_within_budgets,
    is_plain,
    remaining_budget,
    surely_violated_budget,
)
from tests.kit.world.labels import CARDS

SYSTEM_PRIORITY: Final = 2_000_000_000
"""Pods of this or a higher priority are not expected to end."""


class _ClusterState(msgspec.Struct):
    """The pods and nodes against which a preemption is checked."""

    domain: str
    nodes: Mapping[str, Node]
    pods_on_nodes: list[PodOnNode]
    is_usable: Callable[[Node], bool]
    promised: Sequence[PodOnNode] = ()
    """Pods that are nominated before the preemptors."""


class PreemptionChecker:
    """Wraps the preemptor of one program."""

    def __init__(
        self,
        program: Program,
        delivered: DeliveredState,
        configuration: Configuration,
        domain_of: Mapping[str, str],
        bind_checker: BindChecker,
        *,
        is_plain: bool,
    ) -> None:
        """`domain_of`: scheduler name -> domain. `is_plain`: no plugin of the setting needs remote responses or fails."""
        self._program, self._delivered = program, delivered
        self._domain_of = domain_of
        self._report_violation, self._quotas = bind_checker.report_violation, bind_checker.quotas
        self._cards = bind_checker.cards
        # A process that started with a changed file may isolate a filter, which is asked about feasible nodes only.
        self._is_plain = is_plain and not any(map(_isolates, configuration.domains))
        self._may_overlook = any(_may_overlook(domain) for domain in configuration.domains)
        """The process may not evaluate all nodes: extenders and arguments may skip some, and isolated plugins answer with delay."""
        self._latest: Preemption | None = None
        self._in_force: list[Preemption] = []
        """Preemptions that have not ended or failed."""
        self._leaving: set[str] = set()
        """uids of their victims, and of pods whose deletion was sent for other preemptions."""
        self._preempt = program.preemptor.start
        program.preemptor.start = self.preempt  # type: ignore[method-assign]

    def follow(self) -> None:
        """Uses the configuration now in force. Preemptions in progress still use the earlier one."""
        self._may_overlook |= any(_may_overlook(domain) for domain in self._program.configuration.domains)

    def preempt(self, preemption: Preemption, home: PreemptorDomain) -> bool:
        """Wraps `Preemptor.start`: a pod has one preemption at a time, and only of less important pods."""
        if preemption is self._latest:  # another preemptor of the same preemption
            return self._preempt(preemption, home)
        self._latest = preemption
        self._in_force = [one for one in self._in_force if self._is_in_force(one)]
        self._leaving = {victim.uid for one in self._in_force for victim in one.every_victim}
        self._leaving |= {entry.pod.uid for entry in self._program.cache if entry.pod.is_victim}
        self._judge(preemption)
        self._in_force.append(preemption)
        return self._preempt(preemption, home)

    def _is_in_force(self, preemption: Preemption) -> bool:
        """Reports whether victims of the preemption are still to be evicted. A failed preemption releases its victims and ends its
        nominations at once, while its preemptors wait for their next attempt.
        """
        preemptor, nominator = self._program.preemptor, self._program.nominator
        is_preempting = any(preemptor.is_preempting(pod.uid) for pod, _ in preemption.nominations)
        return is_preempting and all(nominator.node_of(pod.uid) == node for pod, node in preemption.nominations)

    def _judge(self, preemption: Preemption) -> None:
        for pod, _ in preemption.nominations:
            if self._program.preemptor.is_preempting(pod.uid):
                self._report_violation(f"I5: {pod.key} preempts while its victims are being asked to go")
        self._check_count(preemption)
        if preemption.plugin == GANG_PLUGIN:
            self._check_reservation(preemption)
            return
        tree = self._delivered.quotas.tree
        if tree is not None and tree.leaf_of(preemption.nominations[0].pod.namespace) is not None:
            self._check_reclaim(tree, preemption)
            return
        least = min((pod for pod, _ in preemption.nominations), key=lambda pod: pod.spec.priority)
        for victim in preemption.every_victim:
            if victim.spec.priority >= least.spec.priority:
                self._report_violation(f"I7: {least.key} is to preempt {victim.key}, which is as urgent")
        self._check(preemption)

    def _check_count(self, preemption: Preemption) -> None:
        """Checks I7: capacity is freed for the members of each gang that it needs to start, and for no more."""
        roster = self._program.cache.gangs
        keys = Counter(key for pod, _ in preemption.nominations if (key := roster.key_of(pod.uid)) is not None)
        for key, count in keys.items():
            gang = roster.gang(key)
            needs = 1 if gang is None else max(recount(gang).needs, 1)
            if count > needs:
                self._report_violation(f"I7: room is made for {count} members of gang {key}, which needs {needs}")

    def _check_reclaim(self, tree: QuotaTree, preemption: Preemption) -> None:
        """Checks I14: only borrowed amounts of other leaves are reclaimed, no victim is needless, and no other reclaim is undone.

        Pods that start together are checked as one claim: the amounts of all of them, each on its node.
        """
        preemptors = [pod for pod, _ in preemption.nominations]
        least = min(preemptors, key=lambda pod: pod.spec.priority)
        (first, at), victims, own = preemption.nominations[0], preemption.every_victim, tree.leaf_of(least.namespace)
        for victim in (
            one for one in map(self._marked, victims) if not one.is_leaving
        ):  # pods that are leaving anyway need no reason
            leaf = tree.leaf_of(victim.namespace)
            is_displaced = leaf is own or leaf is None
            if is_displaced and victim.spec.priority >= least.spec.priority:
                self._report_violation(f"I7: {least.key} is to preempt {victim.key}, which is as urgent")
        nominator, placed, members = (
            self._program.nominator,
            self._program.cache.placed,
            {one.uid for one in preemptors},
        )
        others = [
            (one, self._delivered.nodes.get(nominator.node_of(one.uid)))
            for one in nominator.pods()
            if one.uid not in members and not placed(one.uid)
        ]
        pods_on_nodes = [self._marked(one) for one in self._delivered.placed()]
        claims = [(pod, self._delivered.nodes.get(node)) for pod, node in preemption.nominations]
        judge = self._delivered.gangs
        in_gangs = {one.uid for one in pods_on_nodes if judge is not None and judge.gang_of(one.uid) is not None}
        fault = fault_of_reclaim(tree, claims, self._units(preemption), pods_on_nodes, others, in_gangs)
        if fault:
            self._report_violation(f"I14: {first.key} is to reclaim on {at}: {fault}")
        going = [victim for victim in map(self._marked, victims) if not victim.is_leaving]
        gone = {victim.uid for victim in going}
        self._quotas.reclaimed(
            preemptors, going, [one for one in pods_on_nodes if not one.is_leaving and one.uid not in gone]
        )

    def _check_reservation(self, preemption: Preemption) -> None:
        """Checks I7: capacity is reserved for a gang without an eviction, and only if the gang fits after all but system pods have
        ended.
        """
        first = preemption.nominations[0].pod
        if preemption.every_victim:
            self._report_violation(
                f"I7: room is reserved for {first.key}, and {preemption.every_victim[0].key} is to go for it"
            )
        cluster = self._cluster_state(preemption)
        ending = [pod for pod, _ in cluster.pods_on_nodes if pod.spec.priority < SYSTEM_PRIORITY]
        wanted = [(pod, cluster.nodes[node]) for pod, node in preemption.nominations if node in cluster.nodes]
        for pod, node in wanted if self._is_plain else ():
            self._check_node(pod, node, ending, wanted, cluster)

    def _cluster_state(self, preemption: Preemption) -> _ClusterState:
        cache = self._program.cache
        domain = self._domain_of[preemption.nominations[0].pod.spec.scheduler_name]
        nodes = {node.name: node for _, node in cache.nodes.live_rows()}
        pods_on_nodes = [
            (self._marked(e.pod), nodes[e.node]) for e in cache if not e.pod.is_terminal and e.node in nodes
        ]
        return _ClusterState(domain, nodes, pods_on_nodes, self._delivered.is_usable(domain))

    def _check(self, preemption: Preemption) -> None:
        """Checks I7: each preemptor fits after the evictions, and each victim is needed."""
        first, cluster = preemption.nominations[0].pod, self._cluster_state(preemption)
        nodes = cluster.nodes
        wanted = [(pod, nodes[node]) for pod, node in preemption.nominations if node in nodes]
        if self._is_plain:
            for pod, node in wanted:
                self._check_node(pod, node, preemption.every_victim, wanted, cluster)
        units = self._units(preemption)
        if len(wanted) == 1 and len(units) == len(preemption.every_victim):
            self._check_card_victims(*wanted[0], preemption, cluster)
        if self._may_overlook or not all(is_plain(pod) for pod, _ in preemption.nominations):
            return
        before = self._nominated_before(preemption, cluster)
        if before is None:
            return
        cluster.promised = before
        is_of_one = len(preemption.nominations) == 1 and set(preemption.victims) <= {preemption.node_of(first.uid)}
        if is_of_one and len(units) == len(preemption.every_victim):
            self._check_victims(first, preemption, cluster)
        elif len(wanted) == len(preemption.nominations):
            fault = fault_of_units(wanted, units, nodes.values(), [*cluster.pods_on_nodes, *before], cluster.is_usable)
            if fault:
                self._report_violation(f"I7: {first.key} is to preempt with others: {fault}")

    def _check_node(
        self, pod: Pod, node: Node, victims: Sequence[Pod], wanted: Sequence[PodOnNode], cluster: _ClusterState
    ) -> None:
        """Checks that a preemptor fits on its node after the evictions, in addition to the other preemptors."""
        others = [(other, there) for other, there in wanted if other.uid != pod.uid]
        if CARDS in pod.labels:
            fault = self._delivered.fault_of_node(pod, cluster.domain, node)
            if fault:
                self._report_violation(f"I7: {pod.key} is to preempt on {node.name} in vain: {fault}")
            return
        fault = self._delivered.fault_of_node(pod, cluster.domain, node) or fault_of_preemption(
            pod,
            node,
            victims,
            cluster.nodes.values(),
            [*cluster.pods_on_nodes, *others],
            cluster.is_usable,
            self._program.cache.objects,
        )
        if fault:
            self._report_violation(f"I7: {pod.key} is to preempt on {node.name} in vain: {fault}")

    def _check_card_victims(self, pod: Pod, node: Node, preemption: Preemption, cluster: _ClusterState) -> None:
        """Checks the victims of a pod for shared GPUs: all are sufficient, and each is needed. Not checked if others are nominated."""
        demand, known = (None, None) if self._cards is None else self._cards.known(pod, node.name)
        nominated = [one for one in self._program.nominator.on(node.name) if one.uid != pod.uid]
        if demand is None or known is None or nominated or self._may_overlook:
            return
        there = [replace(one, node=node.name) for one, on in cluster.pods_on_nodes if on.name == node.name]
        victims = [victim for victim in there if victim.uid in {one.uid for one in preemption.every_victim}]
        fault = fault_of_card_victims(demand, pod, known, node, there, victims)
        if fault:
            self._report_violation(f"I7: {pod.key} is to preempt on {node.name}: {fault}")

    def _check_victims(self, pod: Pod, preemption: Preemption, cluster: _ClusterState) -> None:
        """Checks the victims on one node: all are sufficient, each is needed, and no budget is violated if another node avoids
        that.
        """
        name, victims, nodes, pods_on_nodes = (
            preemption.node_of(pod.uid),
            [self._marked(victim) for victim in preemption.every_victim],
            cluster.nodes,
            cluster.pods_on_nodes,
        )
        known = self._program.cache.objects.all(ObjectKind.POD_DISRUPTION_BUDGET)
        going = [entry.pod for entry in self._program.cache if self._marked(entry.pod).is_victim]
        budgets = [remaining_budget(budget, going) for budget in known if isinstance(budget, PodDisruptionBudget)]
        if name in nodes:
            fault = fault_of_victims(
                pod, nodes[name], victims, nodes.values(), pods_on_nodes, cluster.is_usable, budgets, cluster.promised
            )
            if fault:
                self._report_violation(f"I7: {pod.key} is to preempt on {name}: {fault}")
        broken, is_used = surely_violated_budget(budgets, victims), used_by(self._program, cluster.domain)
        for node in filter(is_used, nodes.values()) if broken else ():
            if fits_within_budgets(
                pod, node, budgets, nodes.values(), pods_on_nodes, cluster.is_usable, cluster.promised
            ):
                self._report_violation(
                    f"I7: {pod.key} is to break the budget {broken} on {name}, and need not on {node.name}"
                )
                return

    def _units(self, preemption: Preemption) -> Sequence[Sequence[Pod]]:
        """Returns the victims as units that are evicted together: all members of a gang that ends, and each other victim by itself."""
        judge, units = self._delivered.gangs, dict[str, list[Pod]]()
        gone = {victim.uid for victim in preemption.every_victim}
        for victim in map(self._marked, preemption.every_victim):
            key = None if judge is None or victim.is_leaving else judge.gang_of(victim.uid)
            members, surplus = (
                self._staying_members(judge.state(key)) if judge is not None and key is not None else (set(), 0)
            )
            is_whole = key is not None and gone.issuperset(members)
            if key is not None and not is_whole and len(gone & members) > surplus:
                self._report_violation(f"I13: {victim.key} goes, and its gang falls below its minimum, and does not go")
            units.setdefault("/".join(key) if key is not None and is_whole else victim.uid, []).append(victim)
        return list(units.values())

    def _staying_members(self, state: GangState) -> tuple[set[str], int]:
        """Returns the placed members of the gang that stay, and how many of them may be evicted one by one.

        Other pods in `state.bound` have succeeded, as the process has observed: they count, and cannot be evicted.
        """
        known = self._delivered.pods
        here = {uid for uid in state.bound if uid in known and not known[uid].is_deleting}
        here |= self._delivered.held.keys() & state.waiting
        here = {uid for uid in here if uid not in self._leaving}
        if state.minimum is None:
            return here, 0
        finished = sum(uid not in known for uid in state.bound)
        return here, min(max(len(here) + finished - state.minimum, 0), len(here))

    def _marked(self, pod: Pod) -> Pod:
        """Returns the pod, marked as a victim if an earlier preemption is about to evict it."""
        is_victim = pod.uid in self._leaving and not pod.is_deleting
        return replace(pod, is_victim=True) if is_victim and not pod.is_victim else pod

    def _nominated_before(self, preemption: Preemption, cluster: _ClusterState) -> Sequence[PodOnNode] | None:
        """Returns pods that are nominated before the preemptors, without their own pod affinity. None if they are before some of
        the preemptors only.

        Like upstream, their own rules count if a placed pod has a rule about a preemptor; otherwise InterPodAffinity is skipped.
        """
        nominator, cache, found = self._program.nominator, self._program.cache, []
        preemptors = [pod for pod, _ in preemption.nominations]
        own, priorities = {pod.uid for pod in preemptors}, {pod.spec.priority for pod in preemptors}
        are_kept_off = any(
            restricts_by_anti_affinity(other, there, pod)
            for other, there in cluster.pods_on_nodes
            for pod in preemptors
        )
        for name, node in cluster.nodes.items():
            for other in nominator.on(name):
                rank = nominator.rank_of(other)
                if other.uid in own or cache.placed(other.uid) or rank < min(priorities):
                    continue
                if rank < max(priorities):
                    return None
                spec = other.spec if are_kept_off else replace(other.spec, pod_affinity=None)
                found.append((replace(other, spec=spec), node))
        return found


def _may_overlook(domain: DomainConfig) -> bool:
    entries = domain.profile.plugins.enabled
    is_narrowed = any(one.name == "DefaultPreemption" and one.args for one in entries)
    return is_narrowed or bool(domain.extenders) or _isolates(domain)


def _isolates(domain: DomainConfig) -> bool:
    return any(one.isolation is not None for one in domain.profile.plugins.enabled)

"""Each preemption of a process as it begins: all victims together are enough, each is needed, and none is too important."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from multisched.config.schema import Configuration, DomainConfig
from multisched.framework.preemption import Preemption
from multisched.model.cluster_objects import PodDisruptionBudget
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Node, Pod
from multisched.shell.preemptor import Home
from multisched.shell.program import Program
from multisched.testing.checkers.api.bind_checker import BindChecker
from multisched.testing.checkers.delivered_state import DeliveredState
from multisched.testing.checkers.process.feasible_nodes import used_by
from multisched.testing.rules.inter_pod import Standing, keeps_off
from multisched.testing.rules.preemption import fault_of_preemption
from multisched.testing.rules.quotas import fault_of_reclaim
from multisched.testing.rules.victims import broken_for_certain, fault_of_victims, is_plain, would_do
from multisched.verify.quota_tree import QuotaTree


class PreemptionChecker:
    """Stands before the preemptor of one program."""

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
        """`domain_of`: name of a scheduler -> its domain. `is_plain`: no plugin asks outside or fails."""
        self._program, self._delivered = program, delivered
        self._domain_of = domain_of
        self._complain, self._quotas = bind_checker.complain, bind_checker.quotas
        self._is_plain = is_plain
        self._sees_all = not any(_may_overlook(domain) for domain in configuration.domains)
        """It looks at all nodes: extenders and arguments may leave some out, and what plugins elsewhere answer is as old as their
        question."""
        self._preempt = program.preemptor.start
        program.preemptor.start = self.preempt  # type: ignore[method-assign]

    def preempt(self, pod: Pod, preemption: Preemption, home: Home) -> bool:
        """Stands before `Preemptor.start`: one preemption of a pod at a time, and only of what is less urgent."""
        if self._program.preemptor.is_preempting(pod.uid):
            self._complain(f"I5: {pod.key} preempts while its victims are being asked to go")
        tree = self._delivered.quotas.tree
        if tree is not None and tree.leaf_of(pod.namespace) is not None:
            self._check_reclaim(tree, pod, preemption)
            return self._preempt(pod, preemption, home)
        for victim in preemption.victims:
            if victim.spec.priority >= pod.spec.priority:
                self._complain(f"I7: {pod.key} is to preempt {victim.key}, which is as urgent")
        self._check_victims(pod, preemption)
        return self._preempt(pod, preemption, home)

    def _check_reclaim(self, tree: QuotaTree, pod: Pod, preemption: Preemption) -> None:
        """I14: of other leaves only what they have borrowed, nobody too many, and nothing that another reclaim took."""
        own = tree.leaf_of(pod.namespace)
        for victim in preemption.victims:
            leaf = tree.leaf_of(victim.namespace)
            is_displaced = leaf is own or leaf is None
            if is_displaced and victim.spec.priority >= pod.spec.priority:
                self._complain(f"I7: {pod.key} is to preempt {victim.key}, which is as urgent")
        standing = self._delivered.placed()
        node = self._delivered.nodes.get(preemption.node)
        nominated = self._program.nominator.pods()
        others = [
            replace(one, node=self._program.nominator.node_of(one.uid))
            for one in nominated
            if one.uid != pod.uid and not self._program.cache.placed(one.uid)
        ]
        fault = fault_of_reclaim(tree, pod, node, preemption.victims, standing, others)
        if fault:
            self._complain(f"I14: {pod.key} is to reclaim on {preemption.node}: {fault}")
        self._quotas.reclaimed(pod, preemption.victims)

    def _check_victims(self, pod: Pod, preemption: Preemption) -> None:
        """I7: all victims together are enough, and each is needed; no budget is broken where some node would do without."""
        cache, domain = self._program.cache, self._domain_of[pod.spec.scheduler_name]
        nodes = {node.name: node for _, node in cache.nodes.live_rows()}
        standing = [(e.pod, nodes[e.node]) for e in cache if not e.pod.is_terminal and e.node in nodes]
        is_usable, is_used = self._delivered.is_usable(domain), used_by(self._program, domain)
        if self._is_plain and preemption.node in nodes:
            node = nodes[preemption.node]
            fault = self._delivered.fault_of_node(pod, domain, node) or fault_of_preemption(
                pod, node, preemption.victims, nodes.values(), standing, is_usable, cache.objects
            )
            if fault:
                self._complain(f"I7: {pod.key} is to preempt on {node.name} in vain: {fault}")
        if not is_plain(pod) or not self._sees_all:
            return
        standing += self._nominated_before(pod, nodes, standing)
        known = cache.objects.all(ObjectKind.POD_DISRUPTION_BUDGET)
        budgets = [budget for budget in known if isinstance(budget, PodDisruptionBudget)]
        if preemption.node in nodes:
            fault = fault_of_victims(
                pod, nodes[preemption.node], preemption.victims, nodes.values(), standing, is_usable, budgets
            )
            if fault:
                self._complain(f"I7: {pod.key} is to preempt on {preemption.node}: {fault}")
        broken = broken_for_certain(budgets, preemption.victims)
        for node in filter(is_used, nodes.values()) if broken else ():
            if would_do(pod, node, budgets, nodes.values(), standing, is_usable):
                self._complain(
                    f"I7: {pod.key} is to break the budget {broken} on {preemption.node}, and need not on {node.name}"
                )
                return

    def _nominated_before(
        self, pod: Pod, nodes: Mapping[str, Node], standing: Sequence[Standing]
    ) -> Sequence[Standing]:
        """Pods that are promised a node before this one, which has no rules about others itself.

        As upstream, their own rules count where some pod that stands has one about this pod: else InterPodAffinity skips it.
        """
        cache, found = self._program.cache, []
        is_kept_off = any(keeps_off(other, there, pod) for other, there in standing)
        for name, node in nodes.items():
            for other in self._program.nominator.on(name):
                if other.uid == pod.uid or cache.placed(other.uid) or other.spec.priority < pod.spec.priority:
                    continue
                spec = other.spec if is_kept_off else replace(other.spec, pod_affinity=None)
                found.append((replace(other, spec=spec), node))
        return found


def _may_overlook(domain: DomainConfig) -> bool:
    entries = domain.profile.plugins.enabled
    is_narrowed = any(one.name == "DefaultPreemption" and one.args for one in entries)
    return is_narrowed or bool(domain.extenders) or any(one.isolation is not None for one in entries)

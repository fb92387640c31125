"""Checks each assumption of a process against what the process has observed at that moment (I1, I2, I7, I8).

Later the cache cannot be checked against itself: once the pod is assumed, the row shows that it fits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from domains.gpu.gpu_share import GpuShare
from multisched.framework.ledger import NO_CHOICES, Choices
from multisched.model.cluster_objects import PersistentVolume
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import PODS, Node, Pod
from multisched.plugins.volumes.assumed_volumes import AssumedVolume, PodVolumes
from multisched.plugins.volumes.volume_ledger import VolumeLedger
from multisched.shell.program import Program
from multisched.state.cluster_cache import Assumption
from multisched.state.ledgers import PodLedgers
from multisched.verify.gang_objects import GangKey
from tests.kit.checkers.api.bind_checker import BindChecker
from tests.kit.checkers.card_rules import node_resources
from tests.kit.checkers.delivered_state import DeliveredState
from tests.kit.checkers.device_rules import fault_of_choice, fraction_wanted
from tests.kit.checkers.elastic_nodes import limits_of
from tests.kit.checkers.process.gangs import ProcessGangs
from tests.kit.checkers.process.gpus import Gpus
from tests.kit.checkers.process.quotas import ProcessQuotas
from tests.kit.checkers.process.watches import WatchChecker
from tests.kit.checkers.reference_rules import Relations, ports_conflict
from tests.kit.world.labels import GPU_DEVICES


class AssumptionChecker:
    """Wraps `assume` and `forget` of one program's cache."""

    def __init__(
        self,
        program: Program,
        delivered: DeliveredState,
        watches: WatchChecker,
        bind_checker: BindChecker,
        identity: str,
        domain_of: Mapping[str, str],
        gpus: Gpus,
    ) -> None:
        """`domain_of`: scheduler name -> domain."""
        self._program, self._delivered, self._watches = program, delivered, watches
        self._bind_checker, self._report_violation = bind_checker, bind_checker.report_violation
        self._identity = identity
        self._domain_of = domain_of
        self._gpus = gpus
        self.quotas, self.gangs = ProcessQuotas(program, delivered), ProcessGangs(delivered, self._is_paused)
        self._assume, self._forget = program.cache.assume, program.cache.forget
        program.cache.assume = self.assume  # type: ignore[method-assign]
        program.cache.forget = self.forget  # type: ignore[method-assign]

    def _is_paused(self, key: GangKey) -> bool:
        """Reports whether an attempt of the gang is paused. Members that became victims are no longer tentative; their attempt is
        undone when it continues.
        """
        gang = self._program.cache.gangs.gang("/".join(key))
        placed = () if gang is None else filter(None, map(self._program.cache.placed, gang.members))
        return (gang is not None and gang.tentative > 0) or any(one.pod.is_victim for one in placed)

    def assume(
        self,
        pod: Pod,
        row: int,
        choices: Choices = NO_CHOICES,
        pod_ledgers: PodLedgers | None = None,
        *,
        is_tentative: bool = False,
    ) -> Assumption:
        """Wraps `ClusterCache.assume`: checks the cache before the pod is assumed."""
        table = self._program.cache.nodes
        node = table.node(row)
        domain = self._domain_of[pod.spec.scheduler_name]
        for resource, amount in {**node_resources(pod.spec.requests), PODS: 1}.items():
            used = int(table.pod_count[row]) if resource == PODS else int(table.requested(resource)[row])
            if used + amount > limits_of(node).get(resource, 0):
                self._report_violation(
                    f"I1: {pod.key} was assumed on {node.name}, which has no room for its {resource}"
                )
        known = self._delivered.nodes.get(node.name)
        fault = "which is gone"
        if known is not None:
            fault = self._delivered.fault_of_node(pod, domain, known) or self._delivered.fault_of_domain(pod, known)
        if fault:
            self._report_violation(f"I8: {pod.key} was assumed on {node.name}, {fault}")
        pending = self._program.pods.pending.get(pod.uid)
        if pending is None and self._was_restored(pod):
            pending = pod  # the read of its lost bind was the first news of the pod since the restore
            self._delivered.read(pod)
        if pending is None:
            self._report_violation(f"I7: {pod.key} was assumed after the watch had said that it is gone")
        elif pending.gates:
            self._report_violation(f"I7: {pod.key} was assumed while gated")
        self._check_rules(pod, node, domain)
        excess = self.quotas.fault_of(pod)
        if excess:
            self._report_violation(f"I14: {pod.key} was assumed, and with it {excess}")
        self._bind_checker.assumed(pod.uid, node.name)
        free = tuple(self._gpus.free(node.name)) if self._takes_least_free(pod, domain) else ()
        assumption = self._assume(pod, row, choices, pod_ledgers, is_tentative=is_tentative)
        if free:
            self._check_devices(pod, row, free)
        self._delivered.assumed(pod.uid, node.name)
        self.gangs.assumed(pod)
        if pod.spec.volumes:
            self._check_assumed_volumes()
        return assumption

    def forget(self, uid: str) -> bool:
        self._delivered.forgotten(uid)
        if self._program.cache.is_assumed(uid):
            self._bind_checker.forgotten(self._identity, uid)
        return self._forget(uid)

    def _was_restored(self, pod: Pod) -> bool:
        """Reports whether a restored backup has the deleted pod again."""
        known = self._bind_checker.pods().get(pod.key) if self._watches.was_restored else None
        return known is not None and known.uid == pod.uid

    def _takes_least_free(self, pod: Pod, domain: str) -> bool:
        """Reports whether the pod requests fractions and the policy chooses the fullest devices with room; scoring by fragments may
        choose others.
        """
        plugins = next(one.plugins for one in self._program.router.workers() if one.name == domain)
        policies = [one.plugin.policy.name for one in plugins.built if isinstance(one.plugin, GpuShare)]
        return policies in (["packing"], ["best-fit"]) and bool(fraction_wanted(pod.annotations))

    def _check_devices(self, pod: Pod, row: int, free: Sequence[int]) -> None:
        """Checks that fractions use the fullest devices, and leave whole devices free."""
        hold = self._gpus.hold(pod.uid, row) if GPU_DEVICES not in pod.annotations else None
        devices = [] if hold is None else [name for name in hold.devices if isinstance(name, int)]
        fault = fault_of_choice(free, devices, hold.amount.milli) if hold is not None and devices else ""
        if fault:
            self._report_violation(f"I12: {pod.key} on {self._program.cache.nodes.node(row).name}: {fault}")

    def _check_assumed_volumes(self) -> None:
        """Checks I1 for volumes before any write: each volume is assumed for one claim.

        A volume that the controller has bound to another claim meanwhile is ignored: the API server refuses that write.
        """
        claims: dict[str, str] = {}
        for volume in self._assumed_volumes():
            known = self._program.cache.objects.get(ObjectKind.PERSISTENT_VOLUME, "", volume.volume)
            bound_to = known.claim if isinstance(known, PersistentVolume) else None
            if bound_to is not None and bound_to.uid not in ("", volume.claim_id):
                continue
            if claims.setdefault(volume.volume, volume.claim_id) != volume.claim_id:
                self._report_violation(f"I1: volume {volume.volume} is promised to two claims")

    def _assumed_volumes(self) -> list[AssumedVolume]:
        ledgers = [ledger for ledger in self._program.cache.ledgers if isinstance(ledger, VolumeLedger)]
        held = [one for ledger in ledgers for one in ledger.held().values()]
        return [volume for one in held if isinstance(one, PodVolumes) for volume in one.volumes]

    def _check_rules(self, pod: Pod, node: Node, domain: str) -> None:
        """Checks I1 for requests and for rules about other pods by what was observed, and for capacity of nominated pods."""
        known, pods_on_nodes = self._delivered.nodes.get(node.name), self._delivered.pods_on_nodes()
        if known is not None:
            excess = self._delivered.excess(known, self._delivered.pods.get(pod.uid, pod))
            if excess:
                self._report_violation(f"I1: {pod.key} was assumed on {node.name}, {excess}")
            is_usable = self._delivered.is_usable(domain)
            if not Relations(pod, self._delivered.nodes.values(), pods_on_nodes, is_usable).allow(known):
                self._report_violation(f"I1: {pod.key} was assumed on {node.name} against a rule about other pods")
        cache = self._program.cache
        row = cache.nodes.row_of(node.name)
        nominated = [p for p in self._program.nominator.on(node.name) if p.uid != pod.uid and not cache.placed(p.uid)]
        ahead = [p for p in nominated if p.spec.priority >= pod.spec.priority]
        for other in ahead:
            if ports_conflict(pod, other):
                self._report_violation(
                    f"I1: {pod.key} was assumed on {node.name}, whose port is promised to {other.key}"
                )
        for resource in node_resources(pod.spec.requests) if ahead and row is not None else ():
            used = int(cache.nodes.requested(resource)[row])
            wanted = used + sum(p.spec.requests.get(resource, 0) for p in [pod, *ahead])
            if wanted > limits_of(node).get(resource, 0):
                self._report_violation(f"I1: {pod.key} was assumed on {node.name}, whose {resource} is promised")

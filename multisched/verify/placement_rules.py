"""Rules between a pod and its node alone: taints, node affinity, domains."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from multisched.verify.cards import HAMI_NODE, VOLCANO_NODE
from multisched.verify.findings import Fault
from multisched.verify.loan_rules import Borrower, Loan
from multisched.verify.objects import UNSCHEDULABLE, Node, Pod
from multisched.verify.selectors import LabelSelector, Taint, Toleration

DOMAIN_LABEL = "multisched.io/domain"
GPU_NAMES = re.compile(
    r".*/gpu|nvidia\.com/(gpu\.shared|mig-.+)|gpu\.intel\.com/(i915|xe)"
    r"|aliyun\.com/gpu-mem|alibabacloud\.com/gpu-count|volcano\.sh/vgpu-number|koordinator\.sh/gpu.*"
)
GPU_ANNOTATIONS = (HAMI_NODE, VOLCANO_NODE)
GPU_LABELS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name", "gpu.intel.com/product")
"""Nodes with any of these belong to a domain with the rule `gpu`."""
VIRTUAL_TAINT = "virtual-kubelet.io/provider"
ELASTIC = frozenset({"cpu", "memory"})
VIRTUAL_TYPE = "virtual-kubelet"


@dataclass(frozen=True, slots=True)
class PodRule:
    """Selects pods to which any of these conditions applies."""

    requests: frozenset[str] = frozenset()
    annotations: frozenset[str] = frozenset()
    selector: LabelSelector | None = None

    def selects(self, pod: Pod) -> bool:
        return (
            any(pod.demand.most.get(resource, 0) > 0 for resource in self.requests)
            or any(key in pod.annotations for key in self.annotations)
            or (self.selector is not None and self.selector.matches(pod.labels))
        )

    @property
    def may_change(self) -> bool:
        """True if the rule depends on annotations or labels, which may have changed since placement; requests cannot change."""
        return bool(self.annotations) or self.selector is not None


@dataclass(frozen=True, slots=True)
class ServerlessUnit:
    """Nodes of a serverless provider."""

    labels: tuple[tuple[str, str], ...]
    is_elastic: bool
    """The cpu and memory of its nodes limit nothing."""


@dataclass(frozen=True, slots=True)
class Domain:
    """A domain as the configuration describes it."""

    name: str
    scheduler_names: frozenset[str]
    rule: str
    """gpu, virtual, rest or labelled; empty with a selector."""
    selector: LabelSelector | None = None
    loans: tuple[Loan, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    """Added to all its pods for scheduling."""
    limited: tuple[tuple[Toleration, PodRule], ...] = ()
    """Added to some of its pods only."""
    units: tuple[ServerlessUnit, ...] = ()
    """A node belongs to the first one whose labels it has."""


class Domains:
    """The domains that nodes belong to, and those that may use them."""

    def __init__(self, domains: Sequence[Domain]) -> None:
        self._domains = tuple(domains)
        self._of = {name: domain for domain in domains for name in domain.scheduler_names}

    def elastic(self, node: Node) -> frozenset[str]:
        """Returns the resources that limit nothing on the node."""
        units = (unit for domain in self._domains for unit in domain.units)
        unit = next((one for one in units if all(node.labels.get(key) == value for key, value in one.labels)), None)
        return ELASTIC if unit is not None and unit.is_elastic else frozenset()

    def binds_devices(self, pod: Pod) -> bool:
        """Reports whether a configured scheduler wrote the pod's devices; true for all pods if no domain is configured."""
        return not self._domains or pod.scheduler in self._of

    def of(self, pod: Pod) -> Domain | None:
        return self._of.get(pod.scheduler)

    def tolerations(self, pod: Pod) -> tuple[Toleration, ...]:
        """Returns the pod's tolerations and those that its domain adds."""
        domain = self._of.get(pod.scheduler)
        if domain is None:
            return pod.tolerations
        limited = (toleration for toleration, rule in domain.limited if rule.selects(pod))
        return (*pod.tolerations, *domain.tolerations, *limited)

    def lapsed(self, pod: Pod) -> tuple[Toleration, ...]:
        """Returns tolerations that the domain does not add to the pod now, but may have added at placement."""
        domain = self._of.get(pod.scheduler)
        rules = domain.limited if domain is not None else ()
        return tuple(toleration for toleration, rule in rules if rule.may_change and not rule.selects(pod))

    def faults(self, pod: Pod, node: Node) -> Iterator[Fault]:
        domain = self._of.get(pod.scheduler)
        if domain is None or self.is_usable(domain, node):
            return
        home = self._home(node, node.allocatable or {})
        where = f"belongs to domain {home}" if home else "belongs to no domain"
        # A restarting device plugin withdraws all GPUs for a while; the node's capacity still shows them.
        was_usable = self._is_usable(domain, node, node.capacity)
        yield Fault(
            "domain", f"{pod.scheduler} belongs to domain {domain.name}, the node {where}", is_sure=not was_usable
        )

    def borrowers_on(self, node: Node) -> Mapping[str, Borrower]:
        """Returns schedulerName -> its domain, for domains that may use the node by a loan."""
        home = self._home(node, node.allocatable or {})
        return {
            name: Borrower(domain.name, loans)
            for domain in self._domains
            if domain.name != home and (loans := _loans_of(domain, home, node))
            for name in domain.scheduler_names
        }

    def is_usable(self, domain: Domain, node: Node) -> bool:
        """Reports whether the domain may place pods on the node."""
        return self._is_usable(domain, node, node.allocatable or {})

    def _is_usable(self, domain: Domain, node: Node, room: Mapping[str, int]) -> bool:
        home = self._home(node, room)
        return home == domain.name or bool(_loans_of(domain, home, node))

    def _home(self, node: Node, room: Mapping[str, int]) -> str:
        """Returns the node's domain: by label, then by selectors in file order, then GPUs, virtual nodes, rest; empty if none."""
        labelled = node.labels.get(DOMAIN_LABEL)
        if labelled is not None:
            return labelled if any(domain.name == labelled for domain in self._domains) else ""
        for domain in self._domains:
            if domain.selector is not None and domain.selector.matches(node.labels):
                return domain.name
        has_gpus = (
            any(count > 0 and GPU_NAMES.fullmatch(name) for name, count in room.items())
            or any(key in node.annotations for key in GPU_ANNOTATIONS)
            or any(key in node.labels for key in GPU_LABELS)
        )
        is_virtual = node.labels.get("type") == VIRTUAL_TYPE or any(t.key == VIRTUAL_TAINT for t in node.taints)
        for rule, holds in (("gpu", has_gpus), ("virtual", is_virtual), ("rest", True)):
            for domain in self._domains:
                if holds and domain.selector is None and domain.rule == rule:
                    return domain.name
        return ""


def _loans_of(domain: Domain, home: str, node: Node) -> tuple[Loan, ...]:
    return tuple(loan for loan in domain.loans if loan.lender == home and loan.selector.matches(node.labels))


def untolerated(tolerations: Sequence[Toleration], taints: Iterable[Taint]) -> Iterator[Taint]:
    """Yields untolerated taints with NoSchedule or NoExecute."""
    for taint in taints:
        is_hard = taint.effect in ("NoSchedule", "NoExecute")
        if is_hard and not any(t.tolerates(taint) for t in tolerations):
            yield taint


def taint_faults(
    pod: Pod,
    tolerations: Sequence[Toleration],
    node: Node,
    *,
    knows_order: bool,
    lapsed: Sequence[Toleration] = (),
) -> Iterator[Fault]:
    """Yields faults for untolerated NoExecute taints, and for NoSchedule taints older than the placement, as far as known.

    `lapsed`: tolerations that may have been added to the pod at placement.
    """
    is_tainted = any(taint.key == UNSCHEDULABLE.key for taint in node.taints)
    cordon = (UNSCHEDULABLE,) if node.is_unschedulable and not is_tainted else ()
    for taint in untolerated(tolerations, (*node.taints, *cordon)):
        message = f"it does not tolerate {taint}"
        if taint.effect == "NoExecute":
            if not pod.is_terminating or knows_order:
                yield Fault("taints", message)
        elif knows_order:
            yield Fault("taints", message)
        elif any(toleration.tolerates(taint) for toleration in lapsed):
            yield Fault("taints", f"{message}; it may have before its annotations or labels changed", is_sure=False)
        elif taint.added_s is None or pod.placed_s is None:
            yield Fault("taints", f"{message}; the time of the taint is unknown", is_sure=False)
        elif taint.added_s < pod.placed_s:
            yield Fault("taints", f"{message}, which was added before the pod was placed")
        elif taint.added_s == pod.placed_s:
            yield Fault("taints", f"{message}, which was added in the second of its placement", is_sure=False)


def affinity_faults(pod: Pod, node: Node) -> Iterator[Fault]:
    for key, value in pod.node_labels:
        if node.labels.get(key) != value:
            yield Fault("nodeAffinity", f"its nodeSelector wants {key}={value}, the node has {_shown(node, key)}")
            return
    if pod.node_affinity is not None and not pod.node_affinity.matches(node.labels, node.name):
        yield Fault("nodeAffinity", "its required node affinity does not match the node")


def _shown(node: Node, key: str) -> str:
    value = node.labels.get(key)
    return "no such label" if value is None else f"{key}={value}"

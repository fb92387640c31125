"""The home domain of a node and the domains that may use it: the configuration's node selection, compiled.

Pure: a function of node and configuration, called once per node change. The order of precedence is: the label
`multisched.io/domain`, selectors in file order, GPUs, virtual nodes, and the rest. `NodeSelection` is this part of a
configuration. Replicas publish it in their leases, because they may temporarily run with different files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from multisched.config.document import Document
from multisched.config.schema import Configuration, DomainConfig, Loan, NodeRule, Nodes
from multisched.config.sections import Section
from multisched.config.structure import validated
from multisched.model.near_names import did_you_mean
from multisched.model.objects import Node
from multisched.model.selectors import LabelSelector, Operator, Requirement, parse_int64
from multisched.model.wire import UNREADABLE

DOMAIN_LABEL: Final = "multisched.io/domain"
GPU_RESOURCES: Final = re.compile(
    r".*/gpu|nvidia\.com/(gpu\.shared|mig-.*)|gpu\.intel\.com/(i915|xe)"
    r"|aliyun\.com/gpu-mem|alibabacloud\.com/gpu-count|volcano\.sh/vgpu-number|koordinator\.sh/gpu.*"
)
"""Allocatable resources of GPU nodes, of any vendor and sharing system."""
GPU_ANNOTATIONS: Final = frozenset({"hami.io/node-nvidia-register", "volcano.sh/node-vgpu-register"})
"""Annotations in which the device plugins of HAMi and Volcano describe a node's cards."""
GPU_LABELS: Final = frozenset({"nvidia.com/gpu.product", "amd.com/gpu.product-name", "gpu.intel.com/product"})
"""Labels by which the vendors' feature discovery describes a node's GPUs, for instance if a DRA driver serves them."""
RESOURCE_NAMES_MAX: Final = 1_024
"""Names of resources for which it is remembered whether they are a GPU's: all nodes have the same few."""
VIRTUAL_TAINT: Final = "virtual-kubelet.io/provider"
VIRTUAL_TYPE: Final = "virtual-kubelet"


def has_gpus(node: Node) -> bool:
    """Reports whether the node has GPUs, of any vendor and sharing system."""
    for name, count in node.allocatable.items():
        if count > 0 and _is_gpu_resource(name):
            return True
    return not (GPU_ANNOTATIONS.isdisjoint(node.annotations) and GPU_LABELS.isdisjoint(node.labels))


@lru_cache(maxsize=RESOURCE_NAMES_MAX)
def _is_gpu_resource(name: str) -> bool:
    return GPU_RESOURCES.fullmatch(name) is not None


def is_virtual(node: Node) -> bool:
    """Reports whether the node is serverless: it has virtual-kubelet's taint, or the label that its providers set."""
    return node.labels.get("type") == VIRTUAL_TYPE or any(taint.key == VIRTUAL_TAINT for taint in node.taints)


class SelectedDomain(Section, frozen=True):
    """The settings that decide which nodes a domain may use."""

    name: str
    nodes: Nodes = Nodes()
    loans: tuple[Loan, ...] = ()
    separable: tuple[str, ...] = ()
    """Lenders whose loans do not require a common Lease: what they lend is published (`plugins/slices`). Older versions do not
    write it, and share a Lease with every lender."""


class NodeSelection(Section, frozen=True):
    """The node selection of a whole configuration."""

    domains: tuple[SelectedDomain, ...] = ()
    per_domain: bool = True
    """See `LeaseConfig`. Older versions do not write it and have a Lease per domain."""

    @classmethod
    def of(cls, configuration: Configuration) -> NodeSelection:
        is_per_domain = configuration.lease.enabled and configuration.lease.per_domain
        domains = tuple(
            SelectedDomain(
                name=d.name,
                nodes=d.nodes,
                loans=_rows_of(d.loans),
                separable=_separable_lenders(d.loans) if is_per_domain else (),
            )
            for d in configuration.domains
        )
        return cls(domains=domains, per_domain=configuration.lease.per_domain)

    @classmethod
    def read(cls, text: str) -> NodeSelection | None:
        """Parses the result of `written`; returns None for other text, such as a later version's."""
        try:
            return validated(Document("lease", msgspec.json.decode(text)), cls)
        except UNREADABLE:
            return None

    def written(self) -> str:
        return msgspec.json.encode(self).decode()


def _rows_of(loans: Iterable[Loan]) -> tuple[Loan, ...]:
    """Returns the part of loans that decides which rows are borrowed: replicas of older versions can read it."""
    found: list[Loan] = []
    for loan in loans:
        rows = Loan(lender=loan.lender, selector=loan.selector)
        if rows not in found:
            found.append(rows)
    return tuple(found)


def _separable_lenders(loans: Sequence[Loan]) -> tuple[str, ...]:
    """Returns the lenders that lend free capacity within limits and nothing else: amounts that can be offered and claimed."""
    lenders = dict.fromkeys(loan.lender for loan in loans)
    return tuple(name for name in lenders if all(one.is_separable for one in loans if one.lender == name))


class CompiledLoan(msgspec.Struct, frozen=True):
    """The rows of `lender` that a borrower may use."""

    lender: str
    selector: LabelSelector


def surely_share(one: LabelSelector, other: LabelSelector) -> bool:
    """Reports whether the selectors certainly overlap: a node can match both, and one's labels are a subset of the other's.

    Selectors over different labels may or may not overlap; an overlap is reported when such a node is added.
    """
    keys, other_keys = {r.key for r in one.requirements}, {r.key for r in other.requirements}
    if not (keys <= other_keys or other_keys <= keys):
        return False
    both = (*one.requirements, *other.requirements)
    return all(_can_hold([r for r in both if r.key == key]) for key in keys | other_keys)


def _can_hold(requirements: list[Requirement]) -> bool:
    """Reports whether some value of the label, or its absence, meets all requirements; tries every value that can differ."""
    return any(all(r.matches_value(value) for r in requirements) for value in _telling_values(requirements))


def _telling_values(requirements: list[Requirement]) -> Iterator[str | None]:
    yield None
    yield "a-value-that-no-selector-names"
    values = [value for requirement in requirements for value in requirement.values]
    yield from values
    for requirement in requirements:
        bound = parse_int64(requirement.values[0]) if requirement.operator in (Operator.GT, Operator.LT) else None
        if bound is not None:  # more numbers than there are values, since other requirements may exclude some
            yield from (str(bound + sign * step) for step in range(1, len(values) + 2) for sign in (1, -1))


class NodeRouter:
    """Computes the home domains of nodes. Built once per configuration."""

    def __init__(self, configuration: Configuration | NodeSelection) -> None:
        selection = configuration if isinstance(configuration, NodeSelection) else NodeSelection.of(configuration)
        self._sliced = sliced_lenders(selection)
        self._names = frozenset(domain.name for domain in configuration.domains)
        self._selectors = tuple(
            (domain.name, domain.nodes.selector.compile())
            for domain in configuration.domains
            if domain.nodes.selector is not None
        )
        by_rule = {d.nodes.rule: d.name for d in configuration.domains if d.nodes.rule is not None}
        self._of_gpus, self._of_virtual = by_rule.get(NodeRule.GPU), by_rule.get(NodeRule.VIRTUAL)
        self._of_rest = by_rule.get(NodeRule.REST)
        self._loans = {domain.name: _compile_loans(domain) for domain in configuration.domains}
        self._last: tuple[Node | None, str | None] = (None, None)

    def home(self, node: Node) -> str | None:
        """Returns the node's home domain; None if it has none."""
        if self._last[0] is not node:  # each domain asks about every added or changed node
            self._last = (node, self._find_home(node))
        return self._last[1]

    def _find_home(self, node: Node) -> str | None:
        labelled = node.labels.get(DOMAIN_LABEL)
        if labelled is not None:
            return labelled if labelled in self._names else None
        selecting = self.selecting(node)
        if selecting:
            return selecting[0]
        if self._of_gpus is not None and has_gpus(node):
            return self._of_gpus
        if self._of_virtual is not None and is_virtual(node):
            return self._of_virtual
        return self._of_rest

    def selecting(self, node: Node) -> list[str]:
        """Returns the domains whose selectors match an unlabelled node, in file order."""
        if DOMAIN_LABEL in node.labels:
            return []
        return [name for name, selector in self._selectors if selector.matches(node.labels)]

    def disputed(self, node: Node) -> list[str]:
        """Returns the home domain and other domains that select the node without a loan; empty if there is no conflict."""
        selecting = self.selecting(node)
        others = [name for name in selecting[1:] if selecting[0] not in self.lenders(name)]
        return [selecting[0], *others] if others else []

    def unknown_domain(self, node: Node) -> str:
        """Returns the problem with the node's domain label; empty for a valid label, or without one."""
        labelled = node.labels.get(DOMAIN_LABEL)
        if labelled is None or labelled in self._names:
            return ""
        hint = did_you_mean(labelled, sorted(self._names), f"the domains are {', '.join(sorted(self._names))}")
        return f"its label {DOMAIN_LABEL} is {labelled}, which is not a configured domain; {hint}"

    def lenders(self, domain: str) -> frozenset[str]:
        """Returns the domains whose rows this one borrows."""
        return frozenset(loan.lender for loan in self._loans[domain])

    def usable_by(self, domain: str) -> Callable[[Node], bool]:
        """Returns a function that reports whether a node is the domain's own or borrowed by it."""
        loans = self._loans[domain]

        def is_usable(node: Node) -> bool:
            home = self.home(node)
            if home == domain:
                return True
            return any(loan.lender == home and loan.selector.matches(node.labels) for loan in loans)

        return is_usable

    def sliced_for(self, domain: str) -> Callable[[Node], bool]:
        """Returns a function that reports whether the domain may use a node by slices only: its lender may be led by another process."""
        lenders = self._sliced[domain]
        return (lambda node: self.home(node) in lenders) if lenders else (lambda node: False)

    def why_not(self, domain: str) -> Callable[[Node], str]:
        """Returns a function that explains why the domain may not use a node, and how to change that."""

        def reason(node: Node) -> str:
            home, label = self.home(node), f"{DOMAIN_LABEL}={domain}"
            if home is None:
                rule = self._rule_of(node, "no configured domain")
                return f"{rule}; label it {label}, or give {domain} nodes by a rule or a selector that matches it"
            rule = self._rule_of(node, f"domain {home}")
            if home in self.lenders(domain):
                return f"{rule}, and no loan of {domain} from {home} selects it; widen the loan's selector"
            return f"{rule}; label it {label}, or let {domain} borrow it (loans: [{{from: {home}}}])"

        return reason

    def _rule_of(self, node: Node, home: str) -> str:
        """Returns the rule that decides the node's home. `home`: the home as a phrase."""
        labelled = node.labels.get(DOMAIN_LABEL)
        if labelled is not None:
            return f"its label {DOMAIN_LABEL}={labelled} assigns it to {home}"
        if self.selecting(node):
            return f"the selector of {home} matches it"
        rules = ((self._of_gpus, has_gpus, "has GPUs"), (self._of_virtual, is_virtual, "is virtual"))
        for of_rule, matches, what in rules:
            if of_rule is not None and matches(node):
                return f"it {what}, and such nodes belong to {home}"
        return (
            f"it belongs to {home}"
            if self._of_rest is None
            else f"it belongs to {home}, which has all nodes that no other domain claims"
        )


def _compile_loans(domain: DomainConfig | SelectedDomain) -> tuple[CompiledLoan, ...]:
    return tuple(
        CompiledLoan(loan.lender, LabelSelector() if loan.selector is None else loan.selector.compile())
        for loan in domain.loans
    )


def lease_groups(selection: NodeSelection) -> dict[str, str]:
    """Returns domain -> the domain that names its lease: the first of all, or the first that shares rows with it, also indirectly.

    Domains share rows by loans, except by those of `SelectedDomain.separable` lenders.
    """
    group = {domain.name: domain.name for domain in selection.domains}
    if not selection.per_domain:
        return dict.fromkeys(group, next(iter(group), ""))
    for domain in selection.domains:
        for loan in domain.loans:
            if loan.lender in domain.separable:
                continue
            ours, theirs = group[domain.name], group[loan.lender]
            first = next(name for name in group if group[name] in (ours, theirs))
            group = {name: first if at in (ours, theirs) else at for name, at in group.items()}
    return group


def sliced_lenders(selection: NodeSelection) -> Mapping[str, frozenset[str]]:
    """Returns domain -> the lenders that have another lease, so that the domain may use their rows by slices only."""
    groups = lease_groups(selection)
    return {
        domain.name: frozenset(name for name in domain.separable if groups[name] != groups[domain.name])
        for domain in selection.domains
    }


def lease_groups_of(configuration: Configuration) -> dict[str, str]:
    """Returns `lease_groups` of a whole configuration."""
    return lease_groups(NodeSelection.of(configuration))

"""The domains of a configuration in the form that the judge (`multisched.verify`) expects; it reads no configuration itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from multisched.config.schema import (
    Configuration,
    DomainConfig,
    Loan,
    LoanKind,
    PodRuleConfig,
    Selector,
    TolerationConfig,
)
from multisched.model.objects import CPU
from multisched.model.quantity import parse_milli, parse_value
from multisched.plugins.loans.terms import DEFAULT_RESOURCES, IDLE_RESOURCES
from multisched.verify import judged_selector
from multisched.verify.loan_rules import Loan as JudgedLoan
from multisched.verify.placement_rules import Domain, PodRule, ServerlessUnit
from multisched.verify.selectors import LabelSelector, Toleration

SERVERLESS_UNITS: Final = "ServerlessUnits"
"""The plugin of the job domain that knows which nodes are elastic."""


def judged_domains(configuration: Configuration) -> tuple[Domain, ...]:
    """Returns the domains in file order: if several selectors match a node, the first one wins."""
    return tuple(_domain(domain) for domain in configuration.domains)


def _domain(domain: DomainConfig) -> Domain:
    return Domain(
        domain.name,
        frozenset(domain.scheduler_names),
        domain.nodes.rule.value if domain.nodes.rule is not None else "",
        _selector(domain.nodes.selector) if domain.nodes.selector is not None else None,
        tuple(_loan(loan) for loan in domain.loans),
        tuple(_toleration(t) for t in domain.policy.tolerations or () if t.pods is None),
        tuple((_toleration(t), _pods(t.pods)) for t in domain.policy.tolerations or () if t.pods is not None),
        tuple(_units(domain)),
    )


def _units(domain: DomainConfig) -> Iterator[ServerlessUnit]:
    """Yields the units in the args of ServerlessUnits, which were validated with the configuration."""
    for entry in domain.profile.plugins.enabled:
        args = entry.args or {}
        for unit in args.get("units", ()) if entry.name == SERVERLESS_UNITS else ():
            yield ServerlessUnit(tuple(unit["nodeSelector"].items()), unit.get("capacity") == "elastic")


def _toleration(one: TolerationConfig) -> Toleration:
    return Toleration(one.key, one.operator, one.value, one.effect)


def _pods(rule: PodRuleConfig) -> PodRule:
    selector = _selector(rule.selector) if rule.selector is not None else None
    return PodRule(frozenset(rule.requests), frozenset(rule.annotations), selector)


def _loan(loan: Loan) -> JudgedLoan:
    is_idle = loan.kind is LoanKind.IDLE
    return JudgedLoan(
        loan.lender,
        LabelSelector() if loan.selector is None else _selector(loan.selector),
        is_limited=loan.is_limited,
        is_idle=is_idle,
        resources=frozenset(loan.resources or (IDLE_RESOURCES if is_idle else DEFAULT_RESOURCES)),
        share_percent=loan.share_percent,
        headroom=tuple(
            (name, parse_milli(text) if name == CPU else parse_value(text)) for name, text in loan.headroom.items()
        ),
    )


def _selector(selector: Selector) -> LabelSelector:
    expressions = [
        {"key": one.key, "operator": one.operator.value, "values": list(one.values)}
        for one in selector.match_expressions
    ]
    return judged_selector({"matchLabels": dict(selector.match_labels), "matchExpressions": expressions})

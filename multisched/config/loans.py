"""The loans of a configuration as terms of the plugin Loans, and the checks of loans between domains. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from multisched.config.nodes import NodeRouter, NodeSelection, lease_groups, sliced_lenders
from multisched.config.schema import (
    RETURN_EXTRA_S,
    Configuration,
    DomainConfig,
    Loan,
    LoanHours,
    LoanKind,
    LoanReturn,
)
from multisched.framework.registry import PluginUse
from multisched.framework.weekly_hours import DAY_MINUTES, DAYS, DayHours
from multisched.model.objects import CPU, PODS, Node
from multisched.model.quantity import parse_milli, parse_value
from multisched.model.selectors import LabelSelector
from multisched.plugins.loans.terms import (
    BORROWERS_ARG,
    DEFAULT_RESOURCES,
    DOMAIN_ARG,
    IDLE_RESOURCES,
    LOANS,
    SLICED,
    Borrower,
    LoanTerms,
    OpenHours,
    ReturnTerms,
)


def borrowers_of(configuration: Configuration) -> tuple[Borrower, ...]:
    """Returns the domains with limited loans."""
    router, selection = NodeRouter(configuration), NodeSelection.of(configuration)
    sliced, groups = sliced_lenders(selection), lease_groups(selection)

    schedulers = frozenset(name for domain in configuration.domains for name in domain.scheduler_names)

    def users_of(lender: str) -> dict[str, frozenset[str]]:
        """Returns the domains under the lender's Lease that may use its rows."""
        return {
            domain.name: frozenset(domain.scheduler_names)
            for domain in configuration.domains
            if groups[domain.name] == groups[lender] and lender in (domain.name, *router.lenders(domain.name))
        }

    return tuple(
        Borrower(
            domain.name,
            frozenset(domain.scheduler_names),
            tuple(
                _terms(
                    domain.name,
                    loan,
                    router,
                    users_of(loan.lender) if loan.lender in sliced[domain.name] else {},
                    schedulers,
                )
                for loan in domain.loans
            ),
        )
        for domain in configuration.domains
        if any(loan.is_limited for loan in domain.loans)
    )


def loans_use(domain: str, borrowers: Sequence[Borrower]) -> PluginUse | None:
    """Returns the plugin Loans with its args, for a domain that lends or borrows within limits; None for any other."""
    concerned = {name for one in borrowers for loan in one.loans for name in (loan.lender, loan.borrower, *loan.users)}
    args = {BORROWERS_ARG: tuple(borrowers), DOMAIN_ARG: domain}
    return PluginUse(LOANS, args=args) if domain in concerned else None


def circle_of_loans(domains: Sequence[DomainConfig]) -> tuple[str, ...]:
    """Returns domains of which each lends to the next, and the last to the first, by a limited loan among them; empty if there are none."""
    lenders = {domain.name: list(domain.loans) for domain in domains}

    def walk(path: tuple[str, ...], *, is_limited: bool) -> Iterator[tuple[str, ...]]:
        for loan in lenders.get(path[-1], ()):
            limited = is_limited or loan.is_limited
            if loan.lender == path[0] and limited:
                yield path
            elif loan.lender not in path:
                yield from walk((*path, loan.lender), is_limited=limited)

    return next((found for name in lenders for found in walk((name,), is_limited=False)), ())


def _terms(
    borrower: str, loan: Loan, router: NodeRouter, users: Mapping[str, frozenset[str]], schedulers: frozenset[str]
) -> LoanTerms:
    """`users`, `schedulers`: see `LoanTerms`; `users` is empty if the loan is not sliced."""
    selector = LabelSelector() if loan.selector is None else loan.selector.compile()

    def lends(node: Node) -> bool:
        return router.home(node) == loan.lender and selector.matches(node.labels)

    is_idle = loan.kind is LoanKind.IDLE
    resources = frozenset(loan.resources or (IDLE_RESOURCES if is_idle else DEFAULT_RESOURCES))
    return LoanTerms(
        loan.lender,
        borrower,
        lends,
        f"nodes of {loan.lender}" + ("" if loan.selector is None else " that the loan's selector matches"),
        is_limited=loan.is_limited,
        is_idle=is_idle,
        resources=(resources & SLICED) | {PODS} if users else resources,
        share_percent=loan.share_percent,
        threshold_percent=loan.threshold_percent,
        headroom=_amounts(loan.headroom),
        foreign_percent=loan.foreign_reserve_percent,
        hours=OpenHours(tuple(_hours(loan.hours)), loan.time_zone) if loan.hours else None,
        returns=None if loan.returns is None else _returns(loan.returns),
        is_sliced=bool(users),
        users=users,
        schedulers=schedulers,
    )


def _amounts(written: Mapping[str, str]) -> dict[str, int]:
    return {name: parse_milli(text) if name == CPU else parse_value(text) for name, text in written.items()}


def _hours(written: Sequence[LoanHours]) -> Iterator[tuple[int, DayHours]]:
    for one in written:
        begin, end = _minute(one.begins), _minute(one.to)
        for day in one.days or DAYS:
            yield DAYS.index(day), DayHours(begin, end if end > begin else end + DAY_MINUTES)


def _minute(text: str) -> int:
    hour, minute = text.split(":")
    return int(hour) * 60 + int(minute)


def _returns(one: LoanReturn) -> ReturnTerms:
    deadline_s = one.notice_s + one.grace_s + RETURN_EXTRA_S if one.deadline_s is None else one.deadline_s
    return ReturnTerms(one.notice_s, one.grace_s, deadline_s, one.evictions_per_owner)

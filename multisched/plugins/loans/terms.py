"""The terms of loans: which rows of a lender a borrower may use, how much of them, when, and how capacity is returned.

Values; compiled from the configuration (`multisched.config.loans`). Epoch seconds; reads no clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

import msgspec

from multisched.framework.weekly_hours import DayHours
from multisched.model.objects import CPU, MEMORY, PODS, Node

LOANS: Final = "Loans"
"""The plugin, whose modules are imported for the first domain that lends or borrows within limits."""
BORROWERS_ARG: Final = "borrowers"
DOMAIN_ARG: Final = "domain"
DEFAULT_RESOURCES: Final = ("cpu", "memory", "ephemeral-storage")
IDLE_RESOURCES: Final = ("cpu",)
SLICED: Final = frozenset({CPU, MEMORY, PODS})
"""The resources that can be lent between processes."""
MERGED_MAX: Final = 16
"""Hours that follow one another without a gap are one opening, as far as this many of them reach."""


class OpenHours(msgspec.Struct, frozen=True):
    """Hours of the week in the wall time of one zone."""

    hours: tuple[tuple[int, DayHours], ...]
    """Weekday on which they begin (0 is Monday), and the minutes since its midnight."""
    zone: str = "UTC"

    def closes_s(self, now_s: float) -> float | None:
        """Returns when the hours that are open at `now_s` end; infinite if they never do; None if they are closed."""
        at_s = now_s
        for _ in range(MERGED_MAX):
            end_s = max((end_s for begin_s, end_s in self._around(at_s) if begin_s <= at_s < end_s), default=None)
            if end_s is None:
                return at_s if at_s > now_s else None
            at_s = end_s
        return math.inf

    def opens_s(self, now_s: float) -> float | None:
        """Returns when closed hours open next; None if that is more than a week away."""
        begins = (begin_s for day in range(8) for begin_s, _ in self._around(now_s + 86_400.0 * day))
        return min((begin_s for begin_s in begins if begin_s > now_s), default=None)

    def _around(self, at_s: float) -> list[tuple[float, float]]:
        """Returns begin and end of the hours that begin on the day before, on the day of `at_s` and on the day after."""
        zone = ZoneInfo(self.zone)
        midnight = datetime.fromtimestamp(at_s, zone).replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
        found = []
        for shift in (-1, 0, 1):
            day = midnight + timedelta(days=shift)
            for weekday, (begin, end) in self.hours:
                if weekday == day.weekday():
                    walls = (day + timedelta(minutes=minute) for minute in (begin, end))
                    begin_s, end_s = (wall.replace(tzinfo=zone).timestamp() for wall in walls)
                    found.append((begin_s, end_s))
        return found


class ReturnTerms(msgspec.Struct, frozen=True):
    """How capacity is returned to the lender."""

    notice_s: float
    """Time between the notice to a pod and its eviction."""
    grace_s: float
    """Time that an evicted pod has to terminate."""
    deadline_s: float
    """From the notice until everything is returned: `deadline_s - grace_s` after it, PodDisruptionBudgets no longer protect pods."""
    evictions_per_owner: int
    """Number of evicted pods of one owner in an hour after which pods of other owners are evicted first."""


class LoanTerms(msgspec.Struct, frozen=True):
    """One loan."""

    lender: str
    borrower: str
    lends: Callable[[Node], bool]
    """Reports whether the lender's node is part of the loan."""
    lends_words: str
    """How the nodes are selected, for people."""
    is_limited: bool = True
    """False: the borrower may use the rows like its own."""
    is_idle: bool = False
    """True: capacity that the lender's pods request and do not use is lent. False: capacity that no pod requests."""
    resources: frozenset[str] = frozenset(DEFAULT_RESOURCES)
    """The only resources that pods on loan may request."""
    share_percent: int = 100
    threshold_percent: int = 100
    """For an idle loan: the share of allocatable that all pods together may use."""
    headroom: Mapping[str, int] = {}
    """Resource -> amount that is kept free on each row."""
    foreign_percent: int = 0
    """Share of allocatable that is kept for pods of schedulers outside this program, what they use included."""
    schedulers: frozenset[str] = frozenset()
    """schedulerNames of all domains of this program."""
    hours: OpenHours | None = None
    """None: always open."""
    returns: ReturnTerms | None = None
    """None: the lender waits until pods of the borrower end."""
    is_sliced: bool = False
    """Lender and borrower have different Leases: the lender offers slices, and the borrower claims them (`slices/`)."""
    users: Mapping[str, frozenset[str]] = {}
    """For a sliced loan: domain -> its schedulerNames, for the domains that use the lender's rows by the lender's Lease."""

    @property
    def name(self) -> str:
        """For people and metrics."""
        return f"{self.lender} to {self.borrower}{' (idle)' if self.is_idle else ''}"

    def closes_s(self, now_s: float) -> float | None:
        """Returns when the loan closes; infinite if it never does; None if it is closed."""
        return math.inf if self.hours is None else self.hours.closes_s(now_s)


class Borrower(msgspec.Struct, frozen=True):
    """A domain with limited loans."""

    domain: str
    scheduler_names: frozenset[str]
    loans: tuple[LoanTerms, ...]
    """In file order; the first that lends a row counts."""

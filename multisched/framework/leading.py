"""Who leads a domain, as values: what a replica says that is asked about a domain it does not lead.

A replica that stands by knows the cluster, and nothing of what the leader decided: it names the leader instead of answering.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

PROBLEM_TYPE: Final = "application/problem+json"
"""Of a `Problem` over HTTP (RFC 9457)."""


class Leader(msgspec.Struct, frozen=True):
    """Who holds the lease of a domain, as its Lease says."""

    identity: str
    address: str = ""
    """Base URL at which it answers; empty where its Lease does not say."""
    since: str = ""
    """When it acquired the lease, as the API writes moments."""


class LedElsewhere(msgspec.Struct, frozen=True):
    """A domain that the process does not lead."""

    domain: str
    leader: Leader | None = None
    """None: nobody leads it, as far as is known."""
    is_taken_over: bool = msgspec.field(name="isTakenOver", default=False)
    """The process itself is the leader, and does not decide yet: in a moment it does."""

    runs_out_in_s: float | None = msgspec.field(name="runsOutInS", default=None)
    """Until its lease can be taken by somebody else, unless it is renewed; None: that is not known."""

    def __str__(self) -> str:
        return self.of_all([self.domain])

    def of_all(self, domains: Sequence[str]) -> str:
        """In words, for all `domains` of which the same is to be said."""
        are = "is" if len(domains) == 1 else "are"
        named = f"domain{'' if len(domains) == 1 else 's'} {', '.join(domains)}"
        if self.is_taken_over:
            return f"{named} {are} being taken over by this replica; ask again in a moment"
        if self.leader is None:
            return f"no replica leads {named} at the moment; ask again in a few seconds"
        since = f" since {self.leader.since}" if self.leader.since else ""
        where = f" at {self.leader.address}" if self.leader.address else ", whose Lease does not say where it answers"
        return f"{named} {are} led by {self.leader.identity}{since}{where}"


class NotLeadingError(Exception):
    """Only the leader of the domain can answer."""

    def __init__(self, led: LedElsewhere) -> None:
        super().__init__(str(led))
        self.led = led

    @property
    def status(self) -> int:
        """As in HTTP: 421 ask somebody else, 503 ask again."""
        return 503 if self.led.leader is None or self.led.is_taken_over else 421


FindLeader = Callable[[str], LedElsewhere | None]
"""Of a domain: who else leads it; None: this process does."""


def led_here(domain: str) -> LedElsewhere | None:
    """Of a process that is alone, or a copy: it answers for every domain."""
    return None


def require_led(find: FindLeader, domain: str) -> None:
    """Raises NotLeadingError for a domain that another process leads, or nobody."""
    led = find(domain)
    if led is not None:
        raise NotLeadingError(led)


class Problem(LedElsewhere, frozen=True, kw_only=True):
    """What is answered in place of what only the leader knows."""

    title: str = "this replica does not lead the domain"
    status: int
    detail: str

    @classmethod
    def of(cls, error: NotLeadingError) -> Problem:
        led = error.led
        return cls(
            domain=led.domain,
            leader=led.leader,
            is_taken_over=led.is_taken_over,
            runs_out_in_s=led.runs_out_in_s,
            status=error.status,
            detail=str(led),
        )

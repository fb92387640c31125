"""The leader of a domain: what a replica reports about a domain that it does not lead.

A standby replica knows the cluster but not the leader's decisions: it names the leader instead of answering.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

PROBLEM_TYPE: Final = "application/problem+json"
"""Content type of a `Problem` over HTTP (RFC 9457)."""


class Leader(msgspec.Struct, frozen=True):
    """The holder of a domain's lease, as recorded in the Lease."""

    identity: str
    address: str = ""
    """Base URL of its HTTP server; empty if the Lease has none."""
    since: str = ""
    """When it acquired the lease, in the API's time format."""


class NotLedHere(msgspec.Struct, frozen=True):
    """A domain that this process does not lead."""

    domain: str
    leader: Leader | None = None
    """None: no known leader."""
    is_taken_over: bool = msgspec.field(name="isTakenOver", default=False)
    """This process holds the lease but does not schedule yet; it will in a moment."""

    runs_out_in_s: float | None = msgspec.field(name="runsOutInS", default=None)
    """Time until another replica can take the lease unless it is renewed; None: unknown."""

    def __str__(self) -> str:
        return self.of_all([self.domain])

    def of_all(self, domains: Sequence[str]) -> str:
        """Returns the message for several domains with the same leader."""
        are = "is" if len(domains) == 1 else "are"
        named = f"domain{'' if len(domains) == 1 else 's'} {', '.join(domains)}"
        if self.is_taken_over:
            return f"{named} {are} being taken over by this replica; ask again in a moment"
        if self.leader is None:
            return f"no replica leads {named} at the moment; ask again in a few seconds"
        since = f" since {self.leader.since}" if self.leader.since else ""
        where = f" at {self.leader.address}" if self.leader.address else ", whose Lease has no address"
        return f"{named} {are} led by {self.leader.identity}{since}{where}"


class NotLeadingError(Exception):
    """Only the leader of the domain can answer."""

    def __init__(self, led: NotLedHere) -> None:
        super().__init__(str(led))
        self.led = led

    @property
    def status(self) -> int:
        """The HTTP status: 421 if another replica leads, 503 if none leads yet."""
        return 503 if self.led.leader is None or self.led.is_taken_over else 421


FindLeader = Callable[[str], NotLedHere | None]
"""Returns what this process knows of the leader of a domain; None: this process leads it."""


def led_here(domain: str) -> NotLedHere | None:
    """Returns None: the `FindLeader` of a process without leader election or of a sandbox, which answers for every domain."""
    return None


def require_led(find: FindLeader, domain: str) -> None:
    """Raises NotLeadingError unless this process leads the domain."""
    led = find(domain)
    if led is not None:
        raise NotLeadingError(led)


class Problem(NotLedHere, frozen=True, kw_only=True):
    """The HTTP response of a replica that does not lead the domain."""

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

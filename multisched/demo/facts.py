"""What the demo shows at one moment, as values, and the sentences that say it. Pure.

`read_facts` and `decisions` fill them in, `screen` draws them, and `-o json` prints what of them can be compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

BARS: Final = " ▁▂▃▄▅▆▇█"


class DomainProgress(msgspec.Struct, frozen=True):
    """One domain."""

    domain: str
    queued: int
    """Waiting in any state."""
    bound: int
    binds_per_s: float
    p50_ms: float
    p99_ms: float
    conflicts_true: int = 0
    conflicts_false: int = 0


class Gang(msgspec.Struct, frozen=True):
    """Members of the gang: those it needs, those that are there, and those that are bound."""

    name: str
    members: int
    there: int
    bound: int

    def words(self) -> str:
        if self.bound >= self.members:
            return f"{self.name}: all {self.members} members were bound at once, with the last one"
        if self.bound:
            return f"{self.name}: {self.bound} of {self.members} members bound"
        return f"{self.name}: {self.there} of {self.members} members are there; none starts before all can"


class Quota(msgspec.Struct, frozen=True):
    """Cores of the two teams: what each is sure of, what the tree has, and who holds how much."""

    borrower: str
    owner: str
    total_cpu: int
    min_cpu: int
    borrower_cpu: int
    owner_cpu: int
    evicted: int
    """Pods of the borrower that went for the owner."""

    def words(self) -> str:
        borrowed = max(0, self.borrower_cpu - self.min_cpu)
        if self.evicted:
            return (
                f"{self.owner} took back {self.owner_cpu} of its {self.min_cpu} CPUs:"
                f" {self.evicted} pods of {self.borrower} went"
            )
        if borrowed:
            return f"{self.borrower} holds {self.borrower_cpu} CPUs, {borrowed} of them borrowed from {self.owner}"
        return f"{self.borrower} holds {self.borrower_cpu} of the {self.min_cpu} CPUs it is sure of"


class Refused(msgspec.Struct, frozen=True):
    """A pod that fits nowhere, why, and the smallest change that would help; empty while it is being tried."""

    pod: str
    message: str
    fix: str = ""


class ServicePeak(msgspec.Struct, frozen=True):
    """One service: when one replica uses most, and the hours of that day."""

    service: str
    at: str
    cores: float
    day: tuple[float, ...]

    def bars(self) -> str:
        """A character per hour."""
        high = max(self.day, default=0.0)
        steps = len(BARS) - 1
        return "".join(BARS[round(steps * max(0.0, use) / high) if high > 0 else 0] for use in self.day)


class Forecast(msgspec.Struct, frozen=True):
    """Predicted peaks: of services, of the fullest node, and of the mean node as a share of its CPU."""

    services: tuple[ServicePeak, ...]
    node: str
    dimension: str
    at: str
    share: float
    mean_share: float
    mean_requested: float
    """Share of CPU that pods of the mean node request: all that a scheduler without a forecast sees."""

    def words(self) -> str:
        return (
            f"fullest: {self.node}, {self.dimension} {self.share:.0%} at {self.at}; mean {self.mean_share:.0%},"
            f" by requests {self.mean_requested:.0%}"
        )


class Decision(msgspec.Struct, frozen=True):
    """One pod that was bound: where, and why there."""

    pod: str
    node: str
    why: str


class Facts(msgspec.Struct, frozen=True):
    """Everything at one moment."""

    elapsed_s: float = 0.0
    nodes: int = 0
    domains: tuple[DomainProgress, ...] = ()
    gang: Gang | None = None
    quota: Quota | None = None
    refused: Refused | None = None
    forecast: Forecast | None = None
    decisions: tuple[Decision, ...] = ()
    """The latest first."""

    def sentences(self) -> Iterator[tuple[str, str]]:
        """Topic and sentence of all that is known."""
        if self.forecast is not None:
            yield "forecast", self.forecast.words()
        if self.gang is not None:
            yield "gang", self.gang.words()
        if self.quota is not None:
            yield "quota", self.quota.words()
        if self.refused is not None:
            yield "refused", f"{self.refused.pod}: {self.refused.message.partition('. ')[0]}"
            if self.refused.fix:
                yield "its fix", self.refused.fix

    def document(self) -> dict[str, Any]:
        """For programs: what does not depend on how fast the machine is."""
        found: dict[str, Any] = {}
        for name in ("gang", "quota", "refused"):
            part = getattr(self, name)
            if part is not None:
                found[name] = msgspec.to_builtins(part)
        if self.forecast is not None:
            services = {one.service: {"peak": round(one.cores, 2), "at": one.at} for one in self.forecast.services}
            one = self.forecast
            fullest = {"node": one.node, "dimension": one.dimension, "at": one.at, "share": round(one.share, 3)}
            found["forecast"] = {"services": services, "fullest": fullest}
        return found


def quantile(ordered: Sequence[float], share: float) -> float:
    """The nearest-rank quantile of ascending values; 0 for none."""
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1))]

"""The state of the demo at one moment, as values and as sentences. No I/O.

`fact_reader` and `decisions` create the values, `screen` draws them, and `-o json` prints those that are comparable between runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

BARS: Final = " ▁▂▃▄▅▆▇█"


class DomainProgress(msgspec.Struct, frozen=True):
    """Progress of one domain."""

    domain: str
    queued: int
    """Pending pods in all queue states."""
    bound: int
    binds_per_s: float
    p50_ms: float
    p99_ms: float
    conflicts_true: int = 0
    conflicts_false: int = 0


class Gang(msgspec.Struct, frozen=True):
    """Members of the gang: required, created (`there`) and bound."""

    name: str
    members: int
    there: int
    bound: int

    def words(self) -> str:
        if self.bound >= self.members:
            return f"{self.name}: all {self.members} members were bound together with the last one"
        if self.bound:
            return f"{self.name}: {self.bound} of {self.members} members bound"
        return f"{self.name}: {self.there} of {self.members} members exist; none starts until all can"


class Quota(msgspec.Struct, frozen=True):
    """Cores of the two teams: the guaranteed min of each, the total of the tree, and what each holds."""

    borrower: str
    owner: str
    total_cpu: int
    min_cpu: int
    borrower_cpu: int
    owner_cpu: int
    evicted: int
    """Pods of the borrower that were evicted for the owner."""

    def words(self) -> str:
        borrowed = max(0, self.borrower_cpu - self.min_cpu)
        if self.evicted:
            return (
                f"{self.owner} reclaimed {self.owner_cpu} of its {self.min_cpu} CPUs:"
                f" {self.evicted} pods of {self.borrower} were evicted"
            )
        if borrowed:
            return f"{self.borrower} holds {self.borrower_cpu} CPUs, {borrowed} of them borrowed from {self.owner}"
        return f"{self.borrower} holds {self.borrower_cpu} of the {self.min_cpu} CPUs guaranteed to it"


class Loan(msgspec.Struct, frozen=True):
    """Job pods that use free CPU of GPU nodes."""

    app: str
    pods: int
    cpu: int
    """Cores that they request together."""
    evicted: int
    """Pods that returned their CPU to the gpu domain."""

    def words(self) -> str:
        used = f"{self.pods} pods of {self.app} use {self.cpu} CPUs of GPU nodes"
        return f"{used}; {self.evicted} evicted for a pod of the gpu domain" if self.evicted else used


class Refused(msgspec.Struct, frozen=True):
    """A pod that fits on no node, the reason, and the smallest change that would help (empty until it is found)."""

    pod: str
    message: str
    fix: str = ""


class ServicePeak(msgspec.Struct, frozen=True):
    """Predicted peak of one service: its time, cores per replica, and the use in each hour of that day."""

    service: str
    at: str
    cores: float
    day: tuple[float, ...]

    def bars(self) -> str:
        """Returns one bar character per hour."""
        high = max(self.day, default=0.0)
        steps = len(BARS) - 1
        return "".join(BARS[round(steps * max(0.0, use) / high) if high > 0 else 0] for use in self.day)


class Forecast(msgspec.Struct, frozen=True):
    """Predicted peaks: per service, of the fullest node, and the mean of all nodes as a share of their CPU."""

    services: tuple[ServicePeak, ...]
    node: str
    dimension: str
    at: str
    share: float
    mean_share: float
    mean_requested: float
    """Mean over nodes: requested share of a node's CPU, the only load that a scheduler without a forecast knows."""

    def words(self) -> str:
        return (
            f"fullest: {self.node}, {self.dimension} {self.share:.0%} at {self.at}; mean {self.mean_share:.0%},"
            f" by requests {self.mean_requested:.0%}"
        )


class Decision(msgspec.Struct, frozen=True):
    """One bound pod, its node, and the reason."""

    pod: str
    node: str
    why: str


class Facts(msgspec.Struct, frozen=True):
    """All facts at one moment."""

    elapsed_s: float = 0.0
    nodes: int = 0
    domains: tuple[DomainProgress, ...] = ()
    gang: Gang | None = None
    quota: Quota | None = None
    loan: Loan | None = None
    refused: Refused | None = None
    forecast: Forecast | None = None
    decisions: tuple[Decision, ...] = ()
    """Latest first."""

    def sentences(self) -> Iterator[tuple[str, str]]:
        """Yields (topic, sentence) for all facts that are set."""
        if self.forecast is not None:
            yield "forecast", self.forecast.words()
        if self.gang is not None:
            yield "gang", self.gang.words()
        if self.quota is not None:
            yield "quota", self.quota.words()
        if self.loan is not None:
            yield "loan", self.loan.words()
        if self.refused is not None:
            yield "refused", f"{self.refused.pod}: {self.refused.message.partition('. ')[0]}"
            if self.refused.fix:
                yield "its fix", self.refused.fix

    def document(self) -> dict[str, Any]:
        """Returns, for `-o json`, the facts that do not depend on the machine's speed."""
        found: dict[str, Any] = {}
        for name in ("gang", "quota", "loan", "refused"):
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
    """Returns the nearest-rank quantile of ascending values; 0 if there are none."""
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1))]

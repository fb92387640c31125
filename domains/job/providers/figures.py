"""Reports of serverless units: the document `/api/v1/units/now`, and metrics. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from domains.job.providers.breaker import BreakerState
from domains.job.providers.sandbox_ledger import SandboxLedger, Unit
from domains.job.providers.settings import ALLOCATABLE, ELASTIC
from multisched.framework.introspection import PluginMetric
from multisched.framework.views import Document

REFUSED_SHOWN: Final = 20


def document_of(ledger: SandboxLedger) -> list[Document]:
    """Returns one mapping per unit."""
    return [_unit(unit, ledger) for unit in ledger.units]


def _unit(unit: Unit, ledger: SandboxLedger) -> Document:
    now_s, rate, quota = ledger.now_s, unit.rate, unit.settings.quota
    waiting = sum(one.unit is unit and one.is_bound and not one.is_started for one in ledger.sandboxes.values())
    return {
        "name": unit.name,
        "breaker": unit.breaker.state.value,
        "probeInSeconds": round(unit.breaker.ready_in_s(now_s), 3),
        "rate": {
            "perSecond": round(rate.per_second, 3),
            "configured": unit.settings.per_second,
            "tokens": rate.available(now_s),
            "burst": round(rate.burst, 1),
        },
        "window": {"size": unit.window.size(now_s), "unsettled": unit.window.unsettled},
        "capacity": ELASTIC if unit.settings.is_elastic else ALLOCATABLE,
        "used": {"pods": unit.used["pods"], "cpuMilli": unit.used["cpu"], "memoryBytes": unit.used["memory"]},
        "quota": {"pods": quota.pods, "cpuMilli": quota.cpu_milli, "memoryBytes": quota.memory_bytes},
        "starting": waiting,
        "started": unit.created,
        "failed": unit.failed,
        "throttled": rate.throttled,
        "evicted": unit.evicted,
        "waitFirst": None if unit.settings.max_wait_s is None else {"maxWaitSeconds": unit.settings.max_wait_s},
        "mayPay": len(unit.payers),
        "cost": {"spent": round(unit.spent.total(now_s), 6), "saved": round(unit.saved.total(now_s), 6)},
        "refusedImages": [
            {"namespace": namespace, "images": list(images), "forSeconds": round(until_s - now_s), "message": message}
            for (namespace, images), (until_s, message) in list(unit.refused.items())[:REFUSED_SHOWN]
        ],
    }


def metrics_of(ledger: SandboxLedger) -> Sequence[PluginMetric]:
    """Returns gauges and counters per unit; none without units."""
    units = ledger.units
    if not units:
        return ()
    states = list(BreakerState)

    def metric(name: str, text: str, values: list[float], *, is_counter: bool = False) -> PluginMetric:
        found: dict[tuple[str, ...], float] = {(unit.name,): value for unit, value in zip(units, values, strict=True)}
        return PluginMetric(name, text, found, ("unit",), is_counter=is_counter)

    return (
        metric(
            "serverless_rate",
            "Sandboxes per second that the unit may create now, as learned.",
            [u.rate.per_second for u in units],
        ),
        metric(
            "serverless_tokens",
            "Sandboxes that the unit may create at once.",
            [u.rate.available(ledger.now_s) for u in units],
        ),
        metric(
            "serverless_breaker_state",
            "0: closed, 1: open, 2: half-open.",
            [states.index(u.breaker.state) for u in units],
        ),
        metric("serverless_pods", "Pods that the unit runs or starts.", [u.used["pods"] for u in units]),
        metric("serverless_started", "Sandboxes that started.", [u.created for u in units], is_counter=True),
        metric(
            "serverless_failed",
            "Sandboxes that failed, throttled ones included.",
            [u.failed for u in units],
            is_counter=True,
        ),
        metric(
            "serverless_throttled",
            "Sandboxes that the provider throttled.",
            [u.rate.throttled for u in units],
            is_counter=True,
        ),
        metric(
            "serverless_evicted",
            "Pods evicted because no sandbox started.",
            [u.evicted for u in units],
            is_counter=True,
        ),
        metric(
            "serverless_payers",
            "Waiting pods that need not wait for other nodes any longer.",
            [len(u.payers) for u in units],
        ),
        metric(
            "serverless_cost_spent",
            "Price of the rounded size x running time of its pods.",
            [u.spent.total(ledger.now_s) for u in units],
            is_counter=True,
        ),
        metric(
            "serverless_cost_saved",
            "The same of pods that its price kept waiting, and that ran elsewhere.",
            [u.saved.total(ledger.now_s) for u in units],
            is_counter=True,
        ),
    )

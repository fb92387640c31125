"""The document `/api/v1/quotas/now`: what each level of the tree in force uses, borrows and lends.

Amounts are in the units of `model.quota_tree.quota_amount`, and as Kubernetes quantities in `shown`. Pending pods are
counted in slices, since 100,000 may be pending. Imported on the first request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

import msgspec

from multisched.framework.views import Document, NoViewError, ViewQuery, unknown_parameter
from multisched.model.objects import Pod
from multisched.model.quota_tree import shown_amount
from multisched.plugins.quota.level_use import LevelUse, PendingDemands, Use, uses_of
from multisched.plugins.quota.quota_ledger import QuotaLedger

DOCUMENT: Final = "now"
LEVELS_SHOWN: Final = 500
NAMESPACES_SHOWN: Final = 20
SLICE: Final = 250
"""Pending pods that are counted before other tasks have their turn: half a millisecond."""


async def document_of(
    ledger: QuotaLedger, trouble: str, pending: Callable[[], Iterable[Pod]], query: ViewQuery, domain: str
) -> Document:
    """Returns the document. `trouble`: which quotas have no effect, and why. Raises NoViewError."""
    if query.name != DOCUMENT:
        raise NoViewError(f"quotas has no document {query.name}; write {DOCUMENT}")
    if unknown := unknown_parameter(query.options, ["domain"]):
        raise NoViewError(unknown, status=400)
    demands, pods = PendingDemands(ledger), iter(list(pending()))
    while some := list(islice(pods, SLICE)):
        demands.add(some)
        await asyncio.sleep(0)
    in_force = ledger.in_force
    levels = [] if in_force is None else uses_of(in_force.tree, ledger, demands.requested())
    return {
        "domain": domain,
        "source": "" if in_force is None else f"{in_force.kind.definition.name} {in_force.name}".strip(),
        "levels": [_level(one) for one in levels[:LEVELS_SHOWN]],
        "levelsLeftOut": max(0, len(levels) - LEVELS_SHOWN),
        "trouble": trouble,
    }


def _level(level: LevelUse) -> Document:
    return {
        "path": level.path,
        "namespaces": list(level.namespaces[:NAMESPACES_SHOWN]),
        "namespacesLeftOut": max(0, len(level.namespaces) - NAMESPACES_SHOWN),
        "resources": {name: _use(name, use) for name, use in level.resources.items()},
    }


def _use(resource: str, use: Use) -> Document:
    amounts = msgspec.structs.asdict(use)
    amounts["fairShare"] = amounts.pop("fair_share")
    shown = {field: shown_amount(resource, amount) for field, amount in amounts.items() if amount is not None}
    return {**amounts, "shown": shown}

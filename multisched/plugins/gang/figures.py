"""The document `/api/v1/gangs/now`: gangs with their members, and what they wait for. Imported on the first request."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final

from multisched.framework.gangs import GangCounts, GangView
from multisched.framework.views import Document, NoViewError, ViewQuery, unknown_parameter

DOCUMENT: Final = "now"
GANGS_SHOWN: Final = 200
SLICE: Final = 32
"""Gangs that are read before other tasks have their turn."""


async def document_of(gangs: GangView, ours: Collection[str] | None, query: ViewQuery, domain: str) -> Document:
    """Returns the document: gangs that wait come first. `ours`: schedulerNames of this program. Raises NoViewError."""
    if query.name != DOCUMENT:
        raise NoViewError(f"gangs has no document {query.name}; write {DOCUMENT}")
    if unknown := unknown_parameter(query.options, ["domain"]):
        raise NoViewError(unknown, status=400)
    found: list[tuple[str, GangCounts]] = []
    for number, key in enumerate([gang.key for gang in gangs.gangs()]):
        counts = gangs.counts(key)
        if counts is not None and (ours is None or not counts.schedulers.isdisjoint(ours)):
            found.append((key, counts))
        if number % SLICE == SLICE - 1:
            await asyncio.sleep(0)
    found.sort(key=lambda one: (not _waits(one[1]), one[0]))
    return {
        "domain": domain,
        "gangs": [_gang(key, counts) for key, counts in found[:GANGS_SHOWN]],
        "gangsLeftOut": max(0, len(found) - GANGS_SHOWN),
        "waiting": sum(_waits(counts) for _, counts in found),
    }


def _waits(counts: GangCounts) -> bool:
    return bool(counts.waiting or counts.why or counts.problem)


def _gang(key: str, counts: GangCounts) -> Document:
    return {
        "gang": key,
        "minimum": counts.least,
        "present": counts.present,
        "bound": counts.bound,
        "running": counts.running,
        "finished": counts.finished,
        "hasStarted": counts.has_started,
        "isOverdue": counts.is_overdue,
        "why": counts.problem or counts.why or counts.refusal,
        "waiting": list(counts.waiting),
        "owners": list(counts.owners),
    }

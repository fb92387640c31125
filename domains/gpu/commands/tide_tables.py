"""The document of `multisched gpu tide` as tables. Pure."""

from __future__ import annotations

from typing import Any, Final

from multisched.model.visible_text import escaped
from multisched.observe.tables import as_table

USES: Final = (
    ("inference", "inference"),
    ("training", "training"),
    ("leaving", "leaving"),
    ("free", "free"),
    ("waitingInference", "waiting"),
)
"""Field of the document -> its heading."""
HOURS_STEP: Final = 3
BAR_CHARS: Final = 40

Document = dict[str, Any]


def tide(found: Document, *, is_wide: bool) -> str:
    """Renders cards by use, the next 24 hours, training that is held back, notices, and losses."""
    parts = [_now(found), _forecast(found)]
    training, losses = found["training"], found["losses"]
    if training["waiting"]:
        rows = [[one["gang"], one["cards"], one["why"] or "-"] for one in training["waiting"]]
        parts.append(as_table(["waiting training", "cards", "held back"], rows, is_wide=is_wide))
    if training["protected"]:
        rows = [[one["gang"], one["cards"], one["why"]] for one in training["protected"]]
        parts.append(as_table(["never evicted", "cards", "why"], rows, is_wide=is_wide))
    if found["notices"]:
        rows = [[one["gang"], one["cards"], one["deadline"], _state(one), one["for"]] for one in found["notices"]]
        parts.append(as_table(["under notice", "cards", "deadline", "state", "for"], rows, is_wide=is_wide))
    if losses["latest"]:
        rows = [[one["at"], one["gang"], one["cards"], one["lostCardHours"], one["for"]] for one in losses["latest"]]
        parts.append(as_table(["evicted", "gang", "cards", "lost card hours", "for"], rows, is_wide=is_wide))
    return "\n\n".join([*parts, _footer(found)])


def _now(found: Document) -> str:
    cards, headroom = found["cards"], found["headroom"]
    head = ["cards", *(heading for _, heading in USES), "headroom", "training limit"]
    row = [cards["total"], *(cards[field] for field, _ in USES), headroom["cards"], found["training"]["limitCards"]]
    parts = (
        f"headroom: {headroom['forecastRiseCards']} expected rise, {headroom['recentRiseCards']} recent rise,"
        f" {headroom['errorCards']} error"
    )
    return f"{as_table(head, [row])}\n{parts}"


def _forecast(found: Document) -> str:
    hours, total = found["forecast"]["hours"][::HOURS_STEP], max(found["cards"]["total"], 1)
    rows = [
        [one["at"], one["expectedCards"], one["upperCards"], _bar(one["expectedCards"], one["upperCards"], total)]
        for one in hours
    ]
    return as_table(["inference at", "expected", "at most", ""], rows, is_wide=True)


def _bar(expected: int, upper: int, total: int) -> str:
    filled = min(BAR_CHARS, expected * BAR_CHARS // total)
    reach = min(BAR_CHARS, upper * BAR_CHARS // total)
    return "█" * filled + "░" * max(0, reach - filled) + "·" * (BAR_CHARS - max(filled, reach))


def _state(one: Document) -> str:
    if one["isEvicting"]:
        return "being evicted"
    return "hook called" if one["isHookDone"] else "has a notice"


def _footer(found: Document) -> str:
    losses, forecast = found["losses"], found["forecast"]["origin"]
    ratio = losses["evictedOverNeeded"]
    evicted = (
        f"evicted since the start: {losses['gangs']} gangs, {losses['cards']} cards, {losses['lostCardHours']} card hours lost,"
        f" evicted / needed {'-' if ratio is None else ratio}"
    )
    lines = [
        evicted,
        f"minimum run time overridden {losses['overriddenMinRunTimes']}x, notices withdrawn {losses['noticesWithdrawn']}x",
        *(f"waiting inference pod {one['uid']}: {one['reason']}" for one in found["unmet"]),
        *found["notes"],
        f"domain {found['domain']}; forecast: {forecast}{'; frozen' if found['isFrozen'] else ''}; it is {found['now']}",
    ]
    return "\n".join(map(escaped, lines))

"""`multisched quota tree`: each level of the quotas in force, with a bar per resource, in 80 columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from multisched.model.quota_tree import shown_amount
from multisched.model.visible_text import escaped
from multisched.observe.tables import as_document
from multisched.plugins.quota.level_use import LevelUse, Use
from multisched.whatif.quota_use import QuotaUse

COLUMNS: Final = 80
BAR: Final = 20
"""Characters of a bar without its brackets."""
RESOURCE: Final = 16
"""Characters of a resource's name."""
NUMBERS: Final = (("used", 7), ("min", 7), ("max", 7), ("borrowed", 9), ("lent", 7))
MORE_NUMBERS: Final = (("requested", 10), ("fair share", 11))
LEGEND: Final = "# used of its min   + borrowed   - lent   . idle   blank up to its max"
NONE: Final = "-"


def as_text(found: QuotaUse, output: str) -> str:
    """Returns `json`, `yaml`, or bars; `wide`: nothing is cut, and the requested amount and the fair share are added."""
    if output in ("json", "yaml"):
        return as_document(found.document(), output)
    return "\n".join(_lines(found, is_wide=output == "wide"))


def _lines(found: QuotaUse, *, is_wide: bool) -> Iterator[str]:
    if found.source:
        yield _cut(f"{'Not enforced' if found.not_enforced else 'In force'}: {found.source}", is_wide=is_wide)
        if found.not_enforced:
            yield f"Note: {escaped(found.not_enforced)}"
        yield _head(is_wide=is_wide)
        for level in found.levels:
            yield from _level(level, is_wide=is_wide)
        yield LEGEND
    else:
        yield "No quota is in force"
    for key, why in found.trouble.items():
        yield f"No effect: {escaped(key)}: {escaped(why)}"
    for note in found.notes:
        yield f"Note: {escaped(note)}"


def _head(*, is_wide: bool) -> str:
    numbers = "".join(name.upper().rjust(width) for name, width in _columns(is_wide=is_wide))
    return f"  {'RESOURCE'.ljust(RESOURCE)}{'0'.ljust(BAR - 1)}MAX{numbers}"


def _columns(*, is_wide: bool) -> tuple[tuple[str, int], ...]:
    return (*NUMBERS, *MORE_NUMBERS) if is_wide else NUMBERS


def _level(level: LevelUse, *, is_wide: bool) -> Iterator[str]:
    namespaces = f"  {', '.join(level.namespaces)}" if level.namespaces else ""
    yield _cut(escaped(f"{level.path}{namespaces}"), is_wide=is_wide)
    for resource, use in level.resources.items():
        name = escaped(resource)
        if len(name) >= RESOURCE and not is_wide:
            name = f"{name[: RESOURCE - 2]}…"
        amounts = (use.used, use.min, use.max, use.borrowed or None, use.lent or None, use.requested, use.fair_share)
        numbers = "".join(
            (" " + (NONE if amount is None else shown_amount(resource, amount))).rjust(width)
            for amount, (_, width) in zip(amounts, _columns(is_wide=is_wide), strict=False)
        )
        yield f"  {name.ljust(RESOURCE)}[{bar(use)}]{numbers}"


def bar(use: Use, width: int = BAR) -> str:
    """Returns `width` characters for the level's max, or else for the larger of its min and its use."""
    whole = max(use.max if use.max is not None else 0, use.min, use.used)
    ends = (use.used - use.borrowed, use.used, max(use.used, use.min - _idle(use)), max(use.used, use.min))
    text = ""
    for sign, end in zip("#+-.", ends, strict=True):
        text += sign * (_at(end, whole, width) - len(text))
    return text.ljust(width)


def _idle(use: Use) -> int:
    """Returns the part of its min that is neither used nor lent."""
    return max(0, use.min - use.used - use.lent)


def _at(amount: int, whole: int, width: int) -> int:
    """Returns the number of characters for an amount: at least one if it is positive, and all only for the whole."""
    if amount <= 0:
        return 0
    return width if amount >= whole else min(max(1, amount * width // whole), width - 1)


def _cut(text: str, *, is_wide: bool) -> str:
    return text if is_wide or len(text) <= COLUMNS else f"{text[: COLUMNS - 1]}…"

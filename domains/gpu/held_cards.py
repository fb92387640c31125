"""Which cards of a node pods hold, what is left of them, and what they hold beyond what the node publishes. For views and events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from domains.gpu.card_row import CardRow
from domains.gpu.cards import CARD_MILLI
from domains.gpu.hold import CardName, Hold

NAMED_MAX: Final = 8
"""Cards named in one problem."""


def places_of(row: CardRow, hold: Hold) -> list[int]:
    """Returns the places of the hold's cards in `row.node.cards`; empty if they are unknown, missing, or of another mode."""
    if row.node.mode not in hold.modes:
        return []
    known = _places(row)
    places = [known.get(share.card, -1) for share in hold.shares]
    return places if places and min(places) >= 0 else []


def _places(row: CardRow) -> dict[CardName, int]:
    """Returns index or id of each card -> its place."""
    cards = row.node.cards
    return {card.id: at for at, card in enumerate(cards) if card.id} | {card.index: at for at, card in enumerate(cards)}


def excess_of(row: CardRow) -> str:
    """Returns which cards have less than pods hold of them, or are missing; empty if there are none."""
    holds = [hold for hold in row.holds.values() if row.node.mode in hold.modes]
    if not holds:
        return ""
    known = _places(row)
    missing = sorted({str(one.card) for hold in holds for one in hold.shares if one.card not in known})
    if missing:
        names = sorted(missing, key=lambda one: (len(one), one))[:NAMED_MAX]
        return f"card {', '.join(names)} is held by pods and not published"
    over = _exceeded(row, holds)
    if over:
        return f"pods hold more of card {', '.join(map(str, over[:NAMED_MAX]))} than it has"
    whole = sum(hold.count for hold in holds if hold.is_whole)
    cards = len(row.node.cards)
    return f"pods hold {whole} cards, and {cards} are published" if whole > cards else ""


def _exceeded(row: CardRow, holds: Iterable[Hold]) -> list[int]:
    """Returns the indices of the cards of which pods hold more than they have."""
    used = [(0, 0, 0)] * len(row.node.cards)
    for hold in holds:
        for place, share in zip(places_of(row, hold), hold.shares, strict=False):
            use = row.node.cards[place].whole if hold.is_whole else share.amount.of(row.node.cards[place])
            used[place] = (used[place][0] + use.memory, used[place][1] + use.cores, used[place][2] + use.sharers)
    return [
        card.index
        for card, (memory, cores, sharers) in zip(row.node.cards, used, strict=True)
        if memory > card.size or cores > card.cores or sharers > card.sharers_max
    ]


def smallest_usual_milli(rows: Iterable[CardRow]) -> int:
    """Returns the smallest part of a card that a placed pod holds, in thousandths; a whole card if no pod holds less."""
    found = CARD_MILLI
    for row in rows:
        for hold in row.holds.values():
            for place, share in zip(places_of(row, hold), hold.shares, strict=False):
                card = row.node.cards[place]
                held = CARD_MILLI if hold.is_whole else CARD_MILLI * share.amount.of(card).memory // card.size
                found = min(found, max(held, 1))
    return found


def fragment_milli(row: CardRow, place: int, smallest_milli: int) -> int:
    """Returns the fragment of a card, in thousandths of it: what is free, if a request for `smallest_milli` cannot use it."""
    milli = row.free_milli[place]
    return 0 if milli >= smallest_milli and row.free[place].sharers > 0 else milli

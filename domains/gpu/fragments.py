"""Fragments: what is left of a card that the smallest usual request cannot use."""

from __future__ import annotations

from collections.abc import Iterable

from domains.gpu.card_row import CardRow
from domains.gpu.cards import CARD_MILLI


def smallest_usual_milli(rows: Iterable[CardRow]) -> int:
    """Returns the smallest part of a card that a placed pod holds, in thousandths; a whole card if no pod holds less."""
    found = CARD_MILLI
    for row in rows:
        for hold in row.holds.values():
            places = row.places(hold)
            for place, share in zip(places, hold.shares, strict=True) if places else ():
                card = row.node.cards[place]
                held = CARD_MILLI * (card.size if hold.is_whole else share.amount.of(card).memory) // card.size
                found = min(found, max(held, 1))
    return found


def fragment_milli(row: CardRow, place: int, smallest_milli: int) -> int:
    """Returns the thousandths of the card's memory that are free, and that a request for `smallest_milli` cannot use."""
    free = row.free[place]
    milli = row.free_milli[place]
    is_usable = milli >= smallest_milli and free.sharers > 0
    return 0 if is_usable else milli

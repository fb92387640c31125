"""Hold: the amounts that a placed pod holds of a node's cards. Each dialect reads it from the annotations that a binding carries."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from domains.gpu.cards import WHOLE_CARD, Amount, Mode

CardName = int | str
"""A card's index, or its id."""


CONFIRMED: Final = frozenset[str]()
"""`Hold.awaits` of a hold that awaits no device plugin."""


class Share(msgspec.Struct, frozen=True):
    """The amount that a pod holds of one card."""

    card: CardName
    amount: Amount


class Hold(msgspec.Struct, frozen=True):
    """The amounts that one pod holds. If `shares` is empty, its cards are unknown; see `CardRow`."""

    dialect: str
    count: int
    amount: Amount
    """Counts on every card if the cards are unknown."""
    shares: tuple[Share, ...] = ()
    is_whole: bool = False
    quota_milli: int = 0
    """The same as `GpuDemand.quota_milli`."""
    awaits: frozenset[str] = CONFIRMED
    """`GpuDemand.confusions`, until the device plugin has allocated the cards of the bound pod; empty: confirmed."""
    modes: frozenset[Mode] = frozenset()
    """The modes of nodes on which the amounts count. On a node of another mode the hold counts as `count` unknown whole cards."""

    @property
    def devices(self) -> tuple[CardName, ...]:
        """The held cards."""
        return tuple(share.card for share in self.shares)


WHOLE_MODES: Final = frozenset({Mode.WHOLE})


def whole_hold(dialect: str, count: int, cards: tuple[CardName, ...]) -> Hold:
    """Returns a hold of `count` whole cards, which are known only if there are as many names."""
    shares = tuple(Share(card, WHOLE_CARD) for card in cards) if len(cards) == count else ()
    return Hold(dialect, count, WHOLE_CARD, shares, is_whole=True, modes=WHOLE_MODES)


def even_shares(cards: Iterable[CardName], amount: Amount) -> tuple[Share, ...]:
    """Returns the same amount of each card."""
    return tuple(Share(card, amount) for card in cards)

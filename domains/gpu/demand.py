"""GpuDemand: the requests of a pod for a node's cards, in one dialect; and parsing of amounts that all dialects share.

Pure values. An invalid demand is a value with a `problem`, with which pending pods are refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Final

import msgspec

from domains.gpu.cards import CARDS_MAX, WHOLE_CARD, Amount, Card

TEXT_SHOWN: Final = 32


class CardFilter(msgspec.Struct, frozen=True):
    """Which cards a pod accepts. Empty tuples: all."""

    models: tuple[str, ...] = ()
    """One of these is the card's model."""
    models_with: tuple[str, ...] = ()
    """One of these lower-case texts is part of the card's model, in any case."""
    models_without: tuple[str, ...] = ()
    """None of these lower-case texts is part of the card's model, in any case."""
    ids: tuple[str, ...] = ()
    ids_without: tuple[str, ...] = ()

    @property
    def names_ids(self) -> bool:
        """Reports whether ids decide, too."""
        return bool(self.ids or self.ids_without)

    def accepts(self, card: Card) -> bool:
        return (
            self.accepts_model(card.model) and (not self.ids or card.id in self.ids) and card.id not in self.ids_without
        )

    def accepts_model(self, model: str) -> bool:
        if self.models and model not in self.models:
            return False
        lower = model.lower()
        if self.models_with and not any(part in lower for part in self.models_with):
            return False
        return not any(part in lower for part in self.models_without)


ANY_CARD: Final = CardFilter()
"""A demand that accepts all cards has this object, which costs nothing for each card."""


def card_filter(
    models: tuple[str, ...] = (),
    models_with: tuple[str, ...] = (),
    models_without: tuple[str, ...] = (),
    ids: tuple[str, ...] = (),
    ids_without: tuple[str, ...] = (),
) -> CardFilter:
    """Returns the filter; ANY_CARD if it accepts all cards."""
    if models or models_with or models_without or ids or ids_without:
        return CardFilter(models, models_with, models_without, ids, ids_without)
    return ANY_CARD


class Part(msgspec.Struct, frozen=True, dict=True):
    """The request of one container: an amount of each of `count` distinct cards."""

    count: int
    amount: Amount
    container: int = 0
    """Position of the container among those of its kind."""
    is_init: bool = False
    """An init container: it uses its cards before the other containers do."""
    needs_unused: bool = False
    """Only cards that no pod uses."""
    needs_cores: bool = False
    """Only cards with some cores left, although it requests none."""

    @cached_property
    def counts_milli_only(self) -> bool:
        """Whether any card that the demand accepts has room for the part, as the pod's first, where so many thousandths fit
        (`Amount.of`). Whether a card must be unused, too, is not considered.
        """
        amount = self.amount
        return amount.milli > 0 and amount.sharers <= 1 and not amount.cores and not self.needs_cores


class GpuDemand(msgspec.Struct, frozen=True):
    """A pod's demand in one dialect."""

    dialect: str
    parts: tuple[Part, ...]
    resource: str
    """The name in refusals: `Insufficient <resource>`."""
    is_whole: bool = False
    """Whole cards, which the kubelet allocates exclusively."""
    is_counted: bool = False
    """A number of units without known cards (MIG, time-slicing): only NodeResourcesFit counts them."""
    amount_key: str = ""
    """The annotation or resource that gives the amount of each card; empty: none."""
    count_key: str = ""
    """The annotation or resource that gives the number of cards; empty: none."""
    filter: CardFilter = ANY_CARD
    one_numa: bool = False
    """All cards of one NUMA node."""
    one_link: bool = False
    """All cards of one link group."""
    prefers: str = ""
    """The author's choice of cards: `spread`, `binpack` or empty."""
    is_specific: bool = True
    """Written in names that only this dialect has. False: other dialects may read the same request (`nvidia.com/gpu` alone)."""
    quota_milli: int = 0
    """Thousandths of nvidia.com/gpu that the demand counts as in quotas, in addition to the pod's resource requests."""
    confusions: frozenset[str] = frozenset()
    """While a bound pod with one of these waits for its device plugin on a node, the plugin could confuse the two pods."""
    problem: str = ""
    """The problem with the pod's spec or annotations, and the fix; empty for a valid demand."""

    @property
    def count(self) -> int:
        """Number of cards of all parts together."""
        return sum(part.count for part in self.parts)

    @property
    def amount(self) -> Amount:
        """The amount of the first part."""
        return self.parts[0].amount


def whole_cards(dialect: str, resource: str, count: int, problem: str = "") -> GpuDemand:
    """Returns a demand for whole cards."""
    part = Part(min(count, CARDS_MAX + 1), WHOLE_CARD, needs_unused=True)
    is_specific = bool(problem)
    return GpuDemand(
        dialect, (part,), resource, is_whole=True, count_key=resource, is_specific=is_specific, problem=problem
    )


def invalid(dialect: str, problem: str) -> GpuDemand:
    """Returns a demand that no node can meet."""
    return GpuDemand(dialect, (Part(1, WHOLE_CARD),), dialect, problem=problem)


def integer_within(text: str | None, largest: int, least: int = 1) -> int | None:
    """Returns the integer in the text if it is within least..largest, otherwise None."""
    if text is None or len(text) > len(str(largest)) or not (text.isascii() and text.isdigit()):
        return None
    return int(text) if least <= int(text) <= largest else None


def indices_in(text: str, separator: str = ",") -> tuple[int, ...]:
    """Returns the distinct card indices in the text, ascending; empty if the text is invalid."""
    if len(text) > 8 * CARDS_MAX:
        return ()
    found = [_index(part.strip()) for part in text.split(separator)]
    cards = {index for index in found if index is not None}
    return tuple(sorted(cards)) if len(cards) == len(found) and None not in found else ()


def _index(text: str) -> int | None:
    """Returns the index in the text, which may have leading zeros; None if it is invalid."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 4 and int(text) < CARDS_MAX else None


def indices_text(cards: Iterable[int], separator: str = ",") -> str:
    """Returns the annotation's value, for example `0,1`."""
    return separator.join(map(str, cards))


def shown(text: str) -> str:
    """Returns the text quoted, at most `TEXT_SHOWN` characters of it."""
    return repr(text[:TEXT_SHOWN])

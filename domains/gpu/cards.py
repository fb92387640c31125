"""The cards of a node, and amounts of them: the values that dialects read and that the ledger counts.

All amounts are integers. A card's memory is counted in `1 / scale` of the unit in which its mode requests memory, so that thousandths
and percentages of a card are exact, too: a card of 80 GiB in mode `whole` has `memory` 81920 (MiB) and `size` 81920000, of which
250 thousandths are 20480000 and 100 MiB are 100000.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

CARD_MILLI: Final = 1000
"""Thousandths of a whole card."""
CARD_PERCENT: Final = 100
CARDS_MAX: Final = 256
"""Maximum number of cards per node; further cards are not used."""
SHARERS_MAX: Final = 1 << 15
"""Sharers of a card whose mode sets no limit."""
MEMORY_MAX: Final = 1 << 44
"""Largest accepted memory of a card, in any unit: its product with every `scale` is within int64."""


class Mode(StrEnum):
    """The sharing system of a node, which decides how its device plugin reads pods. A node has exactly one."""

    __hash__ = str.__hash__
    """Enum's own is a Python function, and modes are looked up several times a decision."""

    DRA = "dra"
    KOORDINATOR = "koordinator"
    HAMI = "hami"
    VOLCANO = "volcano-vgpu"
    GPUSHARE = "gpushare"
    MIG = "mig"
    SHARED = "shared"
    """Time-slicing or MPS of the vendor's device plugin."""
    WHOLE = "whole"
    NONE = ""
    """A node without GPUs."""


WHOLE: Final = Mode.WHOLE
"""A constant, because in Python 3.11 looking up an enum member takes as long as three calls."""


class Use(NamedTuple):
    """An amount of one card: memory in units of `Card.size`, cores in percent, and the number of sharers."""

    memory: int
    cores: int
    sharers: int


class Card(msgspec.Struct, frozen=True):
    """One card of a node."""

    index: int
    memory: int
    """In the unit of the mode: MiB, bytes (Koordinator), or what the plugin counts (gpushare)."""
    scale: int = 1
    cores: int = CARD_PERCENT
    """Percent; more than 100 if the node's plugin oversubscribes."""
    sharers_max: int = SHARERS_MAX
    id: str = ""
    """The id that the driver publishes (UUID); empty if none is published."""
    model: str = ""
    numa: int = -1
    """NUMA node; -1 if unknown."""
    link: str = ""
    """Cards with the same non-empty value have a fast link (NVLink)."""
    is_healthy: bool = True

    @property
    def size(self) -> int:
        """The card's memory in the units of `Use.memory`."""
        return self.memory * self.scale

    @property
    def whole(self) -> Use:
        """All of the card, which a whole-GPU pod holds."""
        return Use(self.size, self.cores, self.sharers_max)

    @property
    def total(self) -> Use:
        """The amount of the card that pods can hold; nothing if it is unhealthy."""
        return self.whole if self.is_healthy else NOTHING


NOTHING: Final = Use(0, 0, 0)


class NodeCards(msgspec.Struct, frozen=True):
    """The GPUs of a node, read from the node and from objects about it."""

    mode: Mode = Mode.NONE
    cards: tuple[Card, ...] = ()
    """The cards by ascending index; empty in modes in which only the kubelet knows the cards (MIG, shared)."""
    is_indexed: bool = False
    """The scheduler's choice of cards is allocated. If not, the kubelet chooses the cards of whole pods, and the choice is only
    bookkeeping.
    """
    problems: tuple[str, ...] = ()
    """Field and problem of each part of the node's data that is not used, for events and `gpu nodes`."""


NO_CARDS: Final = NodeCards()


class Amount(msgspec.Struct, frozen=True):
    """The amount that a pod requests or holds of each of its cards. At most one of `milli`, `memory` and `percent` is not 0."""

    milli: int = 0
    """Thousandths of the card."""
    memory: int = 0
    """Memory in the unit of `Card.memory`."""
    percent: int = 0
    """Percent of the card's memory; in modes with `scale` 1 rounded down, as HAMi does."""
    cores: int = 0
    """Percent of one card's cores."""
    sharers: int = 1

    def of(self, card: Card) -> Use:
        """Returns the amount on this card."""
        if self.milli:
            memory = self.milli * card.memory * card.scale // CARD_MILLI
        elif self.percent:
            memory = self.percent * card.memory * card.scale // CARD_PERCENT
        else:
            memory = self.memory * card.scale
        return Use(memory, self.cores, self.sharers)


WHOLE_CARD: Final = Amount(milli=CARD_MILLI)

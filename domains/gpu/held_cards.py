"""Which cards of a node pods hold, what is left of them, and what they hold beyond what the node publishes. For views and events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from domains.gpu.card_row import CardRow
from domains.gpu.cards import Mode
from domains.gpu.dialects.whole import WHOLE_GPUS, is_counted_unit
from domains.gpu.fragments import Fragments
from domains.gpu.hold import CardName, Hold
from domains.gpu.typical_pods import Typical
from multisched.model.objects import Node

NAMED_MAX: Final = 8
"""Cards named in one problem."""


def places_of(row: CardRow, hold: Hold) -> list[int]:
    """Returns the places of the hold's cards in `row.node.cards`; empty if they are unknown, missing, or of another mode."""
    if row.node.mode not in hold.modes:
        return []
    known = _places(row)
    places = [known.get(share.card, -1) for share in hold.shares]
    return places if places and min(places) >= 0 else []


def unit_names(mode: Mode, node: Node) -> list[str]:
    """Returns the resources of the units of a node whose cards the kubelet alone knows; none in other modes."""
    if mode not in (Mode.MIG, Mode.SHARED):
        return []
    return sorted(name for name in node.allocatable if name in WHOLE_GPUS or is_counted_unit(name))


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


def fragments_of(rows: Sequence[CardRow], idle_milli: Sequence[int], typical: Typical) -> list[list[int]]:
    """Returns the fragment of each card of each node, in thousandths of the card, rounded. `idle_milli`: idle CPU of the nodes."""
    if not rows:
        return []
    model_of = [row.node.cards[0].model if row.node.cards else "" for row in rows]
    models = sorted(set(model_of))
    left = np.zeros((max(len(row.node.cards) for row in rows), len(rows)), np.int64)
    for at, row in enumerate(rows):
        left[: len(row.node.cards), at] = row.free_milli
    numbers = np.array([models.index(model) for model in model_of], np.int64)
    found = Fragments(typical, models).by_card(left, np.array(idle_milli, np.int64), numbers)
    return [found[: len(row.node.cards), at].round().astype(np.int64).tolist() for at, row in enumerate(rows)]

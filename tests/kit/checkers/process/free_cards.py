"""Compares the free amounts of each GPU in the ledger with plain arithmetic over the holds of pods (I1).

Only nodes are compared that count thousandths of numbered whole cards. A pod some of whose cards are missing counts like a pod with
unknown cards: a fraction then counts on each card.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from domains.gpu.cards import CARD_MILLI, Mode
from domains.gpu.gpu_ledger import GpuLedger
from domains.gpu.hold import CardName, Hold, Share


def fault_of_cards(ledger: GpuLedger) -> str:
    """Returns the first node whose free amounts in the ledger differ from what its pods leave; empty for none."""
    for _, name, cards in ledger.rows_with_cards():
        if (
            cards.node.mode is not Mode.WHOLE
            or cards.node.problems
            or not all(card.is_healthy for card in cards.node.cards)
        ):
            continue
        numbers = [card.index for card in cards.node.cards]
        remaining = _left_of(numbers, cards.holds)
        if remaining is not None and list(remaining.values()) != cards.free_milli:
            return (
                f"I1: {name} shows {cards.free_milli} free of its GPUs, and its pods leave {list(remaining.values())}"
            )
    return ""


def _left_of(numbers: Sequence[int], holds: Mapping[str, Hold]) -> dict[CardName, int] | None:
    """Returns card number -> free thousandths; None if a pod holds unknown whole cards."""
    remaining: dict[CardName, int] = dict.fromkeys(numbers, CARD_MILLI)
    for hold in holds.values():
        if Mode.WHOLE not in hold.modes or not all(isinstance(share.card, int) for share in hold.shares):
            return None
        if any(amount.memory or amount.percent for amount in (hold.amount, *(share.amount for share in hold.shares))):
            return None  # `card_rules.py` checks amounts of memory
        are_known = bool(hold.shares) and all(share.card in remaining for share in hold.shares)
        if hold.is_whole and not (are_known and all(remaining[share.card] == CARD_MILLI for share in hold.shares)):
            return None
        shares = hold.shares if are_known else [Share(number, hold.amount) for number in numbers]
        for share in shares:
            remaining[share.card] -= CARD_MILLI if hold.is_whole else share.amount.milli
    return {number: max(milli, 0) for number, milli in remaining.items()}

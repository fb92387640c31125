"""Why a pod has its cards: what is free of them, and which fragments there are, without the pod and with it. For `explain`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from domains.gpu.card_row import CardRow
from domains.gpu.cards import Mode
from domains.gpu.gpu_ledger import GpuLedger
from domains.gpu.held_cards import fragment_milli, places_of, smallest_usual_milli
from domains.gpu.hold import Hold
from multisched.model.objects import Pod

CARDS_SHOWN: Final = 4


def described(ledger: GpuLedger, pod: Pod, row: int) -> str:
    """Returns the pod's cards on the row, held or to be chosen now; why it gets none; empty for a pod or a node without GPUs."""
    cards, demands = ledger.cards(row), ledger.demands(pod)
    held = ledger.hold(pod.uid, row)
    if held is None and (not demands or demands.problem or cards.node.mode is Mode.NONE):
        return ""
    demand, modes = demands.on(cards.node.mode) if demands else (None, frozenset())
    if held is not None:
        before, after, hold = cards.copy(), cards, held
        before.give(pod.uid)
    elif demand is None or demand.is_counted:
        return ""
    elif refusal := cards.refusal(demand, modes):
        return f"it would get no card: {refusal}"
    else:
        found = ledger.expected_hold(pod, demand, cards)
        assert found is not None, "a demand that fits holds cards"
        before, after, hold = cards, cards.copy(), found
        after.hold(pod.uid, hold)
    smallest = smallest_usual_milli(one for _, _, one in ledger.rows_with_cards())
    verb = "holds" if held is not None else "would get"
    return _sentence(verb, before, after, hold, smallest)


def _sentence(verb: str, before: CardRow, after: CardRow, hold: Hold, smallest: int) -> str:
    places = places_of(after, hold)
    if not places:
        return f"it {verb} {hold.count} cards, and their indices are unknown"
    shown = places[:CARDS_SHOWN]
    changes = [
        f"card {after.node.cards[place].index}: free {before.free_milli[place]} milli without it, {after.free_milli[place]} with it"
        for place in shown
    ]
    if len(places) > len(shown):
        changes.append(f"and {len(places) - len(shown)} more cards")
    fragments = (
        f"fragments of the node: {_fragments(before, smallest)} milli without it, {_fragments(after, smallest)} with it"
    )
    others = _others(before, after, places)
    return f"it {verb} {'; '.join(changes)}; {fragments} (free parts below {smallest} milli){others}"


def _fragments(cards: CardRow, smallest: int) -> int:
    return sum(fragment_milli(cards, place, smallest) for place in range(len(cards.node.cards)))


def _others(before: CardRow, after: CardRow, places: Sequence[int]) -> str:
    """Returns which other cards had room for as much as the pod takes of its first card, the least free ones first."""
    first = places[0]
    needed = before.free_milli[first] - after.free_milli[first]
    free = before.free_milli
    found = sorted(
        (free[place], place) for place in range(len(free)) if place not in places and free[place] >= needed > 0
    )
    if not found:
        return "; no other card of the node has room for it"
    names = [f"{before.node.cards[place].index} ({milli} milli)" for milli, place in found[:CARDS_SHOWN]]
    more = f" and {len(found) - CARDS_SHOWN} more" if len(found) > CARDS_SHOWN else ""
    return f"; free of the other cards with room for it: {', '.join(names)}{more}"

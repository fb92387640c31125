"""Why a pod has its cards: what is free of them, and which fragments there are, without the pod and with it. For `explain`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from domains.gpu.card_row import CardOrder, CardRow
from domains.gpu.cards import Mode
from domains.gpu.demand import GpuDemand
from domains.gpu.gpu_ledger import GpuLedger
from domains.gpu.held_cards import fragments_of, places_of
from domains.gpu.hold import Hold
from domains.gpu.typical_pods import Typical
from multisched.model.objects import CPU, Pod

CARDS_SHOWN: Final = 4


def described(
    ledger: GpuLedger,
    pod: Pod,
    row: int,
    order: Callable[[GpuDemand], CardOrder],
    typical: Typical,
    idle_milli: int,
) -> str:
    """Returns the pod's cards on the row, held or to be chosen now; why it gets none; empty for a pod or a node without GPUs.

    `order`: in which the policy takes the cards. `typical`: the policy's typical pods. `idle_milli`: idle CPU of the node now.
    """
    cards, demands = ledger.cards(row), ledger.demands(pod)
    held = ledger.hold(pod.uid, row)
    if held is None and (not demands or demands.problem or cards.node.mode is Mode.NONE):
        return ""
    demand, modes = demands.on(cards.node.mode) if demands else (None, frozenset())
    if held is not None:
        before, after, hold = cards.copy(), cards, held
        before.release(pod.uid)
        idle = idle_milli + pod.requests.get(CPU, 0), idle_milli
    elif demand is None or demand.is_counted:
        return ""
    elif refusal := cards.refusal(demand, modes):
        return f"it would get no card: {refusal}"
    else:
        found = ledger.expected_hold(pod, demand, cards, order(demand))
        assert found is not None, "a demand that fits holds cards"
        before, after, hold = cards, cards.copy(), found
        after.hold(pod.uid, hold)
        idle = idle_milli, max(0, idle_milli - pod.requests.get(CPU, 0))
    verb = "holds" if held is not None else "would get"
    without, with_it = (sum(cards) for cards in fragments_of((before, after), idle, typical))
    fragments = f"fragments of the node (what typical pods cannot use): {without} milli without it, {with_it} with it"
    return _sentence(verb, before, after, hold, fragments)


def _sentence(verb: str, before: CardRow, after: CardRow, hold: Hold, fragments: str) -> str:
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
    others = _others(before, after, places)
    return f"it {verb} {'; '.join(changes)}; {fragments}{others}"


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

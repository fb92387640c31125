"""The order in which the tide evicts gangs, and the choice of the fewest that free what inference needs. Pure.

Work lost is the time since a gang's last checkpoint, times its cards. A gang that published no checkpoint counts as
checkpointed at max(its start, the median start of all running gangs); source: kubernetes-sigs/kueue issue 477. Whole minutes
count, so that a checkpoint that is renewed every second gives the same position as one that is renewed every minute.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Final

import msgspec

from domains.gpu.tide.state import NodeCards, TrainingGang, WaitingInference

WORK_STEP_S: Final = 60.0
RESTART_S: Final = 120.0
"""Cost of each eviction in addition to the lost work: the time that the gang needs to start again."""
CHOSEN_MAX: Final = 64
"""After this many gangs, the choice is left to the next plan: each costs a look at all candidates."""
RETRIES_SPARED: Final = 1
"""A gang with at most this many retries left is taken after all others."""

Shape = tuple[int, tuple[str, ...]]
"""Cards and accepted models of a waiting inference pod."""


class Need(msgspec.Struct, frozen=True):
    """The unmet need of inference: pods for which no node has room, and cards of the headroom."""

    pods: Mapping[Shape, int]
    """Shape -> number of waiting pods without room."""
    spare_cards: int
    trend_cards: int = 0
    """Those of `spare_cards` that must be of the models that the trend needs."""

    @property
    def cards(self) -> int:
        return self.spare_cards + sum(shape[0] * count for shape, count in self.pods.items())

    def __bool__(self) -> bool:
        return self.cards > 0


class CardRoom:
    """The cards of each node that inference can have. Mutable, and owned by one plan."""

    def __init__(
        self, nodes: Iterable[NodeCards], pod_cards: int, trend_cards: int = 0, trend_models: tuple[str, ...] = ()
    ) -> None:
        """`pod_cards`: spare cards of a node count in multiples of it. `trend_cards`: cards of the headroom that must be of
        `trend_models`; empty: of any."""
        self._models = {node.name: node.model for node in nodes}
        self._trend_cards, self._trend_models = trend_cards, trend_models
        self._room = {node.name: node.free + node.leaving for node in nodes}
        self.pod_cards = max(1, pod_cards)

    def add(self, gang: TrainingGang) -> None:
        """Adds the cards of a gang, as if it had ended."""
        for member in gang.members:
            if member.node in self._room:
                self._room[member.node] += member.cards

    def copy(self) -> CardRoom:
        copied = CardRoom((), self.pod_cards, self._trend_cards, self._trend_models)
        copied._models, copied._room = self._models, dict(self._room)
        return copied

    def place(self, shape: Shape, count: int) -> int:
        """Takes the room of this many pods, each on the fullest node that has enough; returns for how many no node has."""
        cards, models = shape
        fitting = sorted(
            (room, name)
            for name, room in self._room.items()
            if room >= cards and (not models or self._models[name] in models)
        )
        for room, name in fitting:  # the fullest node stays the fullest until it has no room for another pod
            taken = min(count, room // cards)
            self._room[name] -= taken * cards
            count -= taken
            if not count:
                break
        return count

    @property
    def total(self) -> int:
        return sum(self._room.values())

    @property
    def spare(self) -> int:
        return sum(room - room % self.pod_cards for room in self._room.values())

    def _lacking_trend(self, headroom: int) -> int:
        """Returns how many cards of the trend's models are lacking."""
        trend = min(self._trend_cards, headroom)
        if not trend or not self._trend_models:
            return 0
        return max(
            0, trend - sum(room - room % self.pod_cards for name, room in self._room.items() if self._serves(name))
        )

    def _serves(self, name: str) -> bool:
        """Reports whether the node has a model that the trend needs."""
        return not self._trend_models or self._models[name] in self._trend_models

    def need(self, pods: Mapping[Shape, int], headroom: int) -> Need:
        """Returns what is lacking. Leaves the room of the placed pods taken."""
        left = {shape: self.place(shape, pods[shape]) for shape in sorted(pods, reverse=True)}
        missing = {shape: count for shape, count in left.items() if count}
        trend = self._lacking_trend(headroom)
        return Need(missing, max(trend, headroom - self.spare), trend)

    def usable(self, gangs: Iterable[TrainingGang], need: Need) -> int:
        """Returns how many cards inference could use if these gangs ended: of waiting pods on their nodes, and of the headroom."""
        freed: Counter[str] = Counter()
        for gang in gangs:
            for member in gang.members:
                if member.node in self._room:
                    freed[member.node] += member.cards
        left, found, spare, other = dict(need.pods), 0, 0, 0
        for name, cards in freed.items():
            room = self._room[name] + cards
            for shape in sorted(left, reverse=True):
                size, models = shape
                count = min(left[shape], room // size) if not models or self._models[name] in models else 0
                left[shape] -= count
                room -= size * count
                found += size * count
            before = self._room[name] - self._room[name] % self.pod_cards
            gained = max(0, room - room % self.pod_cards - before)
            if self._serves(name):
                spare += gained
            else:
                other += gained
        return found + min(need.spare_cards, spare + min(other, need.spare_cards - need.trend_cards))


def shapes_of(pods: Iterable[WaitingInference]) -> Mapping[Shape, int]:
    """Returns how many pods have each shape."""
    return Counter((pod.cards, pod.models) for pod in pods)


def work_lost_s(gang: TrainingGang, now_s: float, median_start_s: float | None = None) -> float:
    """Returns the seconds of work that the gang repeats if it ends now.

    Without a published checkpoint this is the time since its start, or since `median_start_s` if that is later.
    """
    since_s = gang.checkpoint_s
    if since_s is None:
        since_s = gang.started_s if median_start_s is None else max(gang.started_s, median_start_s)
    return max(0.0, now_s - max(since_s, gang.started_s))


class VictimOrder(msgspec.Struct, frozen=True):
    """The inputs of the order of gangs, except for the need."""

    now_s: float
    median_start_s: float
    overriding: frozenset[str]
    """Keys of gangs that are taken after all others: those within their minimum run time."""

    def cost_card_s(self, gang: TrainingGang) -> float:
        """Returns what an eviction costs in card-seconds: work lost, and the restart."""
        minutes = work_lost_s(gang, self.now_s, self.median_start_s) // WORK_STEP_S
        return (minutes * WORK_STEP_S + RESTART_S) * gang.cards

    def rank(self, gangs: Sequence[TrainingGang], usable: int) -> tuple[bool, bool, float, float, str]:
        """Returns the position of gangs that are evicted together; the least is taken first.

        `usable`: cards that inference could use of all of them, above 0.
        """
        return (
            any(gang.key in self.overriding for gang in gangs),
            any(gang.retries_left is not None and gang.retries_left <= RETRIES_SPARED for gang in gangs),
            sum(map(self.cost_card_s, gangs)) / usable,
            -max(gang.started_s for gang in gangs),
            min(gang.key for gang in gangs),
        )


def victims_for(
    pods: Mapping[Shape, int], headroom: int, room: CardRoom, candidates: Sequence[TrainingGang], order: VictimOrder
) -> list[TrainingGang]:
    """Returns the gangs to evict so that all pods have room and `headroom` spare cards are left.

    Each returned gang is required: without it, more cards would be lacking. Fewer than needed are returned if the candidates
    do not suffice, and after CHOSEN_MAX. `room` stays as it is.
    """
    chosen: list[TrainingGang] = []
    left, grown = {gang.key: gang for gang in candidates}, room.copy()
    while True:
        trial = grown.copy()
        need = trial.need(pods, headroom)
        options = _options(left, trial, need, order) if need and len(chosen) < CHOSEN_MAX else []
        if not options:
            return _required(chosen, need.cards, pods, headroom, room)
        for gang in min(options, key=lambda option: order.rank(*option))[0]:
            chosen.append(left.pop(gang.key))
            grown.add(gang)


def _options(
    left: Mapping[str, TrainingGang], room: CardRoom, need: Need, order: VictimOrder
) -> list[tuple[tuple[TrainingGang, ...], int]]:
    """Returns gangs of which inference could use cards, and how many: single ones; and if it needs more cards on one node than a gang
    frees there, the cheapest gangs of each node together."""
    found: list[tuple[tuple[TrainingGang, ...], int]] = [
        ((gang,), usable) for gang in left.values() if (usable := room.usable((gang,), need))
    ]
    if room.pod_cards == 1 and all(cards == 1 for cards, _ in need.pods):
        return found
    on_node: dict[str, list[TrainingGang]] = {}
    for gang in sorted(left.values(), key=lambda gang: order.rank((gang,), gang.cards)):
        for node in dict.fromkeys(member.node for member in gang.members):
            on_node.setdefault(node, []).append(gang)
    for gangs in on_node.values():
        for count in range(2, len(gangs) + 1):
            if usable := room.usable(gangs[:count], need):
                found.append((tuple(gangs[:count]), usable))
                break
    return found


def _required(
    chosen: list[TrainingGang], lacking: int, pods: Mapping[Shape, int], headroom: int, room: CardRoom
) -> list[TrainingGang]:
    """Returns the gangs without those that later ones made needless: without them no more than `lacking` cards are lacking."""
    for gang in tuple(chosen):
        others = [other for other in chosen if other is not gang]
        trial = room.copy()
        for other in others:
            trial.add(other)
        if trial.need(pods, headroom).cards <= lacking:
            chosen = others
    return chosen


def median_start_s(gangs: Sequence[TrainingGang], now_s: float) -> float:
    """Returns the median start of running gangs; now if there is none."""
    return median(gang.started_s for gang in gangs) if gangs else now_s

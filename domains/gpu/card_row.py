"""The cards of one node and what pods hold of them: the arithmetic of ledger and overlays.

Each row has one owner: the ledger or, for a copy, the cycle state of an overlay. Free amounts are recomputed from all holds, so
they cannot become inconsistent. Only if a fraction is added to a node without whole pods, its amount alone is subtracted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from domains.gpu.cards import CARD_MILLI, NO_CARDS, NOTHING, WHOLE, Amount, Card, Mode, NodeCards, Use
from domains.gpu.demand import ANY_CARD, CardFilter, GpuDemand, Part
from domains.gpu.dialect import Choice
from domains.gpu.hold import CONFIRMED, CardName, Hold
from domains.gpu.node_lock import LOCKED

WHOLE_BESIDE_FRACTIONS: Final = "node(s) had GPUs shared by fractional pods"
FRACTION_BESIDE_WHOLE: Final = "node(s) had GPUs taken by whole-GPU pods"
UNCONFIRMED: Final = "node(s) had a pod whose GPUs the device plugin has not allocated yet"
CHOSEN_WITHOUT_ROOM: Final = "the chosen GPUs no longer have enough free capacity"


NOTHING_TAKEN: Final[Mapping[int, Any]] = {}
Fitting = Sequence[tuple[int, int]]
"""(place in `node.cards`, free memory) of each card that has room for a part, sorted by place."""
CardOrder = Callable[[Fitting], Sequence[int]]
"""Returns a rank for each of these cards. The cards with the lowest ranks are taken; of equal ranks, the lowest index first."""


def least_free_first(fitting: Fitting) -> list[int]:
    return [free for _, free in fitting]


def most_free_first(fitting: Fitting) -> list[int]:
    return [-free for _, free in fitting]


@lru_cache(maxsize=256)  # most decisions read the refusals of rows that were full before
def too_little(resource: str) -> str:
    """Returns the refusal of a node whose cards have too little of the resource free."""
    return f"Insufficient {resource}"


def no_such_card(wanted: CardFilter) -> str:
    """Returns the refusal of a node without a card that the filter accepts. The texts are few, because conditions count nodes by text."""
    has_models = wanted.models or wanted.models_with or wanted.models_without
    return (
        f"node(s) had no GPU{' of an accepted model' * bool(has_models)}{' with an accepted UUID' * wanted.names_ids}"
    )


def wrong_mode(mode: Mode, demand: GpuDemand) -> str:
    """Returns the refusal of a node without GPUs, or whose sharing system does not read the pod's dialect."""
    if mode is Mode.NONE:
        return too_little(demand.resource)
    return f"node(s) shared GPUs in mode {mode.value}, which does not serve {demand.dialect} pods"


class CardRow:
    """Cards of a node, and the holds on them by pod uid.

    The cards of a hold may be unknown: another scheduler bound the pod, or some of its cards are missing and have no ids, so
    that the remaining cards may have new indices. Such a hold is counted so that no choice of the kubelet can overcommit a card:
    a fraction counts on every card. A whole pod counts on every card if the node is indexed (`NodeCards.is_indexed`), else as that
    many arbitrary cards. If the node is not indexed, two whole pods may name the same card, for example because
    another program wrote the annotation. They still count as one card each.
    """

    __slots__ = (
        "_changed",
        "_fitted",
        "_is_uniform",
        "_row",
        "_used",
        "_uses",
        "awaited",
        "fits_milli",
        "free",
        "free_milli",
        "has_fractions",
        "has_whole",
        "holds",
        "is_locked",
        "largest",
        "node",
        "totals",
    )

    def __init__(self) -> None:
        self.node: NodeCards = NO_CARDS
        self.holds: dict[str, Hold] = {}
        self.awaited = CONFIRMED
        """`Hold.awaits` of all holds together."""
        self._uses: dict[str, tuple[tuple[int, Use], ...] | None] = {}
        """uid -> what its hold takes of the node's present cards; cached until the hold or the cards change."""
        self._used: list[tuple[int, int, int] | None] = []
        """Sum of the holds on each card; None if `free` does not follow from it, because whole pods hold arbitrary cards."""
        self._changed: set[int] | None = None
        self._fitted: tuple[GpuDemand, Part, Fitting] | None = None
        """The last call and result of `fitting`, which the steps of one decision call repeatedly. None after any change of `free`."""
        self._row = -1
        """The row that `written` was last called for."""
        self._is_uniform = False
        """All cards have the same size, so that an amount is the same on each."""
        self.totals: tuple[Use, ...] = ()
        """`Card.total` of each card, in the order of `node.cards`."""
        self.largest = 1
        """Memory of the largest of them, at least 1."""
        self.free: list[Use] = []
        """Free amount of each card, in the same order."""
        self.free_milli: list[int] = []
        """Free memory of each card in thousandths of the card, rounded down; 0 for an unhealthy card."""
        self.fits_milli: list[int] = []
        """The largest number of thousandths that fits on each card, see `Amount.of`."""
        self.has_whole = False
        self.has_fractions = False
        self.is_locked = False
        """The node has a GPU lock, and no pod that waits there for the device plugin uses it."""

    def copy(self) -> CardRow:
        copied = CardRow()
        copied.node, copied._is_uniform = self.node, self._is_uniform
        copied.totals, copied.largest = self.totals, self.largest
        copied.holds, copied.awaited, copied.free = dict(self.holds), self.awaited, list(self.free)
        copied.free_milli, copied.fits_milli = list(self.free_milli), list(self.fits_milli)
        copied._uses, copied._used = dict(self._uses), list(self._used)
        copied.has_whole, copied.has_fractions, copied.is_locked = self.has_whole, self.has_fractions, self.is_locked
        return copied

    def set_node(self, node: NodeCards) -> None:
        self.node = node
        self.totals = tuple(card.total for card in node.cards)
        self.largest = max(1, *(total.memory for total in self.totals)) if self.totals else 1
        self._is_uniform = len({(card.memory, card.scale) for card in node.cards}) == 1
        self._uses.clear()
        self._used, self.free = [None] * len(self.totals), list(self.totals)
        self.free_milli, self.fits_milli = [0] * len(self.totals), [0] * len(self.totals)
        self._count_milli(range(len(self.totals)))
        self._changed = None
        self.renew()

    def hold(self, uid: str, hold: Hold) -> None:
        is_more = uid not in self.holds
        self.holds[uid] = hold
        uses = self._uses[uid] = self._uses_of(hold)
        if is_more and uses is not None and not (self.has_whole or hold.is_whole):
            self.has_fractions |= hold.count > 0
            self.awaited |= hold.awaits
            self._add(uses)
        else:
            self.renew()

    def release(self, uid: str) -> None:
        self.holds.pop(uid, None)
        self._uses.pop(uid, None)
        self.renew()

    # -- queries ---------------------------------------------------------------------------------------------------

    def refusal(self, demand: GpuDemand, modes: frozenset[Mode]) -> str:
        """Returns why the demand does not fit; empty if it fits. `modes`: those of nodes that serve the demand's dialect."""
        return self.barred(demand, modes) or self._room_refusal(demand)

    def barred(self, demand: GpuDemand, modes: frozenset[Mode]) -> str:
        """Returns why the demand does not fit whatever amounts are free; empty if it depends on these. `modes`: as for `refusal`."""
        if demand.problem:
            return demand.problem
        if self.node.mode not in modes:
            return wrong_mode(self.node.mode, demand)
        if demand.confusions:
            if not demand.confusions.isdisjoint(self.awaited):
                return UNCONFIRMED
            if self.is_locked:
                return LOCKED
        if self.node.is_indexed or self.node.mode is not WHOLE:
            return ""
        if demand.is_whole:
            return WHOLE_BESIDE_FRACTIONS if self.has_fractions else ""
        return FRACTION_BESIDE_WHOLE if self.has_whole else ""

    def _room_refusal(self, demand: GpuDemand) -> str:
        if demand.is_counted or self.has_room(demand):
            return ""
        return no_such_card(demand.filter) if self.lacks(demand.filter) else too_little(demand.resource)

    def has_room(self, demand: GpuDemand) -> bool:
        """Reports whether the cards have room for the demand; ignores the reasons of `barred`."""
        if len(demand.parts) > 1 or demand.one_numa or demand.one_link:
            return self.choose(demand) is not None
        return len(self.fitting(demand, demand.parts[0])) >= demand.parts[0].count

    def lacks(self, wanted: CardFilter) -> bool:
        """Reports whether the node has no card that the filter accepts."""
        return wanted is not ANY_CARD and not any(map(wanted.accepts, self.node.cards))

    def refusal_of(self, demand: GpuDemand, choice: Choice, modes: frozenset[Mode]) -> str:
        """Returns why the demand does not fit on these cards; empty if it fits. Raises ValueError for an invalid choice."""
        if len(choice) != demand.count:
            raise ValueError(f"{choice} are not {demand.count} devices in ascending order")
        barred = self.barred(demand, modes)
        taken: dict[int, _Taken] = {}
        for part, chosen in parts_of(demand, choice):
            if tuple(sorted(set(chosen))) != chosen:
                raise ValueError(f"{chosen} are not {part.count} devices in ascending order")
            if barred:
                continue
            places = [place_of(self.node.cards, index) for index in chosen]
            if not all(place >= 0 and self._takes(place, demand, part, taken.get(place)) for place in places):
                return self._room_refusal(demand) or CHOSEN_WITHOUT_ROOM
            is_bound = part.count > 1 and (demand.one_numa or demand.one_link)
            groups = (group for tier in self._groups(places, demand) for group in tier) if is_bound else ()
            if is_bound and not any(len(group) == part.count for group in groups):
                return CHOSEN_WITHOUT_ROOM
            if len(demand.parts) > 1:
                self._take(part, places, taken)
        return barred

    def choose(self, demand: GpuDemand, order: CardOrder = least_free_first) -> Choice | None:
        """Returns the first cards in the order that have room, lowest index first of equal ones. None if it does not fit."""
        if demand.prefers:
            order = most_free_first if demand.prefers == "spread" else least_free_first
        found: list[int] = []
        taken: dict[int, _Taken] = {}
        for part in demand.parts:
            places = self._best(demand, part, taken, order)
            if len(places) < part.count:
                return None
            if len(demand.parts) > 1:
                self._take(part, places, taken)
            cards = self.node.cards
            found += sorted([cards[place].index for place in places])
        return tuple(found)

    def _best(self, demand: GpuDemand, part: Part, taken: dict[int, _Taken], order: CardOrder) -> list[int]:
        """Returns the places of the part's cards, fewer if too few fit: from one link group or NUMA node if possible."""
        fitting = self.fitting(demand, part, taken)
        if not fitting:
            return []
        ranks = order(fitting)
        if part.count == 1:
            return [fitting[ranks.index(min(ranks))][0]]
        places = [place for _, (place, _) in sorted(zip(ranks, fitting, strict=True))]
        for tier in self._groups(places, demand):
            groups = [group for group in tier if len(group) >= part.count]
            if groups:
                return min(groups, key=len)[: part.count]
        return [] if demand.one_numa or demand.one_link else places[: part.count]

    def _groups(self, places: list[int], demand: GpuDemand) -> Iterator[list[list[int]]]:
        """Yields groups of places, the closest first: of one link group and NUMA node, of one link group, of one NUMA node."""
        cards = self.node.cards
        linked = [place for place in places if cards[place].link]
        on_numa = [place for place in places if cards[place].numa >= 0]
        both = [place for place in linked if cards[place].numa >= 0]
        yield _grouped(both, [(cards[place].link, cards[place].numa) for place in both])
        if not demand.one_numa:
            yield _grouped(linked, [cards[place].link for place in linked])
        if not demand.one_link:
            yield _grouped(on_numa, [cards[place].numa for place in on_numa])

    def fitting(self, demand: GpuDemand, part: Part, taken: Mapping[int, _Taken] = NOTHING_TAKEN) -> Fitting:
        """Returns the cards that have room for the part in addition to the earlier parts of the pod."""
        known = self._fitted
        if known is not None and known[0] is demand and known[1] is part and not taken:
            return known[2]
        if taken or demand.filter is not ANY_CARD or not part.counts_milli_only:
            found = self._fitting_by_card(demand, part, taken)
        else:
            milli, free = part.amount.milli, self.free
            found = [
                (place, free[place][0])
                for place, fits_milli in enumerate(self.fits_milli)
                if fits_milli >= milli and (not part.needs_unused or free[place] == self.totals[place])
            ]
        if not taken:
            self._fitted = demand, part, found
        return found

    def _fitting_by_card(self, demand: GpuDemand, part: Part, taken: Mapping[int, _Taken]) -> Fitting:
        cards, amount = self.node.cards, part.amount
        uses = [amount.of(cards[0])] * len(cards) if self._is_uniform else [*map(amount.of, cards)]
        is_special = taken or part.needs_unused or part.needs_cores or demand.filter is not ANY_CARD
        return [
            (place, free[0])
            for place, (use, free) in enumerate(zip(uses, self.free, strict=True))
            if use[0] <= free[0]
            and (
                self._has_room(place, demand, part, use, taken.get(place))
                if is_special
                else use[1] <= free[1] and use[2] <= free[2] and cards[place].is_healthy
            )
        ]

    def _has_room(self, place: int, demand: GpuDemand, part: Part, use: Use, before: _Taken | None) -> bool:
        """Reports whether a card has room for the part. `use`: the part's amount on it; `before`: what earlier parts of the pod take."""
        free_memory, free_cores, free_sharers = free = self.free[place]
        if before is None:
            extra, (memory, cores, sharers) = NOTHING, use
        else:
            extra, (memory, cores, sharers) = before.use, before.with_part(part, use)
        if memory > free_memory or cores > free_cores or sharers > free_sharers:
            return False
        if part.needs_unused and (free != self.totals[place] or extra != NOTHING):
            return False
        if part.needs_cores and free_cores <= extra.cores:
            return False
        card = self.node.cards[place]
        return card.is_healthy and (demand.filter is ANY_CARD or demand.filter.accepts(card))

    def _takes(self, place: int, demand: GpuDemand, part: Part, before: _Taken | None) -> bool:
        return self._has_room(place, demand, part, part.amount.of(self.node.cards[place]), before)

    def _take(self, part: Part, places: Sequence[int], taken: dict[int, _Taken]) -> None:
        for place in places:
            taken.setdefault(place, _Taken()).add(part, part.amount.of(self.node.cards[place]))

    # -- updates ---------------------------------------------------------------------------------------------------

    def renew(self) -> None:
        """Recomputes the free amounts: first holds with known cards, then the others.

        Processes holds in the order of uids if that matters, so that equal holds give equal results.
        """
        cards, holds = self.node.cards, self.holds
        self.awaited = CONFIRMED.union(*[hold.awaits for hold in holds.values()])
        kinds = {hold.is_whole for hold in holds.values() if hold.count}
        self.has_whole, self.has_fractions = True in kinds, False in kinds
        memory, cores, sharers = ([0] * len(cards) for _ in range(3))
        everywhere: list[Hold] = []
        whole_anywhere = 0
        for uid in sorted(holds) if self.has_whole else holds:
            hold = holds[uid]
            if uid not in self._uses:
                self._uses[uid] = self._uses_of(hold)
            uses = self._uses[uid]
            is_counted = hold.is_whole and not self.node.is_indexed
            if uses is not None and not (is_counted and any(memory[at] or cores[at] or sharers[at] for at, _ in uses)):
                for at, (of_memory, of_cores, of_sharers) in uses:
                    memory[at] += of_memory
                    cores[at] += of_cores
                    sharers[at] += of_sharers
            elif is_counted or self.node.mode not in hold.modes:
                whole_anywhere += hold.count
            else:
                everywhere.append(hold)
        for hold in everywhere:
            for at, card in enumerate(cards):
                use = _held(hold, hold.amount, card)
                memory[at] += use.memory
                cores[at] += use.cores
                sharers[at] += use.sharers
        used, before = list(zip(memory, cores, sharers, strict=True)), self.free
        known = zip(self.totals, used, self._used, before, strict=True)
        free = [was if use == use_before else _minus(total, use) for total, use, use_before, was in known]
        for place in _freest_first(free)[:whole_anywhere] if whole_anywhere else ():
            free[place] = NOTHING
        changed = [at for at, one in enumerate(free) if one is not before[at] and one != before[at]]
        if self._changed is not None:
            self._changed.update(changed)
        self.free, self._fitted = free, None
        self._count_milli(changed)
        self._used = [None] * len(cards) if whole_anywhere else [*used]

    def _add(self, uses: Sequence[tuple[int, Use]]) -> None:
        """Does what `renew` would do after a fraction of known cards was added on a node without whole pods: no other card changes."""
        self._fitted = None
        for at, use in uses:
            known, before = self._used[at], self.free[at]
            if known is None:
                self.renew()
                return
            used = self._used[at] = known[0] + use.memory, known[1] + use.cores, known[2] + use.sharers
            free = self.free[at] = _minus(self.totals[at], used)
            if free != before:
                self._count_milli((at,))
                if self._changed is not None:
                    self._changed.add(at)

    def _count_milli(self, places: Iterable[int]) -> None:
        """Converts the free memory of these cards into thousandths."""
        for place in places:
            free, size = self.free[place], self.node.cards[place].size
            milli = CARD_MILLI * free.memory
            self.free_milli[place] = milli // size
            self.fits_milli[place] = (milli + CARD_MILLI - 1) // size if free.sharers else 0

    def _uses_of(self, hold: Hold) -> tuple[tuple[int, Use], ...] | None:
        """Returns place and use of each present card of the hold; None if its cards are unknown, or one without an id is missing.

        If a card with an id is missing, the other cards of the hold are still known by their ids.
        """
        if self.node.mode not in hold.modes or not hold.shares:
            return None
        cards = self.node.cards
        uses: list[tuple[int, Use]] = []
        for share in hold.shares:
            place = place_of(cards, share.card)
            if place >= 0:
                uses.append((place, _held(hold, share.amount, cards[place])))
            elif not all(isinstance(one.card, str) for one in hold.shares):
                return None
        return tuple(uses)

    def written(self, row: int) -> Collection[int] | None:
        """Returns the places whose free amounts have changed since the last call for this row; None: all. For `CardArrays`."""
        changed = self._changed if self._row == row else None
        self._changed, self._row = set(), row
        return changed


class _Taken:
    """The amount that earlier parts of the same demand take of one card; init containers run before the others."""

    __slots__ = ("init", "main")

    def __init__(self) -> None:
        self.init = self.main = NOTHING

    @property
    def use(self) -> Use:
        return _most(self.init, self.main)

    def with_part(self, part: Part, use: Use) -> Use:
        """Returns the whole use of the card if the part is added."""
        if part.is_init:
            return _most(_most(self.init, use), self.main)
        return _most(self.init, _plus(self.main, use))

    def add(self, part: Part, use: Use) -> None:
        if part.is_init:
            self.init = _most(self.init, use)
        else:
            self.main = _plus(self.main, use)


def place_of(cards: Sequence[Card], name: CardName) -> int:
    """Returns the place of the card with this index or id; -1 if it is missing."""
    if isinstance(name, int):
        if 0 <= name < len(cards) and cards[name].index == name:
            return name
        return next((place for place, card in enumerate(cards) if card.index == name), -1)
    return next((place for place, card in enumerate(cards) if card.id == name), -1)


def _freest_first(free: Sequence[Use]) -> list[int]:
    """Returns the places of cards, completely free ones first, because no whole pod can be on the others."""
    return sorted(range(len(free)), key=lambda place: (-free[place].memory, place))


def _grouped(places: Sequence[int], keys: Sequence[Any]) -> list[list[int]]:
    """Returns the places with equal keys together, by key, in the given order within each."""
    return [[place for place, key in zip(places, keys, strict=True) if key == one] for one in sorted(set(keys))]


def parts_of(demand: GpuDemand, choice: Choice) -> Iterator[tuple[Part, Choice]]:
    """Yields each part of the demand with its cards."""
    start = 0
    for part in demand.parts:
        yield part, choice[start : start + part.count]
        start += part.count


def _held(hold: Hold, amount: Amount, card: Card) -> Use:
    return card.whole if hold.is_whole else amount.of(card)


def _plus(one: Use, other: Use) -> Use:
    return Use(one.memory + other.memory, one.cores + other.cores, one.sharers + other.sharers)


def _most(one: Use, other: Use) -> Use:
    return Use(max(one.memory, other.memory), max(one.cores, other.cores), max(one.sharers, other.sharers))


def _minus(total: Use, used: tuple[int, int, int]) -> Use:
    """Returns what is left, at least nothing: what pods hold can exceed a card that was replaced by a smaller one."""
    if used == NOTHING:
        return total
    memory, cores, sharers = total.memory - used[0], total.cores - used[1], total.sharers - used[2]
    return Use(memory if memory > 0 else 0, cores if cores > 0 else 0, sharers if sharers > 0 else 0)

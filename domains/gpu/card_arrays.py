"""CardArrays: the free amounts of the cards of all nodes, as arrays over rows, so that filters and scores compute many rows at a time.

A mirror of the card rows, written by `GpuLedger` alone, after each change of a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import eq

import numpy as np
from numpy.typing import NDArray

from domains.gpu.card_row import CardRow
from domains.gpu.cards import CARD_MILLI, CARD_PERCENT, NOTHING, SHARERS_MAX, WHOLE, Mode
from domains.gpu.demand import ANY_CARD, CardFilter, GpuDemand, Part
from multisched.framework.node_view import NO_ROWS, Bools, Int64, Rows
from multisched.model.objects import Pod

ROWS_FIRST, CARDS_FIRST = 64, 8
"""Initial sizes of the arrays; both double when needed."""

MEMORY, CORES, SHARERS, FREE_MILLI, FITS_MILLI, SIZE, TOTAL_CORES, MODEL, LINK, NUMA = range(10)
"""Layers of the array over cards, ABSENT beyond the last card: what is free, also in thousandths; the largest number of thousandths
that fits, see `Amount.of`; the card's totals and the number of its model; the numbers of its link group and NUMA node on this node,
from 0, ABSENT if unknown."""
CHANGING = slice(MEMORY, SIZE)
"""The layers that change with what pods hold."""
MODE, SCALE, IS_HELD, BARS_WHOLE, BARS_FRACTIONS, IS_LOCKED, MOST_MILLI, IDLE, UNUSED = range(9)
"""Layers of the array over rows. MOST_MILLI: the largest FITS_MILLI of its cards; IDLE: cards on which a whole one fits;
UNUSED: cards that no pod uses."""
HELD = slice(IS_HELD, UNUSED + 1)
"""The layers that change with what pods hold, and with locks."""
ABSENT = -1
_ZERO = np.array(0)
ALL = slice(None)
_NO_RUN = slice(0, 0)
MODELS_MAX = 1024
"""Models with a number before those that no card has are dropped."""
SHARERS_FEW = SHARERS_MAX // 2
FILTERS_MAX = 256
"""Filters of cards whose accepted models are kept."""

MODES = tuple(Mode)
MODE_NUMBER: Mapping[Mode, int] = {mode: number for number, mode in enumerate(MODES)}
"""Numbers of modes in the arrays."""
_NO_CARDS: Int64 = np.array([[MODE_NUMBER[Mode.NONE]], [1], *[[0]] * 7])
"""int64[9, 1]: the layers of the array over rows for a row without cards."""


class CardArrays:
    """All queries take rows in ascending order."""

    def __init__(self) -> None:
        self._models: dict[str, int] = {"": 0}
        self.models: tuple[str, ...] = ("",)
        """Number of a model in the layer MODEL -> its name. Replaced at each change."""
        self._models_max = MODELS_MAX
        self._accepted_by: dict[CardFilter, tuple[tuple[str, ...], Bools]] = {}
        """Filter -> `models`, and which of them it accepts."""
        self._cards: Int64 = np.full((10, CARDS_FIRST, ROWS_FIRST), ABSENT, np.int64)
        self._sums: Int64 = np.tile(_NO_CARDS, ROWS_FIRST)
        self._versions: dict[int, int] = {}
        self._groups_max = {LINK: 0, NUMA: 0}
        """The most link groups and NUMA nodes that a node has had."""
        self.has_groups = False
        """True once the link group or NUMA node of a card is known."""
        self._has_few_sharers = False
        """Some card has had so few sharers left that their number may decide."""
        self.rows_by_id: dict[str, set[int]] = {}
        """Id of a card -> the rows that have it: usually one."""
        self._ids: dict[int, frozenset[str]] = {}
        """Row -> the ids of its cards."""
        self.has_barred = {False: False, True: False}
        """`is_whole` -> whether `bars` has ever been true for any row."""
        self.has_locked = False
        """Whether `locked` has ever been true for some row."""
        self._awaiting: dict[int, frozenset[str]] = {}
        """Row -> the confusions of its unconfirmed holds."""
        self._rows_read: Rows = NO_ROWS
        self._run_read: slice | None = _NO_RUN
        """Rows and result of the last call of `_run`."""
        self._rows_split: Rows | None = None
        self._split: Sequence[tuple[Mode, Rows | slice, Rows]] = ()
        """Rows and result of the last call of `by_mode`."""

    def number_of(self, model: str) -> int:
        """Returns the number of a model that some card has; 0 for another one."""
        return self._models.get(model, 0)

    # -- updates ---------------------------------------------------------------------------------------------------

    def write(self, row: int, cards: CardRow) -> None:
        """Writes a row's cards and increases the row's version."""
        count, changed = len(cards.node.cards), cards.written(row)
        if changed is None:
            self._grow(row + 1, count)
            self._write_totals(row, cards)
        for place in range(count) if changed is None else changed:
            free = cards.free[place]
            self._cards[CHANGING, place, row] = (*free, cards.free_milli[place], cards.fits_milli[place])
            self._has_few_sharers |= free.sharers < SHARERS_FEW
        node, fits = cards.node, cards.fits_milli
        is_exclusive = node.mode is WHOLE and not node.is_indexed
        bars_whole, bars_fractions = is_exclusive and cards.has_fractions, is_exclusive and cards.has_whole
        self.has_locked |= cards.is_locked
        if is_exclusive:
            self.has_barred[True] |= bars_whole
            self.has_barred[False] |= bars_fractions
        self._versions[row] = self._versions.get(row, 0) + 1
        self._sums[HELD, row] = (
            bool(cards.holds),
            bars_whole,
            bars_fractions,
            cards.is_locked,
            max(fits, default=0),
            len([milli for milli in fits if milli >= CARD_MILLI]),
            sum(map(eq, cards.free, cards.totals)) - cards.totals.count(NOTHING),
        )
        if cards.awaited:
            self._awaiting[row] = cards.awaited
        else:
            self._awaiting.pop(row, None)

    def _write_totals(self, row: int, cards: CardRow) -> None:
        """Writes what changes with the node only."""
        count, mode = len(cards.node.cards), MODE_NUMBER[cards.node.mode]
        if self._sums[MODE, row] != mode:
            self._rows_split = None
        self._sums[MODE, row], self._sums[SCALE, row] = mode, cards.node.cards[0].scale if count else 1
        self._cards[:, count:, row] = ABSENT
        links: dict[str, int] = {"": ABSENT}
        numas: dict[int, int] = {-1: ABSENT}
        for place, card in enumerate(cards.node.cards):
            total = card.total
            self._cards[SIZE:, place, row] = (
                total.memory,
                total.cores,
                self._number(card.model),
                links.setdefault(card.link, len(links) - 1),
                numas.setdefault(card.numa, len(numas) - 1),
            )
        for layer, known in ((LINK, links), (NUMA, numas)):
            self._groups_max[layer] = max(self._groups_max[layer], len(known) - 1)
            self.has_groups |= len(known) > 1
        self._write_ids(row, frozenset(card.id for card in cards.node.cards if card.id))

    def _write_ids(self, row: int, ids: frozenset[str]) -> None:
        before = self._ids.pop(row, frozenset())
        for one in before - ids:
            rows = self.rows_by_id[one]
            rows.remove(row)
            if not rows:
                del self.rows_by_id[one]
        for one in ids - before:
            self.rows_by_id.setdefault(one, set()).add(row)
        if ids:
            self._ids[row] = ids

    def _number(self, model: str) -> int:
        """Returns the model's number. Models that no card has any more lose theirs when there are too many."""
        known = self._models.get(model)
        if known is not None:
            return known
        if len(self._models) >= self._models_max:
            self._renumber()
        number = self._models[model] = len(self._models)
        self.models = tuple(self._models)
        return number

    def _renumber(self) -> None:
        """Renumbers the models of all cards."""
        layer, names = self._cards[MODEL], self.models
        used = sorted({0, *np.unique(layer[layer >= 0]).tolist()})
        new = np.zeros(len(names), np.int64)
        new[used] = range(len(used))
        layer[layer >= 0] = new[layer[layer >= 0]]
        self._models = {names[number]: place for place, number in enumerate(used)}
        self._models_max = max(MODELS_MAX, 2 * len(used))

    def _grow(self, rows: int, cards: int) -> None:
        _, cards_now, rows_now = self._cards.shape
        if rows > rows_now or cards > cards_now:
            more_rows = max(rows, 2 * rows_now) - rows_now if rows > rows_now else 0
            more_cards = max(cards, 2 * cards_now) - cards_now if cards > cards_now else 0
            self._cards = np.pad(self._cards, ((0, 0), (0, more_cards), (0, more_rows)), constant_values=ABSENT)
            self._sums = np.hstack([self._sums, np.tile(_NO_CARDS, more_rows)])

    # -- one row ---------------------------------------------------------------------------------------------------

    def version(self, row: int) -> int:
        return self._versions.get(row, 0)

    def sums(self, row: int) -> object:
        """Returns the row's entries, with names of models for their numbers.

        Models are numbered as they are first seen, so another ledger may have other numbers.
        """
        if row >= self._sums.shape[1]:
            return [[]] * MODEL, [], _NO_CARDS[:, 0].tolist()
        cards = self._cards[:, self._cards[SIZE, :, row] >= 0, row]
        models = [self.models[number] for number in cards[MODEL].tolist()]
        return cards[:MODEL].tolist(), models, self._sums[:, row].tolist()

    # -- rows ------------------------------------------------------------------------------------------------------

    def _run(self, rows: Rows) -> slice | None:
        """Returns the rows as a slice, which avoids copies, if they are contiguous; otherwise None. May enlarge the arrays.

        Keeps the result for the next call with the same array, which is never changed (`NodeView`).
        """
        if rows is not self._rows_read:
            self._run_read = self._run_of(rows)
            self._rows_read = rows
        return self._run_read

    def _run_of(self, rows: Rows) -> slice | None:
        if not len(rows):
            return _NO_RUN
        first, last = rows.item(0), rows.item(-1)
        if last >= self._sums.shape[1]:
            self._grow(last + 1, 0)
        return slice(first, last + 1) if last - first + 1 == len(rows) else None

    def layer(self, which: int, rows: Rows) -> Int64:
        """Returns int64[cards, len(rows)]: one layer of the array over cards, ABSENT beyond the last card."""
        run = self._run(rows)
        return self._cards[which].take(rows, axis=1) if run is None else self._cards[which, :, run]

    def first(self, which: int, rows: Rows) -> Int64:
        """Returns int64[len(rows)]: the layer of each row's first card."""
        run = self._run(rows)
        return self._cards[which, 0].take(rows) if run is None else self._cards[which, 0, run]

    def _sum(self, which: int, rows: Rows) -> Int64:
        run = self._run(rows)
        return self._sums[which][rows] if run is None else self._sums[which, run]

    def modes(self, rows: Rows) -> Int64:
        """Returns int64[len(rows)]: the number of each row's mode, see `MODE_NUMBER`."""
        return self._sum(MODE, rows)

    def by_mode(self, rows: Rows) -> Sequence[tuple[Mode, Rows | slice, Rows]]:
        """Returns each mode of the rows, with the positions of its rows and these rows.

        Keeps the result for the next call with the same array, like `_run`, while no row gets another mode.
        """
        if rows is not self._rows_split:
            self._split, self._rows_split = self._split_of(rows), rows
        return self._split

    def _split_of(self, rows: Rows) -> Sequence[tuple[Mode, Rows | slice, Rows]]:
        modes = self.modes(rows)
        texts = modes.tobytes()
        if len(modes) and texts == texts[: modes.itemsize] * len(modes):
            return ((MODES[modes.item(0)], ALL, rows),)
        numbers = np.bincount(modes).nonzero()[0].tolist()
        found = [(number, (modes == np.array(number)).nonzero()[0]) for number in numbers]
        return [(MODES[number], where, rows.take(where)) for number, where in found]

    def scales(self, rows: Rows) -> Int64:
        """Returns int64[len(rows)]: `Card.scale` of the row's cards."""
        return self._sum(SCALE, rows)

    def is_held(self, rows: Rows) -> Bools:
        """Returns bool[len(rows)]: whether any pod holds GPUs on the row."""
        return self._sum(IS_HELD, rows) > 0

    def bars(self, rows: Rows, *, is_whole: bool) -> Bools:
        """Returns bool[len(rows)]: whether pods of the other kind exclude this kind from the node, whatever is free."""
        return self._sum(BARS_WHOLE if is_whole else BARS_FRACTIONS, rows) > 0

    def locked(self, rows: Rows) -> Bools:
        """Returns bool[len(rows)]: whether another pod holds the node's GPU lock, see `CardRow.is_locked`."""
        return self._sum(IS_LOCKED, rows) > 0

    def unconfirmed(self, rows: Rows, confusions: frozenset[str]) -> Bools:
        """Returns bool[len(rows)]: whether a pod waits there for its device plugin, which could confuse the two."""
        awaiting = self._awaiting
        if len(rows) < len(awaiting):
            return np.array([not confusions.isdisjoint(awaiting.get(row, ())) for row in rows.tolist()], np.bool_)
        found = [row for row, awaited in awaiting.items() if not confusions.isdisjoint(awaited)]
        return np.isin(rows, found) if found else np.zeros(len(rows), np.bool_)

    # -- what would fit --------------------------------------------------------------------------------------------

    def has_room(self, demand: GpuDemand, part: Part, rows: Rows) -> Bools:
        """Returns bool[len(rows)]: whether enough cards have room for the part, if it is the pod's first."""
        amount, is_plain = part.amount, demand.filter is ANY_CARD and part.counts_milli_only
        if is_plain and amount.milli == CARD_MILLI:
            return self._sum(UNUSED if part.needs_unused else IDLE, rows) >= np.array(part.count)
        if is_plain and part.count == 1 and not part.needs_unused:
            return self._sum(MOST_MILLI, rows) >= np.array(amount.milli)
        fits = self.fitting(demand, part, rows)
        return are_enough(fits, part.count)

    def fitting(self, demand: GpuDemand, part: Part, rows: Rows) -> NDArray[np.bool_]:
        """Returns bool[cards, len(rows)]: the cards that have room for the part, if it is the pod's first."""
        layer, amount = self.layer, part.amount
        fits: NDArray[np.bool_]
        if amount.milli:
            fits = layer(FITS_MILLI, rows) >= np.array(
                amount.milli
            )  # converting a Python number costs as much as comparing
        elif amount.percent:  # memory >= needed, without a division for each card
            memory, size = layer(MEMORY, rows), layer(SIZE, rows)
            fits = (size > 0) & (CARD_PERCENT * memory + (CARD_PERCENT - 1) >= amount.percent * size)
        else:
            memory, size = layer(MEMORY, rows), layer(SIZE, rows)
            fits = (size > _ZERO) & (memory >= np.array(amount.memory) * self.scales(rows))
        if self._has_few_sharers:
            fits &= layer(SHARERS, rows) >= amount.sharers
        if amount.cores:
            fits &= layer(CORES, rows) >= amount.cores
        if part.needs_unused:
            fits &= layer(MEMORY, rows) == layer(SIZE, rows)
            fits &= layer(CORES, rows) == layer(TOTAL_CORES, rows)
        if part.needs_cores:
            fits &= layer(CORES, rows) > 0
        if demand.filter is not ANY_CARD:
            fits &= self._accepted(demand.filter)[layer(MODEL, rows)]
        return fits

    def lacks_model(self, wanted: CardFilter, rows: Rows) -> Bools:
        """Returns bool[len(rows)]: whether the node has no card of a model that the filter accepts, free or not."""
        found: Bools = np.logical_not(self._accepted(wanted)[self.layer(MODEL, rows)].any(axis=0))
        return found

    def has_named_card(self, wanted: CardFilter, rows: Rows) -> Bools:
        """Returns bool[len(rows)]: whether the filter names the id of a card of the node. If not, ids exclude all of its cards, or none."""
        named = [self.rows_by_id.get(one, ()) for one in wanted.ids or wanted.ids_without]
        return np.isin(rows, np.fromiter({row for found in named for row in found}, np.int64))

    def closeness(self, demand: GpuDemand, part: Part, rows: Rows) -> Int64:
        """Returns int64[len(rows)]: 2 if enough cards of one link group have room for the part, 1 if of one NUMA node, else 0."""
        fits = self.fitting(demand, part, rows)
        found = np.zeros(len(rows), np.int64)
        for points, layer in ((1, NUMA), (2, LINK)):
            group = self.layer(layer, rows)
            for number in range(self._groups_max[layer]):
                found[np.add.reduce(fits & (group == number), axis=0) >= part.count] = points
        return found

    def _accepted(self, wanted: CardFilter) -> Bools:
        """Returns bool[models + 1]: whether each model is accepted; the last one is for missing cards (ABSENT)."""
        known = self._accepted_by.get(wanted)
        if known is None or known[0] is not self.models:
            if len(self._accepted_by) >= FILTERS_MAX:
                self._accepted_by.clear()
            found = np.array([*map(wanted.accepts_model, self.models), False])
            known = self._accepted_by[wanted] = self.models, found
        return known[1]

    def takes_at_most(self, pod: Pod, demand: GpuDemand, rows: Rows) -> Mapping[str, Int64]:
        """Returns annotation or resource -> int64[len(rows)]: the largest number of cards, or amount of each, that would fit."""
        part, amount = demand.parts[0], demand.amount
        is_open = ~self.bars(rows, is_whole=demand.is_whole)
        cards = np.where(is_open, self.fitting(demand, part, rows).sum(axis=0), 0)
        size = np.maximum(self.layer(SIZE, rows).max(axis=0), 1)
        free = np.sort(np.where(self.layer(SIZE, rows) > 0, self.layer(MEMORY, rows), 0), axis=0)[::-1]
        most = free[part.count - 1] if part.count <= len(free) else np.zeros(len(rows), np.int64)
        if amount.milli:
            largest = CARD_MILLI * most // size
        else:
            largest = CARD_PERCENT * most // size if amount.percent else most // self.scales(rows)
        found = {demand.amount_key: np.where(is_open, largest, 0), demand.count_key: cards}
        return {name: found[name] for name in found if name in pod.annotations or name in pod.requests}


def are_enough(fits: Bools, count: int) -> Bools:
    """Returns bool[rows]: whether this many cards fit. `fits`: bool[cards, rows]."""
    found: Bools = np.logical_or.reduce(fits, axis=0) if count == 1 else np.add.reduce(fits, axis=0) >= count
    return found

"""Fragments of nodes: the idle GPU that typical pods could not use there. Arithmetic over many states of nodes at once.

Source: Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent",
USENIX ATC 2023, section 4; the details that the paper leaves open are those of the authors' simulator.

For one node and one typical pod, all idle GPU is a fragment if the pod needs no GPU, does not accept the model, lacks CPU, or
finds too few cards with enough left; otherwise what is left on cards with too little. Memory is ignored. The node's fragments are
the mean over the typical pods by their shares.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from domains.gpu.cards import CARD_MILLI, CARDS_MAX
from domains.gpu.typical_pods import Typical
from multisched.framework.node_view import Float64, Int64, Rows

TABLES_MAX: Final = 128
"""States of which the fragments of single cards are kept: 32 KB each."""


class Fragments:
    """The typical pods as arrays. All results depend on the arguments only.

    Of a typical pod that can run, the cards with enough left are no fragments. A pod of one card finds enough on each such card. So
    with w(x) the share of the pods of one card that accept the model, have the CPU and need at most x of it, the fragment of a card
    with x left is x * (1 - w(x)), minus x times the share of the pods of several cards that need at most x of each and find enough.
    """

    def __init__(self, typical: Typical, models: Sequence[str]) -> None:
        """`models`: number of a model in the arrays of `of` -> its name."""
        pods = [one for one in typical if one.shape.count]
        self._levels = levels = sorted({one.shape.cpu_milli for one in pods})
        self._cpu_milli = np.array(levels, np.int64)
        self._states = len(levels) + 1
        """Amounts of idle CPU that differ for the typical pods."""
        amounts = sorted({one.shape.milli for one in pods if one.shape.count == 1})
        self._place: Rows = np.searchsorted(np.array(amounts, np.int64), np.arange(CARD_MILLI + 1), "right")
        """intp[thousandths + 1]: the number of amounts that a card with this much left has room for."""
        self._width = len(amounts) + 1
        shares = np.zeros((len(models), self._states, self._width))
        several: dict[int, Float64] = {}
        counts = sorted({one.shape.count for one in pods if one.shape.count > 1})
        self._kind: Rows = np.searchsorted(np.array(counts, np.int64), np.arange(CARDS_MAX + 1), "right")
        """intp[cards + 1]: how many of the typical numbers of several cards are at most this many."""
        self._kinds = len(counts) + 1
        for pod in pods:
            accepted = [not pod.shape.models or name in pod.shape.models for name in models]
            level = levels.index(pod.shape.cpu_milli) + 1
            if pod.shape.count == 1:
                shares[accepted, level:, amounts.index(pod.shape.milli) + 1 :] += pod.share
            else:
                empty = np.zeros((len(models), self._states, self._kinds))
                kind = counts.index(pod.shape.count) + 1
                several.setdefault(pod.shape.milli, empty)[accepted, level:, kind:] += pod.share
        self._useless: Float64 = (1 - shares if typical else shares).ravel()
        """1 - w for each model, level of CPU and place, so that one `take` reads them; 0 without typical pods."""
        self._several = [(milli, several[milli].ravel()) for milli in sorted(several)]
        """For pods of several cards: (thousandths of each card, shares by model, level and `_kind` of the cards with that much left)."""
        self._alone_of: dict[int, list[float]] = {}
        """State -> see `_tabled`."""

    def of(self, left: Int64, cpu_milli: Int64, model: Int64) -> Float64:
        """Returns float64[states]: fragments in thousandths of a card.

        `left`: int64[cards, states], thousandths left of each card, 0 for a missing one; `cpu_milli`: idle CPU; `model`: the
        number of the model of the cards. Without typical pods nothing is a fragment.
        """
        found: Float64 = np.add.reduce(self.by_card(left, cpu_milli, model), axis=0)
        return found

    def _tabled(self, state: int) -> list[float]:
        """Returns what `_alone` is for each number of thousandths left, and keeps it."""
        if len(self._alone_of) >= TABLES_MAX:
            self._alone_of.clear()
        found: list[float] = self._alone(np.arange(CARD_MILLI + 1), np.array(state)).tolist()
        self._alone_of[state] = found
        return found

    def by_card(self, left: Int64, cpu_milli: Int64, model: Int64) -> Float64:
        """Returns float64[cards, states]: the part of `of` that is on each card."""
        state = self._state(cpu_milli, model)
        found = self._alone(left, state)
        for milli, shares in self._several:
            enough = left >= milli
            found -= left * enough * self._share(shares, state, np.add.reduce(enough, axis=0))
        return found

    def rises(self, left: Int64, cpu_milli: tuple[Int64, Int64], model: Int64, needed: Int64) -> Float64:
        """Returns float64[cards, states]: how much larger `of` is once a pod has taken something of that card.

        `left`, `model`: as for `of`; `cpu_milli`: idle CPU of the states without and with the pod; `needed`: int64[states] or
        int64[1], what the pod takes of the card, at most all that is left.
        """
        after = np.maximum(left - needed, 0)
        without, with_pod = self._state(cpu_milli[0], model), self._state(cpu_milli[1], model)
        found: Float64
        before, found = self._alone(np.array((left, after)), with_pod)
        # Only one card changes, and where the pod takes CPU that typical pods need, all of them.
        found -= before
        found += np.add.reduce(before - self._alone(left, without), axis=0)
        for milli, shares in self._several:
            enough, still_enough = left >= milli, after >= milli
            useful, cards = left * enough, np.add.reduce(enough, axis=0)
            total = np.add.reduce(useful, axis=0)
            found += total * self._share(shares, without, cards)
            found -= (total - useful + after * still_enough) * self._share(
                shares, with_pod, cards - (enough ^ still_enough)
            )
        return found

    def rises_of_one(
        self, left: Sequence[int], cpu_milli: tuple[int, int], model: int, needed: int, taken: Iterable[int]
    ) -> list[float]:
        """Returns `rises` of one state, in Python numbers: for so few, numpy would take longer. `taken`: what is left of the cards to
        take the pod from."""
        without, with_pod = [model * self._states + bisect_right(self._levels, idle) for idle in cpu_milli]
        alone = self._alone_of.get(with_pod) or self._tabled(with_pod)
        shift = 0.0
        if without != with_pod:
            before = self._alone_of.get(without) or self._tabled(without)
            shift = sum([alone[amount] - before[amount] for amount in left])
        rests = [(amount, amount - needed if amount > needed else 0) for amount in taken]
        found = [alone[rest] - alone[amount] + shift for amount, rest in rests]
        for milli, shares in self._several:
            enough = [amount for amount in left if amount >= milli]
            total, cards = sum(enough), len(enough)
            useful = total * shares.item(without * self._kinds + self._kind.item(cards))
            for at, (amount, rest) in enumerate(rests):
                is_enough, still_enough = amount >= milli, rest >= milli
                share = shares.item(with_pod * self._kinds + self._kind.item(cards - (is_enough ^ still_enough)))
                found[at] += useful - (total - amount * is_enough + rest * still_enough) * share
        return found

    def _share(self, shares: Float64, state: Int64, cards: Int64) -> Float64:
        """Returns, in the shape of `cards`, the share of the pods of several cards that run if this many have enough left."""
        found: Float64 = shares.take(state * self._kinds + self._kind.take(cards))
        return found

    def _state(self, cpu_milli: Int64, model: Int64) -> Int64:
        """Returns int64[states]: a number for the model and for which typical pods the idle CPU is enough."""
        found: Int64 = model * self._states + self._cpu_milli.searchsorted(cpu_milli, "right")
        return found

    def _alone(self, left: Int64, state: Int64) -> Float64:
        """Returns the fragments of cards, in the shape of `left`, if all typical pods of several cards lack cards."""
        found: Float64 = left * self._useless.take(state * self._width + self._place.take(left))
        return found

"""The policy `fragmentation`: the node and card on which a pod creates the fewest new fragments for the pods that come."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from math import log
from typing import Final

import msgspec
import numpy as np

from domains.gpu.card_arrays import are_enough
from domains.gpu.card_row import CardOrder, Fitting, least_free_first
from domains.gpu.cards import CARD_MILLI
from domains.gpu.demand import GpuDemand, Part
from domains.gpu.fragments import Fragments
from domains.gpu.policies import Candidates, ChosenNode, lowest
from domains.gpu.typical_pods import Typical
from multisched.framework.node_view import Bools, Float64, Int64, Scores
from multisched.framework.normalize import MAX_SCORE
from multisched.model.objects import CPU, Pod

_FULL: Final = CARD_MILLI + 1
_ZERO: Final = np.array(0)
_NOISE: Final = 5e-7
"""A score that is short of an integer by less is truncated to that integer, so that float noise decides no ties."""
_RISES_LIST: Final = [CARD_MILLI * log(MAX_SCORE / (points - _NOISE) - 1) for points in range(MAX_SCORE, 0, -1)]
"""The largest rise of fragments that still scores 100 points, 99, and so on."""
_RISES: Final = np.array(_RISES_LIST)


class Fragmentation:
    """Scores 100 * sigmoid((F - F') / 1000), truncated, with F the node's fragments without the pod and F' with it.

    Source: Weng et al., USENIX ATC 2023; see `Fragments`. A fraction is scored on the card where it scores best; whole
    cards are equal. Several fractions are scored on the cards with the least left.
    """

    name = "fragmentation"
    scores_pods = True
    scores_all_pods = True
    prefers_first_row = True

    def __init__(self, typical: Callable[[], Typical]) -> None:
        """`typical`: returns the current typical pods, as the same object while they do not change."""
        self._current = typical
        self._built: tuple[Typical, tuple[str, ...], Fragments] = (), (), Fragments((), ())

    def fragments(self, models: tuple[str, ...]) -> Fragments:
        """Returns the arithmetic for the current typical pods. `models`: `CardArrays.models`."""
        typical = self._current()
        if self._built[0] is not typical or self._built[1] is not models:
            self._built = typical, models, Fragments(typical, models)
        return self._built[2]

    def score(self, candidates: Candidates, demand: GpuDemand | None, cpu_milli: int) -> Scores:
        fragments = self.fragments(candidates.arrays.models)
        if demand is None:
            left, model, idle = candidates.left, candidates.models, candidates.cpu_milli
            rest = np.maximum(idle - np.array(cpu_milli), _ZERO)
            return _points(fragments.of(left, rest, model) - fragments.of(left, idle, model))
        part, rows = demand.parts[0], candidates.rows
        fits = candidates.arrays.fitting(demand, part, rows)
        at = are_enough(fits, part.count).nonzero()[0]
        if not len(at):
            return np.zeros(len(rows), np.int64)
        idle = candidates.cpu_milli
        rest = np.maximum(idle - np.array(cpu_milli), _ZERO)
        if len(at) == len(rows):
            return _points_of_fitting(fragments, candidates, part, fits, (idle, rest))
        scores = np.zeros(len(rows), np.int64)
        some = msgspec.structs.replace(candidates, rows=rows.take(at))
        fits, idle, rest = fits.take(at, axis=1), idle.take(at), rest.take(at)
        scores[at] = _points_of_fitting(fragments, some, part, fits, (idle, rest))
        return scores

    def score_on(self, node: ChosenNode, demand: GpuDemand, cpu_milli: int) -> int:
        """Returns `score` of a single node for a pod of one card, in Python numbers."""
        fitting = node.cards.fitting(demand, demand.parts[0])
        if not fitting:
            return 0
        left = node.cards.free_milli
        return _points_of_one(min(self._rises_on(node, demand, cpu_milli, {left[place] for place, _ in fitting})))

    def order(self, node: ChosenNode, demand: GpuDemand, pod: Pod) -> CardOrder:
        """Orders cards by score, the best first; by what is left, the least first, if several are needed or no pods are typical yet."""
        if len(demand.parts) > 1 or demand.parts[0].count > 1 or not self._current():
            return least_free_first
        cards = node.cards.free_milli

        def by_score(fitting: Fitting) -> Sequence[int]:
            lefts = [cards[place] for place, _ in fitting]
            taken = set(lefts)
            if len(taken) < 2:
                return least_free_first(fitting)
            rises = self._rises_on(node, demand, pod.requests.get(CPU, 0), taken)
            points = dict(zip(taken, map(_points_of_one, rises), strict=True))
            return [-points[left] for left in lefts]

        return by_score

    def _rises_on(self, node: ChosenNode, demand: GpuDemand, cpu_milli: int, taken: Collection[int]) -> list[float]:
        """Returns how much the node's fragments rise if the pod gets a card of which this much is left."""
        fragments, idle = self.fragments(node.arrays.models), node.cpu_milli
        needed = node.needed_milli(demand.parts[0])
        return fragments.rises_of_one(
            node.cards.free_milli, (idle, max(idle - cpu_milli, 0)), node.model, needed, taken
        )


def _points_of_fitting(
    fragments: Fragments, candidates: Candidates, part: Part, fits: Bools, cpu_milli: tuple[Int64, Int64]
) -> Scores:
    """Returns the scores of rows on all of which the part fits. `fits`: bool[cards, rows]; `cpu_milli`: idle without and with the pod."""
    left, model, needed = candidates.left, candidates.models, candidates.needed_milli(part)
    if part.count == 1:
        rises = fragments.rises(left, cpu_milli, model, needed)
        return _points(np.minimum.reduce(rises, axis=0, where=fits, initial=np.inf))
    after = _on_lowest(left, fits, needed, part.count)
    return _points(fragments.of(after, cpu_milli[1], model) - fragments.of(left, cpu_milli[0], model))


def _on_lowest(left: Int64, fits: Bools, needed: Int64, count: int) -> Int64:
    """Returns int64[cards, columns]: what would be left of the cards if the lowest ones that fit are taken."""
    after = left.copy()
    chosen = lowest(np.where(fits, after, _FULL), count)
    np.put_along_axis(after, chosen, np.take_along_axis(after, chosen, axis=0) - needed, axis=0)
    return np.maximum(after, 0, out=after)


def _points(rise: Float64) -> Scores:
    """Returns int64[states]: the score of a pod that lets the fragments rise this much."""
    found: Scores = MAX_SCORE - _RISES.searchsorted(rise)
    return found


def _points_of_one(rise: float) -> int:
    """Returns `_points` of one state."""
    return MAX_SCORE - bisect_left(_RISES_LIST, rise)

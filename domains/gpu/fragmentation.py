"""The policy `fragmentation`: the node and card on which a pod creates the fewest new fragments for the pods that come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from domains.gpu.card_row import CardOrder, least_free_first
from domains.gpu.cards import CARD_MILLI
from domains.gpu.demand import GpuDemand, Part
from domains.gpu.fragments import Fragments
from domains.gpu.policies import Candidates, lowest
from domains.gpu.typical_pods import Typical
from multisched.framework.node_view import Bools, Float64, Int64, Scores
from multisched.framework.normalize import MAX_SCORE
from multisched.model.objects import CPU, Pod

_FULL: Final = CARD_MILLI + 1
_DIGITS: Final = 6
"""Digits to which a score is rounded before it is truncated, so that float noise decides no ties."""


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
        left, model, idle = candidates.left, candidates.models, candidates.cpu_milli
        scores = np.zeros(len(left[0]), np.int64)
        if demand is None:
            return _points(fragments.of(left, idle, model), fragments.of(left, np.maximum(idle - cpu_milli, 0), model))
        part = demand.parts[0]
        if part.count > len(left):
            return scores
        fits = candidates.arrays.fitting(demand, part, candidates.rows)
        at, after = _placed(left, fits, candidates.needed_milli(part), part)
        if len(at):
            rows = np.flatnonzero(np.bincount(at, minlength=len(scores)))
            both, rest = np.concatenate((rows, at)), np.maximum(idle - cpu_milli, 0)
            found = fragments.of(
                np.concatenate((left.take(rows, axis=1), after), axis=1),
                np.concatenate((idle.take(rows), rest.take(at))),
                model.take(both),
            )
            before = np.zeros(len(scores))
            before[rows] = found[: len(rows)]
            np.maximum.at(scores, at, _points(before.take(at), found[len(rows) :]))
        return scores

    def order(self, candidate: Candidates, demand: GpuDemand, pod: Pod) -> CardOrder:
        """Orders cards by score, the best first; by what is left, the least first, if several are needed."""
        part = demand.parts[0]
        places = np.flatnonzero(candidate.arrays.fitting(demand, part, candidate.rows)[:, 0])
        if len(demand.parts) > 1 or part.count > 1 or len(places) < 2:
            return least_free_first
        fragments = self.fragments(candidate.arrays.models)
        left, model, idle = candidate.left, candidate.models, candidate.cpu_milli
        after = np.repeat(left, len(places), axis=1)
        after[places, np.arange(len(places))] -= candidate.needed_milli(part)
        np.maximum(after, 0, out=after)
        rows = np.zeros(len(places), np.intp)
        then = fragments.of(after, np.maximum(idle - pod.requests.get(CPU, 0), 0)[rows], model[rows])
        points = _points(fragments.of(left, idle, model), then).tolist()
        score = dict(zip(places.tolist(), points, strict=True))
        return lambda place, free: -score.get(place, 0)


def _placed(left: Int64, fits: Bools, needed: Int64, part: Part) -> tuple[Int64, Int64]:
    """Returns int64[states], the column of each state, and int64[cards, states], what would be left: the ways to place the part.

    For one card a way per column and different amount left on cards that fit; for several cards the lowest of them.
    """
    if part.count > 1:
        at = np.flatnonzero(fits.sum(axis=0) >= part.count)
        after = left[:, at]
        chosen = lowest(np.where(fits[:, at], after, _FULL), part.count)
        np.put_along_axis(after, chosen, np.take_along_axis(after, chosen, axis=0) - needed[at], axis=0)
        return at, np.maximum(after, 0)
    # A card with as much left as one before it makes the same state, but for the order of the cards.
    ordered = np.sort(np.where(fits, left, -1), axis=0)
    is_way = ordered >= 0
    is_way[1:] &= ordered[1:] != ordered[:-1]
    places, at = np.nonzero(is_way)
    amounts = ordered[places, at]
    after = left[:, at]
    card = ((after == amounts) & fits[:, at]).argmax(axis=0)
    after[card, np.arange(len(at))] = np.maximum(amounts - needed[at], 0)
    return at, after


def _points(before: Float64, after: Float64) -> Scores:
    sigmoid = MAX_SCORE / (1 + np.exp((after - before) / CARD_MILLI))
    return np.round(sigmoid, _DIGITS).astype(np.int64)

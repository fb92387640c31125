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
        if demand is None:
            left, model, idle = candidates.left, candidates.models, candidates.cpu_milli
            rest = np.maximum(idle - cpu_milli, 0)
            return _points(fragments.of(left, idle, model), fragments.of(left, rest, model))
        part, scores = demand.parts[0], np.zeros(len(candidates.rows), np.int64)
        fits = candidates.arrays.fitting(demand, part, candidates.rows)
        fitting = np.flatnonzero(np.add.reduce(fits, axis=0) >= part.count)
        if not len(fitting):
            return scores
        some = candidates.at(fitting)
        left, model, idle = some.left, some.models, some.cpu_milli
        at, after = _placed(left, fits.take(fitting, axis=1), some.needed_milli(part), part)
        rest = np.maximum(idle - cpu_milli, 0)
        found = fragments.of(
            np.concatenate((left, after), axis=1),
            np.concatenate((idle, rest.take(at))),
            np.concatenate((model, model.take(at))),
        )
        best = np.zeros(len(fitting), np.int64)
        np.maximum.at(best, at, _points(found.take(at), found[len(fitting) :]))
        scores[fitting] = best
        return scores

    def order(self, candidate: Candidates, demand: GpuDemand, pod: Pod) -> CardOrder:
        """Orders cards by score, the best first; by what is left, the least first, if several are needed or no pods are typical yet."""
        part = demand.parts[0]
        places = np.flatnonzero(candidate.arrays.fitting(demand, part, candidate.rows)[:, 0])
        left = candidate.left
        is_one = len(demand.parts) == 1 and part.count == 1
        if not is_one or not self._current() or len(set(left[places, 0].tolist())) < 2:
            return least_free_first
        fragments = self.fragments(candidate.arrays.models)
        model, idle = candidate.models, candidate.cpu_milli
        states = np.repeat(left, 1 + len(places), axis=1)  # the first one without the pod
        with_pod = np.arange(1, 1 + len(places))
        states[places, with_pod] -= candidate.needed_milli(part)
        np.maximum(states, 0, out=states)
        rest = np.repeat(idle, states.shape[1])
        rest[1:] = np.maximum(idle - pod.requests.get(CPU, 0), 0)
        found = fragments.of(states, rest, np.repeat(model, states.shape[1]))
        points = _points(found[0], found[1:]).tolist()
        score = dict(zip(places.tolist(), points, strict=True))
        return lambda place, free: -score.get(place, 0)


def _placed(left: Int64, fits: Bools, needed: Int64, part: Part) -> tuple[Int64, Int64]:
    """Returns int64[states], the column of each state, and int64[cards, states], what would be left: the ways to place the part.

    For one card, a way for each card that fits, but for cards with as much left as the one before: they make the same state, but
    for the order of the cards. For several cards the lowest of them.
    """
    if part.count > 1:
        at = np.flatnonzero(np.add.reduce(fits, axis=0) >= part.count)
        after = left[:, at]
        chosen = lowest(np.where(fits[:, at], after, _FULL), part.count)
        np.put_along_axis(after, chosen, np.take_along_axis(after, chosen, axis=0) - needed[at], axis=0)
        return at, np.maximum(after, 0)
    is_way = fits.copy()
    is_way[1:] &= ~(fits[:-1] & (left[1:] == left[:-1]))
    card, at = np.nonzero(is_way)
    after = left.take(at, axis=1)
    after[card, np.arange(len(at))] -= needed.take(at)
    return at, np.maximum(after, 0, out=after)


def _points(before: Float64 | np.float64, after: Float64) -> Scores:
    sigmoid = MAX_SCORE / (1 + np.exp((after - before) / CARD_MILLI))
    return sigmoid.round(_DIGITS).astype(np.int64)

"""The typical pods of a domain: given by the configuration, or learned from the pods that run, are placed and wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain, islice
from typing import Final

from domains.gpu.typical_pods import PodShape, Typical, distance, typical_of

HALF_LIFE_PODS: Final = 4096
"""A pod counts half as much when this many have been placed after it."""
REVIEW_MAX_PODS: Final = 256
"""Placed pods between two reviews of the mix; at first 1, then twice as many each time."""
MOVED: Final = 0.1
"""Minimum share of pods that differ for a new mix: with each new mix, all scores are computed again."""
SHAPES_MAX: Final = 1024
"""Maximum number of counted shapes; a review drops the rarest ones above it."""
WAITING_MAX: Final = 4096
"""Maximum number of waiting pods in a review, and of pods in a mix for display."""


class PodMix:
    """Counts pods by shape, with decay. Deterministic in the order of calls: decay is by placed pods, not by time."""

    def __init__(self, given: Typical | None, seen: Callable[[], Iterable[PodShape]]) -> None:
        """`given`: fixed typical pods; None: they are learned. `seen`: shapes of the pods that run; called once, at the first pod."""
        self.typical: Typical = given or ()
        self.version = 0
        """Rises with each new mix."""
        self._is_fixed = given is not None
        self._seen = seen
        self._weights: dict[PodShape, float] = {}
        self._unit = 1.0
        """Weight of a pod that is placed now."""
        self._review_every = 0
        self._placed = 0

    def placed(self, shape: PodShape | None, waiting: Callable[[], Iterable[PodShape]]) -> None:
        """Counts a pod that is being placed. `waiting`: shapes of the pods that wait."""
        if self._is_fixed:
            return
        if not self._review_every:
            self._review_every = 1
            for running in self._seen():
                self._weights[running] = self._weights.get(running, 0.0) + self._unit
        if shape is not None:
            self._unit *= 2 ** (1 / HALF_LIFE_PODS)
            self._weights[shape] = self._weights.get(shape, 0.0) + self._unit
        self._placed += 1
        if self._placed >= self._review_every:
            self._placed, self._review_every = 0, min(2 * self._review_every, REVIEW_MAX_PODS)
            self._review(waiting())

    def shown(self, waiting: Callable[[], Iterable[PodShape]]) -> Typical:
        """Returns the typical pods; before the first mix, those of the running and waiting pods."""
        return self.typical or typical_of(Counter(islice(chain(self._seen(), waiting()), WAITING_MAX)))

    def adopt(self, typical: Typical) -> None:
        """Takes over a mix that another instance has learned."""
        if not self._is_fixed:
            self.typical = typical

    def _review(self, waiting: Iterable[PodShape]) -> None:
        """Publishes a new mix if the pods have changed enough. Waiting pods count while they wait, as pods placed now."""
        kept = sorted(self._weights.items(), key=lambda one: (-one[1], one[0]))[:SHAPES_MAX]
        self._weights = {shape: weight / self._unit for shape, weight in kept}
        self._unit = 1.0
        counted = dict(self._weights)
        for shape, count in Counter(islice(waiting, WAITING_MAX)).items():
            counted[shape] = counted.get(shape, 0.0) + count * self._unit
        found = typical_of(counted)
        if not self.typical or distance(found, self.typical) > MOVED:
            self.typical = found
            self.version += 1

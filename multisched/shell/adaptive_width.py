"""Decides how many requests may be in flight, from the latency of the answered ones. Has no clock: the caller passes the time.

By Little's law, throughput = requests in flight / latency. While more requests in flight do not raise the latency, they raise
the throughput; once the latency grows in proportion, they only wait for each other. So the width (the limit of requests in flight)
is GAIN times the number of requests in flight that would give the same throughput at the unloaded latency (the bandwidth-delay
product, as in BBR, ACM Queue 14(5), 2016). A 429 lowers the width at once. The width then rises again, and each step halves its
distance to the refused width (as in BIC).
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

GAIN: Final = 1.5
"""In equilibrium, the latency under load is this multiple of the unloaded latency."""
GROWTH: Final = 2.0
"""Factor of the width after a round, until requests wait for each other for the first time in a burst."""
SLOW_S: Final = 0.1
"""If the unloaded latency is at least this, the initial width grows by SLOW_GROWTH, because doubling takes too long in such rounds.

With a faster server it does not, because each additional connection costs a millisecond of CPU on both sides.
"""
SLOW_GROWTH: Final = 24.0
QUEUEING: Final = 1.25
"""A latency above this multiple of the unloaded one shows that requests wait for each other. From then on, a round raises the width at
most by this factor, and a probe raises the unloaded latency at most by this factor, because single latencies vary more.
"""
FULL: Final = 0.8
"""A round counts as one under load if at least this share of the width was in flight."""
ROUND_ANSWERS_MIN: Final = 8
PROBE_ROUNDS: Final = 20
"""After this many rounds under load, one round at half the width measures the unloaded latency again."""
LOWER: Final = 0.9
"""A probe that finds at most this share of the known unloaded latency, or more than QUEUEING times it, is followed by one at half its
width.
"""
DECREASE: Final = 0.9
"""Factor of the width after a refusal."""
DECREASE_AGAIN: Final = 0.5
"""Factor of the width after another refusal, if no round ended in between."""
NEAR_REFUSED: Final = 0.97
"""From this share of the refused width on, the width grows by 1/64 per round."""
FORGET_REFUSED: Final = 1.1
"""At this multiple of the refused width, the refusal is forgotten."""


class Bounds(msgspec.Struct, frozen=True):
    """The range of a width; 1 <= least <= most."""

    least: int
    most: int


class AdaptiveWidth:
    """The number of requests that may be in flight, within bounds.

    A round ends when half as many requests were answered as were in flight on average. Only requests sent in the round count.
    """

    def __init__(self, bounds: Bounds, calm: int) -> None:
        """`calm`: number of requests in flight whose latency counts as unloaded. Only refusals lower the width below it."""
        self.width = float(calm)
        self._calm = float(calm)
        self._unloaded_s = math.inf
        self._refused = math.inf
        """The width at the last refusal; inf if there was none or it is forgotten."""
        self._is_refusing = False
        """Whether no round has ended since the last refusal."""
        self._is_starting = True
        """Whether no requests have waited for each other since the width was last not in use."""
        self._is_probe = False
        self._rounds = 0
        """Rounds under load since the last probe."""
        self._begin(-math.inf)
        self.limit(bounds)

    def limit(self, bounds: Bounds) -> None:
        """Changes the bounds."""
        self.bounds = bounds
        self.width = min(max(self.width, bounds.least), bounds.most)

    @property
    def _least(self) -> float:
        """The least width to which latency alone may lower it."""
        return min(max(self._calm, self.bounds.least), self.width)

    @property
    def unloaded_s(self) -> float:
        """Latency of a request while few others are in flight, in seconds; 0 before the first round."""
        return self._unloaded_s if math.isfinite(self._unloaded_s) else 0.0

    def answered(self, sent_s: float, now_s: float, in_flight: int) -> None:
        """Counts the answer to one request. `in_flight`: number of requests in flight, including this one."""
        if sent_s < self._began_s:
            return
        self._answers += 1
        self._latencies_s += now_s - sent_s
        self._in_flight += in_flight
        in_flight_mean = self._in_flight / self._answers
        if self._answers < max(ROUND_ANSWERS_MIN, in_flight_mean / 2):
            return
        self._end_round(max(self._latencies_s / self._answers, 1e-6), in_flight_mean)
        self._begin(now_s)

    def refused(self, sent_s: float, now_s: float) -> None:
        """Lowers the width after a 429 or a timeout. Refusals of requests that were sent before the last change are ignored."""
        if sent_s < self._began_s:
            return
        self._refused = self.width
        self.width = max(self.bounds.least, self.width * (DECREASE_AGAIN if self._is_refusing else DECREASE))
        self._is_refusing = True
        self._is_probe = False
        self._begin(now_s)

    def _begin(self, now_s: float) -> None:
        self._began_s = now_s
        self._answers, self._in_flight, self._latencies_s = 0, 0, 0.0

    def _end_round(self, latency_s: float, in_flight: float) -> None:
        known_s, was_probe = self._unloaded_s, self._is_probe
        self._is_probe = self._is_refusing = False
        is_calm = in_flight <= self._calm
        if is_calm:
            self._unloaded_s = latency_s
        else:
            self._unloaded_s = min(latency_s, QUEUEING * known_s if was_probe else known_s)
        if in_flight < min(FULL * self.width, int(self.width)):  # too few pods wait to use the width
            self.width = min(self.width, max(self._calm, GROWTH * in_flight, self.bounds.least))
            self._is_starting = True
            return
        if known_s == math.inf and latency_s < SLOW_S:  # these requests opened their connections: measure once more
            return
        is_queueing = latency_s > QUEUEING * self._unloaded_s
        self._is_starting &= not is_queueing
        self._rounds += is_queueing or (self.width == self.bounds.most and self._refused == math.inf)
        is_unclear = was_probe and not is_calm and not LOWER * known_s <= latency_s <= QUEUEING * known_s
        if is_unclear or self._rounds >= PROBE_ROUNDS:
            self._rounds, self._is_probe = 0, True
            self.width = max(self._least, self.width / 2)
            return
        if self._is_starting:
            is_slow = self._unloaded_s >= SLOW_S and self.width <= self._calm
            self._approach((SLOW_GROWTH if is_slow else GROWTH) * in_flight)
        else:
            self._approach(min(GAIN * self._unloaded_s / latency_s, QUEUEING) * in_flight)

    def _approach(self, wanted: float) -> None:
        wanted = max(wanted, self._least)
        if wanted > self.width and self._refused < math.inf:
            is_near = self.width >= NEAR_REFUSED * self._refused
            step = self.width / 64 if is_near else (self._refused - self.width) / 2
            wanted = min(wanted, self.width + max(1.0, step))
            if wanted > FORGET_REFUSED * self._refused:
                self._refused = math.inf
        self.width = min(wanted, self.bounds.most)

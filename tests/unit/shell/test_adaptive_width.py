"""How many requests may be in flight: against a simulated server, in virtual time, and by rules that always hold."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from multisched.shell.adaptive_width import AdaptiveWidth, Bounds

CALM = 16
PODS = 10_000
SWEEP = (2, 4, 8, 16, 32, 64, 128, 256, 384, 512)
RETRY_AFTER_S = 1.0


@dataclass
class Server:
    """Serves 1,000 binds/s in four threads; each answer takes `latency_s` (-10 to +30 %) longer.

    `seats`: more requests at once are refused with 429; `is_seated`: a request keeps its seat for the added latency too.
    """

    latency_s: float
    seats: int = 600
    is_seated: bool = False
    stalls: float = 0.0
    """Share of the requests before which all threads pause for 50 to 150 ms."""
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    threads: list[float] = field(default_factory=lambda: [0.0] * 4)
    leaves: list[float] = field(default_factory=list)

    def send(self, now_s: float) -> tuple[float, bool]:
        """Returns when the answer arrives, and whether it is a success."""
        while self.leaves and self.leaves[0] <= now_s:
            heapq.heappop(self.leaves)
        added_s = self.latency_s * self.rng.uniform(0.9, 1.3)
        if len(self.leaves) >= self.seats:
            return now_s + 0.001 + (0.0 if self.is_seated else added_s), False
        if self.stalls and self.rng.random() < self.stalls:
            pause_s = self.rng.uniform(0.05, 0.15)
            self.threads = [max(now_s, free_s) + pause_s for free_s in self.threads]
        ended_s = max(now_s, self.threads[0]) + 0.004 * self.rng.uniform(0.5, 1.5)
        heapq.heapreplace(self.threads, ended_s)
        heapq.heappush(self.leaves, ended_s + added_s * self.is_seated)
        return ended_s + added_s, True


@dataclass(frozen=True)
class Burst:
    """What became of a burst."""

    pods_per_s: float
    refused: float
    """Share of the requests."""
    widths: list[float]
    """After each success."""


def burst(server: Server, bounds: Bounds, pods: int = PODS) -> Burst:
    """Binds so many waiting pods."""
    adaptive, now_s, widths = AdaptiveWidth(bounds, CALM), 0.0, list[float]()
    waiting, in_flight, sent, refused = pods, 0, 0, 0
    answers: list[tuple[float, int, float, bool]] = []

    def send(number: int) -> None:
        nonlocal sent
        sent += 1
        at_s, is_success = server.send(now_s)
        heapq.heappush(answers, (at_s, number, now_s, is_success))

    resent: set[int] = set()
    while waiting or in_flight:
        while waiting and in_flight < int(adaptive.width):
            waiting, in_flight = waiting - 1, in_flight + 1
            send(waiting)
        now_s, number, sent_s, is_success = heapq.heappop(answers)
        if number in resent:
            resent.discard(number)
            send(number)
        elif is_success:
            adaptive.answered(sent_s, now_s, in_flight)
            in_flight -= 1
            widths.append(adaptive.width)
        else:
            refused += 1
            adaptive.refused(sent_s, now_s)
            resent.add(number)
            heapq.heappush(answers, (now_s + RETRY_AFTER_S, number, sent_s, False))
    return Burst(pods / now_s, refused / sent, widths)


@pytest.mark.parametrize("latency_s", [0.005, 0.05, 0.5])
@pytest.mark.parametrize(("seats", "is_seated"), [(600, False), (400, True), (10_000, True)])
def test_throughput_is_near_that_of_the_best_fixed_width_without_a_setting(
    latency_s: float, seats: int, is_seated: bool
) -> None:
    best = max(burst(Server(latency_s, seats, is_seated), Bounds(n, n)).pods_per_s for n in SWEEP)
    found = burst(Server(latency_s, seats, is_seated), Bounds(2, 512))
    assert found.pods_per_s >= 0.9 * best
    assert found.refused <= 0.02


def test_stalls_of_a_fast_server_do_not_widen_a_burst() -> None:
    best = max(burst(Server(0.005, stalls=0.01), Bounds(n, n)).pods_per_s for n in SWEEP)
    found = burst(Server(0.005, stalls=0.01), Bounds(2, 512))
    assert max(found.widths) <= 64
    assert found.pods_per_s >= 0.95 * best


def test_width_follows_a_latency_that_changes_in_the_middle_of_a_burst() -> None:
    server, adaptive = Server(0.005), AdaptiveWidth(Bounds(2, 512), CALM)

    def width_after(latency_s: float) -> float:
        """The mean width of the last of 20,000 answers."""
        nonlocal adaptive
        server.latency_s, now_s, answers = latency_s, max(server.threads), list[tuple[float, float]]()
        widths = list[float]()
        for _ in range(20_000):
            while len(answers) < int(adaptive.width):
                heapq.heappush(answers, (server.send(now_s)[0], now_s))
            now_s, sent_s = answers[0]
            adaptive.answered(sent_s, now_s, len(answers))
            heapq.heappop(answers)
            widths.append(adaptive.width)
        return sum(widths[-2_000:]) / 2_000

    assert width_after(0.005) < 64
    assert width_after(0.5) > 400
    assert width_after(0.005) < 64


def test_width_shrinks_to_what_a_short_queue_uses() -> None:
    adaptive = AdaptiveWidth(Bounds(2, 512), CALM)
    for number in range(500):
        adaptive.answered(number, number + 0.5, int(adaptive.width))
    assert adaptive.width == 512
    for number in range(1_000, 1_100):
        adaptive.answered(number, number + 0.5, 3)
    assert adaptive.width == CALM


events = st.lists(
    st.tuples(st.floats(0.0, 10.0), st.floats(0.0, 30.0), st.integers(1, 2_000), st.booleans()), max_size=200
)


@example(least=1, more=1, calm=16, answered=[(0.0, 0.0, 1, False)])  # 1.8: one request is all that may be in flight
@given(st.integers(1, 1024), st.integers(0, 1023), st.integers(1, 16), events)
def test_width_stays_within_its_bounds_whatever_is_answered(
    least: int, more: int, calm: int, answered: list[tuple[float, float, int, bool]]
) -> None:
    bounds, now_s = Bounds(least, min(1024, least + more)), 0.0
    adaptive = AdaptiveWidth(bounds, calm)
    for passed_s, latency_s, in_flight, is_success in answered:
        now_s += passed_s
        before = adaptive.width
        if is_success:
            adaptive.answered(now_s - latency_s, now_s, in_flight)
        else:
            adaptive.refused(now_s - latency_s, now_s)
            assert adaptive.width <= before
        assert bounds.least <= adaptive.width <= bounds.most
    answers = 0
    while adaptive.width < bounds.most and answers < 30_000:  # refusals have ended, and the latency is constant
        adaptive.answered(now_s + answers, now_s + answers + 0.5, int(adaptive.width))
        answers += 1
    assert adaptive.width == bounds.most

"""The rate of a serverless unit: a token bucket, and what it learns from a provider that throttles."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domains.job.providers.rate import LEAST_SHARE, SandboxRate, Token
from multisched.cluster.kubelet.provider import ProviderAccount, ProviderSettings
from tests.unit.cluster.cluster_kit import EPOCH

ECI = ProviderSettings()


@dataclass
class Run:
    """Pods that wait for sandboxes, paced by a SandboxRate, at a provider that answers after some time.

    A throttled pod is created again.
    """

    pods: int
    seed: int
    real: ProviderSettings = ECI
    started_after_s: float = 0.0
    """Time between a create and the report of its success, in addition to the answer."""
    calls: list[tuple[float, bool]] = field(default_factory=list)
    """Time, and whether it was accepted."""
    rates: list[tuple[float, float]] = field(default_factory=list)

    def play(self, *changes: tuple[float, float], bursts_s: Iterable[float] = (0.0,)) -> Run:
        """Runs until each pod has a sandbox. `changes`: time, and the provider's rate from then on. `bursts_s`: when all pods arrive."""
        rng, numbers = random.Random(self.seed), count()
        account, rate = ProviderAccount(self.real, 0.0), SandboxRate(100, 20.0, 0.0)
        events: list[tuple[float, int, Callable[[float], None]]] = []

        def at(time_s: float, action: Callable[[float], None]) -> None:
            heapq.heappush(events, (time_s, next(numbers), action))

        def latency_s() -> float:
            return rng.uniform(0.02, 0.3)

        def send(now_s: float) -> None:
            while self.pods and (token := rate.take(now_s)) is not None:
                self.pods -= 1
                at(now_s + latency_s(), lambda arrived_s, token=token: create(arrived_s, token))  # type: ignore[misc]
            self.rates.append((now_s, rate.per_second))
            if self.pods:
                at(now_s + max(rate.ready_in_s(now_s), 1e-6), send)

        def create(now_s: float, token: Token) -> None:
            error = account.create(str(next(numbers)), "n", {}, now_s, EPOCH)
            self.calls.append((now_s, not error))
            if error:
                at(now_s + latency_s(), lambda seen_s: throttled(seen_s, token))
            else:
                at(now_s + latency_s() + self.started_after_s, lambda _: rate.on_success(token))

        def throttled(now_s: float, token: Token) -> None:
            rate.on_throttled(token, now_s)
            self.pods += 1
            if self.pods == 1:
                send(now_s)

        def change(per_second: float) -> Callable[[float], None]:
            return lambda now_s: account.configure(msgspec.structs.replace(self.real, perSecond=per_second), now_s)

        for time_s, per_second in changes:
            at(time_s, change(per_second))

        def arrive(pods: int) -> Callable[[float], None]:
            def action(now_s: float) -> None:
                self.pods += pods
                send(now_s)

            return action

        each, self.pods = self.pods, 0
        for burst_s in bursts_s:
            at(burst_s, arrive(each))
        while events:
            now_s, _, action = heapq.heappop(events)
            action(now_s)
        return self

    def failed_share(self, since_s: float = 0.0, until_s: float = math.inf) -> float:
        seen = [accepted for at_s, accepted in self.calls if since_s <= at_s < until_s]
        return seen.count(False) / len(seen)

    def accepted_per_second(self, since_s: float, until_s: float) -> float:
        return sum(accepted for at_s, accepted in self.calls if since_s <= at_s < until_s) / (until_s - since_s)

    def last_s(self) -> float:
        return max(at_s for at_s, accepted in self.calls if accepted)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("started_after_s", [0.0, 20.0])
def test_three_thousand_pods_are_paced_at_the_provider_rate(seed: int, started_after_s: float) -> None:
    run = Run(3_000, seed, started_after_s=started_after_s).play()

    assert run.failed_share() <= 0.01
    assert run.last_s() <= 1.05 * 145.0


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("started_after_s", [0.0, 20.0])
def test_halved_rate_is_learned_in_thirty_seconds_with_few_failures(seed: int, started_after_s: float) -> None:
    run = Run(3_000, seed, started_after_s=started_after_s).play((30.0, 10.0))

    assert run.failed_share(30.0) <= 0.05
    assert run.failed_share(30.0, 60.0) <= 0.05
    assert run.failed_share(60.0, 120.0) <= 0.03
    assert run.accepted_per_second(60.0, 120.0) >= 9.0
    assert run.last_s() <= 1.15 * 260.0


@pytest.mark.parametrize("per_second", [1.0, 5.0, 15.0, 19.0])
def test_any_rate_below_the_configured_one_is_learned_and_used(per_second: float) -> None:
    run = Run(int(100 + 300 * per_second), 1, ProviderSettings(perSecond=per_second)).play()

    assert run.failed_share(60.0) <= 0.05
    assert run.accepted_per_second(60.0, 260.0) >= 0.9 * per_second


def test_restored_rate_is_learned_again_in_thirty_seconds() -> None:
    run = Run(6_000, 1).play((30.0, 10.0), (200.0, 20.0))

    assert run.accepted_per_second(230.0, 260.0) >= 19.0
    assert run.failed_share(200.0) <= 0.01


def test_rate_restored_in_a_quiet_hour_is_learned_again() -> None:
    run = Run(3_000, 1).play((30.0, 10.0), (400.0, 20.0), bursts_s=(0.0, 3_600.0))

    assert run.accepted_per_second(3_630.0, 3_660.0) >= 19.0


def test_smaller_burst_than_configured_is_learned() -> None:
    starts_s = [60.0 * number for number in range(10)]
    run = Run(300, 1, ProviderSettings(burst=20)).play(bursts_s=starts_s)

    assert run.failed_share(0.0, 60.0) > 0.1
    assert run.failed_share(240.0) <= 0.02


steps = st.lists(
    st.tuples(st.sampled_from(["take", "back", "success", "throttled", "failed"]), st.floats(0, 5)), max_size=80
)


@given(st.integers(1, 200), st.floats(0.01, 1000), steps)
def test_tokens_never_exceed_the_burst_and_the_configured_rate(
    burst: int, per_second: float, taken: list[tuple[str, float]]
) -> None:
    rate, now_s, open_tokens, sent_s = SandboxRate(burst, per_second, 0.0), 0.0, list[Token](), list[float]()
    for action, after_s in taken:
        now_s += after_s
        if action == "take":
            token = rate.take(now_s)
            open_tokens += [] if token is None else [token]
            sent_s += [] if token is None else [now_s]
        elif open_tokens:
            token = open_tokens.pop()
            if action == "back":
                rate.give_back(token, now_s)
                sent_s.remove(token.sent_s)
            elif action == "success":
                rate.on_success(token)
            elif action == "failed":
                rate.on_failed(token)
            else:
                rate.on_throttled(token, now_s)
        assert rate.available(now_s) <= burst
        assert per_second * LEAST_SHARE <= rate.per_second <= per_second
        assert (rate.ready_in_s(now_s) == 0.0) == (rate.available(now_s) >= 1)
    for place, first_s in enumerate(sent_s):
        for number, last_s in enumerate(sent_s[place:], 1):
            assert number <= burst + per_second * (last_s - first_s) + 1e-6 * number


def test_token_that_was_not_used_is_returned_once() -> None:
    rate = SandboxRate(10, 1.0, 0.0)
    tokens = [rate.take(0.0) for _ in range(10)]
    assert rate.take(0.0) is None
    assert tokens[0] is not None
    rate.give_back(tokens[0], 0.0)
    rate.give_back(tokens[0], 0.0)

    assert rate.available(0.0) == 1


def test_rate_is_halved_once_for_failures_of_creates_sent_before_the_decrease() -> None:
    rate = SandboxRate(12, 8.0, 0.0)
    tokens = [rate.take(0.0) for _ in range(10)]
    halved = [rate.on_throttled(token, 1.0) for token in tokens if token is not None]

    assert halved == [True] + [False] * 9
    assert rate.per_second == 4.0
    token = rate.take(2.0)
    assert token is not None
    assert rate.on_throttled(token, 2.5)
    assert rate.per_second == 2.0


def test_success_without_waiting_for_tokens_increases_nothing() -> None:
    rate = SandboxRate(10, 8.0, 0.0)
    token = rate.take(0.0)
    assert token is not None
    rate.on_throttled(token, 0.0)
    for second in range(1, 20):
        token = rate.take(float(second))
        assert token is not None
        rate.on_success(token)

    assert rate.per_second == 4.0


@pytest.mark.parametrize(("burst", "per_second"), [(0, 1.0), (1, 0.0), (1, math.inf), (1, math.nan)])
def test_rate_without_tokens_is_refused(burst: int, per_second: float) -> None:
    with pytest.raises(ValueError, match="burst must be"):
        SandboxRate(burst, per_second, 0.0)

"""The choice of pods that give capacity back, against every possible set."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from multisched.plugins.loans.victims import EXACT_MAX, Cost, Unit, cost_of, covers, least_loss
from multisched.testing.builders import make_pod

PODS = [make_pod(f"pod-{number}") for number in range(40)]
GREEDY_MAX = 16
WORST = 1.2

units = st.lists(
    st.builds(
        lambda cpu, memory, lost, spared, pods: Unit(
            tuple(PODS[:pods]), {"cpu": cpu, "memory": memory}, float(lost), min(spared, pods)
        ),
        st.integers(0, 4),
        st.integers(0, 4),
        st.integers(0, 1_000),
        st.integers(0, 1),
        st.integers(1, 3),
    ),
    max_size=EXACT_MAX,
)
excesses = st.fixed_dictionaries({"cpu": st.integers(1, 12)}, optional={"memory": st.integers(1, 12)})


def best(some: list[Unit], excess: dict[str, int]) -> Cost | None:
    """Returns the least cost of any set that frees enough; None if there is none."""
    sets = (found for count in range(len(some) + 1) for found in combinations(some, count))
    return min((cost_of(found) for found in sets if covers(found, excess)), default=None)


@given(units, excesses)
def test_few_units_give_the_best_set_or_all_that_free_something(some: list[Unit], excess: dict[str, int]) -> None:
    found, least = least_loss(some, excess), best(some, excess)
    if least is None:
        assert found == [one for one in some if any(one.frees.get(name, 0) for name in excess)]
    else:
        assert covers(found, excess)
        assert cost_of(found) == least


def test_many_units_lose_at_most_a_fifth_more_than_the_best_set() -> None:
    rng = np.random.default_rng(45)
    lost = least = 0.0
    for _ in range(60):
        count = int(rng.integers(EXACT_MAX + 1, GREEDY_MAX + 1))
        some = [
            Unit((PODS[number],), {"cpu": cores}, cores * age_s)
            for number, cores, age_s in zip(
                range(count),
                rng.choice([1, 1, 2, 4], count).tolist(),
                rng.exponential(600.0, count).tolist(),
                strict=True,
            )
        ]
        excess = {"cpu": int(rng.integers(1, 1 + sum(one.frees["cpu"] for one in some)))}
        found = least_loss(some, excess)
        assert covers(found, excess)
        best_lost = lost_by_size(some, excess["cpu"])
        assert sum(one.lost for one in found) <= 2.0 * best_lost
        lost, least = lost + sum(one.lost for one in found), least + best_lost
    assert least < lost <= WORST * least


def lost_by_size(some: list[Unit], cores: int) -> float:
    """Returns the least work lost by any set: every set is tried, all at once."""
    chosen = (np.arange(2 ** len(some))[:, None] >> np.arange(len(some))) & 1
    enough = chosen @ [one.frees["cpu"] for one in some] >= cores
    return float((chosen[enough] @ [one.lost for one in some]).min())


@given(st.lists(st.floats(0.0, 1e4), min_size=EXACT_MAX + 1, max_size=40), st.data())
def test_of_many_equal_units_those_with_the_least_work_lost_are_taken(losses: list[float], data: st.DataObject) -> None:
    some = [Unit((PODS[number],), {"cpu": 1_000}, lost) for number, lost in enumerate(losses)]
    count = data.draw(st.integers(1, len(some)))
    found = least_loss(some, {"cpu": 1_000 * count - 1})
    assert sorted(one.lost for one in found) == sorted(losses)[:count]

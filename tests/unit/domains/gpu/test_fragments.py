"""Fragments: examples by hand, and the arrays against plain Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from domains.gpu.fragments import Fragments
from domains.gpu.typical_pods import PodShape, TypicalPod, distance, typical_of
from tests.kit.checkers import plain_fragments

MODELS = ("", "T4", "V100")


def single_shape(*shape: object) -> tuple[TypicalPod, ...]:
    return (TypicalPod(PodShape(*shape), 1.0),)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("left", "cpu_milli", "typical", "expected"),
    [
        ([400, 300], 8000, single_shape(4000, 500, 1), 700),  # no card has enough
        ([400, 600], 8000, single_shape(4000, 500, 1), 400),  # what the second has is of use
        ([400, 600], 3999, single_shape(4000, 500, 1), 1000),  # CPU is lacking
        ([400, 600], 8000, single_shape(4000, 0, 0), 1000),  # no card is of use to a pod without GPU
        ([1000, 600, 1000], 8000, single_shape(4000, 1000, 2), 600),
        ([1000, 600, 400], 8000, single_shape(4000, 1000, 2), 2000),  # one whole card is too few
        ([1000, 1000], 8000, single_shape(4000, 500, 1, ("V100",)), 2000),  # another model is wanted
        ([1000, 1000], 8000, single_shape(4000, 500, 1, ("T4", "V100")), 0),
        ([400, 600], 8000, (), 0),
        (
            [400, 600],
            8000,
            (TypicalPod(PodShape(4000, 500, 1), 0.75), TypicalPod(PodShape(4000, 0, 0), 0.25)),
            0.75 * 400 + 0.25 * 1000,
        ),
    ],
)
def test_fragments_of_one_node(
    left: list[int], cpu_milli: int, typical: tuple[TypicalPod, ...], expected: float
) -> None:
    found = Fragments(typical, MODELS).of(np.array([left]).T, np.array([cpu_milli]), np.array([MODELS.index("T4")]))

    assert found.tolist() == pytest.approx([expected])
    assert plain_fragments.fragments(left, cpu_milli, "T4", typical) == pytest.approx(expected)


SHAPES = st.builds(
    PodShape,
    st.sampled_from((0, 1000, 2000, 4000)),
    st.sampled_from((0, 100, 250, 500, 999, 1000)),
    st.sampled_from((1, 1, 2)),
    st.sampled_from(((), ("T4",), ("T4", "V100"), ("other",))),
).map(lambda one: one if one.milli else replace(one, count=0, models=()))
COUNTS = st.dictionaries(SHAPES, st.integers(1, 50), max_size=8)
STATES = st.lists(
    st.tuples(st.lists(st.sampled_from((0, 99, 100, 400, 500, 1000)), min_size=4, max_size=4), st.integers(0, 5000), st.integers(0, 2)),
    min_size=1,
    max_size=6,
)  # fmt: skip


@given(COUNTS, STATES)
def test_arrays_equal_plain_arithmetic(counts: dict[PodShape, int], states: list[tuple[list[int], int, int]]) -> None:
    typical = typical_of(counts)
    left, cpu_milli, model = (np.array(part) for part in zip(*states, strict=True))

    found = Fragments(typical, MODELS).of(left.T, cpu_milli, model)

    assert found.tolist() == pytest.approx(
        [plain_fragments.fragments(cards, idle, MODELS[number], typical) for cards, idle, number in states]
    )
    by_card = Fragments(typical, MODELS).by_card(left.T, cpu_milli, model)
    assert by_card.sum(axis=0).tolist() == pytest.approx(found.tolist(), abs=1e-6)
    assert (by_card >= -1e-6).all()
    assert (by_card <= left.T).all()


@given(COUNTS, STATES, st.integers(1, 1000), st.integers(0, 5000))
def test_rises_equal_the_differences_of_fragments(
    counts: dict[PodShape, int], states: list[tuple[list[int], int, int]], milli: int, pod_cpu_milli: int
) -> None:
    left, idle, model = (np.array(part) for part in zip(*states, strict=True))
    left, rest = left.T, np.maximum(idle - pod_cpu_milli, 0)
    fragments = Fragments(typical_of(counts), MODELS)

    rises = fragments.rises(left, (idle, rest), model, np.full(len(idle), milli))

    for place, state in np.argwhere(left >= milli).tolist():
        after = left[:, [state]].copy()
        after[place] -= milli
        of_state = model[[state]]
        expected = fragments.of(after, rest[[state]], of_state) - fragments.of(
            left[:, [state]], idle[[state]], of_state
        )
        assert rises[place, state] == pytest.approx(expected[0], abs=1e-6)
    for number, (cards, cpu_milli, of_model) in enumerate(states):
        one_by_one = fragments.rises_of_one(
            cards, (cpu_milli, max(cpu_milli - pod_cpu_milli, 0)), of_model, milli, cards
        )
        assert one_by_one == pytest.approx(rises[:, number].tolist(), abs=1e-9)


def test_typical_pods_are_the_most_frequent_ones_with_95_percent() -> None:
    many, some, few, rare = (PodShape(1000, milli, 1) for milli in (100, 200, 300, 400))

    found = typical_of({rare: 2, many: 60, few: 15, some: 23})

    assert [one.shape for one in found] == [many, some, few]
    assert [one.share for one in found] == pytest.approx([60 / 98, 23 / 98, 15 / 98])


def test_distance_of_mixes_is_the_share_of_pods_that_differ() -> None:
    one, other = PodShape(1000, 100, 1), PodShape(1000, 200, 1)
    half = typical_of({one: 1, other: 1})

    assert distance(half, half) == 0
    assert distance(half, typical_of({one: 3, other: 1})) == pytest.approx(0.25)
    assert distance(half, typical_of({PodShape(0, 0, 0): 1})) == pytest.approx(1)

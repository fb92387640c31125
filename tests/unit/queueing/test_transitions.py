"""Every pair of places is decided, and a forbidden one says why."""

from __future__ import annotations

from itertools import product

import pytest

from multisched.queueing.transitions import ALLOWED, FORBIDDEN, QueueInvariantError, QueueState, check


def test_every_pair_of_states_is_allowed_or_forbidden() -> None:
    assert ALLOWED.keys() | FORBIDDEN.keys() == set(product(QueueState, QueueState))
    assert not ALLOWED.keys() & FORBIDDEN.keys()


@pytest.mark.parametrize("step", sorted(FORBIDDEN))
def test_forbidden_transition_raises_with_reason_and_history(step: tuple[QueueState, QueueState]) -> None:
    with pytest.raises(QueueInvariantError) as caught:
        check("u1", *step, ["0.000s UnschedulablePodAdd → active"])

    assert FORBIDDEN[step] in str(caught.value)
    assert "UnschedulablePodAdd" in str(caught.value)


@pytest.mark.parametrize("step", sorted(ALLOWED))
def test_allowed_transition_passes(step: tuple[QueueState, QueueState]) -> None:
    assert check("u1", *step) is None  # type: ignore[func-returns-value]

"""Counts in sentences."""

from __future__ import annotations

from multisched.model.plural import counted, verb


def test_only_one_is_singular() -> None:
    assert [counted(number, "pod") for number in (0, 1, 2)] == ["0 pods", "1 pod", "2 pods"]
    assert [verb(number, "is", "are") for number in (0, 1, 2)] == ["are", "is", "are"]

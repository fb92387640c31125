"""Typical pods: the shapes of pods that a cluster runs most, with their shares. Fragments are measured against them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from domains.gpu.cards import CARD_MILLI, Amount
from domains.gpu.demand import GpuDemand

COVERAGE: Final = 0.95
"""The most frequent shapes with this share of all pods are typical. Rare shapes cost time and change little."""
TYPICAL_MAX: Final = 128


class PodShape(msgspec.Struct, frozen=True, order=True):
    """The properties of a pod that matter for fragments."""

    cpu_milli: int
    milli: int
    """Thousandths of each of its cards; 0 for a pod without GPUs."""
    count: int
    models: tuple[str, ...] = ()
    """Accepted models of cards; empty: all."""


class TypicalPod(msgspec.Struct, frozen=True):
    """A shape, and its share of the typical pods: above 0, at most 1."""

    shape: PodShape
    share: float


Typical = tuple[TypicalPod, ...]


def typical_of(weights: Mapping[PodShape, float]) -> Typical:
    """Returns the most frequent shapes, with shares that sum to 1; the smaller shape first of equally frequent ones.

    Source: Weng et al., "Beware of Fragmentation", USENIX ATC 2023, section 4.2, and the authors' simulator.
    """
    total, covered = sum(weights.values()), 0.0
    chosen: list[tuple[PodShape, float]] = []
    for shape, weight in sorted(weights.items(), key=lambda one: (-one[1], one[0])):
        if covered >= COVERAGE * total or len(chosen) >= TYPICAL_MAX:
            break
        chosen.append((shape, weight))
        covered += weight
    return tuple(TypicalPod(shape, weight / covered) for shape, weight in chosen if weight > 0)


def shape_of(demand: GpuDemand | None, cpu_milli: int, card_memory: int = 0) -> PodShape | None:
    """Returns a pod's shape, by the first part of its demand; None for amounts that are not parts of a card.

    `card_memory`: of the card that it gets, in the unit in which it requests memory; 0 if unknown.
    """
    if demand is None:
        return PodShape(cpu_milli, 0, 0)
    part = demand.parts[0]
    milli = milli_of(part.amount, card_memory)
    if demand.is_counted or demand.problem or not 0 < milli <= CARD_MILLI:
        return None
    return PodShape(cpu_milli, milli, part.count, demand.filter.models)


def milli_of(amount: Amount, card_memory: int) -> int:
    """Returns an amount in thousandths of a card, rounded up; 0 if that is unknown."""
    if amount.milli:
        return amount.milli
    if amount.percent:
        return 10 * amount.percent
    return -(-CARD_MILLI * amount.memory // card_memory) if card_memory else 0


def distance(one: Typical, other: Typical) -> float:
    """Returns the total variation distance of two mixes, 0 to 1: the share of pods that would have to change."""
    shares = [{pod.shape: pod.share for pod in mix} for mix in (one, other)]
    shapes: Iterable[PodShape] = sorted(shares[0].keys() | shares[1].keys())
    return sum(abs(shares[0].get(shape, 0.0) - shares[1].get(shape, 0.0)) for shape in shapes) / 2

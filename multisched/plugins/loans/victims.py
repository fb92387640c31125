"""Which pods of a borrower give back capacity on one row: the set with the least work lost. Pure.

Work lost is the time since the start, or the last checkpoint that the pod's job published, times cores. A gang that cannot spare the
pod is evicted whole, so all its pods count. Pods whose job has few retries left, or whose owner lost many pods in the last hour, are
taken only if the others are not enough; the fewer retries, the later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Final

import msgspec

from multisched.model.objects import Pod

EXACT_MAX: Final = 10
"""With this many units, every set is compared; with more, the best of a few orders is taken."""

Cost = tuple[int, float, int]
"""How much the pods should be spared, core-seconds lost, pods: less is better, the first counts most."""


class Unit(msgspec.Struct, frozen=True):
    """Pods that are evicted together."""

    pods: tuple[Pod, ...]
    frees: Mapping[str, int]
    """Resource -> amount that this frees on the row."""
    lost: float
    """Core-seconds."""
    spared: int = 0
    """How much its pods should be spared, as a sum."""


def least_loss(units: Sequence[Unit], excess: Mapping[str, int]) -> list[Unit]:
    """Returns the units to evict so that at least `excess` is freed; all that free something if they are not enough."""
    useful = [one for one in units if any(one.frees.get(name, 0) > 0 for name in excess)]
    if not covers(useful, excess):
        return useful
    if len(useful) <= EXACT_MAX:
        sets = (some for count in range(1, len(useful) + 1) for some in combinations(useful, count))
        return list(min((some for some in sets if covers(some, excess)), key=cost_of))
    orders: tuple[Callable[[Unit], float], ...] = (
        lambda unit: unit.lost,
        lambda unit: unit.lost / _share(unit, excess),
        lambda unit: -_share(unit, excess),
    )
    found = [_needed(sorted(useful, key=lambda unit: (unit.spared, order(unit))), excess) for order in orders]
    found += [[one] for one in useful if covers((one,), excess)]
    return min(found, key=cost_of)


def cost_of(units: Iterable[Unit]) -> Cost:
    """Returns what evicting the units costs."""
    units = tuple(units)
    return sum(one.spared for one in units), sum(one.lost for one in units), sum(len(one.pods) for one in units)


def covers(units: Iterable[Unit], excess: Mapping[str, int]) -> bool:
    """Reports whether evicting the units frees at least `excess`."""
    units = tuple(units)
    return all(sum(one.frees.get(name, 0) for one in units) >= amount for name, amount in excess.items())


def _share(unit: Unit, excess: Mapping[str, int]) -> float:
    """Returns how much of the excess the unit frees, as the sum over resources of at most 1 each; above 0."""
    return sum(min(1.0, unit.frees.get(name, 0) / amount) for name, amount in excess.items() if amount > 0) or 1e-9


def _needed(order: Sequence[Unit], excess: Mapping[str, int]) -> list[Unit]:
    """Takes units in this order until they are enough, then leaves out those that are not needed, the most expensive first."""
    taken: list[Unit] = []
    for unit in order:
        if covers(taken, excess):
            break
        taken.append(unit)
    for unit in sorted(taken, key=lambda one: (-one.spared, -one.lost)):
        others = [one for one in taken if one is not unit]
        if covers(others, excess):
            taken = others
    return taken

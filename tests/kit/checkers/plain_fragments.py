"""The fragmentation score of one node in plain Python, as in reference/fgd.md. The vectorised implementation must equal it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from domains.gpu.typical_pods import PodShape, Typical

IDLE_CARD = 1000


def fragments_for(left: Sequence[int], cpu_milli: int, model: str, shape: PodShape) -> int:
    """Returns the idle thousandths that pods of this shape cannot use."""
    enough = [one for one in left if one >= shape.milli]
    can_run = (
        shape.count > 0
        and (not shape.models or model in shape.models)
        and cpu_milli >= shape.cpu_milli
        and len(enough) >= shape.count
    )
    return sum(one for one in left if one < shape.milli) if can_run else sum(left)


def fragments(left: Sequence[int], cpu_milli: int, model: str, typical: Typical) -> float:
    return math.fsum(one.share * fragments_for(left, cpu_milli, model, one.shape) for one in typical)


def points(before: float, after: float) -> int:
    return int(round(100 / (1 + math.exp((after - before) / 1000)), 6))


def ways(left: Sequence[int], milli: int, count: int) -> list[tuple[int, ...]]:
    """Returns the choices that are tried: for one card, each that fits; for several, the least free ones."""
    fitting = sorted((place for place, one in enumerate(left) if one >= milli), key=lambda place: left[place])
    if count == 1:
        return [(place,) for place in sorted(fitting)]
    return [tuple(fitting[:count])] if len(fitting) >= count else []


def placed(left: Sequence[int], places: Sequence[int], milli: int) -> list[int]:
    return [one - milli * (place in places) for place, one in enumerate(left)]


def score(
    left: Sequence[int], cpu_milli: int, model: str, typical: Typical, shape: PodShape
) -> tuple[int, tuple[int, ...]]:
    """Returns the score of the node and the chosen cards, for a pod that accepts the model; 0 and none if it does not fit."""
    before, idle = fragments(left, cpu_milli, model, typical), cpu_milli - shape.cpu_milli
    if not shape.count:
        return points(before, fragments(left, idle, model, typical)), ()
    found = [
        (-points(before, fragments(placed(left, places, shape.milli), idle, model, typical)), places)
        for places in ways(left, shape.milli, shape.count)
    ]
    best, places = min(found, default=(0, ()))
    return -best, places

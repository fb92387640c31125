"""Makes the history that ships with the demo: `python -m tests.unit.demo.make_history`. Its test says when it is stale."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

HISTORY: Final = Path(__file__).parents[3] / "multisched" / "demo" / "history.csv"
BEGIN: Final = datetime(2026, 1, 5, tzinfo=UTC)
"""A Monday."""
DAYS: Final = 14
NOISE: Final = 0.04
MEMORY_UNIT: Final = 2**20


class Shape(NamedTuple):
    """What one replica uses: cores at the quietest and at the busiest hour, that hour, how wide the peak is, and MiB."""

    low: float
    high: float
    hour: float
    width_h: float
    memory_mib: int
    weekend: float = 1.0
    """Times as much at the peak of Saturday and Sunday."""


SHAPES: Final = {
    "web": Shape(0.6, 4.2, 20.5, 2.2, 700, 1.15),
    "api": Shape(0.5, 3.0, 20.0, 2.4, 1_400, 1.1),
    "search": Shape(0.8, 4.8, 19.5, 2.6, 5_000, 1.05),
    "ingest": Shape(0.4, 3.6, 2.5, 2.0, 1_300),
    "cache": Shape(0.9, 1.2, 20.0, 4.0, 8_000),
    "reports": Shape(0.1, 4.4, 5.0, 1.6, 400, 0.3),
}
"""By service: those of people peak in the evening, those of the night are busy before the morning."""


def lines() -> Iterator[str]:
    """Header first."""
    rng = random.Random(20)
    yield "timestamp,service,dimension,value"
    for name, shape in SHAPES.items():
        for hour in range(24 * DAYS):
            moment = BEGIN + timedelta(hours=hour)
            at = f"{moment:%Y-%m-%dT%H}:00Z,{name}"
            yield f"{at},cpu,{_cores(shape, moment) * rng.gauss(1.0, NOISE):.2f}"
            yield f"{at},memory,{round(shape.memory_mib * rng.gauss(1.0, NOISE / 4)) * MEMORY_UNIT}"


def _cores(shape: Shape, moment: datetime) -> float:
    apart = abs(moment.hour - shape.hour)
    apart = min(apart, 24.0 - apart)
    high = shape.high * (shape.weekend if moment.weekday() >= 5 else 1.0)
    return shape.low + (high - shape.low) * math.exp(-((apart / shape.width_h) ** 2) / 2)


if __name__ == "__main__":
    HISTORY.write_text("".join(f"{line}\n" for line in lines()))

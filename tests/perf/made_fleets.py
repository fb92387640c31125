"""Fleets that are made, for benches: services with replicas, requests and use per replica, written as the CSV files of a scenario.

The same kind and seed give the same files. Requests say nothing of use, as in most fleets.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

STEPS_PER_DAY: Final = 96
DAYS: Final = 28
BEGIN: Final = datetime(2026, 1, 5)
"""A Monday."""
PEAKS: Final = (20.5, 12.5, 3.0, -1.0)
"""Hours at which services peak; below zero: never."""

Floats = NDArray[np.float64]


class Kind(NamedTuple):
    """What fleets are like."""

    services: int
    replicas: tuple[int, int]
    peaks: tuple[float, ...]
    """How many of the services peak at each of PEAKS."""
    rest: tuple[float, float]
    """By how much less a service is used at the weekend, from and to; below zero: more."""
    noise: float
    """Standard deviation of what comes new in each step."""
    nodes: tuple[tuple[int, float], ...]
    """How many nodes of which size."""


KINDS: Final = {
    "online": Kind(60, (3, 15), (0.45, 0.2, 0.2, 0.15), (-0.2, 0.6), 0.05, ((40, 1.0),)),
    "few-large": Kind(12, (10, 60), (0.6, 0.2, 0.2, 0.0), (0.5, 0.9), 0.03, ((12, 1.0), (6, 2.0))),
    "many-small": Kind(200, (1, 4), (0.3, 0.4, 0.1, 0.2), (-0.8, 0.8), 0.1, ((25, 1.0), (5, 3.0))),
}


def write_fleet(kind: Kind, seed: int, folder: Path) -> None:
    """`services.csv` and `usage.csv`."""
    rng = np.random.default_rng(seed)
    hours = np.arange(DAYS * STEPS_PER_DAY) * 24 / STEPS_PER_DAY
    times = [(BEGIN + timedelta(hours=hour)).isoformat() for hour in hours.tolist()]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "services.csv").open("w") as services, (folder / "usage.csv").open("w") as usage:
        services.write("service,replicas,cpu_request,memory_request_gib\n")
        usage.write("timestamp,service,dimension,value\n")
        for number in range(kind.services):
            name, shape = f"service-{number:03}", _shape(kind, rng, hours)
            replicas = rng.integers(kind.replicas[0], kind.replicas[1] + 1)
            services.write(f"{name},{replicas},{rng.choice([0.5, 1, 1, 2, 2, 4])},{rng.choice([1, 2, 4, 8])}\n")
            for dimension, values in _use(rng, shape).items():
                usage.writelines(f"{t},{name},{dimension},{v:.4f}\n" for t, v in zip(times, values, strict=True))


def _shape(kind: Kind, rng: np.random.Generator, hours: Floats) -> Floats:
    """Around 1 at the peak, with weekends, noise that lasts, and growth."""
    peak, width = rng.choice(PEAKS, p=kind.peaks), rng.uniform(2, 5)
    away = (hours - peak - rng.normal(0, 0.7) + 12) % 24 - 12
    shape = np.full(len(hours), 0.5) if peak < 0 else np.exp(-((away / width) ** 2))
    shape = shape * (1 - (hours // 24 % 7 >= 5) * rng.uniform(*kind.rest))
    shape = shape * (1 + rng.choice([0, 0, 0.1]) * hours / hours[-1])
    noise, steps = np.zeros(len(hours)), rng.normal(0, kind.noise, len(hours))
    for at in range(1, len(hours)):
        noise[at] = 0.8 * noise[at - 1] + steps[at]
    noisy: Floats = np.maximum(shape * (1 + noise), 0.01)
    return noisy


def _use(rng: np.random.Generator, shape: Floats) -> dict[str, Floats]:
    """Few services write most of the logs."""
    return {
        "cpu": rng.lognormal(0, 0.6) * (0.06 + shape),
        "log": rng.lognormal(-1, 1.3) * (0.1 + shape) * (1 + np.abs(rng.normal(0, 0.1, len(shape)))),
        "net": rng.lognormal(1, 0.9) * (0.05 + shape),
    }

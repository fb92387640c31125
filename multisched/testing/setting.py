"""What one simulated run is made of, drawn from its seed: configuration, replicas, pages, and which disruptions strike.

Every second seed runs the default configuration as it ships, with every time and every bound as it is; the others run three
domains that ask outside, hold pods at Permit and lend nodes to each other. Not every kind of disruption is in each run, so
that a run stays short; over a hundred seeds each kind is met dozens of times.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from multisched import config
from multisched.config_schema import Configuration
from multisched.testing.disruptions import HEAVY, LIGHT
from multisched.testing.disruptions.scene import Disruption, Where

LIGHT_KINDS = 15
"""Disruptions of a run that leave the processes alone."""
HEAVY_KINDS = 2
"""Those that make a process lose its lease, give it back, or come back late."""
PAGE_MIN_ITEMS, PAGE_MAX_ITEMS = 3, 50
ARRIVALS = (50, 100)
WORKLOADS = (2, 3)
REPLICAS = (2, 2, 2, 3)
SLOW_BINDS = 0.35
"""Of all runs: in these a bind takes up to SLOW_BIND_MAX_S."""
SLOW_BIND_MAX_S = 2.5

_ASKING_DOMAIN = """
- name: {name}
  concurrency: {{cycles: 8, bindWorkers: 16, maxInFlightBinds: 16}}
  profile:
    plugins:
      enabled:
      - {{name: "multisched.testing.plugins:SlowOracle", weight: {weight}}}
      - {{name: "multisched.testing.plugins:ReserveBooks"}}
      - {{name: "multisched.testing.plugins:HoldSome"}}
"""
_ASKING_WEIGHTS = {"forecast": 50, "gpu": 5, "job": 5}
ASKING = f"""
apiVersion: multisched.io/v1
kind: MultischedConfiguration
domains:
{"".join(_ASKING_DOMAIN.format(name=name, weight=weight) for name, weight in _ASKING_WEIGHTS.items())}
  loans:
  - from: forecast
    selector:
      matchLabels: {{lend: "yes"}}
"""
"""Three domains in which parallel cycles meet: the profiles wait for answers."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One run's conditions."""

    configuration: Configuration
    is_shipped: bool
    """The default configuration, unchanged."""
    replicas: int
    page_items: int
    """So many objects come with each page of a list, whatever was asked for."""
    arrivals: int
    """Single pods."""
    workloads: int
    bind_max_s: float
    """How long a bind may take beside its way."""
    kinds: Sequence[str]
    """Disruptions, in the order in which they strike."""


def drawn(seed: int, kinds: Sequence[str] | None = None) -> Setting:
    """The setting of a seed; with `kinds`, of these disruptions alone."""
    rng = random.Random(f"{seed}/setting")  # noqa: S311 - a simulation
    is_shipped = seed % 2 == 0
    return Setting(
        configuration=config.default() if is_shipped else config.parse(ASKING, "scenario"),
        is_shipped=is_shipped,
        replicas=rng.choice(REPLICAS),
        page_items=rng.randint(PAGE_MIN_ITEMS, PAGE_MAX_ITEMS),
        arrivals=rng.randint(*ARRIVALS),
        workloads=rng.randint(*WORKLOADS),
        bind_max_s=rng.uniform(1.0, SLOW_BIND_MAX_S) if rng.random() < SLOW_BINDS else 0.0,
        kinds=tuple(kinds) if kinds is not None else _draw_kinds(rng, is_shipped=is_shipped),
    )


def _draw_kinds(rng: random.Random, *, is_shipped: bool) -> Sequence[str]:
    """Light and heavy ones, in the order in which they strike."""
    elsewhere = Where.ASKING if is_shipped else Where.SHIPPED
    found = [
        *_sample(rng, [one for one in LIGHT if one.where is not elsewhere], LIGHT_KINDS),
        *_sample(rng, [one for one in HEAVY if one.where is not elsewhere], HEAVY_KINDS),
    ]
    rng.shuffle(found)
    return found


def _sample(rng: random.Random, left: list[Disruption], most: int) -> list[str]:
    """By weight, none twice."""
    left = [one for one in left if not one.awaits]
    found: list[str] = []
    while left and len(found) < most:
        (one,) = rng.choices(left, [one.weight for one in left])
        left.remove(one)
        found.append(one.name)
    return found

"""Contests for shared GPUs: some pods are urgent and preempt others, and some form gangs. From `setting.CONTESTED_FROM` on.

All draws are from a generator of their own, so that the other pods for shared GPUs are those of a run without contests.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Final

from tests.kit.world.api_user import NAMESPACE
from tests.kit.world.gang_plans import Form, GangPlan, member_manifest
from tests.kit.world.gpu_nodes import GPUSHARE, HAMI, KOORDINATOR, VOLCANO, WHOLE
from tests.kit.world.gpu_pods import DEMANDS, CardDemand, manifest

URGENT: Final = 0.25
"""Share of pods without a gang, and of gangs, that may preempt."""
URGENT_CLASS: Final = "system-cluster-critical"
GANGS: Final = (4, 7)
COMES_S: Final = (0.5, 5.0)
"""Time between two gangs."""
SIZE: Final = (2, 3)
MODES: Final = (HAMI, HAMI, HAMI, VOLCANO, GPUSHARE, KOORDINATOR, WHOLE)
"""Modes of gangs. Only HAMi has two nodes: a device plugin that guesses its pods serves one member of equal ones at a time."""
SAME: Final = 0.6
"""Share of gangs of equal members."""
FORMS: Final = (Form.ACK, Form.ACK_AND_GROUP, Form.PLUGINS)
"""Koordinator's form is not used: by default such gangs start together only once."""
TIMEOUTS_S: Final = (10, 40)
LEAVES: Final = 0.6
"""Share of gangs that their users delete after `LEAVES_S`."""
LEAVES_S: Final = (3.0, 15.0)


@dataclass(frozen=True, slots=True)
class CardGang:
    """One gang of pods for shared GPUs."""

    plan: GangPlan
    demands: tuple[CardDemand, ...]
    """Of each member."""
    leaves_s: float | None
    """Time after which its users delete it; None: never."""

    def member(self, name: str, demand: CardDemand, rng: random.Random) -> dict[str, Any]:
        """Returns the manifest of a member, which runs until it is deleted."""
        pod, membership = manifest(name, demand, rng), member_manifest(self.plan, name)["metadata"]
        pod["metadata"]["labels"] |= membership["labels"]
        pod["metadata"]["annotations"] |= membership["annotations"]
        pod["metadata"]["annotations"].pop("multisched.io/run-seconds", None)
        pod["spec"].pop("restartPolicy", None)
        if self.plan.is_urgent:
            pod["spec"]["priorityClassName"] = URGENT_CLASS
        return pod


def make_urgent(pod: dict[str, Any], rng: random.Random) -> None:
    """Lets some pods preempt others."""
    if rng.random() < URGENT:
        pod["spec"]["priorityClassName"] = URGENT_CLASS


def drawn_gangs(rng: random.Random) -> list[CardGang]:
    return [_drawn(rng, f"carded-gang-{number}") for number in range(rng.randint(*GANGS))]


def _drawn(rng: random.Random, name: str) -> CardGang:
    mode, size = rng.choice(MODES), rng.randint(*SIZE)
    known = [one for one in DEMANDS if one.mode == mode]
    demands = (rng.choice(known),) * size if rng.random() < SAME else tuple(rng.choice(known) for _ in range(size))
    plan = GangPlan(
        name=name,
        namespace=NAMESPACE,
        scheduler="gpu-scheduler",
        form=rng.choice(FORMS),
        size=size,
        minimum=rng.choice((size, 2)),
        late=0,
        timeout_s=rng.choice(TIMEOUTS_S),
        cpu="",
        node="",
        never_starts=None,
        failing=0,
        succeeding=0,
        is_urgent=rng.random() < URGENT,
    )
    return CardGang(plan, demands, rng.uniform(*LEAVES_S) if rng.random() < LEAVES else None)

"""Pods of a simulation that relate to each other: some are given rules about others, and tastes about nodes."""

from __future__ import annotations

import random
from typing import Any

from tests.kit.world.labels import HOSTNAME, ZONE

LONERS, LEVELLED, COMPANIONS, INCLINED, FUSSY = 0.05, 0.05, 0.03, 0.06, 0.12
"""Shares of all pods. One part takes no second of its app on a host, one spreads over zones, one is in a zone with its
app. The others have preferences about pods, and about nodes."""

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


class Relations:
    """Draws rules for pods. By a pod's name, so that what else is drawn stays as it was."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def add_rules(self, pod: dict[str, Any]) -> None:
        """Gives some pods rules about pods of their own app."""
        rng = random.Random(f"{self._seed}/{pod['metadata']['name']}")
        selector = {"matchLabels": {"app": pod["metadata"]["labels"]["app"]}}
        host = {"topologyKey": HOSTNAME, "labelSelector": selector}
        zone = {"topologyKey": ZONE, "labelSelector": selector}
        spread = {**zone, "maxSkew": rng.randint(1, 3)}
        drawn = rng.random()
        for share, rules in (
            (LONERS, {"affinity": {"podAntiAffinity": {_REQUIRED: [host]}}}),
            (LEVELLED, {"topologySpreadConstraints": [{**spread, "whenUnsatisfiable": "DoNotSchedule"}]}),
            (COMPANIONS, {"affinity": {"podAffinity": {_REQUIRED: [zone]}}}),
            (
                INCLINED,
                {
                    "affinity": {"podAffinity": {_PREFERRED: [{"weight": 10, "podAffinityTerm": zone}]}},
                    "topologySpreadConstraints": [{**spread, "whenUnsatisfiable": "ScheduleAnyway"}],
                },
            ),
            (FUSSY, _preferences(rng)),
        ):
            if drawn < share:
                pod["spec"].update(rules)
                return
            drawn -= share


def _preferences(rng: random.Random) -> dict[str, Any]:
    """What a pod likes of nodes, which it need not get: few have all of it, and those may be full."""
    likes = [
        {"key": ZONE, "operator": "In", "values": [f"z{rng.randrange(3)}"]},
        {"key": "rank", "operator": rng.choice(("Gt", "Lt")), "values": [str(rng.randrange(40))]},
        {"key": HOSTNAME, "operator": "In", "values": [f"node-{rng.randrange(12)}" for _ in range(2)]},
    ]
    terms = [{"weight": rng.randint(1, 100), "preference": {"matchExpressions": [one]}} for one in rng.sample(likes, 2)]
    bears = {"key": "sim/rather", "operator": "Exists", **rng.choice(({}, {"effect": "PreferNoSchedule"}))}
    return {
        "affinity": {"nodeAffinity": {_PREFERRED: terms}},
        "tolerations": [bears] if rng.random() < 0.5 else [],
    }

"""Adds rules about other pods, and preferences for nodes, to some pods."""

from __future__ import annotations

import random
from typing import Any

from tests.kit.world.labels import HOSTNAME, ZONE

LONERS, LEVELLED, COMPANIONS, INCLINED, FUSSY = 0.05, 0.05, 0.03, 0.06, 0.12
"""Shares of pods with host anti-affinity to their app, with zone spreading, with zone affinity to their app, with preferences about
pods, and with preferences about nodes.
"""

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


class Relations:
    """Draws rules for pods, by the pod's name, so that no other draw changes."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def add_rules(self, pod: dict[str, Any]) -> None:
        """Adds rules about pods of the same app to some pods."""
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
    """Returns preferences for nodes: few nodes meet all of them, and those may be full."""
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

"""Teams below the leaves of a tree of quotas as a run draws them: some borrow early, others come later for what is theirs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from multisched.model.objects import CPU
from multisched.testing.world.labels import GPU, HOSTNAME, LICENCE
from multisched.testing.world.pod_manifests import small_spec
from multisched.testing.world.quota_trees import Level, leaves_of, units_of

PODS_MAX: Final = 14
"""Of one team at once."""
BORROWING_S: Final = (0.0, 4.0)
OWNING_S: Final = (9.0, 20.0)
"""When a team begins: those that borrow come first."""
TOGETHER: Final = 0.35
"""Of all teams: their pods want the node that others of these want, too."""
SHARED_NODE: Final = "node-5"
ACCELERATED: Final = 0.4
"""Of all teams of a domain with devices, or licences: their pods ask for one."""
LIMITS: Final = {"gpu-scheduler": GPU, "job-scheduler": LICENCE}
SIZES: Final = (1, 1, 2, 2, 3)
"""Of a pod, in units of CPU."""
MIXED: Final = 0.4
"""Of all teams: every third pod has another size, and another one is urgent."""
URGENT: Final = "system-cluster-critical"


@dataclass(slots=True)
class Team:
    """One namespace, and the pods that its controller keeps there."""

    namespace: str
    spec: dict[str, Any]
    is_borrowing: bool
    """It wants all that its leaf may have; else little more than its leaf is sure of."""
    is_mixed: bool
    replicas: int
    starts_s: float
    made: int = 0
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def pod(self) -> dict[str, Any]:
        """Its next one."""
        self.made += 1
        number = next(self.numbers)
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "team", "uid": f"uid-of-{self.namespace}"}
        metadata = {
            "name": f"{self.namespace}-{number}",
            "namespace": self.namespace,
            "labels": {"team": self.namespace},
            "ownerReferences": [{**owner, "controller": True}],
        }
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": self._spec_of(number)}

    def _spec_of(self, number: int) -> dict[str, Any]:
        if not self.is_mixed:
            return self.spec
        if number % 3 == 1:
            return self.spec | {"priorityClassName": URGENT}
        return self.spec if number % 3 else self.spec | {"containers": [_resized(self.spec["containers"][0])]}


def _resized(container: dict[str, Any]) -> dict[str, Any]:
    resources = container["resources"]
    other = "250m" if resources["requests"][CPU] != "250m" else "500m"
    return container | {"resources": resources | {"requests": resources["requests"] | {CPU: other}}}


def drawn_teams(rng: random.Random, root: Level, namespaces: Sequence[str]) -> list[Team]:
    """Every second one borrows."""
    leaf_of = {namespace: leaf for leaf in leaves_of(root) for namespace in leaf.get("namespaces", ())}
    return [
        _drawn_team(rng, namespace, leaf_of[namespace], is_borrowing=number % 2 == 0)
        for number, namespace in enumerate(namespaces)
    ]


def _drawn_team(rng: random.Random, namespace: str, leaf: Level, *, is_borrowing: bool) -> Team:
    scheduler = rng.choice(("forecast-scheduler", "forecast-scheduler", "gpu-scheduler", "job-scheduler"))
    size = rng.choice(SIZES)
    spec = small_spec(scheduler, f"{250 * size}m")
    spec["containers"][0]["resources"]["requests"]["memory"] = rng.choice(("64Mi", "256Mi", "512Mi"))
    spec["terminationGracePeriodSeconds"] = rng.choice((0, 30))
    resource = LIMITS.get(scheduler, "")
    if resource and rng.random() < ACCELERATED:
        spec["containers"][0]["resources"]["limits"] = {resource: "1"}
    if scheduler == "forecast-scheduler" and rng.random() < TOGETHER:
        spec["nodeSelector"] = {HOSTNAME: SHARED_NODE}
    wanted = units_of(leaf, "max" if is_borrowing else "min", CPU) // size if CPU in leaf["max"] else PODS_MAX // 2
    return Team(
        namespace,
        spec,
        is_borrowing,
        rng.random() < MIXED,
        min(max(wanted + rng.choice((0, 1, 1, 2)), 1), PODS_MAX),
        rng.uniform(*(BORROWING_S if is_borrowing else OWNING_S)),
    )

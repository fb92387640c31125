"""Teams in the leaves of a quota tree: some borrow early, others claim their own amounts later."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from multisched.model.objects import CPU
from tests.kit.world.labels import GPU, GPU_COUNT, GPU_MILLI, HOSTNAME, LICENCE
from tests.kit.world.pod_manifests import small_spec
from tests.kit.world.quota_trees import Level, leaves_of, units_of

PODS_MAX: Final = 14
"""Maximum number of pods of one team."""
BORROWING_S: Final = (0.0, 4.0)
OWNING_S: Final = (9.0, 20.0)
"""Time at which a team begins: teams that borrow are first."""
TOGETHER: Final = 0.35
"""Share of teams whose pods all use SHARED_NODE."""
SHARED_NODE: Final = "node-5"
ACCELERATED: Final = 0.4
"""Share of teams of a domain with devices, or licences, whose pods request one."""
LIMITS: Final = {"gpu-scheduler": GPU, "job-scheduler": LICENCE}
SIZES: Final = (1, 1, 2, 2, 3)
"""Size of a pod, in units of CPU."""
FRACTIONAL: Final = 0.5
MILLIS: Final = (250, 500, 600, 1000)
COUNTS: Final = (1, 1, 2)
MIXED: Final = 0.4
"""Share of teams in which every third pod has another size, and every third is urgent."""
URGENT: Final = "system-cluster-critical"


@dataclass(slots=True)
class Team:
    """One namespace, and the pods that its controller creates there."""

    namespace: str
    spec: dict[str, Any]
    is_borrowing: bool
    """It requests up to the max of its leaf; otherwise little more than the min."""
    is_mixed: bool
    replicas: int
    starts_s: float
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Annotations of its pods: the requested devices."""
    made: int = 0
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def pod(self) -> dict[str, Any]:
        """Returns the manifest of the next pod."""
        self.made += 1
        number = next(self.numbers)
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "team", "uid": f"uid-of-{self.namespace}"}
        metadata = {
            "name": f"{self.namespace}-{number}",
            "namespace": self.namespace,
            "labels": {"team": self.namespace},
            "annotations": dict(self.annotations),
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
    """Returns the teams; every second one borrows."""
    leaf_of = {namespace: leaf for leaf in leaves_of(root) for namespace in leaf.get("namespaces", ())}
    return [
        _drawn_team(rng, namespace, leaf_of[namespace], is_borrowing=number % 2 == 0)
        for number, namespace in enumerate(namespaces)
    ]


def with_fractions(rng: random.Random, root: Level, teams: Sequence[Team]) -> None:
    """Lets most of the teams request fractions of GPUs by annotations, including the first two."""
    leaf_of = {namespace: leaf for leaf in leaves_of(root) for namespace in leaf.get("namespaces", ())}
    for number, team in enumerate(teams):
        if number > 1 and rng.random() > FRACTIONAL:
            continue
        milli, count = rng.choice(MILLIS), rng.choice(COUNTS)
        team.spec = small_spec("gpu-scheduler", "100m") | {"terminationGracePeriodSeconds": rng.choice((0, 30))}
        team.annotations = {GPU_MILLI: str(milli), **({GPU_COUNT: str(count)} if count > 1 else {})}
        team.is_mixed = False
        wanted = units_of(leaf_of[team.namespace], "max" if team.is_borrowing else "min", GPU) * 1000 // (milli * count)
        team.replicas = min(max(wanted + rng.choice((0, 1, 2)), 1), PODS_MAX)


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

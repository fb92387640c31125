"""The elastic quotas of a simulated cluster: a tree that is edited and made invalid, and the teams in its leaves.

Each team has a namespace and a controller: pods that were evicted or have ended are recreated, as by a ReplicaSet.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from multisched.model.objects import Pod
from multisched.model.wire import JSON_PATCH, MERGE_PATCH
from tests.kit.world import quota_trees
from tests.kit.world.api_user import ApiUser
from tests.kit.world.definitions import QUOTA_TREE, install
from tests.kit.world.labels import GPU
from tests.kit.world.quota_teams import PODS_MAX, Team, drawn_teams, with_fractions
from tests.kit.world.quota_trees import BREAKS, Level

TREE_NAMESPACE: Final = "kube-system"
TREE: Final = "teams"
SECOND: Final = "teams-too"
"""The name of a second tree sorts after that of the first."""
TEAMS: Final = (3, 5)
MADE_MAX: Final = 30
"""Maximum number of pods that one team creates in a run."""
KEPT_EVERY_S: Final = 0.5
CHANGES: Final = (3, 7)
"""Number of changes of the tree, or of a team, in a run."""
CHANGE_S: Final = (1.0, 5.0)
"""Time between two changes."""
BROKEN_S: Final = (1.0, 5.0)
"""Time for which an invalid tree, a second one or none exists."""
REPLACED_S: Final = 1.0
"""Maximum time between the deletion of a tree and the creation of its replacement."""
LIFT: Final = "multisched.io/lift-quotas"
LIFTED_S: Final = 2.0
"""Time until the processes know the annotation."""
AWAY_S: Final = (4.0, 10.0)
"""Time for which a team does not use its own amounts."""


class Quotas:
    """The quotas of one run."""

    def __init__(
        self, user: ApiUser, pods: Callable[[], Collection[Pod]], seed: int, *, has_fractions: bool = False
    ) -> None:
        """`has_fractions`: teams request fractions of GPUs, and trees are replaced at once."""
        self._user = user
        self._pods = pods
        self._rng = random.Random(f"{seed}/quotas")
        namespaces = [f"quota-{number}" for number in range(self._rng.randint(*TEAMS))]
        self._always = (GPU,) if has_fractions else ()
        """Resources that every tree names."""
        self._root = quota_trees.drawn_tree(self._rng, namespaces, always=self._always)
        self.teams = drawn_teams(self._rng, self._root, namespaces)
        if has_fractions:
            with_fractions(self._rng, self._root, self.teams)
        self.is_active = True
        """False: controllers create no pods any more."""

    @property
    def namespaces(self) -> list[str]:
        return [team.namespace for team in self.teams]

    async def build(self) -> None:
        await install(self._user, QUOTA_TREE)
        for namespace in self.namespaces:
            await self._user.send("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        await self._create(TREE, self._root)

    # -- the controllers of the teams ------------------------------------------------------------------------------

    async def run_controller(self) -> None:
        """Creates missing pods of the teams until cancelled."""
        began_s = asyncio.get_running_loop().time()
        while True:
            await asyncio.sleep(KEPT_EVERY_S)
            if not self.is_active:
                continue
            there = Counter(pod.namespace for pod in self._pods() if not (pod.is_deleting or pod.is_terminal))
            for team in self.teams:
                is_due = asyncio.get_running_loop().time() - began_s >= team.starts_s
                for _ in range(team.replicas - there[team.namespace] if is_due else 0):
                    if team.made < MADE_MAX:
                        await self._make(team)

    async def _make(self, team: Team) -> None:
        await self._user.create_pod(team.pod())

    # -- what people do --------------------------------------------------------------------------------------------

    def _changes_by_weight(self) -> tuple[Callable[[], Awaitable[str]], ...]:
        """Returns the possible changes, repeated by weight."""
        often = [*[self._scale] * 2, *[self._suspend_team] * 3]
        changes = (self._edit, self._edit, self._break, self._break, self._add_second_tree, self._delete, *often)
        return (*changes, self._replace, self._replace) if self._always else changes

    async def run(self, struck: Counter[str]) -> None:
        """Makes the changes of a run, one after the other. At the end a valid tree is in force, or none."""
        changes = self._changes_by_weight()
        for _ in range(self._rng.randint(*CHANGES)):
            await asyncio.sleep(self._rng.uniform(*CHANGE_S))
            struck[await self._rng.choice(changes)()] += 1

    async def _edit(self) -> str:
        self._root = quota_trees.edited(self._rng, self._root, always=self._always)
        await self._write(TREE, self._root)
        return "quotas edited"

    async def _break(self) -> str:
        kind = self._rng.choice(sorted(BREAKS))
        await self._write(TREE, quota_trees.broken(self._rng, self._root, kind))
        await asyncio.sleep(self._rng.uniform(*BROKEN_S))
        await self._write(TREE, self._root)
        return f"quotas broken: {kind}"

    async def _scale(self) -> str:
        """Scales a team; if it shrinks, its newest pods are deleted."""
        team = self._rng.choice(self.teams)
        await self._set_replicas(team, self._rng.randint(0, PODS_MAX))
        return "team scaled"

    async def _suspend_team(self) -> str:
        """Scales a team that does not borrow to zero for a while; afterwards it reclaims what others have borrowed."""
        team = self._rng.choice([team for team in self.teams if not team.is_borrowing])
        replicas = max(team.replicas, 1)
        await self._set_replicas(team, 0)
        await asyncio.sleep(self._rng.uniform(*AWAY_S))
        team.replicas = replicas
        return "team came back"

    async def _set_replicas(self, team: Team, replicas: int) -> None:
        team.replicas = replicas
        there = [pod for pod in self._pods() if pod.namespace == team.namespace and not pod.is_deleting]
        for pod in sorted(there, key=lambda pod: (pod.created_s, pod.name))[replicas:]:
            await self._user.delete_pod(pod)

    async def _add_second_tree(self) -> str:
        await self._create(SECOND, quota_trees.edited(self._rng, self._root))
        await asyncio.sleep(self._rng.uniform(*BROKEN_S))
        await self._user.send("DELETE", QUOTA_TREE.path(TREE_NAMESPACE, SECOND))
        return "second tree of quotas"

    async def _delete(self) -> str:
        await self._user.send("DELETE", QUOTA_TREE.path(TREE_NAMESPACE, TREE))
        await asyncio.sleep(self._rng.uniform(*BROKEN_S))
        await self._create(TREE, self._root)
        return "quotas deleted"

    async def _replace(self) -> str:
        """Replaces the tree as `kubectl replace --force` does: deletes it and creates another one."""
        self._root = quota_trees.edited(self._rng, self._root, always=self._always)
        await self._user.send("DELETE", QUOTA_TREE.path(TREE_NAMESPACE, TREE))
        await asyncio.sleep(self._rng.uniform(0.0, REPLACED_S))
        await self._create(TREE, self._root)
        return "quotas replaced"

    # -- used by scenarios -----------------------------------------------------------------------------------------

    async def put(self, root: Level) -> None:
        """Replaces the tree, or creates it. The teams create no more pods."""
        self.is_kept, self._root = False, root
        await self._create(TREE, root)
        await self._write(TREE, root)

    async def spoil(self) -> None:
        """Writes a mistake into the tree."""
        await self._write(TREE, quota_trees.broken(self._rng, self._root, "unreadable amount"))

    async def lift(self) -> None:
        """Deletes the tree with the consent that lifts its limits."""
        path = QUOTA_TREE.path(TREE_NAMESPACE, TREE)
        await self._user.send("PATCH", path, {"metadata": {"annotations": {LIFT: "true"}}}, MERGE_PATCH)
        await asyncio.sleep(LIFTED_S)
        await self._user.send("DELETE", path)

    async def _create(self, name: str, root: Level) -> None:
        metadata = {"name": name, "namespace": TREE_NAMESPACE}
        document = {"metadata": metadata, "spec": {"root": root}}
        answer = await self._user.send("POST", QUOTA_TREE.path(TREE_NAMESPACE), document)
        if answer.status not in (201, 409):
            raise AssertionError(answer.body)

    async def _write(self, name: str, root: Level) -> None:
        patch = [{"op": "replace", "path": "/spec/root", "value": root}]
        await self._user.send("PATCH", QUOTA_TREE.path(TREE_NAMESPACE, name), patch, JSON_PATCH)

"""The elastic quotas of a simulated cluster: a tree that is edited and broken, and teams that live below its leaves.

Each team has a namespace and a controller: pods that were evicted or have ended are made anew, as a ReplicaSet does.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from multisched.model.objects import Pod
from multisched.model.wire import JSON_PATCH
from tests.kit.world import quota_trees
from tests.kit.world.api_user import ApiUser
from tests.kit.world.definitions import QUOTA_TREE, install
from tests.kit.world.labels import GPU
from tests.kit.world.quota_teams import PODS_MAX, Team, drawn_teams, with_fractions
from tests.kit.world.quota_trees import BREAKS, Level

TREE_NAMESPACE: Final = "kube-system"
TREE: Final = "teams"
SECOND: Final = "teams-too"
"""A second tree has a name behind that of the first."""
TEAMS: Final = (3, 5)
MADE_MAX: Final = 30
"""Pods that one team makes in a run; then its controller has given up."""
KEPT_EVERY_S: Final = 0.5
ACTS: Final = (3, 7)
"""Changes of the tree, or of a team, in a run."""
ACT_S: Final = (1.0, 5.0)
"""Between two of them."""
BROKEN_S: Final = (1.0, 5.0)
"""How long a broken document, a second one or none stands."""
REPLACED_S: Final = 1.0
"""Between the deletion of a tree and the creation of the one that replaces it, at most."""
AWAY_S: Final = (4.0, 10.0)
"""How long a team leaves to others what is its own."""


class Quotas:
    """Those of one run."""

    def __init__(
        self, user: ApiUser, pods: Callable[[], Collection[Pod]], seed: int, *, has_fractions: bool = False
    ) -> None:
        """`has_fractions`: teams ask for parts of GPUs, and trees are replaced at once."""
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
        self.is_kept = True
        """False: controllers make nothing anew any more."""

    @property
    def namespaces(self) -> list[str]:
        return [team.namespace for team in self.teams]

    async def build(self) -> None:
        await install(self._user, QUOTA_TREE)
        for namespace in self.namespaces:
            await self._user.send("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        await self._create(TREE, self._root)

    # -- the controllers of the teams ------------------------------------------------------------------------------

    async def keep(self) -> None:
        """Until cancelled."""
        began_s = asyncio.get_running_loop().time()
        while True:
            await asyncio.sleep(KEPT_EVERY_S)
            if not self.is_kept:
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

    def _acts(self) -> tuple[Callable[[], Awaitable[str]], ...]:
        """What may be done, as often as it is likely."""
        often = [*[self._scale] * 2, *[self._suspend_team] * 3]
        acts = (self._edit, self._edit, self._break, self._break, self._add_second_tree, self._delete, *often)
        return (*acts, self._replace, self._replace) if self._always else acts

    async def run(self, struck: Counter[str]) -> None:
        """The acts of a run, one after the other. A good tree is in force at the end, or none at all."""
        acts = self._acts()
        for _ in range(self._rng.randint(*ACTS)):
            await asyncio.sleep(self._rng.uniform(*ACT_S))
            struck[await self._rng.choice(acts)()] += 1

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
        """A team grows, or shrinks: its newest pods go."""
        team = self._rng.choice(self.teams)
        await self._keep_so_many(team, self._rng.randint(0, PODS_MAX))
        return "team scaled"

    async def _suspend_team(self) -> str:
        """A team that does not borrow is away for a while; what others borrow of it meanwhile, it takes back."""
        team = self._rng.choice([team for team in self.teams if not team.is_borrowing])
        replicas = max(team.replicas, 1)
        await self._keep_so_many(team, 0)
        await asyncio.sleep(self._rng.uniform(*AWAY_S))
        team.replicas = replicas
        return "team came back"

    async def _keep_so_many(self, team: Team, replicas: int) -> None:
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
        """As `kubectl replace --force` does: another tree takes the place of the one that was deleted a moment ago."""
        self._root = quota_trees.edited(self._rng, self._root, always=self._always)
        await self._user.send("DELETE", QUOTA_TREE.path(TREE_NAMESPACE, TREE))
        await asyncio.sleep(self._rng.uniform(0.0, REPLACED_S))
        await self._create(TREE, self._root)
        return "quotas replaced"

    async def _create(self, name: str, root: Level) -> None:
        metadata = {"name": name, "namespace": TREE_NAMESPACE}
        document = {"metadata": metadata, "spec": {"root": root}}
        answer = await self._user.send("POST", QUOTA_TREE.path(TREE_NAMESPACE), document)
        if answer.status not in (201, 409):
            raise AssertionError(answer.body)

    async def _write(self, name: str, root: Level) -> None:
        patch = [{"op": "replace", "path": "/spec/root", "value": root}]
        await self._user.send("PATCH", QUOTA_TREE.path(TREE_NAMESPACE, name), patch, JSON_PATCH)

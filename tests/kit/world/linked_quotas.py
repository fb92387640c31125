"""The quotas of a simulated cluster as ElasticQuotas of Koordinator's form: one object per level, each changed by its own team.

One team's object is invalid for a while, and others are changed meanwhile. Pods name quotas by their label: their own, an unknown
one, or another team's; the label is changed while they wait and while they run.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

from multisched.model.wire import MERGE_PATCH
from tests.kit.checkers.linked_quotas import LABEL, PREFIX
from tests.kit.world.api_user import pods_path
from tests.kit.world.definitions import LINKED_QUOTA, install
from tests.kit.world.quota_teams import Team
from tests.kit.world.quota_trees import Level, amounts_of, leaves_of, units_of
from tests.kit.world.quotas import BROKEN_S, TREE_NAMESPACE, Quotas

LABELLED: Final = 0.5
"""Share of teams' pods that have the label when they are created."""
WRONG: Final[dict[str, Callable[[Level], dict[str, Any]]]] = {
    "min over max": lambda leaf: {"min": {**leaf["min"], "cpu": "100"}},
    "unreadable amount": lambda leaf: {"max": {**leaf["max"], "cpu": "a lot"}},
    "negative amount": lambda leaf: {"min": {**leaf["min"], "cpu": "-1"}},
    "min over that of its parent": lambda leaf: {
        side: {**leaf[side], "cpu": "100", "memory": "100Gi"} for side in ("min", "max")
    },
}
"""Kind of mistake -> the invalid spec."""


class LinkedQuotas(Quotas):
    """The quotas of one run."""

    async def build(self) -> None:
        await install(self._user, LINKED_QUOTA)
        for namespace in self.namespaces:
            await self._user.send("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        await self._create_below(self._root, "")

    async def _create_below(self, level: Level, parent: str) -> None:
        children = level.get("children", ())
        labels = {f"{PREFIX}is-parent": "true" if children else "false"} | (
            {f"{PREFIX}parent": parent} if parent else {}
        )
        annotations = {f"{PREFIX}namespaces": json.dumps(level.get("namespaces", []))}
        metadata = {"name": level["name"], "namespace": TREE_NAMESPACE, "labels": labels, "annotations": annotations}
        spec = {"min": level["min"], "max": level["max"]}
        answer = await self._user.send("POST", LINKED_QUOTA.path(TREE_NAMESPACE), {"metadata": metadata, "spec": spec})
        if answer.status not in (201, 409):
            raise AssertionError(answer.body)
        for child in children:
            await self._create_below(child, level["name"])

    async def _make(self, team: Team) -> None:
        pod = team.pod()
        if self._rng.random() < LABELLED:
            pod["metadata"]["labels"][LABEL] = self._drawn_name(team.namespace)
        await self._user.create_pod(pod)

    def _drawn_name(self, namespace: str) -> str:
        """Returns the name of the team's own leaf, of an unknown one, or of another team's leaf."""
        leaves = leaves_of(self._root)
        own = next(leaf["name"] for leaf in leaves if namespace in leaf.get("namespaces", ()))
        return self._rng.choice((own, own, "nobodys", self._rng.choice(leaves)["name"]))

    # -- what people do --------------------------------------------------------------------------------------------

    def _changes_by_weight(self) -> tuple[Callable[[], Awaitable[str]], ...]:
        return (*[self._edit] * 2, *[self._break] * 4, *[self._relabel] * 4, self._scale, *[self._suspend_team] * 2)

    async def _edit(self) -> str:
        """Changes the max of a leaf, or sets one of its min amounts to zero."""
        await self._edit_one(self._rng.choice(leaves_of(self._root)))
        return "one quota edited"

    async def _edit_one(self, leaf: Level) -> None:
        resource = self._rng.choice(sorted(leaf["max"]))
        least, most = units_of(leaf, "min", resource), units_of(self._root, "max", resource)
        if self._rng.random() < 0.3:
            leaf["min"] = {**leaf["min"], **amounts_of({resource: 0})}
        else:
            leaf["max"] = {**leaf["max"], **amounts_of({resource: self._rng.randint(max(least, most // 4), most)})}
        await self._write_one(leaf["name"], {"min": leaf["min"], "max": leaf["max"]})

    async def _break(self) -> str:
        """Makes one team's object invalid for a while. Another one may be changed meanwhile, and is in force at once."""
        leaves = leaves_of(self._root)
        leaf, kind = self._rng.choice(leaves), self._rng.choice(sorted(WRONG))
        await self._write_one(leaf["name"], WRONG[kind](leaf))
        for _ in range(self._rng.randint(0, 2)):
            await asyncio.sleep(self._rng.uniform(*BROKEN_S) / 2)
            others = [one for one in leaves if one is not leaf]
            await self._edit_one(self._rng.choice(others))
        await asyncio.sleep(self._rng.uniform(*BROKEN_S))
        await self._write_one(leaf["name"], {"min": leaf["min"], "max": leaf["max"]})
        return f"one quota wrong: {kind}"

    async def _relabel(self) -> str:
        """Changes or removes the label of some pods of a team, running or pending."""
        team = self._rng.choice(self.teams)
        pods = [pod for pod in self._pods() if pod.namespace == team.namespace and not pod.is_deleting]
        for pod in self._rng.sample(sorted(pods, key=lambda pod: pod.name), min(len(pods), self._rng.randint(1, 4))):
            name = self._rng.choice((None, self._drawn_name(team.namespace)))
            path = f"{pods_path(pod.namespace)}/{pod.name}"
            await self._user.send("PATCH", path, {"metadata": {"labels": {LABEL: name}}}, MERGE_PATCH)
        return "pods named another quota"

    async def _write_one(self, name: str, spec: dict[str, Any]) -> None:
        await self._user.send("PATCH", LINKED_QUOTA.path(TREE_NAMESPACE, name), {"spec": spec}, MERGE_PATCH)

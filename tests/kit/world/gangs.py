"""The gangs of a simulated cluster: members are created, some late; some fail and are recreated, some succeed.

Each gang has a controller that creates its members, as that of a training job does. `gang_plans` has the drawn values.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from multisched.model.objects import Pod
from multisched.model.wire import MERGE_PATCH
from tests.kit.world.api_user import ApiUser
from tests.kit.world.definitions import POD_GROUP, install
from tests.kit.world.gang_plans import (
    PACKED_FROM,
    GangPlan,
    drawn_gangs,
    group_manifest,
    member_manifest,
    with_topologies,
)
from tests.kit.world.kubelets import Kubelets

GANGS: Final = (2, 5)
GANG_NODES: Final = ("node-0", "node-1")
"""Nodes for gangs that use only one node."""
SCHEDULERS: Final = ("forecast-scheduler", "forecast-scheduler", "job-scheduler")
COMES_S: Final = (0.3, 6.0)
"""Time between two gangs."""
LATE_S: Final = (1.0, 8.0)
RUNS_S: Final = (1.0, 6.0)
"""Time for which a gang runs until one of its members ends."""
LOOK_S: Final = 0.5
STARTS_MAX_S: Final = 15.0
"""Time to wait for a gang that can start."""
FAILED_S: Final = 1.0
"""Time until a failed member is recreated."""
EDITED: Final = 0.15
"""Share of gangs with a PodGroup that is made invalid for a while."""
EDITED_S: Final = 4.0


class Gangs:
    """Those of one run."""

    def __init__(
        self,
        user: ApiUser,
        kubelets: Kubelets,
        pods: Callable[[], Collection[Pod]],
        seed: int,
        namespaces: Sequence[str],
    ) -> None:
        """`namespaces`: of the gangs."""
        self._user = user
        self._kubelets = kubelets
        self._pods = pods
        self._rng = random.Random(f"{seed}/gangs")
        names = [f"gang-{number}" for number in range(self._rng.randint(*GANGS))]
        self.plans = drawn_gangs(self._rng, names, namespaces, SCHEDULERS, GANG_NODES)
        if seed >= PACKED_FROM:
            self.plans = with_topologies(random.Random(f"{seed}/packed"), self.plans)
        self._numbers = itertools.count(1)

    async def build(self) -> None:
        await install(self._user, POD_GROUP)

    async def run(self, struck: Counter[str]) -> None:
        """Creates the gangs one after the other. Returns when all are complete."""
        tasks = []
        for plan in self.plans:
            await asyncio.sleep(self._rng.uniform(*COMES_S))
            struck[plan.description] += 1
            tasks.append(asyncio.ensure_future(self._run_gang(plan, random.Random(self._rng.random()), struck)))
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _run_gang(self, plan: GangPlan, rng: random.Random, struck: Counter[str]) -> None:
        is_edited = plan.has_group and rng.random() < EDITED
        for _ in range(plan.size - plan.late):
            await self._add_member(plan)
        if plan.has_group:
            await self._user.send("POST", POD_GROUP.path(plan.namespace), group_manifest(plan))
        if is_edited:
            struck["gang made senseless"] += await self._edit(plan)
        for _ in range(plan.late):
            await asyncio.sleep(rng.uniform(*LATE_S) / plan.late)
            await self._add_member(plan)
        if plan.never_starts is None and (plan.failing or plan.succeeding) and await self._has_started(plan):
            await asyncio.sleep(rng.uniform(*RUNS_S))
            await self._end_members(plan, rng, struck)

    async def _add_member(self, plan: GangPlan) -> None:
        await self._user.create_pod(member_manifest(plan, f"{plan.name}-{next(self._numbers)}"))

    async def _edit(self, plan: GangPlan) -> bool:
        """Sets the minimum of its PodGroup to zero for a while."""
        path, spec = POD_GROUP.path(plan.namespace, plan.name), group_manifest(plan)["spec"]
        answer = await self._patch(path, {"spec": {"minMember": 0}})
        await asyncio.sleep(EDITED_S)
        await self._patch(path, {"spec": spec})
        return answer

    async def _patch(self, path: str, patch: dict[str, Any]) -> bool:
        return (await self._user.send("PATCH", path, patch, MERGE_PATCH)).status == 200

    async def _has_started(self, plan: GangPlan) -> bool:
        limit_s = asyncio.get_running_loop().time() + STARTS_MAX_S
        while asyncio.get_running_loop().time() < limit_s:
            if len(self._running(plan)) >= plan.minimum:
                return True
            await asyncio.sleep(LOOK_S)
        return False

    def _running(self, plan: GangPlan) -> list[Pod]:
        members = (pod for pod in self._pods() if pod.labels.get("gang") == plan.name)
        return [pod for pod in members if pod.namespace == plan.namespace and pod.node and not pod.is_terminal]

    async def _end_members(self, plan: GangPlan, rng: random.Random, struck: Counter[str]) -> None:
        ending = [pod for pod in self._running(plan) if not pod.is_deleting]
        chosen = rng.sample(ending, min(len(ending), plan.failing + plan.succeeding))
        for number, pod in enumerate(chosen):
            has_failed = number < plan.failing
            await self._kubelets.end_pod(pod, "Failed" if has_failed else "Succeeded")
            struck["gang member failed" if has_failed else "gang member succeeded"] += 1
            if has_failed:
                await asyncio.sleep(FAILED_S)
                await self._user.delete_pod(pod)
                await self._add_member(plan)

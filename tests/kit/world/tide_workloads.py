"""Training gangs and inference services that share GPU nodes by the tide. All nodes have cards of MODEL or OTHER_MODEL, which no other
node has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tests.kit.world.labels import GPU, TIDE
from tests.kit.world.pooled_workloads import ENDS_S, PooledWorkload, PooledWorkloads

SERVING, TRAINING, UNEVICTABLE = "serving", "training", "unevictable"
"""Values of the label TIDE: inference, training that may be evicted, and training that `evictable` does not select."""
MODEL, OTHER_MODEL = "Tidal-80", "Tidal-40"
PRODUCT: Final = "nvidia.com/gpu.product"
NOTICE: Final = "multisched.io/tide-notice"


@dataclass(slots=True)
class TideWorkload(PooledWorkload):
    """A gang, or a service."""

    cards: int = 1
    """Of each pod."""
    model: str = MODEL


class TideWorkloads(PooledWorkloads[TideWorkload]):
    """The gangs and services of one run."""

    label = TIDE

    async def build(self) -> None:
        """Creates a service on a node of its own, which always runs: so the models of the tide are known from the start."""
        await self.node("tide-anchor", 1)
        self.add(TideWorkload("tide-anchor", "tide-anchor", SERVING, 1))

    def _manifest(self, workload: TideWorkload) -> dict[str, Any]:
        resources = {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {GPU: str(workload.cards)}}
        return workload.next_manifest(self.label, "gpu-scheduler", resources, {PRODUCT: workload.model})

    def pool(self) -> str:
        """Returns the name of a new pool."""
        return self.new_pool("tide")

    async def node(self, pool: str, cards: int, *, model: str = MODEL) -> str:
        """Creates a node. Returns its name."""
        amounts = {"cpu": "32", "memory": "64Gi", "pods": "40", GPU: str(cards)}
        return await self.create_node(pool, "gpu", amounts, {PRODUCT: model})

    def gang(
        self, pool: str, size: int, cards: int, *, role: str = TRAINING, has_owner: bool = True, is_gang: bool = True
    ) -> TideWorkload:
        """Adds training of `size` pods; not a gang: single pods."""
        name = f"{pool}-gang-{next(self._numbers)}"
        workload = TideWorkload(name, pool, role, size, is_gang=is_gang, has_owner=has_owner, cards=cards)
        workload.publishes = self.rng.random() < 0.5
        workload.ends_s = self.rng.choice(ENDS_S)
        return self.add(workload)

    def service(self, pool: str, replicas: int, *, model: str = MODEL) -> TideWorkload:
        """Adds a service whose pods have one card each."""
        name = f"{pool}-service-{next(self._numbers)}"
        return self.add(TideWorkload(name, pool, SERVING, replicas, model=model))

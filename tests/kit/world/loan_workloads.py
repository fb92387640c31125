"""Pods of a lender and of borrowers that share nodes on loan, with their controllers. All nodes have CORES_MILLI."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

from multisched.framework.measures import Meter, MeterError, MeterSettings, PodUse
from tests.kit.settings.setting import LENDER, LENT
from tests.kit.world.labels import LOAN
from tests.kit.world.pooled_workloads import ENDS_S, PooledWorkload, PooledWorkloads

OWN, ON_LOAN = "own", "on-loan"
"""Values of the label LOAN of pods: of the lender, and of a borrower."""
NOTICE: Final = "multisched.io/loan-notice"
IDLE_REQUEST: Final = "multisched.io/idle-request"
RETRIES_LEFT: Final = "multisched.io/retries-left"
CORES_MILLI: Final = 4000


@dataclass(slots=True)
class LoanWorkload(PooledWorkload):
    """Pods of one domain."""

    domain: str = LENDER
    milli: int = 500
    """CPU of each pod."""
    retries_left: int | None = None
    is_idle: bool = False
    """The pods request nothing, and use idle capacity."""
    use_milli: int = 0
    """What the metrics API reports for each of its pods."""


class LoanWorkloads(PooledWorkloads[LoanWorkload]):
    """The workloads of one run."""

    label = LOAN

    def _manifest(self, workload: LoanWorkload) -> dict[str, Any]:
        requests = {} if workload.is_idle else {"cpu": f"{workload.milli}m", "memory": "16Mi"}
        resources: dict[str, Any] = {"requests": requests} if requests else {}
        pod = workload.next_manifest(self.label, f"{workload.domain}-scheduler", resources, None)
        if workload.retries_left is not None:
            pod["metadata"]["annotations"] = {RETRIES_LEFT: str(workload.retries_left)}
        if workload.is_idle:
            pod["metadata"]["annotations"] = {IDLE_REQUEST: f"cpu={workload.milli}m"}
        return pod

    # -- the metrics API, as `framework.measures.LoadReader` ---------------------------------------------------------------

    async def pods(self) -> tuple[PodUse, ...]:
        await asyncio.sleep(0)
        return tuple(
            PodUse(pod.namespace, pod.name, workload.use_milli / 1000.0, 0.0)
            for workload in self._workloads
            for pod in self.pods_of(workload)
            if pod.started_s
        )

    # -- objects -------------------------------------------------------------------------------------------------------------

    def pool(self) -> str:
        """Returns the name of a new pool."""
        return self.new_pool("loan")

    async def node(self, pool: str, lent: str = LENT) -> str:
        """Creates a node on loan. Returns its name."""
        amounts = {"cpu": f"{CORES_MILLI}m", "memory": "64Gi", "pods": "60"}
        return await self.create_node(pool, LENDER, amounts, {LOAN: lent})

    def own(self, pool: str, milli: int, replicas: int = 1, *, is_gang: bool = False) -> LoanWorkload:
        """Adds pods of the lender."""
        return self._add(pool, OWN, LENDER, milli, replicas, is_gang=is_gang)

    def borrowing(
        self,
        pool: str,
        domain: str,
        milli: int,
        replicas: int,
        *,
        is_gang: bool = False,
        retries_left: int | None = None,
    ) -> LoanWorkload:
        """Adds pods of a borrower."""
        workload = self._add(pool, ON_LOAN, domain, milli, replicas, is_gang=is_gang)
        workload.retries_left = retries_left
        workload.ends_s = self.rng.choice(ENDS_S)
        return workload

    def _add(self, pool: str, role: str, domain: str, milli: int, replicas: int, *, is_gang: bool) -> LoanWorkload:
        name = f"{pool}-{role}-{next(self._numbers)}"
        return self.add(LoanWorkload(name, pool, role, replicas, is_gang=is_gang, domain=domain, milli=milli))


class LoanMeasures:
    """The measured values of a run, as `framework.measures.Measures`."""

    def __init__(self, loans: LoanWorkloads) -> None:
        self._loans = loans

    def load(self) -> LoanWorkloads:
        return self._loans

    def meter(self, settings: MeterSettings) -> Meter:
        raise MeterError("there is no server in a simulation")

"""Takeover of a domain: nothing is scheduled until its lease allows binds and the cache accounts for all earlier binds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from multisched.client.lease_record import Holding
from multisched.framework.ports import Clock
from multisched.shell.domain import DomainWorker
from multisched.shell.leadership.cluster_lists import ClusterLists
from multisched.shell.leadership.handover import Handover
from multisched.shell.leadership.leases import Leases


class Takeover:
    """Takeover of the domains of one process."""

    def __init__(
        self,
        leases: Leases,
        handover: Handover,
        lists: ClusterLists,
        clock: Clock,
        before_opening: Callable[[DomainWorker], Awaitable[None]],
    ) -> None:
        """`before_opening`: called while the lease is held; reads what else the domain needs before its first decision."""
        self._before_opening = before_opening
        self._leases = leases
        self._handover = handover
        self._lists = lists
        self._clock = clock

    async def open(self, worker: DomainWorker) -> None:
        """Waits until the lease allows binds and the cache accounts for all binds under it.

        Without leases it waits only for `before_opening`, which retries until it succeeds.
        """
        lease = self._leases.get(worker.name)
        if lease is None:
            await self._before_opening(worker)
            return
        term = 0
        while term != lease.number or not lease.may_bind():
            await self._leases.until_held(worker.name)
            await self._handover.judge_new_leases(worker.name)
            await self._leases.until_may_bind(worker.name, lease)
            term = lease.number  # the lease may be lost and acquired again during the list
            await self._before_opening(worker)
            others: Mapping[str, Holding | None] = {}
            if not self._handover.is_settled(worker.name):
                others = await self._handover.others(worker.name)
                await self._lists.see_all_binds_before(self._clock.monotonic())
        self._handover.open(worker, others)

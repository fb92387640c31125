"""Builds the movers of domains, which move pods for plugins, and the planner that plans repairs on a copy of the program.

The planner is created when the first plan is requested.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from multisched.client.evictor import ApiEvictor
from multisched.client.limits import WriteLimiter
from multisched.client.pod_writer import ApiPodWriter
from multisched.client.stored_document import ConfigMapDocument
from multisched.framework.ports import Binder, EventSink
from multisched.framework.repair import RepairPlan, RepairRefusedError, RepairRequest
from multisched.model.wire import Transport
from multisched.shell.domain import DomainWorker
from multisched.shell.mover import DomainMover, MoverPorts, MoverView

PlanRepair = Callable[[RepairRequest], Awaitable[RepairPlan]]
"""Returns a plan for the current cluster state. Raises RepairRefusedError."""


class Repairs:
    """The movers and the repair planner of one program."""

    def __init__(
        self,
        view: MoverView,
        transport: Transport,
        limiter: WriteLimiter,
        binder: Binder,
        events: EventSink,
        *,
        namespace: str,
        name_prefix: str,
        scheduler_names: Mapping[str, Sequence[str]],
        open_planner: Callable[[], PlanRepair] | None,
        is_closing: Callable[[], bool],
    ) -> None:
        """`namespace`, `name_prefix`: of the ConfigMaps that store repairs in progress. `scheduler_names`: by domain.

        `open_planner`: creates the planner; None: this process has none.
        """
        self._view = view
        self._transport = transport
        self._limiter = limiter
        self._binder = binder
        self._events = events
        self._namespace = namespace
        self._name_prefix = name_prefix
        self._scheduler_names = scheduler_names
        self._open_planner = open_planner
        self._is_closing = is_closing
        self._planner: PlanRepair | None = None

    def mover(self, worker: DomainWorker) -> DomainMover:
        """Returns the mover for the background tasks of a domain."""
        name = f"{self._name_prefix}-repair-{worker.name}"
        return DomainMover(
            worker,
            self._view,
            MoverPorts(
                self._binder,
                ApiEvictor(self._transport, self._limiter),
                ApiPodWriter(self._transport, self._limiter, self._view.clock),
                ConfigMapDocument(self._transport, self._limiter, self._namespace, name),
                self._events,
                self.plan,
                self._is_closing,
                self._scheduler_names[worker.name][0],
            ),
        )

    async def plan(self, request: RepairRequest) -> RepairPlan:
        """Plans a repair for the current cluster state, in a thread. Raises RepairRefusedError."""
        if self._planner is None:
            if self._open_planner is None:
                raise RepairRefusedError("this process has no repair planner", status=404)
            self._planner = self._open_planner()
        return await self._planner(request)

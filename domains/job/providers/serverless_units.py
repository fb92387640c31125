"""ServerlessUnits: paces binds to serverless nodes by the rate of their provider, avoids units whose sandboxes fail, and may exclude
priced units for pods that can still wait for other nodes.

A virtual kubelet cannot return a pod: a sandbox that fails after the bind ends the pod or leaves it pending. So a unit is chosen only while
it has a token of its rate, quota, and working sandboxes. Without units in its args the plugin does nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import numpy as np

from domains.job.condition_reasons import WAITING_FOR_UNIT
from domains.job.domain_waits import DomainWaits
from domains.job.providers.control import SandboxControl
from domains.job.providers.price_gate import PriceGate
from domains.job.providers.sandbox_ledger import (
    NO_TEMPLATE,
    NO_UNIT,
    PACED,
    TIMED,
    Cause,
    SandboxLedger,
    Unit,
    owner_of,
    refusal_of,
    template_of,
)
from domains.job.providers.settings import provider_settings
from domains.job.providers.sizes import Size
from multisched.framework.background import BackgroundPorts
from multisched.framework.caching import SplitCacheKey
from multisched.framework.context import PluginContext
from multisched.framework.dependency import Dependency
from multisched.framework.events import ASSIGNED_POD_DELETE, Action, ClusterEvent, EventRegistration, Hint, Resource
from multisched.framework.introspection import PluginMetric
from multisched.framework.ledger import LedgerSettingsError
from multisched.framework.node_view import Codes, Rows, Scores
from multisched.framework.normalize import MAX_SCORE
from multisched.framework.points import CycleView, PostFilterResult, PreFilterResult, Refusals
from multisched.framework.reasons import ReasonTable
from multisched.framework.status import SKIP, Code, Status
from multisched.framework.views import Document, NoViewError, ViewPorts, ViewQuery, unknown_parameter
from multisched.model.objects import Pod
from multisched.model.pod_outcome import PodOutcome

SERVERLESS_UNITS: Final = "ServerlessUnits"
UNIT_READY: Final = ClusterEvent(Resource.ASSIGNED_POD, Action.UPDATE_POD_OTHER, "ServerlessUnitReady")
"""A unit accepts one more pod. The event has no pod, so no other plugin requeues pods for it."""
PAYER_READY: Final = "ServerlessUnitReady"
PENDING_DELETED: Final = ClusterEvent(Resource.UNSCHEDULED_POD, Action.DELETE, "UnscheduledPodDelete")
DAEMON: Final = "virtual nodes run no pods of DaemonSets"
NO_ARGS: Final[Mapping[str, Any]] = {}
DOCUMENT: Final = "now"
LOOKED_AT_MAX: Final = 256
"""Maximum number of nodes that PostFilter checks."""


class ServerlessUnits:
    """PreFilter, Filter, PostFilter, Score and PostBind; a ledger, outcomes of pods, and a background task."""

    name = SERVERLESS_UNITS
    view = "units"
    depends_on = Dependency.CACHE_KEY

    def __init__(self, context: PluginContext, args: Mapping[str, Any] = NO_ARGS) -> None:
        """Raises PluginArgsError."""
        settings = provider_settings(args)
        ledger = SandboxLedger(settings, context.scheduler_names)
        if settings.units:
            registered = context.hold.register(ledger)
            assert isinstance(registered, SandboxLedger), f"ledger {ledger.name} belongs to another plugin"
            if registered.settings != settings:
                raise LedgerSettingsError(
                    "units and messages change only at the start, and are the same in all domains"
                )
            ledger = registered
        self._context = context
        self._ledger = ledger
        self._control = SandboxControl(ledger, self._wake)
        self._gate = PriceGate(context, ledger)
        self.reasons = ReasonTable(self.name)
        self._daemon = self.reasons.code(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, DAEMON)
        self._codes = [
            {cause: self.reasons.code(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, refusal_of(unit, cause)) for cause in Cause}
            for unit in ledger.units
        ]

    async def run(self, ports: BackgroundPorts) -> None:
        self._context.shared.of(DomainWaits).paced = self._ledger.paced
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._gate.run(ports))
            await self._control.run(ports)

    def _wake(self, unit: Unit, count: int) -> None:
        """Requeues this many pods for the unit: those that may use it, if it has a price that others do not pay yet."""
        if unit.waits_first:
            self._context.queue.try_again(unit.next_payers(count), PAYER_READY)
            return
        for _ in range(count):
            self._context.notify(UNIT_READY)

    # -- filter ----------------------------------------------------------------------------------------------------

    def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
        return PreFilterResult() if self._ledger.has_rows else PreFilterResult(SKIP)

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        """Returns uint8[rows]: refuses nodes of units that do not accept the pod now, and all of them to pods of DaemonSets."""
        indices = self._ledger.indices(rows)
        of_unit = np.zeros(len(self._codes) + 1, np.uint8)  # the last is for NO_UNIT
        for number, code in enumerate(self._unit_codes(pod)):
            of_unit[number] = code
        assert NO_UNIT == -1, "rows without a unit read the last code"
        codes: Codes = of_unit[indices]
        return codes

    def _unit_codes(self, pod: Pod) -> tuple[int, ...]:
        """Returns for each unit the code with which it refuses the pod now, or 0."""
        if pod.owner is not None and pod.owner.kind == "DaemonSet":
            return (self._daemon,) * len(self._codes)
        ledger = self._ledger
        causes = (ledger.cause_with_price(unit, pod) for unit in ledger.units)
        return tuple(0 if cause is None else codes[cause] for cause, codes in zip(causes, self._codes, strict=True))

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        """Returns int64[rows]: 0 for nodes of units with `waitFirst`, 100 for all others, because a pod that may use a priced unit
        prefers other nodes.
        """
        scores: Scores = np.zeros(len(rows), np.int64)
        scores[np.isin(rows, self._ledger.unpriced(rows))] = MAX_SCORE
        return scores

    def post_filter(self, cycle: CycleView, pod: Pod, refusals: Refusals) -> PostFilterResult:
        """Returns a wait if the pod only waits for a unit to accept it, so that cluster autoscalers add no node for it."""
        waits = [unit for unit in self._ledger.units if self._ledger.cause_with_price(unit, pod) in TIMED]
        nodes = self._context.nodes
        for row in islice(self._ledger.rows_of(waits), LOOKED_AT_MAX if waits else 0):
            if refusals.status_of(nodes.node(row).name).plugin == self.name:
                return PostFilterResult(Status(Code.UNSCHEDULABLE, condition_reason=WAITING_FOR_UNIT))
        return PostFilterResult(Status.unschedulable())

    # -- classes and queueing hints --------------------------------------------------------------------------------

    def sign(self, pod: Pod) -> Hashable:
        """Returns the images only while a unit has refused these, so that other pods share classes; and the units that it may pay for, or
        may not probe.
        """
        is_daemon = pod.owner is not None and pod.owner.kind == "DaemonSet"
        template, owner, ledger = template_of(pod), owner_of(pod), self._ledger
        images = template if any(template in unit.refused for unit in ledger.units) else None
        payer = tuple([pod.uid in unit.payers for unit in ledger.priced])
        return (
            is_daemon,
            images,
            payer,
            tuple([unit.spares(owner, ledger.now_s) for unit in ledger.units if unit.spared]),
        )

    def cache_key(self, cycle: CycleView, pod: Pod) -> SplitCacheKey | None:
        ledger = self._ledger
        if not ledger.has_rows:
            return None
        scores = ledger.version_of_nodes if ledger.priced else None
        return SplitCacheKey((self._unit_codes(pod), ledger.version_of_nodes), scores)

    def events_to_register(self) -> Sequence[EventRegistration]:
        has_place = self._ledger.has_place
        return (
            EventRegistration(UNIT_READY, lambda pod, old, new: Hint.QUEUE_ONE if old is new is None else Hint.SKIP),
            EventRegistration(PENDING_DELETED, lambda pod, old, new: Hint.QUEUE_ONE),
            EventRegistration(ASSIGNED_POD_DELETE, lambda pod, old, new: Hint.QUEUE if has_place(pod) else Hint.SKIP),
        )

    # -- binds and outcomes ----------------------------------------------------------------------------------------

    def post_bind(self, cycle: CycleView, pod: Pod, node: str) -> None:
        self._ledger.bound(pod.uid)

    def see_outcome(self, outcome: PodOutcome) -> None:
        """See `framework.introspection.OutcomePlugin`."""
        failure = self._ledger.learn(outcome)
        if failure is not None:
            self._control.failed(outcome, failure)

    # -- sandboxes, views and metrics ------------------------------------------------------------------------------

    def export_state(self) -> object:
        """See `framework.introspection.StateExportPlugin`: why units accept no pod, and which pods may pay for them."""
        ledger = self._ledger
        least = Size(0, 0)
        causes = {unit.name: unit.cause(NO_TEMPLATE, least, ledger.now_s) for unit in ledger.units}
        found = {name: cause for name, cause in causes.items() if cause in PACED}
        return found, {unit.name: dict(unit.payers) for unit in ledger.priced}

    def import_state(self, handed: object) -> None:
        assert isinstance(handed, tuple), "the export of another ServerlessUnits"
        causes, payers = handed
        for unit in self._ledger.units:
            unit.imported = causes.get(unit.name)
            unit.payers = dict(payers.get(unit.name, ()))

    def describe(self, pod: Pod, row: int) -> str:
        """See `framework.introspection.ExplainPlugin`."""
        unit = self._ledger.unit_of(row)
        if unit is None or not unit.settings.is_elastic:
            return ""
        return f"in serverless unit {unit.name}, whose capacity is elastic: the node's cpu and memory are no limit"

    def note_on_pending(self, pod: Pod, now_s: float) -> str:
        """See `framework.introspection.PendingNotePlugin`: price, predicted wait and deadline."""
        return self._gate.note(pod, now_s)

    def metrics(self, now_s: float) -> Sequence[PluginMetric]:
        from domains.job.providers.figures import metrics_of

        return metrics_of(self._ledger)

    async def show(self, query: ViewQuery, ports: ViewPorts) -> Callable[[], Document]:
        """See `framework.views.ViewedPlugin`."""
        from domains.job.providers.figures import document_of

        if query.name != DOCUMENT:
            raise NoViewError(f"units has no document {query.name}; write {DOCUMENT}")
        if unknown := unknown_parameter(query.options, ["domain"]):
            raise NoViewError(unknown, status=400)
        document = {"domain": self._context.domain, "units": document_of(self._ledger)}
        return lambda: document

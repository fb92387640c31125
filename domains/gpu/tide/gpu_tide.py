"""GpuTide: holds training back while inference needs the cards, or soon will, and runs the tide's background task (`control.py`).

Not in the domain's default profile: a configuration that enables it gives its args (`settings.py`, docs/tide.md).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from domains.gpu.gpu_ledger import GpuLedger
from domains.gpu.tide.control import TideControl
from domains.gpu.tide.hold_back import OUTSIDE, HoldBack, Limits
from domains.gpu.tide.losses import Losses
from domains.gpu.tide.settings import tide_settings
from domains.gpu.tide.snapshot import TideSnapshots
from domains.gpu.tide.tide_demand import TideDemand
from multisched.framework.background import BackgroundPorts
from multisched.framework.caching import SplitCacheKey
from multisched.framework.context import PluginContext
from multisched.framework.dependency import Dependency
from multisched.framework.events import Action, ClusterEvent, EventRegistration, Resource
from multisched.framework.introspection import PluginMetric
from multisched.framework.node_view import Codes, Rows
from multisched.framework.points import CycleView, PostFilterResult, PreFilterResult, Refusals
from multisched.framework.preemption import GroupDryRun
from multisched.framework.reasons import ReasonTable
from multisched.framework.status import SKIP, SUCCESS, Code, Status
from multisched.framework.traits import Traits
from multisched.framework.views import Document, ViewPorts, ViewQuery
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod

TIDE: Final = "GpuTide"
GROWTH: Final = ClusterEvent(Resource.ASSIGNED_POD, Action.UPDATE_POD_OTHER, "TideLetsTrainingGrow")
"""Announced when training may grow. No other plugin requeues a pod for it: there is no pod in the event."""
OWN_CHANGE: Final = ClusterEvent(
    Resource.TARGET_POD, Action.UPDATE_POD_LABEL | Action.UPDATE_POD_OTHER, "TidePodChanged"
)
NO_PREEMPTION: Final = "the tide frees cards by notices, not by preemption"
NO_ARGS: Final[Mapping[str, Any]] = {}


class GpuTide:
    """PreFilter, Filter and Reserve for training pods, PostFilter for inference pods; a background task."""

    name = TIDE
    view = "tide"
    runs_before = "DefaultPreemption"
    depends_on = Dependency.CACHE_KEY
    traits = Traits(reads_objects=(ObjectKind.POD_DISRUPTION_BUDGET,))

    def __init__(self, context: PluginContext, args: Mapping[str, Any] = NO_ARGS) -> None:
        """Raises PluginArgsError."""
        settings = tide_settings(args)
        ledger = context.hold.register(GpuLedger(context.scheduler_names, context.objects))
        assert isinstance(ledger, GpuLedger), f"ledger {ledger.name} belongs to another plugin"
        self._ledger = ledger
        self._context = context
        self._snapshots = TideSnapshots(context, ledger, settings)
        self._hold_back = HoldBack()
        self._control = TideControl(
            settings,
            self._snapshots,
            self._hold_back,
            TideDemand(settings),
            Losses(),
            lambda: context.notify(GROWTH),
        )
        self.reasons = ReasonTable(self.name)
        self._outside = self.reasons.code(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, OUTSIDE)

    async def run(self, ports: BackgroundPorts) -> None:
        await self._control.run(ports)

    # -- holding training back -------------------------------------------------------------------------------------------

    def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
        refusal = self._refusal(pod)
        if refusal is None:
            return PreFilterResult(SKIP)
        if refusal and not self._hold_back.limits.has_outside:
            return PreFilterResult(Status.unresolvable(refusal))
        return PreFilterResult()

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        """Returns uint8[rows]: refuses the nodes of the tide to a pod that is held back."""
        codes: Codes = np.zeros(len(rows), np.uint8)
        if self._refusal(pod):
            codes[[self._is_in_tide(row) for row in rows.tolist()]] = self._outside
        return codes

    def _refusal(self, pod: Pod) -> str | None:
        """Returns why a training pod is held back, empty if it is not; None for other pods."""
        if not self._snapshots.is_training(pod):
            return None
        return self._hold_back.refusal(self._snapshots.gang_of(pod), self._snapshots.cards_of(pod))

    def _is_in_tide(self, row: int) -> bool:
        models, cards = self._hold_back.limits.models, self._ledger.cards(row).node.cards
        return not models or (bool(cards) and cards[0].model in models)

    def post_filter(self, cycle: CycleView, pod: Pod, refusals: Refusals) -> PostFilterResult:
        """Ends the chain for an inference pod, so that DefaultPreemption does not evict training without a notice."""
        return PostFilterResult(self._no_preemption(pod))

    def post_filter_group(
        self, cycle: CycleView, pods: Sequence[Pod], dry_run: GroupDryRun
    ) -> Generator[None, None, PostFilterResult]:
        """The same as `post_filter`, for inference pods that start together."""
        statuses = [self._no_preemption(pod) for pod in pods]
        yield from ()
        return PostFilterResult(next((one for one in statuses if one.reasons), Status.unschedulable()))

    def _no_preemption(self, pod: Pod) -> Status:
        is_served = self._ledger.is_used_by(pod) and self._snapshots.is_inference(pod) and self._snapshots.cards_of(pod)
        return Status.unresolvable(NO_PREEMPTION) if is_served else Status.unschedulable()

    def reserve(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        row = self._context.nodes.row_of(node)
        if not self._snapshots.is_training(pod) or row is None or not self._is_in_tide(row):
            return SUCCESS
        refusal = self._hold_back.reserve(pod.uid, self._snapshots.gang_of(pod), self._snapshots.cards_of(pod))
        return Status.unresolvable(refusal) if refusal else SUCCESS

    def unreserve(self, cycle: CycleView, pod: Pod, node: str) -> None:
        self._hold_back.unreserve(pod.uid)

    # -- classes and queueing hints --------------------------------------------------------------------------------------

    def sign(self, pod: Pod) -> Hashable:
        return self._snapshots.cards_of(pod) if self._snapshots.is_training(pod) else -1

    def cache_key(self, cycle: CycleView, pod: Pod) -> SplitCacheKey | None:
        refusal = self._refusal(pod)
        if refusal is None:
            return None
        limits = self._hold_back.limits
        return SplitCacheKey((refusal, limits.has_outside, limits.models), None)

    def events_to_register(self) -> Sequence[EventRegistration]:
        return (EventRegistration(GROWTH), EventRegistration(OWN_CHANGE))

    def export_state(self) -> object:
        """See `framework.introspection.StateExportPlugin`: the limits of training."""
        return self._hold_back.limits

    def import_state(self, handed: object) -> None:
        assert isinstance(handed, Limits), "the export of another GpuTide"
        self._hold_back.set(handed)

    # -- views and metrics -----------------------------------------------------------------------------------------------

    def metrics(self, now_s: float) -> Sequence[PluginMetric]:
        from domains.gpu.tide.figures import metrics_of

        return metrics_of(self._control)

    def health(self, now_s: float) -> str:
        """See `framework.introspection.HealthPlugin`."""
        from domains.gpu.tide.figures import health_of

        return health_of(self._control)

    async def show(self, query: ViewQuery, ports: ViewPorts) -> Callable[[], Document]:
        """See `framework.views.ViewedPlugin`."""
        from domains.gpu.tide.figures import document_of

        document = document_of(self._control, query, self._context.domain, ports.clock.now().timestamp())
        return lambda: document

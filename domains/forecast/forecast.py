"""Forecast: the common base class of PeakForecast's Score plugin and Filter plugin.

Owns the settings, the learner, the refit and the repair control, registers the ledger of predicted peaks, and caches the last outlook.
Profiles are the predicted use of each service per slot of the week; an outlook is the predicted load of rows with a pod added.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio
import msgspec
import numpy as np

from domains.forecast.curves.capacity import MeasuredCapacity
from domains.forecast.curves.flat_peaks import Amounts
from domains.forecast.curves.level_score import PODS_PER_UPDATE, FleetLevel, fleet_square
from domains.forecast.curves.node_curves import Outlook
from domains.forecast.curves.predictor import FALLBACK_REASONS, Prediction, Predictor
from domains.forecast.curves.quantized_profiles import Curve, QuantizedProfiles
from domains.forecast.learning.from_files import History, load_history
from domains.forecast.ledger.capacity_gaps import CapacityGaps, Gap
from domains.forecast.ledger.peak_ledger import PeakLedger, load_factor
from domains.forecast.settings.args import PeakSettings
from domains.forecast.units import MILLI
from multisched.forecasting.profiles import NO_PROFILES, Profiles, profiles_text
from multisched.framework.background import BackgroundPorts
from multisched.framework.context import PluginContext
from multisched.framework.cycle_state import StateKey
from multisched.framework.dependency import Dependency
from multisched.framework.introspection import PluginMetric
from multisched.framework.ledger import LedgerSettingsError
from multisched.framework.moving import RepairStatus
from multisched.framework.node_view import Rows
from multisched.framework.points import CycleView
from multisched.framework.repair import RepairInput, RepairPlan, RepairRefusedError, RepairRequest
from multisched.framework.traits import Traits
from multisched.framework.use_peaks import PredictedUse, UsePeaks
from multisched.framework.views import Document, NoViewError, ViewPorts, ViewQuery
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import CPU, MEMORY, Pod

if TYPE_CHECKING:
    from domains.forecast.learning.learned import Learner
    from domains.forecast.learning.refit import RefitState
    from domains.forecast.ledger.node_loads import NodeLoad
    from domains.forecast.repair.control import RepairControl
    from domains.forecast.settings.repair import RepairSettings
    from domains.forecast.views.figures import Figures

_PREDICTED: StateKey[tuple[Prediction, float]] = StateKey("PeakForecast.predicted")
"""(prediction of the pod, anchor of its scores). The signature changes with both, so they are equal for all pods of a class."""

READ_FOR_REPAIR: Final = (
    ObjectKind.POD_DISRUPTION_BUDGET,
    ObjectKind.PERSISTENT_VOLUME,
    ObjectKind.PERSISTENT_VOLUME_CLAIM,
)
logger = logging.getLogger(__name__)


QUOTAS_UNREAD: Final = (
    "ResourceQuotas were not considered: the args of PeakForecast have no repair section; set `repair: {}` to read them"
)


class PeakStatistics(msgspec.Struct, frozen=True):
    """State of the forecast, for metrics and `explain`."""

    services: int
    samples: int
    ignored_lines: int
    fallbacks: Mapping[str, int]
    version: int = 0
    """Version of the active profiles; 0 if they come from files, or if there are none."""
    curve_bytes: int = 0
    """Memory of the curves of all rows."""
    capacity_gaps: tuple[Gap, ...] = ()
    """Nodes whose capacity in some dimension is missing or unusable."""


class Worst(NamedTuple):
    """The dimension and slot in which a row with a pod added has its highest load."""

    dimension: str
    slot: str
    """Name for display, such as `Tue 20:00`."""
    percent: float
    """Load in percent of the capacity."""


class Learned(NamedTuple):
    """State that a sandbox needs in addition to the args, exported from the running forecast. Immutable."""

    profiles: Profiles | None
    fleet_level: tuple[int, Amounts]
    """`FleetLevel.number` and `FleetLevel.row`. Both depend on earlier values (hysteresis), so a sandbox cannot recompute them."""
    capacities: Mapping[str, Mapping[str, int]]
    """Dimension -> node -> milli-units, for dimensions whose capacity is measured by a query."""


class _CachedOutlook(NamedTuple):
    """The last outlook with the inputs for which it is valid. Filter and Score request the same rows one after the other."""

    mark: Hashable
    """`Curve.mark`: the identity of the pod's curve."""
    rows: Rows
    sequence: int
    """`PeakLedger.sequence`: changes with each change of the sums."""
    outlook: Outlook
    factors: Amounts


class Forecast:
    """The common base class. Its PostBind counts pods that were bound without a profile of their own service."""

    name = "PeakForecast"
    view = "forecast"
    depends_on = Dependency.ROW
    traits = Traits(reads_objects=READ_FOR_REPAIR)
    run: Callable[[BackgroundPorts], Awaitable[None]] | None = None
    """Runs refits and repairs, if they are configured; None if neither is. See `framework.background.BackgroundPlugin`."""

    def __init__(self, args: Mapping[str, Any], context: PluginContext) -> None:
        self._settings = settings = PeakSettings.from_config(args)
        if settings.repair is not None:
            # Otherwise ResourceQuotas are not read: without the RBAC rule for them, the program would never become ready.
            self.traits = Traits(reads_objects=(*READ_FOR_REPAIR, ObjectKind.RESOURCE_QUOTA))
        self._history = _load(settings)
        self._learner = _learner(settings)
        self._domain, self._nodes = context.domain, context.nodes
        profiles = self._history.profiles
        if profiles is None and self._learner is not None:
            profiles = self._learner.known
        fresh = PeakLedger(
            f"predicted-peaks/{context.domain}",
            self._predictor(profiles),
            settings.capacities,
            settings.dimensions,
        )
        ledger = context.hold.register(fresh)
        if not (isinstance(ledger, PeakLedger) and ledger.has_settings_of(fresh)):
            raise LedgerSettingsError(f"ledger {fresh.name} already exists with other capacities or dimensions")
        if ledger is not fresh and ledger.pods is None and self._learner is not None:
            raise LedgerSettingsError(
                f"ledger {fresh.name} was created without a record of its pods, which learning needs; "
                "give all PeakForecast plugins of the domain the same args"
            )
        self._ledger = ledger
        self._fleet_level = FleetLevel()
        self._fleet_level_of: tuple[int, int] = (0, 0)
        """`adopted` and `sequence` of the ledger when the fleet level was last updated."""
        self._cached: _CachedOutlook | None = None
        self._gaps = CapacityGaps()
        self._weights = np.ones(0)
        if profiles is not None and ledger is not fresh and ledger.predictor.version == 0:
            ledger.adopt(fresh.predictor)
        self._reset_caches()
        self.fallbacks: dict[str, int] = dict.fromkeys(FALLBACK_REASONS, 0)
        """Reason -> number of pods bound since the start without a profile of their own service (metric forecast_fallback_total)."""
        self._rows = ledger.rows if context.rows is None else context.rows
        self._figures: Figures | None = None
        self._refit = None if self._learner is None else self._learner.refit(context, ledger, self.adopt)
        self._node_row = context.nodes.row_of
        self._repair = None if settings.repair is None else self._repair_control(settings.repair, context)
        context.shared.of(UsePeaks).source = self
        parts = [part.run for part in (self._refit, self._repair) if part is not None]
        if parts:
            self.run = partial(_all_of, parts)

    # -- profiles --------------------------------------------------------------------------------------------------

    def adopt(self, profiles: Profiles) -> None:
        """Activates new profiles; called between cycles. The sums of a row are recomputed when the row is read, or by `catch_up`."""
        self._ledger.adopt(self._predictor(profiles))
        self._reset_caches()

    def catch_up(self) -> bool:
        """Recomputes the sums of the next rows after `adopt`. Returns True if rows remain.

        When all rows are recomputed, notes and logs nodes whose capacity is missing or unusable.
        """
        has_more = self._ledger.catch_up()
        if not has_more:
            self._gaps.look(self._ledger)
        return has_more

    def export_state(self) -> Learned:
        """See `framework.introspection.StateExportPlugin`."""
        quantized = self._ledger.predictor.quantized
        answers = {name: one.answers() for name, one in self._measured()}
        return Learned(
            None if quantized is None else quantized.profiles,
            (self._fleet_level.number, self._fleet_level.row),
            answers,
        )

    def import_state(self, handed: object) -> None:
        """See `framework.introspection.StateExportPlugin`."""
        assert isinstance(handed, Learned), "the state must be exported by PeakForecast"
        for name, one in self._measured():
            one.import_answers(handed.capacities.get(name, {}))
        self._ledger.replace_capacities(
            self._settings.capacities
        )  # the ledger may have those of the domain's other plugin
        if handed.profiles is not None:
            self.adopt(handed.profiles)
            self._fleet_level.number, self._fleet_level.row = handed.fleet_level

    def _measured(self) -> Iterator[tuple[str, MeasuredCapacity]]:
        for name, one in self._settings.capacities.items():
            if isinstance(one, MeasuredCapacity):
                yield name, one

    @property
    def dimensions(self) -> Sequence[str]:
        """Returns the dimensions of the forecast, in the order of the ledger's columns."""
        return self._ledger.predictor.dimensions

    def statistics(self) -> PeakStatistics:
        history, quantized, curves = self._history, self._ledger.predictor.quantized, self._ledger.curves
        return PeakStatistics(
            0 if quantized is None else len(quantized.profiles.services),
            history.sample_count,
            history.problem_count,
            dict(self.fallbacks),
            self._ledger.predictor.version,
            0 if curves is None else curves.nbytes,
            self._gaps.found,
        )

    def worst(self, pod: Pod, row: int) -> Worst | None:
        """Returns the slot and dimension with the highest load on the row with the pod added.

        Ignores dimensions in which the node has no capacity. Returns None if none is left, or if there are no profiles.
        """
        curve, quantized = self._ledger.predictor.predict(pod).curve, self._ledger.predictor.quantized
        if curve is None or quantized is None:
            return None
        rows = np.array([row], np.intp)
        held = self._ledger.settled(rows).of(rows)[0]
        load = (held if self._ledger.holds(pod.uid, row) else held + curve.quanta) * quantized.quantum_milli
        capacity = self._ledger.capacity(rows)
        percent = np.where(capacity >= 0, 100.0 * load / np.maximum(capacity, 1.0), -1.0)
        dimension, slot = divmod(int(percent.argmax()), percent.shape[1])
        if percent[dimension, slot] < 0:
            return None
        return Worst(
            quantized.dimensions[dimension], quantized.profiles.slot_name(slot), float(percent[dimension, slot])
        )

    def predicted_use(
        self, resource: str, rows: Rows, begin_s: float, end_s: float, without: Mapping[int, Sequence[Pod]]
    ) -> PredictedUse | None:
        """Returns the highest predicted use of each row in a period; see `framework.use_peaks.ForecastsUse`.

        The use of a row is the sum of its pods' peaks per slot, interpolated linearly between the middles of slots.
        """
        quantized = self._ledger.predictor.quantized
        if quantized is None or resource not in quantized.dimensions:
            return None
        at, profiles = quantized.dimensions.index(resource), quantized.profiles
        loads = self._ledger.settled(rows).of(rows)[:, at].astype(np.int64)
        for number, row in enumerate(rows.tolist()):
            for pod in without.get(row, ()):
                curve = self._ledger.predictor.predict(pod).curve
                if curve is not None and self._ledger.holds(pod.uid, row):
                    loads[number] -= curve.quanta[at]
        unit = quantized.quantum_milli.item(at) / (1.0 if resource == CPU else MILLI)
        found = loads @ profiles.curve_weights(begin_s, end_s).T
        return PredictedUse(found.max(axis=1, initial=0.0) * unit, profiles.newest_s)

    def refit_state(self) -> RefitState | None:
        """Returns the state of the refit; None if refits are not configured."""
        return None if self._refit is None else self._refit.state()

    def metrics(self, now_s: float) -> Sequence[PluginMetric]:
        """Returns the metrics. Imports `figures` here, so that the program starts faster."""
        if self._figures is None:
            from domains.forecast.views.figures import Figures

            self._figures = Figures(self._ledger, self._rows, self.fallbacks)
        return self._figures.all(now_s, self.refit_state(), self.node_loads())

    def node_loads(self) -> Mapping[str, NodeLoad]:
        """Returns dimension -> measured load of the domain's nodes, for dimensions that have a source of measurements."""
        return {} if self._refit is None or self._refit.loads is None else self._refit.loads.latest()

    def health(self, now_s: float) -> str:
        """Returns a text with the age of the profiles and recent failures; empty if there are neither profiles nor refits."""
        state, quantized = self.refit_state(), self._ledger.predictor.quantized
        if state is not None:
            return state.detail(now_s)
        return (
            "" if quantized is None else profiles_text(quantized.profiles.version, now_s - quantized.profiles.newest_s)
        )

    def describe(self, pod: Pod, row: int) -> str:
        """Returns a sentence about the highest predicted load of the row with the pod added; see `worst`."""
        found = self.worst(pod, row)
        if found is None:
            return ""
        at, peak = self.dimensions.index(found.dimension), f"{found.dimension} at {found.slot}"
        if self._ledger.capacity(np.array([row], np.intp))[at, 0] <= 0:
            return f"with this pod, the highest predicted load of the node is {peak}; the node has no {found.dimension} capacity"
        return f"with this pod, the highest predicted load of the node is {peak}: {found.percent:.0f} % of capacity"

    async def show(self, query: ViewQuery, ports: ViewPorts) -> Callable[[], Document]:
        """See `framework.views.ViewedPlugin`."""
        from domains.forecast.views.forecast_snapshot import ForecastSnapshot, take_fleet
        from domains.forecast.views.show import document_of

        make, now_s = document_of(query), ports.clock.now().timestamp()
        remark = self.health(now_s)
        node_with_pods = query.options.get("name", "") if query.name == "node" else ""
        if self._ledger.predictor.quantized is None:
            raise NoViewError(f"no profiles are active yet: {self._why_none(remark)}", status=503)
        fleet = await take_fleet(self._ledger, self._nodes, ports.rows, node_with_pods)
        snapshot = ForecastSnapshot(fleet.quantized.profiles, now_s, self._domain, remark, fleet)
        return lambda: make(snapshot)

    def _why_none(self, remark: str) -> str:
        """Returns why there are no profiles, and the fix. `remark`: the result of `health`."""
        failed = remark.removeprefix(NO_PROFILES).removeprefix("; ")
        if failed:
            return f"{failed}; fix this, the refit is retried"
        if self._refit is not None:
            return "the first refit has not finished; wait for it, /readyz?verbose shows its progress"
        if self._learner is not None:
            return "only a running multisched reads this history; ask it with --server, or read its profilesFile with --profiles"
        return "there is no history; name historyDir, files, history or profilesFile in the args of PeakForecast"

    # -- repair (`framework.repair.RepairingPlugin`) -------------------------------------------------------------------

    def plan_repair(self, cluster: RepairInput, request: RepairRequest) -> RepairPlan:
        """See `repair.answer`. Raises RepairRefusedError."""
        from domains.forecast.repair.answer import answer
        from domains.forecast.settings.repair import RepairSettings

        plan = answer(cluster, request, self._ledger, self._settings.repair or RepairSettings())
        if ObjectKind.RESOURCE_QUOTA in self.traits.reads_objects or any(
            cluster.objects.all(ObjectKind.RESOURCE_QUOTA)
        ):
            return plan
        return msgspec.structs.replace(plan, notes=(*plan.notes, QUOTAS_UNREAD))

    def _repair_control(self, settings: RepairSettings, context: PluginContext) -> RepairControl:
        from domains.forecast.repair.control import RepairControl
        from domains.forecast.repair.record import Budget
        from domains.forecast.repair.run_executor import Forecasts

        return RepairControl(
            context.domain,
            settings.execution,
            Budget(settings.moves_per_window, settings.moves_per_node, settings.moves_per_service),
            Forecasts(self.peaks, self._reserve, self._ledger.withdraw),
        )

    def peaks(self, node: str) -> Mapping[str, float]:
        """Returns dimension -> predicted peak of the node's current pods as a share of its capacity.

        Contains only dimensions in which the node has a capacity.
        """
        row, quantized = self._node_row(node), self._ledger.predictor.quantized
        if row is None or quantized is None:
            return {}
        rows = np.array([row], np.intp)
        load = (self._ledger.settled(rows).of(rows)[0] * quantized.quantum_milli).max(axis=1)
        capacity = self._ledger.capacity(rows)[:, 0]
        stated = zip(self.dimensions, load.tolist(), capacity.tolist(), strict=True)
        # A stated capacity of zero counts as one milli-unit, so any use exceeds it.
        return {name: used / max(has, 1.0) for name, used, has in stated if has >= 0}

    def _reserve(self, pod: Pod, node: str) -> None:
        row = self._node_row(node)
        if row is not None:
            self._ledger.reserve(pod, row)

    def repair_status(self) -> RepairStatus:
        """See `framework.moving.RepairExecutor`."""
        if self._repair is None:
            return RepairStatus(domain=self._ledger.name.rpartition("/")[2], mode="off", is_open=False)
        return self._repair.status()

    async def request_repair(self, request: RepairRequest, digest: str) -> RepairStatus:
        """See `framework.moving.RepairExecutor`."""
        if self._repair is None:
            raise RepairRefusedError(
                "repair is off: set repair.mode and repair.windows in the args of PeakForecast", 409
            )
        return await self._repair.request(request, digest)

    # -- signature and PostBind --------------------------------------------------------------------------------------

    def sign(self, pod: Pod) -> Hashable:
        """Returns the pod's signature. It contains the number of the active profiles and `FleetLevel.version`, so that a change of
        either invalidates the cached scores of all classes.
        """
        mark = self._ledger.predictor.predict(pod).mark
        return mark if self._ledger.curves is None else (mark, self._fleet_level_version())

    def post_bind(self, cycle: CycleView, pod: Pod, node: str) -> None:
        fallback = self._ledger.predictor.predict(pod).fallback
        if fallback:
            self.fallbacks[fallback] += 1

    # -- shared by Score and Filter ----------------------------------------------------------------------------------

    def _predictor(self, profiles: Profiles | None) -> Predictor:
        known = set() if profiles is None else set(profiles.dimensions)
        dimensions = self._settings.dimensions or tuple(sorted({CPU, MEMORY} | known))
        return Predictor(dimensions, None if profiles is None else QuantizedProfiles(profiles, dimensions))

    def _reset_caches(self) -> None:
        self._weights = np.array([self._settings.weights.get(name, 1.0) for name in self.dimensions])
        self._fleet_level_of = (-1, 0)
        self._cached = None

    def _fleet_level_version(self) -> int:
        """Returns `FleetLevel.version`. First updates the fleet level if profiles changed, or if since the last update more than one
        pod per PODS_PER_UPDATE pods was added or removed.
        """
        ledger = self._ledger
        adopted, sequence = self._fleet_level_of
        if adopted != ledger.adopted or (ledger.sequence - sequence) * PODS_PER_UPDATE > len(ledger):
            self._fleet_level_of = (ledger.adopted, ledger.sequence)
            self._fleet_level.update(fleet_square(ledger.fleet_load(), self._weights), ledger.mean_row())
        return self._fleet_level.version

    def _predict(self, cycle: CycleView, pod: Pod) -> tuple[Prediction, float]:
        """Returns (prediction of the pod, anchor of its scores), cached in the cycle state."""
        found = cycle.state.find(_PREDICTED)
        if found is None:
            own, anchor = self._ledger.predictor.predict(pod), 0.0
            if own.curve is not None:
                self._fleet_level_version()
                anchor = self._fleet_level.anchor(own.curve, self._weights)
            found = own, anchor
            cycle.state.write(_PREDICTED, found)
        return found

    def _outlook_of(self, rows: Rows, curve: Curve) -> tuple[Outlook, Amounts]:
        """Returns the outlook of the rows with a pod of this curve added, and the factors from its amounts to shares of capacity."""
        ledger, cached = self._ledger, self._cached
        if (
            cached is not None
            and cached.rows is rows
            and cached.mark == curve.mark
            and cached.sequence == ledger.sequence
        ):
            return cached.outlook, cached.factors
        quantized = ledger.predictor.quantized
        assert quantized is not None, "curves are made of profiles"
        outlook = ledger.outlook(rows, curve)
        factors = load_factor(ledger.capacity(rows), quantized.quantum_milli, quantized.stand_in_milli)
        self._cached = _CachedOutlook(curve.mark, rows, ledger.sequence, outlook, factors)
        return outlook, factors


async def _all_of(
    parts: Sequence[Callable[[BackgroundPorts], Coroutine[Any, Any, None]]], ports: BackgroundPorts
) -> None:
    """Runs all parts concurrently until cancelled or one fails."""
    async with anyio.create_task_group() as tasks:
        for part in parts:
            tasks.start_soon(part, ports)


def _learner(settings: PeakSettings) -> Learner | None:
    if settings.learning is None:
        return None
    from domains.forecast.learning.learned import Learner

    return Learner(settings.learning, settings.capacities)


def _load(settings: PeakSettings) -> History:
    if not settings.files:
        if settings.history_dir and settings.learning is None:
            logger.warning(
                "no history; the predicted use of a pod is its requests",
                extra={"note": f"historyDir {settings.history_dir} contains no *.csv file"},
            )
        return History()
    history = load_history(settings.files, fit=settings.fit_of_files(), window_days=settings.window_days)
    if history.problem_count:
        logger.warning(
            "history lines ignored", extra={"lines": history.problem_count, "first": str(history.problems[0])}
        )
    for note in history.notes:
        logger.warning("history is incomplete", extra={"note": note})
    return history

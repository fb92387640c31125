"""PeakFilter: rejects rows whose predicted peak with the pod would exceed a percentage of their capacity.

A plugin can register at most 254 reasons. So a reason names the dimension, the slot, and the percentage in steps of
PERCENT_STEP. `Forecast.worst` gives the exact percentage for one node.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from domains.forecast.curves.flat_peaks import Amounts
from domains.forecast.curves.node_curves import worst_slots
from domains.forecast.curves.quantized_profiles import FLOAT_QUANTA, Curve, QuantizedProfiles
from domains.forecast.forecast import Forecast
from multisched.framework.context import PluginContext
from multisched.framework.cycle_state import StateKey
from multisched.framework.moving import STAND_IN
from multisched.framework.node_view import Bools, Codes, Rows, any_true
from multisched.framework.points import CycleView, PreFilterResult
from multisched.framework.reasons import ReasonTable
from multisched.framework.status import SUCCESS, Code, Status
from multisched.model.objects import Pod

PERCENT_STEP: Final = 10
PERCENT_SHOWN_MAX: Final = 200
SENTENCES_WITH_SLOT_MAX: Final = 192
"""Limit of distinct reasons with a slot; after that, new reasons name the dimension only."""

Delta = NDArray[np.int32]
_TRIAL_DELTAS: StateKey[Mapping[int, Delta]] = StateKey("PeakForecast/pods added or removed in a trial, by row")
_PASSES: Final = PreFilterResult()


class PeakFilter(Forecast):
    """The Filter plugin. Without profiles every row passes. Nominated pods count: the framework adds them with `add_pod`."""

    def __init__(self, args: Mapping[str, Any], context: PluginContext) -> None:
        super().__init__(args, context)
        self.reasons = ReasonTable(self.name)
        self._sentences: set[str] = set()
        """Reasons with a slot that already have a code."""
        self._threshold = self._settings.threshold_percent

    def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
        return _PASSES

    def add_pod(self, cycle: CycleView, pod: Pod, other: Pod, row: int) -> Status:
        self._record_change(cycle, other, row, 1)
        return SUCCESS

    def remove_pod(self, cycle: CycleView, pod: Pod, other: Pod, row: int) -> Status:
        self._record_change(cycle, other, row, -1)
        return SUCCESS

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        """Returns uint8[rows], 0 where the row passes. Rejects a row if any dimension would exceed the threshold in any slot.

        Ignores dimensions that the pod does not use or in which the node states no capacity.
        """
        codes = np.zeros(len(rows), np.uint8)
        curve, quantized = self._predict(cycle, pod)[0].curve, self._ledger.predictor.quantized
        if curve is None or quantized is None or not len(rows):
            return codes
        outlook, factors = self._outlook_of(rows, curve)
        peak, deltas = outlook.peak, cycle.state.find(_TRIAL_DELTAS) or {}
        changed = [at for at, row in enumerate(rows.tolist()) if row in deltas] if deltas else []
        if changed:
            peak = peak.copy()
            for at in changed:
                load = self._load(rows[at : at + 1], deltas)
                peak[:, at] = (load[0] * np.float32(FLOAT_QUANTA) + curve.floats).max(axis=1)
        percent = peak * factors * 100.0
        counts = curve.uses[:, None] & (self._ledger.capacity(rows) >= 0)
        percent = np.where(counts, percent, 0.0)
        refused: Bools = np.logical_or.reduce(percent > self._threshold, axis=0)
        if any_true(refused):
            codes[refused] = self._codes(rows[refused], percent[:, refused], curve, quantized, deltas)
        return codes

    def _codes(
        self, rows: Rows, percent: Amounts, curve: Curve, quantized: QuantizedProfiles, deltas: Mapping[int, Delta]
    ) -> Codes:
        """Returns uint8[rows]: reason codes of rejected rows, by the dimension and slot with the highest load."""
        codes = np.zeros(len(rows), np.uint8)
        worst = percent.argmax(axis=0)
        loads = self._load(rows, deltas)
        for dimension in np.unique(worst).tolist():
            at = (worst == dimension).nonzero()[0]
            slots = worst_slots(loads[at, dimension], curve.quanta[dimension])
            steps = np.minimum(percent[dimension, at], PERCENT_SHOWN_MAX) // PERCENT_STEP
            kinds, of = np.unique(np.stack([slots, steps.astype(np.intp)]), axis=1, return_inverse=True)
            kind_codes = [self._code(quantized, dimension, slot, step) for slot, step in kinds.T.tolist()]
            codes[at] = np.array(kind_codes, np.uint8)[of.ravel()]
        return codes

    def _code(self, quantized: QuantizedProfiles, dimension: int, slot: int, step: int) -> int:
        name, passed = quantized.dimensions[dimension], max(step * PERCENT_STEP, self._threshold)
        said = f"node(s) fit now, {name} at {quantized.profiles.slot_name(slot)} would be over {passed:.0f} %"
        if said not in self._sentences:
            if len(self._sentences) >= SENTENCES_WITH_SLOT_MAX:
                said = f"node(s) fit now, {name} would be over {self._threshold:.0f} % at its predicted peak"
            else:
                self._sentences.add(said)
        return self.reasons.code(Code.UNSCHEDULABLE, said)

    def _load(self, rows: Rows, deltas: Mapping[int, Delta]) -> NDArray[np.int32]:
        """Returns int32[rows, dimensions, slots]: ledger sums plus the hypothetical changes in `deltas`."""
        loads = self._ledger.settled(rows).of(rows)
        for at, row in enumerate(rows.tolist() if deltas else ()):
            if row in deltas:
                loads[at] += deltas[row]
        return loads

    def _record_change(self, cycle: CycleView, other: Pod, row: int, sign: int) -> None:
        """Records a hypothetically added (sign 1) or removed (-1) pod. Writes a new mapping and a new array, because cycle
        state is copied shallowly."""
        if other.uid.startswith(STAND_IN) and self._ledger.has_reservation(row):
            return  # the ledger already counts the reservation of this stand-in
        curve = self._ledger.predictor.predict(other).curve
        if curve is not None:
            before = cycle.state.find(_TRIAL_DELTAS) or {}
            known = before.get(row)
            delta = curve.quanta * np.int32(sign)
            cycle.state.write(_TRIAL_DELTAS, {**before, row: delta if known is None else known + delta})

"""CurrentLoad: prefers the node whose fullest dimension has the least use over capacity now, including the incoming pod's use.

It models an ideal scheduler that uses real-time load: the use of every pod is known without delay, and a pod counts
as soon as it is placed. The simulation updates `CurrentUsage` before each event.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import numpy as np

from multisched.framework.context import PluginContext
from multisched.framework.dependency import Dependency
from multisched.framework.node_view import Float64, Rows, Scores
from multisched.framework.normalize import MAX_SCORE
from multisched.framework.points import CycleView
from multisched.model.objects import Node, Pod

SERIES_ANNOTATION = "simulate.multisched.io/series"
"""Pod annotation: the index of the pod's series in the usage."""
RAW_PER_UNIT = 1_000_000
"""Raw scores are millionths of the capacity; NormalizeScore maps the scores of the feasible rows to 0..100."""


class CurrentUsage:
    """Current use of every series, and capacities of nodes. Written by the run, read by the plugin."""

    def __init__(self, current: Float64, capacities: Mapping[str, Float64]) -> None:
        """`current`: float64[series, dimensions]; `capacities`: node -> float64[dimensions]."""
        self.current = current
        self.capacities = capacities

    def update(self, current: Float64) -> None:
        self.current = current


def series_of(pod: Pod) -> int:
    """Returns the pod's series; -1 if the pod is not part of the scenario."""
    return int(pod.annotations.get(SERIES_ANNOTATION, "-1"))


class SeriesLedger:
    """Implements `framework.ledger.Ledger`: the series of the pods on each row. Accepts every pod."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.series: dict[int, dict[str, int]] = {}
        """Row -> uid -> series."""
        self.nodes: dict[int, str] = {}
        self._rows: dict[str, int] = {}
        self._versions: dict[int, int] = {}

    def is_used_by(self, pod: Pod) -> bool:
        return series_of(pod) >= 0

    def version(self, row: int) -> int:
        return self._versions.get(row, 0)

    def fits(self, pod: Pod, row: int) -> str:
        return ""

    def take(self, pod: Pod, row: int) -> Mapping[str, str]:
        self.restore(pod, row)
        return {}

    def restore(self, pod: Pod, row: int) -> None:
        if self._rows.get(pod.uid) != row:
            self.release(pod.uid)
            self._rows[pod.uid] = row
            self.series.setdefault(row, {})[pod.uid] = series_of(pod)
            self._versions[row] = self.version(row) + 1

    def release(self, uid: str) -> None:
        row = self._rows.pop(uid, None)
        if row is not None:
            del self.series[row][uid]
            self._versions[row] = self.version(row) + 1

    def set_node(self, row: int, node: Node | None) -> None:
        if node is None:
            self.nodes.pop(row, None)
        else:
            self.nodes[row] = node.name

    def held(self) -> Mapping[str, object]:
        return dict(self._rows)

    def empty_copy(self) -> SeriesLedger:
        return SeriesLedger(self.name)


class CurrentLoad:
    """Scores by current use. Since use changes with time, the plugin is called in every attempt."""

    name = "CurrentLoad"
    depends_on = Dependency.ATTEMPT

    def __init__(self, current_usage: CurrentUsage, context: PluginContext) -> None:
        ledger = context.hold.register(SeriesLedger(f"series/{context.domain}"))
        assert isinstance(ledger, SeriesLedger), "the name is this plugin's own"
        self._ledger = ledger
        self._current_usage = current_usage

    def sign(self, pod: Pod) -> Hashable:
        return series_of(pod)

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        """Returns int64[rows]: the used share of the fullest dimension, in millionths; less is better."""
        series = series_of(pod)
        own = self._current_usage.current[series] if series >= 0 else 0.0
        raw: Scores = np.array([self._share(row, own) for row in rows.tolist()], np.int64)
        return raw

    def normalize_score(self, cycle: CycleView, pod: Pod, raw: Scores) -> Scores:
        """Returns MAX_SCORE for the emptiest row, 0 for the fullest, linear between them."""
        if not len(raw):
            return raw
        least, most = raw.min(), raw.max()
        if least == most:
            return np.full(len(raw), MAX_SCORE, np.int64)
        scaled: Scores = (most - raw) * MAX_SCORE // (most - least)
        return scaled

    def _share(self, row: int, own: Float64 | float) -> int:
        series_by_pod = self._ledger.series.get(row)
        capacity = self._current_usage.capacities.get(self._ledger.nodes.get(row, ""))
        if capacity is None:
            return RAW_PER_UNIT
        used = self._current_usage.current[list(series_by_pod.values())].sum(0) + own if series_by_pod else own
        return int((used / capacity).max() * RAW_PER_UNIT)

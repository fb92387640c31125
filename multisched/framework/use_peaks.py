"""Predicted use of nodes, which one plugin of a domain offers to the others through `PluginContext.shared`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from multisched.framework.node_view import Float64, Rows
from multisched.model.objects import Pod


class PredictedUse(NamedTuple):
    """Predicted highest use of rows."""

    amounts: Float64
    """float64[rows]: milli-CPU, or bytes. The sum over pods of a high percentile of the use of each (by default the 95th)."""
    learned_s: float
    """Epoch seconds of the newest sample from which the prediction was learned."""


class ForecastsUse(Protocol):
    """Predicts what pods use on rows.

    A Protocol because the plugin Loans imports no domain; implemented by a domain's plugin (`PeakForecast`).
    """

    def predicted_use(
        self, resource: str, rows: Rows, begin_s: float, end_s: float, without: Mapping[int, Sequence[Pod]]
    ) -> PredictedUse | None:
        """Returns the highest predicted use between two moments (epoch seconds); None if it is not known.

        `rows`: ascending. `without`: row -> pods on it that do not count.
        """
        ...


class UsePeaks:
    """Predicts the use of a domain's nodes; predicts nothing until a plugin sets `source`."""

    def __init__(self) -> None:
        self.source: ForecastsUse | None = None

"""What nodes will use, as far as a plugin of the domain forecasts it; for other plugins, by `PluginContext.shared`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from multisched.framework.node_view import Float64, Rows
from multisched.model.objects import Pod


class PredictedUse(NamedTuple):
    """Predicted highest use of rows."""

    amounts: Float64
    """float64[rows]: thousandths of cores, or bytes. A sum over pods, each of which uses less in 19 of 20 samples."""
    learned_s: float
    """Epoch seconds of the newest sample that it was learned from."""


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
    """What a domain knows of future use; nothing until a plugin sets it."""

    def __init__(self) -> None:
        self.source: ForecastsUse | None = None

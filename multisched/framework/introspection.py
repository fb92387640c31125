"""What plugins tell of themselves: for explanations, sandboxes, metrics and health."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from multisched.framework.node_view import Int64, Rows
from multisched.framework.points import Plugin
from multisched.model.objects import Pod


@runtime_checkable
class ExplainPlugin(Plugin, Protocol):
    """A plugin that knows more of a node than a score can say: `explain` repeats it."""

    def describe(self, pod: Pod, row: int) -> str:
        """What it knows of the row for the pod as things are now, as the end of a sentence; empty: nothing."""
        ...


@runtime_checkable
class RoomPlugin(Plugin, Protocol):
    """A plugin whose Filter counts room of its own: `explain --fix` asks it for the demands that it would take.

    Border: a domain's plugin is one (`GpuShare`), and fixes know no domain.
    """

    def takes_at_most(self, pod: Pod, rows: Rows) -> Mapping[str, Int64]:
        """Resource or annotation of the pod -> int64[rows]: the most of it that each row takes, all else as the pod has it.

        0: nothing of it helps there.
        """
        ...


@runtime_checkable
class StateExportPlugin(Plugin, Protocol):
    """A plugin that learned more than its configuration and the cluster say: a sandbox takes it over, to answer as it would.

    Border: a domain's plugin is one (`Forecast`), and the sandbox knows no domain.
    """

    def export_state(self) -> object:
        """What another instance with the same args needs to say the same; immutable, for it is read in a thread. Cheap."""
        ...

    def import_state(self, handed: object) -> None:
        """What `export_state` of the other one gave; called before any node or pod is known."""
        ...


METRIC_SERIES_MAX = 256
"""Of one metric of one plugin."""


_METRIC_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")
_TAKEN_LABELS = frozenset({"domain", "le", "quantile"})
"""The program adds the first; the others are those of histograms and summaries, which these metrics are not."""


class PluginMetric(msgspec.Struct, frozen=True):
    """One metric at one moment, as plain numbers: the program adds the prefix `multisched_` and the label `domain`.

    Label values come from a set that is small and known, never names of pods, nodes or services. ValueError for what cannot be shown.
    """

    name: str
    """As `forecast_refits`; of a counter without `_total`, which is added. Beginning with a word of the plugin's own."""
    text: str
    values: Mapping[tuple[str, ...], float]
    """Label values -> number; what is missing is not shown."""
    labels: tuple[str, ...] = ()
    is_counter: bool = False
    """It only grows, from the start of the process; else a gauge."""

    def __post_init__(self) -> None:
        if not all(map(_METRIC_NAME.match, (self.name, *self.labels))) or not _TAKEN_LABELS.isdisjoint(self.labels):
            raise ValueError(
                f"metric {self.name!r} {self.labels}: write a-z, 0-9 and _; the label domain is added, le and quantile"
                " are those of histograms and summaries"
            )
        if len(self.values) > METRIC_SERIES_MAX:
            raise ValueError(f"metric {self.name}: {len(self.values)} series, more than {METRIC_SERIES_MAX}")
        if any(len(values) != len(self.labels) for values in self.values):
            raise ValueError(f"metric {self.name}: a value for each of {self.labels}")


@runtime_checkable
class MetricsPlugin(Plugin, Protocol):
    """A plugin that counts or knows something worth watching."""

    def metrics(self, now_s: float) -> Sequence[PluginMetric]:
        """Everything at this moment (epoch seconds), the same names each time. Asked at each scrape, on the loop: within milliseconds."""
        ...


@runtime_checkable
class HealthPlugin(Plugin, Protocol):
    """A plugin whose own work may fail while it goes on with what it has: `/readyz?verbose` says so beside a check that stays good."""

    def health(self, now_s: float) -> str:
        """How it goes, in one sentence; empty: nothing to say. Cheap."""
        ...

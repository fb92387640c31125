"""Reports of plugins, for explanations, sandboxes, metrics and health; and the interface by which plugins get the outcomes of pods."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from multisched.framework.node_view import Int64, Rows
from multisched.framework.points import Plugin
from multisched.model.objects import Node, Pod
from multisched.model.pod_outcome import PodOutcome


@runtime_checkable
class ExplainPlugin(Plugin, Protocol):
    """A plugin that can describe a node beyond its score; `explain` shows the description."""

    def describe(self, pod: Pod, row: int) -> str:
        """Returns a description of the row for the pod, as the end of a sentence; empty: none."""
        ...


@runtime_checkable
class PendingNotePlugin(Plugin, Protocol):
    """A plugin that knows more about a waiting pod than why it was refused; `explain` shows it.

    A Protocol because `explain` imports no domain; implemented by a domain's plugin (`DeadlineSort`).
    """

    def note_on_pending(self, pod: Pod, now_s: float) -> str:
        """Returns a sentence about a waiting pod; empty: none. `now_s`: seconds since the epoch."""
        ...


@runtime_checkable
class RoomPlugin(Plugin, Protocol):
    """A plugin whose Filter checks capacity that no other plugin counts. For `explain --fix`, it returns the demands that would fit.

    A Protocol because fixes import no domain; implemented by a domain's plugin (`GpuShare`).
    """

    def takes_at_most(self, pod: Pod, rows: Rows) -> Mapping[str, Int64]:
        """Returns resource or annotation of the pod -> int64[rows]: the largest demand that fits each row, other demands unchanged.

        0: reducing this demand alone does not help on that row.
        """
        ...


@runtime_checkable
class ExtendedResourcePlugin(Plugin, Protocol):
    """A plugin that checks extended resources instead of NodeResourcesFit, as an extender with `ignoredByScheduler` does.

    A Protocol because the configuration imports nothing of a domain but its profile; implemented by a domain's plugin (`GpuShare`).
    """

    resources_ignored_by_fit: frozenset[str]
    """Resource names that NodeResourcesFit ignores in profiles with this plugin. A class attribute, because profiles are resolved before
    plugins are built."""


@runtime_checkable
class EarlyPlugin(Plugin, Protocol):
    """A plugin that must be called before another one: when added to a profile, it is inserted there, not at the end.

    A Protocol because the configuration imports nothing of a domain but its profile; implemented by a domain's plugin (`GpuTide`).
    """

    runs_before: str
    """Name of the other plugin. A class attribute, because profiles are resolved before plugins are built."""


@runtime_checkable
class RemarkPlugin(Plugin, Protocol):
    """A plugin that reads annotations and other data of pods and nodes, and reports those that have no effect or cannot be used.

    A Protocol because ingest imports no domain; implemented by a domain's plugin (`GpuShare`).
    """

    def remarks_of_pod(self, pod: Pod) -> Sequence[str]:
        """Returns a remark on each setting of a pending pod that has no effect: field, reason and fix. Each becomes an event.
        Cheap: called for every pod.
        """
        ...

    def remarks_of_node(self, node: Node) -> Sequence[str]:
        """Returns a remark on each datum about a node in the table that cannot be used: field, reason and fix. Each becomes an event."""
        ...


@runtime_checkable
class OutcomePlugin(Plugin, Protocol):
    """A plugin that learns from the outcomes of the bound pods of its domain."""

    def see_outcome(self, outcome: PodOutcome) -> None:
        """Handles a version of a bound pod. Called in order: for each version until the pod runs, once when it runs, and when it has ended.

        Ended pods are reported again after a restart or a relist. A pod that is deleted before it ends is not reported. Cheap: called on
        the event loop.
        """
        ...


@runtime_checkable
class StateExportPlugin(Plugin, Protocol):
    """A plugin with learned state beyond its configuration and the cluster: a sandbox imports it to give the same answers.

    A Protocol because the sandbox imports no domain; implemented by a domain's plugin (`Forecast`).
    """

    def export_state(self) -> object:
        """Returns what another instance with the same args needs to give the same answers. Immutable, because a thread reads it. Cheap."""
        ...

    def import_state(self, handed: object) -> None:
        """Takes over the result of another instance's `export_state`; called before any node or pod is known."""
        ...


METRIC_SERIES_MAX = 256
"""Per metric and plugin."""


_METRIC_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")
_TAKEN_LABELS = frozenset({"domain", "le", "quantile"})
"""The program adds `domain`; `le` and `quantile` belong to histograms and summaries."""


class PluginMetric(msgspec.Struct, frozen=True):
    """The values of one metric at one moment. The program adds the prefix `multisched_` and the label `domain`.

    Label values come from a small known set, never from names of pods, nodes or services. Raises ValueError for an
    invalid name, too many series, or a wrong number of label values.
    """

    name: str
    """For example `forecast_refits`, beginning with a word of the plugin; a counter gets the suffix `_total`."""
    text: str
    values: Mapping[tuple[str, ...], float]
    """Label values -> number; other label values are not exported."""
    labels: tuple[str, ...] = ()
    is_counter: bool = False
    """True: a counter, which only grows from the start of the process. False: a gauge."""

    def __post_init__(self) -> None:
        if not all(map(_METRIC_NAME.match, (self.name, *self.labels))) or not _TAKEN_LABELS.isdisjoint(self.labels):
            raise ValueError(
                f"metric {self.name!r} {self.labels}: use a-z, 0-9 and _; the labels domain, le and quantile"
                " are reserved"
            )
        if len(self.values) > METRIC_SERIES_MAX:
            raise ValueError(f"metric {self.name}: {len(self.values)} series, more than {METRIC_SERIES_MAX}")
        if any(len(values) != len(self.labels) for values in self.values):
            raise ValueError(f"metric {self.name}: each series needs one value per label of {self.labels}")


@runtime_checkable
class MetricsPlugin(Plugin, Protocol):
    """A plugin with metrics."""

    def metrics(self, now_s: float) -> Sequence[PluginMetric]:
        """Returns all metrics at `now_s` (epoch seconds), with the same names each time. Called on the event loop at
        each scrape: must take milliseconds at most.
        """
        ...


@runtime_checkable
class HealthPlugin(Plugin, Protocol):
    """A plugin that can continue in a degraded state: `/readyz?verbose` shows its report next to a check that passes."""

    def health(self, now_s: float) -> str:
        """Returns its state in one sentence; empty: nothing to report. Cheap."""
        ...

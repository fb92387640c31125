"""All that a plugin says of a pod, point by point, for comparing pods that it signs alike."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from multisched.framework.caching import CacheKeyPlugin, SignPlugin, TopologyKeysPlugin
from multisched.framework.cycle_state import CycleState
from multisched.framework.node_view import Rows
from multisched.framework.points import (
    CycleView,
    FilterPlugin,
    NormalizeScorePlugin,
    Plugin,
    PreFilterExtensions,
    PreFilterPlugin,
    PreFilterResult,
    PreScorePlugin,
    ScorePlugin,
)
from multisched.framework.registry import implements
from multisched.framework.runner import Runner
from multisched.framework.sensitivity import PodSensitivePlugin
from multisched.framework.status import Code, Status
from multisched.framework.traits import traits_of
from multisched.model.objects import Pod, PodSpec
from multisched.state.cluster_cache import PlacedPod
from multisched.state.node_table import NodeTable
from multisched.state.overlay import OverlayCycle

Said = dict[str, Any]


class Signer:
    """Signs as the class cache does: namespace and priority count, and a plugin that reads the spec alone signs it once."""

    def __init__(self, plugin: SignPlugin) -> None:
        self._plugin = plugin
        self._by_spec: dict[int, tuple[PodSpec, Hashable]] = {}

    def signature(self, pod: Pod) -> Hashable | None:
        """None for a pod that cannot be signed, and is a class of its own."""
        if traits_of(self._plugin).signs_spec_only:
            _, fragment = self._by_spec.setdefault(id(pod.spec), (pod.spec, self._plugin.sign(pod)))
        else:
            fragment = self._plugin.sign(pod)
        return None if fragment is None else (pod.namespace, pod.spec.priority, fragment)


class Answers:
    """What one plugin says of pods on the rows of a table."""

    def __init__(
        self, plugin: Plugin, table: NodeTable, rows: Rows, runner: Runner, standing: Sequence[PlacedPod]
    ) -> None:
        """`standing`: pods that may matter, go, or stand elsewhere. What others would demand is in no signature: nominated
        pods are looked at for the very pod that is tried, and not for its class."""
        self._plugin = plugin
        self._table = table
        self._rows = rows
        self._runner = runner
        self._standing = standing

    def of(self, pod: Pod, state: CycleState | None = None) -> Said:
        """`state`: what the plugin wrote for another pod of the class, earlier."""
        plugin = self._plugin
        view = CycleView(self._table, CycleState() if state is None else state, places=self._rows)
        said: Said = {}
        if implements(plugin, CacheKeyPlugin):
            cache_key = plugin.cache_key(view, pod)
            if cache_key is None:
                return {"cache_key": None}
            said["cache_key"] = cache_key
        if implements(plugin, TopologyKeysPlugin):
            said["groups"] = plugin.topology_keys(view, pod)
        if implements(plugin, PodSensitivePlugin):
            sensitivity = plugin.pod_sensitivity(view, pod)
            said["sensitivity"] = [sensitivity.matters(other.pod) for other in self._standing]
            said["stands"] = (
                None if sensitivity.rows_that_matter is None else sensitivity.rows_that_matter(self._rows).tolist()
            )
        refused = self._pre_filter(view, pod, said)
        if implements(plugin, FilterPlugin) and refused is Code.SUCCESS:
            self._filter(plugin, view, pod, said)
        if implements(plugin, ScorePlugin):
            self._score(plugin, view, pod, said)
        return said

    def _pre_filter(self, view: CycleView, pod: Pod, said: Said) -> Code:
        if not implements(self._plugin, PreFilterPlugin):
            return Code.SUCCESS
        told = _tried(lambda: self._plugin.pre_filter(view, pod))  # type: ignore[attr-defined]
        said["pre_filter"] = told
        return told.status.code if isinstance(told, PreFilterResult) else Code.ERROR

    def _filter(self, plugin: FilterPlugin, view: CycleView, pod: Pod, said: Said) -> None:
        said["filter"] = self._statuses(plugin, view, pod)
        extensions = [plugin] if implements(plugin, PreFilterExtensions) else []
        overlay = OverlayCycle(self._table, view.state, pod, extensions, self._runner, 1)
        if self._standing:
            one = self._standing[0]
            overlay.remove_pod(one.pod, one.row)
            said["filter without one"] = self._statuses(plugin, overlay.view, pod)
            overlay.add_pod(one.pod, int(self._rows[-1]))
            said["filter with one elsewhere"] = self._statuses(plugin, overlay.view, pod)

    def _statuses(self, plugin: FilterPlugin, view: CycleView, pod: Pod) -> Any:
        codes = _tried(lambda: plugin.filter(view, pod, self._rows))
        return [plugin.reasons.status(code) for code in codes.tolist()] if isinstance(codes, np.ndarray) else codes

    def _score(self, plugin: ScorePlugin, view: CycleView, pod: Pod, said: Said) -> None:
        passing = [
            row
            for row, status in zip(self._rows.tolist(), said.get("filter", [Status()] * len(self._rows)), strict=False)
            if isinstance(status, Status) and status.is_success
        ]
        rows = np.array(passing, np.intp)
        if not len(rows):
            return
        if implements(plugin, PreScorePlugin):
            said["pre_score"] = _tried(lambda: plugin.pre_score(view, pod, rows))
            if not isinstance(said["pre_score"], Status) or said["pre_score"].code is Code.SKIP:
                return
        raw = _tried(lambda: plugin.score(view, pod, rows))
        said["score"] = raw.tolist() if isinstance(raw, np.ndarray) else raw
        if implements(plugin, NormalizeScorePlugin) and isinstance(raw, np.ndarray):
            final = _tried(lambda: plugin.normalize_score(view, pod, raw))
            said["final"] = final.tolist() if isinstance(final, np.ndarray) else final


def _tried(ask: Callable[[], Any]) -> Any:
    """The answer, or what was raised in its place."""
    try:
        return ask()
    except Exception as error:  # noqa: BLE001  (a plugin ends here; that it fails is its answer)
        return f"{type(error).__name__}: {error}"

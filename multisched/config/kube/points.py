"""The plugins of a kube-scheduler profile per extension point, with order and weights.

Source: kube-scheduler 1.36, apis/config/v1/default_plugins.go (merging with the defaults) and
framework/runtime/framework.go (expansion of multiPoint). Pure; called by `convert`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from multisched.config.kube.schema import ALL, POINTS, KubePlugin, KubePlugins

DEFAULT_PLUGINS: Final[Mapping[str, int]] = {
    "SchedulingGates": 1,
    "PrioritySort": 1,
    "NodeUnschedulable": 1,
    "NodeName": 1,
    "TaintToleration": 3,
    "NodeAffinity": 2,
    "NodePorts": 1,
    "NodeResourcesFit": 1,
    "VolumeRestrictions": 1,
    "NodeVolumeLimits": 1,
    "VolumeBinding": 1,
    "VolumeZone": 1,
    "PodTopologySpread": 2,
    "InterPodAffinity": 2,
    "DynamicResources": 2,
    "DefaultPreemption": 1,
    "NodeResourcesBalancedAllocation": 1,
    "ImageLocality": 1,
    "DefaultBinder": 1,
    "NodeDeclaredFeatures": 1,
}
"""Plugin -> score weight, for all plugins that 1.36 enables at multiPoint with default feature gates, in its order."""

NEEDS: Final[Mapping[str, tuple[str, frozenset[str]]]] = {
    "filter": (
        "preFilter",
        frozenset(
            {
                "NodePorts",
                "NodeResourcesFit",
                "VolumeRestrictions",
                "VolumeBinding",
                "PodTopologySpread",
                "InterPodAffinity",
            }
        ),
    ),
    "score": ("preScore", frozenset({"TaintToleration", "PodTopologySpread", "InterPodAffinity"})),
}
"""Point -> an earlier point and the plugins that must run there, too: otherwise every pod fails in upstream."""

PointsOf = Callable[[str], Collection[str]]
"""Plugin -> the extension points that it implements here, named as in a file (preFilter)."""


class PlacedPlugins(msgspec.Struct, frozen=True):
    """A profile with multiPoint expanded."""

    order: tuple[str, ...]
    """The plugins in the profile's order."""
    weights: Mapping[str, int]
    """Score weights of the plugins that score."""
    points: Mapping[str, tuple[str, ...]]
    """Point -> its plugins in order, for points that differ from the profile's order of all plugins that implement them."""
    added_points: tuple[tuple[str, str], ...] = ()
    """(plugin, point): the plugin was enabled at the point but not at the required earlier one; it now runs at both."""


class RepeatedPluginError(ValueError):
    """Plugins that are enabled twice at one point. `repeated`: (point, index in `enabled`) of each."""

    def __init__(self, repeated: Sequence[tuple[str, int]]) -> None:
        super().__init__(", ".join(f"{point}.enabled[{index}]" for point, index in repeated))
        self.repeated = tuple(repeated)


def place(plugins: KubePlugins, points_of: PointsOf, is_known: Callable[[str], bool]) -> PlacedPlugins:
    """Expands a profile's plugin sets, without unknown plugins. Call `refuse_repeated` before."""
    multi = {name: weight for name, weight in _multi_point(plugins).items() if is_known(name)}
    runs = {point: _at_point(plugins, point, multi, points_of, is_known) for point in POINTS}
    added_points = tuple(_add_required_points(plugins, multi, runs, points_of))
    used = {name for names in runs.values() for name in names}
    order = tuple(name for name in dict.fromkeys([*multi, *_flat(runs)]) if name in used)
    weights = {entry.name: entry.weight or 1 for entry in reversed(plugins.score.enabled)}
    return PlacedPlugins(
        order,
        {name: weights.get(name, multi.get(name, 1)) for name in runs["score"]},
        {p: names for p, names in runs.items() if names != tuple(n for n in order if p in points_of(n))},
        added_points,
    )


def named(plugins: KubePlugins) -> dict[str, str]:
    """Returns plugin -> the first point at which the file enables it."""
    found: dict[str, str] = {}
    for point in ("multiPoint", *POINTS):
        for entry in plugins.at(point).enabled:
            found.setdefault(entry.name, point)
    return found


def default_plugins_left(plugins: KubePlugins) -> list[str]:
    """Returns upstream's default plugins that the file does not disable."""
    disabled = _names(plugins.multi_point.disabled)
    return [] if ALL in disabled else [name for name in DEFAULT_PLUGINS if name not in disabled]


def _multi_point(plugins: KubePlugins) -> dict[str, int]:
    """Returns plugin -> weight: the enabled defaults with weights overridden by the file, then the file's other plugins."""
    weights = {entry.name: entry.weight or 1 for entry in plugins.multi_point.enabled}
    left = {name: weights.get(name, DEFAULT_PLUGINS[name]) for name in default_plugins_left(plugins)}
    return {**left, **weights}


def _at_point(
    plugins: KubePlugins, point: str, multi: Mapping[str, int], points_of: PointsOf, is_known: Callable[[str], bool]
) -> tuple[str, ...]:
    """Returns the plugins at a point: first those that override multiPoint, then multiPoint's, then those of the point only."""
    chosen = plugins.at(point)
    explicit = [e.name for e in chosen.enabled if is_known(e.name) and point in points_of(e.name)]
    disabled = _names(chosen.disabled)
    if ALL in disabled:
        return tuple(explicit)
    spread = [name for name in multi if point in points_of(name) and name not in disabled]
    overriding = [name for name in explicit if name in spread]
    return (
        *overriding,
        *(name for name in spread if name not in overriding),
        *(name for name in explicit if name not in overriding),
    )


def _add_required_points(
    plugins: KubePlugins, multi: Mapping[str, int], runs: dict[str, tuple[str, ...]], points_of: PointsOf
) -> Iterator[tuple[str, str]]:
    """Adds plugins to the earlier points that they require (`NEEDS`); yields (plugin, point) of each."""
    for point, (before, needing) in NEEDS.items():
        upstream = _at_point(plugins, before, multi, lambda _: POINTS, lambda _: True)
        for name in runs[point]:
            if name in needing and name not in upstream:
                yield name, point
                if before in points_of(name):
                    runs[before] = (*runs[before], name)


def refuse_repeated(plugins: KubePlugins) -> None:
    """Raises RepeatedPluginError for a plugin that is enabled twice at one point."""
    repeated = []
    for point in ("multiPoint", *POINTS):
        names = [entry.name for entry in plugins.at(point).enabled]
        repeated += [(point, index) for index, name in enumerate(names) if name in names[:index]]
    if repeated:
        raise RepeatedPluginError(repeated)


def _names(entries: Iterable[KubePlugin]) -> set[str]:
    return {entry.name for entry in entries}


def _flat(runs: Mapping[str, tuple[str, ...]]) -> Iterable[str]:
    return (name for names in runs.values() for name in names)

"""Which plugins run where, in which order and with which weight, in a profile of kube-scheduler.

Source: kube-scheduler 1.36, apis/config/v1/default_plugins.go (what a file changes of the defaults) and
framework/runtime/framework.go (how multiPoint is spread over the points). Pure; called by `convert`.
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
"""What 1.36 enables at multiPoint with its default feature gates, in its order, with the weights in scores."""

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
"""Point -> the point before it and the plugins that upstream fails every pod with if they do not run there too."""

PointsOf = Callable[[str], Collection[str]]
"""Plugin -> the points it has here, as a file names them (preFilter)."""


class PlacedPlugins(msgspec.Struct, frozen=True):
    """A profile, spread out."""

    order: tuple[str, ...]
    """The plugins in the order in which they stand in the profile."""
    weights: Mapping[str, int]
    """In scores; of those that score."""
    points: Mapping[str, tuple[str, ...]]
    """Point -> its plugins in order, where that is not simply all that have it in the profile's order."""
    mended: tuple[tuple[str, str], ...] = ()
    """(plugin, point): ran at the point and not at the one before it, and now runs at both."""


class RepeatedPluginError(ValueError):
    """Plugins that stand twice at one point: the point and which of its enabled ones, of each."""

    def __init__(self, repeated: Sequence[tuple[str, int]]) -> None:
        super().__init__(", ".join(f"{point}.enabled[{index}]" for point, index in repeated))
        self.repeated = tuple(repeated)


def place(plugins: KubePlugins, points_of: PointsOf, is_known: Callable[[str], bool]) -> PlacedPlugins:
    """Spreads a profile's sets over the points, leaving out what is not known. `refuse_repeated` has let them pass."""
    multi = {name: weight for name, weight in _multi_point(plugins).items() if is_known(name)}
    runs = {point: _at_point(plugins, point, multi, points_of, is_known) for point in POINTS}
    mended = tuple(_mend(plugins, multi, runs, points_of))
    used = {name for names in runs.values() for name in names}
    order = tuple(name for name in dict.fromkeys([*multi, *_flat(runs)]) if name in used)
    weights = {entry.name: entry.weight or 1 for entry in reversed(plugins.score.enabled)}
    return PlacedPlugins(
        order,
        {name: weights.get(name, multi.get(name, 1)) for name in runs["score"]},
        {p: names for p, names in runs.items() if names != tuple(n for n in order if p in points_of(n))},
        mended,
    )


def named(plugins: KubePlugins) -> dict[str, str]:
    """Plugin -> the first point at which the file enables it."""
    found: dict[str, str] = {}
    for point in ("multiPoint", *POINTS):
        for entry in plugins.at(point).enabled:
            found.setdefault(entry.name, point)
    return found


def default_plugins_left(plugins: KubePlugins) -> list[str]:
    """Upstream's default plugins that the file has not disabled, whether they are named again or not."""
    disabled = _names(plugins.multi_point.disabled)
    return [] if ALL in disabled else [name for name in DEFAULT_PLUGINS if name not in disabled]


def _multi_point(plugins: KubePlugins) -> dict[str, int]:
    """The defaults less what is disabled, changed where they stand by what is enabled again, then the others."""
    weights = {entry.name: entry.weight or 1 for entry in plugins.multi_point.enabled}
    left = {name: weights.get(name, DEFAULT_PLUGINS[name]) for name in default_plugins_left(plugins)}
    return {**left, **weights}


def _at_point(
    plugins: KubePlugins, point: str, multi: Mapping[str, int], points_of: PointsOf, is_known: Callable[[str], bool]
) -> tuple[str, ...]:
    """First what overrides multiPoint, then multiPoint's, then what stands at the point only."""
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


def _mend(
    plugins: KubePlugins, multi: Mapping[str, int], runs: dict[str, tuple[str, ...]], points_of: PointsOf
) -> Iterator[tuple[str, str]]:
    """Lets plugins run before a point where they must; the file asks for what fails every pod upstream."""
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

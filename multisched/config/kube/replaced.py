"""Plugins of scheduler-plugins and Koordinator that multisched replaces by plugins with other names or arguments.

Pure; called by `convert` before plugins are placed. Sources: scheduler-plugins 0.35, apis/config/v1/types.go, and
Koordinator 1.8, pkg/scheduler/apis/config/v1/types.go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from multisched.config.document import Path
from multisched.config.findings import Findings
from multisched.config.kube.schema import POINTS, KubeEnabledPlugin, KubePlugins, KubePluginSet
from multisched.config.sections import fields_of
from multisched.framework.gangs import GANG_PLUGIN
from multisched.model.gang import TIMEOUT_S

QUOTA_PLUGIN: Final = "ElasticQuota"
PREEMPTION: Final = "DefaultPreemption"
QUEUE_SORT: Final = "PrioritySort"


class Replacement(msgspec.Struct, frozen=True):
    """The replacement of a plugin of another project."""

    plugin: str
    """multisched's plugin. It is enabled at multiPoint, so it runs at its own extension points."""
    note: str
    """The differences."""
    args: Mapping[str, str]
    """Argument of the replaced plugin -> why it is not converted."""


_GANG_TIMEOUT: Final = f"has no counterpart; the gang's own timeout applies, {TIMEOUT_S:g} s by default"
_NOT_HELD: Final = "has no counterpart: no member of a gang is assumed before all required members have a node"
_RECLAIM: Final = "has no counterpart: a pod that is entitled by its quota's min reclaims capacity in its own attempt"
_TREE: Final = "has no counterpart: write it into a quota object"

REPLACED: Final[Mapping[str, Replacement]] = {
    "Coscheduling": Replacement(
        GANG_PLUGIN,
        "becomes GangScheduling, which decides a gang in one step and holds none of its pods at Permit; the queue keeps"
        " a gang together, so PrioritySort orders it",
        {
            "permitWaitingTimeSeconds": _GANG_TIMEOUT,
            "podGroupBackoffSeconds": "has no counterpart; podInitialBackoffSeconds and podMaxBackoffSeconds apply to gangs, too",
            "podGroupRejectPercentage": _NOT_HELD,
            "defaultTimeout": _GANG_TIMEOUT,
            "controllerWorkers": "has no effect here",
            "skipCheckScheduleCycle": _NOT_HELD,
        },
    ),
    "CapacityScheduling": Replacement(
        QUOTA_PLUGIN,
        "becomes ElasticQuota, which reclaims up to a quota's min; DefaultPreemption runs after it and preempts"
        " by priority",
        {},
    ),
    QUOTA_PLUGIN: Replacement(
        QUOTA_PLUGIN,
        "is taken for Koordinator's and becomes multisched's plugin of the same name",
        {
            "delayEvictTime": _RECLAIM,
            "revokePodInterval": _RECLAIM,
            "monitorAllQuotas": _RECLAIM,
            "defaultQuotaGroupMax": _TREE,
            "systemQuotaGroupMax": _TREE,
            "quotaGroupNamespace": "has no counterpart: a pod without a quota is not limited",
            "disableDefaultQuotaPreemption": "has no counterpart: a pod without a quota is not reclaimed",
            "enableCheckParentQuota": "has no counterpart: the max of every level always holds",
            "enableRuntimeQuota": "has no counterpart: a quota borrows up to its max while capacity is idle",
        },
    ),
}
"""Plugin of another project -> its replacement."""


def args_lost(name: str, args: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yields each argument of a replaced plugin that is not converted, with the reason."""
    known = REPLACED[name].args
    for argument in args:
        yield argument, known.get(argument, "is not converted")


def replace_plugins(at: Path, plugins: KubePlugins, findings: Findings) -> KubePlugins:
    """Returns the sets with replaced plugins exchanged for multisched's, and reports each replacement once."""
    ours: dict[str, None] = {}
    orders_queue = has_capacity = False
    for point in ("multiPoint", *POINTS):
        for index, entry in enumerate(plugins.at(point).enabled):
            replacement = REPLACED.get(entry.name)
            if replacement is None:
                continue
            if replacement.plugin not in ours:
                findings.note((*at, "plugins", point, "enabled", index), f"{entry.name} {replacement.note}")
            ours[replacement.plugin] = None
            orders_queue |= point == "queueSort"
            has_capacity |= entry.name == "CapacityScheduling"
    if not ours:
        return plugins
    sets = {point: _without_replaced(plugins.at(point)) for point in ("multiPoint", *POINTS)}
    sets["multiPoint"] = _with(sets["multiPoint"], *ours)
    if orders_queue:
        sets["queueSort"] = _with(sets["queueSort"], QUEUE_SORT)
    if QUOTA_PLUGIN in ours:  # ElasticQuota must reclaim before DefaultPreemption preempts
        before = (QUOTA_PLUGIN, PREEMPTION) if has_capacity else (QUOTA_PLUGIN,)
        sets["postFilter"] = _with(sets["postFilter"], *before, are_first=True)
    return replace(plugins, **{_FIELDS[point]: one for point, one in sets.items()})


def _without_replaced(one: KubePluginSet) -> KubePluginSet:
    return KubePluginSet(
        enabled=tuple(entry for entry in one.enabled if entry.name not in REPLACED),
        disabled=tuple(entry for entry in one.disabled if entry.name not in REPLACED),
    )


def _with(one: KubePluginSet, *names: str, are_first: bool = False) -> KubePluginSet:
    """Returns the set with these enabled, after or before those that it enables already."""
    missing = [KubeEnabledPlugin(name=name) for name in names if name not in {entry.name for entry in one.enabled}]
    enabled = (*missing, *one.enabled) if are_first else (*one.enabled, *missing)
    return KubePluginSet(enabled=enabled, disabled=one.disabled)


_FIELDS: Final = {field.encode_name: field.name for field in fields_of(KubePlugins)}

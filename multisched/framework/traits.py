"""Traits: what a plugin says of itself once and for all, so that the framework can ask it less, or in time.

    class NodePorts:
        name = "NodePorts"
        traits = Traits(signs_spec_only=True, wants_room_only=True)

A plugin without traits has none of them, which is always right and sometimes slow. They are checked when the plugin is
built. A trait of a point that it does not have is an error. So is an attribute of the plugin that has the name of a
trait.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import Final

import msgspec

from multisched.framework.normalize import ByLargest
from multisched.model.object_kinds import ObjectKind

_SWITCH: Final = (bool, "True or False")
_WANTED: Final[Mapping[str, tuple[type | UnionType, str]]] = {
    "signs_spec_only": _SWITCH,
    "wants_room_only": _SWITCH,
    "may_fail": _SWITCH,
    "pre_filter_reads_pods": _SWITCH,
    "reads_feasible": _SWITCH,
    "normalizer": (ByLargest | None, "a ByLargest, or None"),
    "pre_bind_timeout_s": (int | float | None, "seconds, or None"),
    "keeps_deadline": _SWITCH,
    "reads_objects": (tuple, "a tuple of ObjectKind"),
}


class Traits(msgspec.Struct, frozen=True, kw_only=True):
    """All are off by default. TypeError for a value of another type, or for a name that is none of these."""

    signs_spec_only: bool = False
    """`sign` reads nothing of a pod but its spec: the fragment is made once per spec, which the pods of a workload share."""
    wants_room_only: bool = False
    """Filter depends on ROW and reads nothing of a row's pods but requested amounts, their number and host ports. So
    one more pod never makes a refused row pass, and preemption tests thousands of rows at once."""
    may_fail: bool = False
    """Filter has codes for Code.ERROR: where no filter before it refuses such a row, the whole attempt fails, as upstream's does."""
    pre_filter_reads_pods: bool = False
    """PreFilter refuses by pods that stand, or by this plugin's ledgers about the cluster; fewer pods never make it refuse. So
    preemption asks it again without victims: on `cycle.nodes` they are gone, and those ledgers hold nothing for them. Only
    its verdict counts then. AddPod and RemovePod would count a second time, so a plugin with this trait has neither."""
    reads_feasible: bool = False
    """PreScore and Score of a CacheKeyPlugin go by which rows are feasible: they are asked again when others became so."""
    normalizer: ByLargest | None = None
    """In place of NormalizeScore, for "in proportion to the largest": the same answers, cheaper."""
    pre_bind_timeout_s: float | None = None
    """How long PreBind may take as a whole; None: `shell.binding.pre_bind.PRE_BIND_MAX_S`."""
    keeps_deadline: bool = False
    """Bind waits for nothing but its `binder`, which ends by its deadline: no timer is set beside it."""
    reads_objects: tuple[ObjectKind, ...] = ()
    """Kinds that the plugin reads by PluginContext.objects. The program watches these, and kinds whose events plugins register."""

    def __post_init__(self) -> None:
        for name, (kinds, words) in _WANTED.items():
            if not isinstance(getattr(self, name), kinds):
                raise TypeError(f"traits: {name} is {getattr(self, name)!r}; write {words}")
        if not all(isinstance(kind, ObjectKind) for kind in self.reads_objects):
            raise TypeError(f"traits: reads_objects is {self.reads_objects!r}; write a tuple of ObjectKind")
        if self.pre_bind_timeout_s is not None and not self.pre_bind_timeout_s > 0:
            raise TypeError(f"traits: pre_bind_timeout_s is {self.pre_bind_timeout_s!r}; write seconds above 0")


NO_TRAITS: Final = Traits()

POINTS: Final = {
    "signs_spec_only": "sign",
    "wants_room_only": "filter",
    "may_fail": "filter",
    "pre_filter_reads_pods": "pre_filter",
    "reads_feasible": "cache_key",
    "normalizer": "score",
    "pre_bind_timeout_s": "pre_bind",
    "keeps_deadline": "bind",
}
"""Trait -> the method without which it means nothing."""


def traits_of(plugin: object) -> Traits:
    """Those of a plugin that was built, or none."""
    found: Traits = getattr(plugin, "traits", NO_TRAITS)
    return found


def why_wrong(plugin: object) -> str:
    """What is wrong with the traits of a plugin, and how to mend it; empty: nothing."""
    traits = getattr(plugin, "traits", NO_TRAITS)
    if not isinstance(traits, Traits):
        return f"traits is {type(traits).__name__}; write traits = Traits(...) (multisched.framework.traits)"
    for name in Traits.__struct_fields__:
        if hasattr(plugin, name):
            return (
                f"{name} is a trait and no attribute; write traits = Traits({name}=...) (multisched.framework.traits)"
            )
        method = POINTS.get(name)
        if method is not None and getattr(traits, name) != getattr(NO_TRAITS, name) and not hasattr(plugin, method):
            return f"traits: {name} is about {method}, which the plugin does not have; remove it"
    if traits.normalizer is not None and hasattr(plugin, "normalize_score"):
        return "traits: normalizer stands in place of normalize_score; remove one of them"
    if traits.pre_filter_reads_pods and hasattr(plugin, "remove_pod"):
        return "traits: pre_filter_reads_pods stands in place of add_pod and remove_pod; remove one of them"
    return ""

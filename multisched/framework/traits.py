"""Traits: constant properties of a plugin that let the framework skip calls to it or make them in time.

    class NodePorts:
        name = "NodePorts"
        traits = Traits(signs_spec_only=True, wants_room_only=True)

A plugin without traits has all of them off, which is always correct and sometimes slow. Traits are checked when the plugin
is built: a trait of an extension point that the plugin does not implement is an error, and so is a plugin attribute
with the name of a trait.
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
    "signs_alike": _SWITCH,
    "wants_room_only": _SWITCH,
    "may_fail": _SWITCH,
    "pre_filter_reads_pods": _SWITCH,
    "reads_feasible": _SWITCH,
    "prefers_first_row": _SWITCH,
    "outranks": _SWITCH,
    "normalizer": (ByLargest | None, "a ByLargest, or None"),
    "pre_bind_timeout_s": (int | float | None, "seconds, or None"),
    "keeps_deadline": _SWITCH,
    "reads_objects": (tuple, "a tuple of ObjectKind"),
}


class Traits(msgspec.Struct, frozen=True, kw_only=True):
    """All are off by default. Raises TypeError for a value of another type, or for an unknown name."""

    signs_spec_only: bool = False
    """`sign` reads only the pod's spec: the fragment is computed once per spec, which the pods of a workload share."""
    signs_alike: bool = False
    """`sign` returns equal fragments for pods that are alike (`model.objects.are_alike`), also after other pods without affinity
    terms were placed: of pods decided together, one is signed.
    """
    wants_room_only: bool = False
    """Filter depends on ROW and reads, of a row's pods, only requested amounts, pod count and host ports. So adding a
    pod never makes a refused row pass, and preemption can test thousands of rows at once.
    """
    may_fail: bool = False
    """Filter may return codes for Code.ERROR: if no earlier filter refused such a row, the whole attempt fails, as upstream."""
    pre_filter_reads_pods: bool = False
    """PreFilter refuses because of placed pods or this plugin's cluster ledgers; removing pods never makes it refuse.
    So preemption runs it again without the victims: `cycle.nodes` does not contain them, and those ledgers hold nothing
    for them. Only its verdict is used then. AddPod and RemovePod would count twice, so a plugin with this trait has
    neither.
    """
    reads_feasible: bool = False
    """PreScore and Score of a CacheKeyPlugin depend on which rows are feasible: they run again when other rows become feasible."""
    prefers_first_row: bool = False
    """Among rows with equal highest total scores, the first is chosen, instead of one by a hash of the pod. So equally good nodes fill one
    after the other; a policy that packs prefers empty nodes to an even use.
    """
    outranks: bool = False
    """Scores of this plugin are compared first; those of all other plugins and extenders decide only among rows to which it gives equal
    scores. Its weight in the profile does not count. A profile has at most one such plugin.
    """
    normalizer: ByLargest | None = None
    """Replaces a NormalizeScore that scores in proportion to the largest raw score: same results, cheaper."""
    pre_bind_timeout_s: float | None = None
    """Limit for the whole PreBind; None: `shell.binding.pre_bind.PRE_BIND_MAX_S`."""
    keeps_deadline: bool = False
    """Bind waits only for its `binder`, which ends by its deadline: no second timer is set."""
    reads_objects: tuple[ObjectKind, ...] = ()
    """Kinds that the plugin reads from PluginContext.objects. The program watches these and the kinds of registered events."""

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
    "signs_alike": "sign",
    "wants_room_only": "filter",
    "may_fail": "filter",
    "pre_filter_reads_pods": "pre_filter",
    "reads_feasible": "cache_key",
    "prefers_first_row": "score",
    "outranks": "score",
    "normalizer": "score",
    "pre_bind_timeout_s": "pre_bind",
    "keeps_deadline": "bind",
}
"""Trait -> the method that it applies to; without it the trait is an error."""


def traits_of(plugin: object) -> Traits:
    """Returns the traits of a plugin instance, or NO_TRAITS."""
    found: Traits = getattr(plugin, "traits", NO_TRAITS)
    return found


def why_wrong(plugin: object) -> str:
    """Returns what is wrong with a plugin's traits and the fix; empty if nothing is."""
    traits = getattr(plugin, "traits", NO_TRAITS)
    if not isinstance(traits, Traits):
        return f"traits is {type(traits).__name__}; write traits = Traits(...) (multisched.framework.traits)"
    for name in Traits.__struct_fields__:
        if hasattr(plugin, name):
            return (
                f"{name} is a trait, not an attribute; write traits = Traits({name}=...) (multisched.framework.traits)"
            )
        method = POINTS.get(name)
        if method is not None and getattr(traits, name) != getattr(NO_TRAITS, name) and not hasattr(plugin, method):
            return f"traits: {name} applies to {method}, which the plugin does not have; remove it"
    if traits.normalizer is not None and hasattr(plugin, "normalize_score"):
        return "traits: normalizer replaces normalize_score; remove one of them"
    if traits.pre_filter_reads_pods and hasattr(plugin, "remove_pod"):
        return "traits: pre_filter_reads_pods replaces add_pod and remove_pod; remove one of them"
    return ""

"""DynamicResources: what kube-scheduler's plugin says of pods without resource claims.

Pods with claims are refused where they come in, with a condition that says so; claims are not allocated here.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from multisched.framework.cycle_state import StateKey
from multisched.framework.dependency import Dependency
from multisched.framework.points import CycleView, PostFilterResult, PreFilterResult, Refusals
from multisched.framework.status import SKIP, Status
from multisched.framework.traits import Traits
from multisched.model.objects import Pod
from multisched.plugins.dynamic_resources_args import DynamicResourcesArgs

UPSTREAM: Final = frozenset({
    "NodeAffinity", "NodePorts", "NodeResourcesFit", "VolumeRestrictions", "NodeVolumeLimits", "VolumeBinding", "VolumeZone",
    "PodTopologySpread", "InterPodAffinity",
})  # fmt: skip
"""Kube-scheduler's plugins with PreFilter that come before this one."""

_LOOKED: StateKey[bool] = StateKey("DynamicResources.looked")


class DynamicResources:
    """Source: kube-scheduler 1.36, plugins/dynamicresources/dynamicresources.go, PreFilter and PostFilter."""

    name = "DynamicResources"
    depends_on = Dependency.NODE
    traits = Traits(signs_spec_only=True)

    def __init__(self, args: DynamicResourcesArgs | None = None) -> None:
        self.args = args or DynamicResourcesArgs()
        """Checked, and without effect as long as no pod with claims comes this far."""
        self._nothing = PostFilterResult(Status.unschedulable("no new claims to deallocate"))
        self._unknown = PostFilterResult(Status.error("not found"))
        self._silent = PostFilterResult(Status.unresolvable())

    def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
        cycle.state.write(_LOOKED, True)
        return PreFilterResult(SKIP)

    def post_filter(self, cycle: CycleView, pod: Pod, refusals: Refusals) -> PostFilterResult:
        """There is no claim whose allocation could be given up for the pod.

        A pod that an earlier PreFilter refused for good has not been looked at. For it upstream reports a missing state,
        in the words "not found", and ends PostFilter there. Behind the sentence of a plugin that is not upstream's these
        words would be about nothing, so they are left out.
        """
        if cycle.state.find(_LOOKED):
            return self._nothing
        return self._unknown if refusals.status_of("").plugin in UPSTREAM else self._silent

    def sign(self, pod: Pod) -> Hashable:
        return ()

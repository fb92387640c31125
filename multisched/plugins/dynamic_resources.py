"""DynamicResources: kube-scheduler's results for pods without resource claims.

Pods with claims are refused before they are queued, with a condition that gives the reason; claims are not allocated.
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
"""Kube-scheduler's plugins with PreFilter that run before this one."""

_LOOKED: StateKey[bool] = StateKey("DynamicResources.looked")


class DynamicResources:
    """Source: kube-scheduler 1.36, plugins/dynamicresources/dynamicresources.go, PreFilter and PostFilter."""

    name = "DynamicResources"
    depends_on = Dependency.NODE
    traits = Traits(signs_spec_only=True)

    def __init__(self, args: DynamicResourcesArgs | None = None) -> None:
        self.args = args or DynamicResourcesArgs()
        """Checked but without effect, since no pod with claims reaches this plugin."""
        self._nothing = PostFilterResult(Status.unschedulable("no new claims to deallocate"))
        self._unknown = PostFilterResult(Status.error("not found"))
        self._silent = PostFilterResult(Status.unresolvable())

    def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
        cycle.state.write(_LOOKED, True)
        return PreFilterResult(SKIP)

    def post_filter(self, cycle: CycleView, pod: Pod, refusals: Refusals) -> PostFilterResult:
        """Returns upstream's result: there is no claim to deallocate for the pod.

        If an earlier PreFilter refused the pod, this plugin's PreFilter did not run. Upstream then ends PostFilter with the
        error "not found" for the missing cycle state. If that PreFilter belongs to a plugin that upstream does not have,
        the error would not make sense and is left out.
        """
        if cycle.state.find(_LOOKED):
            return self._nothing
        return self._unknown if refusals.status_of("").plugin in UPSTREAM else self._silent

    def sign(self, pod: Pod) -> Hashable:
        return ()

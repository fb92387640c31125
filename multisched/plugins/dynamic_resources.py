"""DynamicResources: what kube-scheduler's plugin says of pods without resource claims.

Pods with claims are refused where they come in, with a condition that says so; claims are not allocated here.
"""

from __future__ import annotations

from multisched.framework.plugin import CycleView, PostFilterResult, Refusals
from multisched.framework.status import Status
from multisched.model.objects import Pod
from multisched.plugins.dynamic_resources_args import DynamicResourcesArgs


class DynamicResources:
    """Source: kube-scheduler 1.36, plugins/dynamicresources/dynamicresources.go, PostFilter."""

    name = "DynamicResources"

    def __init__(self, args: DynamicResourcesArgs | None = None) -> None:
        self.args = args or DynamicResourcesArgs()
        """Checked, and without effect as long as no pod with claims comes this far."""
        self._nothing = PostFilterResult(Status.unschedulable("no new claims to deallocate").by(self.name))

    def post_filter(self, cycle: CycleView, pod: Pod, refusals: Refusals) -> PostFilterResult:
        """There is no claim whose allocation could be given up for the pod."""
        return self._nothing

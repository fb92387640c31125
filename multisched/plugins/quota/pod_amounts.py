"""PodAmounts: the amounts that one pod uses of its quota.

These are its resource requests, its additional device demands, and one pod, in the units of
`model.quota_tree.quota_amount`: thousandths of CPUs and devices, bytes, counts.
"""

from __future__ import annotations

from collections.abc import Mapping

from multisched.framework.device_demand import DeviceDemands
from multisched.model.objects import PODS, Pod
from multisched.model.quota_tree import quota_amount

Items = tuple[tuple[str, int], ...]
"""(resource, amount) pairs of one pod, including one of resource `pods`."""


class PodAmounts:
    """Computes the amounts of pods. Has no state."""

    def __init__(self, demands: DeviceDemands) -> None:
        self.demands = demands

    def of(self, pod: Pod) -> Mapping[str, int]:
        """Returns resource -> amount."""
        found = {name: quota_amount(name, amount) for name, amount in pod.requests.items()}
        for name, thousandths in self.demands.of(pod).items():
            found[name] = found.get(name, 0) + thousandths
        found[PODS] = 1
        return found

    def items(self, pod: Pod) -> Items:
        """Returns the same as a hashable value, sorted by name, with `pods` last."""
        found = dict(self.of(pod))
        del found[PODS]
        return (*sorted(found.items()), (PODS, 1))

    def beyond_requests(self, pod: Pod) -> Items:
        """Returns the device demands, which may differ between pods that share a spec."""
        return tuple(sorted(self.demands.of(pod).items()))

"""PodAmounts: what one pod counts for in quotas.

Resource requests, what it demands of devices besides, and one pod. In the units of quotas (`model.quota_tree.quota_amount`):
thousandths of CPUs and devices, bytes, counts.
"""

from __future__ import annotations

from collections.abc import Mapping

from multisched.framework.device_demand import DeviceDemands
from multisched.model.objects import PODS, Pod
from multisched.model.quota_tree import quota_amount

Items = tuple[tuple[str, int], ...]
"""What one pod counts for, by resource; one pod among them."""


class PodAmounts:
    """Owns nothing that changes."""

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
        """Returns the same as a value that can be compared; in the order of names, pods last."""
        found = dict(self.of(pod))
        del found[PODS]
        return (*sorted(found.items()), (PODS, 1))

    def beside_requests(self, pod: Pod) -> Items:
        """Returns what pods that share this pod's spec may not have in common with it."""
        return tuple(sorted(self.demands.of(pod).items()))

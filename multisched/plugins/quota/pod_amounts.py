"""PodAmounts: the amounts that one pod uses of its quota.

These are its resource requests, its additional device demands, and one pod, in the units of
`model.quota_tree.quota_amount`: thousandths of CPUs and devices, bytes, counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from multisched.framework.device_demand import DeviceDemands
from multisched.model.objects import PODS, Pod, PodSpec
from multisched.model.quota_tree import quota_amount

Items = tuple[tuple[str, int], ...]
"""(resource, amount) pairs of one pod, including one of resource `pods`."""


KNOWN_MAX: Final = 4_096
"""Specs whose amounts are kept: most pods share their spec with others."""


class PodAmounts:
    """Computes the amounts of pods. Keeps those that follow from the spec alone."""

    def __init__(self, demands: DeviceDemands) -> None:
        self.demands = demands
        self._known: dict[int, tuple[PodSpec, Items]] = {}
        """id of a spec -> the spec, so that it stays alive, and the amounts of its pods."""

    def of(self, pod: Pod) -> Mapping[str, int]:
        """Returns resource -> amount."""
        found = {name: quota_amount(name, amount) for name, amount in pod.requests.items()}
        for name, thousandths in self.demands.of(pod).items():
            found[name] = found.get(name, 0) + thousandths
        found[PODS] = 1
        return found

    def items(self, pod: Pod) -> Items:
        """Returns the same as a hashable value, sorted by name, with `pods` last."""
        if pod.held is not None or self.demands.of(pod):
            return self._items(pod)
        known = self._known.get(id(pod.spec))
        if known is None:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            known = self._known[id(pod.spec)] = pod.spec, self._items(pod)
        return known[1]

    def _items(self, pod: Pod) -> Items:
        found = dict(self.of(pod))
        del found[PODS]
        return (*sorted(found.items()), (PODS, 1))

    def beyond_requests(self, pod: Pod) -> Items:
        """Returns the device demands, which may differ between pods that share a spec."""
        return tuple(sorted(self.demands.of(pod).items()))

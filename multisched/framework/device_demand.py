"""DeviceDemands: pods' demands for countable devices that are not resource requests, from all ledgers.

A pod may request part of a device, or whole devices, by annotations or claims instead of resource requests. Each ledger
of such devices (`DeviceLedger`) registers a function here, and code that counts devices of pods (quotas) reads the sum.
So neither depends on the other. Filled by the registry of ledgers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from multisched.model.objects import Pod

Thousandths = Mapping[str, int]
"""Resource, for example nvidia.com/gpu -> thousandths of one device."""
NO_DEMAND: Final[Thousandths] = {}


class DeviceDemands:
    """Sums up the device demands that all ledgers report for one pod."""

    def __init__(self) -> None:
        self._dialects: dict[str, Callable[[Pod], Thousandths]] = {}
        self.sequence = 0
        """Rises when a ledger registers: earlier sums may then be too low."""

    def add(self, name: str, demand: Callable[[Pod], Thousandths]) -> None:
        """Registers a ledger's function once. `name`: the ledger's name."""
        if name not in self._dialects:
            self._dialects[name] = demand
            self.sequence += 1

    def of(self, pod: Pod) -> Thousandths:
        """Returns what the pod demands besides its resource requests; for a pod with a node, what it holds there."""
        found = NO_DEMAND
        for demand in self._dialects.values():
            more = demand(pod)
            if more:
                found = {name: found.get(name, 0) + more.get(name, 0) for name in (*found, *more)} if found else more
        return found

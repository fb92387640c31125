"""DeviceDemands: what pods demand of countable devices by other means than resource requests, in one place for all dialects.

A pod may take part of a device, or whole devices, by annotations or claims that no resource request shows. Each ledger that
hands out devices so (`DeviceLedger`) contributes one entry, and whatever counts devices of pods (quotas) asks here. So neither
has to know the other. Written by the registry of ledgers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from multisched.model.objects import Pod

Thousandths = Mapping[str, int]
"""Resource, for example nvidia.com/gpu -> thousandths of one device."""
NO_DEMAND: Final[Thousandths] = {}


class DeviceDemands:
    """Sums up what all dialects say of one pod."""

    def __init__(self) -> None:
        self._dialects: dict[str, Callable[[Pod], Thousandths]] = {}
        self.sequence = 0
        """Rises with each new dialect: what was counted before may be too little."""

    def add(self, name: str, demand: Callable[[Pod], Thousandths]) -> None:
        """Adds a dialect once. `name`: of its ledger."""
        if name not in self._dialects:
            self._dialects[name] = demand
            self.sequence += 1

    def of(self, pod: Pod) -> Thousandths:
        """Returns what the pod demands, or holds if it has a node, besides its resource requests."""
        found = NO_DEMAND
        for demand in self._dialects.values():
            more = demand(pod)
            if more:
                found = {name: found.get(name, 0) + more.get(name, 0) for name in (*found, *more)} if found else more
        return found

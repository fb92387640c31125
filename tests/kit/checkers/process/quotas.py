"""Elastic quotas of one process, by what it has observed: nothing assumed over a max, sums that are those of its pods (I14)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

from multisched.model.objects import Pod
from multisched.shell.program import Program
from multisched.state.ledgers import RowlessLedger
from tests.kit.checkers.delivered_state import DeliveredState
from tests.kit.checkers.quota_rules import quota_excess, usage_of

LEDGER: Final = "ElasticQuota"


class ProcessQuotas:
    """Asked at each assumption, and now and then."""

    def __init__(self, program: Program, delivered: DeliveredState) -> None:
        self._program, self._delivered = program, delivered

    def fault_of(self, pod: Pod) -> str:
        """Which max the pod passes, if it is assumed now; empty for none."""
        known = self._delivered.pods.get(pod.uid, pod)
        standing = (one for one in self._delivered.placed() if one.uid != pod.uid)
        return quota_excess(self._delivered.quotas.tree, known, standing)

    def fault_of_sums(self) -> str:
        """Where the sums of the program's ledger are not those of the pods that it has observed."""
        tree = self._delivered.quotas.tree
        ledgers = [one for one in self._program.cache.ledgers if isinstance(one, RowlessLedger) and one.name == LEDGER]
        if not ledgers:
            return ""
        ledgers[0].held()  # brings another tree into force that nobody has asked about yet
        here = cast(Mapping[str, Mapping[str, int]], ledgers[0].cluster.sums())
        if tree is None:
            return f"I14: quotas have sums for {sorted(here)}, and there is no tree" if here else ""
        usage = usage_of(tree, self._delivered.placed())
        for level in tree.root.below():
            for resource in sorted(level.min.keys() | level.max.keys()):
                shown, used = here.get(level.path, {}).get(resource, 0), usage.of(level)[resource]
                if shown != used:
                    return f"I14: {level.path} has {shown} {resource} by its ledger, and {used} by its pods"
        return ""

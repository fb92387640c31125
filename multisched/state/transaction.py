"""Transaction: pods that are assumed together, all or none.

Every decision assumes its pods here: a single pod is a transaction of one, a gang one of many. A refusal, or a
plugin that raises, undoes in reverse order what the transaction assumed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import msgspec

from multisched.framework.ledger import Choices
from multisched.model.objects import Pod
from multisched.state.cluster_cache import Assumption, ClusterCache, PodState
from multisched.state.ledgers import PodLedgers

StillFits = Callable[[Pod, int], bool]
"""(pod, row) -> whether the pod still passes all of the profile's filters there."""
Choose = Callable[[Pod, int], Choices]
"""(pod, row) -> what the profile's plugins choose for it there, in the current state."""


class NotTaken(msgspec.Struct, frozen=True):
    """The pod was not assumed."""

    refusal: str = ""
    """Node and reason of a ledger's refusal there, or reason of a cluster ledger's refusal; empty if other pods had taken the rows."""
    plugin: str = ""
    """The plugin that owns the refusing cluster ledger; empty for any other refusal."""
    condition_reason: str = ""
    """`Status.condition_reason` of that ledger's refusal."""


def assume(
    cache: ClusterCache,
    pod: Pod,
    row: int,
    choose: Choose,
    pod_ledgers: PodLedgers | None = None,
    *,
    is_tentative: bool = False,
) -> Assumption | NotTaken:
    """Assumes one pod on a row that passed the filters. Raises PluginFailure for a plugin or a ledger that fails.

    `pod_ledgers`: as `LedgerRegistry.ledgers_for` returned it in this step. `is_tentative`: as in `ClusterCache.assume`.
    """
    ledgers = cache.ledgers
    if pod_ledgers is None:
        pod_ledgers = ledgers.ledgers_for(pod)
    refusal = ledgers.fits_cluster(pod, pod_ledgers)
    if refusal.reason:
        return NotTaken(*refusal)
    choices = choose(pod, row)
    reason = ledgers.fits(pod, row, choices, pod_ledgers)
    return (
        NotTaken(f"node {cache.nodes.node(row).name}: {reason}")
        if reason
        else cache.assume(pod, row, choices, pod_ledgers, is_tentative=is_tentative)
    )


class Transaction:
    """Pods that are assumed one after another in one block: all are kept, or none.

    The caller finds a row for each pod in the state that the pods before it left, and then chooses what the pod gets
    from ledgers. A block that ends without `keep`, for any reason, forgets its pods in reverse order.

    The block of a gang may pause. Meanwhile its pods are assumed for all readers, but do not count as started members:
    until `keep`, their gang needs as many members as before.
    """

    def __init__(self, cache: ClusterCache) -> None:
        self._cache = cache
        self._assumed: list[Pod] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        while self._assumed:
            self._cache.forget(self._assumed.pop().uid)

    def assume(self, pod: Pod, row: int, choose: Choose) -> Assumption | NotTaken:
        """Like the function `assume`. Raises PluginFailure for a plugin or a ledger that fails."""
        found = assume(self._cache, pod, row, choose, is_tentative=True)
        if not isinstance(found, NotTaken):
            self._assumed.append(pod)
        return found

    def keep(self) -> None:
        """Keeps all assumed pods."""
        for pod in self._assumed:
            entry = self._cache.placed(pod.uid)
            if entry is not None and entry.state is PodState.ASSUMED:
                self._cache.gangs.set_member_node(pod.uid, entry.node)
        self._assumed.clear()

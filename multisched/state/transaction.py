"""Transaction: pods that are assumed together, all of them or none.

Whatever decides pods assumes them here: a single pod is a transaction of one, a gang is one of many. A refusal, or a
plugin that raises, undoes in reverse order what the transaction had assumed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import msgspec

from multisched.framework.ledger import Choices
from multisched.model.objects import Pod
from multisched.state.cluster_cache import Assumption, ClusterCache, PodState

StillFits = Callable[[Pod, int], bool]
"""(pod, row) -> do all of the profile's filters still pass it there?"""
Choose = Callable[[Pod, int], Choices]
"""(pod, row) -> what the profile's plugins choose for it there, as things stand at this moment."""


class NotTaken(msgspec.Struct, frozen=True):
    """Nothing was assumed."""

    refusal: str = ""
    """The node, and what a ledger has against the pod there, or what one has against it anywhere; empty where others had taken
    the rows."""
    plugin: str = ""
    """Who owns the ledger about the cluster that refuses it; empty for any other refusal."""
    condition_reason: str = ""
    """As `Status.condition_reason`, of that ledger."""


def assume(
    cache: ClusterCache, pod: Pod, row: int, choose: Choose, *, is_tentative: bool = False
) -> Assumption | NotTaken:
    """One pod on a row that passed the filters. Raises PluginFailure for a plugin or a ledger that fails.

    `is_tentative`: as `ClusterCache.assume` has it.
    """
    refusal = cache.ledgers.fits_cluster(pod)
    if refusal.reason:
        return NotTaken(*refusal)
    choices = choose(pod, row)
    reason = cache.ledgers.fits(pod, row, choices)
    return (
        NotTaken(f"node {cache.nodes.node(row).name}: {reason}")
        if reason
        else cache.assume(pod, row, choices, is_tentative=is_tentative)
    )


class Transaction:
    """Pods that are assumed one after another in one block: all of them are kept, or none.

    The caller finds a row for each pod by what those before it have left: they may have taken its room, or keep it away.
    What a pod gets of ledgers is chosen then, too. A block that ends without `keep`, for whatever reason, takes
    back in reverse order what it assumed.

    The block of a gang may pause. Meanwhile its pods are assumed for everybody, but they count as no members that have
    started: their gang needs as many as before until `keep`.
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
        """As the function `assume`. Raises PluginFailure for a plugin or a ledger that fails."""
        found = assume(self._cache, pod, row, choose, is_tentative=True)
        if not isinstance(found, NotTaken):
            self._assumed.append(pod)
        return found

    def keep(self) -> None:
        """All that is assumed stands from now on."""
        for pod in self._assumed:
            entry = self._cache.placed(pod.uid)
            if entry is not None and entry.state is PodState.ASSUMED:
                self._cache.gangs.stands(pod.uid, entry.node)
        self._assumed.clear()

"""Transaction: pods that are assumed in one synchronous step, all of them or none.

Whatever decides pods assumes them here: a single pod is a transaction of one, a gang is one of many. Nothing awaits in
between, which is the whole lock. A refusal, or a plugin that raises, undoes in reverse order what the transaction had
assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from multisched.framework.ledger import Choices
from multisched.model.objects import Pod
from multisched.state.cluster_cache import Assumption, ClusterCache

StillFits = Callable[[Pod, int], bool]
"""(pod, row) -> do all of the profile's filters still pass it there?"""
Choose = Callable[[Pod, int], Choices]
"""(pod, row) -> what the profile's plugins choose for it there, as things stand at this moment."""


class NotTaken(msgspec.Struct, frozen=True):
    """Nothing was assumed."""

    refusal: str = ""
    """The node, and what a ledger has against the pod there, or what one has against it anywhere; empty where others had taken
    the rows."""
    pod: Pod | None = None
    """The first of several that found no place; None where there is but one."""
    plugin: str = ""
    """Who owns the ledger about the cluster that refuses it; empty for any other refusal."""


def assume(cache: ClusterCache, pod: Pod, row: int, choose: Choose) -> Assumption | NotTaken:
    """One pod on a row that passed the filters. Raises PluginFailure for a plugin or a ledger that fails."""
    refusal = cache.ledgers.fits_cluster(pod)
    if refusal.reason:
        return NotTaken(refusal.reason, plugin=refusal.plugin)
    choices = choose(pod, row)
    reason = cache.ledgers.fits(pod, row, choices)
    return NotTaken(f"node {cache.nodes.node(row).name}: {reason}") if reason else cache.assume(pod, row, choices)


def assume_all(
    cache: ClusterCache, places: Sequence[tuple[Pod, int]], still_fits: StillFits, choose: Choose
) -> tuple[Assumption, ...] | NotTaken:
    """All pods on their rows, in this order, or none of them.

    Each pod but the first is asked about again once those before it stand: they may have taken its room, or keep it away. What it
    gets of ledgers is chosen then, too.
    Raises PluginFailure for a plugin or a ledger that fails; nothing is assumed then either.
    """
    found: list[Assumption] = []
    why_not: NotTaken | None = None
    try:
        for pod, row in places:
            if found and not still_fits(pod, row):
                why_not = NotTaken(pod=pod)
                break
            taken = assume(cache, pod, row, choose)
            if isinstance(taken, NotTaken):
                why_not = msgspec.structs.replace(taken, pod=pod)
                break
            found.append(taken)
    except BaseException:
        _roll_back(cache, places[: len(found)])
        raise
    if why_not is not None:
        _roll_back(cache, places[: len(found)])
        return why_not
    return tuple(found)


def _roll_back(cache: ClusterCache, assumed: Sequence[tuple[Pod, int]]) -> None:
    for pod, _ in reversed(assumed):
        cache.forget(pod.uid)

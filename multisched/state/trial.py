"""Trial: the real table and ledgers, with some placed pods away and some pending ones there, for one block.

For dry runs of several pods, which need everything that a placement needs: filters, kept classes, ledgers. When the block
ends, however it ends, table, ledgers, counts and nominations are as they were. Only versions have risen. The entries of
the cache, and who counts for which gang, are never touched. The block may wait in `pause` only, which undoes everything
before the wait and does it again after it.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable
from functools import partial
from typing import NamedTuple, Self

from multisched.framework.ledger import Choices
from multisched.model.objects import Pod
from multisched.state.cluster_cache import NO_ROW, ClusterCache, PlacedPod, PodState
from multisched.state.nominator import Nominator
from multisched.state.transaction import Choose


class Stand(NamedTuple):
    """A pending pod that stands on a row within the block."""

    pod: Pod
    row: int
    choices: Choices
    """What it got of ledgers."""


class Trial:
    """One block. What is taken away and put there is put back and taken away when it ends."""

    def __init__(self, cache: ClusterCache, nominator: Nominator) -> None:
        self._cache = cache
        self._nominator = nominator
        self._away: dict[str, PlacedPod] = {}
        self._stands: dict[str, Stand] = {}
        self._orders: dict[int, tuple[str, ...]] = {}
        """Row -> its pods in the order in which they stood."""
        self._nominations: list[tuple[Pod, int]] = []
        """Pods whose nominations do not count within the block, and their ranks."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._undo()

    def pause(self) -> Generator[None, None, Collection[str]]:
        """Yields once, with everything as it is outside the block; afterwards the block's changes are made again.

        Returns the uids of pods that do not stand any more, as their rows changed during the pause. A pod that was deleted or
        bound elsewhere during the pause is not taken away again.
        """
        nodes = self._cache.nodes
        away, stands = list(self._away.values()), list(self._stands.values())
        lifted = [pod for pod, _ in self._nominations]
        self._undo()
        versions = {stand.row: nodes.version(stand.row) for stand in stands}
        yield
        moved = {row for row, version in versions.items() if nodes.version(row) != version}
        self.lift_nominations(lifted)
        self.take_away(away)
        lost = []
        for stand in stands:
            again = None if stand.row in moved else self.stand(stand.pod, stand.row, partial(_as_before, stand.choices))
            if again is None:
                lost.append(stand.pod.uid)
        return lost

    def _undo(self) -> None:
        for uid in reversed(list(self._stands)):
            self.leave(uid)
        self.give_back(list(self._away.values()))
        for row, uids in self._orders.items():
            self._cache.nodes.reorder(row, uids)
        for pod, rank in self._nominations:
            self._nominator.nominate(pod, pod.nominated_node, rank)
        self._orders.clear()
        self._nominations.clear()

    def take_away(self, entries: Iterable[PlacedPod]) -> None:
        """Pods of the cache stand nowhere, and hold nothing that could not be given back. Skips what left the cache meanwhile."""
        cache = self._cache
        for entry in entries:
            if cache.placed(entry.pod.uid) is not entry:
                continue
            if entry.row != NO_ROW:
                self._note(entry.row)
                cache.nodes.remove_pod(entry.row, entry.pod.uid)
            cache.ledgers.lift(entry.pod, is_settled=entry.state is PodState.CONFIRMED)
            self._away[entry.pod.uid] = entry

    def give_back(self, entries: Iterable[PlacedPod]) -> None:
        """They stand where they stood, whether they fit beside who has come or not. Skips those that are not away."""
        cache = self._cache
        for entry in entries:
            if self._away.pop(entry.pod.uid, None) is None:
                continue
            if entry.row != NO_ROW:
                cache.nodes.add_pod(entry.row, entry.pod)
            cache.ledgers.set_down(entry.pod, entry.row, is_settled=entry.state is PodState.CONFIRMED)

    def stand(self, pod: Pod, row: int, choose: Choose) -> Stand | None:
        """A pending pod on a row that passed the filters; None if a ledger refuses it there. Raises PluginFailure."""
        cache = self._cache
        if cache.ledgers.fits_cluster(pod).reason:
            return None
        choices = choose(pod, row)
        if cache.ledgers.fits(pod, row, choices):
            return None
        self._note(row)
        annotations = cache.ledgers.take(pod, row, choices)
        cache.nodes.add_pod(row, cache.bound_with(pod, annotations))
        found = self._stands[pod.uid] = Stand(pod, row, choices)
        return found

    def leave(self, uid: str) -> Stand:
        """A pod that stands within the block does so no longer."""
        found = self._stands.pop(uid)
        self._cache.nodes.remove_pod(found.row, uid)
        self._cache.ledgers.release(uid)
        return found

    def lift_nominations(self, pods: Iterable[Pod]) -> None:
        """Their nominations count for nobody within the block: they are about to be placed themselves."""
        nominator, uids = self._nominator, {pod.uid for pod in pods}
        for pod in nominator.pods():
            if pod.uid in uids:
                self._nominations.append((pod, nominator.rank_of(pod)))
                nominator.remove(pod.uid)

    def _note(self, row: int) -> None:
        if row not in self._orders:
            self._orders[row] = tuple(self._cache.nodes.pods_by_uid(row))


def _as_before(choices: Choices, pod: Pod, row: int) -> Choices:
    return choices

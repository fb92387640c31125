"""Trial: the real table and ledgers with some placed pods removed and some pending ones added, for one block.

For dry runs of several pods, which need everything that a placement needs: filters, cached classes, ledgers. When the
block ends, for any reason, table, ledgers, counts and nominations are restored; only versions have risen. The entries
of the cache and the gang roster are never changed. The block may wait only in `pause`, which undoes everything before
the wait and repeats it afterwards.
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


class TrialPlacement(NamedTuple):
    """A pending pod that is placed on a row within the block."""

    pod: Pod
    row: int
    choices: Choices
    """The choices that the pod got from ledgers."""


class Trial:
    """One block. All changes are undone when it ends."""

    def __init__(self, cache: ClusterCache, nominator: Nominator) -> None:
        self._cache = cache
        self._nominator = nominator
        self._removed: dict[str, PlacedPod] = {}
        self._placements: dict[str, TrialPlacement] = {}
        self._orders: dict[int, tuple[str, ...]] = {}
        """Row -> its pods in their original order."""
        self._nominations: list[tuple[Pod, int]] = []
        """Pods whose nominations are ignored within the block, with their ranks."""
        self.changes = 0
        """Number of pauses during which a row changed on which the block had placed or removed a pod."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._undo()

    def pause(self) -> Generator[None, None, Collection[str]]:
        """Yields once, with all changes undone; afterwards makes them again.

        Returns the uids of pods that are no longer placed because their rows changed during the pause. A removed pod
        that was deleted or bound elsewhere during the pause is not removed again.
        """
        nodes = self._cache.nodes
        removed, placements = list(self._removed.values()), list(self._placements.values())
        lifted = [pod for pod, _ in self._nominations]
        self._undo()
        rows = {placement.row for placement in placements} | {entry.row for entry in removed if entry.row != NO_ROW}
        versions = {row: nodes.version(row) for row in rows}
        yield
        moved = {row for row, version in versions.items() if nodes.version(row) != version}
        self.changes += bool(moved)
        self.ignore_nominations(lifted)
        self.remove(removed)
        lost = []
        for placement in placements:
            again = (
                None
                if placement.row in moved
                else self.place(placement.pod, placement.row, partial(_as_before, placement.choices))
            )
            if again is None:
                lost.append(placement.pod.uid)
        return lost

    def _undo(self) -> None:
        for uid in reversed(list(self._placements)):
            self.unplace(uid)
        self.restore(list(self._removed.values()))
        for row, uids in self._orders.items():
            self._cache.nodes.reorder(row, uids)
        for pod, rank in self._nominations:
            self._nominator.nominate(pod, pod.nominated_node, rank)
        self._orders.clear()
        self._nominations.clear()

    def remove(self, entries: Iterable[PlacedPod]) -> None:
        """Removes placed pods from their rows and releases their restorable holds. Skips entries that left the cache meanwhile."""
        cache = self._cache
        for entry in entries:
            if cache.placed(entry.pod.uid) is not entry:
                continue
            if entry.row != NO_ROW:
                self._note(entry.row)
                cache.nodes.remove_pod(entry.row, entry.pod.uid)
            cache.ledgers.suspend(entry.pod, is_settled=entry.state is PodState.CONFIRMED)
            self._removed[entry.pod.uid] = entry

    def restore(self, entries: Iterable[PlacedPod]) -> None:
        """Restores removed pods on their rows, whether they still fit or not. Skips those that are not removed."""
        cache = self._cache
        for entry in entries:
            if self._removed.pop(entry.pod.uid, None) is None:
                continue
            if entry.row != NO_ROW:
                cache.nodes.add_pod(entry.row, entry.pod)
            cache.ledgers.resume(entry.pod, entry.row, is_settled=entry.state is PodState.CONFIRMED)

    def place(self, pod: Pod, row: int, choose: Choose) -> TrialPlacement | None:
        """Places a pending pod on a row that passed the filters; None if a ledger refuses it there. Raises PluginFailure."""
        cache = self._cache
        pod_ledgers = cache.ledgers.ledgers_for(pod)
        if cache.ledgers.fits_cluster(pod, pod_ledgers).reason:
            return None
        choices = choose(pod, row)
        if cache.ledgers.fits(pod, row, choices, pod_ledgers):
            return None
        self._note(row)
        annotations = cache.ledgers.take(pod, row, choices, pod_ledgers)
        cache.nodes.add_pod(row, cache.bound_with(pod, annotations, row))
        found = self._placements[pod.uid] = TrialPlacement(pod, row, choices)
        return found

    def unplace(self, uid: str) -> TrialPlacement:
        """Removes a pod that was placed within the block."""
        found = self._placements.pop(uid)
        self._cache.nodes.remove_pod(found.row, uid)
        self._cache.ledgers.release(uid)
        return found

    def ignore_nominations(self, pods: Iterable[Pod]) -> None:
        """Ignores the nominations of these pods within the block, because they are about to be placed."""
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

"""The members of a group, placed on the table within a trial while units of victims are removed and restored.

Members keep their rows as long as they fit there. When a unit is restored, only members that it may affect are placed again:
those on its rows, or all of them if filters read pods of other rows. If that fails, and other members could make room by
moving, the whole group is placed again. Both searches are bounded.

Searches pause between placements. Members whose rows changed during a pause lose their place and are placed again. If that
fails while a unit is being restored, the search is outdated.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import partial
from typing import Final

import msgspec

from multisched.cycle.effort import Effort
from multisched.cycle.preemption.member_placer import MemberPlacer
from multisched.cycle.preemption.victim_units import Members, Search
from multisched.framework.dependency import Dependency
from multisched.framework.ledger import Choices
from multisched.framework.node_view import Bools
from multisched.model.objects import Pod
from multisched.state.cluster_cache import ClusterCache, PlacedPod
from multisched.state.trial import Trial, TrialPlacement

PLACINGS_MAX: Final = 5_000
"""Placements tried in one search, about 0.2 ms each. Beyond this, no unit is restored."""
WHOLE_TRIES_MAX: Final = 64
"""Maximum number of times that a whole group is placed again because placing only the affected members failed."""


class OutdatedSearchError(Exception):
    """The cluster changed during a pause in a way that the search cannot follow: it must restart."""


class GroupOfPods(msgspec.Struct, frozen=True):
    """Pods that must all start together, in the order in which they are placed."""

    name: str
    """namespace/name"""
    pods: tuple[Pod, ...]
    attempt: int = 1
    allowed: Bools | None = None
    """bool[rows of the table]: the rows of one topology domain that they may use; None: all rows that pass their filters."""
    domains: tuple[Bools, ...] = ()
    """Set if the pods must stay within one topology domain: the domains in which room may be made, the most promising first."""


class GroupTrial:
    """`victim_units.VictimTrial` for a group."""

    def __init__(
        self, group: GroupOfPods, cache: ClusterCache, places: MemberPlacer, trial: Trial, effort: Effort
    ) -> None:
        """The caller must call `begin` next."""
        self._group = group
        self._places = places
        self._trial = trial
        self._effort = effort
        self._placements: dict[str, TrialPlacement] = {}
        self._kinds: dict[str, Hashable] = {}
        self.reaches_far = False
        """True if some filter of the members reads pods of other rows."""
        self._are_alike = True
        self._orders: Sequence[Sequence[Pod]] = ()
        self.shares_room = any(cache.ledgers.has_cluster_ledger(pod) for pod in group.pods)
        """True if some cluster-wide ledger counts the members, whichever rows they are on."""
        self._placings = self._whole_tries = 0
        self.is_exhausted = False
        """True if units were kept as victims without a check whether they are needed."""

    def begin(self) -> Search[None]:
        """Finds out which members are identical. Raises PluginFailure."""
        pods, attempt = self._group.pods, self._group.attempt
        for pod in pods:
            yield from self.pause()
            self._kinds[pod.uid] = self._kind(pod)
        for pod in self.one_of_each():
            yield from self.pause()
            one = self._places.class_of(pod, attempt)
            self.reaches_far |= one.relates or any(c.depends_on is Dependency.ATTEMPT for c in one.filters)
        self._are_alike = len(set(self._kinds.values())) == 1
        self._orders = [pods] if self._are_alike else [pods, sorted(pods, key=_size, reverse=True)]

    def one_of_each(self) -> Sequence[Pod]:
        """Returns one member of each kind; every row treats the members of a kind the same."""
        return _one_of_each(self._group.pods, self._kinds)

    def pause(self) -> Search[None]:
        """Lets the event loop run if the step has used up its time."""
        if self._effort.is_pause_due():
            yield from self.pause_now()

    def pause_now(self) -> Search[None]:
        """Lets the event loop run. The effort has counted the pause."""
        for uid in (yield from self._trial.pause()):
            del self._placements[uid]
        self._effort.begin_step()

    def _kind(self, pod: Pod) -> Hashable:
        """Returns a value that is equal for pods which every row treats the same."""
        signature = self._places.class_of(pod, self._group.attempt).signature
        return pod.uid if signature is None else (signature, pod.spec.priority)

    # -- placing ---------------------------------------------------------------------------------------------------

    def place_all(self) -> Search[bool]:
        """Places all members and returns True. If that fails, earlier members keep their places, and others may get one.

        Members whose rows changed during a pause may lose their place. Raises PluginFailure.
        """
        return (yield from self.place_anew() if self.reaches_far else self._place_missing(self._group.pods))

    def first_missing(self) -> Search[Pod | None]:
        """Places the missing members, and returns the first that does not fit; None if all are placed. Raises PluginFailure."""
        yield from self._place_missing(self._group.pods)
        return next((pod for pod in self._group.pods if pod.uid not in self._placements), None)

    def require_all(self) -> Search[None]:
        """Places members again whose rows changed during a pause. Raises PluginFailure and OutdatedSearchError."""
        if len(self._placements) < len(self._group.pods) and not (yield from self._place_missing(self._group.pods)):
            raise OutdatedSearchError

    def _place_missing(self, pods: Sequence[Pod]) -> Search[bool]:
        """Places the members that have no place; those that find no row are retried after others were placed."""
        while left := [pod for pod in pods if pod.uid not in self._placements]:
            hopeless, placed = set[Hashable](), 0
            for pod in left:
                if self._effort.is_exhausted:
                    return False
                yield from self.pause()
                placed += self._kinds[pod.uid] not in hopeless and self._place(pod, hopeless)
            if not placed:
                return False
        return True

    def place_anew(self) -> Search[bool]:
        """Places all members from scratch. Returns False if that fails, with the earlier places restored as far as possible."""
        before = self._unplace(list(self._placements))
        if (yield from self._place_from_nothing()):
            return True
        self._restore_placements(before)
        return False

    def _place_from_nothing(self) -> Search[bool]:
        """Places all in the order of the group, then the largest first. Returns False, with no member placed, if both fail."""
        self._unplace(list(self._placements))
        for pods in self._orders:
            if (yield from self._place_missing(pods)):
                return True
            self._unplace(list(self._placements))
        return False

    def _place(self, pod: Pod, hopeless: set[Hashable]) -> bool:
        """`hopeless`: kinds that no row takes at present; the pod's kind is added if no row takes it."""
        self._placings += 1
        placement = self._places.place(pod, self._group.attempt, self._group.allowed, self._trial)
        if placement is None:
            hopeless.add(self._kinds[pod.uid])
            return False
        self._placements[pod.uid] = placement
        return True

    # -- VictimTrial -----------------------------------------------------------------------------------------------

    def restore(self, members: Members) -> Search[bool]:
        if self._placings >= PLACINGS_MAX or self._effort.is_exhausted:
            self.is_exhausted = True
            return False
        yield from self.pause()
        yield from self.require_all()
        before = dict(self._placements)
        self._trial.restore(members)
        affected = self._affected_by(members)
        if self._is_proof_enough() and not self._finds_another(affected[-1:]):
            self._trial.remove(members)
            self._restore_placements(before.values())
            return False
        self._unplace(affected)
        if (yield from self._place_missing(self._group.pods)):
            return True
        if not self._is_proof_enough() and self._whole_tries < WHOLE_TRIES_MAX:
            self._whole_tries += 1
            if (yield from self._place_from_nothing()):
                return True
        self._unplace([uid for uid, placement in self._placements.items() if _differ(placement, before.get(uid))])
        self._trial.remove(members)
        self._restore_placements(before.values())
        yield from self.require_all()
        return False

    def _finds_another(self, uids: Sequence[str]) -> bool:
        """Reports whether these members still fit with the restored units in place. If one does not, the whole group does not."""
        left = self._unplace(uids)
        return all(self._place(placement.pod, set()) for placement in left)

    def remove(self, members: Members) -> None:
        self._trial.remove(members)

    def may_affect(self, member: PlacedPod) -> bool:
        return self.reaches_far or self.shares_room or member.row in self.rows

    def can_free_room(self, member: PlacedPod) -> bool:
        return True  # members of the group may move there

    # -- reading ---------------------------------------------------------------------------------------------------

    @property
    def placings(self) -> int:
        """Number of placements tried."""
        return self._placings

    @property
    def rows(self) -> frozenset[int]:
        """Rows on which members are placed."""
        return frozenset(placement.row for placement in self._placements.values())

    def placements(self) -> Sequence[TrialPlacement]:
        """Returns the members' places, in the order of the group."""
        return [self._placements[pod.uid] for pod in self._group.pods]

    # -- inside ----------------------------------------------------------------------------------------------------

    def _affected_by(self, members: Members) -> list[str]:
        """Returns members that may not fit any more once these are restored; one of each kind is enough for a shared ledger."""
        if self.reaches_far:
            return list(self._placements)
        rows = {one.row for one in members}
        found = [uid for uid, placement in self._placements.items() if placement.row in rows]
        if self.shares_room:
            seen = {self._kinds[uid] for uid in found}
            others = (
                pod for pod in self._group.pods if pod.uid in self._placements and self._kinds[pod.uid] not in seen
            )
            found += [pod.uid for pod in _one_of_each(others, self._kinds)]
        return found

    def _is_proof_enough(self) -> bool:
        """Reports whether one member without a row proves that no member has one: they are identical, and rows are judged separately."""
        return self._are_alike and not self.reaches_far

    def _unplace(self, uids: Sequence[str]) -> list[TrialPlacement]:
        """Removes the members from their rows; returns their places, in the order in which they were placed."""
        left = []
        for uid in reversed(uids):
            self._trial.unplace(uid)
            left.append(self._placements.pop(uid))
        return left[::-1]

    def _restore_placements(self, placements: Iterable[TrialPlacement]) -> None:
        """Restores places with their ledger choices; members that are placed keep theirs. After a pause a ledger may refuse."""
        for placement in placements:
            if placement.pod.uid not in self._placements:
                again = self._trial.place(placement.pod, placement.row, partial(_as_before, placement.choices))
                if again is not None:
                    self._placements[placement.pod.uid] = again


def _size(pod: Pod) -> tuple[int, ...]:
    """Returns requests by resource name, so CPU before memory: the sort key for large members first."""
    return tuple(pod.requests[resource] for resource in sorted(pod.requests))


def _differ(placement: TrialPlacement, before: TrialPlacement | None) -> bool:
    """Reports whether a member's row or choices differ from before. Compares values: a pause replaces the objects."""
    return before is None or placement.row != before.row or placement.choices != before.choices


def _as_before(choices: Choices, pod: Pod, row: int) -> Choices:
    return choices


def _one_of_each(pods: Iterable[Pod], kinds: dict[str, Hashable]) -> list[Pod]:
    found: dict[Hashable, Pod] = {}
    for pod in pods:
        found.setdefault(kinds[pod.uid], pod)
    return list(found.values())

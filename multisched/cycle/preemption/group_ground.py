"""The members of a group, standing on the table within a trial while units of victims go and come back.

Members stay where they are as long as they fit there. When a unit comes back, only those are placed anew whom it may
concern: those on its rows; all of them, where filters go by other rows too. If that fails, and others could make room by
moving, the whole group is placed anew. Both searches are bounded.

Searches pause between placements. Members whose rows changed during a pause stand no more, and are placed again. Where that
fails in the middle of a unit's return, the search is outdated.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import partial
from typing import Final

import msgspec

from multisched.cycle.effort import Effort
from multisched.cycle.preemption.member_places import MemberPlaces
from multisched.cycle.preemption.victim_units import Members, Search
from multisched.framework.dependency import Dependency
from multisched.framework.ledger import Choices
from multisched.framework.node_view import Bools
from multisched.model.objects import Pod
from multisched.state.cluster_cache import ClusterCache, PlacedPod
from multisched.state.trial import Stand, Trial

PLACINGS_MAX: Final = 5_000
"""Times that members are placed in one search, about 0.2 ms each. From then on no unit comes back."""
WHOLE_TRIES_MAX: Final = 64
"""Times that a whole group is placed anew because it did not do to move the members concerned."""


class OutdatedSearchError(Exception):
    """The cluster changed during a pause in a way that the search cannot follow: it has to begin again."""


class GroupOfPods(msgspec.Struct, frozen=True):
    """Pods that must all start together, in the order in which they are placed."""

    name: str
    """namespace/name"""
    pods: tuple[Pod, ...]
    attempt: int = 1
    allowed: Bools | None = None
    """bool[rows of the table]: where they may go, one topology domain; None: wherever their filters pass."""
    domains: tuple[Bools, ...] = ()
    """Where they must stay within one topology domain: those that may be cleared for them, the likeliest first."""


class GroupGround:
    """`victim_units.Ground` for a group."""

    def __init__(
        self, group: GroupOfPods, cache: ClusterCache, places: MemberPlaces, trial: Trial, effort: Effort
    ) -> None:
        """To be followed by `begin`."""
        self._group = group
        self._places = places
        self._trial = trial
        self._effort = effort
        self._stands: dict[str, Stand] = {}
        self._kinds: dict[str, Hashable] = {}
        self.reaches_far = False
        """Some filter of theirs goes by what stands on other rows."""
        self._are_alike = True
        self._orders: Sequence[Sequence[Pod]] = ()
        self.shares_room = any(cache.ledgers.concern_cluster(pod) for pod in group.pods)
        """Some ledger about the cluster counts them, whatever rows they stand on."""
        self._placings = self._whole_tries = 0
        self.is_exhausted = False
        """Units were kept away although nobody knows whether they need be."""

    def begin(self) -> Search[None]:
        """Learns which members are alike. Raises PluginFailure."""
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
        """A member of each kind that any row takes alike."""
        return _one_of_each(self._group.pods, self._kinds)

    def pause(self) -> Search[None]:
        """Lets the event loop run if the step has lasted long enough."""
        if self._effort.is_pause_due():
            for uid in (yield from self._trial.pause()):
                del self._stands[uid]
            self._effort.begin_step()

    def _kind(self, pod: Pod) -> Hashable:
        """Equal for pods that any row takes alike."""
        signature = self._places.class_of(pod, self._group.attempt).signature
        return pod.uid if signature is None else (signature, pod.spec.priority)

    # -- placing ---------------------------------------------------------------------------------------------------

    def place_all(self) -> Search[bool]:
        """True: all stand. Else those who stood before stand, and more of them where rows speak for themselves.

        Those whose rows changed during a pause may not stand. Raises PluginFailure.
        """
        return (yield from self.place_anew() if self.reaches_far else self._place_missing(self._group.pods))

    def first_missing(self) -> Search[Pod | None]:
        """Who of them finds no room beside the others, who stand where they find some; None: all stand. Raises PluginFailure."""
        yield from self._place_missing(self._group.pods)
        return next((pod for pod in self._group.pods if pod.uid not in self._stands), None)

    def require_all(self) -> Search[None]:
        """Places again those who stood, and whose rows changed during a pause. Raises PluginFailure and OutdatedSearchError."""
        if len(self._stands) < len(self._group.pods) and not (yield from self._place_missing(self._group.pods)):
            raise OutdatedSearchError

    def _place_missing(self, pods: Sequence[Pod]) -> Search[bool]:
        """Places who of them does not stand; whoever finds no row is tried once more after others have found theirs."""
        while left := [pod for pod in pods if pod.uid not in self._stands]:
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
        """Places all from the beginning. False: those stand who stood before, where they stood, unless rows changed meanwhile."""
        before = self._leave(list(self._stands))
        if (yield from self._place_from_nothing()):
            return True
        self._stand_again(before)
        return False

    def _place_from_nothing(self) -> Search[bool]:
        """In the order of the group, then the largest first. False: nobody stands."""
        self._leave(list(self._stands))
        for pods in self._orders:
            if (yield from self._place_missing(pods)):
                return True
            self._leave(list(self._stands))
        return False

    def _place(self, pod: Pod, hopeless: set[Hashable]) -> bool:
        """`hopeless`: kinds that no row takes as things stand; the pod's own is added if that is so."""
        self._placings += 1
        stand = self._places.place(pod, self._group.attempt, self._group.allowed, self._trial)
        if stand is None:
            hopeless.add(self._kinds[pod.uid])
            return False
        self._stands[pod.uid] = stand
        return True

    # -- Ground ----------------------------------------------------------------------------------------------------

    def give_back(self, members: Members) -> Search[bool]:
        if self._placings >= PLACINGS_MAX or self._effort.is_exhausted:
            self.is_exhausted = True
            return False
        yield from self.pause()
        yield from self.require_all()
        before = dict(self._stands)
        self._trial.give_back(members)
        concerned = self._concerned_by(members)
        if self._is_proof_enough() and not self._finds_another(concerned[-1:]):
            self._trial.take_away(members)
            self._stand_again(before.values())
            return False
        self._leave(concerned)
        if (yield from self._place_missing(self._group.pods)):
            return True
        if not self._is_proof_enough() and self._whole_tries < WHOLE_TRIES_MAX:
            self._whole_tries += 1
            if (yield from self._place_from_nothing()):
                return True
        self._leave([uid for uid, stand in self._stands.items() if _differ(stand, before.get(uid))])
        self._trial.take_away(members)
        self._stand_again(before.values())
        yield from self.require_all()
        return False

    def _finds_another(self, uids: Sequence[str]) -> bool:
        """Whether these find room beside all others, the units that are back among them. Where one does not, all together do not."""
        left = self._leave(uids)
        return all(self._place(stand.pod, set()) for stand in left)

    def take_away(self, members: Members) -> None:
        self._trial.take_away(members)

    def is_near(self, member: PlacedPod) -> bool:
        return self.reaches_far or self.shares_room or member.row in self.rows

    def could_help(self, member: PlacedPod) -> bool:
        return True  # members of the group may move there

    # -- reading ---------------------------------------------------------------------------------------------------

    @property
    def placings(self) -> int:
        """How often members were placed."""
        return self._placings

    @property
    def rows(self) -> frozenset[int]:
        """On which members stand."""
        return frozenset(stand.row for stand in self._stands.values())

    def stands(self) -> Sequence[Stand]:
        """In the order of the group."""
        return [self._stands[pod.uid] for pod in self._group.pods]

    # -- inside ----------------------------------------------------------------------------------------------------

    def _concerned_by(self, members: Members) -> list[str]:
        """Members of the group who may not fit any more once these are back; of those who share room one of each kind will do."""
        if self.reaches_far:
            return list(self._stands)
        rows = {one.row for one in members}
        found = [uid for uid, stand in self._stands.items() if stand.row in rows]
        if self.shares_room:
            seen = {self._kinds[uid] for uid in found}
            others = (pod for pod in self._group.pods if pod.uid in self._stands and self._kinds[pod.uid] not in seen)
            found += [pod.uid for pod in _one_of_each(others, self._kinds)]
        return found

    def _is_proof_enough(self) -> bool:
        """Where all are alike and each row speaks for itself, a member that finds no row finds none however the others stand."""
        return self._are_alike and not self.reaches_far

    def _leave(self, uids: Sequence[str]) -> list[Stand]:
        """Those who stood, in the order in which they came."""
        left = []
        for uid in reversed(uids):
            self._trial.leave(uid)
            left.append(self._stands.pop(uid))
        return left[::-1]

    def _stand_again(self, stands: Iterable[Stand]) -> None:
        """Each where it stood, with what it had; those that stand already stay. After a pause a ledger may refuse one."""
        for stand in stands:
            if stand.pod.uid not in self._stands:
                again = self._trial.stand(stand.pod, stand.row, partial(_as_before, stand.choices))
                if again is not None:
                    self._stands[stand.pod.uid] = again


def _size(pod: Pod) -> tuple[int, ...]:
    """CPU before memory, as the names of resources are ordered."""
    return tuple(pod.requests[resource] for resource in sorted(pod.requests))


def _differ(stand: Stand, before: Stand | None) -> bool:
    """Whether a member stands elsewhere, or with something else, than before: after a pause equal ones are other objects."""
    return before is None or stand.row != before.row or stand.choices != before.choices


def _as_before(choices: Choices, pod: Pod, row: int) -> Choices:
    return choices


def _one_of_each(pods: Iterable[Pod], kinds: dict[str, Hashable]) -> list[Pod]:
    found: dict[Hashable, Pod] = {}
    for pod in pods:
        found.setdefault(kinds[pod.uid], pod)
    return list(found.values())

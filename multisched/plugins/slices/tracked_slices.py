"""What the lender or the borrower of a loan knows of one SliceSet: the newest version it has seen, and its unresolved writes.

A SliceSet has two halves: the lender writes the spec, the borrower writes the status. Both sides follow these rules, which make lost, late
and repeated responses harmless:

- A write replaces only the version that this process knows (precondition on resourceVersion). So of several writes in flight, only one can
  succeed.
- A write is *unresolved* until a newer version is known: until then it may still take effect, whatever its response was.
  Only a definite refusal resolves it earlier.
- Every write changes the object (`writes` counts them). If a write changed nothing, the API server would accept it without a new version,
  so writes in flight could still succeed after it.
- A leader owns an object once the API server has confirmed a write of this leader with a new epoch. Reading the epoch is no proof of
  ownership, because another process may have written it.
- A version from the watch replaces only older versions. If versions cannot be compared (opaque), it only causes a read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import Final, Generic, TypeVar

import msgspec

from multisched.framework.slice_writes import SliceAnswer, SliceCall, SliceReply, SliceRequest
from multisched.model.cluster_objects import SliceSet
from multisched.model.slice_parts import (
    NO_OFFER,
    NOTHING,
    SliceAmount,
    SliceOffer,
    SliceSpec,
    SliceStatus,
    slice_set_prefix,
)
from multisched.model.version import NO_VERSION, Version, is_covered

UNRESOLVED_MAX: Final = 8
"""Number of unresolved writes of one object that are kept separately. If there are more, the older ones are merged into bounds."""

Half = SliceSpec | SliceStatus
V = TypeVar("V")


class TrackedSlices(ABC):
    """One SliceSet as one side sees it. Only the state machine of that side changes it."""

    def __init__(self, blank: SliceSet) -> None:
        """`blank`: an object with only name and namespace."""
        self.blank = blank
        self.seen: SliceSet | None = None
        """The newest known version; None: the object does not exist, as far as is known."""
        self.epoch = 0
        """The epoch under which this process writes; 0: it does not own the object."""
        self.is_superseded = False
        """Another leader has raised the epoch. This process does not write the object until its next term."""
        self.unresolved: list[Half] = []
        self.needs_read = False
        self.refusal = ""
        """The message of the last response, if it was a definite refusal."""
        self.indexed: set[str] = set()
        """The last result of `slice_keys`. The state machine finds the object under these keys."""
        self._in_flight: SliceRequest | None = None
        self._deleted_version: Version = NO_VERSION
        """Versions up to this one belong to a deleted object of the same name."""
        self._writes: dict[type[Half], int] = {}
        """spec or status -> the highest value of `writes` that was seen in it."""

    @abstractmethod
    def slice_keys(self) -> set[str]:
        """Returns the keys of all slices to which the object may refer."""

    @property
    def is_owned(self) -> bool:
        return self.epoch > 0 and not self.is_superseded

    @property
    def is_busy(self) -> bool:
        return self._in_flight is not None

    def begin_term(self) -> None:
        """Ends the ownership. Writes of former terms stay unresolved, but their responses can no longer start an ownership."""
        self.epoch = 0
        self.is_superseded = False
        self._in_flight = None

    def unresolved_specs(self) -> Iterator[SliceSpec]:
        return (half for half in self.unresolved if isinstance(half, SliceSpec))

    def unresolved_statuses(self) -> Iterator[SliceStatus]:
        return (half for half in self.unresolved if isinstance(half, SliceStatus))

    def take(self, found: SliceSet, *, is_answer: bool) -> SliceSet | None:
        """Handles a version from the watch or a response. Returns None if it is not newer, else the version without untrusted halves."""
        before = self.seen
        if before is None:
            if is_covered(found.version, self._deleted_version):
                return None  # the watch lags, and shows the deleted object
        else:
            if isinstance(found.version, int) and isinstance(before.version, int):
                if found.version <= before.version:
                    return None
            elif found.version == before.version:
                return None
            elif not is_answer:
                self.needs_read = True
                return None
        if before is None or found.uid != before.uid:
            self._writes.clear()
        self.seen = found = self._without_restored(found)
        self.unresolved.clear()
        return found

    def _without_restored(self, found: SliceSet) -> SliceSet:
        """Removes a half that counts fewer writes than before, because an old version of it was restored by hand."""
        problems, distrusted = [found.malformed] if found.malformed else [], dict[str, None]()
        for field, half in (("spec", found.spec), ("status", found.status)):
            if half is None:
                continue
            if half.writes < self._writes.get(type(half), 0):
                problems.append(_restored(field, half.writes))
                distrusted[field] = None
            else:
                self._writes[type(half)] = half.writes
        return msgspec.structs.replace(found, **distrusted, malformed="; ".join(problems))

    def vanish(self, version: Version = NO_VERSION) -> None:
        """Records that the object does not exist. `version`: the version at which it was deleted, if that is known."""
        self._deleted_version = version or (self._deleted_version if self.seen is None else self.seen.version)
        self.seen = None
        self.epoch = 0
        self.unresolved.clear()
        self.needs_read = False

    def check_epoch(self, epoch: int) -> None:
        """Ends the ownership if the object has another epoch than this process wrote. A higher epoch is that of another leader."""
        if self.epoch and epoch != self.epoch:
            self.is_superseded = epoch > self.epoch
            self.epoch = 0

    def next_writes(self, half: type[Half]) -> int:
        """Returns the value of `writes` for the next write of a half: one more than the highest value seen."""
        return self._writes.get(half, 0) + 1

    def read_request(self) -> SliceRequest:
        return self._sent(SliceRequest(SliceCall.READ, self.blank))

    def create_request(self, spec: SliceSpec) -> SliceRequest:
        return self._sent(SliceRequest(SliceCall.CREATE, self.blank, spec=spec))

    def write_request(self, half: Half, *, releases: bool = False) -> SliceRequest:
        """Returns the request that replaces the half. The write is unresolved from now on."""
        assert self.seen is not None
        self.unresolved.append(half)
        if len(self.unresolved) > UNRESOLVED_MAX:
            self.unresolved = [*_bounds_of(self.unresolved[:-1]), half]
        if isinstance(half, SliceSpec):
            call = SliceCall.RELEASE if releases else SliceCall.PUT_SPEC
            return self._sent(SliceRequest(call, self.seen, spec=half))
        return self._sent(SliceRequest(SliceCall.PUT_STATUS, self.seen, status=half))

    def _sent(self, request: SliceRequest) -> SliceRequest:
        self._in_flight = request
        return request

    def close(self, request: SliceRequest, reply: SliceReply) -> bool:
        """Handles the reply to a request, except for the version in it. Returns whether the request was sent in this term."""
        is_ours = request is self._in_flight
        if is_ours:
            self._in_flight = None
            self.refusal = reply.message if reply.answer is SliceAnswer.REFUSED else ""
        if reply.answer is SliceAnswer.DONE and request.call is SliceCall.READ:
            self.needs_read = False
        elif reply.answer is SliceAnswer.CONFLICT:
            self.needs_read = True
        elif reply.answer is SliceAnswer.REFUSED:
            half = request.status if request.spec is None else request.spec
            self.unresolved = [one for one in self.unresolved if one is not half]
        return is_ours


T = TypeVar("T", bound=TrackedSlices)


class SliceMachine(ABC, Generic[T]):
    """The SliceSets of one loan: the common base class of the lender's and the borrower's state machine.

    A loan may have thousands of slices. So objects are found by key, and only changed objects are checked for requests.
    """

    def __init__(self, lender: str, borrower: str, namespace: str, part: str, made: Callable[[SliceSet], T]) -> None:
        """`part`: see `slice_set_prefix`. `made`: creates the `TrackedSlices` of an object from its name and namespace."""
        self._prefix = slice_set_prefix(lender, borrower, part)
        self._namespace = namespace
        self._made = made
        self._objects: dict[str, T] = {}
        self._by_key: dict[str, list[T]] = {}
        """Key of a slice -> the objects that refer to it; usually one."""
        self._shared: set[str] = set()
        """Keys to which several objects refer."""
        self._due: dict[str, T] = {}
        """Objects that may need a request, by name."""
        self._has_term = False

    @property
    def is_known(self) -> bool:
        """True if an object of the loan exists, as far as is known."""
        return any(tracked.seen is not None for tracked in self._objects.values())

    def observe(self, found: SliceSet) -> bool:
        """Handles a version of any SliceSet from the watch. Returns False if it changes nothing for this loan."""
        if not self._is_concerned(found):
            return False
        tracked = self._tracked(found.name)
        seen, needed_read = tracked.seen, tracked.needs_read
        self._take(tracked, found, is_answer=False)
        is_other = tracked.seen is not seen or tracked.needs_read != needed_read
        return is_other and self._changed(tracked)

    def removed(self, found: SliceSet) -> bool:
        """Handles a deletion from the watch. `found`: the last version. Returns False if it changes nothing for this loan."""
        tracked = self._objects.get(found.name)
        if tracked is None or tracked.seen is None or tracked.seen.uid != found.uid:
            return False
        self._vanish(tracked, found.version)
        return self._changed(tracked)

    def answered(self, request: SliceRequest, reply: SliceReply) -> None:
        """Handles the reply to a request of this machine."""
        tracked = self._objects[request.name]
        self._answered(tracked, request, reply)
        self._changed(tracked)

    @property
    def due_count(self) -> int:
        """Objects that may need a request."""
        return len(self._due)

    def _requests(self, next_of: Callable[[T], SliceRequest | None], most: int) -> list[SliceRequest]:
        """Returns the next requests of at most `most` due objects. An object with a request in flight is due again after the reply."""
        found = []
        for name, tracked in list(self._due.items())[:most]:
            request = None if tracked.is_busy else next_of(tracked)
            if request is not None or tracked.is_busy or not self._stays_due(tracked):
                self._due.pop(name)
            else:
                self._due[name] = self._due.pop(name)  # moves it behind the others
            if request is not None:
                found.append(request)
        return found

    def _stays_due(self, tracked: T) -> bool:
        """Reports whether the object stays due, so that it is checked again even if it does not change."""
        return False

    def _changed(self, tracked: T) -> bool:
        """Updates the index of a changed object, and marks the object as due. Returns True."""
        before, after = tracked.indexed, tracked.slice_keys()
        for key in before - after:
            self._by_key[key].remove(tracked)
            self._note_places(key)
        tracked.indexed = before & after
        for key in after - before:
            self._put(key, tracked)
        self._due[tracked.blank.name] = tracked
        if self._shared:
            self.touch(tracked.indexed & self._shared)
        return True

    def _put(self, key: str, tracked: T) -> None:
        tracked.indexed.add(key)
        self._by_key.setdefault(key, []).append(tracked)
        self._note_places(key)

    def _note_places(self, key: str) -> None:
        places = len(self._by_key[key])
        (self._shared.add if places > 1 else self._shared.discard)(key)
        if not places:
            del self._by_key[key]

    def _of(self, key: str) -> Sequence[T]:
        """Returns the objects that refer to the slice with this key."""
        return self._by_key.get(key, ())

    def touch(self, keys: Iterable[str]) -> None:
        """Marks the objects of these slices as due, because something outside the objects has changed that requests depend on."""
        for key in keys:
            for tracked in self._of(key):
                self._due[tracked.blank.name] = tracked

    def touch_all(self) -> None:
        self._due.update(self._objects)

    def keys_in(self, name: str) -> set[str]:
        """Returns the keys of the slices to which this object refers."""
        tracked = self._objects.get(name)
        return set() if tracked is None else tracked.indexed

    def keys_with(self, keys: Iterable[str]) -> set[str]:
        """Returns the keys of all slices in the same objects as these slices, because a write for one slice may change all of them."""
        objects = {tracked.blank.name: tracked for key in keys for tracked in self._of(key)}
        return {key for tracked in objects.values() for key in tracked.indexed}

    def _is_concerned(self, found: SliceSet) -> bool:
        if found.namespace != self._namespace or not found.name.startswith(self._prefix):
            return False
        return found.name[len(self._prefix) :].isdecimal()

    def _tracked(self, name: str) -> T:
        if name not in self._objects:
            self._objects[name] = self._made(SliceSet(name=name, namespace=self._namespace))
        return self._objects[name]

    @abstractmethod
    def _take(self, tracked: T, found: SliceSet, *, is_answer: bool) -> None:
        """Handles a version of an object from a response or from the watch."""

    @abstractmethod
    def _answered(self, tracked: T, request: SliceRequest, reply: SliceReply) -> None:
        """Handles the reply to a request for this object."""

    @abstractmethod
    def _vanish(self, tracked: T, version: Version = NO_VERSION) -> None:
        """Handles that an object does not exist. `version`: the version at which it was deleted, if that is known."""


def _restored(field: str, writes: int) -> str:
    return f"{field}.writes: {writes} is less than before, so an old version of {field} was restored by hand; its leader writes it again"


def _bounds_of(halves: list[Half]) -> list[Half]:
    """Returns at most one spec and one status, which bound all of `halves`: the largest offers, and the smallest held amounts."""
    specs = [half for half in halves if isinstance(half, SliceSpec)]
    statuses = [half for half in halves if isinstance(half, SliceStatus)]
    found: list[Half] = []
    if specs:
        offers = reduce(partial(_merged, merge=_larger_offer, missing=NO_OFFER), (one.offers for one in specs))
        found.append(msgspec.structs.replace(specs[-1], offers=offers))
    if statuses:
        held = reduce(partial(_merged, merge=SliceAmount.__and__, missing=NOTHING), (one.held for one in statuses))
        found.append(msgspec.structs.replace(statuses[-1], held=held))
    return found


def _larger_offer(one: SliceOffer, other: SliceOffer) -> SliceOffer:
    return SliceOffer(one.amount | other.amount)


def _merged(one: Mapping[str, V], other: Mapping[str, V], merge: Callable[[V, V], V], missing: V) -> dict[str, V]:
    return {uid: merge(one.get(uid, missing), other.get(uid, missing)) for uid in one.keys() | other.keys()}

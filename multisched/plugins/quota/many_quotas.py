"""ManyQuotas: the tree built from many objects, without invalid changes.

Owns the version of each object that is in force. For an invalid object, its last valid version is used. If objects
contradict each other (the mins of children exceed their parent's), their changes are tried from the oldest to the newest, and
those that contradict what is in force by then are left out. All other changes take effect. An invalid object without an
earlier version is left out; its child quotas then become children of its parent.

A process that starts reads the version in force from an annotation of each object of Koordinator. Objects without one are
tried last: parents first, then from the first to the last created. A status that is written does not make an object newer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from multisched.model.cluster_objects import ClusterObject, ElasticQuota, KoordinatorQuota
from multisched.model.decode import DecodeError
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import differ_in_version_only
from multisched.model.quota_tree import QuotaTree
from multisched.model.quotas.koordinator import ROOT, LinkedQuotas, read_linked
from multisched.model.quotas.reading import Problems, ReadQuotas
from multisched.model.quotas.scheduler_plugins import FlatQuotas, read_flat
from multisched.model.version import NO_VERSION

READS_MAX: Final = 100
"""After this many readings of one set of objects, contradicting changes that have not been tried stay out until the next call."""


class Chosen(NamedTuple):
    """The tree in force from all objects of a kind."""

    tree: QuotaTree | None
    """None if no valid tree was found."""
    left_out: Mapping[str, str]
    """Key of each object whose current version is not in force -> why."""


class ManyQuotas:
    """Chooses the tree from the objects of one kind, whenever one of them has changed."""

    def __init__(self, kind: ObjectKind) -> None:
        self._kind = kind
        self._in_force: Mapping[str, ClusterObject] = {}
        self._changes: dict[str, _Change] = {}
        self._rounds = 0

    def choose(self, quotas: Sequence[ClusterObject]) -> Chosen:
        """Returns the new tree in force. If there is none, the caller keeps the previous one."""
        noted = {} if self._in_force else {one.key: before for one in quotas if (before := noted_version(one))}
        self._note_changes(quotas, noted)
        attempt = _Attempt(self._kind, self._in_force or noted, quotas, self._changes)
        found = attempt.read()
        if found.problems and noted:  # the noted versions contradict each other
            attempt = _Attempt(self._kind, {}, quotas, self._changes)
            found = attempt.read()
        if found.problems:
            return Chosen(None, {key: _text(problems) for key, problems in found.problems.items()})
        self._in_force = dict(attempt.chosen)
        return Chosen(found.tree, attempt.left_out)

    def version_in_force(self, key: str) -> ClusterObject | None:
        """Returns the version of the object that is in force; None if it has no effect."""
        return self._in_force.get(key)

    def _note_changes(self, quotas: Sequence[ClusterObject], noted: Collection[str]) -> None:
        before, self._changes = self._changes, {}
        self._rounds = self._rounds + 1 if self._in_force else 0
        for one in quotas:
            known = before.get(one.key)
            if known is not None and _is_same(known.to, one):
                age = known.age
            elif self._in_force:
                age = _Age(self._rounds, number=one.version if isinstance(one.version, int) else 0)
            else:
                age = _Age(0, one.key not in noted, not _is_parent(one), _created(one))
            self._changes[one.key] = _Change(one, age)


class _Age(NamedTuple):
    """Sorts changes from the oldest to the newest."""

    round: int
    """The call in which the change was new; 0 for objects that existed before this process chose."""
    is_new: bool = False
    """Nothing says that the object was in force."""
    is_leaf: bool = False
    """A parent is tried first: if it were left out, nothing would limit its children together."""
    created: str = ""
    number: int = 0
    """resourceVersion."""


class _Change(NamedTuple):
    """The latest change of an object. A new status does not count as a change, although it raises the version."""

    to: ClusterObject
    age: _Age


class _Attempt:
    def __init__(
        self,
        kind: ObjectKind,
        in_force: Mapping[str, ClusterObject],
        quotas: Sequence[ClusterObject],
        changes: Mapping[str, _Change],
    ) -> None:
        self._kind = kind
        self._in_force = in_force
        self._changes = changes
        self._now = {one.key: one for one in quotas}
        self.chosen = dict(self._now)
        self.left_out: dict[str, str] = {}
        self._places: Mapping[tuple[str, str], Sequence[ClusterObject]] = {}
        self._reads = 0
        self._tried: _Tried | None = None

    def read(self) -> ReadQuotas:
        """Returns the tree of the chosen objects; with problems if no valid choice was found."""
        found = self._read_without({})
        without: Mapping[str, str] = {}
        while found.problems:
            contradicting = self._contradicting(found.problems)
            if not contradicting:
                return found
            without = {**without, **contradicting}
            if not self._problems_without(without):
                break
            found = self._read_without(without)
        if not without:
            return found
        fewer = self._fewer(without)
        while 1 < len(fewer) < len(without):  # what takes effect now may permit an older change
            without, fewer = fewer, self._fewer(fewer)
        return self._read_without(fewer)

    def _fewer(self, without: Mapping[str, str]) -> Mapping[str, str]:
        """Returns what has to stay out of `without`. Tries the newest change last, as often it alone contradicts the others."""
        *older, newest = self._by_age(without)
        fewer = self._fewest(older, without) if older else without
        return self._fewest([newest], fewer)

    def _read_without(self, without: Mapping[str, str]) -> ReadQuotas:
        """Chooses all objects without these changes. `without`: key -> why."""
        self._reads += 1
        self.chosen, self.left_out = dict(self._now), {}
        malformed = {key: one.malformed for key, one in self._now.items() if one.malformed}
        for key, why in (malformed | dict(without)).items():
            self._leave_out(key, why)
        self._relink()
        tried = self._try(without)
        return read_quotas(self._kind, list(self.chosen.values())) if tried.lacks_parents else tried.read()

    def _problems_without(self, without: Mapping[str, str]) -> Problems:
        """Returns `_read_without(without).problems`."""
        tried = self._try(without)
        if tried.lacks_parents:
            return self._read_without(without).problems
        self._reads += 1
        return tried.problems()

    def _try(self, without: Mapping[str, str]) -> _Tried:
        """Chooses all objects without these changes; only what is related to the differences from the previous try is read again."""
        tried = self._tried
        if tried is None:
            tried = self._tried = _Tried(self._kind, (self._version(key, ()) for key in self._now))
        for key in tried.without ^ without.keys():
            tried.exchange(self._version(key, tried.without), self._version(key, without))
        tried.without = without.keys()
        return tried

    def _version(self, key: str, without: Container[str]) -> ClusterObject | None:
        now = self._now[key]
        return self._before(key) if key in without or now.malformed else now

    def _fewest(self, keys: Sequence[str], without: Mapping[str, str]) -> Mapping[str, str]:
        """Returns what has to stay out of `without`, if as many changes of `keys` as possible take effect, the first of them first."""
        if self._reads >= READS_MAX:
            return without
        fewer = dict(without)
        for key in keys:
            fewer.pop(key, None)
        problems = self._problems_without(fewer)
        if not problems:
            return fewer
        if len(keys) == 1:
            (key,) = keys
            why = "; ".join(_text(found) if of == key else f"{of}: {_text(found)}" for of, found in problems.items())
            return {**without, key: why}
        half = len(keys) // 2
        return self._fewest(keys[half:], self._fewest(keys[:half], without))

    def _by_age(self, keys: Iterable[str]) -> list[str]:
        return sorted(keys, key=lambda key: (self._changes[key].age, key))

    def _leave_out(self, key: str, why: str) -> None:
        """Replaces the object by its last valid version; removes it if there is none."""
        self.left_out[key] = why
        before = self._before(key)
        if before is not None:
            self.chosen[key] = before
        else:
            del self.chosen[key]

    def _before(self, key: str) -> ClusterObject | None:
        now, known = self._now.get(key), self._in_force.get(key)
        if known is None and isinstance(now, ElasticQuota | KoordinatorQuota):
            known = now.last_good  # this process was not the leader when the invalid change was made
        return known if known is not None and (now is None or known.uid == now.uid) else None

    def _contradicting(self, problems: Problems) -> dict[str, str]:
        """Returns the changes that may cause these problems, each with the problem."""
        self._places = _by_place(self.chosen.values())
        return {
            one.key: f"{key}: {_text(problems[key])}"
            for key in sorted(problems, reverse=True)
            for one in self._involved(key)
            if self._is_changed(one)
        }

    def _is_changed(self, one: ClusterObject) -> bool:
        """Reports whether the object's current version is chosen and was not in force before."""
        return one.key not in self.left_out and not _is_same(self._in_force.get(one.key), one)

    def _involved(self, key: str) -> Iterator[ClusterObject]:
        """Yields the object and those that it may contradict: its parent, its children, and objects with its name or namespace."""
        own = self.chosen.get(key)
        if isinstance(own, KoordinatorQuota):
            yield from self._places.get(("name", own.name), ())
            yield from self._places.get(("name", own.parent), ())
            yield from self._places.get(("parent", own.name), ())
        elif own is not None:
            yield from self._places.get(("namespace", own.namespace), ())

    def _relink(self) -> None:
        """Gives each quota without an existing parent the nearest existing ancestor. Keeps a deleted parent while it has children."""
        if self._kind is not ObjectKind.KOORDINATOR_QUOTA:
            return
        names = {"", ROOT, *(one.name for one in self.chosen.values())}
        lost = [one for one in self.chosen.values() if isinstance(one, KoordinatorQuota) and one.parent not in names]
        if not lost:
            return
        deleted = {one.name: one for key, one in self._in_force.items() if key not in self._now}
        left_out = {one.name: one for one in self._now.values() if one.key not in self.chosen}
        for one in lost:
            key = one.key
            if one.parent in names:  # a deleted parent, which another child has kept
                continue
            parent = deleted.get(one.parent)
            if isinstance(parent, KoordinatorQuota):
                self.chosen[parent.key] = parent
                names.add(parent.name)
                self.left_out[parent.key] = (
                    f"it was deleted, but stays in force while it has children such as {one.key}"
                )
                continue
            above = left_out.get(one.parent)
            if above is None:
                before = self._before(key)
                if before is not None and before is not one:
                    self._leave_out(key, f"its parent {one.parent} does not exist")
                    continue
                self.left_out[key] = (
                    f"its parent {one.parent} does not exist; it is a child of the root until the parent is created"
                )
            self.chosen[key] = replace(
                one, parent=above.parent if isinstance(above, KoordinatorQuota) else "", tree_id=""
            )


class _Tried:
    """The chosen objects of one try after another, and their problems."""

    def __init__(self, kind: ObjectKind, chosen: Iterable[ClusterObject | None]) -> None:
        chosen = list(chosen)
        self._linked = LinkedQuotas(one for one in chosen if isinstance(one, KoordinatorQuota))
        self._flat = FlatQuotas(one for one in chosen if isinstance(one, ElasticQuota))
        self._is_linked = kind is ObjectKind.KOORDINATOR_QUOTA
        self.without: AbstractSet[str] = frozenset()
        """Keys of the changes that are left out."""
        self._names, self._parents = Counter[str]({"": 1, ROOT: 1}), Counter[str]()
        """Number of chosen objects with each name, and of those with each parent."""
        for one in chosen:
            if isinstance(one, KoordinatorQuota):
                self._names[one.name] += 1
                self._parents[one.parent] += 1
        self._missing = {name for name in self._parents if not self._names[name]}
        """Parents that are not chosen."""

    def exchange(self, before: ClusterObject | None, now: ClusterObject | None) -> None:
        """Chooses another version of an object; None: no version."""
        if before is now:
            return
        if not self._is_linked:
            self._flat.exchange(*(one if isinstance(one, ElasticQuota) else None for one in (before, now)))
            return
        left, came = (one if isinstance(one, KoordinatorQuota) else None for one in (before, now))
        self._linked.exchange(left, came)
        if left is not None and came is not None and (left.name, left.parent) == (came.name, came.parent):
            return
        for one, sign in ((left, -1), (came, 1)):
            if one is not None:
                self._count_names(one, sign)

    @property
    def lacks_parents(self) -> bool:
        """Reports whether some quota's parent is not chosen; it then depends on other quotas what becomes of its child."""
        return bool(self._missing)

    def problems(self) -> Problems:
        """Returns the problems of the chosen objects."""
        return self._linked.problems() if self._is_linked else self._flat.problems()

    def read(self) -> ReadQuotas:
        """Reads the chosen objects. Valid unless it lacks parents."""
        return self._linked.read() if self._is_linked else self._flat.read()

    def _count_names(self, one: KoordinatorQuota, sign: int) -> None:
        self._names[one.name] += sign
        self._parents[one.parent] += sign
        for name in (one.name, one.parent):
            if self._parents[name] and not self._names[name]:
                self._missing.add(name)
            else:
                self._missing.discard(name)


def _is_same(known: ClusterObject | None, one: ClusterObject) -> bool:
    """Reports whether `one` says what the known version says; a new status raises the version alone."""
    if known is None or known is one:
        return known is one
    is_version = one.version != NO_VERSION and (known.uid, known.version) == (one.uid, one.version)
    return is_version or differ_in_version_only(known, one)


def _by_place(quotas: Iterable[ClusterObject]) -> dict[tuple[str, str], list[ClusterObject]]:
    """Returns the objects by name, by parent and by namespace."""
    found: dict[tuple[str, str], list[ClusterObject]] = {}
    for one in quotas:
        found.setdefault(("name", one.name), []).append(one)
        found.setdefault(("namespace", one.namespace), []).append(one)
        if isinstance(one, KoordinatorQuota):
            found.setdefault(("parent", one.parent), []).append(one)
    return found


def _is_parent(one: ClusterObject) -> bool:
    return isinstance(one, KoordinatorQuota) and one.is_parent


def _created(one: ClusterObject) -> str:
    return one.created if isinstance(one, ElasticQuota | KoordinatorQuota) else ""


def noted_version(one: ClusterObject) -> KoordinatorQuota | None:
    """Returns the version of the object that its annotation says was in force; None if there is none, or it is unusable."""
    if not isinstance(one, KoordinatorQuota) or not one.in_force_note:
        return None
    try:
        found = ObjectKind.KOORDINATOR_QUOTA.definition.decode(msgspec.Raw(one.in_force_note.encode()))
    except DecodeError:
        return None
    if not isinstance(found, KoordinatorQuota) or found.malformed or (found.uid, found.key) != (one.uid, one.key):
        return None
    return replace(found, created=one.created)


def read_quotas(kind: ObjectKind, quotas: Sequence[ClusterObject]) -> ReadQuotas:
    """Reads all objects of a kind whose objects form one tree together."""
    if kind is ObjectKind.KOORDINATOR_QUOTA:
        return read_linked(one for one in quotas if isinstance(one, KoordinatorQuota))
    return read_flat(one for one in quotas if isinstance(one, ElasticQuota))


def _text(problems: Sequence[object]) -> str:
    return "; ".join(map(str, problems))

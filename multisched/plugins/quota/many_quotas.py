"""ManyQuotas: the tree built from many objects, without invalid changes.

Owns the version of each object that is in force. For an invalid object, its last valid version is used. If objects
contradict each other (the mins of children exceed their parent's), their changes are tried from the oldest to the newest, and
those that contradict what is in force by then are left out. All other changes take effect. An invalid object without an
earlier version is left out; its child quotas then become children of its parent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from multisched.model.cluster_objects import ClusterObject, ElasticQuota, KoordinatorQuota
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import differ_in_version_only
from multisched.model.quota_tree import QuotaTree
from multisched.model.quotas.koordinator import ROOT, read_linked
from multisched.model.quotas.reading import Problems, ReadQuotas
from multisched.model.quotas.scheduler_plugins import read_flat
from multisched.model.version import NO_VERSION

READS_MAX: Final = 100
"""After so many readings of one set of objects, contradicting changes that have not been tried stay out."""


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

    def choose(self, quotas: Sequence[ClusterObject]) -> Chosen:
        """Returns the new tree in force. If there is none, the caller keeps the previous one."""
        attempt = _Attempt(self._kind, self._in_force, quotas)
        found = attempt.read()
        if found.problems:
            return Chosen(None, {key: _text(problems) for key, problems in found.problems.items()})
        self._in_force = dict(attempt.chosen)
        return Chosen(found.tree, attempt.left_out)


class _Attempt:
    def __init__(
        self, kind: ObjectKind, in_force: Mapping[str, ClusterObject], quotas: Sequence[ClusterObject]
    ) -> None:
        self._kind = kind
        self._in_force = in_force
        self._now = {one.key: one for one in quotas}
        self.chosen = dict(self._now)
        self.left_out: dict[str, str] = {}
        self._reads = 0

    def read(self) -> ReadQuotas:
        """Returns the tree of the chosen objects; with problems if no valid choice was found."""
        found = self._read_without({})
        without: Mapping[str, str] = {}
        while found.problems:
            contradicting = self._contradicting(found.problems)
            if not contradicting:
                return found
            without = {**without, **contradicting}
            found = self._read_without(without)
        fewer: Mapping[str, str] = self._fewest(self._by_age(without), without) if without else without
        while len(fewer) < len(without):  # what takes effect now may permit an older change
            without, fewer = fewer, self._fewest(self._by_age(fewer), fewer) if fewer else fewer
        return self._read_without(fewer) if fewer or without else found

    def _read_without(self, without: Mapping[str, str]) -> ReadQuotas:
        """Chooses all objects without these changes. `without`: key -> why."""
        self._reads += 1
        self.chosen, self.left_out = dict(self._now), {}
        malformed = {key: one.malformed for key, one in self._now.items() if one.malformed}
        for key, why in (malformed | dict(without)).items():
            self._leave_out(key, why)
        self._relink()
        return read_quotas(self._kind, list(self.chosen.values()))

    def _fewest(self, keys: Sequence[str], without: Mapping[str, str]) -> Mapping[str, str]:
        """Returns what has to stay out of `without`, if as many changes of `keys` as possible take effect, the first of them first."""
        if self._reads >= READS_MAX:
            return without
        fewer = {key: why for key, why in without.items() if key not in keys}
        problems = self._read_without(fewer).problems
        if not problems:
            return fewer
        if len(keys) == 1:
            (key,) = keys
            why = "; ".join(_text(found) if of == key else f"{of}: {_text(found)}" for of, found in problems.items())
            return {**without, key: why}
        half = len(keys) // 2
        return self._fewest(keys[half:], self._fewest(keys[:half], without))

    def _by_age(self, keys: Iterable[str]) -> list[str]:
        return sorted(keys, key=lambda key: (self._now[key].version, key))

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
        if own is None:
            return
        for one in self.chosen.values():
            if one is own or _may_contradict(own, one):
                yield one

    def _relink(self) -> None:
        """Gives each quota without an existing parent the nearest existing ancestor. Keeps a deleted parent while it has children."""
        if self._kind is not ObjectKind.KOORDINATOR_QUOTA:
            return
        names = {one.name for one in self.chosen.values()}
        deleted = {one.name: one for key, one in self._in_force.items() if key not in self._now}
        left_out = {one.name: one for one in self._now.values() if one.key not in self.chosen}
        for key, one in list(self.chosen.items()):
            if not isinstance(one, KoordinatorQuota) or one.parent in (*names, "", ROOT):
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


def _is_same(known: ClusterObject | None, one: ClusterObject) -> bool:
    """Reports whether `one` says what the known version says; a new status raises the version alone."""
    if known is None or known is one:
        return known is one
    is_version = one.version != NO_VERSION and (known.uid, known.version) == (one.uid, one.version)
    return is_version or differ_in_version_only(known, one)


def _may_contradict(own: ClusterObject, one: ClusterObject) -> bool:
    if isinstance(own, KoordinatorQuota) and isinstance(one, KoordinatorQuota):
        return one.name in (own.name, own.parent) or one.parent == own.name
    return one.namespace == own.namespace


def read_quotas(kind: ObjectKind, quotas: Sequence[ClusterObject]) -> ReadQuotas:
    """Reads all objects of a kind whose objects form one tree together."""
    if kind is ObjectKind.KOORDINATOR_QUOTA:
        return read_linked(one for one in quotas if isinstance(one, KoordinatorQuota))
    return read_flat(one for one in quotas if isinstance(one, ElasticQuota))


def _text(problems: Sequence[object]) -> str:
    return "; ".join(map(str, problems))

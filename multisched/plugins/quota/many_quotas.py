"""ManyQuotas: the tree built from many objects, without invalid changes.

Owns the version of each object that is in force. For an invalid object, its last valid version is used. If objects
contradict each other (the mins of children exceed their parent's), the newest change among them is left out, because the
objects were valid before it. A change that was left out before is left out first, so that it does not block later changes of
other objects. All other changes take effect. An invalid object without an earlier version is left out; its
child quotas then become children of its parent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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

CONTRADICTIONS_MAX: Final = 16
"""Maximum number of changes left out one by one because of contradictions. If there are more, the whole previous tree stays."""


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
        self._left_out: Mapping[str, ClusterObject] = {}
        """Versions that were left out of the last choice."""

    def choose(self, quotas: Sequence[ClusterObject]) -> Chosen:
        """Returns the new tree in force. If there is none, the caller keeps the previous one."""
        attempt = _Attempt(self._kind, self._in_force, self._left_out, quotas)
        found = attempt.read()
        self._left_out = {one.key: one for one in quotas if one.key in attempt.left_out}
        if found.problems:
            return Chosen(None, {key: _text(problems) for key, problems in found.problems.items()})
        self._in_force = dict(attempt.chosen)
        return Chosen(found.tree, attempt.left_out)


class _Attempt:
    def __init__(
        self,
        kind: ObjectKind,
        in_force: Mapping[str, ClusterObject],
        left_out: Mapping[str, ClusterObject],
        quotas: Sequence[ClusterObject],
    ) -> None:
        self._kind = kind
        self._in_force = in_force
        self._left_out_before = left_out
        self._now = {one.key: one for one in quotas}
        self.chosen = dict(self._now)
        self.left_out: dict[str, str] = {}

    def read(self) -> ReadQuotas:
        """Returns the tree of the chosen objects; with problems if no valid choice was found."""
        for key, one in self._now.items():
            if one.malformed:
                self._leave_out(key, one.malformed)
        for _ in range(CONTRADICTIONS_MAX):
            self._relink()
            found = read_quotas(self._kind, list(self.chosen.values()))
            if not found.problems or not self._leave_newest_out(found.problems):
                break
        return found

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

    def _leave_newest_out(self, problems: Problems) -> bool:
        """Leaves out the newest change involved in the first contradiction that has one. Reports whether there was one."""
        for key in sorted(problems):
            changed = [one for one in self._involved(key) if self._is_changed(one)]
            if changed:
                newest = max(changed, key=lambda one: (self._was_left_out(one), one.version, one.key))
                self._leave_out(
                    newest.key, f"{key}: {_text(problems[key])}" if newest.key != key else _text(problems[key])
                )
                return True
        return False

    def _is_changed(self, one: ClusterObject) -> bool:
        """Reports whether the object's current version is chosen and was not in force before."""
        return one.key not in self.left_out and not _is_same(self._in_force.get(one.key), one)

    def _was_left_out(self, one: ClusterObject) -> bool:
        return _is_same(self._left_out_before.get(one.key), one)

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

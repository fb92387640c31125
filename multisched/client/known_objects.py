"""The objects that a reflector knows of its kind: key to uid and version, and the deleted uids.

Owns the version guard (I6). An older resourceVersion is never applied, a deleted uid never returns, and a duplicate is dropped. A known key
that a list lacks is deleted. One reflector owns one instance; the handler keeps the objects.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from enum import Enum, auto
from typing import Final

import msgspec

from multisched.model.version import is_older as is_before
from multisched.model.version import version_of

TOMBSTONE_TTL_S: Final = 600.0
TOMBSTONES_MAX: Final = 65_536


class Observation(Enum):
    """The action of the handler for one observation of an object."""

    UPSERT = auto()
    """New or newer: pass it on."""
    REPLACE = auto()
    """Another object with a known name: its deletion was missed. Delete the old one, then pass this one on."""
    DELETE = auto()
    """It was known and is deleted."""
    DUPLICATE = auto()
    """Exactly this version was passed on before."""
    STALE = auto()
    """Older than what is known, or of a deleted uid."""


class _Known(msgspec.Struct, gc=False):
    uid: str
    version: str
    pass_number: int


def is_older(version: str, than: str) -> bool:
    """Returns True if both are numbers and `version` is less. Opaque and empty versions are never older."""
    is_less = len(version) < len(than) if len(version) != len(than) else version < than
    return is_less and bool(version) and is_before(version_of(version), version_of(than))


class KnownObjects:
    """The version guard. All methods are synchronous; `now_s` is monotonic time."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._tombstones: OrderedDict[str, tuple[str, float]] = OrderedDict()
        self._pass_number = 0

    def __len__(self) -> int:
        return len(self._known)

    @property
    def tombstones(self) -> int:
        return len(self._tombstones)

    def observe(self, key: str, uid: str, version: str) -> Observation:
        """Records that an object was listed, added or modified. After REPLACE, `replace` must follow."""
        known = self._known.get(key)
        if known is None:
            if self._was_deleted(uid, version):
                return Observation.STALE
            self._known[key] = _Known(uid, version, self._pass_number)
            return Observation.UPSERT
        known.pass_number = self._pass_number
        if known.uid == uid:
            if known.version == version:
                return Observation.DUPLICATE
            if is_older(version, known.version):
                return Observation.STALE
            known.version = version
            return Observation.UPSERT
        if is_older(version, known.version) or self._was_deleted(uid, version):
            return Observation.STALE
        return Observation.REPLACE

    def replace(self, key: str, uid: str, version: str, now_s: float) -> None:
        """Records another object under a known key, after REPLACE: the known one was deleted as of `version`."""
        self._tombstone(self._known[key].uid, version, now_s)
        self._known[key] = _Known(uid, version, self._pass_number)

    def uid_of(self, key: str) -> str:
        """Returns the uid of the key; empty if unknown."""
        known = self._known.get(key)
        return known.uid if known is not None else ""

    def version_of(self, key: str) -> str:
        """Returns the version of the key; empty if unknown or distrusted."""
        known = self._known.get(key)
        return known.version if known is not None else ""

    def keys(self) -> Sequence[str]:
        """Returns a copy of the known keys."""
        return [*self._known]

    def remove(self, key: str, uid: str, version: str, now_s: float) -> Observation:
        """Records a DELETED event. Returns DELETE, STALE, or REPLACE if the known object of this key was another one,
        which is deleted, too.

        With a selector the event may only mean that the object no longer matches, so a newer version may return.
        """
        known = self._known.get(key)
        if known is None:
            self._tombstone(uid, version, now_s)
            return Observation.STALE
        if is_older(version, known.version):
            if known.uid != uid:
                self._tombstone(uid, version, now_s)
            return Observation.STALE
        del self._known[key]
        self._tombstone(uid, version, now_s)
        if known.uid == uid:
            return Observation.DELETE
        # A later object of the same name was created and deleted unseen, so the known one is deleted as well.
        self._tombstone(known.uid, version, now_s)
        return Observation.REPLACE

    def begin_replace(self) -> None:
        """Starts a complete list. If a list breaks off, another one starts; no key was deleted for it."""
        self._pass_number += 1

    def end_replace(self, list_version: str, now_s: float) -> list[str]:
        """Ends a complete list: forgets and returns the keys that it lacked (the synthetic deletes)."""
        missing = [key for key, known in self._known.items() if known.pass_number != self._pass_number]
        for key in missing:
            self._tombstone(self._known.pop(key).uid, list_version, now_s)
        return missing

    def distrust(self, key: str, uid: str) -> None:
        """Makes the next list pass this object on again, whatever its version: the handler does not have it in this version."""
        known = self._known.get(key)
        if known is not None:
            known.version = ""
        self._tombstones.pop(uid, None)

    def forget_versions(self) -> None:
        """Makes the next list count in any case, also with an older version or a deleted uid: the history went back."""
        for known in self._known.values():
            known.version = ""
        self._tombstones.clear()

    def _was_deleted(self, uid: str, version: str) -> bool:
        tombstone = self._tombstones.get(uid)
        if tombstone is None:
            return False
        return not is_older(tombstone[0], version)

    def _tombstone(self, uid: str, version: str, now_s: float) -> None:
        tombstones = self._tombstones
        before = tombstones.pop(uid, None)
        if before is not None and is_older(version, before[0]):
            version = before[0]
        tombstones[uid] = (version, now_s)
        while tombstones:
            oldest = next(iter(tombstones))
            if len(tombstones) <= TOMBSTONES_MAX and tombstones[oldest][1] + TOMBSTONE_TTL_S > now_s:
                break
            del tombstones[oldest]

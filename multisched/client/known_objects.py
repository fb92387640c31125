"""What a reflector already knows of its kind: key to uid and version, and which uids are gone.

Owns the version guard (I6). An older resourceVersion is never applied, a deleted uid never returns, and a duplicate is
dropped. A list that lacks a known key deletes it. One reflector owns one instance; the handler keeps the objects.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum, auto
from typing import Final

import msgspec

from multisched.model.version import is_older as is_before
from multisched.model.version import version_of

TOMBSTONE_TTL_S: Final = 600.0
TOMBSTONES_MAX: Final = 65_536


class Verdict(Enum):
    """What one observation of an object means for the handler."""

    UPSERT = auto()
    """New or newer: hand it on."""
    REPLACE = auto()
    """Another object under a known name: its deletion was missed. Delete the old one, then hand this one on."""
    DELETE = auto()
    """It was known and is gone."""
    DUPLICATE = auto()
    """Exactly this version was handed on before."""
    STALE = auto()
    """Older than what is known, or of a uid that is gone."""


class _Known(msgspec.Struct, gc=False):
    uid: str
    version: str
    pass_number: int


def is_older(version: str, than: str) -> bool:
    """True if both are numbers and `version` is less. Opaque ones, and none at all, are never older."""
    is_less = len(version) < len(than) if len(version) != len(than) else version < than
    return is_less and bool(version) and is_before(version_of(version), version_of(than))


class KnownObjects:
    """The guard. All methods are plain functions; `now_s` is monotonic time."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._tombstones: OrderedDict[str, tuple[str, float]] = OrderedDict()
        self._pass_number = 0

    def __len__(self) -> int:
        return len(self._known)

    @property
    def tombstones(self) -> int:
        return len(self._tombstones)

    def observe(self, key: str, uid: str, version: str) -> Verdict:
        """An object was listed, added or modified."""
        known = self._known.get(key)
        if known is None:
            if self._is_gone(uid, version):
                return Verdict.STALE
            self._known[key] = _Known(uid, version, self._pass_number)
            return Verdict.UPSERT
        known.pass_number = self._pass_number
        if known.uid == uid:
            if known.version == version:
                return Verdict.DUPLICATE
            if is_older(version, known.version):
                return Verdict.STALE
            known.version = version
            return Verdict.UPSERT
        if is_older(version, known.version) or self._is_gone(uid, version):
            return Verdict.STALE
        self._known[key] = _Known(uid, version, self._pass_number)
        return Verdict.REPLACE

    def bury_replaced(self, uid: str, version: str, now_s: float) -> None:
        """Remembers that `uid`, replaced by another object, is gone as of `version`."""
        self._bury(uid, version, now_s)

    def uid_of(self, key: str) -> str:
        """Empty if unknown."""
        known = self._known.get(key)
        return known.uid if known is not None else ""

    def remove(self, key: str, uid: str, version: str, now_s: float) -> Verdict:
        """A DELETED event: DELETE, STALE, or REPLACE if the object known under this key was another one, gone as well.

        Under a selector it may only mean that the object left it, so a newer version may come back.
        """
        known = self._known.get(key)
        if known is None:
            self._bury(uid, version, now_s)
            return Verdict.STALE
        if is_older(version, known.version):
            if known.uid != uid:
                self._bury(uid, version, now_s)
            return Verdict.STALE
        del self._known[key]
        self._bury(uid, version, now_s)
        if known.uid == uid:
            return Verdict.DELETE
        # A later object of the same name came and went unseen, so ours is gone as well.
        self._bury(known.uid, version, now_s)
        return Verdict.REPLACE

    def begin_replace(self) -> None:
        """A complete list starts. A list that breaks off simply begins anew; nothing was deleted for it."""
        self._pass_number += 1

    def end_replace(self, list_version: str, now_s: float) -> list[str]:
        """The list was complete: forgets and returns the keys it lacked (the synthetic deletes)."""
        missing = [key for key, known in self._known.items() if known.pass_number != self._pass_number]
        for key in missing:
            self._bury(self._known.pop(key).uid, list_version, now_s)
        return missing

    def distrust(self, key: str, uid: str) -> None:
        """The next list hands this object on again, whatever its version: the handler turned out not to have it so."""
        known = self._known.get(key)
        if known is not None:
            known.version = ""
        self._tombstones.pop(uid, None)

    def forget_versions(self) -> None:
        """Whatever the next list shows counts, also an older version or a uid that was gone: history went back."""
        for known in self._known.values():
            known.version = ""
        self._tombstones.clear()

    def _is_gone(self, uid: str, version: str) -> bool:
        tombstone = self._tombstones.get(uid)
        if tombstone is None:
            return False
        return not is_older(tombstone[0], version)

    def _bury(self, uid: str, version: str, now_s: float) -> None:
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

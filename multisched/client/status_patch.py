"""Computes the JSON merge patch from the current status to the wanted one. Pure.

Named fields and condition types are replaced as a whole. All others are left to their owners. Conditions keep their
position in the list, and their transition time while status and reason are unchanged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import orjson

from multisched.framework.object_status import ObjectCondition, ObjectStatus
from multisched.model.visible_text import whole_characters

MESSAGE_CHARS_MAX: Final = 8_192
"""Limit of a condition's message; metav1.Condition allows 32,768."""

CONDITIONS: Final = "conditions"

Document = dict[str, Any]


def plain(wanted: ObjectStatus) -> Document:
    """Returns the fields as JSON values. Raises TypeError for values that JSON cannot represent, and for conditions
    among the fields.
    """
    if CONDITIONS in wanted.fields:
        raise TypeError("the fields of a status contain conditions; set ObjectStatus.conditions instead")
    found: Document = orjson.loads(orjson.dumps(wanted.fields))
    return {name: _without_nulls(value) for name, value in found.items()}


def _without_nulls(value: Any) -> Any:
    """Drops null values from nested objects, because null in a merge patch deletes a field."""
    if isinstance(value, dict):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
    return value


def patch_between(current: Document, fields: Document, conditions: Sequence[Document]) -> Document:
    """Returns the merge patch of `status` that sets fields and conditions as given; empty if they are equal already."""
    patch: Document = {}
    for name, value in fields.items():
        if current.get(name) != value:
            patch[name] = _difference(current.get(name), value)
    if conditions and list(conditions) != current.get(CONDITIONS):
        patch[CONDITIONS] = list(conditions)
    return patch


def _difference(before: Any, after: Any) -> Any:
    """Returns the merge patch from one value to the other."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        return after
    found: Document = {name: None for name in before if name not in after}
    for name, value in after.items():
        if name not in before or before[name] != value:
            found[name] = _difference(before.get(name), value)
    return found


def merged_conditions(
    current: Document, wanted: Sequence[ObjectCondition], generation: int, now: str
) -> Sequence[Document]:
    """Returns all conditions for the status: each wanted one replaces that of its type, new ones come last.

    `generation`: of the object that the wanted ones describe; 0 if its kind has none.
    """
    if not wanted:
        return ()
    by_type = {one.type: one for one in wanted}
    found = [
        _entry(by_type.pop(entry["type"]), entry, generation, now) if entry.get("type") in by_type else entry
        for entry in _entries(current)
    ]
    return [*found, *(_entry(one, {}, generation, now) for one in by_type.values())]


def _entries(status: Mapping[str, Any]) -> list[Document]:
    listed = status.get(CONDITIONS)
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []


def _entry(wanted: ObjectCondition, before: Mapping[str, Any], generation: int, now: str) -> Document:
    stays = (before.get("status"), before.get("reason")) == (wanted.status, wanted.reason)
    since = before.get("lastTransitionTime") if stays else None
    entry: Document = {
        "type": wanted.type,
        "status": wanted.status,
        "reason": wanted.reason,
        "message": whole_characters(wanted.message)[:MESSAGE_CHARS_MAX],
        "lastTransitionTime": since or now,
    }
    if generation:
        entry["observedGeneration"] = generation
    return entry


class OwnPart(msgspec.Struct, frozen=True, gc=False):
    """The part of a status that this program owns."""

    fields: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    """Condition types."""
    annotations: tuple[str, ...] = ()
    """Annotation keys."""

    def of(self, current: Mapping[str, Any], annotations: Mapping[str, Any]) -> bytes:
        """Returns a digest of the owned part of status and annotations."""
        conditions = [entry for entry in _entries(current) if entry.get("type") in self.types]
        noted = [annotations.get(key) for key in self.annotations]
        return _digest([[current.get(name) for name in self.fields], conditions, noted])


def own_part(wanted: ObjectStatus) -> OwnPart:
    types = tuple(one.type for one in wanted.conditions)
    return OwnPart(tuple(wanted.fields), types, tuple(wanted.annotations))


def digest_of(wanted: ObjectStatus, fields: Document, generation: int) -> bytes:
    """Returns a digest of everything wanted, without times."""
    conditions = [[one.type, one.status, one.reason, one.message] for one in wanted.conditions]
    return _digest([fields, conditions, dict(wanted.annotations), generation])


def _digest(document: object) -> bytes:
    """Returns a digest that is equal for equal documents."""
    text = orjson.dumps(document, option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(text, digest_size=16).digest()

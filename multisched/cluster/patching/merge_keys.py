"""Merge strategies of lists in built-in kinds: the key for strategic merge patch, the keys for server-side apply.

Reads the tags of the Go types (`api_types`). A path begins with the kind and has no list indices:
`Pod.spec.containers`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from multisched.cluster.base.api_types import Field, fields_of, type_of_kind

REPLACE = "replace"
MERGE = "merge"


@dataclass(frozen=True, slots=True)
class ListRule:
    """The merge strategy of one list.

    `strategy` and `keys` are for strategic merge patch; a list merged without keys is a set of scalars. `apply_strategy` and
    `apply_keys` are the same for server-side apply.
    """

    strategy: str
    keys: tuple[str, ...] = ()
    apply_strategy: str = REPLACE
    apply_keys: tuple[str, ...] = ()


ATOMIC = ListRule(REPLACE)
SET = ListRule(MERGE, apply_strategy=MERGE)


def child(path: str, key: str) -> str:
    """Returns the path of a field."""
    return f"{path}.{key}"


@lru_cache(maxsize=4_096)
def _field(path: str, key: str) -> Field | None:
    kind, *parts = path.split(".")
    name = type_of_kind(kind)
    for part in parts:
        field = fields_of(name).get(part)
        if field is None:
            return None
        name = field.type
    return fields_of(name).get(key)


@lru_cache(maxsize=4_096)
def list_rule(path: str, key: str) -> ListRule:
    """Returns the merge strategy of the list `key` below `path`; lists without tags are atomic."""
    field = _field(path, key)
    if field is None or field.shape != "list":
        return ATOMIC
    strategy = MERGE if field.is_merged else REPLACE
    apply_strategy = (
        MERGE if field.list_type in ("map", "set") or (not field.list_type and field.is_merged) else REPLACE
    )
    apply_keys = field.list_keys
    if apply_strategy == MERGE and field.list_type != "set" and not apply_keys and field.merge_key:
        apply_keys = (field.merge_key,)
    return ListRule(
        strategy, (field.merge_key,) if field.is_merged and field.merge_key else (), apply_strategy, apply_keys
    )

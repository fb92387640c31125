"""How lists of built-in kinds merge: by which key under strategic merge patch, by which keys under server-side apply.

Owns nothing; reads the tags of the Go types (`api_types`). A path is written without list indices, from the kind:
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
    """How one list merges.

    `strategy` and `keys` rule strategic merge patches (merge without keys: a set of scalars); `apply_strategy` and
    `apply_keys` rule server-side apply in the same way.
    """

    strategy: str
    keys: tuple[str, ...] = ()
    apply_strategy: str = REPLACE
    apply_keys: tuple[str, ...] = ()


ATOMIC = ListRule(REPLACE)
SET = ListRule(MERGE, apply_strategy=MERGE)


def child(path: str, key: str) -> str:
    """The path of a field."""
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
    """How the list `key` below `path` merges; lists without tags are replaced whole."""
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

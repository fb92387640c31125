"""Finds the field that a problem of a quota names: `root.a.min.cpu` of a tree uses names of levels, while files have fields."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from multisched.config.document import Path as FieldPath
from multisched.config.document import part_at
from multisched.model.quota_tree import named_nodes

_STEP: Final = re.compile(r"\.?([A-Za-z]\w*)|\[(\d+)\]")
_KEYED: Final = ("min", "max", "labels", "annotations", "attributes")
"""Fields whose keys may contain dots: the rest of the path is one key."""


def field_of(document: Mapping[str, Any], path: str) -> FieldPath:
    """Returns the path of the field, as far as it can be determined. If several levels have one name: of the one that
    has the field.
    """
    found = [(*fields, *_steps(rest)) for fields, rest in _starts(document, path)]
    return next((one for one in found if part_at(document, one) is not None), found[0])


def _starts(document: Mapping[str, Any], path: str) -> list[tuple[FieldPath, str]]:
    """Returns the tree nodes with the longest matching path, each with the rest of the path."""
    best = ""
    found: list[tuple[FieldPath, str]] = []
    for _, name, place in named_nodes(document):
        is_begun = path.startswith(name) and path[len(name) : len(name) + 1] in ("", ".", "[")
        if is_begun and len(name) >= len(best):
            found = [*(found if name == best else ()), (place, path[len(name) :])]
            best = name
    return found or [((), path)]


def _steps(rest: str) -> FieldPath:
    fields: FieldPath = ()
    while rest and (step := _STEP.match(rest)) is not None:
        fields = (*fields, step[1] if step[1] is not None else int(step[2]))
        rest = rest[step.end() :]
        if rest and step[1] in _KEYED:
            return (*fields, rest.removeprefix(".").removeprefix("[").removesuffix("]").strip("'"))
    return fields

"""Validation of plain data against a model: every problem with its position and, if a similar name exists, a suggestion."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from multisched.config.document import Document, Path

M = TypeVar("M", bound=BaseModel)

LABELS: Final = "matchLabels"
"""The key of a selector's labels."""

_SILENT: Final = frozenset({"default_factory_not_called"})
"""Error types that only follow from another reported error."""


def validated(document: Document, model: type[M]) -> M | None:
    """Returns the document as a `model`; None if it has problems, which are added to it."""
    return validated_part(document, (), document.data, model)


def validated_part(document: Document, at: Path, data: Any, model: type[M]) -> M | None:
    """Returns plain data from position `at` as a `model`; None if it has problems, which are added at that position."""
    try:
        return model.model_validate_json(json.dumps(data))
    except ValidationError as error:
        found = [e for e in error.errors(include_url=False, include_input=True) if e["type"] not in _SILENT]
    for item in found:
        path = tuple(item["loc"])
        if item["type"] == "too_short" and any(e["loc"][: len(path)] == path and e is not item for e in found):
            continue
        _add_error(document, at, path, item, model)
    return None


def nearest(word: str, known: Iterable[str]) -> str:
    """Returns the most similar known word; empty if none is similar."""
    lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), lower, n=1)
    return lower[near[0]] if near else ""


def _add_error(document: Document, at: Path, inner: Path, error: Any, top: type[BaseModel]) -> None:
    path = (*at, *inner)
    match error["type"]:
        case "extra_forbidden":
            keys = _keys_at(inner[:-1], top)
            near = nearest(str(inner[-1]), keys)
            hint = f"; a label belongs under {LABELS}: {{{inner[-1]}: …}}" if LABELS in keys and not near else ""
            document.add(path, f"unknown key{hint}", suggestion=near, of_key=True)
        case "missing":
            document.add(path, "is missing", of_key=True)
        case "enum" | "literal_error":
            expected = error["ctx"]["expected"].replace("''", '""').replace("'", "")
            choices = expected.replace(" or ", ", ").split(", ")
            near = nearest(str(error["input"]), choices) if len(choices) > 1 else ""
            document.add(path, f"{error['input']!r} is not known here; write {expected}", suggestion=near)
        case "string_pattern_mismatch":
            message = f"{error['input']!r} is not a name of this kind; it must match {error['ctx']['pattern']}"
            document.add(path, message)
        case "string_type" if isinstance(error["input"], Mapping) and "name" in error["input"]:
            document.add(path, f"must be a name without keys; write {error['input']['name']}")
        case "model_type" if isinstance(error["input"], str) and "name" in _keys_at(inner, top):
            document.add(path, f"must have keys; write {{name: {error['input']}}}")
        case "too_short":
            document.add(path, f"needs at least {error['ctx']['min_length']}")
        case "too_long":
            document.add(path, f"has too many; at most {error['ctx']['max_length']}")
        case "value_error":
            document.add(path, str(error["ctx"]["error"]))
        case _:
            text = error["msg"].replace("Input should be", "must be")
            document.add(path, text)


def _keys_at(path: Path, top: type[BaseModel]) -> list[str]:
    """Returns the keys of the model at `path`; empty inside a plugin's args."""
    model: type[BaseModel] | None = top
    for part in path:
        if isinstance(part, int) or model is None:
            continue
        fields = {field.alias: field for field in model.model_fields.values()}
        model = next(models_in(fields[part].annotation), None) if part in fields else None
    return [] if model is None else [str(field.alias) for field in model.model_fields.values()]


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yields the models in an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from models_in(part)

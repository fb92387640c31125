"""Structural schemas of custom kinds: pruning, defaulting, validation.

Supports the keywords of apiextensions v1 without CEL rules (`x-kubernetes-validations` is not evaluated).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from itertools import islice
from typing import Any

from multisched.cluster.base import errors

PRESERVE = "x-kubernetes-preserve-unknown-fields"
CAUSES_MAX = 100
"""Maximum number of reported causes."""

Causes = list[dict[str, str]]
_Unknown = tuple[Any, str, str]
"""The object that contains a field unknown to the schema, the field's name, and its path."""
_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}


def admit(schema: Mapping[str, Any] | None, document: dict[str, Any]) -> Causes:
    """Prunes a document and applies defaults in place, then validates it."""
    if not schema:
        return []
    for holder, key, _ in list(_unknown(schema, document)):
        del holder[key]
    for key, own in (schema.get("properties") or {}).items():
        if key in ("kind", "apiVersion", "metadata"):
            continue
        if key not in document and "default" in own:
            document[key] = deepcopy(own["default"])
        if key in document:
            _default(own, document[key])
    causes: Causes = []
    shown = {key: value for key, value in document.items() if key not in ("kind", "apiVersion", "metadata")}
    rest = {
        **schema,
        "required": [name for name in schema.get("required") or () if name not in ("kind", "apiVersion", "metadata")],
    }
    _validate(rest, shown, "", causes)
    return causes[:CAUSES_MAX]


def unknown_fields(schema: Mapping[str, Any] | None, document: Mapping[str, Any]) -> list[str]:
    """Returns the paths of unknown fields, which pruning drops; at most CAUSES_MAX."""
    return [path for _, _, path in islice(_unknown(schema or {PRESERVE: True}, document), CAUSES_MAX)]


def _unknown(schema: Mapping[str, Any], document: Mapping[str, Any]) -> Iterator[_Unknown]:
    properties = schema.get("properties") or {}
    for key, value in document.items():
        if key in ("kind", "apiVersion", "metadata"):
            continue
        if key in properties:
            yield from _unknown_below(properties[key], value, key)
        elif not schema.get(PRESERVE):
            yield document, key, key


def _unknown_below(schema: Mapping[str, Any], value: Any, path: str) -> Iterator[_Unknown]:
    if isinstance(value, list):
        for place, entry in enumerate(value):
            yield from _unknown_below(schema.get("items") or {}, entry, f"{path}[{place}]")
    if not isinstance(value, dict):
        return
    properties, others = schema.get("properties") or {}, schema.get("additionalProperties")
    for key, entry in value.items():
        if key in properties:
            yield from _unknown_below(properties[key], entry, f"{path}.{key}")
        elif isinstance(others, dict):
            yield from _unknown_below(others, entry, f"{path}.{key}")
        elif not schema.get(PRESERVE) and not others and not schema.get("x-kubernetes-embedded-resource"):
            yield value, key, f"{path}.{key}"


def _default(schema: Mapping[str, Any], value: Any) -> None:
    if isinstance(value, list):
        for entry in value:
            _default(schema.get("items") or {}, entry)
    if not isinstance(value, dict):
        return
    properties = schema.get("properties") or {}
    for key, own in properties.items():
        if key not in value and "default" in own:
            value[key] = deepcopy(own["default"])
    others = schema.get("additionalProperties")
    for key, entry in value.items():
        if key in properties:
            _default(properties[key], entry)
        elif isinstance(others, dict):
            _default(others, entry)


def _kind_of(value: Any) -> str:
    if value is None:
        return "null"
    return next(
        (
            name
            for name in ("boolean", "object", "array", "string", "integer", "number")
            if isinstance(value, _TYPES[name])
        ),
        "",
    )


def _has_type(value: Any, wanted: str) -> bool:
    if isinstance(value, bool):
        return wanted == "boolean"
    return isinstance(value, _TYPES.get(wanted, (object,)))


def _validate(schema: Mapping[str, Any], value: Any, path: str, causes: Causes) -> None:
    if len(causes) >= CAUSES_MAX:
        return
    if value is None and schema.get("nullable"):
        return
    if schema.get("x-kubernetes-int-or-string"):
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            causes.append(_wrong_type(path, value, "integer,string"))
        return
    wanted = schema.get("type")
    if wanted and not _has_type(value, wanted):
        causes.append(_wrong_type(path, value, wanted))
        return
    if "enum" in schema and value not in schema["enum"]:
        causes.append(errors.unsupported_value(path, value, [str(choice) for choice in schema["enum"]]))
    if isinstance(value, dict):
        _validate_object(schema, value, path, causes)
    elif isinstance(value, list):
        _bounds(schema, len(value), path, causes, "minItems", "maxItems", "items")
        for place, entry in enumerate(value):
            _validate(schema.get("items") or {}, entry, f"{path}[{place}]", causes)
    elif isinstance(value, str):
        _bounds(schema, len(value), path, causes, "minLength", "maxLength", "chars long")
        pattern = schema.get("pattern")
        if pattern and not re.search(pattern, value):
            causes.append(errors.invalid_value(path, value, f"{path} in body should match '{pattern}'"))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        _validate_number(schema, value, path, causes)


def _validate_object(schema: Mapping[str, Any], value: Mapping[str, Any], path: str, causes: Causes) -> None:
    for name in schema.get("required") or ():
        if name not in value:
            causes.append(errors.required(f"{path}.{name}" if path else name))
    _bounds(schema, len(value), path, causes, "minProperties", "maxProperties", "properties")
    properties, others = schema.get("properties") or {}, schema.get("additionalProperties")
    for key, entry in value.items():
        below = f"{path}.{key}" if path else key
        if key in properties:
            _validate(properties[key], entry, below, causes)
        elif isinstance(others, dict):
            _validate(others, entry, below, causes)


def _validate_number(schema: Mapping[str, Any], value: float, path: str, causes: Causes) -> None:
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is not None and (value < least or (schema.get("exclusiveMinimum") and value == least)):
        sign = "greater than" if schema.get("exclusiveMinimum") else "greater than or equal to"
        causes.append(errors.invalid_value(path, value, f"{path} in body should be {sign} {least}"))
    if most is not None and (value > most or (schema.get("exclusiveMaximum") and value == most)):
        sign = "less than" if schema.get("exclusiveMaximum") else "less than or equal to"
        causes.append(errors.invalid_value(path, value, f"{path} in body should be {sign} {most}"))


def _bounds(schema: Mapping[str, Any], size: int, path: str, causes: Causes, low: str, high: str, unit: str) -> None:
    if low in schema and size < schema[low]:
        causes.append(errors.invalid_value(path, size, f"{path} in body should have at least {schema[low]} {unit}"))
    if high in schema and size > schema[high]:
        is_text = high == "maxLength"
        causes.append(errors.too_long(path, schema[high]) if is_text else errors.too_many(path, size, schema[high]))


def _wrong_type(path: str, value: Any, wanted: str) -> dict[str, str]:
    actual = _kind_of(value)
    message = f'Invalid value: "{actual}": {path} in body must be of type {wanted}: "{actual}"'
    return errors.cause("FieldValueTypeInvalid", path, message)

"""The Go types of built-in kinds as data, used to decode protobuf bodies, to find unknown fields and to merge lists.

Reads the table `types.json` (made by tests/integration/api/make_types.py from k8s.io/api, Apache-2.0) at first use.
kubectl and client-go send built-in kinds as protobuf; responses are always JSON, which every client accepts.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import orjson

from multisched.cluster.base import errors
from multisched.cluster.base.resources import Document
from multisched.model.api_time import micro_timestamp, timestamp

PROTOBUF = "application/vnd.kubernetes.protobuf"
MAGIC = b"k8s\x00"
DEPTH_MAX = 64
"""Maximum nesting of messages; deeper bodies are rejected."""

UNKNOWN_MAX = 100
"""Maximum number of unknown fields that are reported."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_GROUP_PACKAGES = {
    "": "core",
    "rbac.authorization.k8s.io": "rbac",
}
_BARE_LISTS = frozenset({"authentication.v1.ExtraValue", "authorization.v1.ExtraValue", "meta.v1.Verbs"})
_RAW = frozenset({"runtime.RawExtension", "meta.v1.FieldsV1"})
_OPAQUE = frozenset(
    {*_RAW, *_BARE_LISTS, "meta.v1.Time", "meta.v1.MicroTime", "resource.Quantity", "intstr.IntOrString"}
)


class Field(NamedTuple):
    """One field of a type. `shape` is list, map, inline, pointer or empty."""

    number: int
    type: str
    shape: str
    merge_key: str = ""
    is_merged: bool = False
    list_type: str = ""
    list_keys: tuple[str, ...] = ()


Fields = Mapping[str, Field]


@cache
def _table() -> Mapping[str, Mapping[str, list[Any]]]:
    loaded: dict[str, dict[str, list[Any]]] = orjson.loads(files(__package__).joinpath("types.json").read_bytes())
    return loaded


@cache
def fields_of(name: str) -> Fields:
    """Returns the fields of a type by JSON name, with those of inlined types. Empty for scalars and types not in the table."""
    found: dict[str, Field] = {}
    for key, entry in _table().get(name, {}).items():
        number, kind, shape, *rest = entry
        merging = (rest[0], rest[1], rest[2], tuple(rest[3])) if rest else ("", False, "", ())
        field = Field(number, kind, shape, *merging)
        if field.shape == "inline":
            found.update(fields_of(field.type))
        else:
            found[key] = field
    return found


def type_name(group: str, version: str, kind: str) -> str:
    """Returns the name of a kind's type, such as `apps.v1.Deployment`; empty if the kind is not in the table."""
    package = _GROUP_PACKAGES.get(group, group.partition(".")[0])
    name = f"{package}.{version}.{kind}"
    if kind == "DeleteOptions":
        name = "meta.v1.DeleteOptions"
    return name if name in _table() else ""


@cache
def type_of_kind(kind: str) -> str:
    """Returns the type of a kind whose group is not known: the core/v1 type if there is one. Empty if the kind is not in the table."""
    names = [name for name in _table() if name.endswith(f".{kind}") and "metadata" in _table()[name]]
    return f"core.v1.{kind}" if f"core.v1.{kind}" in names else names[0] if names else ""


# -- unknown fields ----------------------------------------------------------------------------------------------


def unknown_fields(name: str, document: Mapping[str, Any]) -> list[str]:
    """Returns the paths of at most UNKNOWN_MAX unknown fields, written as in upstream's strict decoding errors."""
    found: list[str] = []
    for path in _unknown(
        name, {key: value for key, value in document.items() if key not in ("kind", "apiVersion")}, ""
    ):
        found.append(path)
        if len(found) >= UNKNOWN_MAX:
            break
    return found


def _unknown(name: str, value: Any, path: str) -> Iterator[str]:
    fields = fields_of(name)
    if name in _OPAQUE or not fields or not isinstance(value, dict):
        return
    for key, entry in value.items():
        below = f"{path}.{key}" if path else key
        field = fields.get(key)
        if field is None:
            yield below
        elif field.shape == "list" and isinstance(entry, list):
            for place, item in enumerate(entry):
                yield from _unknown(field.type, item, f"{below}[{place}]")
        elif field.shape == "map" and isinstance(entry, dict):
            for name_, item in entry.items():
                yield from _unknown(field.type, item, f"{below}.{name_}")
        else:
            yield from _unknown(field.type, entry, below)


def drop_unknown(name: str, document: Document) -> None:
    """Removes unknown fields in place, as decoding into a typed object does."""
    fields = fields_of(name)
    if name in _OPAQUE or not fields:
        return
    for key in list(document):
        entry, field = document[key], fields.get(key)
        if field is None:
            if key not in ("kind", "apiVersion"):
                del document[key]
            continue
        below = (
            entry
            if field.shape == "list"
            else list(entry.values())
            if field.shape == "map" and isinstance(entry, dict)
            else [entry]
        )
        for item in below if isinstance(below, list) else ():
            if isinstance(item, dict):
                drop_unknown(field.type, item)


# -- protobuf ----------------------------------------------------------------------------------------------------


def decode(body: bytes) -> Document:
    """Decodes a protobuf body with its envelope to the equivalent JSON document."""
    try:
        envelope = dict(_records(body[len(MAGIC) :]))
        meta = {number: bytes(value).decode() for number, value in _records(envelope[1])}
        api_version, kind = meta.get(1, ""), meta.get(2, "")
        group, _, version = api_version.rpartition("/")
        name = type_name(group, version, kind)
        if not name:
            raise errors.unsupported_media(PROTOBUF, ["application/json", "application/yaml"])
        return {"kind": kind, "apiVersion": api_version, **_message(name, envelope.get(2, b""), 0)}
    except (KeyError, IndexError, ValueError, struct.error, TypeError) as problem:
        raise errors.bad_request(f"the protobuf body cannot be decoded: {type(problem).__name__}: {problem}") from None


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a varint is too long")


def _records(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yields field numbers with raw values: an int (varint) or bytes (fixed 4 or 8 bytes, or length-delimited)."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        wire = tag & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        if wire == 2:
            size, at = _varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire}")
        if at + size > len(data):
            raise ValueError("truncated")
        yield tag >> 3, data[at : at + size]
        at += size


@cache
def _by_number(name: str) -> Mapping[int, tuple[str, Field]]:
    found = {}
    for key, entry in _table().get(name, {}).items():
        found[int(entry[0])] = (key, Field(*entry[:3]))
    return found


def _message(name: str, data: bytes, depth: int) -> Document:
    if depth > DEPTH_MAX:
        raise ValueError("nested too deeply")
    known = _by_number(name)
    document: Document = {}
    for number, raw in _records(data):
        found = known.get(number)
        if found is None:
            continue
        key, field = found
        if field.shape == "inline":
            document.update(_message(field.type, raw, depth + 1))
        elif field.shape == "list":
            document.setdefault(key, []).extend(_items(field.type, raw, depth))
        elif field.shape == "map":
            entry = dict(_records(raw))
            document.setdefault(key, {})[bytes(entry.get(1, b"")).decode()] = _map_value(field.type, entry, depth)
        else:
            value = _value(field.type, raw, depth)
            if value is not None and (field.shape == "pointer" or value not in ("", 0, False)):
                document[key] = value
    return document


def _map_value(kind: str, entry: Mapping[int, Any], depth: int) -> Any:
    raw = entry.get(2, 0 if kind in ("int32", "int64", "bool") else b"")
    return _value(kind, raw, depth)


def _items(kind: str, raw: Any, depth: int) -> list[Any]:
    if kind in ("int32", "int64") and isinstance(raw, bytes):  # packed
        values, at = [], 0
        while at < len(raw):
            value, at = _varint(raw, at)
            values.append(_signed(value))
        return values
    return [_value(kind, raw, depth)]


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _value(kind: str, raw: Any, depth: int) -> Any:
    if kind == "string":
        return raw.decode()
    if kind in ("int32", "int64"):
        return _signed(raw)
    if kind == "bool":
        return bool(raw)
    if kind == "bytes":
        return base64.b64encode(raw).decode()
    if kind == "double":
        return struct.unpack("<d", raw)[0]
    if kind in _OPAQUE:
        return _opaque(kind, raw)
    return _message(kind, raw, depth + 1)


def _opaque(kind: str, raw: bytes) -> Any:
    records = list(_records(raw))
    if kind in _BARE_LISTS:
        return [value.decode() for _number, value in records]
    values = dict(records)
    if kind in _RAW:
        return orjson.loads(values[1]) if values.get(1) else None
    if kind == "resource.Quantity":
        return values.get(1, b"").decode()
    if kind == "intstr.IntOrString":
        return values.get(3, b"").decode() if values.get(1) else _signed(values.get(2, 0))
    if not values:
        return None
    moment = _EPOCH + timedelta(seconds=_signed(values.get(1, 0)), microseconds=values.get(2, 0) // 1000)
    return micro_timestamp(moment) if kind == "meta.v1.MicroTime" else timestamp(moment)

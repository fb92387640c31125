"""Validation of plain data against a section: every problem with its position and, if a similar name exists, a suggestion."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin

from msgspec import Meta, Struct

from multisched.config.document import ConfigError, Document, Path
from multisched.config.sections import After, Before, Section, fields_of

S = TypeVar("S", bound=Section)

LABELS: Final = "matchLabels"
"""The key of a selector's labels."""

_KINDS: Final = {str: "string", bool: "boolean", int: "integer", float: "number"}
_PLAIN: Final = {
    bool: re.compile("true|false"),
    int: re.compile(r"-?(0|[1-9]\d*)", re.ASCII),
    float: re.compile(r"-?(0|[1-9]\d*)(\.\d+)?", re.ASCII),
}
"""Texts that are values of the type in YAML if they have no quotes."""
_SHOWN_CHARS_MAX: Final = 80


def validated(document: Document, section: type[S]) -> S | None:
    """Returns the document as a `section`; None if it has problems, which are added to it."""
    return validated_part(document, (), document.data, section)


def validated_part(document: Document, at: Path, data: Any, section: type[S]) -> S | None:
    """Returns plain data from position `at` as a `section`; None if it has problems, which are added at that position."""
    before = len(document.problems)
    value = _Reader(document).section(section, data, at)
    return value if len(document.problems) == before else None


def from_plain(data: Any, section: type[S]) -> S:
    """Returns plain data that is in no file as a `section`. Raises ConfigError."""
    document = Document(section.__name__, data)
    value = validated(document, section)
    if value is None:
        raise ConfigError(document.problems)
    return value


def nearest(word: str, known: Iterable[str]) -> str:
    """Returns the most similar known word; empty if none is similar."""
    lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), lower, n=1)
    return lower[near[0]] if near else ""


class SettingType(Struct, frozen=True):
    """The annotation of a setting, taken apart."""

    kind: Any
    """The type itself, without None and without annotations."""
    is_optional: bool
    """Whether null is accepted."""
    notes: tuple[Any, ...]
    """`Before`, `After` and `Meta`."""


@cache
def setting_type(annotation: Any) -> SettingType:
    """Returns the parts of an annotation. A union of several types other than None is not supported."""
    parts, is_optional, notes = [annotation], False, list[Any]()
    while get_origin(parts[0]) in (Annotated, Union, UnionType):
        if get_origin(parts[0]) is Annotated:
            notes += parts[0].__metadata__
            parts = [parts[0].__origin__]
        else:
            is_optional = True
            parts = [part for part in get_args(parts[0]) if part is not NoneType]
    assert len(parts) == 1, annotation
    return SettingType(parts[0], is_optional, tuple(notes))


def sections_in(annotation: Any) -> Iterator[type[Section]]:
    """Yields the sections in an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for part in get_args(annotation):
        yield from sections_in(part)


class _Reader:
    """Converts plain data, and adds every problem to the document. A value that is returned after a problem is not used."""

    def __init__(self, document: Document) -> None:
        self._document = document

    def section(self, section: type[S], data: Any, path: Path) -> S | None:
        fields = {one.encode_name: one for one in fields_of(section)}
        if not isinstance(data, Mapping):
            is_name = isinstance(data, str) and "name" in fields
            if is_name:
                self._refuse(path, f"must have keys; write {{name: {data}}}")
            else:
                self._refuse_type(path, "an object", data)
            return None
        before, values = len(self._document.problems), {}
        for name, one in fields.items():
            if name in data:
                values[one.name] = self.value(one.type, data[name], (*path, name))
            elif one.required:
                self._document.add((*path, name), "is missing", of_key=True)
        for name in data:
            if name not in fields:
                near = nearest(name, fields)
                hint = f"; a label belongs under {LABELS}: {{{name}: …}}" if LABELS in fields and not near else ""
                self._document.add((*path, name), f"unknown key{hint}", suggestion=near, of_key=True)
        if len(self._document.problems) > before:
            return None
        try:
            return section(**values)
        except ValueError as error:
            self._refuse(path, str(error))
            return None

    def value(self, annotation: Any, data: Any, path: Path) -> Any:
        """Returns the value of a setting of this type."""
        wanted, before = setting_type(annotation), len(self._document.problems)
        if data is None and wanted.is_optional:
            return None
        try:
            for note in wanted.notes:
                data = note.read(data) if isinstance(note, Before) else data
            value = self._converted(wanted.kind, data, path)
            for note in wanted.notes:
                if len(self._document.problems) > before:
                    return None
                if isinstance(note, After):
                    value = note.read(value)
                elif isinstance(note, Meta):
                    self._check_limits(note, value, path)
        except ValueError as error:
            return self._refuse(path, str(error))
        return value

    def _converted(self, kind: Any, data: Any, path: Path) -> Any:
        origin = get_origin(kind) or kind
        if origin is Literal:
            return self._choice({one: one for one in get_args(kind)}, data, path)
        if origin is tuple:
            if not isinstance(data, list | tuple):
                return self._refuse_type(path, "a list", data)
            item = get_args(kind)[0]
            return tuple(self.value(item, one, (*path, index)) for index, one in enumerate(data))
        if origin is Mapping:
            if not isinstance(data, Mapping):
                return self._refuse_type(path, "an object", data)
            key, item = get_args(kind)
            return {self._key(key, name, (*path, name)): self.value(item, data[name], (*path, name)) for name in data}
        if origin in _KINDS:
            return self._scalar(origin, data, path)
        if issubclass(origin, Section):
            return self.section(origin, data, path)
        if issubclass(origin, Enum):
            return self._choice({one.value: one for one in origin}, data, path)
        return data

    def _key(self, annotation: Any, name: Any, path: Path) -> Any:
        """Returns the key of an object, at position `path` with the key. Its problems say that the key is meant."""
        found = Document(self._document.file)
        value = _Reader(found).value(annotation, name, ())
        for problem in found.problems:
            self._document.add(path, f"the key {problem.message}", suggestion=problem.suggestion, of_key=True)
        return value

    def _choice(self, choices: Mapping[str, Any], data: Any, path: Path) -> Any:
        if isinstance(data, str) and data in choices:
            return choices[data]
        names = [name or '""' for name in choices]
        listed = f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else names[0]
        near = nearest(str(data), names) if len(names) > 1 else ""
        return self._refuse(path, f"{_shown(data)} is not known here; write {listed}", suggestion=near)

    def _scalar(self, kind: type, data: Any, path: Path) -> Any:
        if kind is float and isinstance(data, int) and not isinstance(data, bool) and abs(data) <= 2**53:
            data = float(data)
        if type(data) is kind and not (isinstance(data, float) and not math.isfinite(data)):
            return data
        if kind is str and isinstance(data, Mapping) and "name" in data:
            return self._refuse(path, f"must be a name without keys; write {data['name']}")
        return self._refuse_type(path, f"a valid {_KINDS[kind]}", data, fix=_fix(kind, data))

    def _check_limits(self, limits: Meta, value: Any, path: Path) -> None:
        low, high, is_text = limits.min_length, limits.max_length, isinstance(value, str)
        size = len(value) if isinstance(value, str | tuple) else 0
        if limits.ge is not None and value < limits.ge:
            self._refuse(path, f"must be greater than or equal to {limits.ge}, got {value}")
        elif limits.gt is not None and value <= limits.gt:
            self._refuse(path, f"must be greater than {limits.gt}, got {value}")
        elif limits.le is not None and value > limits.le:
            self._refuse(path, f"must be less than or equal to {limits.le}, got {value}")
        elif low is not None and size < low:
            self._refuse(
                path,
                f"is too short; its length must be at least {low}, got {size}" if is_text else f"needs at least {low}",
            )
        elif high is not None and size > high:
            self._refuse(
                path,
                f"is too long; its length must be at most {high}, got {size}"
                if is_text
                else f"has too many; at most {high}, got {size}",
            )
        elif limits.pattern is not None and re.fullmatch(limits.pattern, value) is None:
            self._refuse(path, f"{value!r} is not a name of this kind; it must match {limits.pattern}")

    def _refuse_type(self, path: Path, wanted: str, data: Any, *, fix: str = "") -> None:
        if data is None and path:
            fix = f"; remove the {'item' if isinstance(path[-1], int) else 'key'}, or write a value"
        self._refuse(path, f"must be {wanted}, got {_shown(data)}{fix}")

    def _refuse(self, path: Path, message: str, *, suggestion: str = "") -> None:
        self._document.add(path, message, suggestion=suggestion)


def _fix(kind: type, data: Any) -> str:
    """Returns how to write the scalar as a value of the type; empty if that is unknown."""
    if kind is str:
        return "; write it in quotes" if isinstance(data, bool | int | float) else ""
    return "; remove the quotes" if isinstance(data, str) and _PLAIN[kind].fullmatch(data) else ""


def _shown(data: Any) -> str:
    """Returns a value as a problem shows it: a scalar as in YAML, a long text cut."""
    if isinstance(data, Mapping):
        return "an object"
    if isinstance(data, list | tuple):
        return "a list"
    if data is None or isinstance(data, bool):
        return {None: "null", True: "true", False: "false"}[data]
    text = repr(data)
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}…"

"""Parsing of YAML text to plain data with the position of every key and value, and the format of problems.

A file has one document of at most 1 MiB and bounded depth, without aliases, anchors, tags or duplicate keys, so the cost of
an untrusted file is bounded by its size. Each problem names file, line, column and path. Called by `config`. Files with
several documents, such as manifests, have other limits.
"""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec
import yaml

DOCUMENT_BYTES_MAX: Final = 1024 * 1024
DEPTH_MAX: Final = 32

Path = tuple[str | int, ...]
"""Keys and list indexes from the top of the document."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Position(msgspec.Struct, frozen=True):
    """A position in a file; line and column count from 1."""

    line: int = 1
    column: int = 1


class Problem(msgspec.Struct, frozen=True, order=True):
    """One problem with its position and a suggestion."""

    file: str
    line: int
    column: int
    path: str
    message: str
    suggestion: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}"
        where = f" {self.path}:" if self.path else ""
        hint = f" (did you mean {self.suggestion}?)" if self.suggestion else ""
        return f"{place}:{where} {self.message}{hint}"


class ConfigError(Exception):
    """The configuration cannot be used; `problems` has all problems, in file order."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = tuple(sorted(problems))
        super().__init__("\n".join(str(p) for p in self.problems))


class Document(msgspec.Struct):
    """Plain data (dict, list, str, int, float, bool, None) with the position of each part."""

    file: str
    data: Any = None
    values: dict[Path, Position] = msgspec.field(default_factory=dict)
    keys: dict[Path, Position] = msgspec.field(default_factory=dict)
    problems: list[Problem] = msgspec.field(default_factory=list)

    def position(self, path: Path, *, of_key: bool = False) -> Position:
        """Returns the position of the value (or its key) at `path`; if it is missing, that of its nearest existing parent."""
        if of_key and path in self.keys:
            return self.keys[path]
        while path and path not in self.values:
            path = path[:-1]
        return self.values.get(path, Position())

    def add(self, path: Path, message: str, *, suggestion: str = "", of_key: bool = False) -> None:
        """Adds a problem at `path`."""
        at = self.position(path, of_key=of_key)
        self.problems.append(Problem(self.file, at.line, at.column, render_path(path), message, suggestion))


def render_path(path: Path) -> str:
    """Returns the path as text, such as `domains[0].profile.plugins`."""
    text = ""
    for part in path:
        name = part if part != "" else '""'  # an empty key would not be seen
        text += f"[{name}]" if isinstance(name, int) else f".{name}" if text else name
    return text


def part_at(data: Any, path: Path) -> Any:
    """Returns the part of plain data at a path; None if the path does not exist."""
    for part in path:
        if isinstance(part, int):
            data = data[part] if isinstance(data, list) and part < len(data) else None
        else:
            data = data.get(part) if isinstance(data, dict) else None
    return data


def texts_at(data: Any, path: Path) -> list[tuple[Path, str]]:
    """Returns [(path, text)] if the value at the path is a text; otherwise an empty list."""
    found = part_at(data, path)
    return [(path, found)] if isinstance(found, str) else []


def items_at(data: Any, path: Path) -> list[Path]:
    """Returns the paths of a list's items; empty if the value is not a list."""
    found = part_at(data, path)
    return [(*path, index) for index in range(len(found))] if isinstance(found, list) else []


class Limits(msgspec.Struct, frozen=True):
    """Limits on a file."""

    bytes_max: int = DOCUMENT_BYTES_MAX
    depth_max: int = DEPTH_MAX
    documents_max: int = 1


ONE_DOCUMENT: Final = Limits()


def read_document(text: str, file: str, *, if_empty: str = "") -> Document:
    """Reads one YAML (or JSON) document. Raises ConfigError. `if_empty`: advice added to the error for an empty file."""
    documents = read_documents(text, file, ONE_DOCUMENT)
    if not documents:
        raise _refusal(file, Position(), f"the file is empty{if_empty}")
    return documents[0]


def read_documents(text: str, file: str, limits: Limits) -> list[Document]:
    """Reads every YAML (or JSON) document. Raises ConfigError for invalid text, or if a limit is exceeded."""
    size_bytes = len(text.encode("utf-8", "surrogatepass"))
    if size_bytes > limits.bytes_max:
        raise _refusal(file, Position(), f"the file has {size_bytes} bytes; at most {limits.bytes_max} are read")
    try:
        _refuse_hostile_events(text, file, limits)
        nodes = list(yaml.compose_all(text, Loader=_Loader))
    except yaml.YAMLError as error:
        raise _refusal(file, _mark_of(error), _reason_of(error)) from error
    return [_document(file, node) for node in nodes if node is not None]


def _document(file: str, node: Any) -> Document:
    document = Document(file)
    document.data = _plain(document, _Loader(""), node, ())
    return document


def _refuse_hostile_events(text: str, file: str, limits: Limits) -> None:
    """Checks the flat stream of events before composing, which would recurse and expand aliases."""
    depth = documents = 0
    for event in yaml.parse(text, Loader=_Loader):
        at = _position(event)
        if isinstance(event, yaml.AliasEvent):
            raise _refusal(file, at, "aliases are refused; write the value out")
        if getattr(event, "anchor", None):
            raise _refusal(file, at, "anchors are refused; write the value out where it is used")
        if tag := getattr(event, "tag", None):
            raise _refusal(file, at, f"tags are refused; remove {tag}")
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > limits.documents_max == 1:
                raise _refusal(file, at, "a second document starts here; one file holds one configuration")
            if documents > limits.documents_max:
                raise _refusal(file, at, f"there are more than {limits.documents_max} documents")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > limits.depth_max:
            raise _refusal(file, at, f"nested deeper than {limits.depth_max} levels")


def _plain(document: Document, constructor: Any, node: Any, path: Path) -> Any:
    document.values[path] = _position(node)
    if isinstance(node, yaml.MappingNode):
        return _plain_mapping(document, constructor, node, path)
    if isinstance(node, yaml.SequenceNode):
        return [_plain(document, constructor, item, (*path, i)) for i, item in enumerate(node.value)]
    return _plain_scalar(constructor, node)


def _plain_mapping(document: Document, constructor: Any, node: Any, path: Path) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            at = _position(key_node)
            document.problems.append(
                Problem(document.file, at.line, at.column, render_path(path), "a key must be plain text")
            )
            continue
        key = str(key_node.value)
        child = (*path, key)
        if key in mapping:
            at = _position(key_node)
            first = document.keys[child].line
            message = f"duplicate key, first in line {first}; remove one"
            document.problems.append(Problem(document.file, at.line, at.column, render_path(child), message))
            continue
        document.keys[child] = _position(key_node)
        mapping[key] = _plain(document, constructor, value_node, child)
    return mapping


def _plain_scalar(constructor: Any, node: Any) -> str | int | float | bool | None:
    """Converts numbers, booleans and null as YAML does; everything else, including dates, stays text."""
    try:
        value = constructor.construct_object(node)
    except (yaml.YAMLError, ValueError):
        return str(node.value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return str(node.value)


def _position(node: Any) -> Position:
    return Position(node.start_mark.line + 1, node.start_mark.column + 1)


def _refusal(file: str, at: Position, message: str) -> ConfigError:
    return ConfigError([Problem(file, at.line, at.column, "", message)])


def _mark_of(error: yaml.YAMLError) -> Position:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    return Position(mark.line + 1, mark.column + 1) if mark is not None else Position()


def _reason_of(error: yaml.YAMLError) -> str:
    problem = getattr(error, "problem", None)
    return f"not YAML: {problem or str(error).splitlines()[0]}"

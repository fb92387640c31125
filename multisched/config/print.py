"""Output of `config default` and `config schema`, which are also the files `config/default.yaml` and `config/schema.json`.

Contains every setting of the schema. The first occurrence of a setting has its description (`sentences`) as a comment.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from enum import Enum
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from multisched.config.plugins import plugin_registry, resolve_profile
from multisched.config.schema import Configuration, DomainConfig, PluginEntry, Plugins
from multisched.config.sections import format_duration
from multisched.config.sentences import sentences_of
from multisched.config.structure import models_in
from multisched.framework.dependency import Isolation
from multisched.framework.registry import PluginUse, Registry

COMMENT_CHARS: Final = 118
_HEADER: Final = """\
# yaml-language-server: $schema=schema.json
# All settings with their defaults, as printed by `multisched config default`. Omit settings that you do not change:
# `{apiVersion: multisched.io/v1, kind: MultischedConfiguration}` is equivalent to this file.
# Settings without a default, and empty lists, are comments that begin with # and no space.
"""


def schema_text() -> str:
    """Returns the JSON Schema (draft 2020-12) of the configuration file."""
    schema = Configuration.model_json_schema(by_alias=True)
    for model in _models_below(Configuration):
        part = schema if model is Configuration else schema["$defs"][model.__name__]
        _explain(part["properties"], model)
    _tidy(schema)
    document = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
    return json.dumps(document, indent=2) + "\n"


def _models_below(model: type[BaseModel]) -> list[type[BaseModel]]:
    """Returns the model and all models that its fields contain, without duplicates."""
    found = [model]
    for one in found:
        parts = (part for field in one.model_fields.values() for part in models_in(field.annotation))
        found += [part for part in dict.fromkeys(parts) if part not in found]
    return found


def _explain(properties: dict[str, Any], model: type[BaseModel]) -> None:
    """Adds a description to each property, with keywords in alphabetical order."""
    sentences = sentences_of(model)
    for name, field in model.model_fields.items():
        if name in sentences:
            described = {"description": sentences[name], **properties[str(field.alias)]}
            properties[str(field.alias)] = dict(sorted(described.items()))


def _tidy(schema: Any) -> None:
    """Drops generated titles, writes durations in their text form, and drops defaults that follow from nested ones."""
    if isinstance(schema, list):
        for item in schema:
            _tidy(item)
        return
    if not isinstance(schema, dict):
        return
    if isinstance(schema.get("title"), str):
        del schema["title"]
    default = schema.get("default")
    if isinstance(default, float):
        schema["default"] = format_duration(default)
    elif isinstance(default, dict) or (default is None and "default" in schema):
        del schema["default"]
    for item in schema.values():
        _tidy(item)


def configuration_text(configuration: Configuration) -> str:
    """Returns a complete configuration as commented YAML; profiles have every plugin to which they resolve.

    A setting without a default is a comment, `#name: KIND`, at the first occurrence of its section.
    """
    printer = _Printer()
    printer.section(with_all_plugins(configuration, plugin_registry()), "")
    return "\n".join([_HEADER.rstrip(), *printer.lines]) + "\n"


def with_all_plugins(configuration: Configuration, registry: Registry) -> Configuration:
    """Returns the configuration with every plugin to which its profiles resolve, with weights and arguments."""
    domains = tuple(_with_all_plugins(domain, registry) for domain in configuration.domains)
    return configuration.model_copy(update={"domains": domains})


def _with_all_plugins(domain: DomainConfig, registry: Registry) -> DomainConfig:
    uses = resolve_profile(domain, registry).plugins
    plugins = Plugins.model_construct(disabled=(), enabled=tuple(_entry(use) for use in uses))
    return domain.model_copy(update={"profile": domain.profile.model_copy(update={"plugins": plugins})})


def _entry(use: PluginUse) -> PluginEntry:
    """Returns an entry with only the settings that differ from a plain `name`."""
    is_isolated = use.isolation is not Isolation.INLINE
    return PluginEntry.model_construct(
        name=use.name,
        weight=use.weight,
        args=dict(use.args) or None,
        isolation=use.isolation if is_isolated else None,
        timeout_s=use.timeout_s if is_isolated else None,
    )


class _Printer:
    """Writes the lines of one document. Each setting is described at its first occurrence."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._explained: set[tuple[type[BaseModel], str]] = set()
        self._shown: set[type[BaseModel]] = set()
        """Sections whose settings have all been written."""

    def section(self, section: BaseModel, indent: str) -> None:
        """Writes settings with their values; at the first occurrence, also those without a value, as comments."""
        model = type(section)
        is_new = model not in self._shown
        self._shown.add(model)
        for name, field in model.model_fields.items():
            value = getattr(section, name)
            if value is None and not is_new:
                continue
            self._explain(model, name, indent)
            if value is None:
                self._absent(name, field, indent)
            else:
                self._value(name, field, value, indent)

    def _value(self, name: str, field: FieldInfo, value: Any, indent: str) -> None:
        head = f"{indent}{field.alias}:"
        if isinstance(value, BaseModel):
            if _has_values(value):
                self.lines.append(head)
                self.section(value, indent + "  ")
            else:
                self.lines.append(f"{head} {{}}")
                self._absent(name, field, indent, only_new=True)
        elif isinstance(value, tuple) and any(isinstance(item, BaseModel) for item in value):
            self.lines.append(head)
            self._items(value, indent + "  ")
        else:
            self.lines.append(f"{head} {_setting(name, value)}")
            self._absent(name, field, indent, only_new=True)

    def _items(self, items: tuple[BaseModel, ...], indent: str) -> None:
        for item in items:
            if isinstance(item, PluginEntry):
                if PluginEntry not in self._shown:
                    self._skeleton(PluginEntry, indent, is_item=True)
                self.lines.append(f"{indent}- {_inline(item)}")
                continue
            begin = len(self.lines)
            self.section(item, indent + "  ")
            first = next(n for n in range(begin, len(self.lines)) if not self.lines[n].lstrip().startswith("#"))
            self.lines[first] = f"{indent}- {self.lines[first].lstrip()}"

    # -- settings without value ------------------------------------------------------------------------------------

    def _absent(self, name: str, field: FieldInfo, indent: str, *, only_new: bool = False) -> None:
        """Writes the setting as a comment, with its subsection. `only_new`: only if the subsection was not written before."""
        below = next((model for model in models_in(field.annotation) if model not in self._shown), None)
        if below is not None:
            self.lines.append(f"{indent}#{field.alias}:")
            self._skeleton(below, indent + "  ", is_item=_is_list(field.annotation))
        elif not only_new:
            self.lines.append(f"{indent}#{field.alias}: {_default(name, field)}")

    def _skeleton(self, model: type[BaseModel], indent: str, *, is_item: bool = False) -> None:
        """Writes every setting of a section as comments."""
        self._shown.add(model)
        begin, inner = len(self.lines), indent + "  " if is_item else indent
        for name, field in model.model_fields.items():
            self._explain(model, name, inner)
            self._absent(name, field, inner)
        if is_item:
            first = next(n for n in range(begin, len(self.lines)) if _is_setting(self.lines[n]))
            self.lines[first] = f"{indent}#- {self.lines[first].lstrip().removeprefix('#')}"

    def _explain(self, model: type[BaseModel], name: str, indent: str) -> None:
        sentence = sentences_of(model).get(name)
        if sentence and (model, name) not in self._explained:
            self._explained.add((model, name))
            self.lines.extend(_comment(sentence, indent))


def _is_setting(line: str) -> bool:
    """Reports whether the line is a setting: descriptions have a space after the #."""
    return not line.lstrip().startswith("# ")


def _has_values(section: BaseModel) -> bool:
    return any(getattr(section, name) is not None for name in type(section).model_fields)


def _default(name: str, field: FieldInfo) -> str:
    """Returns the setting's default; if it has none, its kind."""
    value = None if field.is_required() else field.get_default(call_default_factory=True)
    return _kind(name, field.annotation) if value is None else _setting(name, value)


def _setting(name: str, value: Any) -> str:
    return format_duration(value) if name.endswith("_s") else scalar_text(value)


def _kind(name: str, annotation: Any) -> str:
    """Returns the kind of a setting: NUMBER, TEXT and so on, or its possible values."""
    kinds = [part for part in _parts(annotation) if part is not type(None)]
    kind = kinds[0]
    if name.endswith("_s"):
        return "DURATION"
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "|".join(str(one.value) for one in kind)
    origin = get_origin(kind) or kind
    return {bool: "true|false", int: "NUMBER", str: "TEXT", tuple: "[]"}.get(origin, "{}")


def _parts(annotation: Any) -> Iterator[Any]:
    """Yields the alternatives of a union, without Annotated metadata."""
    if get_origin(annotation) is Annotated:
        yield from _parts(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, UnionType):
        for part in get_args(annotation):
            yield from _parts(part)
    else:
        yield annotation


def _is_list(annotation: Any) -> bool:
    return any(get_origin(part) is tuple for part in _parts(annotation))


def _inline(entry: PluginEntry) -> str:
    parts = [f"name: {scalar_text(entry.name)}", f"weight: {entry.weight}"]
    if entry.args is not None:
        parts.append(f"args: {scalar_text(dict(entry.args))}")
    if entry.isolation is not None and entry.timeout_s is not None:
        parts += [f"isolation: {entry.isolation.value}", f"timeout: {format_duration(entry.timeout_s)}"]
    return "{" + ", ".join(parts) + "}"


def scalar_text(value: Any) -> str:
    """Returns a value in YAML flow style (as JSON, but without quotes around plain text)."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, str):
        is_plain = value.replace("-", "").replace("/", "").isalpha() or value.startswith("multisched.io/")
        is_word = value.lower() in ("true", "false", "yes", "no", "on", "off", "null", "y", "n")
        return value if is_plain and not is_word and value[0].isalpha() else json.dumps(value)
    if isinstance(value, tuple | list):
        return "[" + ", ".join(scalar_text(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{scalar_text(key)}: {scalar_text(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)


def _comment(text: str, indent: str) -> Iterable[str]:
    line = f"{indent}#"
    for word in text.split():
        if len(line) + 1 + len(word) > COMMENT_CHARS:
            yield line
            line = f"{indent}#"
        line += f" {word}"
    yield line

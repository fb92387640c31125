"""Output of `config default` and `config schema`, which are also the files `config/default.yaml` and `config/schema.json`.

Contains every setting of the schema. The first occurrence of a setting has its description (`sentences`) as a comment.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable
from enum import Enum
from typing import Any, Final, Literal, get_args, get_origin

import msgspec
from msgspec.structs import FieldInfo, replace

from multisched.config.plugins import enabled_plugins, plugin_registry
from multisched.config.schema import Configuration, DomainConfig, PluginEntry, Plugins
from multisched.config.sections import DURATION_PATTERN, SHORT_FORM, Section, fields_of, format_duration
from multisched.config.sentences import sentences_of
from multisched.config.structure import sections_in, setting_type
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
    _, parts = msgspec.json.schema_components([Configuration])
    for section in _sections_below(Configuration):
        _describe(parts[section.__name__]["properties"], section)
    parts = _tidied(parts)
    whole = parts.pop(Configuration.__name__)
    document = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$defs": parts, **whole}
    return json.dumps(document, indent=2) + "\n"


def _sections_below(section: type[Section]) -> list[type[Section]]:
    """Returns the section and all sections that its settings contain, without duplicates."""
    found = [section]
    for one in found:
        parts = (part for field in fields_of(one) for part in sections_in(field.type))
        found += [part for part in dict.fromkeys(parts) if part not in found]
    return found


def _describe(properties: dict[str, Any], section: type[Section]) -> None:
    """Adds a description to each property."""
    sentences = sentences_of(section)
    for field in fields_of(section):
        if field.name in sentences:
            properties[field.encode_name]["description"] = sentences[field.name]


def _tidied(schema: Any) -> Any:
    """Returns the schema with keywords in alphabetical order, without titles and without defaults that follow from nested ones.

    Durations are written as in a file.
    """
    if isinstance(schema, list):
        return [_tidied(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _tidied(item) for name, item in sorted(schema.items())}
    if "properties" in schema:
        found["properties"] = {name: _tidied(item) for name, item in schema["properties"].items()}
    if isinstance(found.get("title"), str):
        del found["title"]
    if isinstance(found.get("description"), str):
        found["description"] = inspect.cleandoc(found["description"])
    if found.get("required") == []:
        del found["required"]
    if len(found.get("enum", ())) == 1:
        found["const"] = found.pop("enum")[0]
    if found.get("pattern") == DURATION_PATTERN:
        found["type"] = "string"
    if SHORT_FORM in found:
        found["anyOf"] = [found.pop(SHORT_FORM), {"$ref": found.pop("$ref")}]
    default = found.get("default")
    if isinstance(default, float):
        found["default"] = format_duration(default)
    elif isinstance(default, dict) or (default is None and "default" in found):
        del found["default"]
    return found


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
    return replace(configuration, domains=domains)


def _with_all_plugins(domain: DomainConfig, registry: Registry) -> DomainConfig:
    uses = enabled_plugins(domain, registry)
    plugins = Plugins(enabled=tuple(_entry(use) for use in uses.values()))
    return replace(domain, profile=replace(domain.profile, plugins=plugins))


def _entry(use: PluginUse) -> PluginEntry:
    """Returns an entry with only the settings that differ from a plain `name`."""
    is_isolated = use.isolation is not Isolation.INLINE
    return PluginEntry(
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
        self._explained: set[tuple[type[Section], str]] = set()
        self._shown: set[type[Section]] = set()
        """Sections whose settings have all been written."""

    def section(self, section: Section, indent: str) -> None:
        """Writes settings with their values; at the first occurrence, also those without a value, as comments."""
        model = type(section)
        is_new = model not in self._shown
        self._shown.add(model)
        for field in fields_of(model):
            value = getattr(section, field.name)
            if value is None and not is_new:
                continue
            self._explain(model, field.name, indent)
            if value is None:
                self._absent(field, indent)
            else:
                self._value(field, value, indent)

    def _value(self, field: FieldInfo, value: Any, indent: str) -> None:
        head = f"{indent}{field.encode_name}:"
        if isinstance(value, Section):
            if _has_values(value):
                self.lines.append(head)
                self.section(value, indent + "  ")
            else:
                self.lines.append(f"{head} {{}}")
                self._absent(field, indent, only_new=True)
        elif isinstance(value, tuple) and any(isinstance(item, Section) for item in value):
            self.lines.append(head)
            self._items(value, indent + "  ")
        else:
            self.lines.append(f"{head} {_setting(field.name, value)}")
            self._absent(field, indent, only_new=True)

    def _items(self, items: tuple[Section, ...], indent: str) -> None:
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

    def _absent(self, field: FieldInfo, indent: str, *, only_new: bool = False) -> None:
        """Writes the setting as a comment, with its subsection. `only_new`: only if the subsection was not written before."""
        below = next((model for model in sections_in(field.type) if model not in self._shown), None)
        if below is not None:
            self.lines.append(f"{indent}#{field.encode_name}:")
            self._skeleton(below, indent + "  ", is_item=get_origin(setting_type(field.type).kind) is tuple)
        elif not only_new:
            self.lines.append(f"{indent}#{field.encode_name}: {_default(field)}")

    def _skeleton(self, model: type[Section], indent: str, *, is_item: bool = False) -> None:
        """Writes every setting of a section as comments."""
        self._shown.add(model)
        begin, inner = len(self.lines), indent + "  " if is_item else indent
        for field in fields_of(model):
            self._explain(model, field.name, inner)
            self._absent(field, inner)
        if is_item:
            first = next(n for n in range(begin, len(self.lines)) if _is_setting(self.lines[n]))
            self.lines[first] = f"{indent}#- {self.lines[first].lstrip().removeprefix('#')}"

    def _explain(self, model: type[Section], name: str, indent: str) -> None:
        sentence = sentences_of(model).get(name)
        if sentence and (model, name) not in self._explained:
            self._explained.add((model, name))
            self.lines.extend(_comment(sentence, indent))


def _is_setting(line: str) -> bool:
    """Reports whether the line is a setting: descriptions have a space after the #."""
    return not line.lstrip().startswith("# ")


def _has_values(section: Section) -> bool:
    return any(getattr(section, field.name) is not None for field in fields_of(type(section)))


def _default(field: FieldInfo) -> str:
    """Returns the setting's default; if it has none, its kind."""
    value = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    is_kind = value is None or value is msgspec.NODEFAULT
    return _kind(field.name, setting_type(field.type).kind) if is_kind else _setting(field.name, value)


def _setting(name: str, value: Any) -> str:
    return format_duration(value) if name.endswith("_s") else scalar_text(value)


def _kind(name: str, kind: Any) -> str:
    """Returns the kind of a setting: NUMBER, TEXT and so on, or its possible values."""
    if name.endswith("_s"):
        return "DURATION"
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "|".join(str(one.value) for one in kind)
    origin = get_origin(kind) or kind
    return {bool: "true|false", int: "NUMBER", str: "TEXT", tuple: "[]"}.get(origin, "{}")


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

"""Prints what `config default` and `config schema` show: `config/default.yaml` and `config/schema.json` are their output.

Every setting carries the sentence of its section (`sentences`) as its comment, the first time it appears.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import Enum
from typing import Any, Final

from pydantic import BaseModel

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
# All settings with their defaults, as `multisched config default` prints them. Leave out what you do not change:
# `{apiVersion: multisched.io/v1, kind: MultischedConfiguration}` means exactly this file.
"""


def schema_text() -> str:
    """The JSON Schema (draft 2020-12) of the configuration file."""
    schema = Configuration.model_json_schema(by_alias=True)
    for model in _models_below(Configuration):
        part = schema if model is Configuration else schema["$defs"][model.__name__]
        _explain(part["properties"], model)
    _tidy(schema)
    document = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
    return json.dumps(document, indent=2) + "\n"


def _models_below(model: type[BaseModel]) -> list[type[BaseModel]]:
    """The model, and all that its fields consist of, each once."""
    found = [model]
    for one in found:
        parts = (part for field in one.model_fields.values() for part in models_in(field.annotation))
        found += [part for part in dict.fromkeys(parts) if part not in found]
    return found


def _explain(properties: dict[str, Any], model: type[BaseModel]) -> None:
    """Says what each property is, in the alphabetical order of all keywords."""
    sentences = sentences_of(model)
    for name, field in model.model_fields.items():
        if name in sentences:
            described = {"description": sentences[name], **properties[str(field.alias)]}
            properties[str(field.alias)] = dict(sorted(described.items()))


def _tidy(schema: Any) -> None:
    """Drops generated titles and shows durations as they are written; complex defaults follow from their parts."""
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
    """A complete configuration as commented YAML; profiles with every plugin they resolve to."""
    lines: list[str] = [_HEADER.rstrip()]
    _print_model(lines, with_all_plugins(configuration, plugin_registry()), "", set())
    return "\n".join(lines) + "\n"


def with_all_plugins(configuration: Configuration, registry: Registry) -> Configuration:
    """The same with every plugin that its profiles resolve to, and its weight and arguments, written out."""
    domains = tuple(_with_all_plugins(domain, registry) for domain in configuration.domains)
    return configuration.model_copy(update={"domains": domains})


def _with_all_plugins(domain: DomainConfig, registry: Registry) -> DomainConfig:
    uses = resolve_profile(domain, registry).plugins
    plugins = Plugins.model_construct(disabled=(), enabled=tuple(_entry(use) for use in uses))
    return domain.model_copy(update={"profile": domain.profile.model_copy(update={"plugins": plugins})})


def _entry(use: PluginUse) -> PluginEntry:
    """Only what differs from a plain `name`."""
    is_isolated = use.isolation is not Isolation.INLINE
    return PluginEntry.model_construct(
        name=use.name,
        weight=use.weight,
        args=dict(use.args) or None,
        isolation=use.isolation if is_isolated else None,
        timeout_s=use.timeout_s if is_isolated else None,
    )


def _print_model(lines: list[str], model: BaseModel, indent: str, explained: set[str]) -> None:
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if value is None:
            continue
        topic = f"{type(model).__name__}.{name}"
        sentence = sentences_of(type(model)).get(name)
        if sentence and topic not in explained:
            explained.add(topic)
            lines.extend(_comment(sentence, indent))
        _print_value(lines, f"{indent}{field.alias}:", value, indent, explained, is_duration=name.endswith("_s"))


def _print_value(
    lines: list[str], head: str, value: Any, indent: str, explained: set[str], *, is_duration: bool = False
) -> None:
    if isinstance(value, PluginEntry):
        lines.append(f"{head} {_inline(value)}")
    elif isinstance(value, BaseModel):
        inner: list[str] = []
        _print_model(inner, value, indent + "  ", explained)
        lines.extend([head, *inner] if inner else [f"{head} {{}}"])
    elif isinstance(value, tuple) and any(isinstance(item, BaseModel) for item in value):
        lines.append(head)
        for item in value:
            _print_item(lines, item, indent + "  ", explained)
    else:
        lines.append(f"{head} {format_duration(value) if is_duration else scalar_text(value)}")


def _print_item(lines: list[str], item: BaseModel, indent: str, explained: set[str]) -> None:
    if isinstance(item, PluginEntry):
        lines.append(f"{indent}- {_inline(item)}")
        return
    inner: list[str] = []
    _print_model(inner, item, indent + "  ", explained)
    first = next(number for number, line in enumerate(inner) if not line.lstrip().startswith("#"))
    inner[first] = f"{indent}- {inner[first].lstrip()}"
    lines.extend(inner)


def _inline(entry: PluginEntry) -> str:
    parts = [f"name: {scalar_text(entry.name)}", f"weight: {entry.weight}"]
    if entry.args is not None:
        parts.append(f"args: {scalar_text(dict(entry.args))}")
    if entry.isolation is not None and entry.timeout_s is not None:
        parts += [f"isolation: {entry.isolation.value}", f"timeout: {format_duration(entry.timeout_s)}"]
    return "{" + ", ".join(parts) + "}"


def scalar_text(value: Any) -> str:
    """Flow style: JSON is YAML, and quotes are left away where a text is plainly one."""
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

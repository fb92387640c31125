"""Reads YAML written by users, as plain data. Owns nothing. Every text is either read or refused with NotYamlError."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import yaml

DEPTH_MAX: Final = 100
"""Levels of nesting: Kubernetes objects have about twenty."""


_Safe: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TIMESTAMP: Final = "tag:yaml.org,2002:timestamp"


class _Loader(_Safe):  # type: ignore[misc]
    """Keeps timestamps as text, since JSON has no timestamps."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the class attribute PyYAML reads
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


class NotYamlError(ValueError):
    """The text is not YAML; the message contains the line and the reason."""


def yaml_documents(text: str) -> list[Any]:
    """Returns every document that is not empty. Raises NotYamlError."""
    try:
        _refuse_depth(text)
        return [document for document in yaml.load_all(text, Loader=_Loader) if document is not None]
    except yaml.YAMLError as error:
        raise NotYamlError(_reason_of(error)) from error
    except NotYamlError:
        raise
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError) as error:
        # Raised by the library itself if a value does not match its tag: `!!int x`, `!!timestamp x`.
        raise NotYamlError(f"a value does not match its type: {error}") from error


def _refuse_depth(text: str) -> None:
    """Checks the flat stream of events first: composing recurses, and an alias within its own anchor would not end."""
    depth = 0
    open_anchors: list[str | None] = []
    events: Iterator[Any] = yaml.parse(text, Loader=_Safe)
    for event in events:
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            open_anchors.append(event.anchor)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
            open_anchors.pop()
        elif isinstance(event, yaml.AliasEvent) and event.anchor in open_anchors:
            raise NotYamlError(f"{_line(event)}: *{event.anchor} is used within its own anchor")
        if depth > DEPTH_MAX:
            raise NotYamlError(f"{_line(event)}: nested deeper than {DEPTH_MAX} levels")


def _line(event: Any) -> str:
    return f"line {event.start_mark.line + 1}"


def _reason_of(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"line {mark.line + 1}: {problem}" if mark is not None else str(problem)

"""Describes in a sentence why a kubeconfig cannot be used: the library's own errors name classes, not files.

Stateless. Reads the files once more, and only after loading failed. No secret is part of a sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from multisched.client.errors import STATUS_TEXT_CHARS_MAX
from multisched.client.kubeconfig_files import files_of, merged
from multisched.model.near_names import did_you_mean
from multisched.model.yaml_text import NotYamlError, yaml_documents

NAMES_SHOWN: Final = 8

Part = Mapping[str, Any]


def reason_of(path: Path, context: str | None, error: BaseException) -> str:
    """Returns why it cannot be used, and the fix. `path`: as for `kubeconfig_files.files_of`."""
    files = files_of(path)
    documents: list[Part] = []
    for file in files:
        whose = f"{file} " if len(files) > 1 else ""
        try:
            found = yaml_documents(file.read_text("utf-8"))
        except OSError as unreadable:
            return f"{whose}cannot be read: {unreadable.strerror}"
        except UnicodeDecodeError:
            return f"{whose}is not UTF-8 text"
        except NotYamlError as bad:
            return f"{whose}is not YAML: {bad}"
        if len(found) != 1 or not isinstance(found[0], Mapping):
            return f"{whose}is not a kubeconfig; write one mapping with clusters, contexts and users"
        documents.append(found[0])
    document = merged(documents)
    return next(_problems(document, context), "") or _of_plugin(document, context, error) or _words(error)


def _problems(document: Part, context: str | None) -> Iterator[str]:
    """Yields what the document lacks, in the order of loading."""
    name = context or document.get("current-context")
    if not name:
        yield f"has no current-context; name one with --context ({_shown(_named(document, 'contexts'))})"
        return
    contexts = _named(document, "contexts")
    if name not in contexts:
        yield f"has no context {name}; {did_you_mean(str(name), contexts, f'it has {_shown(contexts)}')}"
        return
    chosen = _part(contexts[name].get("context"))
    for kind in ("cluster", "user"):
        others = _named(document, f"{kind}s")
        if chosen.get(kind) not in others:
            yield f"context {name} names the {kind} {chosen.get(kind)}, which is not there; it has {_shown(others)}"
            return
    if not _part(_named(document, "clusters")[chosen["cluster"]].get("cluster")).get("server"):
        yield f"cluster {chosen['cluster']} has no server; write https://HOST:PORT"


def _of_plugin(document: Part, context: str | None, error: BaseException) -> str:
    """Describes an exec credential plugin that could not be run; empty for any other error."""
    chosen = _part(_named(document, "contexts")[context or document["current-context"]].get("context"))
    plugin = _part(_part(_named(document, "users")[chosen["user"]].get("user")).get("exec"))
    command = plugin.get("command")
    if not command:
        return "its exec plugin has no command" if plugin else ""
    hint = f"; {plugin['installHint']}" if isinstance(plugin.get("installHint"), str) else ""
    is_of_it = str(error).startswith("exec:") or (isinstance(error, OSError) and error.filename in (None, command))
    if not is_of_it:
        return ""
    if isinstance(error, FileNotFoundError):
        return f"its exec plugin {command} is not installed, or not on PATH{hint}"
    if isinstance(error, PermissionError):
        return f"its exec plugin {command} may not be executed; chmod +x it"
    return f"its exec plugin {command} failed: {str(error).removeprefix('exec: ')}"[:STATUS_TEXT_CHARS_MAX]


def _words(error: BaseException) -> str:
    """Describes another error: an OSError with its file, an error of the library by its own text."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename} cannot be read: {error.strerror}"
    text = str(error)[:STATUS_TEXT_CHARS_MAX]
    is_of_library = type(error).__name__ == "ConfigException"
    return text.replace("does not exists", "does not exist") if is_of_library else f"{type(error).__name__}: {text}"


def _named(document: Part, field: str) -> dict[Any, Part]:
    """Returns name -> entry of one of the three lists."""
    entries = document.get(field)
    return {one.get("name"): one for one in (entries if isinstance(entries, list) else ()) if isinstance(one, Mapping)}


def _part(value: Any) -> Part:
    return value if isinstance(value, Mapping) else {}


def _shown(names: Mapping[Any, Part]) -> str:
    shown = [str(name) for name in names][:NAMES_SHOWN]
    return ", ".join([*shown, *(["..."] if len(names) > NAMES_SHOWN else [])]) or "none"

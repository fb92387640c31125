"""The files of a kubeconfig: KUBECONFIG may name several, which are merged, as in kubectl.

If two files define a name, the first one counts; the same holds for the current context. A missing file is skipped.
kubernetes-asyncio merges them in the same way, except that it uses the last current context.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from multisched.model.yaml_text import yaml_documents

LISTS: Final = ("clusters", "contexts", "users")
HOME_KUBECONFIG: Final = "~/.kube/config"


def default_kubeconfig(environment: Mapping[str, str]) -> str:
    """Returns the value of KUBECONFIG, else the file in the user's home. An empty variable counts as unset, as for kubectl."""
    return environment.get("KUBECONFIG") or HOME_KUBECONFIG


def files_of(path: Path) -> tuple[Path, ...]:
    """Returns the existing files. `path`: one, or several joined by the separator of PATH."""
    named = (_expanded(Path(one)) for one in str(path).split(os.pathsep) if one)
    return tuple(file for file in named if not _is_missing(file))


def current_context(files: Sequence[Path]) -> str | None:
    """Returns the current context of the first file that has one. Raises OSError, UnicodeDecodeError, NotYamlError,
    some of which the library would ignore.
    """
    documents = [_document(file) for file in files]
    found = (one.get("current-context") for one in documents if isinstance(one, Mapping))
    return next((str(name) for name in found if name), None)


def merged(documents: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Merges the documents: the entries of all; of entries with the same name the first."""
    if len(documents) == 1:
        return documents[0]
    whole: dict[str, Any] = {}
    for document in documents:
        for field, value in document.items():
            if field in LISTS and isinstance(value, list):
                known = whole.setdefault(field, [])
                names = {one.get("name") for one in known if isinstance(one, Mapping)}
                known += [one for one in value if not isinstance(one, Mapping) or one.get("name") not in names]
            elif not whole.get(field):
                whole[field] = value
    return whole


def _expanded(file: Path) -> Path:
    """Replaces `~` by the user's home folder; returns the path unchanged if there is none."""
    try:
        return file.expanduser()
    except RuntimeError:
        return file


def _is_missing(file: Path) -> bool:
    """Returns whether the file does not exist. False if it cannot be examined: the code that reads it reports why."""
    try:
        file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def _document(file: Path) -> Any:
    return next(iter(yaml_documents(file.read_text("utf-8"))), None)

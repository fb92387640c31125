"""The files of a kubeconfig: KUBECONFIG may name several, which count as one, as for kubectl.

What is named in two of them counts as in the first, the current context likewise. A file that is not there is left out.
kubernetes-asyncio merges them in the same way but for the current context, of which it takes the last.
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
    """Returns what KUBECONFIG names, else the file in the user's home. An empty variable counts as unset, as for kubectl."""
    return environment.get("KUBECONFIG") or HOME_KUBECONFIG


def files_of(path: Path) -> tuple[Path, ...]:
    """Those that are there. `path`: one, or several with the separator of PATH between them."""
    named = (_expanded(Path(one)) for one in str(path).split(os.pathsep) if one)
    return tuple(file for file in named if not _is_missing(file))


def current_context(files: Sequence[Path]) -> str | None:
    """That of the first file that has one. Raises OSError, UnicodeDecodeError, NotYamlError: the library would pass over some."""
    documents = [_document(file) for file in files]
    found = (one.get("current-context") for one in documents if isinstance(one, Mapping))
    return next((str(name) for name in found if name), None)


def merged(documents: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """One document of several: entries of all, of those with one name the first."""
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
    """With the user's folder in place of `~`; as it stands where nobody has one."""
    try:
        return file.expanduser()
    except RuntimeError:
        return file


def _is_missing(file: Path) -> bool:
    """False for one that cannot be looked at: who reads it says why."""
    try:
        file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def _document(file: Path) -> Any:
    return next(iter(yaml_documents(file.read_text("utf-8"))), None)

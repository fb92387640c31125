"""`multisched quota convert`: converts quota objects of any supported API to an ElasticQuotaTree. Writes nothing if one has a problem."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from multisched.cli.convert import comment
from multisched.cli.manifests import Manifest, load
from multisched.cli.options import QueryError
from multisched.cli.quota_fields import field_of
from multisched.config.document import ConfigError, Problem
from multisched.model.objects import Requests
from multisched.model.quota_tree import read_amounts
from multisched.model.quotas.drafts import Loss, key_of
from multisched.model.quotas.reading import Problems
from multisched.model.quotas.translation import KNOWN, QuotaApi, api_of, checked, is_namespace, translate, tree_name
from multisched.observe.tables import as_document

TREE: Final = "the tree"


class QuotaFiles(msgspec.Struct, frozen=True):
    """Quota objects of one API, and the position of each."""

    files: tuple[Path, ...]
    api: QuotaApi
    documents: list[Mapping[str, Any]]
    manifests: Mapping[str, Manifest]
    """Key of an object -> the object in its file."""

    def location_of(self, key: str, path: str = "") -> str:
        """Returns FILE:LINE of an object, or of its field if `path` is given; empty for an object that is in no file."""
        one = self.manifests.get(key)
        return "" if one is None else one.location_of(field_of(one.data, path)) if path else one.location

    def named(self, key: str, path: str = "") -> str:
        """Returns the object's name with the position of a field."""
        location = self.location_of(key, path)
        return f"{location}: {key}" if location else key or TREE


class Conversion(msgspec.Struct, frozen=True):
    """Result of a conversion."""

    source: QuotaFiles
    document: Mapping[str, Any] | None
    """None if there are problems."""
    problems: Problems
    losses: tuple[Loss, ...]

    def problem_lines(self) -> Iterator[str]:
        for key, problems in self.problems.items():
            for one in problems:
                yield f"{self.source.named(key, one.path)}: {one}"

    def loss_lines(self) -> Iterator[str]:
        for one in self.losses:
            yield ": ".join(part for part in (self.source.named(one.key, one.path), one.path, one.text) if part)


def read(files: Sequence[Path]) -> QuotaFiles:
    """Reads the quota objects of one API.

    Raises QueryError, and ConfigError, which also reports objects that are not quotas and objects of different APIs.
    """
    manifests = load(files)
    problems = [
        _problem(one, f"{key_of(one.data)} is not a quota; give {KNOWN}") for one in manifests if not _is_known(one)
    ]
    of_api = [(one, api) for one in manifests if (api := api_of(one.data)) is not None]
    if problems or not of_api:
        first = manifests[0]
        raise ConfigError(problems or [_problem(first, f"there is no quota; give {KNOWN}")])
    first, api = of_api[0]
    others = [one for one, other in of_api if other is not api]
    if others:
        what = (
            f"the API of this object is {api_name(others[0])}, but that of {first.location} is {api.value}; "
            "give objects of one API at a time"
        )
        raise ConfigError([_problem(others[0], what)])
    by_key = {key_of(one.data): one for one in reversed(manifests)}
    return QuotaFiles(tuple(files), api, [one.data for one in manifests], by_key)


def api_name(manifest: Manifest) -> str:
    api = api_of(manifest.data)
    return api.value if api is not None else key_of(manifest.data)


def _is_known(manifest: Manifest) -> bool:
    return api_of(manifest.data) is not None or is_namespace(manifest.data)


def _problem(manifest: Manifest, message: str) -> Problem:
    file, _, line = manifest.location.rpartition(":")
    return Problem(file, int(line), 1, "", message)


def convert(source: QuotaFiles, total: Requests) -> Conversion:
    """Converts all objects into one tree."""
    translation = translate(source.api, source.documents)
    tree, translation = checked(translation, tree_name(source.api, source.documents), total)
    document = None if tree is None else tree.document
    return Conversion(source, document, translation.problems, translation.losses)


def total_of(texts: Sequence[str]) -> Requests:
    """Parses `cpu=40,memory=40Gi`. Raises QueryError."""
    parts = [part.partition("=") for text in texts for part in text.split(",")]
    found = {name.strip(): amount.strip() for name, _, amount in parts}

    def refuse(path: str, text: str, fix: str) -> None:
        raise QueryError(f"{path}: {text}; {fix}")

    return read_amounts(found, "--total", refuse)


def as_json(conversion: Conversion) -> str:
    """Returns the object as JSON, without a list of losses, so that kubectl accepts it."""
    return as_document(conversion.document, "json") + "\n"


def as_yaml(conversion: Conversion) -> str:
    """Returns the object as YAML. It begins with comments that list what differs or could not be converted."""
    names = ", ".join(str(one) for one in conversion.source.files)
    lines = comment(f"Converted from {names} by `multisched quota convert`.", "# ")
    if conversion.losses:
        lines.append("# What differs, or could not be converted:")
    for line in conversion.loss_lines():
        lines += comment(line, "#   ")
    return "\n".join([*lines, as_document(conversion.document, "yaml"), ""])

"""`multisched explain`: what happened to a pod and why, and what would happen to a pod that does not exist yet.

Queries a running multisched over HTTP, or tries everything itself on a dump of a cluster; both give the same documents.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

import msgspec

from multisched.cli.dump import Dump, buildable, cluster_of, read_file
from multisched.cli.options import QueryError
from multisched.cli.server import Server, answer, code_of
from multisched.observe.explain_view import (
    FITTING_MAX,
    NODES_NAMED,
    NODES_NAMED_MAX,
    ExplainQuery,
    NotExplainedError,
    PodView,
    WhatIfList,
    WhatIfView,
    decode_view,
)
from multisched.observe.explain_words import pod_text, what_if_text
from multisched.observe.tables import as_document, fitted

if TYPE_CHECKING:
    from multisched.whatif.explain_trial import DumpExplanations

TIMEOUT_S: Final = 60.0
"""A sandbox of a large cluster takes seconds, and requests are queued."""
MANIFEST_BYTES_MAX: Final = 256 * 1024


def explain_pod(source: Server | Dump, query: ExplainQuery, output: str) -> str:
    """Returns what happened to the pod, in the requested format. Raises QueryError."""
    many = output != "table"
    query = ExplainQuery(
        query.namespace,
        query.name,
        node=query.node,
        with_fixes=query.with_fixes,
        names=NODES_NAMED_MAX if many else NODES_NAMED,
    )
    if isinstance(source, Dump):
        with_dump = _loaded(source)
        try:
            view = with_dump.pod(query)
        except NotExplainedError as error:
            raise _refused(error) from error
    else:
        asked = {"names": str(query.names)} | ({"node": query.node} if query.node else {})
        asked |= {"fix": "true"} if query.with_fixes else {}
        path = f"/api/v1/explain/pod/{quote(query.namespace, safe='')}/{quote(query.name, safe='')}?{urlencode(asked)}"
        view = answer(source, path, partial(decode_view, kind=PodView), timeout_s=TIMEOUT_S)
    return as_document(_builtins(view), output) if output in ("json", "yaml") else fitted(pod_text(view))


def explain_what_if(source: Server | Dump, manifest: Path, replicas: int, output: str) -> str:
    """Returns where the manifest's pods would be placed, in the requested format. Raises QueryError.

    A file with several documents is sent as one List; the result is a list then, too.
    """
    documents = _manifests(manifest)
    view: WhatIfView | WhatIfList
    if len(documents) == 1:
        view = _what_if(source, manifest, documents[0], replicas)
    elif isinstance(source, Dump):
        loaded = _loaded(source)
        try:
            view = loaded.what_if_list(documents, replicas)
        except NotExplainedError as error:
            raise _refused(error) from error
    else:
        path = f"/api/v1/explain/what-if?{urlencode({'replicas': str(replicas)})}"
        body = _encoded(manifest, {"apiVersion": "v1", "kind": "List", "items": documents})
        view = answer(source, path, partial(decode_view, kind=WhatIfList), body=body, timeout_s=TIMEOUT_S)
    return as_document(_builtins(view), output) if output in ("json", "yaml") else fitted(what_if_text(view))


def _what_if(
    source: Server | Dump, manifest: Path, document: dict[str, Any], replicas: int, *, preempts: bool = True
) -> WhatIfView:
    if isinstance(source, Dump):
        loaded = _loaded(source)
        try:
            return loaded.what_if(document, replicas, preempts=preempts)
        except NotExplainedError as error:
            raise _refused(error) from error
    asked = {"replicas": str(replicas)} | ({} if preempts else {"preempt": "false"})
    path = f"/api/v1/explain/what-if?{urlencode(asked)}"
    body = _encoded(manifest, document)
    return answer(source, path, partial(decode_view, kind=WhatIfView), body=body, timeout_s=TIMEOUT_S)


def _encoded(manifest: Path, document: Any) -> bytes:
    try:
        return msgspec.json.encode(document)
    except TypeError as error:
        raise QueryError(f"{manifest} cannot be sent: {error}") from error


class FittingPods(msgspec.Struct, frozen=True):
    """How many more pods of a manifest fit."""

    pod: str
    """NAMESPACE/NAME of the manifest."""
    by_node: dict[str, int]
    """Node -> number; the other nodes take none."""
    message: str
    """Why the next one does not fit; empty if the limit was reached."""
    notes: tuple[str, ...]

    @property
    def total(self) -> int:
        return sum(self.by_node.values())

    @property
    def is_limit(self) -> bool:
        """True if even more may fit."""
        return not self.message


def fitting_pods(source: Server | Dump, manifest: Path) -> FittingPods:
    """Returns how many pods of the manifest fit without preemptions, at most `FITTING_MAX`. Raises QueryError."""
    documents = _manifests(manifest)
    if len(documents) > 1:
        raise QueryError(f"{manifest}: it has {len(documents)} objects; give one Pod or one workload")
    view = _what_if(source, manifest, documents[0], FITTING_MAX, preempts=False)
    placed = [one for one in view.placements if one.node]
    refusal = next((one.message for one in view.placements if not one.node), "")
    message = refusal.partition(". ")[0]  # without the result of preemption, which was not allowed
    return FittingPods(f"{view.namespace}/{view.name}", dict(Counter(one.node for one in placed)), message, view.notes)


def pod_name(text: str) -> tuple[str, str]:
    """Parses NAMESPACE/NAME, or the name of a pod in `default`. Raises QueryError."""
    namespace, _, name = text.rpartition("/")
    if not name or "/" in namespace:
        raise QueryError(f"{text}: write NAMESPACE/NAME")
    return namespace or "default", name


def _refused(error: NotExplainedError) -> QueryError:
    return QueryError(str(error), code_of(error.status))


def _builtins(view: PodView | WhatIfView | WhatIfList) -> Any:
    return msgspec.to_builtins(view)


def _loaded(dump: Dump) -> DumpExplanations:
    from multisched.whatif.explain_trial import DumpExplanations

    known = cluster_of(dump)
    with buildable():
        return DumpExplanations(dump.configuration, known)


def _manifests(path: Path) -> list[dict[str, Any]]:
    """Returns all objects of the file, with the items of lists one by one; at least one."""
    from multisched.model.yaml_text import NotYamlError, yaml_documents

    try:
        documents = yaml_documents(read_file(path, MANIFEST_BYTES_MAX).decode())
    except (NotYamlError, UnicodeDecodeError) as error:
        raise QueryError(f"{path} is not YAML: {error}") from error
    found: list[dict[str, Any]] = []
    for number, document in enumerate(documents, 1):
        items = document.get("items") if isinstance(document, dict) and document.get("kind") == "List" else None
        for item in items if isinstance(items, list) else [document]:
            if item is None:
                continue
            if not isinstance(item, dict):
                raise QueryError(
                    f"{path}: document {number} is not an object; write apiVersion, kind, metadata and spec"
                )
            found.append(item)
    if not found:
        raise QueryError(f"{path}: it contains no object; give a pod or a workload")
    return found

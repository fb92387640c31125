"""`multisched explain`: what happened to a pod and why, and what would become of one that does not exist yet.

Asks a running multisched over HTTP, or tries everything by itself on a dump of a cluster; the answers are of one form.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

import msgspec

from multisched.cli.dump import Dump, buildable, cluster_of, read_file
from multisched.cli.options import AskError
from multisched.cli.server import Server, answer, code_of
from multisched.observe.explain_view import (
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
"""A sandbox of a large cluster takes seconds, and stands in line."""
MANIFEST_BYTES_MAX: Final = 256 * 1024


def explain_pod(source: Server | Dump, query: ExplainQuery, output: str) -> str:
    """What happened to the pod, in the wanted form. Raises AskError."""
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
    """Where the manifest's pods would go, in the wanted form. Raises AskError.

    A file with several documents is asked about as one List; the answer is a list then, too.
    """
    document = _manifest(manifest)
    kind = WhatIfList if document.get("kind") == "List" else WhatIfView
    if isinstance(source, Dump):
        try:
            view = _loaded(source).what_if(document, replicas)
        except NotExplainedError as error:
            raise _refused(error) from error
    else:
        path = f"/api/v1/explain/what-if?{urlencode({'replicas': str(replicas)})}"
        try:
            body = msgspec.json.encode(document)
        except TypeError as error:
            raise AskError(f"{manifest} cannot be sent: {error}") from error
        view = answer(source, path, partial(decode_view, kind=kind), body=body, timeout_s=TIMEOUT_S)
    return as_document(_builtins(view), output) if output in ("json", "yaml") else fitted(what_if_text(view))


def pod_name(text: str) -> tuple[str, str]:
    """NAMESPACE/NAME, or the name of a pod in `default`. Raises AskError."""
    namespace, _, name = text.rpartition("/")
    if not name or "/" in namespace:
        raise AskError(f"{text}: write NAMESPACE/NAME")
    return namespace or "default", name


def _refused(error: NotExplainedError) -> AskError:
    return AskError(str(error), code_of(error.status))


def _builtins(view: PodView | WhatIfView | WhatIfList) -> Any:
    return msgspec.to_builtins(view)


def _loaded(dump: Dump) -> DumpExplanations:
    from multisched.whatif.explain_trial import DumpExplanations

    known = cluster_of(dump)
    with buildable():
        return DumpExplanations(dump.configuration, known)


def _manifest(path: Path) -> Mapping[str, Any]:
    from multisched.model.yaml_text import NotYamlError, yaml_documents

    try:
        documents = yaml_documents(read_file(path, MANIFEST_BYTES_MAX).decode())
    except (NotYamlError, UnicodeDecodeError) as error:
        raise AskError(f"{path} is no YAML: {error}") from error
    documents = [one for one in documents if one is not None]
    for number, document in enumerate(documents, 1):
        if not isinstance(document, dict):
            raise AskError(f"{path}: document {number} is no object; write apiVersion, kind, metadata and spec")
    if not documents:
        raise AskError(f"{path}: there is no object in it; give a pod or a workload")
    if len(documents) == 1:
        return documents[0]
    items = [item for one in documents for item in (one["items"] if _is_list(one) else [one])]
    return {"apiVersion": "v1", "kind": "List", "items": items}


def _is_list(document: Mapping[str, Any]) -> bool:
    return document.get("kind") == "List" and isinstance(document.get("items"), list)

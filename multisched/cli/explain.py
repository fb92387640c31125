"""`multisched explain`: what happened to a pod and why, and what would become of one that does not exist yet.

Asks a running multisched over HTTP, or tries everything by itself on a dump of a cluster; the answers are of one form.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

import msgspec

from multisched.cli.server import AskError, Server, ask
from multisched.config.options import ExitCode
from multisched.model.wire import UNREADABLE
from multisched.observe.explain_view import (
    NODES_NAMED,
    NODES_NAMED_MAX,
    ExplainQuery,
    NotExplainedError,
    PodView,
    WhatIfView,
    decode_view,
)
from multisched.observe.explain_words import pod_text, what_if_text
from multisched.observe.tables import as_document

if TYPE_CHECKING:
    from multisched.config.schema import Configuration
    from multisched.whatif.explain_trial import DumpExplanations
    from multisched.whatif.sandbox import DumpedCluster

TIMEOUT_S: Final = 60.0
"""A sandbox of a large cluster takes seconds, and stands in line."""
DUMP_BYTES_MAX: Final = 2 * 1024 * 1024 * 1024
MANIFEST_BYTES_MAX: Final = 256 * 1024


class Dump(msgspec.Struct, frozen=True):
    """A cluster as kubectl printed it, and the configuration to look at it with."""

    path: Path
    """`-`: standard input."""
    configuration: Configuration
    now: datetime
    is_default: bool = False
    """No configuration was named: it is the default one."""

    @property
    def hint(self) -> str:
        """What to say besides where the configuration knows too little."""
        return "; name the configuration with --config: the default one has no history" if self.is_default else ""


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
        view = _decoded(source, _ask(source, path), PodView)
    return as_document(_builtins(view), output) if output in ("json", "yaml") else pod_text(view)


def explain_what_if(source: Server | Dump, manifest: Path, replicas: int, output: str) -> str:
    """Where the manifest's pods would go, in the wanted form. Raises AskError."""
    document = _manifest(manifest)
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
            raise AskError(f"{manifest} cannot be sent: {error}", ExitCode.USAGE) from error
        view = _decoded(source, _ask(source, path, body), WhatIfView)
    return as_document(_builtins(view), output) if output in ("json", "yaml") else what_if_text(view)


def pod_name(text: str) -> tuple[str, str]:
    """NAMESPACE/NAME, or the name of a pod in `default`. Raises AskError."""
    namespace, _, name = text.rpartition("/")
    if not name or "/" in namespace:
        raise AskError(f"{text}: write NAMESPACE/NAME", ExitCode.USAGE)
    return namespace or "default", name


def _ask(server: Server, path: str, body: bytes | None = None) -> bytes:
    try:
        return ask(server, path, body=body, timeout_s=TIMEOUT_S)
    except AskError as error:
        raise AskError(str(error), _code(error.status) if error.status else error.code, error.status) from error


def _decoded(server: Server, body: bytes, kind: Any) -> Any:
    try:
        return decode_view(body, kind)
    except UNREADABLE as error:
        raise AskError(f"{server.url} is no multisched of this version: {error}", ExitCode.PROBLEM) from error


def _code(status: int) -> ExitCode:
    return ExitCode.USAGE if status in (400, 422) else ExitCode.PROBLEM


def _refused(error: NotExplainedError) -> AskError:
    return AskError(str(error), _code(error.status))


def _builtins(view: PodView | WhatIfView) -> Any:
    return msgspec.to_builtins(view)


def _loaded(dump: Dump) -> DumpExplanations:
    from multisched.framework.registry import PluginSetupError
    from multisched.whatif.explain_trial import DumpExplanations

    known = cluster_of(dump)
    try:
        return DumpExplanations(dump.configuration, known)
    except PluginSetupError as error:
        raise AskError(str(error), ExitCode.USAGE) from error


def cluster_of(dump: Dump) -> DumpedCluster:
    """What a file of `kubectl get -o json` says. Raises AskError."""
    from multisched.whatif.sandbox import DumpedCluster

    body = _read(dump.path, DUMP_BYTES_MAX)
    try:
        listed = msgspec.json.decode(body, type=_List)
    except UNREADABLE as error:
        message = f"{dump.path} is no list of objects ({error}); write one with kubectl get nodes,pods,... -A -o json"
        raise AskError(message, ExitCode.USAGE) from error
    return DumpedCluster(listed.items, dump.now)


class _List(msgspec.Struct):
    items: list[msgspec.Raw]


def _manifest(path: Path) -> Mapping[str, Any]:
    import yaml

    try:
        documents = [one for one in yaml.safe_load_all(_read(path, MANIFEST_BYTES_MAX)) if one is not None]
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise AskError(f"{path} is no YAML: {error}", ExitCode.USAGE) from error
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise AskError(f"{path}: give one object; there are {len(documents)} documents", ExitCode.USAGE)
    return documents[0]


def _read(path: Path, most: int) -> bytes:
    try:
        if str(path) == "-":
            body = sys.stdin.buffer.read(most + 1)
        else:
            with path.open("rb") as file:
                body = file.read(most + 1)
    except OSError as error:
        raise AskError(f"{path} cannot be read: {error.strerror}", ExitCode.USAGE) from error
    if len(body) > most:
        raise AskError(f"{path} has more than {most} bytes", ExitCode.USAGE)
    return body

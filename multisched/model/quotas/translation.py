"""Translates quota documents of any known API into one tree: finds their API, reads them together, and lists what is lost.

Pure: documents are plain data, as JSON or YAML gives them. An unreadable document is a problem of that document, never an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from multisched.model.cluster_objects import ElasticQuota, ElasticQuotaTree, KoordinatorQuota
from multisched.model.decode import DecodeError
from multisched.model.decode_objects import decode_elastic_quota, decode_koordinator_quota, decode_quota_tree
from multisched.model.decode_quotas import KOORDINATOR
from multisched.model.objects import Requests
from multisched.model.quota_tree import (
    GUARANTEE_ATTRIBUTE,
    MAX_JOBS,
    WEIGHT_ATTRIBUTE,
    TreeProblem,
    child_path,
    read_tree,
)
from multisched.model.quotas import kueue, volcano
from multisched.model.quotas.drafts import Json, Losses, Translation, key_of, name_of
from multisched.model.quotas.koordinator import read_linked
from multisched.model.quotas.reading import ProblemsByObject, ReadQuotas
from multisched.model.quotas.scheduler_plugins import read_flat
from multisched.model.quotas.writing import DEFAULT_NAME, NO_TOTAL, WrittenTree, written
from multisched.model.wire import UNREADABLE


class QuotaApi(Enum):
    """The API that defines the kind."""

    ACK = "ElasticQuotaTree"
    KOORDINATOR = "ElasticQuota of Koordinator"
    SCHEDULER_PLUGINS = "ElasticQuota of scheduler-plugins"
    KUEUE = "Kueue"
    VOLCANO = "Volcano"


SIGS_GROUP: Final = "scheduling.sigs.k8s.io"
X_GROUP: Final = "scheduling.x-k8s.io"
KNOWN: Final = (
    "ElasticQuotaTree or ElasticQuota of scheduling.sigs.k8s.io, ElasticQuota of scheduling.x-k8s.io, "
    "ClusterQueue, Cohort and LocalQueue of kueue.x-k8s.io, or Queue of scheduling.volcano.sh"
)
WHOLE: Final = "the resulting tree"
"""Key of problems of the tree as a whole."""

_KOORDINATOR_CARRIED: Final = frozenset(
    {"name", "parent", "is-parent", "tree-id", "allow-lent-resource", "shared-weight", "namespaces", "total-resource"}
)
_KOORDINATOR_STATUS: Final = frozenset(
    {"runtime", "request", "child-request", "used", "allocated", "guaranteed", "non-preemptible-request"}
    | {"non-preemptible-used", "unschedulable-resource", "is-root"}
)
"""Written by its controllers."""


def api_of(document: Json) -> QuotaApi | None:
    """Finds the API by `apiVersion` and `kind`; None if the kind is not a quota."""
    group, kind = group_of(document), document.get("kind")
    if group == SIGS_GROUP and kind == "ElasticQuotaTree":
        return QuotaApi.ACK
    if kind == "ElasticQuota":
        return {SIGS_GROUP: QuotaApi.KOORDINATOR, X_GROUP: QuotaApi.SCHEDULER_PLUGINS}.get(group)
    if group == kueue.GROUP and kind in kueue.KINDS:
        return QuotaApi.KUEUE
    return QuotaApi.VOLCANO if group == volcano.GROUP and kind in volcano.KINDS else None


def group_of(document: Json) -> str:
    """Returns the API group; empty for the core group."""
    version = document.get("apiVersion")
    return version.rpartition("/")[0] if isinstance(version, str) else ""


def is_namespace(document: Json) -> bool:
    """Reports whether the document is a Namespace. It is not a quota, but an annotation of Volcano names the queue of its pods."""
    return document.get("kind") == volcano.NAMESPACE and document.get("apiVersion") == "v1"


def translate(api: QuotaApi, documents: Sequence[Json]) -> Translation:
    """Returns the tree of all documents of one API; Namespaces may be among them."""
    return _READERS[api](documents if api is QuotaApi.VOLCANO else own_documents(api, documents))


def own_documents(api: QuotaApi, documents: Sequence[Json]) -> list[Json]:
    """Returns the documents of this API, without Namespaces."""
    return [one for one in documents if api_of(one) is api]


def checked(
    translation: Translation, name: str = DEFAULT_NAME, total: Requests = NO_TOTAL
) -> tuple[WrittenTree | None, Translation]:
    """Returns the tree as a document without problems; or None, and a translation with the document's problems.

    The translation contains all losses. `total`: see `writing.written`.
    """
    if translation.tree is None:
        return None, translation
    found = written(translation.tree, name, total)
    translation = replace(translation, losses=(*translation.losses, *found.losses))
    _, problems = read_tree(found.document["spec"]["root"])
    if problems:
        return None, replace(translation, tree=None, problems={WHOLE: problems})
    return found, translation


def tree_name(api: QuotaApi, documents: Sequence[Json]) -> str:
    """Returns the name of the resulting tree: that of the first document if it is an ElasticQuotaTree."""
    return name_of(documents[0]) if api is QuotaApi.ACK and name_of(documents[0]) else DEFAULT_NAME


# -- readers -----------------------------------------------------------------------------------------------------------


def _read_trees(documents: Sequence[Json]) -> Translation:
    problems, losses = ProblemsByObject(), Losses()
    first = documents[0]
    for other in documents[1:]:
        what = f"{key_of(first)} exists, too, and only one tree is allowed"
        problems.report(key_of(other), "metadata.name", what, "pass one of them")
    found = _decoded(first, decode_quota_tree, problems)
    if found is not None:
        if found.malformed:
            problems.report(key_of(first), "spec", found.malformed, "rewrite it")
        problems.add(key_of(first), *found.problems)
        _report_attributes(key_of(first), first, losses)
    tree = found.tree if isinstance(found, ElasticQuotaTree) and not problems else None
    return Translation(tree, problems.by_object(), losses.found())


def _report_attributes(key: str, document: Json, losses: Losses) -> None:
    """Reports unknown attributes and the bounds of ACK's queue. A level without a name is identified by its place."""
    spec = document.get("spec")
    waiting = [(spec.get("root"), "", "spec.root")] if isinstance(spec, Mapping) else []
    while waiting:
        node, above, place = waiting.pop()
        if not isinstance(node, Mapping):
            continue
        name = node.get("name")
        path = child_path(above, name) if isinstance(name, str) and name else place
        attributes, most = node.get("attributes"), node.get("max")
        if isinstance(attributes, Mapping):
            carried = (WEIGHT_ATTRIBUTE, GUARANTEE_ATTRIBUTE)
            losses.report_others(key, f"{path}.attributes", attributes, carried)
        if isinstance(most, Mapping) and MAX_JOBS in most:
            losses.report(key, f"{path}.max.{MAX_JOBS}", "not converted; it bounds jobs in ACK's queue, and no pods")
        children = node.get("children")
        below = enumerate(children if isinstance(children, list) else ())
        waiting += reversed([(child, path, f"{path}.children[{at}]") for at, child in below])


def _read_koordinator(documents: Sequence[Json]) -> Translation:
    problems, losses = ProblemsByObject(), Losses()
    quotas = [one for each in documents if (one := _decoded(each, decode_koordinator_quota, problems)) is not None]
    for document in documents:
        _report_koordinator(document, losses)
    return _combined(problems, losses, read_linked(one for one in quotas if isinstance(one, KoordinatorQuota)))


def _report_koordinator(document: Json, losses: Losses) -> None:
    metadata = document.get("metadata")
    for field in ("labels", "annotations"):
        found = metadata.get(field) if isinstance(metadata, Mapping) else None
        ours = {
            f"[{name}]": value
            for name, value in (found.items() if isinstance(found, Mapping) else ())
            if isinstance(name, str) and name.startswith(KOORDINATOR)
        }
        known = {f"[{KOORDINATOR}{name}]" for name in _KOORDINATOR_CARRIED | _KOORDINATOR_STATUS}
        for name in sorted(ours.keys() - known):
            losses.report(key_of(document), f"metadata.{field}{name}", "not converted; it has no effect here")


def _read_scheduler_plugins(documents: Sequence[Json]) -> Translation:
    problems = ProblemsByObject()
    quotas = [one for each in documents if (one := _decoded(each, decode_elastic_quota, problems)) is not None]
    for document in documents:
        if not _has_namespace(document):
            problems.report(
                key_of(document), "metadata.namespace", "it is missing", "write the namespace that it bounds"
            )
    return _combined(problems, Losses(), read_flat(one for one in quotas if isinstance(one, ElasticQuota)))


def _has_namespace(document: Json) -> bool:
    metadata = document.get("metadata")
    return isinstance(metadata, Mapping) and bool(metadata.get("namespace"))


def _combined(problems: ProblemsByObject, losses: Losses, found: ReadQuotas) -> Translation:
    every = {f"ElasticQuota {key}": of for key, of in found.problems.items()} | dict(problems.by_object())
    return Translation(None if every else found.tree, every, losses.found())


def _decoded(document: Json, decode: Callable[[msgspec.Raw], Any], problems: ProblemsByObject) -> Any:
    """Decodes a document. Reports a problem and returns None if it cannot be read."""
    try:
        return decode(msgspec.Raw(msgspec.json.encode(document)))
    except (DecodeError, TypeError, *UNREADABLE) as error:
        problems.add(key_of(document), TreeProblem("metadata", str(error), "rewrite it"))
        return None


_READERS: Final[Mapping[QuotaApi, Callable[[Sequence[Json]], Translation]]] = {
    QuotaApi.ACK: _read_trees,
    QuotaApi.KOORDINATOR: _read_koordinator,
    QuotaApi.SCHEDULER_PLUGINS: _read_scheduler_plugins,
    QuotaApi.KUEUE: kueue.read_kueue,
    QuotaApi.VOLCANO: volcano.read_volcano,
}

"""Checks quotas before they are applied, and together with the quotas of the cluster: reports every broken rule, and warnings.

Pure. Objects are checked together with those of the cluster: a parent, a second tree or another API may exist there.
Quotas of Kueue and Volcano are checked as the tree that `multisched quota convert` makes of them, as the only quotas.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from multisched.framework.device_demand import DeviceDemands
from multisched.model.cluster_objects import TREE_NAMESPACE, ClusterObject, ElasticQuotaTree
from multisched.model.decode import DecodeError
from multisched.model.near_names import did_you_mean
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Node
from multisched.model.quota_tree import (
    GUARANTEE_ATTRIBUTE,
    WEIGHT_ATTRIBUTE,
    QuotaTree,
    named_nodes,
    quota_amount,
    read_tree,
    shown_amount,
)
from multisched.model.quotas.drafts import Json, key_of
from multisched.model.quotas.reading import Problems
from multisched.model.quotas.translation import QuotaApi, checked, own_documents, translate, tree_name
from multisched.model.wire import UNREADABLE
from multisched.plugins.quota.level_use import level_uses
from multisched.plugins.quota.many_quotas import read_quotas
from multisched.plugins.quota.quota_ledger import QuotaLedger
from multisched.plugins.quota.quota_source import QUOTA_KINDS
from multisched.whatif.quota_use import NO_DEMANDS, source_of
from multisched.whatif.sandbox import ClusterSnapshot

KINDS: Final[Mapping[QuotaApi, ObjectKind]] = {
    QuotaApi.ACK: ObjectKind.ELASTIC_QUOTA_TREE,
    QuotaApi.KOORDINATOR: ObjectKind.KOORDINATOR_QUOTA,
    QuotaApi.SCHEDULER_PLUGINS: ObjectKind.ELASTIC_QUOTA,
}
"""APIs that the scheduler reads itself."""
FIELDS: Final = ("name", "min", "max", "namespaces", "children", "attributes")
"""Fields of a level."""
ATTRIBUTES: Final = (WEIGHT_ATTRIBUTE, GUARANTEE_ATTRIBUTE)
ATTRIBUTE_PREFIX: Final = "multisched.io/"
"""Attributes with another prefix are not checked."""
LEAVE_IT: Final = "leave it out"
NAMED_MAX: Final = 20
"""Limit of warnings of one kind; more are left out and counted."""

Objects = tuple[tuple[ObjectKind, ClusterObject], ...]


class Finding(msgspec.Struct, frozen=True):
    """A problem or a warning about one object."""

    key: str
    """Kind and name of the object."""
    path: str
    text: str
    fix: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}; {self.fix}"


class Linted(msgspec.Struct, frozen=True):
    """Results without a trial."""

    problems: tuple[Finding, ...]
    """If there is one, none of the objects has an effect."""
    warnings: tuple[Finding, ...] = ()
    after: ClusterSnapshot | None = None
    """The cluster with the objects applied; None if there are problems, or no cluster is known."""


def lint(
    api: QuotaApi, documents: Sequence[Json], known: ClusterSnapshot | None, demands: DeviceDemands = NO_DEMANDS
) -> Linted:
    """Checks the documents. `known`: the cluster to which they would be applied, or None. `demands`: device requests of its pods."""
    kind = KINDS.get(api)
    if kind is None:
        return _lint_foreign(api, documents, known, demands)
    own, unreadable = _decoded(kind, own_documents(api, documents))
    before: Objects = () if known is None else known.objects
    after = _applied(before, kind, own)
    problems = [*unreadable, *_problems(kind, own, after)]
    odd = tuple(_field_warnings(documents)) if kind is ObjectKind.ELASTIC_QUOTA_TREE else ()
    if problems:
        return Linted(tuple(problems), odd)
    if known is None:
        return Linted((), (*odd, *_shape_warnings(_tree_of(after), own_key(kind, own))))
    found = _with_cluster(replace(known, objects=after), own_key(kind, own), demands)
    return replace(found, warnings=(*odd, *found.warnings))


def problems_of(kind: ObjectKind, objects: Objects) -> frozenset[Finding]:
    """Returns the problems of all objects of a kind in their current state."""
    return frozenset(_problems(kind, _of(kind, objects), objects))


def own_key(kind: ObjectKind, own: Sequence[ClusterObject]) -> str:
    """Returns the object's key if there is only one."""
    return f"{kind.definition.name} {own[0].key}" if len(own) == 1 else ""


def _lint_foreign(
    api: QuotaApi, documents: Sequence[Json], known: ClusterSnapshot | None, demands: DeviceDemands
) -> Linted:
    name = tree_name(api, documents)
    written, translation = checked(translate(api, documents), name)
    if written is None:
        return Linted(tuple(_findings(translation.problems)))
    tree, _ = read_tree(written.document["spec"]["root"])
    assert tree is not None, "what is written was read back before"
    if known is None:
        return Linted((), tuple(_shape_warnings(tree, "")))
    others = tuple((kind, one) for kind, one in known.objects if kind not in QUOTA_KINDS)
    made = ElasticQuotaTree(name=name, namespace=TREE_NAMESPACE, uid=name, tree=tree)
    return _with_cluster(replace(known, objects=(*others, (ObjectKind.ELASTIC_QUOTA_TREE, made))), "", demands)


def _decoded(kind: ObjectKind, documents: Sequence[Json]) -> tuple[list[ClusterObject], list[Finding]]:
    found: dict[str, ClusterObject] = {}
    problems: list[Finding] = []
    for document in documents:
        try:
            one = kind.definition.decode(msgspec.Raw(msgspec.json.encode(document)))
        except (DecodeError, TypeError, *UNREADABLE) as error:
            problems.append(Finding(key_of(document), "metadata", str(error), "write it again"))
            continue
        if one.key in found:
            problems.append(Finding(key_of(document), "metadata.name", "the object is given twice", "give it once"))
        if not one.namespace:
            problems.append(Finding(key_of(document), "metadata.namespace", "it is missing", "write one"))
        found[one.key] = one
    return list(found.values()), problems


def _applied(before: Objects, kind: ObjectKind, own: Sequence[ClusterObject]) -> Objects:
    keys = {one.key for one in own}
    kept = tuple((of, one) for of, one in before if of is not kind or one.key not in keys)
    return (*kept, *((kind, one) for one in own))


def _of(kind: ObjectKind, objects: Objects) -> list[ClusterObject]:
    return [one for of, one in objects if of is kind]


# -- problems ------------------------------------------------------------------------------------------------------------


def _problems(kind: ObjectKind, own: Sequence[ClusterObject], after: Objects) -> Iterator[Finding]:
    for other in QUOTA_KINDS[: QUOTA_KINDS.index(kind)]:
        for one in _of(other, after)[:1]:
            what = f"{other.definition.name} {one.key} is in force, and only one API is read at a time"
            fix = "delete it first, or add these to it (multisched quota convert)"
            yield Finding(own_key(kind, own), "apiVersion", what, fix)
    if kind is ObjectKind.ELASTIC_QUOTA_TREE:
        yield from _tree_problems(own, _of(kind, after))
    else:
        yield from _findings(
            {f"ElasticQuota {key}": of for key, of in read_quotas(kind, _of(kind, after)).problems.items()}
        )


def _tree_problems(own: Sequence[ClusterObject], trees: Sequence[ClusterObject]) -> Iterator[Finding]:
    in_place = [one for one in trees if one.namespace == TREE_NAMESPACE]
    for one in own:
        key = f"ElasticQuotaTree {one.key}"
        has_problems = isinstance(one, ElasticQuotaTree) and one.problems  # each by itself
        if one.malformed and not has_problems:
            yield Finding(key, "spec", one.malformed, "write it again")
        if isinstance(one, ElasticQuotaTree):
            yield from _findings({key: one.problems})
        if one.namespace != TREE_NAMESPACE:
            what, fix = f"a tree in {one.namespace or 'no namespace'} has no effect", f"move it to {TREE_NAMESPACE}"
            yield Finding(key, "metadata.namespace", what, fix)
            continue
        for other in in_place:
            if other.key != one.key:
                what = f"there is also the tree {other.key}, and only one is allowed"
                yield Finding(key, "metadata.name", what, "delete one of them, or give this one its name")


def _findings(problems: Problems) -> Iterator[Finding]:
    for key, found in problems.items():
        for one in found:
            yield Finding(key, one.path, one.text, one.fix)


# -- warnings ------------------------------------------------------------------------------------------------------------


def _field_warnings(documents: Sequence[Json]) -> Iterator[Finding]:
    """Yields unknown fields: levels accept any field, as the API server does, so a misspelt one has no effect."""
    found: list[Finding] = []
    for document in documents:
        for node, path, _ in named_nodes(document):
            attributes = node.get("attributes")
            ours = [str(name) for name in (attributes if isinstance(attributes, dict) else ())]
            odd = [(f".{name}", did_you_mean(name, FIELDS, LEAVE_IT)) for name in map(str, node) if name not in FIELDS]
            odd += [
                (f".attributes[{name}]", did_you_mean(name, ATTRIBUTES, LEAVE_IT))
                for name in ours
                if name.startswith(ATTRIBUTE_PREFIX) and name not in ATTRIBUTES
            ]
            found += [Finding(key_of(document), path + field, "it has no effect", fix) for field, fix in odd]
    yield from _limited(found)


def _with_cluster(after: ClusterSnapshot, key: str, demands: DeviceDemands) -> Linted:
    source = source_of(after.objects)
    source.renew()
    tree = source.tree
    warnings = [*_shape_warnings(tree, key)]
    if tree is not None:
        warnings += [*_namespace_warnings(tree, after, key), *_root_warnings(tree, after.nodes, key)]
        warnings += _over_max(tree, QuotaLedger(source, lambda: after.placed, demands), after, key)
    return Linted((), tuple(warnings), after)


def _tree_of(objects: Objects) -> QuotaTree | None:
    source = source_of(objects)
    source.renew()
    return source.tree


def _shape_warnings(tree: QuotaTree | None, key: str) -> Iterator[Finding]:
    """Yields leaves without namespaces, which limit no pod unless pod labels name them."""
    if tree is None or tree.pod_label:
        return
    empty = [tree.nodes[at].path for at in tree.leaves() if not tree.nodes[at].namespaces]
    yield from _limited(
        [
            Finding(key, f"{path}.namespaces", "no namespace belongs to this leaf", "name one, or leave it out")
            for path in empty
        ]
    )


def _namespace_warnings(tree: QuotaTree, after: ClusterSnapshot, key: str) -> Iterator[Finding]:
    known = {one.name for one in _of(ObjectKind.NAMESPACE, after.objects)}
    if not known:
        return
    yield from _limited(
        [
            Finding(
                key, f"{tree.nodes[at].path}.namespaces", f"there is no namespace {name}", "create it, or correct it"
            )
            for name, at in tree.leaf_of.items()
            if name not in known
        ]
    )


def _root_warnings(tree: QuotaTree, nodes: Sequence[Node], key: str) -> Iterator[Finding]:
    """Yields resources whose guaranteed amount exceeds what all nodes have."""
    root = tree.nodes[0]
    for resource, sure in root.min.items() if nodes else ():
        total = quota_amount(resource, sum(node.allocatable.get(resource, 0) for node in nodes))
        if sure > total:
            what = f"{shown_amount(resource, sure)} exceeds the {shown_amount(resource, total)} of all nodes"
            yield Finding(key, f"{root.path}.min.{resource}", what, "lower it, or add nodes")


def _over_max(tree: QuotaTree, ledger: QuotaLedger, after: ClusterSnapshot, key: str) -> list[Finding]:
    ledger.renew()
    found = []
    for level in level_uses(tree, ledger, after.pending):
        for resource, use in level.resources.items():
            if use.max is not None and use.used > use.max:
                used, most = shown_amount(resource, use.used), shown_amount(resource, use.max)
                what = f"{used} is used, over max {most}: its pods stay, and no other is admitted"
                found.append(Finding(key, f"{level.path}.max.{resource}", what, "raise it, or run fewer pods"))
    return list(_limited(found))


def _limited(found: Sequence[Finding]) -> Iterator[Finding]:
    yield from found[:NAMED_MAX]
    if len(found) > NAMED_MAX:
        last = found[-1]
        yield Finding(last.key, last.path, f"{len(found) - NAMED_MAX} more like those above", last.fix)

"""Edits of quotas after which a pod would stay within every max: which levels to raise, and to what. Callers try an
edit before they show it.

Pure over a `SchedulerSandbox`. All levels that the pod would exceed are raised in one edit of one object: of the
ElasticQuotaTree, else of the pod's own ElasticQuota.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from multisched.model.cluster_objects import ClusterObject, ElasticQuota, ElasticQuotaTree, KoordinatorQuota
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import CPU, Pod, Requests
from multisched.model.quota_tree import QuotaTree, shown_amount
from multisched.plugins.quota.quota_ledger import NO_AMOUNTS, QuotaLedger
from multisched.plugins.quota.quota_source import InForce, QuotaSource
from multisched.whatif.sandbox import SchedulerSandbox

NAMES: Final = {CPU: "CPU"}
"""Resources that have another name in sentences."""

Raised = Mapping[int, Requests]
"""Position of a level -> resource -> the max that is needed."""


class QuotaEdit(msgspec.Struct, frozen=True):
    """A change of one object."""

    kind: ObjectKind
    item: ClusterObject
    text: str
    change: dict[str, Any]
    command: str


class QuotaRoom(msgspec.Struct, frozen=True):
    """A pod that exceeds its quota."""

    missing: Raised
    """Levels whose max the pod would exceed."""
    room: Requests
    """Resource -> what every max leaves for such a pod, for resources that it exceeds; in the units of quotas."""


def quota_room(sandbox: SchedulerSandbox, pods: Sequence[Pod]) -> QuotaRoom:
    """Returns what is missing for pods that start together; empty if no quota is exceeded."""
    _, ledger = _ledger_of(sandbox)
    own = {pod.uid for pod in pods}
    others = [one for one in sandbox.nominator.pods() if one.uid not in own]
    nominated = ledger.nominated_amounts(others) if others else {}
    missing: dict[int, dict[str, int]] = {}
    room: dict[str, int] = {}
    asked = Counter[str]()
    for pod in pods:
        asked.update(ledger.amounts.of(pod))
    items = tuple(asked.items())
    for level in ledger.levels_of(pods[0]):
        taken = nominated.get(level.at, NO_AMOUNTS)
        for resource, amount in items:
            most = level.max.get(resource)
            held = level.used_and_reserved(resource) + taken.get(resource, 0)
            if most is not None and amount and held + amount > most:
                missing.setdefault(level.at, {})[resource] = held + amount
                room[resource] = min(room.get(resource, most - held), most - held)
        items = level.counted_at_parent(items, taken) if ledger.has_guarantees else items
    return QuotaRoom(missing, {resource: max(0, left) for resource, left in room.items()})


def quota_edits(sandbox: SchedulerSandbox, missing: Raised) -> Iterator[QuotaEdit]:
    """Yields edits that provide what is missing, at most one for each candidate object."""
    source, _ = _ledger_of(sandbox)
    found = source.in_force
    if found is None or not missing:
        return
    if found.kind is ObjectKind.ELASTIC_QUOTA_TREE:
        one = next((one for one in sandbox.cache.objects.all(found.kind) if one.key == found.name), None)
        if isinstance(one, ElasticQuotaTree):
            yield _tree_edit(one, found.tree, missing)
        return
    leaf = max(missing)  # parents come before children
    for item in sandbox.cache.objects.all(found.kind):
        if isinstance(item, ElasticQuota | KoordinatorQuota) and _is_of(item, found, leaf):
            yield _object_edit(found.kind, item, found.tree, missing)


def _ledger_of(sandbox: SchedulerSandbox) -> tuple[QuotaSource, QuotaLedger]:
    source = QuotaSource(sandbox.cache.objects)
    ledger = QuotaLedger(source, lambda: [entry.pod for entry in sandbox.cache], sandbox.cache.ledgers.demands)
    ledger.renew()
    return source, ledger


def _tree_edit(one: ElasticQuotaTree, tree: QuotaTree, missing: Raised) -> QuotaEdit:
    nodes = list(tree.nodes)
    patch: list[dict[str, str]] = []
    for at, amounts in missing.items():
        changes: dict[str, Requests] = {"max": {**nodes[at].max, **amounts}}
        if not at:  # the root's min equals its max
            changes["min"] = {**nodes[at].min, **amounts}
        nodes[at] = replace(nodes[at], **changes)
        for field in changes:
            patch += [_replaced(_pointer(tree, at), field, resource, amount) for resource, amount in amounts.items()]
    edited = replace(one, tree=QuotaTree.of(nodes), version=one.version)
    raised = {nodes[at].path: _quantities(amounts) for at, amounts in missing.items()}
    change = {"object": f"ElasticQuotaTree {one.key}", "max": raised}
    command = _patch(ObjectKind.ELASTIC_QUOTA_TREE, one, "json", patch)
    return QuotaEdit(ObjectKind.ELASTIC_QUOTA_TREE, edited, _sentence(tree, missing), change, command)


def _object_edit(kind: ObjectKind, one: ElasticQuota | KoordinatorQuota, tree: QuotaTree, missing: Raised) -> QuotaEdit:
    """Raises the leaf's own max, and for scheduler-plugins the sums at the root."""
    most = {**one.max, **missing.get(max(missing), {})}
    least = dict(one.min)
    for resource, needed in missing.get(0, {}).items():
        least[resource] = least.get(resource, 0) + needed - tree.nodes[0].max.get(resource, 0)
        most[resource] = max(most.get(resource, least[resource]), least[resource])
    spec: dict[str, dict[str, str]] = {
        field: _quantities({name: amount for name, amount in after.items() if amount != before.get(name)})
        for field, before, after in (("min", one.min, least), ("max", one.max, most))
    }
    spec = {field: amounts for field, amounts in spec.items() if amounts}
    parts = [f"{field} of {one.key} to {_listed(amounts)}" for field, amounts in spec.items()]
    change = {"object": f"ElasticQuota {one.key}", **spec}
    edited = replace(one, min=least, max=most)
    return QuotaEdit(kind, edited, f"raise {' and '.join(parts)}", change, _patch(kind, one, "merge", {"spec": spec}))


def _is_of(one: ElasticQuota | KoordinatorQuota, found: InForce, at: int) -> bool:
    """Reports whether the object defines this level. The level has the name of Koordinator's object, or else of the object's namespace."""
    name = found.tree.nodes[at].name
    return one.name == name if isinstance(one, KoordinatorQuota) else one.namespace == name


def _sentence(tree: QuotaTree, missing: Raised) -> str:
    """Returns the sentence, with the lowest level first: it is the pod's own."""
    parts = []
    for at, amounts in sorted(missing.items(), reverse=True):
        bounds = "max" if at else "min and max"
        parts.append(f"{bounds} of {tree.nodes[at].path} to {_listed(_quantities(amounts))}")
    return f"raise {' and '.join(parts)}"


def _listed(amounts: Mapping[str, str]) -> str:
    return " and ".join(f"{amount} {NAMES.get(resource, resource)}" for resource, amount in amounts.items())


def _quantities(amounts: Requests) -> dict[str, str]:
    return {resource: shown_amount(resource, amount) for resource, amount in amounts.items()}


def _pointer(tree: QuotaTree, at: int) -> str:
    """Returns the JSON pointer of the level in its document."""
    parent = tree.nodes[at].parent
    return "/spec/root" if parent < 0 else f"{_pointer(tree, parent)}/children/{tree.nodes[parent].children.index(at)}"


def _replaced(pointer: str, field: str, resource: str, amount: int) -> dict[str, str]:
    escaped = resource.replace("~", "~0").replace("/", "~1")
    return {"op": "replace", "path": f"{pointer}/{field}/{escaped}", "value": shown_amount(resource, amount)}


def _patch(kind: ObjectKind, one: ClusterObject, form: str, document: object) -> str:
    definition = kind.definition
    where = shlex.join(["kubectl", "patch", f"{definition.plural}.{definition.group}", one.name, "-n", one.namespace])
    return f"{where} --type={form} -p {shlex.quote(json.dumps(document))}"

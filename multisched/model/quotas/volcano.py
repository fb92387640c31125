"""Queues of Volcano as a tree: deserved is min, guarantee the part that is never lent, capability max, and parent the level above.

Source: volcano-sh/apis pkg/apis/scheduling/v1beta1/types.go, and the capacity plugin (docs/design/capacity-scheduling.md). A queue
without deserved has its guarantee as min, and a queue with children at least the sum of their min. The namespaces of a queue are
read from Namespaces (annotation `scheduling.volcano.sh/queue-name`) and from PodGroups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from multisched.model.quota_tree import DEPTH_MAX, read_amounts, shown_amount
from multisched.model.quotas.drafts import (
    ROOT,
    WEIGHT_MAX,
    Draft,
    Json,
    Losses,
    NamespaceOwners,
    Objects,
    Translation,
    part_of,
    report_empty_leaves,
    sum_of,
    text_of,
    translated,
)
from multisched.model.quotas.reading import ProblemsByObject

GROUP: Final = "scheduling.volcano.sh"
QUEUE, POD_GROUP, NAMESPACE = "Queue", "PodGroup", "Namespace"
KINDS: Final = frozenset({QUEUE, POD_GROUP})
QUEUE_NAME: Final = f"{GROUP}/queue-name"
HIERARCHY: Final = ("volcano.sh/hierarchy", "volcano.sh/hierarchy-weights")


def read_volcano(documents: Sequence[Json]) -> Translation:
    """Returns the tree of all queues."""
    reader = _Reader(documents)
    return translated(reader.root, reader.problems, reader.losses)


class _Reader:
    def __init__(self, documents: Sequence[Json]) -> None:
        self.problems = ProblemsByObject()
        self.losses = Losses()
        self.root = Draft(ROOT)
        self._objects = Objects(documents, self.problems)
        self._queues: dict[str, Draft] = {ROOT: self.root}
        self._parents: dict[str, str] = {}
        for key, name, one in self._objects.of(QUEUE):
            self._read_queue(key, name, one)
        self._link()
        self._read_namespaces()
        if not self.problems:
            self._sum_up()
            hint = "give Namespaces that name it by annotation, or PodGroups; or name its namespaces in the tree"
            report_empty_leaves(self.root, self.losses, hint)

    def _read_queue(self, key: str, name: str, one: Json) -> None:
        spec = part_of(one, "spec", key, "", self.problems)
        draft = self._queues[name] = self.root if name == ROOT else Draft(name, key)
        if name != ROOT:
            self._parents[name] = text_of(spec, "parent", key, "spec", self.problems) or ROOT
        draft.min = self._amounts(spec, "deserved", key, "spec")
        draft.max = self._amounts(spec, "capability", key, "spec")
        guarantee = part_of(spec, "guarantee", key, "spec", self.problems)
        draft.guarantee = self._amounts(guarantee, "resource", key, "spec.guarantee")
        for resource, amount in draft.guarantee.items():
            deserved = draft.min.setdefault(resource, amount)
            if amount > deserved:
                what = f"{shown_amount(resource, amount)} is over deserved {shown_amount(resource, deserved)}"
                self.problems.report(key, f"spec.guarantee.resource.{resource}", what, "lower it, or raise deserved")
        for resource, most in draft.max.items():
            if draft.min.get(resource, 0) > most:
                what = (
                    f"{shown_amount(resource, draft.min[resource])} is over capability {shown_amount(resource, most)}"
                )
                self.problems.report(key, f"spec.deserved.{resource}", what, "lower it, or raise capability")
        draft.weight = self._weight(key, spec)
        self._report_losses(key, one, spec)

    def _amounts(self, part: Json, name: str, key: str, above: str) -> dict[str, int]:
        def report(path: str, text: str, fix: str) -> None:
            self.problems.report(key, path, text, fix)

        return dict(read_amounts(part.get(name), f"{above}.{name}", report))

    def _weight(self, key: str, spec: Json) -> int | None:
        weight = spec.get("weight")
        if weight is None:
            return None
        if isinstance(weight, int) and not isinstance(weight, bool) and 0 < weight <= WEIGHT_MAX:
            return weight
        self.problems.report(key, "spec.weight", f"{weight!r:.63} is not a weight", "write a whole number, 1 or more")
        return None

    def _report_losses(self, key: str, one: Json, spec: Json) -> None:
        carried = ("parent", "deserved", "capability", "guarantee", "weight", "reclaimable")
        self.losses.report_others(key, "spec", spec, carried)
        if spec.get("reclaimable") is False:
            what = "not converted; what it borrows can be reclaimed (its guarantee is never lent)"
            self.losses.report(key, "spec.reclaimable", what)
        metadata = part_of(one, "metadata", key, "", self.problems)
        annotations = part_of(metadata, "annotations", key, "metadata", self.problems)
        for name in HIERARCHY:
            if name in annotations:
                what = "not converted; the hierarchy is read from spec.parent"
                self.losses.report(key, f"metadata.annotations[{name}]", what)

    def _link(self) -> None:
        for name, parent in self._parents.items():
            draft = self._queues[name]
            if parent not in self._queues:
                self.problems.report(
                    draft.key, "spec.parent", f"queue {parent} is not given", "give it too, or name another"
                )
                continue
            above, steps = parent, 1
            while above in self._parents and above != name and steps <= DEPTH_MAX:
                above, steps = self._parents[above], steps + 1
            if above == name or steps > DEPTH_MAX:
                what = f"it is below itself, or below more than {DEPTH_MAX} others"
                self.problems.report(draft.key, "spec.parent", what, f"name a parent that leads to {ROOT}")
            else:
                self._queues[parent].children.append(draft)

    def _read_namespaces(self) -> None:
        owners = NamespaceOwners(self.losses)
        for key, name, one in self._objects.of(NAMESPACE):
            metadata = part_of(one, "metadata", key, "", self.problems)
            annotations = part_of(metadata, "annotations", key, "metadata", self.problems)
            queue = text_of(annotations, QUEUE_NAME, key, "metadata.annotations", self.problems)
            self._own(owners, name, queue, key, f"metadata.annotations[{QUEUE_NAME}]")
        for key, _, one in self._objects.of(POD_GROUP):
            metadata = part_of(one, "metadata", key, "", self.problems)
            spec = part_of(one, "spec", key, "", self.problems)
            namespace = text_of(metadata, "namespace", key, "metadata", self.problems)
            self._own(owners, namespace, text_of(spec, "queue", key, "spec", self.problems), key, "spec.queue")

    def _own(self, owners: NamespaceOwners, namespace: str, queue: str, key: str, path: str) -> None:
        if not namespace or not queue:
            return
        draft = self._queues.get(queue)
        if draft is None:
            self.losses.report(key, path, f"queue {queue} is not given; its pods have no quota")
        elif draft.children or draft is self.root:
            self.losses.report(key, path, f"queue {queue} has others below it; its pods have no quota")
        else:
            owners.give(namespace, draft, key, path)

    def _sum_up(self) -> None:
        """Sets the min of a queue with children to the sum of theirs, for resources that it does not name."""
        for draft in reversed(list(self.root.below())):
            for resource, amount in sum_of([child.min for child in draft.children]).items():
                draft.min.setdefault(resource, amount)

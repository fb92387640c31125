"""A plugin that writes statuses of objects: the number of pods on nodes, to the PodDisruptionBudgets of each namespace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from multisched.framework.context import PluginContext
from multisched.framework.object_status import ObjectCondition, ObjectStatus
from multisched.framework.status import SUCCESS, Status
from multisched.framework.traits import Traits
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod

KIND: Final = ObjectKind.POD_DISRUPTION_BUDGET
HEADCOUNT: Final = "Headcount"
CONDITION: Final = "PodsCounted"


def sentence(count: int) -> str:
    """Returns the message of the condition."""
    return f"{count} pods stand in the namespace"


class HeadLedger:
    """A `ClusterLedger` of the namespaces of placed pods and their numbers. It refuses no pod.

    All domains of a process share one ledger.
    """

    name = HEADCOUNT
    plugin = HEADCOUNT
    condition_reason = ""

    def __init__(self, context: PluginContext | None) -> None:
        """`context`: None for a copy, which marks no statuses."""
        self._context = context
        self._namespaces: dict[str, str] = {}
        self._version = 0
        self.counts: Counter[str] = Counter()

    def is_used_by(self, pod: Pod) -> bool:
        return True

    def version(self) -> int:
        return self._version

    def fits(self, pod: Pod) -> str:
        return ""

    def take(self, pod: Pod) -> None:
        if pod.uid not in self._namespaces:
            self._namespaces[pod.uid] = pod.namespace
            self._count(pod.namespace, 1)

    restore = take

    def release(self, uid: str) -> None:
        namespace = self._namespaces.pop(uid, None)
        if namespace is not None:
            self._count(namespace, -1)

    def held(self) -> Mapping[str, object]:
        return self._namespaces

    def sums(self) -> object:
        return {namespace: count for namespace, count in self.counts.items() if count}

    def recount(self) -> None:
        before, self.counts = self.counts, Counter(self._namespaces.values())
        self._version += 1
        for namespace in {*before, *self.counts}:
            if before[namespace] != self.counts[namespace]:
                self._mark(namespace)

    def empty_copy(self) -> HeadLedger:
        return HeadLedger(None)

    def _count(self, namespace: str, change: int) -> None:
        self.counts[namespace] += change
        if not self.counts[namespace]:
            del self.counts[namespace]
        self._version += 1
        self._mark(namespace)

    def _mark(self, namespace: str) -> None:
        if self._context is not None:
            for budget in self._context.objects.in_namespace(KIND, namespace):
                self._context.statuses.mark(KIND, namespace, budget.name)


class Headcount:
    """Writes to each budget the number of placed pods in its namespace; to a malformed one, what is wrong with it."""

    name = HEADCOUNT
    traits = Traits(reads_objects=(KIND,))
    status_kinds = (KIND,)

    def __init__(self, context: PluginContext) -> None:
        ledger = context.hold.register(HeadLedger(context))
        assert isinstance(ledger, HeadLedger)
        self._ledger = ledger
        self._objects = context.objects

    def pre_enqueue(self, pod: Pod) -> Status:
        return SUCCESS

    def status_of(self, kind: ObjectKind, namespace: str, name: str) -> ObjectStatus | None:
        budget = self._objects.get(kind, namespace, name)
        if budget is None:
            return None
        if budget.malformed:
            return ObjectStatus(
                budget.uid, conditions=(ObjectCondition(CONDITION, "False", "Broken", budget.malformed),)
            )
        said = ObjectCondition(CONDITION, "True", "Counted", sentence(self._ledger.counts[namespace]))
        return ObjectStatus(budget.uid, conditions=(said,))

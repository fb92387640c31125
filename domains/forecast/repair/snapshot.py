"""The snapshot: converts a copy of the cluster to the input of the planner (`repair/case.py`).

Loads come from the ledger, so they equal those of score and filter: all assumed and confirmed pods of all domains. Curves
of pods nominated to a row are added, as in the filter. Pods are all pods on the domain's rows, of any scheduler;
`repair/rules.py` decides which of them may move. Read-only; takes some seconds for 100,000 pods, so it must not run on
the event loop.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Mapping
from typing import Final, TypeVar

import msgspec
import numpy as np

from domains.forecast.curves.quantized_profiles import Quanta, QuantizedProfiles
from domains.forecast.ledger.peak_ledger import PeakLedger
from domains.forecast.repair.case import MOVABLE, NO_GANG, Disruptions, Floats, Ints, Nodes, Pods, RepairCase
from domains.forecast.repair.rules import group_of, why_fixed
from domains.forecast.service import service_of
from multisched.framework.node_view import Amount
from multisched.framework.objects_view import ObjectsView
from multisched.framework.repair import RepairInput, RepairRefusedError
from multisched.model.cluster_objects import PodDisruptionBudget, ResourceQuota
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import PODS, Pod, Requests

NO_LIMIT: Final = 1 << 60
"""Unused quota of a namespace without quotas."""
NOTHING: Final = 1e-12
"""Milli-units: used for a stated capacity of zero, so that any use exceeds it."""
COLUMNS: Final = 7
"""Numbers stored per pod."""
UNREADABLE_BUDGET: Final = "a PodDisruptionBudget of its namespace cannot be read"
_LIMITS: Final = "limits."
_REQUESTS: Final = "requests."

K = TypeVar("K", bound=Hashable)


class Snapshot(msgspec.Struct, frozen=True):
    """The case, with the pods and services that its numbers refer to."""

    case: RepairCase
    pods: tuple[Pod, ...]
    services: tuple[str, ...]
    notes: tuple[str, ...]


class _Numbers(dict[K, int]):
    """Assigns consecutive numbers to keys on first access."""

    def __missing__(self, key: K) -> int:
        self[key] = number = len(self)
        return number


def take_snapshot(cluster: RepairInput, ledger: PeakLedger, ours: frozenset[str] | None) -> Snapshot:
    """Takes a snapshot. `ours`: schedulers whose pods may move; None: all. Raises RepairRefusedError if planning is impossible."""
    quantized = ledger.predictor.quantized
    if quantized is None:
        raise RepairRefusedError(
            "no profiles are active yet, so no peak is predicted; name historyDir, files, history or profilesFile "
            "in the args of PeakForecast, or wait for the first refit",
            status=409,
        )
    if not len(cluster.rows):
        raise RepairRefusedError("the domain has no nodes; check its node selection in the configuration", status=409)
    hidden = cluster.objects.unreadable(ObjectKind.POD_DISRUPTION_BUDGET)
    if hidden:
        raise RepairRefusedError(f"PodDisruptionBudgets cannot be read ({hidden}); without them no pod is moved", 409)
    at = {row: number for number, row in enumerate(cluster.rows.tolist())}
    placed = [(pod, at[row]) for pod, row in cluster.placed if row in at]
    nominated = [(pod, at[row]) for pod, row in cluster.nominated if row in at]
    pods = _PodColumns(cluster, ledger, ours, placed)
    capacity = ledger.capacity(cluster.rows).T / 1.0
    capacity = np.where(capacity < 0, np.nan, np.maximum(capacity, NOTHING))
    resources = _resources(pods.distinct_requests())
    quotas = Quotas(cluster.objects)
    case = RepairCase(
        dimensions=quantized.dimensions,
        nodes=Nodes(
            names=tuple(cluster.nodes.node(row).name for row in at),
            loads=_loads(cluster, ledger, quantized, capacity, nominated),
            capacity=capacity,
            free=_free(cluster, resources, nominated),
        ),
        pods=pods.columns(resources),
        curves=pods.curves(quantized),
        disruptions=disruptions(cluster.objects, [pod for pod, _ in placed]),
        gang_spare=np.zeros(pods.gangs, np.int64),
        quota_room=quotas.room(pods.namespaces, resources),
        fixed_reasons=pods.reasons,
    )
    notes = (*quotas.notes(pods.namespaces), *_unstated(quantized, capacity))
    return Snapshot(case, tuple(pod for pod, _ in placed), pods.services, notes)


def _loads(
    cluster: RepairInput,
    ledger: PeakLedger,
    quantized: QuantizedProfiles,
    capacity: Floats,
    nominated: Iterable[tuple[Pod, int]],
) -> Floats:
    """Returns float64[nodes, dimensions, slots] in shares of capacity; NaN where a node states none."""
    loads: Floats = ledger.settled(cluster.rows).of(cluster.rows) * quantized.quantum_milli
    for pod, number in nominated:
        curve = ledger.predictor.predict(pod).curve
        if curve is not None:
            loads[number] += curve.quanta * quantized.quantum_milli
    loads /= capacity[:, :, None]
    return loads


def _free(cluster: RepairInput, resources: tuple[str, ...], nominated: Iterable[tuple[Pod, int]]) -> Ints:
    """Returns int64[nodes, resources]: allocatable - requests of pods on the row and of pods nominated to it."""
    allocatable = cluster.nodes.amounts(Amount.ALLOCATABLE, resources, cluster.rows)
    requested = cluster.nodes.amounts(Amount.REQUESTED, resources, cluster.rows)
    free: Ints = np.ascontiguousarray((allocatable - requested).T)
    for pod, number in nominated:
        free[number] -= [1 if name == PODS else pod.requests.get(name, 0) for name in resources]
    return free


def _resources(requests: Iterable[Requests]) -> tuple[str, ...]:
    """Returns PODS and all resources requested by a pod."""
    return (PODS, *sorted({name for one in requests for name in one} - {PODS}))


def _unstated(quantized: QuantizedProfiles, capacity: Floats) -> Iterable[str]:
    for name, stated in zip(quantized.dimensions, np.isfinite(capacity).T, strict=True):
        if not stated.all():
            lacking = len(stated) - int(np.count_nonzero(stated))
            yield f"{name}: {lacking} of {len(stated)} nodes do not state their capacity; the dimension is ignored there"


class _PodColumns:
    """The pods on the domain's rows, with the numbers of their curves, services, namespaces, gangs, reasons and requests."""

    def __init__(
        self, cluster: RepairInput, ledger: PeakLedger, ours: frozenset[str] | None, placed: list[tuple[Pod, int]]
    ) -> None:
        nodes = [cluster.nodes.node(row) for row in cluster.rows.tolist()]
        marks, services, namespaces, gangs = _Numbers[Hashable](), _Numbers[str](), _Numbers[str](), _Numbers[str]()
        reasons = _Numbers[str]({MOVABLE: 0})
        broken = _unreadable_budgets(cluster.objects)
        self._placed = placed
        self._requests = _Numbers[int]()
        self._by_number: list[Requests] = []
        self._quanta: list[Quanta] = []
        rows = array("q")  # converting a list of tuples with numpy would hold the GIL for long
        for pod, number in placed:
            curve = ledger.predictor.predict(pod).curve
            assert curve is not None, "a predictor with profiles predicts curves"
            of_curve = marks[curve.mark]
            if of_curve == len(self._quanta):
                self._quanta.append(curve.quanta)
            requests = pod.requests
            of_requests = self._requests[id(requests)]  # specs live as long as this copy, so ids stay unique
            if of_requests == len(self._by_number):
                self._by_number.append(requests)
            group = group_of(pod)
            why = why_fixed(pod, nodes[number], cluster.objects, ours)
            if not why and pod.namespace in broken:
                why = UNREADABLE_BUDGET
            service = service_of(pod) or pod.name
            rows.extend((
                number, of_curve, services[f"{pod.namespace}/{service}"], namespaces[pod.namespace],
                gangs[f"{pod.namespace}/{group}"] if group else NO_GANG, reasons[why], of_requests,
            ))  # fmt: skip
        self._rows: Ints = np.frombuffer(rows, np.int64).reshape(-1, COLUMNS)
        self.services = tuple(services)
        self.namespaces = tuple(namespaces)
        self.gangs = len(gangs)
        self.reasons = tuple(reasons)

    def distinct_requests(self) -> Iterable[Requests]:
        return self._by_number

    def columns(self, resources: tuple[str, ...]) -> Pods:
        """Returns the pods of the case; columns of requests are in the order of `resources`."""
        asked = [[1 if name == PODS else one.get(name, 0) for name in resources] for one in self._by_number]
        table: Ints = np.array(asked, np.int64).reshape(-1, len(resources))
        node, curve, service, namespace, gang, fixed, requests = self._rows.T
        return Pods(
            names=tuple(pod.key for pod, _ in self._placed),
            node=node,
            curve=curve,
            service=service,
            namespace=namespace,
            requests=table[requests],
            gang=gang,
            fixed=fixed.astype(np.uint8),
            cold_start=np.zeros(len(fixed), np.uint8),
        )

    def curves(self, quantized: QuantizedProfiles) -> Floats:
        """Returns float64[curves, dimensions, slots], in milli-units."""
        curves: Floats = np.empty((len(self._quanta), len(quantized.dimensions), quantized.profiles.slots))
        for number, quanta in enumerate(self._quanta):
            curves[number] = quanta * quantized.quantum_milli
        return curves


def disruptions(objects: ObjectsView, pods: Iterable[Pod]) -> tuple[Disruptions, ...]:
    """Returns the pods of each budget, as the eviction API selects them: an empty selector selects all pods of its
    namespace, a missing selector none.

    Source: kube-apiserver 1.36, pkg/registry/core/pod/storage/eviction.go, getPodDisruptionBudgets.
    """
    budgets = [b for b in objects.all(ObjectKind.POD_DISRUPTION_BUDGET) if isinstance(b, PodDisruptionBudget)]
    namespaces = {budget.namespace for budget in budgets}
    # Pods of a workload share one labels mapping, so each distinct mapping is matched once.
    by_labels: dict[str, dict[int, tuple[Mapping[str, str], list[int]]]] = {}
    for number, pod in enumerate(pods):
        if pod.namespace in namespaces:
            by_labels.setdefault(pod.namespace, {}).setdefault(id(pod.labels), (pod.labels, []))[1].append(number)
    found = []
    for budget in budgets:
        selector = budget.selector
        if selector is None or budget.malformed:
            continue
        sets = by_labels.get(budget.namespace, {}).values()
        members = [number for labels, numbers in sets if selector.matches(labels) for number in numbers]
        if members:
            found.append(Disruptions(budget.key, max(0, budget.disruptions_allowed), tuple(sorted(members))))
    return tuple(found)


def _unreadable_budgets(objects: ObjectsView) -> frozenset[str]:
    """Returns the namespaces with malformed budgets, whose pods cannot be determined."""
    return frozenset(one.namespace for one in objects.all(ObjectKind.POD_DISRUPTION_BUDGET) if one.malformed)


class Quotas:
    """Unused ResourceQuota of each namespace. Quotas with scopes are reported, but not evaluated."""

    def __init__(self, objects: ObjectsView) -> None:
        self._hidden = objects.unreadable(ObjectKind.RESOURCE_QUOTA)
        self._by_namespace: dict[str, list[ResourceQuota]] = {}
        for one in objects.all(ObjectKind.RESOURCE_QUOTA):
            if isinstance(one, ResourceQuota):
                self._by_namespace.setdefault(one.namespace, []).append(one)

    def room(self, namespaces: tuple[str, ...], resources: tuple[str, ...]) -> Ints:
        """Returns int64[namespaces, resources]: unused quota; no rows if no namespace has a quota."""
        if not any(name in self._by_namespace for name in namespaces):
            return np.zeros((0, 0), np.int64)
        found: Ints = np.full((len(namespaces), len(resources)), NO_LIMIT, np.int64)
        for number, namespace in enumerate(namespaces):
            for quota in self._by_namespace.get(namespace, ()):
                if not quota.is_scoped:
                    found[number] = np.minimum(found[number], [_room(quota, name) for name in resources])
        return found

    def notes(self, namespaces: tuple[str, ...]) -> Iterable[str]:
        if self._hidden:
            yield f"ResourceQuotas cannot be read ({self._hidden}): whether they have room for replacements is unknown"
        scoped = [q.key for n in namespaces for q in self._by_namespace.get(n, ()) if q.is_scoped]
        if scoped:
            yield f"{len(scoped)} ResourceQuotas with scopes are not evaluated, such as {scoped[0]}"


def _room(quota: ResourceQuota, resource: str) -> int:
    """Returns the unused quota of one resource.

    Limits of pods are not known here, so quotas of limits are only checked for being used up; then no further pod fits. A
    malformed quota counts as used up.
    """
    if quota.malformed:
        return 0
    left = {name: hard - quota.used.get(name, 0) for name, hard in quota.hard.items()}
    names = (PODS, "count/pods") if resource == PODS else (resource, f"{_REQUESTS}{resource}")
    room = min((left[name] for name in names if name in left), default=NO_LIMIT)
    if resource == PODS and any(amount <= 0 for name, amount in left.items() if name.startswith(_LIMITS)):
        return 0
    return room

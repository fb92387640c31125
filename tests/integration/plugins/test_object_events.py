"""Events of any watched kind through the whole program: a raised quota wakes whom it held, and nobody else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from multisched.framework.context import PluginContext
from multisched.framework.events import Action, ClusterEvent, EventObject, EventRegistration, Hint
from multisched.framework.points import PreFilterResult
from multisched.framework.status import SUCCESS, Status
from multisched.framework.traits import Traits
from multisched.model.cluster_objects import ResourceQuota
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod
from multisched.queueing.transitions import QueueState
from tests.integration.plugins.program_cluster import ProgramCluster, in_virtual_time, one_domain, open_cluster

SEATS = "requests.example.com/seats"
QUOTAS = "namespaces/{}/resourcequotas"


class SeatQuota:
    """Refuses a pod whose label `seats` asks for more than a ResourceQuota of its namespace grants."""

    name = "SeatQuota"
    traits = Traits(reads_objects=(ObjectKind.RESOURCE_QUOTA,))

    def __init__(self, args: Mapping[str, Any], context: PluginContext) -> None:
        self._objects = context.objects

    def pre_filter(self, cycle: Any, pod: Pod) -> PreFilterResult:
        quotas = self._objects.in_namespace(ObjectKind.RESOURCE_QUOTA, pod.namespace)
        is_held = any(not self._grants(quota, pod) for quota in quotas)
        return PreFilterResult(Status.unschedulable("too few seats") if is_held else SUCCESS)

    def events_to_register(self) -> Sequence[EventRegistration]:
        return (EventRegistration(ClusterEvent(ObjectKind.RESOURCE_QUOTA, Action.UPDATE), self._after_update),)

    def _after_update(self, pod: Pod, old: EventObject, new: EventObject) -> Hint:
        is_own = new is not None and isinstance(new, ResourceQuota) and new.namespace == pod.namespace
        return Hint.QUEUE if is_own and self._grants(new, pod) else Hint.SKIP

    @staticmethod
    def _grants(quota: object, pod: Pod) -> bool:
        assert isinstance(quota, ResourceQuota)
        return int(pod.labels.get("seats", "0")) <= quota.hard[SEATS]


class WokenByAnything:
    """Refuses pods labelled `never`, and registers no event."""

    name = "WokenByAnything"

    def pre_filter(self, cycle: Any, pod: Pod) -> PreFilterResult:
        return PreFilterResult(Status.unschedulable("never") if "never" in pod.labels else SUCCESS)


HERE = "tests.integration.plugins.test_object_events"
SEAT_QUOTA, WOKEN_BY_ANYTHING = {"name": f"{HERE}:SeatQuota"}, {"name": f"{HERE}:WokenByAnything"}


async def quota(cluster: ProgramCluster, namespace: str) -> None:
    await cluster.post(QUOTAS.format(namespace), "seats", {}, spec={"hard": {SEATS: "1"}})


async def asking_for_seats(cluster: ProgramCluster, name: str, seats: int, namespace: str = "default") -> None:
    spec = {"schedulerName": "tests-scheduler", "containers": [{"name": "main", "image": "app:v1"}]}
    await cluster.post(f"namespaces/{namespace}/pods", name, {"labels": {"seats": str(seats)}}, spec=spec)


def requeue_events(cluster: ProgramCluster) -> dict[str, set[str]]:
    """Returns, for each queued pod, the events that moved it."""
    queue = cluster.worker().queue
    return {entry.pod.name: {event for _, event, _ in queue.transitions(entry.uid)} for entry in queue.entries()}


def parked(cluster: ProgramCluster) -> set[str]:
    return {entry.pod.name for entry in cluster.worker().queue.entries() if entry.state is QueueState.UNSCHEDULABLE}


def test_raised_quota_requeues_only_the_pod_it_blocked() -> None:
    async def main() -> None:
        async with open_cluster(one_domain(SEAT_QUOTA, WOKEN_BY_ANYTHING)) as cluster:
            await cluster.node("n")
            await cluster.post("namespaces", "other", {})
            for namespace in ("default", "other"):
                await quota(cluster, namespace)
            store = cluster.program.cache.objects
            await cluster.until(lambda: len(store.all(ObjectKind.RESOURCE_QUOTA)) == 2)
            await asking_for_seats(cluster, "held", 2)
            await asking_for_seats(cluster, "greedy", 3)
            await asking_for_seats(cluster, "elsewhere", 2, "other")
            await cluster.pod("too-big", cpu="100")
            await cluster.pod("never", labels={"never": "yes"})
            others = {"greedy", "elsewhere", "too-big", "never"}
            await cluster.until(lambda: parked(cluster) == {"held", *others})

            await cluster.patch(f"{QUOTAS.format('default')}/seats", {"spec": {"hard": {SEATS: "2"}}})
            await cluster.bound("held", within_s=5.0)
            waiting = requeue_events(cluster)
            assert waiting.keys() == others
            assert not any("ResourceQuotaUpdate" in main for main in waiting.values())
            await cluster.at_rest()

    in_virtual_time(main)


def test_unregistered_kind_requeues_no_pod() -> None:
    async def main() -> None:
        async with open_cluster(one_domain(WOKEN_BY_ANYTHING)) as cluster:
            await cluster.node("n")
            await cluster.pod("never", labels={"never": "yes"})
            await cluster.until(lambda: parked(cluster) == {"never"})
            before = requeue_events(cluster)
            await cluster.post(
                "namespaces/default/services", "web", {}, spec={"selector": {"app": "web"}, "ports": [{"port": 80}]}
            )
            store = cluster.program.cache.objects
            await cluster.until(lambda: bool(store.services("default")))
            assert parked(cluster) == {"never"}
            assert requeue_events(cluster) == before

    in_virtual_time(main)

"""Who hears of what: domains of the nodes they may use, waiting pods of what may help them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from multisched.framework.events import Action, ClusterEvent, EventRegistration, EventResource, Resource
from multisched.framework.points import CycleView, PreFilterResult
from multisched.framework.ports import Condition
from multisched.framework.status import SUCCESS, Status
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod
from multisched.queueing.transitions import QueueState
from multisched.shell.ingest.pods_and_nodes import UNSCHEDULED_POD_ADD
from multisched.testing.sim_loop import SimLoop, simulate
from tests.unit.shell.shell_kit import WorkerHarness

ELSEWHERE = {"domain": "other"}
PATIENCE_S = 20.0
"""Longer than any backoff, far shorter than the leftover flush."""


def play(scene: Callable[[WorkerHarness], Coroutine[Any, Any, None]], *nodes: str, filters: Sequence[str] = ()) -> None:
    loop = SimLoop(seed=3)

    async def main() -> None:
        harness = WorkerHarness(loop, *nodes, filters=filters)
        task = asyncio.ensure_future(harness.worker.run())
        harness.worker.lead()
        await scene(harness)
        task.cancel()
        harness.cache.validate()

    simulate(main(), loop)


def attempts(harness: WorkerHarness, name: str) -> int:
    entry = harness.worker.queue.entry(f"uid-{name}")
    assert entry is not None
    return entry.attempts


def test_node_joining_the_domain_requeues_pods_without_room() -> None:
    async def scene(harness: WorkerHarness) -> None:
        harness.see_node("big", cpu="64", labels=ELSEWHERE)
        harness.see_pod("p", cpu="32")
        await asyncio.sleep(PATIENCE_S)
        assert harness.worker.queue.where("uid-p") is QueueState.UNSCHEDULABLE
        harness.see_node("big", cpu="64")
        await asyncio.sleep(PATIENCE_S)
        assert harness.node_of("p") == "big"

    play(scene, "small")


def test_node_of_another_domain_requeues_no_pod() -> None:
    async def scene(harness: WorkerHarness) -> None:
        harness.see_pod("p", cpu="32")
        await asyncio.sleep(PATIENCE_S)
        before = attempts(harness, "p")
        harness.see_node("big", cpu="64", labels=ELSEWHERE)
        harness.see_node("big", cpu="128", labels=ELSEWHERE)
        harness.lose_node("big")
        await asyncio.sleep(PATIENCE_S)
        assert attempts(harness, "p") == before

    play(scene, "small")


def test_fixed_node_counts_as_added() -> None:
    async def scene(harness: WorkerHarness) -> None:
        harness.see_node("big", cpu="lots")
        harness.see_pod("p", cpu="32")
        await asyncio.sleep(PATIENCE_S)
        assert harness.node_of("p") is None
        harness.see_node("big", cpu="64")
        await asyncio.sleep(PATIENCE_S)
        assert harness.node_of("p") == "big"

    play(scene, "small")


def test_replaced_node_counts_as_added() -> None:
    async def scene(harness: WorkerHarness) -> None:
        harness.see_pod("p", cpu="32")
        await asyncio.sleep(PATIENCE_S)
        harness.see_node("small", cpu="64", uid="another")
        await asyncio.sleep(PATIENCE_S)
        assert harness.node_of("p") == "small"

    play(scene, "small")


def test_cordoned_node_requeues_no_pod() -> None:
    async def scene(harness: WorkerHarness) -> None:
        taint = {"key": "k", "effect": "NoSchedule"}
        harness.see_node("small", taints=[taint])
        harness.see_pod("p")
        await asyncio.sleep(PATIENCE_S)
        before = attempts(harness, "p")
        harness.see_node("small", taints=[taint], unschedulable=True)
        await asyncio.sleep(PATIENCE_S)
        assert attempts(harness, "p") == before

    play(scene, "small")


def test_pod_relabelled_and_shrunk_at_once_sends_both_events() -> None:
    async def scene(harness: WorkerHarness) -> None:
        harness.see_pod("large", cpu="2", nodeName="small", phase="Running")
        harness.see_pod("p", cpu="1")
        await asyncio.sleep(PATIENCE_S)
        assert harness.node_of("p") is None
        harness.see_pod("large", cpu="1", nodeName="small", phase="Running", metadata={"labels": {"a": "b"}})
        await asyncio.sleep(PATIENCE_S)
        assert harness.node_of("p") == "small"

    play(scene, "small")


@pytest.mark.parametrize("ends", ["deleted", "nominated elsewhere"])
@pytest.mark.parametrize(("priority", "hears"), [(5, True), (0, True), (6, False)])
def test_ended_nomination_requeues_only_the_pods_it_blocked(ends: str, priority: int, hears: bool) -> None:
    async def scene(harness: WorkerHarness) -> None:
        harness.worker.intake.is_leading = False
        harness.see_pod("promised", priority=5, status={"nominatedNodeName": "small"})
        harness.see_pod("p", cpu="32", priority=priority)
        harness.worker.queue.remove("uid-promised")
        harness.worker.lead()
        await asyncio.sleep(PATIENCE_S)
        before = attempts(harness, "p")
        if ends == "deleted":
            harness.lose_pod("promised")
        else:
            harness.see_pod("promised", priority=5, status={"nominatedNodeName": "other"})
        await asyncio.sleep(PATIENCE_S)
        assert (attempts(harness, "p") > before) is hears

    play(scene, "small")


def test_pod_deleted_in_another_domain_requeues_no_pod_waiting_for_room() -> None:
    async def scene(harness: WorkerHarness) -> None:
        harness.see_node("other", labels=ELSEWHERE)
        harness.see_pod("there", nodeName="other", phase="Running")
        harness.see_pod("here", nodeName="small", phase="Running")
        harness.see_pod("p", cpu="32")
        await asyncio.sleep(PATIENCE_S)
        before = attempts(harness, "p")
        harness.lose_pod("there")
        await asyncio.sleep(PATIENCE_S)
        assert attempts(harness, "p") == before
        harness.lose_pod("here")
        await asyncio.sleep(PATIENCE_S)
        assert attempts(harness, "p") == before + 1

    play(scene, "small")


SPREAD = {
    "maxSkew": 1,
    "topologyKey": "zone",
    "whenUnsatisfiable": "DoNotSchedule",
    "labelSelector": {"matchLabels": {"app": "web"}},
}
WEB = {"labels": {"app": "web"}}


@pytest.mark.parametrize("why", ["withheld", "unreadable"])
@pytest.mark.parametrize("change", ["its pod goes", "it goes", "it changes its zone", "it is lent out"])
def test_spread_pods_are_requeued_by_counted_unschedulable_nodes(why: str, change: str) -> None:
    """One zone is full of the pod's kind, the other is empty or has but one node, which takes no pods."""
    is_emptied = change == "its pod goes"

    async def scene(harness: WorkerHarness) -> None:
        harness.see_node("small", labels={"zone": "a"})
        harness.see_node("shut", labels={"zone": "b"}, taints=[{"key": "k", "effect": "NoSchedule"}])
        if is_emptied:
            harness.see_pod("there", metadata=WEB, nodeName="odd", phase="Running")
        else:
            harness.see_pod("far", metadata=WEB, nodeName="shut", phase="Running")
            harness.see_pod("near", metadata=WEB, nodeName="small", phase="Running")
        cpu = "lots" if why == "unreadable" else "4"
        harness.domain.rows.may_join = lambda node: False
        harness.see_node("odd", cpu=cpu, labels={"zone": "a" if is_emptied else "c"})
        harness.see_pod("p", metadata=WEB, topologySpreadConstraints=[SPREAD])
        await asyncio.sleep(PATIENCE_S)
        assert harness.worker.queue.where("uid-p") is QueueState.UNSCHEDULABLE
        if is_emptied:
            harness.lose_pod("there")
        elif change == "it goes":
            harness.lose_node("odd")
        elif change == "it is lent out":
            harness.see_node("odd", cpu=cpu, labels={"zone": "c", **ELSEWHERE})
        else:
            harness.see_node("odd", cpu=cpu, labels={"zone": "b"})
        await asyncio.sleep(PATIENCE_S)
        assert harness.node_of("p") == "small"

    play(scene, filters=("PodTopologySpread",))


SERIES = {
    "podAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}}}
        ]
    }
}


@pytest.mark.parametrize("change", ["deleted", "Succeeded", "relabelled", "its node deleted", "the key removed"])
@pytest.mark.parametrize("home", ["ours", "another domain"])
def test_first_self_affinity_pod_is_requeued_by_the_last_match_elsewhere(home: str, change: str) -> None:
    """The pod matches its own affinity. The only other match is where the pod cannot go."""
    of_node = ELSEWHERE if home == "another domain" else {}
    taints = [{"key": "k", "effect": "NoSchedule"}]

    async def scene(harness: WorkerHarness) -> None:
        harness.see_node("small", labels={"zone": "a"})
        harness.see_node("full", labels={"zone": "b", **of_node}, taints=taints)
        harness.see_pod("last", metadata=WEB, nodeName="full", phase="Running")
        harness.see_pod("p", metadata=WEB, affinity=SERIES)
        await asyncio.sleep(PATIENCE_S)
        assert harness.worker.queue.where("uid-p") is QueueState.UNSCHEDULABLE
        if change == "deleted":
            harness.lose_pod("last")
        elif change == "Succeeded":
            harness.see_pod("last", metadata=WEB, nodeName="full", phase="Succeeded")
        elif change == "relabelled":
            harness.see_pod("last", metadata={"labels": {"app": "db"}}, nodeName="full", phase="Running")
        elif change == "its node deleted":
            harness.lose_node("full")
        else:
            harness.see_node("full", labels=of_node, taints=taints)
        await asyncio.sleep(PATIENCE_S)
        assert harness.node_of("p") == "small"

    play(scene, filters=("InterPodAffinity",))


def test_spread_pod_is_requeued_when_a_counted_pod_is_deleting() -> None:
    async def scene(harness: WorkerHarness) -> None:
        harness.see_node("small", labels={"zone": "a"})
        harness.see_node("shut", labels={"zone": "b"}, taints=[{"key": "k", "effect": "NoSchedule"}])
        harness.see_pod("there", metadata=WEB, nodeName="small", phase="Running")
        harness.see_pod("p", metadata=WEB, topologySpreadConstraints=[SPREAD])
        await asyncio.sleep(PATIENCE_S)
        assert harness.worker.queue.where("uid-p") is QueueState.UNSCHEDULABLE
        ending = {**WEB, "deletionTimestamp": "2026-01-01T00:00:00Z"}
        harness.see_pod("there", metadata=ending, nodeName="small", phase="Running")
        await asyncio.sleep(PATIENCE_S)
        assert harness.node_of("p") == "small"

    play(scene, filters=("PodTopologySpread",))


def test_pod_deleted_before_its_bind_was_seen_frees_its_node() -> None:
    """Bound and deleted while nobody watched: its last known state names no node, but it stood on one (seed 50157)."""

    async def scene(harness: WorkerHarness) -> None:
        harness.see_pod("brief", cpu="2")
        await asyncio.sleep(PATIENCE_S)
        assert harness.cache.is_assumed("uid-brief")
        harness.see_pod("late", cpu="2")
        await asyncio.sleep(PATIENCE_S)
        assert harness.worker.queue.where("uid-late") is QueueState.UNSCHEDULABLE
        harness.lose_pod("brief")
        await asyncio.sleep(PATIENCE_S)
        assert harness.node_of("late") == "small"

    play(scene, "small")


def test_pod_change_is_announced_only_if_registered() -> None:
    async def scene(harness: WorkerHarness) -> None:
        def label_of(resource: EventResource) -> str:
            event = ClusterEvent(resource, Action.ADD, "Something")
            return harness.router.label_of(lambda: harness.router.notify(event, None, None, harness.clock.monotonic()))

        assert label_of(ObjectKind.SERVICE) == ""
        assert label_of(Resource.NODE) == "Something"

    play(scene, "small")


class WaitsForCompany:
    """A plugin whose refusals may end when another pod comes."""

    name = "WaitsForCompany"

    def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
        return PreFilterResult(Status.unschedulable("it is alone"))

    def events_to_register(self) -> Sequence[EventRegistration]:
        return (EventRegistration(UNSCHEDULED_POD_ADD, None),)


@pytest.mark.parametrize("is_heard", [True, False])
def test_added_pod_requeues_only_pods_of_registered_plugins(is_heard: bool) -> None:
    loop = SimLoop(seed=3)

    async def main() -> None:
        harness = WorkerHarness(loop, "a", plugins=[WaitsForCompany()] if is_heard else [])
        task = asyncio.ensure_future(harness.worker.run())
        harness.worker.lead()
        harness.see_pod("first", cpu="32")
        await asyncio.sleep(PATIENCE_S)
        assert harness.worker.queue.where("uid-first") is QueueState.UNSCHEDULABLE
        before = attempts(harness, "first")
        harness.see_pod("second")
        await asyncio.sleep(PATIENCE_S)
        assert attempts(harness, "first") == before + is_heard
        task.cancel()

    simulate(main(), loop)


class Quota:
    """Lets pods into the queue as long as it is open."""

    name = "Quota"
    is_open = True

    def pre_enqueue(self, pod: Pod) -> Status:
        return SUCCESS if self.is_open else Status.unresolvable("the quota is used up")


def test_requeued_pod_refused_by_a_gate_is_reported() -> None:
    quota, loop = Quota(), SimLoop(seed=3)

    async def main() -> None:
        harness = WorkerHarness(loop, "a", plugins=[quota])
        task = asyncio.ensure_future(harness.worker.run())
        harness.worker.lead()
        harness.see_pod("first", cpu="32")
        await asyncio.sleep(PATIENCE_S)
        before, events = len(harness.desk.conditions), len(harness.desk.events)
        quota.is_open = False
        harness.see_node("big", cpu="64")
        await asyncio.sleep(PATIENCE_S)
        assert harness.worker.queue.where("uid-first") is QueueState.GATED
        told = Condition("False", "SchedulingGated", "the quota is used up")
        assert harness.desk.conditions[before:] == [("first", told)]
        assert len(harness.desk.events) == events, "to be held is no failure"
        assert harness.node_of("first") is None
        task.cancel()

    simulate(main(), loop)

"""DomainMover: whom it counts as a pod's replicas, and which budgets keep a pod where it is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from typing import Any, cast

import msgspec
import pytest

from multisched.client.binder import READ_TIMEOUT_S
from multisched.framework.moving import DocumentAnswer, DocumentReply, EvictAnswer, EvictReply
from multisched.framework.ports import Event, ObjectRef, PodTruth, WriteAnswer, WriteReply
from multisched.framework.repair import RepairRequest
from multisched.model.cluster_objects import PodDisruptionBudget
from multisched.model.gang import SP_LABEL, GangApi, GangSpec
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod
from multisched.model.selectors import LabelSelector, Operator, Requirement
from multisched.queueing.entry import Failure
from multisched.queueing.transitions import QueueState
from multisched.shell.mover import NOT_LEADING, DomainMover, MoverPorts, MoverView
from multisched.state.reservations import Reservations
from multisched.testing.sim_loop import SimLoop, simulate
from tests.unit.shell.shell_kit import WorkerHarness


def owned(uid: str, namespace: str = "default") -> dict[str, Any]:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": uid, "controller": True}
    return {"namespace": namespace, "ownerReferences": [owner]}


def a_mover(harness: WorkerHarness) -> DomainMover:
    view = MoverView(
        harness.cache,
        harness.pods,
        Reservations(harness.domain.nominator),
        harness.removals,
        harness.router,
        harness.clock,
    )
    return DomainMover(harness.worker, view, cast("MoverPorts", None))


def test_peers_are_pods_of_the_owner_in_its_namespace() -> None:
    """Anybody may write the uid of another namespace's ReplicaSet into a pod: it is no replica of it."""
    with closing(SimLoop(seed=1)) as loop:
        harness = WorkerHarness(loop, "a")
        harness.see_pod("stands", nodeName="a", metadata=owned("rs"))
        harness.see_pod("waits", metadata=owned("rs"))
        harness.see_pod("other", nodeName="a", metadata=owned("another"))
        harness.see_pod("forged", nodeName="a", metadata=owned("rs", "blog"))
        mover = a_mover(harness)

        assert {pod.name for pod in mover.peers("default", "rs")} == {"stands", "waits"}
        assert {pod.name for pod in mover.peers("blog", "rs")} == {"forged"}


@pytest.mark.parametrize(
    ("selected", "allowed", "is_kept"),
    [({"app": "web"}, 0, True), ({"app": "web"}, 1, False), ({"app": "db"}, 0, False), (None, 0, False)],
)
def test_pod_is_not_evicted_while_a_budget_allows_no_disruption(
    selected: dict[str, str] | None, allowed: int, is_kept: bool
) -> None:
    with closing(SimLoop(seed=1)) as loop:
        harness = WorkerHarness(loop, "a")
        uid = harness.see_pod("web", nodeName="a", metadata={"labels": {"app": "web"}})
        wanted = [Requirement(key, Operator.IN, (value,)) for key, value in (selected or {}).items()]
        selector = LabelSelector(tuple(wanted)) if selected is not None else None
        budget = PodDisruptionBudget(name="few", namespace="default", selector=selector, disruptions_allowed=allowed)
        harness.cache.objects.set(ObjectKind.POD_DISRUPTION_BUDGET, budget)
        pod = a_mover(harness).placed_pod(uid)
        assert pod is not None
        refusal = "PodDisruptionBudget default/few allows no disruption" if is_kept else ""
        assert a_mover(harness).budget_refusal(pod) == refusal


class Outside:
    """Everything a mover acts through, recording."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []
        self.truth: PodTruth | None = None
        self.is_closing = False
        self.reply = EvictReply(EvictAnswer.EVICTED)

    async def read(self, namespace: str = "", name: str = "", *, timeout_s: float = 0.0) -> Any:
        self.sent.append(("read", namespace, name, timeout_s))
        return self.truth if namespace else b"kept"

    async def evict(self, pod: ObjectRef, *, timeout_s: float) -> EvictReply:
        self.sent.append(("evict", pod.name, timeout_s))
        return self.reply

    async def annotate(self, pod: ObjectRef, annotations: Mapping[str, str | None], *, timeout_s: float) -> WriteReply:
        self.sent.append(("annotate", pod.name, annotations, timeout_s))
        return WriteReply(WriteAnswer.DONE)

    async def write(self, document: bytes) -> DocumentReply:
        self.sent.append(("write", document))
        return DocumentReply(DocumentAnswer.WRITTEN)

    async def plan(self, asked: RepairRequest) -> Any:
        self.sent.append(("plan", asked))
        return "a plan"

    def record(self, event: Event) -> None:
        self.sent.append(("event", event))

    def ports(self) -> MoverPorts:
        one = cast("Any", self)
        return MoverPorts(one, one, one, one, one, self.plan, lambda: self.is_closing, "ours")


def acting(harness: WorkerHarness, outside: Outside) -> DomainMover:
    harness.worker.lead()
    view = MoverView(harness.cache, harness.pods, harness.reservations, harness.removals, harness.router, harness.clock)
    return DomainMover(harness.worker, view, outside.ports())


REF = ObjectRef("Pod", "default", "stands", "uid-stands")


@pytest.mark.parametrize("why", ["stops", "does not lead", "has no lease"])
async def test_mover_without_permission_changes_nothing(why: str) -> None:
    with closing(SimLoop(seed=1)) as loop:
        harness, outside = WorkerHarness(loop, "a", "b"), Outside()
        mover = acting(harness, outside)
        harness.see_pod("stands", nodeName="a")
        assert mover.may_act()
        match why:
            case "stops":
                outside.is_closing = True
            case "does not lead":
                harness.worker.intake.is_leading = False
            case _:
                harness.desk.is_leading = False
        pod = mover.placed_pod("uid-stands")
        assert pod is not None
        assert not mover.may_act()
        assert mover.reserve("uid-stands", pod, "b", on_assigned=lambda: None) == NOT_LEADING
        assert await mover.evict(REF, timeout_s=3.0) == EvictReply(EvictAnswer.NOT_NOW, message=NOT_LEADING)
        assert await mover.evict_member(REF, timeout_s=3.0) == EvictReply(EvictAnswer.NOT_NOW, message=NOT_LEADING)
        refused = WriteReply(WriteAnswer.THROTTLED, message=NOT_LEADING)
        assert await mover.annotate(REF, {"a": "b"}, timeout_s=3.0) == refused
        assert await mover.write(b"x") == DocumentReply(DocumentAnswer.UNKNOWN, NOT_LEADING)
        assert (outside.sent, mover.is_reserved(), len(harness.domain.nominator)) == ([], False, 0)


async def test_mover_passes_calls_to_its_ports_unchanged() -> None:
    with closing(SimLoop(seed=1)) as loop:
        harness, outside = WorkerHarness(loop, "a"), Outside()
        mover = acting(harness, outside)
        assert mover.write_timeout_s == harness.worker.write_timeout_s
        assert (await mover.evict(REF, timeout_s=3.0)).answer is EvictAnswer.EVICTED
        assert (await mover.annotate(REF, {"a": None}, timeout_s=2.0)).answer is WriteAnswer.DONE
        assert (await mover.write(b"x")).answer is DocumentAnswer.WRITTEN
        assert await mover.read() == b"kept"
        assert cast("Any", await mover.plan(RepairRequest(domain="another"))) == "a plan"
        mover.record_event("Normal", REF, "Moved", "to b")
        assert outside.sent == [
            ("evict", "stands", 3.0),
            ("annotate", "stands", {"a": None}, 2.0),
            ("write", b"x"),
            ("read", "", "", 0.0),
            ("plan", RepairRequest(domain="ours")),
            ("event", Event(REF, "Normal", "Moved", "Repairing", "to b", "ours")),
        ]


async def test_still_exists_compares_uid_node_and_deletion_on_the_server() -> None:
    with closing(SimLoop(seed=1)) as loop:
        harness, outside = WorkerHarness(loop, "a"), Outside()
        mover = acting(harness, outside)
        for truth, stands in (
            (PodTruth("uid-stands", "a", False, False), True),
            (PodTruth("uid-stands", "", False, False), False),
            (PodTruth("uid-stands", "a", True, False), False),
            (PodTruth("another", "a", False, False), False),
            (None, False),
        ):
            outside.truth = truth
            assert await mover.still_exists(REF) is stands
        assert set(outside.sent) == {("read", "default", "stands", READ_TIMEOUT_S)}


def test_mover_knows_placed_pods_and_nodes_of_its_domain() -> None:
    with closing(SimLoop(seed=1)) as loop:
        harness = WorkerHarness(loop, "a")
        harness.see_node("theirs", labels={"domain": "other"})
        mover = a_mover(harness)
        assert [mover.has_node(name) for name in ("a", "theirs", "nowhere")] == [True, False, False]
        waiting = harness.see_pod("waits")
        assert mover.placed_pod(waiting) is None
        harness.cache.assume(harness.pods.pending[waiting], harness.domain.row("a"))
        assert mover.placed_pod(waiting) is None, "it is only on its way"
        harness.see_pod("waits", nodeName="a")
        stands = mover.placed_pod(waiting)
        assert stands is not None
        assert stands.node == "a"


def test_reservation_is_assigned_to_an_earlier_replacement_and_released() -> None:
    with closing(SimLoop(seed=1)) as loop:
        harness, handed = WorkerHarness(loop, "a", "b"), list[bool]()
        mover = acting(harness, Outside())
        uid = harness.see_pod("stands", cpu="2", nodeName="a", metadata=owned("rs"))
        pod = mover.placed_pod(uid)
        assert pod is not None
        harness.see_pod("full", cpu="1", nodeName="b")
        refusal = mover.reserve(uid, pod, "b", on_assigned=lambda: handed.append(True))
        assert refusal.endswith("Insufficient cpu")
        assert (mover.is_reserved(), mover.replacement()) == (False, "")
        harness.lose_pod("full")
        assert mover.reserve(uid, pod, "b", on_assigned=lambda: handed.append(True)) == ""
        (stand_in,) = harness.domain.nominator.on("b")
        assert mover.is_reserved()
        mover.reserve(uid, msgspec.structs.replace(pod, name="again"), "b", on_assigned=lambda: handed.append(True))
        assert len(harness.domain.nominator) == 1, "one place at a time"

        new = harness.see_pod("new", cpu="2", metadata=owned("rs"))
        assert mover.replacement() == ""
        mover.assign_to_replacement(frozenset({uid}))
        assert (mover.replacement(), handed, mover.is_reserved()) == (new, [True], False)
        assert harness.domain.nominator.node_of(new) == "b"
        mover.release()
        assert harness.domain.nominator.node_of(new) == "b", "what a taker has is its own"
        assert mover.replacement() == ""
        mover.release()
        mover.assign_to_replacement(frozenset())
        assert stand_in.name == "stands"


def test_reservation_is_not_assigned_to_a_placed_pod() -> None:
    with closing(SimLoop(seed=1)) as loop:
        harness = WorkerHarness(loop, "a", "b")
        mover = acting(harness, Outside())
        uid = harness.see_pod("stands", cpu="2", nodeName="a", metadata=owned("rs"))
        pod = mover.placed_pod(uid)
        assert pod is not None
        assert mover.reserve(uid, pod, "b", on_assigned=lambda: None) == ""
        new = harness.see_pod("new", cpu="1", metadata=owned("rs"))
        row = harness.cache.nodes.row_of("b")
        assert row is not None
        harness.cache.assume(harness.pods.pending[new], row)

        mover.assign_to_replacement(frozenset({uid}))
        assert (mover.replacement(), mover.is_reserved()) == ("", True)


def test_expired_reservation_requeues_pods_waiting_for_its_room() -> None:
    with closing(SimLoop(seed=1)) as loop:
        harness = WorkerHarness(loop, "a", "b")
        mover = acting(harness, Outside())
        uid = harness.see_pod("stands", cpu="2", nodeName="a", metadata=owned("rs"))
        pod = mover.placed_pod(uid)
        assert pod is not None
        assert mover.reserve(uid, pod, "b", on_assigned=lambda: None) == ""
        late = harness.see_pod("late", cpu="1")
        assert harness.worker.queue.pop(0.0) is not None
        harness.worker.queue.fail(late, Failure(frozenset({"NodeResourcesFit"})), 0.0)
        mover.release()
        assert len(harness.domain.nominator) == 0
        assert harness.worker.queue.where(late) is not QueueState.UNSCHEDULABLE


async def evicted(harness: WorkerHarness, mover: DomainMover, outside: Outside) -> tuple[EvictAnswer, str, bool]:
    """The answer, its message, and whether anything was sent."""
    reply = await mover.evict(REF, timeout_s=3.0)
    return reply.answer, reply.message, bool(outside.sent)


def test_mover_does_not_evict_pods_of_other_preemptions() -> None:
    async def scene(harness: WorkerHarness) -> None:
        labels = {SP_LABEL: "g", "app": "web"}
        for name in ("stands", "other"):
            harness.see_pod(name, nodeName="a", metadata={"labels": labels})
        harness.cache.gangs.set_object(GangApi.SCHEDULER_PLUGINS, "default/g", GangSpec(1))
        selector = LabelSelector((Requirement("app", Operator.IN, ("web",)),))
        budget = PodDisruptionBudget(name="few", namespace="default", selector=selector, disruptions_allowed=1)
        harness.cache.objects.set(ObjectKind.POD_DISRUPTION_BUDGET, budget)
        outside = Outside()
        mover, (pod, other) = acting(harness, outside), placed(harness, "stands", "other")
        harness.removals.decide("preemption", [pod])
        answer = (EvictAnswer.NOT_NOW, "the pod is being removed for another pod", False)
        assert await evicted(harness, mover, outside) == answer
        harness.removals.release("preemption", [pod])
        harness.removals.decide("preemption", [other])
        assert (await evicted(harness, mover, outside))[1] == "gang default/g would fall below its minimum"
        reply = await mover.evict_member(REF, timeout_s=3.0)
        assert reply.message == "PodDisruptionBudget default/few allows no disruption", "only the minimum is left out"
        harness.cache.gangs.set_object(GangApi.SCHEDULER_PLUGINS, "default/g", GangSpec(0))
        assert (await evicted(harness, mover, outside))[1] == "PodDisruptionBudget default/few allows no disruption"
        harness.removals.release("preemption", [other])
        assert (await evicted(harness, mover, outside))[0] is EvictAnswer.EVICTED

    simulate(in_house(scene), SimLoop(seed=1))


def test_pod_with_an_unanswered_eviction_counts_as_deleting_until_read() -> None:
    async def scene(harness: WorkerHarness) -> None:
        harness.see_pod("stands", nodeName="a")
        outside = Outside()
        mover = acting(harness, outside)
        outside.reply = EvictReply(EvictAnswer.UNKNOWN)
        await mover.evict(REF, timeout_s=3.0)
        assert placed(harness, "stands")[0].is_leaving
        outside.truth = PodTruth("uid-stands", "a", False, False)
        assert await mover.still_exists(REF)
        assert not placed(harness, "stands")[0].is_leaving
        outside.reply = EvictReply(EvictAnswer.EVICTED)
        await mover.evict(REF, timeout_s=3.0)
        mover.release()
        assert placed(harness, "stands")[0].is_leaving
        harness.lose_pod("stands")
        assert not harness.removals

    simulate(in_house(scene), SimLoop(seed=1))


async def in_house(scene: Callable[[WorkerHarness], Awaitable[None]]) -> None:
    await scene(WorkerHarness(cast("SimLoop", asyncio.get_running_loop()), "a"))


def placed(harness: WorkerHarness, *names: str) -> list[Pod]:
    entries = [harness.cache.placed(f"uid-{name}") for name in names]
    return [entry.pod for entry in entries if entry is not None]

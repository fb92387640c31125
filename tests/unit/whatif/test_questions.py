"""Questions to a running program: why a pod waits, and what would mend the cluster. Copies of it answer."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import random
import re
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import pytest

from domains.forecast.forecast import Forecast
from multisched.app import SystemClock
from multisched.config import loading
from multisched.framework.dependency import Dependency
from multisched.framework.events import Action, ClusterEvent, EventRegistration, Resource
from multisched.framework.node_view import Codes, Rows
from multisched.framework.points import CycleView, PermitResult
from multisched.framework.reasons import ReasonTable
from multisched.framework.repair import RepairRefusedError, RepairRequest
from multisched.framework.status import SUCCESS, Code, Status
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod
from multisched.observe.explain_view import ExplainQuery, NotExplainedError, PodView
from multisched.observe.logging import logging_to
from multisched.shell.program import Program, ProgramPorts
from multisched.testing.sim_loop import SimClock
from multisched.whatif.explain_source import QUESTIONS_MAX, ProgramExplanations
from multisched.whatif.repair_source import RepairPlans
from tests.unit.domains.forecast.profiles import make_profiles
from tests.unit.shell.program_kit import CONFIGURATION, Cluster, play

T = TypeVar("T")


async def at_once(work: Callable[[], T]) -> T:
    """Threads answer in real time, which virtual time does not wait for."""
    return work()


def give_profiles(cluster: Cluster) -> None:
    """What a plan predicts peaks by."""
    (forecast,) = [
        built.plugin
        for worker in cluster.program.router.workers()
        for built in worker.plugins.built
        if isinstance(built.plugin, Forecast)
    ]
    forecast.adopt(make_profiles(("cpu",), web={"cpu": np.full(168, 0.1)}))


async def two_nodes(cluster: Cluster) -> None:
    await cluster.add_node("a", cpu="2")
    await cluster.add_node("b", cpu="4")
    await cluster.add_pod("stands", cpu="100m")
    await cluster.add_pod("late", cpu="8")


def test_pending_pod_is_explained_with_nodes_and_fixes() -> None:
    async def scene(cluster: Cluster) -> None:
        explanations = ProgramExplanations(cluster.program, in_thread=at_once)
        asked = ExplainQuery("default", "late")
        view = await explanations.pod(asked)
        assert view.attempts[0].outcome == "refused"
        assert view.now is None, "what it was told last is as good as a trial"
        assert view.fixes is None

        fixed = await explanations.pod(ExplainQuery("default", "late", with_fixes=True))
        assert [fix.kind for fix in fixed.fixes or ()][:1] == ["request"]
        there = await explanations.pod(ExplainQuery("default", "late", node="b"))
        assert there.on_node is not None
        assert there.now is None
        assert there.on_node.text == "It is not feasible: NodeResourcesFit: Insufficient cpu."
        with pytest.raises(NotExplainedError, match="node c is not known here"):
            await explanations.pod(ExplainQuery("default", "late", node="c"))

    play(scene, prepare=two_nodes)


class Noisy:
    """Says something when it is built, and when it is asked."""

    name = "Noisy"

    def __init__(self) -> None:
        logging.getLogger(__name__).warning("built")

    def pre_enqueue(self, pod: Pod) -> Status:
        logging.getLogger(__name__).warning("asked")
        return SUCCESS


def test_explanations_do_not_repeat_log_lines_of_the_program() -> None:
    async def scene(cluster: Cluster) -> None:
        explanations = ProgramExplanations(cluster.program, in_thread=at_once)
        for _ in range(2):
            await explanations.pod(ExplainQuery("default", "late", with_fixes=True))

    enabled = f"- name: forecast\n  profile: {{plugins: {{enabled: [{{name: '{__name__}:Noisy'}}]}}}}"
    stream = io.BytesIO()
    with logging_to(stream, level="warning", form="json", clock=SystemClock()):
        play(scene, prepare=two_nodes, configuration=CONFIGURATION.replace("- name: forecast", enabled))
    said = [json.loads(line)["message"] for line in stream.getvalue().splitlines()]
    assert (said.count("built"), said.count("asked")) == (1, 2), "the program asks once for each pod"


def test_each_pod_shows_what_it_waits_for() -> None:
    async def scene(cluster: Cluster) -> None:
        explanations = ProgramExplanations(cluster.program, in_thread=at_once)
        await cluster.add_pod("foreign", cpu="100m", scheduler="another")
        await cluster.bind("foreign", "a")
        await cluster.add_pod("gated", cpu="100m", schedulingGates=[{"name": "quota"}])
        await cluster.add_pod("odd", tolerations=[{"key": "k", "operator": "Exists"}] * 300)
        await cluster.settle(10.0)

        async def view(name: str) -> PodView:
            return await explanations.pod(ExplainQuery("default", name))

        stands = await view("stands")
        assert (stands.state, stands.waiting_for, stands.domain) == ("bound", "", "forecast")
        assert stands.node == cluster.placed["stands"]
        assert (stands.since_s, stands.attempts_made, len(stands.attempts)) == (0.0, 1, 1)
        foreign = await view("foreign")
        assert (foreign.state, foreign.node, foreign.domain, foreign.scheduler) == ("bound", "a", "", "another")
        assert foreign.notes == ("another scheduler placed it: no domain has another",)
        gated = await view("gated")
        assert gated.state == "gated"
        assert gated.waiting_for == "SchedulingGates to admit it: waiting for scheduling gates: [quota]"
        assert [wake.plugin for wake in gated.wakes] == ["SchedulingGates"]
        odd = await view("odd")
        assert odd.state == "refused"
        assert odd.waiting_for.startswith("a change of the pod itself: ")
        assert "spec.tolerations" in odd.waiting_for
        assert odd.since_s == pytest.approx(10.0, abs=1.0)
        late = await view("late")
        assert late.state == "unschedulable"
        assert late.retry_in_s == pytest.approx(285.0, abs=6.0)
        assert late.waiting_for == "an event that can help NodeResourcesFit"
        assert late.since_s == pytest.approx(15.0, abs=6.0)
        assert [step.state for step in late.history][-1] == "unschedulable"
        words = {event for wake in late.wakes for event in wake.events}
        assert any(one.startswith("a node ") for one in words)
        with pytest.raises(NotExplainedError) as unknown:
            await view("nobody")
        assert str(unknown.value) == (
            "pod default/nobody is not known here: it does not exist, has ended, or has a schedulerName other than"
            " forecast-scheduler, gpu-scheduler"
        )

        for worker in cluster.program.router.workers():
            worker.pause_scheduling()
        await cluster.add_pod("first", cpu="100m")
        await cluster.settle(1.0)
        first = await view("first")
        assert (first.state, first.waiting_for, first.attempts_made) == ("active", "its turn in the queue", 0)
        assert first.now is not None
        (worker,) = (one for one in cluster.program.router.workers() if first.domain == one.name)
        assert worker.queue.pop(cluster.program.clock.monotonic()) is not None
        assert (await view("first")).waiting_for == "the end of an attempt in progress"

    play(scene, prepare=two_nodes)


def test_assumed_pod_is_explained() -> None:
    async def scene(cluster: Cluster) -> None:
        explanations = ProgramExplanations(cluster.program, in_thread=at_once)
        cluster.transport.bind_s = 3.0
        await cluster.add_pod("slow", cpu="100m")
        await cluster.settle(1.0)
        slow = await explanations.pod(ExplainQuery("default", "slow"))
        assert slow.state == "binding"
        assert slow.waiting_for == f"its binding to {slow.node}"
        assert slow.node in ("a", "b")
        assert slow.wakes == ()

    play(scene, prepare=two_nodes)


class Moody:
    """Refuses pods called silent, fails at those called broken; knows something of each node. Says not what would help."""

    name = "Moody"
    depends_on = Dependency.NODE

    def __init__(self) -> None:
        self.reasons = ReasonTable(self.name)
        self._no = self.reasons.code(Code.UNSCHEDULABLE, "not today")

    def sign(self, pod: Pod) -> str:
        return pod.name

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        if pod.name == "broken":
            raise RuntimeError("in a mood")
        return np.full(len(rows), self._no if pod.name == "silent" else 0, np.uint8)

    def describe(self, pod: Pod, row: int) -> str:
        return f"{pod.name} or another" if pod.name != "held" else ""


class Waits:
    """Refuses pods called listens until a node changes; holds those called held for so many seconds."""

    name = "Waits"
    depends_on = Dependency.NODE

    def __init__(self) -> None:
        self.reasons = ReasonTable(self.name)
        self._no = self.reasons.code(Code.UNSCHEDULABLE, "not yet")

    def sign(self, pod: Pod) -> str:
        return pod.name

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        return np.full(len(rows), self._no if pod.name == "listens" else 0, np.uint8)

    def permit(self, cycle: CycleView, pod: Pod, node: str) -> PermitResult:
        return PermitResult(Status(Code.WAIT), 100.0) if pod.name == "held" else PermitResult(SUCCESS)

    def events_to_register(self) -> Sequence[EventRegistration]:
        either = Action.ADD | Action.UPDATE_NODE_TAINT
        return [
            EventRegistration(ClusterEvent(Resource.NODE, Action.ALL, "AnyNode")),
            EventRegistration(ClusterEvent(Resource.NODE, Action.ALL, "AnyNodeAgain")),
            EventRegistration(ClusterEvent(Resource.NODE, either, "NodeOrTaint")),
            EventRegistration(ClusterEvent(ObjectKind.CSI_NODE, Action.DELETE, "CSINodeDelete")),
            EventRegistration(ClusterEvent(ObjectKind.ELASTIC_QUOTA_TREE, Action.DELETE, "ElasticQuotaTreeDelete")),
        ]


def test_fixes_are_explained_for_every_reason() -> None:
    async def scene(cluster: Cluster) -> None:
        explanations = ProgramExplanations(cluster.program, in_thread=at_once)
        for name in ("silent", "listens", "held", "broken"):
            await cluster.add_pod(name, cpu="10m")
        await cluster.settle(8.0)

        async def view(name: str, node: str = "") -> PodView:
            return await explanations.pod(ExplainQuery("default", name, node=node))

        silent = await view("silent", "b")
        assert silent.waiting_for == "an event that can help Moody"
        assert [(wake.plugin, wake.events) for wake in silent.wakes] == [("Moody", ("anything happens",))]
        assert silent.notes == ("Moody about b: silent or another",)
        listens = await view("listens")
        events = (
            "a node is added, changes or is deleted",
            "a node is added or changes its taints",
            "a CSINode is deleted",
            "an ElasticQuotaTree is deleted",
        )
        assert [(wake.plugin, wake.events) for wake in listens.wakes] == [("Waits", events)]
        assert listens.notes == ()
        held = await view("held")
        assert (held.state, held.wakes, held.notes) == ("permit", (), ())
        told = re.fullmatch(r"the permission of Waits \((\d+) s at most\), on node (.)", held.waiting_for)
        assert told is not None
        assert 85 < int(told[1]) < 100
        assert told[2] == held.node
        broken = await view("broken")
        assert (broken.state, broken.waiting_for, broken.wakes) == ("backoff", "the end of its backoff", ())
        stands = await view("stands", "a")
        nodes = dict.fromkeys((stands.node, "a"))
        assert stands.notes == tuple(f"Moody about {node}: stands or another" for node in nodes)

    moody = ", ".join(f"{{name: '{__name__}:{plugin.name}'}}" for plugin in (Moody, Waits))
    with_plugins = CONFIGURATION.replace(
        "- name: forecast", f"- name: forecast\n  profile: {{plugins: {{enabled: [{moody}]}}}}"
    )
    play(scene, prepare=two_nodes, configuration=with_plugins)


def test_planned_pod_is_tried_on_a_copy() -> None:
    async def scene(cluster: Cluster) -> None:
        explanations = ProgramExplanations(cluster.program, in_thread=at_once)
        containers = [{"name": "c", "image": "app", "resources": {"requests": {"cpu": "1500m"}}}]
        spec = {"schedulerName": "forecast-scheduler", "containers": containers}
        document = {"kind": "Pod", "metadata": {"name": "planned"}, "spec": spec}
        view = await explanations.what_if(document, 5)
        nodes = [one.node for one in view.placements]
        assert sorted(nodes) == ["", "", "a", "b", "b"]
        assert all("Insufficient cpu" in one.message for one in view.placements if not one.node)
        assert set(cluster.placed) == {"stands"}

    play(scene, prepare=two_nodes)


def test_surplus_queries_get_a_retry_hint() -> None:
    go_on = asyncio.Event()

    async def late(work: Callable[[], T]) -> T:
        await go_on.wait()
        return work()

    async def scene(cluster: Cluster) -> None:
        explanations = ProgramExplanations(cluster.program, in_thread=late)
        asked = ExplainQuery("default", "late", with_fixes=True)
        waiting = [asyncio.ensure_future(explanations.pod(asked)) for _ in range(QUESTIONS_MAX)]
        await asyncio.sleep(1.0)
        with pytest.raises(NotExplainedError) as refused:
            await explanations.pod(asked)
        assert str(refused.value) == "too many queries at once; retry in a moment"
        assert refused.value.status == 429
        go_on.set()
        views = [*await asyncio.gather(*waiting), await explanations.pod(asked)]
        assert all(view.fixes for view in views), "whoever was let in is answered, and so is the next"

    play(scene, prepare=two_nodes)


def test_program_makes_plans_in_a_thread() -> None:
    async def scene(cluster: Cluster) -> None:
        give_profiles(cluster)
        plan = await cluster.program.repairs.plan(RepairRequest(domain="forecast"))
        assert (plan.domain, plan.nodes, plan.pods) == ("forecast", 2, 1)
        assert cluster.thread_uses > 0

    play(scene, prepare=two_nodes)


def test_program_without_a_planner_refuses_plans() -> None:
    async def scene(cluster: Cluster) -> None:
        clock, observer = SimClock(cluster.loop), lambda domain: cluster.observer
        ports = ProgramPorts(cluster.transport, clock, random.Random(1), "other", "kube-system", observer)
        program = Program(loading.parse(CONFIGURATION, "test"), ports)
        with pytest.raises(RepairRefusedError, match="this process has no repair planner"):
            await program.repairs.plan(RepairRequest(domain="forecast"))

    play(scene, prepare=two_nodes)


def test_plan_is_made_on_a_copy_of_the_current_state() -> None:
    async def scene(cluster: Cluster) -> None:
        give_profiles(cluster)
        plans = RepairPlans(cluster.program, in_thread=at_once)
        plan = await plans.plan(RepairRequest(domain="forecast"))
        assert (plan.domain, plan.nodes, plan.pods, plan.moves) == ("forecast", 2, 1, ())
        with pytest.raises(RepairRefusedError, match="did you mean forecast"):
            await plans.plan(RepairRequest(domain="forcast"))

    play(scene, prepare=two_nodes)

"""Preemption whose candidates an extender looks at before one is taken: what becomes of its answer, its silence, its failure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from multisched.cycle.results import NO_PAUSE, Pause, Unplaced
from multisched.framework.extender import ExtenderPlugin, Offer
from multisched.framework.node_view import Rows, Scores
from multisched.framework.points import CycleView, QueuedPod
from multisched.framework.runner import PluginFailure
from multisched.framework.status import Code, Status
from multisched.model.objects import CPU, Pod, PodSpec
from multisched.model.placement import PodAffinity, PodAffinityTerm
from multisched.model.selectors import LabelSelector, Operator, Requirement
from multisched.testing.builders import make_node, make_pod
from tests.unit.cycle.cycle_kit import Domain, Waiting
from tests.unit.state.gang_kit import GANG_LABEL, place, set_minimum

URGENT = PodSpec(requests={CPU: 1000}, priority=10)
FULL = "0/2 nodes are available: 2 Insufficient cpu."


class Negotiator:
    """Looks at the candidates of pods with `urgent` in their name: the answer says which of them it leaves."""

    name = "Negotiator"
    response_timeout_s = 1.0

    def __init__(self, show: Callable[..., object] | None = None, left: Callable[..., Any] | None = None) -> None:
        self._show = show or (lambda offers: {offer.node: [pod.name for pod in offer.victims] for offer in offers})
        self._left = left or (lambda offers, answer: [offer for offer in offers if offer.node in answer])
        self.seen: list[tuple[str, int]] = []
        """(pod or point, the attempt that it was told)."""

    def request(self, cycle: CycleView, pod: Pod, rows: Rows) -> object | None:
        return None

    async def response(self, request: object) -> object:
        raise AssertionError("the test answers")

    def verdicts(self, cycle: CycleView, pod: Pod, rows: Rows) -> Mapping[int, Status]:
        raise AssertionError("it asked about no rows")

    def add_up(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        raise AssertionError("it asked about no rows")

    def negotiates(self, pod: Pod) -> bool:
        return "urgent" in pod.name

    def preemption_request(self, cycle: CycleView, pod: Pod, offers: Sequence[Offer]) -> object:
        self.seen.append((pod.name, cycle.attempt))
        return self._show(offers)

    def remaining_offers(self, cycle: CycleView, offers: Sequence[Offer], answer: object) -> Sequence[Offer]:
        self.seen.append(("left", cycle.attempt))
        found: Sequence[Offer] = self._left(offers, answer)
        return found


def full(judge: Negotiator) -> Domain:
    """Two nodes, each full of one pod; the one on `a` is the cheaper victim."""
    assert isinstance(judge, ExtenderPlugin)
    nodes = [make_node(name, cpu_milli=1000) for name in ("a", "b")]
    domain = Domain(*nodes, in_tree=("NodeResourcesFit", "DefaultPreemption"), plugins=[judge])
    for priority, node in enumerate(("a", "b")):
        domain.cache.place(make_pod(f"low-{node}", cpu_milli=1000, priority=priority, node=node))
    return domain


def told(result: object) -> tuple[str | None, list[str], str]:
    """Where the pod is nominated, its victims, and what is said after the refusal."""
    assert isinstance(result, Unplaced), result
    assert not result.is_error
    assert result.message.startswith(FULL)
    return result.nominated_node, [victim.name for victim in result.victims], result.message.removeprefix(FULL).strip()


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({"Negotiator": {"a", "b"}}, ("a", ["low-a"], "")),
        ({"Negotiator": {"b"}}, ("b", ["low-b"], "")),
        ({"Negotiator": set()}, (None, [], "preemption: no candidate node for preemption")),
        ({}, ("a", ["low-a"], "")),  # a trial asks nobody
        (
            {"Negotiator": PluginFailure(Status.error("the extender is down").by("Negotiator"))},
            (None, [], "preemption: the extender is down"),
        ),
    ],
)
def test_preemption_chooses_among_candidates_the_extender_keeps(
    answers: Mapping[str, object | PluginFailure], expected: tuple[str | None, list[str], str]
) -> None:
    judge = Negotiator()
    domain = full(judge)
    waiting = Waiting.begin(domain, make_pod("urgent", spec=URGENT), attempt=3)
    (asked,) = waiting.asked
    assert asked.plugin is judge
    assert asked.request == {"a": ["low-a"], "b": ["low-b"]}
    assert told(waiting.answer(answers)) == expected
    is_read = isinstance(answers.get("Negotiator"), set)
    assert judge.seen == [("urgent", 3)] + [("left", 3)] * is_read
    assert domain.heard.failures == []


def _raises(*_: object) -> Any:
    raise RuntimeError("it fell")


def test_unreadable_extender_answer_evicts_no_pod() -> None:
    domain = full(Negotiator(left=_raises))
    waiting = Waiting.begin(domain, make_pod("urgent", spec=URGENT))
    nominated, victims, words = told(waiting.answer({"Negotiator": {"a"}}))
    assert (nominated, victims) == (None, [])
    assert "it fell" in words
    assert domain.heard.failures == [("Negotiator", "PostFilter", "it fell")]


def test_failed_extender_request_fails_the_attempt() -> None:
    domain = full(Negotiator(show=_raises))
    result = domain.schedule(make_pod("urgent", spec=URGENT))
    assert isinstance(result, Unplaced)
    assert (result.is_error, result.victims) == (True, ())
    assert domain.heard.failures == [("Negotiator", "Request", "it fell")]


def test_pods_not_managed_by_the_extender_preempt_without_it() -> None:
    judge = Negotiator()
    assert told(full(judge).schedule(make_pod("high", spec=URGENT))) == ("a", ["low-a"], "")
    assert judge.seen == []


def test_extender_is_not_called_without_candidates() -> None:
    judge = Negotiator()
    domain = full(judge)
    spec = replace(URGENT, can_preempt=False)
    words = "preemption: not eligible due to preemptionPolicy=Never."
    assert told(domain.schedule(make_pod("urgent", spec=spec))) == (None, [], words)
    (preemption,) = domain.plugins.post_filter
    assert (getattr(preemption, "preemption_attempts", None), judge.seen) == (1, [])


@pytest.mark.parametrize("point", ["offers", "accept", "on_extender_failure"])
def test_failed_preemption_evicts_no_pod(point: str) -> None:
    class Falls:
        name = "Falls"

        def post_filter(self, cycle: CycleView, pod: Pod, refusals: object) -> Any:
            raise AssertionError("the extender is asked first")

        def offers(self, cycle: CycleView, pod: Pod, refusals: object) -> Any:
            return _raises() if point == "offers" else [Offer("a", (), 0)]

        def accept(self, pod: Pod, offers: Sequence[Offer]) -> Any:
            return _raises()

        def on_extender_failure(self, why: str) -> Any:
            return _raises()

    domain = Domain(make_node("a", cpu_milli=500), in_tree=("NodeResourcesFit",), plugins=[Negotiator(), Falls()])
    pod = make_pod("urgent", spec=URGENT)
    if point == "offers":
        result = domain.schedule(pod)
    else:
        failure = PluginFailure(Status(Code.ERROR, "Negotiator", ("down",)))
        result = Waiting.begin(domain, pod).answer({"Negotiator": {"a"} if point == "accept" else failure})
    assert isinstance(result, Unplaced)
    assert (result.victims, result.nominated_node) == ((), None)
    assert "it fell" in result.message
    assert domain.heard.failures == [("Falls", "PostFilter", "it fell")]


def test_offer_that_would_break_a_gang_by_now_is_left_out() -> None:
    domain = full(Negotiator())
    low = {node: make_pod(f"low-{node}", cpu_milli=1000, node=node, labels={GANG_LABEL: "g"}) for node in ("a", "b")}
    for pod in low.values():
        domain.cache.remove(pod.uid)
        place(domain.cache, pod)
    place(domain.cache, make_pod("high", node="elsewhere", labels={GANG_LABEL: "g"}))
    set_minimum(domain.cache, "g", 2)
    waiting = Waiting.begin(domain, make_pod("urgent", cpu_milli=1000, priority=10))
    domain.removals.decide("another plan", [low["b"]])
    refusal = "preemption: no candidate node for preemption"
    assert told(waiting.answer({"Negotiator": ["a"]})) == (None, [], refusal)


class Spent:
    """A `StepBudget` that is spent at each check, and at none if `is_off`."""

    is_off = False

    def begin(self) -> None:
        pass

    def is_spent(self) -> bool:
        return not self.is_off


def related(nodes: int, judge: Negotiator) -> tuple[Domain, Pod]:
    """Full nodes, and a pod whose anti-affinity concerns each of their pods, so that each node is tested alone."""
    in_tree = ("NodeResourcesFit", "InterPodAffinity", "DefaultPreemption")
    domain = Domain(in_tree=in_tree, plugins=[judge], steps=Spent())
    for number in range(nodes):
        domain.cache.set_node(make_node(f"n{number}", cpu_milli=1000, labels={"host": f"n{number}"}))
        low = make_pod(f"low-{number}", cpu_milli=1000, priority=nodes - number, node=f"n{number}", labels={"app": "x"})
        domain.cache.place(low)
    term = PodAffinityTerm("host", LabelSelector((Requirement("app", Operator.IN, ("x",)),)))
    return domain, make_pod(
        "urgent", spec=replace(URGENT, priority=99, pod_affinity=PodAffinity(anti_required=(term,)))
    )


def test_search_pauses_before_the_extender_is_asked_once() -> None:
    """The search for candidates took as long as it needed, in one step."""
    domain, pod = related(5, Negotiator())
    running = domain.cycle.attempt(QueuedPod(pod, 0.0, 1))
    yielded = [next(running)]
    while isinstance(yielded[-1], Pause):
        yielded.append(running.send(NO_PAUSE))
    assert len(yielded) > 4
    (asked,) = yielded[-1]
    assert asked.request == {f"n{number}": [f"low-{number}"] for number in range(5)}
    result, others = ended_after(running, {"Negotiator": {"n3", "n4"}})
    assert (result.nominated_node, others) == ("n4", [])


def ended_after(running: Any, answer: Mapping[str, object]) -> tuple[Any, list[object]]:
    """The attempt's result, and what it asks after the answer."""
    asked = list[object]()
    while True:
        try:
            yielded = running.send(answer)
        except StopIteration as ended:
            return ended.value, asked
        answer = NO_PAUSE
        if not isinstance(yielded, Pause):
            asked.append(yielded)

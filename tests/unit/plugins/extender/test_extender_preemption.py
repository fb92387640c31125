"""Extenders that look at the candidates of a preemption: what they are shown, what they may change, and which lies are caught."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from numpy.typing import NDArray

from multisched.framework.cycle_state import CycleState
from multisched.framework.extender import Offer
from multisched.framework.node_view import Int32, Int64, Rows
from multisched.framework.points import CycleView
from multisched.framework.ports import ExtenderError
from multisched.framework.preemption import Candidates, LabelSet
from multisched.model.objects import Pod, PodSpec
from multisched.plugins.default_preemption import DefaultPreemption, LowerPriority
from multisched.plugins.disruption_budgets import DisruptionBudgets
from multisched.plugins.extender import preemption
from multisched.plugins.extender.preemption import (
    WHOLE_PODS_MAX,
    PreemptionRequest,
    PreemptionVerdict,
    Victims,
    meta_arguments,
    read_preemption_answer,
)
from multisched.testing.builders import container, decode_pod, node_document, pod_document
from tests.unit.plugins.extender.extender_kit import extending, hanging
from tests.unit.plugins.extender.test_http_extender import asking, settings_of
from tests.unit.plugins.scenes import Scene, context_of

PREEMPTS = {"filter_verb": "", "preempt_verb": "preempt"}


def a_pod(uid: str, priority: int = 0) -> Pod:
    return Pod("team", uid, uid, 1, spec=PodSpec(priority=priority))


LOW = {uid: a_pod(uid) for uid in ("a", "b", "c")}
REQUEST = PreemptionRequest(
    "team",
    "p",
    frozenset({"cpu"}),
    100,
    {"n1": Victims(("a", "b"), 1), "n2": Victims(("c",), 0)},
    {"n1": [LOW["a"], LOW["b"], a_pod("proud", 100)], "n2": [LOW["c"]]},
)


def wanting(violations: int = 0, **uids: list[str]) -> Any:
    """An ExtenderPreemptionResult: node -> uids."""
    victims = {
        node: {"Pods": [{"UID": uid} for uid in wanted], "NumPDBViolations": violations}
        for node, wanted in uids.items()
    }
    return lambda _: {"NodeNameToMetaVictims": victims}


async def left(answer: Any, request: PreemptionRequest = REQUEST, **fields: Any) -> Mapping[str, Victims]:
    async with extending(preempt=answer) as extender, asking(settings_of(extender, **PREEMPTS, **fields)) as plugin:
        found = await plugin.response(request)
    assert isinstance(found, PreemptionVerdict)
    return found.left


async def test_node_cache_capable_extender_gets_uids_and_may_change_victims() -> None:
    async with extending(preempt=wanting(2, n1=["b"])) as extender, asking(settings_of(extender, **PREEMPTS)) as plugin:
        assert await plugin.response(REQUEST) == PreemptionVerdict({"n1": Victims(("b",), 2)})
    ((_, body),) = extender.asked
    assert body["NodeNameToVictims"] is None
    assert body["NodeNameToMetaVictims"] == {
        "n1": {"Pods": [{"UID": "a"}, {"UID": "b"}], "NumPDBViolations": 1},
        "n2": {"Pods": [{"UID": "c"}], "NumPDBViolations": 0},
    }


async def test_other_extenders_get_whole_victims() -> None:
    async with (
        extending(preempt=wanting(n2=["c"])) as extender,
        asking(settings_of(extender, is_node_cache_capable=False, **PREEMPTS)) as plugin,
    ):
        assert await plugin.response(REQUEST) == PreemptionVerdict({"n2": Victims(("c",), 0)})
    ((_, body),) = extender.asked
    assert body["NodeNameToMetaVictims"] is None
    assert body["NodeNameToVictims"]["n1"]["Pods"] == [
        {"metadata": {"namespace": "team", "name": "a"}},
        {"metadata": {"namespace": "team", "name": "b"}},
    ]


async def test_number_of_whole_victims_is_limited() -> None:
    many = [a_pod(f"v{number}") for number in range(WHOLE_PODS_MAX + 1)]
    request = replace(REQUEST, offered={"n1": Victims(tuple(pod.uid for pod in many), 0)}, pods_on={"n1": many})
    with pytest.raises(
        ExtenderError, match="needs 1001 complete victims in a request, more than 1000; set nodeCacheCapable"
    ):
        await left(wanting(n1=["v1"]), request, is_node_cache_capable=False)


async def test_other_extenders_get_the_whole_preemptor() -> None:
    fields = {**PREEMPTS, "is_node_cache_capable": False}
    async with extending(preempt=wanting(n1=["a"])) as extender, asking(settings_of(extender, **fields)) as plugin:
        await plugin.response(REQUEST)
    ((_, body),) = extender.asked
    assert body["Pod"]["metadata"] == {"namespace": "team", "name": "p"}


async def test_each_extender_gets_the_nodes_the_previous_one_kept() -> None:
    async with extending(preempt=wanting(n1=["a"])) as one, extending(preempt=wanting()) as two:
        async with asking(settings_of(one, **PREEMPTS), settings_of(two, **PREEMPTS)) as plugin:
            assert await plugin.response(REQUEST) == PreemptionVerdict({})
        async with asking(settings_of(two, **PREEMPTS), settings_of(one, **PREEMPTS)) as plugin:
            assert await plugin.response(REQUEST) == PreemptionVerdict({})
    assert len(one.asked) == 1
    assert list(two.asked[0][1]["NodeNameToMetaVictims"]) == ["n1"]


LIES = [
    ("unknown node", wanting(elsewhere=["a"]), 'claims to preempt on node "elsewhere", which was not in the request'),
    (
        "unknown pod",
        wanting(n2=["a"]),
        "claims to preempt pod (UID: a) on node: n2, but the pod is not found on that node",
    ),
    (
        "a pod as important",
        wanting(n1=["proud"]),
        "claims to preempt pod team/proud on node n1, whose priority is not lower",
    ),
    ("nobody", wanting(n1=[]), 'expected at least one victim pod on node "n1"'),
    ("a wrong shape", lambda _: {"NodeNameToMetaVictims": {"n1": ["a"]}}, "sent a response that cannot be decoded"),
    (
        "no victims of the kind",
        lambda _: {"nodeNameToMetaVictims": {"n1": {"pods": "a"}}},
        "sent a response that cannot be decoded",
    ),
    ("hanging", hanging, "no answer within 0.2 s"),
]


ANSWERED_WITHIN_S = 60.0
"""For lies that are told at once: however busy the machine is, it is the lie that must be met and not the time."""


def limit_s(lie: Any) -> float:
    return 0.2 if lie is hanging else ANSWERED_WITHIN_S


@pytest.mark.parametrize(("lie", "told"), [pytest.param(lie, told, id=name) for name, lie, told in LIES])
async def test_failed_or_inconsistent_extender_is_named(lie: Any, told: str) -> None:
    with pytest.raises(ExtenderError) as caught:
        await left(lie, timeout_s=limit_s(lie))
    assert "(preempt): " in str(caught.value)
    assert told in str(caught.value)


@pytest.mark.parametrize("lie", [pytest.param(lie, id=name) for name, lie, _ in LIES if name != "nobody"])
async def test_one_that_is_ignorable_is_passed_over(lie: Any) -> None:
    assert await left(lie, timeout_s=limit_s(lie), is_ignorable=True) == REQUEST.offered


async def test_node_without_victims_from_an_ignorable_extender_is_left_out() -> None:
    assert await left(wanting(n1=[], n2=["c"]), is_ignorable=True) == {"n2": Victims(("c",), 0)}


async def test_pods_without_managed_resources_are_not_sent() -> None:
    fields: dict[str, Any] = {**PREEMPTS, "managed_resources": frozenset({"example.com/fpga"})}
    async with extending(preempt=wanting()) as extender, asking(settings_of(extender, **fields)) as plugin:
        assert not plugin.negotiates(decode_pod(pod_document("p", container(cpu="1m"))))
        assert plugin.negotiates(decode_pod(pod_document("p", container(extra={"example.com/fpga": 1}))))
        assert await plugin.response(REQUEST) == PreemptionVerdict(REQUEST.offered)
    assert extender.asked == []


async def test_offers_become_a_request_and_return_with_existing_pods() -> None:
    placed = [pod_document("old", container(), node="n1"), pod_document("older", container(), node="n1")]
    scene = Scene([node_document("n1"), node_document("n2")], placed, pod_document("p", priority=7))
    view = CycleView(scene.table, CycleState())
    row = scene.table.row_of("n1")
    assert row is not None
    pods: dict[str, Pod] = {pod.name: pod for pod in scene.table.pods_on(row)}
    offer = Offer("n1", (pods["old"],), 3)
    async with asking() as plugin:
        request = plugin.preemption_request(view, decode_pod(scene.pending), [offer])
        assert request.offered == {"n1": Victims(("uid-old",), 3)}
        assert (request.namespace, request.name, request.priority) == ("default", "p", 7)
        assert request.pods_by_uid("n1").keys() == {"uid-old", "uid-older"}

        wanted = PreemptionVerdict({"n1": Victims(("uid-older", "uid-gone"), 0), "n2": Victims(("uid-gone",), 0)})
        assert plugin.remaining_offers(view, [offer], wanted) == [Offer("n1", (pods["older"],), 0)]


some_uids = st.lists(st.text(max_size=3), max_size=3)


@given(st.dictionaries(st.text(max_size=3), st.tuples(some_uids, st.integers(-5, 5))))
def test_answers_are_read_whatever_the_case_of_their_names(nodes: dict[str, tuple[list[str], int]]) -> None:
    wanted = {node: Victims(tuple(uids), violations) for node, (uids, violations) in nodes.items()}
    for change in (str, str.lower, str.upper):
        victims = {
            node: {change("Pods"): [{change("UID"): uid} for uid in uids], change("NumPDBViolations"): violations}
            for node, (uids, violations) in nodes.items()
        }
        body = msgspec.json.encode({change("NodeNameToMetaVictims"): victims})
        assert asyncio.run(read_preemption_answer(body)) == wanted


@given(
    st.dictionaries(st.text(max_size=3), st.tuples(some_uids, st.integers(-5, 5)), min_size=2),
    st.integers(1, 9),
    st.integers(1, 200),
)
def test_many_candidates_are_written_and_read_in_steps(
    nodes: dict[str, tuple[list[str], int]], pods_at_once: int, bytes_at_once: int
) -> None:
    wanted = {node: Victims(tuple(uids), violations) for node, (uids, violations) in nodes.items()}

    async def sent_and_read() -> tuple[dict[str, Victims], int]:
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        running = asyncio.create_task(others())
        offered = msgspec.json.decode(await meta_arguments(b"{}", wanted))["NodeNameToMetaVictims"]
        found = await read_preemption_answer(msgspec.json.encode({"NodeNameToMetaVictims": offered}))
        running.cancel()
        return found, turns

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preemption, "PODS_AT_ONCE", pods_at_once)
        patch.setattr(preemption, "BYTES_AT_ONCE", bytes_at_once)
        found, turns = asyncio.run(sent_and_read())
    assert found == wanted
    assert turns >= sum(1 + len(one.uids) for one in wanted.values()) // (pods_at_once + 3) - 1


@pytest.mark.parametrize("body", [b"null", b"{}", b'{"NodeNameToMetaVictims":null}', b'{"nodenametometavictims":{}}'])
def test_answer_without_nodes_keeps_no_candidate(body: bytes) -> None:
    assert asyncio.run(read_preemption_answer(body)) == {}


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.lists(st.tuples(st.integers(-3, 3), st.sampled_from([0.0, 10.0, 20.0])), min_size=1, max_size=4),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_best_offer_equals_the_choice_of_preemption_itself(
    nodes: list[tuple[int, list[tuple[int, float]]]],
) -> None:
    plugin = DefaultPreemption(context_of())
    scene = Scene([node_document(f"n{number}") for number in range(len(nodes))], [], pod_document("p"))
    offers = [
        Offer(f"n{number}", tuple(_victims_of(number, sorted(pods, key=_importance))), min(broken, len(pods)))
        for number, (broken, pods) in enumerate(nodes)
    ]
    costs = np.array([_costs(offer) for offer in offers]).T
    rows = np.array([scene.table.row_of(offer.node) for offer in offers], np.intp)
    found = Candidates(rows, costs, lambda at: {offers[at].node: offers[at].victims}, 0, {})

    pod = decode_pod(pod_document("p"))
    assert plugin.accept(pod, offers).preemption == plugin.choose(CycleView(scene.table, CycleState()), pod, found)


def _importance(pod: tuple[int, float]) -> tuple[float, float]:
    priority, started_s = pod
    return -priority, started_s or np.inf


def _victims_of(number: int, pods: list[tuple[int, float]]) -> Iterator[Pod]:
    for index, (priority, started_s) in enumerate(pods):
        pod = decode_pod(pod_document(f"v{number}-{index}", container(), priority=priority))
        yield msgspec.structs.replace(pod, started_s=started_s)


def _costs(offer: Offer) -> list[float]:
    """By the rule itself, on the pods of one row."""
    victims = offer.victims
    pods = OneRow(np.array([[v.spec.priority] for v in victims]), np.array([[v.started_s or np.inf] for v in victims]))
    first = np.array([[index < offer.violations] for index in range(len(victims))])
    rule = LowerPriority(100, DisruptionBudgets(context_of().objects))
    return [float(cost) for cost in rule.costs(pods, np.ones_like(first), first, np.zeros(1, np.int64))[:, 0]]


@dataclass
class OneRow:
    """`PlacedPods` on one row."""

    priority: Int64
    started_s: NDArray[np.float64]
    rows: Rows = field(default_factory=lambda: np.zeros(1, np.intp))
    label_set: Int32 = field(default_factory=lambda: np.zeros((1, 1), np.int32))
    label_sets: Sequence[LabelSet] = ()

    def pod(self, k: int, i: int) -> Pod:
        raise AssertionError("costs hang on the columns alone")

    def pause(self) -> None:
        raise AssertionError("costs of one row are computed in one step")

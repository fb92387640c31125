"""HTTP extenders asked over real sockets: what they leave, what they add, and what becomes of those that fail or lie."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from multisched.client.extender_client import HttpExtenderClient
from multisched.cycle.classes.scores import NOWHERE
from multisched.cycle.extender_answers import add_up, recorded, refuse
from multisched.framework.cycle_state import CycleState
from multisched.framework.extender import ExtenderPlugin
from multisched.framework.points import CycleView
from multisched.framework.ports import BindAnswer, BindReply, BindRequest, ExtenderError, ExtenderSettings, PodTruth
from multisched.framework.remote import RemotePlugin
from multisched.framework.runner import Runner
from multisched.framework.status import Code, Status
from multisched.model.objects import Pod
from multisched.plugins.extender import http_extender
from multisched.plugins.extender.http_extender import (
    ANSWER_SLACK_S,
    NAME,
    READ_POD_S,
    REASONS_MAX,
    ExtenderRequest,
    ExtenderResult,
    HTTPExtenders,
)
from multisched.plugins.extender.messages import (
    ANSWER_BYTES_MAX,
    ANSWER_BYTES_MIN,
    answer_bytes_max,
    read_filter_answer,
    read_priorities,
)
from multisched.testing.builders import container, decode_node, decode_pod, node_document, pod_document
from tests.unit.plugins.extender.extender_kit import (
    Extender,
    WholeObjects,
    extending,
    hanging,
    keeping,
    scoring,
    status,
)
from tests.unit.plugins.scenes import Scene

NODES = ("n1", "n2", "n3")
REQUEST = ExtenderRequest("team", "p", frozenset({"cpu"}), NODES)


def settings_of(extender: Extender, **fields: Any) -> ExtenderSettings:
    """A node-cache-capable filter, unless said otherwise."""
    return ExtenderSettings(
        extender.url, **{"filter_verb": "filter", "is_node_cache_capable": True, "timeout_s": 2.0, **fields}
    )


@asynccontextmanager
async def asking(*settings: ExtenderSettings, is_there: bool = True) -> AsyncIterator[HTTPExtenders]:
    clients = [HttpExtenderClient(one) for one in settings]
    try:
        yield HTTPExtenders(clients, WholeObjects(is_there=is_there))
    finally:
        for client in clients:
            await client.close()


async def verdict(*settings: ExtenderSettings, request: ExtenderRequest = REQUEST) -> ExtenderResult:
    async with asking(*settings) as plugin:
        found = await plugin.response(request)
    assert isinstance(found, ExtenderResult)
    return found


def test_plugin_sends_requests_and_applies_responses() -> None:
    plugin = HTTPExtenders([], WholeObjects())
    assert isinstance(plugin, RemotePlugin)
    assert isinstance(plugin, ExtenderPlugin)


# ---- filter


async def test_node_cache_capable_extender_gets_node_names_and_the_whole_pod() -> None:
    async with extending(filter=keeping(*NODES)) as extender:
        assert await verdict(settings_of(extender)) == ExtenderResult({}, {})
    pod = {"metadata": {"namespace": "team", "name": "p"}}
    assert extender.asked == [("filter", {"Pod": pod, "Nodes": None, "NodeNames": list(NODES)})]


async def test_other_extenders_get_whole_nodes_and_return_some() -> None:
    def leave_second(body: Any) -> object:
        return {"Nodes": {"items": [body["Nodes"]["items"][1]]}, "FailedNodes": {"n1": "too old"}}

    async with extending(filter=leave_second) as extender:
        found = await verdict(settings_of(extender, is_node_cache_capable=False))
    assert extender.asked[0][1]["Nodes"]["items"][0] == {"metadata": {"name": "n1"}, "status": {"whole": True}}
    assert extender.asked[0][1]["NodeNames"] is None
    assert found.refused == {
        "n1": Status(Code.UNSCHEDULABLE, NAME, ("too old",)),
        "n3": Status(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, NAME),
    }


async def test_extender_reasons_are_kept_and_unresolvable_ones_come_first() -> None:
    answer = keeping("n3", FailedNodes={"n1": "busy", "n2": "busy"}, FailedAndUnresolvableNodes={"n2": "broken"})
    async with extending(filter=answer) as extender:
        found = await verdict(settings_of(extender))
    assert found.refused == {
        "n1": Status(Code.UNSCHEDULABLE, NAME, ("busy",)),
        "n2": Status(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, NAME, ("broken",)),
    }


async def test_field_names_are_case_insensitive_as_in_go() -> None:
    def answer(_: object) -> object:
        return {"nodenames": ["n1", "n2"], "failedNodes": {"n3": "no"}, "unknown": {"field": [1.5]}}

    async with extending(filter=answer) as extender:
        assert (await verdict(settings_of(extender))).refused == {"n3": Status(Code.UNSCHEDULABLE, NAME, ("no",))}


async def test_extenders_filter_in_sequence_with_ignorable_ones_last() -> None:
    async with extending(filter=keeping("n1")) as last, extending(filter=keeping("n1", "n2")) as first:
        found = await verdict(settings_of(last, is_ignorable=True), settings_of(first))
    assert first.asked[0][1]["NodeNames"] == ["n1", "n2", "n3"]
    assert last.asked[0][1]["NodeNames"] == ["n1", "n2"]
    assert found.refused.keys() == {"n2", "n3"}


async def test_extenders_are_not_called_without_nodes() -> None:
    async with extending(filter=keeping()) as first, extending(filter=keeping()) as second:
        found = await verdict(settings_of(first), settings_of(second))
    assert found.refused.keys() == set(NODES)
    assert second.asked == []


async def test_only_pods_with_a_managed_resource_are_sent() -> None:
    async with extending(filter=keeping("n1")) as extender, asking(
        settings_of(extender, managed_resources=frozenset({"example.com/fpga"}))
    ) as plugin:  # fmt: skip
        scene = Scene([node_document("n1")], [], pod_document("p"))
        view = CycleView(scene.table, CycleState())
        rows = np.array([0], np.intp)
        plain = decode_pod(pod_document("plain", container(cpu="100m")))
        wanting = decode_pod(pod_document("wanting", container(extra={"example.com/fpga": 1})))

        assert plugin.request(view, plain, rows) is None
        request = plugin.request(view, wanting, rows)
        assert isinstance(request, ExtenderRequest)
        assert request.nodes == ("n1",)
        assert request.resources >= {"example.com/fpga"}


def test_reused_row_is_sent_with_its_new_node_name() -> None:
    client = HttpExtenderClient(ExtenderSettings("http://127.0.0.1:1", filter_verb="filter"))
    plugin = HTTPExtenders([client], WholeObjects())
    scene = Scene([node_document("n1")], [], pod_document("p"))
    view, rows = CycleView(scene.table, CycleState()), np.array([scene.table.row_of("n1")], np.intp)
    pod = decode_pod(scene.pending)

    assert plugin.request(view, pod, rows) == ExtenderRequest("default", "p", frozenset(pod.spec.requests), ("n1",))
    scene.table.remove_node("n1")
    scene.table.set_node(decode_node(node_document("n9")))
    again = plugin.request(view, pod, np.array([scene.table.row_of("n9")], np.intp))
    assert isinstance(again, ExtenderRequest)
    assert again.nodes == ("n9",)


async def test_deleted_pod_is_not_sent() -> None:
    async with extending(filter=keeping()) as extender, asking(settings_of(extender), is_there=False) as plugin:
        assert await plugin.response(REQUEST) == ExtenderResult({}, {})
    assert extender.asked == []


LIES: list[tuple[str, Callable[[Any], object], str]] = [
    ("unknown node", keeping("n1", "elsewhere"), 'claims a filtered node "elsewhere" which is not found in the input'),
    ("its error", lambda _: {"Error": "no licence"}, "no licence"),
    ("not JSON", lambda _: web.Response(body=b"<html>"), "sent a response that cannot be decoded"),
    ("a list", lambda _: [1], "sent a response that cannot be decoded"),
    ("a wrong type", lambda _: {"NodeNames": "n1"}, "(in nodenames)"),
    (
        "deep nesting",
        lambda _: web.Response(body=b'{"Nodes":' + b"[" * 100_000),
        "sent a response that cannot be decoded",
    ),
    ("bad text", lambda _: web.Response(body=b'{"Error":"\xff"}'), "sent a response that cannot be decoded"),
    ("status", status(500), "code 500"),
    ("too much", lambda _: web.Response(body=b" " * (ANSWER_BYTES_MIN + 10_000)), "exceeds"),
    ("hanging", hanging, "no answer within 0.2 s"),
]


ANSWERED_WITHIN_S = 60.0
"""For lies that are told at once: however busy the machine is, it is the lie that must be named and not the time."""


@pytest.mark.parametrize(("lie", "told"), [pytest.param(lie, told, id=name) for name, lie, told in LIES])
async def test_failed_or_inconsistent_filter_is_named_in_the_pod_error(lie: Any, told: str) -> None:
    async with extending(filter=lie) as extender:
        with pytest.raises(ExtenderError) as caught:
            await verdict(settings_of(extender, timeout_s=0.2 if lie is hanging else ANSWERED_WITHIN_S))
    assert extender.url in str(caught.value)
    assert told in str(caught.value)


@pytest.mark.parametrize("lie", [pytest.param(lie, id=name) for name, lie, _ in LIES])
async def test_one_that_is_ignorable_is_passed_over(lie: Any) -> None:
    async with extending(filter=lie) as liar, extending(filter=keeping("n1", "n2")) as honest:
        found = await verdict(settings_of(liar, is_ignorable=True, timeout_s=0.2), settings_of(honest))
    assert found.refused.keys() == {"n3"}


async def test_unreachable_extender_is_named_or_ignored() -> None:
    async with extending(filter=keeping()) as extender:
        pass
    with pytest.raises(ExtenderError, match="cannot be reached"):
        await verdict(settings_of(extender))
    assert await verdict(settings_of(extender, is_ignorable=True)) == ExtenderResult({}, {})


async def test_number_of_distinct_reasons_is_limited() -> None:
    nodes = tuple(f"n{number}" for number in range(REASONS_MAX + 44))
    answer = keeping(FailedNodes={name: f"{name} is not good" for name in nodes})
    async with extending(filter=answer) as extender:
        found = await verdict(settings_of(extender), request=replace(REQUEST, nodes=nodes))
    assert len(set(found.refused.values())) == REASONS_MAX + 1
    assert found.refused[nodes[-1]].reasons == (f"node(s) refused by extender {extender.url}",)


def test_response_size_is_limited_by_the_request_size_and_a_cap() -> None:
    assert answer_bytes_max(b"") == ANSWER_BYTES_MIN
    assert answer_bytes_max(b"x" * 1000) == ANSWER_BYTES_MIN + 2000
    assert answer_bytes_max(b"x" * ANSWER_BYTES_MAX) == ANSWER_BYTES_MAX


# ---- prioritize


async def test_scores_count_ten_times_their_weight_and_are_summed() -> None:
    async with extending(prioritize=scoring(n1=3, n2=10)) as one, extending(prioritize=scoring(n2=1, other=9)) as two:
        found = await verdict(
            settings_of(one, filter_verb="", prioritize_verb="prioritize", weight=2),
            settings_of(two, filter_verb="", prioritize_verb="prioritize", weight=5),
        )
    assert found.refused == {}
    assert {name: found.scores.get(name, 0) for name in NODES} == {"n1": 60, "n2": 250, "n3": 0}


async def test_scores_are_requested_for_feasible_nodes_unless_there_is_one() -> None:
    async with extending(filter=keeping("n1", "n3"), prioritize=scoring(n1=1)) as extender:
        await verdict(settings_of(extender, prioritize_verb="prioritize"))
        assert extender.asked[1] == ("prioritize", {**extender.asked[0][1], "NodeNames": ["n1", "n3"]})
        extender.responses["filter"] = keeping("n1")
        await verdict(settings_of(extender, prioritize_verb="prioritize"))
    assert extender.verbs() == ["filter", "prioritize", "filter"]


SCORE_LIES: list[tuple[str, Callable[[Any], object]]] = [
    ("no list", lambda _: {"Host": "n1"}),
    ("no number", lambda _: [{"Host": "n1", "Score": "1"}]),
    ("no whole number", lambda _: [{"Host": "n1", "Score": 1.5}]),
    ("beyond counting", lambda _: [{"Host": "n1", "Score": 2**40}]),
    ("status", status(500)),
    ("hanging", hanging),
]


@pytest.mark.parametrize("lie", [pytest.param(lie, id=name) for name, lie in SCORE_LIES])
async def test_failed_scores_are_left_out_as_upstream(lie: Any) -> None:
    async with extending(prioritize=lie) as liar, extending(prioritize=scoring(n1=1)) as honest:
        found = await verdict(
            settings_of(liar, filter_verb="", prioritize_verb="prioritize", timeout_s=0.2),
            settings_of(honest, filter_verb="", prioritize_verb="prioritize"),
        )
    assert found.scores == {"n1": 10}


async def test_scorers_are_called_concurrently() -> None:
    both = asyncio.Barrier(2)

    async def meet() -> object:
        await both.wait()
        return []

    async with extending(prioritize=lambda _: meet()) as one, extending(prioritize=lambda _: meet()) as two:
        await verdict(
            settings_of(one, filter_verb="", prioritize_verb="prioritize"),
            settings_of(two, filter_verb="", prioritize_verb="prioritize"),
        )
    assert one.verbs() == two.verbs() == ["prioritize"]


async def test_ignored_failure_and_its_end_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="multisched.plugins.extender.http_extender")

    def told() -> list[str]:
        found = [record.getMessage() for record in caplog.records]
        assert all(vars(record)["extender"] == extender.url for record in caplog.records)
        caplog.clear()
        return found

    async with (
        extending(filter=keeping(*NODES), prioritize=scoring(n1=1)) as extender,
        asking(settings_of(extender, prioritize_verb="prioritize", is_ignorable=True)) as plugin,
    ):
        await plugin.response(REQUEST)
        assert told() == []
        extender.responses["filter"] = status(500)
        for _ in range(2):
            await plugin.response(REQUEST)
        assert told() == ["extender failed and is ignored"]
        extender.responses["prioritize"] = status(500)
        await plugin.response(REQUEST)
        assert told() == ["extender failed and is ignored"], "the other verb"
        extender.responses["filter"] = keeping(*NODES)
        for _ in range(2):
            await plugin.response(REQUEST)
        assert told() == ["extender responds again"], "of one of the two"
        extender.responses["prioritize"] = scoring(n1=1)
        await plugin.response(REQUEST)
        assert told() == ["extender responds again"]
        extender.responses["filter"] = status(500)
        await plugin.response(REQUEST)
        assert told() == ["extender failed and is ignored"]


@pytest.mark.parametrize(
    ("verbs", "seconds"),
    [
        # Filters are asked in turn, scorers at once; a preemption reads the victims for each extender before it asks.
        ([{"filter_verb": "f"}, {"filter_verb": "f"}], 1 + 2),
        ([{"filter_verb": "f", "prioritize_verb": "p"}, {"filter_verb": "", "prioritize_verb": "p"}], 1 + 2),
        ([{"filter_verb": "", "preempt_verb": "v"}, {"filter_verb": "f", "preempt_verb": "v"}], 2 * READ_POD_S + 1 + 2),
        ([{"filter_verb": "", "bind_verb": "b"}, {"filter_verb": "", "bind_verb": "b"}], 0),
    ],
)
def test_response_timeout_covers_all_sequential_calls(verbs: list[dict[str, str]], seconds: float) -> None:
    fields: list[dict[str, Any]] = [{"timeout_s": float(at), **one} for at, one in enumerate(verbs, 1)]
    clients = [HttpExtenderClient(ExtenderSettings("http://x.invalid", **one)) for one in fields]
    plugin = HTTPExtenders(clients, WholeObjects())
    assert plugin.response_timeout_s == READ_POD_S + seconds + ANSWER_SLACK_S


# ---- what comes of it on the rows


class Silent:
    """A PluginObserver; failures show in what is raised."""

    def plugin_ran(self, plugin: str, point: str, seconds: float) -> None:
        pass

    def plugin_failed(self, plugin: str, point: str, error: BaseException | str) -> None:
        pass


def placed_on_rows(found: ExtenderResult, totals: list[int]) -> tuple[list[bool], list[int]]:
    """Feasibility and totals of n1, n2, n3 after the extenders have spoken."""
    scene = Scene([node_document(name) for name in NODES], [], pod_document("p"))
    rows = np.array([scene.table.row_of(name) for name in NODES], np.intp)
    view = CycleView(scene.table, CycleState(), responses={NAME: found})
    plugin, runner = HTTPExtenders([], WholeObjects()), Runner(Silent(), lambda: 0.0)
    pod: Pod = decode_pod(scene.pending)
    feasible = np.array([total >= 0 for total in totals], np.bool_)
    refuse(runner, plugin, view, pod, rows, feasible)
    total = np.where(feasible, np.array(totals, np.int32), NOWHERE)
    return feasible.tolist(), add_up(runner, plugin, view, pod, rows, feasible, total).tolist()


def test_response_without_scores_keeps_the_totals() -> None:
    assert placed_on_rows(ExtenderResult({}, {}), [300, -1, 250]) == ([True, False, True], [300, -1, 250])


def test_refused_rows_become_infeasible_and_others_get_scores() -> None:
    no = Status(Code.UNSCHEDULABLE, NAME, ("no",))
    assert placed_on_rows(ExtenderResult({"n1": no}, {"n1": 500, "n2": 70, "elsewhere": 9}), [300, 200, 250]) == (
        [False, True, True],
        [-1, 270, 250],
    )


@given(
    st.lists(st.integers(-1, 10_000), min_size=3, max_size=3),
    st.lists(st.integers(-(2**50), 2**50), min_size=3, max_size=3),
)
def test_scores_keep_the_order_of_exact_sums_for_feasible_rows(totals: list[int], scores: list[int]) -> None:
    feasible, found = placed_on_rows(ExtenderResult({}, dict(zip(NODES, scores, strict=True))), totals)
    at = [i for i in range(3) if feasible[i]]
    assert all(found[i] == -1 for i in range(3) if i not in at)
    assert all(found[i] >= 0 for i in at)
    for i in at:
        for j in at:
            assert (found[i] < found[j]) == (totals[i] + scores[i] < totals[j] + scores[j])


@given(st.lists(st.integers(0, 10), min_size=3, max_size=3), st.integers(1, 1000))
def test_extender_score_is_recorded_with_its_weight(scores: list[int], weight: int) -> None:
    before = np.array([300, 200, 100], np.int32)
    feasible = np.ones(3, np.bool_)
    after = (before + np.array(scores, np.int32) * weight * 10).astype(np.int32)
    (copy,) = recorded(NAME, before, after, feasible)
    assert (copy.plugin, (copy.final.astype(np.int64) * copy.weight).tolist()) == (NAME, (after - before).tolist())


def test_unrepresentable_extender_score_is_not_recorded() -> None:
    before, feasible = np.array([300, 200], np.int32), np.ones(2, np.bool_)
    assert recorded(NAME, before, np.array([301, 1200], np.int32), feasible) == []
    assert recorded(NAME, before, np.array([0, 200], np.int32), feasible) == []


# ---- bind

BINDING = BindRequest("team", "p", "uid-p", "n1")


class NoBinder:
    """Nobody else binds here."""

    async def post(self, request: BindRequest, *, timeout_s: float) -> BindReply:
        raise AssertionError("the extender binds")

    async def read(self, namespace: str, name: str, *, timeout_s: float) -> PodTruth | None:
        raise AssertionError("the caller reads")


def binding(extender: Extender, **fields: Any) -> AbstractAsyncContextManager[HTTPExtenders]:
    return asking(settings_of(extender, filter_verb="", bind_verb="bind", **fields))


async def bound(plugin: HTTPExtenders, *resources: str) -> BindReply | None:
    pod = decode_pod(pod_document("p", container(cpu="100m", extra=dict.fromkeys(resources, 1))))
    assert pod.uid == BINDING.uid
    view = CycleView(Scene([node_document("n1")], [], pod_document("p")).table, CycleState())
    plugin.reserve(view, pod, "n1")
    try:
        return await plugin.bind(NoBinder(), BINDING, timeout_s=ANSWERED_WITHIN_S)
    finally:
        plugin.unreserve(view, pod, "n1")


async def test_bind_is_delegated_and_its_result_is_verified() -> None:
    async with extending(bind=lambda _: {"Error": ""}) as extender, binding(extender) as plugin:
        reply = await bound(plugin)
    assert extender.asked == [("bind", {"PodName": "p", "PodNamespace": "team", "PodUID": "uid-p", "Node": "n1"})]
    assert reply is not None
    assert reply.answer is BindAnswer.DELEGATED
    assert (
        reply.message == f'extender "{extender.url}" (bind): reported that it bound the pod, but the pod is not bound'
    )


async def test_pods_not_managed_by_the_extender_are_bound_by_the_profile() -> None:
    async with extending(bind=lambda _: {}) as extender:
        managed = frozenset({"example.com/fpga"})
        one = settings_of(extender, filter_verb="", bind_verb="bind", managed_resources=managed)
        async with asking(one) as plugin:
            assert await bound(plugin) is None
            assert (await bound(plugin, "example.com/fpga")) is not None


async def test_failed_bind_is_unknown_unless_it_was_never_sent() -> None:
    async with (
        extending(bind=lambda _: {"Error": "conflict"}) as extender,
        binding(extender, timeout_s=ANSWERED_WITHIN_S) as plugin,
        binding(extender, timeout_s=0.2) as hasty,
    ):
        with pytest.raises(ExtenderError, match=r"extender .* \(bind\): conflict"):
            await bound(plugin)
        extender.responses["bind"] = hanging
        with pytest.raises(ExtenderError, match="no answer within"):
            await bound(hasty)
    async with binding(extender) as plugin:
        reply = await bound(plugin)
        assert reply is not None
        assert reply.answer is BindAnswer.REJECTED
        assert "cannot be reached" in reply.message


async def test_unreadable_bind_response_names_its_extender() -> None:
    async with extending(bind=lambda _: [7]) as extender, binding(extender) as plugin:
        with pytest.raises(ExtenderError) as told:
            await bound(plugin)
    assert str(told.value).startswith(f'extender "{extender.url}" (bind): ')


async def test_failed_ignorable_binder_leaves_the_bind_to_the_profile() -> None:
    async with extending(bind=status(500)) as extender, binding(extender, is_ignorable=True) as plugin:
        assert await bound(plugin) is None
    async with (
        extending(bind=status(500)) as first,
        extending(bind=lambda _: {}) as second,
        asking(
            *(settings_of(one, filter_verb="", bind_verb="bind", is_ignorable=True) for one in (first, second))
        ) as both,
    ):
        assert await bound(both) is not None, "the next one binds it"


async def test_number_of_remembered_pod_resources_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_extender, "BINDING_PODS_MAX", 2)
    table = Scene([node_document("n1")], [], pod_document("p")).table
    view = CycleView(table, CycleState())
    pods = [decode_pod(pod_document(f"p{number}", container(extra={"example.com/fpga": 1}))) for number in range(4)]

    async def is_its_to_bind(plugin: HTTPExtenders, pod: Pod) -> bool:
        request = BindRequest(pod.namespace, pod.name, pod.uid, "n1")
        return await plugin.bind(NoBinder(), request, timeout_s=ANSWERED_WITHIN_S) is not None

    async with extending(bind=lambda _: {}) as extender:
        managed = frozenset({"example.com/fpga"})
        binder = settings_of(extender, filter_verb="", bind_verb="bind", managed_resources=managed)
        async with asking(binder) as plugin, asking(settings_of(extender)) as other:
            for pod in pods[:3]:
                assert plugin.reserve(view, pod, "n1") == other.reserve(view, pod, "n1") == Status()
            assert [await is_its_to_bind(plugin, pod) for pod in pods] == [False, True, True, False]
            plugin.post_bind(view, pods[1], "n1")
            plugin.unreserve(view, pods[2], "n1")
            plugin.unreserve(view, pods[3], "n1")
            assert [await is_its_to_bind(plugin, pod) for pod in pods] == [False] * 4
            assert not plugin._resources
            assert not other._resources, "it binds nothing"


# ---- messages


@pytest.mark.parametrize(
    ("score", "words"),
    [
        ("1.5", "gave '1.5' for the host 'n1'; a score is a whole number"),
        ("true", "gave 'True' for the host 'n1'; a score is a whole number"),
        (f"{2**40}", f"gave {2**40} for the host 'n1'; scores are 0..10"),
    ],
)
def test_invalid_score_is_reported_with_its_host(score: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        read_priorities(f'[{{"Host": "n1", "Score": {score}}}]'.encode())


@given(st.binary(max_size=60))
def test_arbitrary_responses_are_refused_without_other_effects(body: bytes) -> None:
    for reader in (read_filter_answer, read_priorities):
        try:
            reader(body)
        except ValueError as error:
            told = str(error)
        else:
            told = "read"
        assert told

"""What Score preferred is what the binding says: devices are chosen once, by the plugin that scored, and taken as chosen."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domains.gpu.card_row import CHOSEN_WITHOUT_ROOM, CardRow
from domains.gpu.cards import CARD_MILLI
from domains.gpu.demand import indices_in
from domains.gpu.dialects.own import GPU_COUNT, GPU_DEVICES, GPU_MILLI
from domains.gpu.dialects.whole import GPU
from domains.gpu.gpu_ledger import GpuLedger
from domains.gpu.gpu_share import GpuShare
from domains.gpu.policies import FULL_POINTS, SHARED_POINTS, TIGHT_POINTS
from multisched.cycle.results import Conflicted, Placed, Result, Unplaced
from multisched.framework.context import PluginContext
from multisched.framework.dependency import Dependency, Isolation
from multisched.framework.isolation import Isolator
from multisched.framework.ledger import Choices, ChoosingPlugin, rebuild
from multisched.framework.node_view import Rows, Scores
from multisched.framework.points import CycleView, Plugin
from multisched.framework.registry import BuiltPlugin, PluginSet, PluginSetupError, PluginUse
from multisched.model.objects import Node, Pod
from multisched.testing.builders import make_cache, make_context, make_node, make_pod
from tests.unit.cycle.cycle_kit import Asks, Domain, Waiting
from tests.unit.state.state_kit import Tickets, assume_in_turn

CPU_MILLI = 100


def packs(context: PluginContext) -> GpuShare:
    """GpuShare with the policy whose points `points_of` computes."""
    return GpuShare(context, {"policy": "packing"})


class HighestDevice(GpuShare):
    """Wants the device of the highest index that has room, whatever is left on it: nobody who fits best would."""

    name = "HighestDevice"

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        return np.array([sum(self._highest(pod, row)) for row in rows.tolist()], np.int64)

    def choose(self, cycle: CycleView, pod: Pod, row: int) -> tuple[int, ...] | None:
        return self._highest(pod, row) or None

    def _highest(self, pod: Pod, row: int) -> tuple[int, ...]:
        demands, devices = self._ledger.demands(pod), self._ledger.cards(row)
        if not demands:
            return ()
        demand, modes = demands.on(devices.node.mode)
        if devices.refusal(demand, modes):
            return ()
        having_room = [index for index, free in enumerate(devices.free_milli) if free >= demand.amount.milli]
        return tuple(having_room[-demand.count :])


def fraction(name: str, milli: int, count: int = 1, **fields: Any) -> Pod:
    return make_pod(name, cpu_milli=CPU_MILLI, annotations={GPU_MILLI: str(milli), GPU_COUNT: str(count)}, **fields)


def gpu_node(name: str, gpus: int, **fields: Any) -> Node:
    return make_node(name, extra={GPU: gpus}, **fields)


class Bench:
    """A domain in which one plugin scores and chooses devices."""

    def __init__(self, make: Any, *nodes: Node) -> None:
        self.domain = Domain(*nodes, plugins=[Asks()], factories=[make], weights={"GpuShare": 10, "HighestDevice": 10})
        self.plugin: GpuShare = next(p for p in self.domain.plugins.filter if isinstance(p, GpuShare))
        self.ledger: GpuLedger = self.plugin._ledger

    def schedule(self, pod: Pod) -> Result:
        return self.domain.schedule(pod)

    def device_rows(self) -> dict[str, CardRow]:
        return {node.name: self.ledger.cards(row).copy() for row, node in self.domain.cache.nodes.live_rows()}

    def scores(self, pod: Pod) -> dict[str, int]:
        """What the plugin says of each node at this moment, by its Score."""
        live = list(self.domain.cache.nodes.live_rows())
        view = self.domain.cycle.classes.find(pod, 1).view
        raw = self.plugin.score(view, pod, np.array([row for row, _ in live], np.intp))
        return {node.name: score for (_, node), score in zip(live, raw.tolist(), strict=True)}

    def must_be_whole(self) -> None:
        """No device beyond what it has, and nothing held that the pods' own annotations do not say: the audit rebuilds the same."""
        cache = self.domain.cache
        for row, node in cache.nodes.live_rows():
            used = [0] * node.allocatable[GPU]
            for hold in self.ledger.cards(row).holds.values():
                for share in hold.shares:
                    assert isinstance(share.card, int)
                    used[share.card] += share.amount.milli
            assert max(used) <= CARD_MILLI
        fresh = rebuild(self.ledger, cache.nodes.live_rows(), [(entry.pod, entry.row) for entry in cache])
        assert dict(fresh.held()) == dict(self.ledger.held())


def devices_text_of(result: Result) -> str:
    assert isinstance(result, Placed), result
    return result.annotations[GPU_DEVICES]


def points_of(row: CardRow, milli: int, devices: tuple[int, ...]) -> int:
    """GpuShare's documented points, for the devices that the pod has got."""
    free_now = row.free_milli
    free = [free_now[device] for device in devices]
    count, left = len(free), sum(one - milli for one in free)
    used_percent = 100 - 100 * sum(free_now) // (len(free_now) * CARD_MILLI)
    points = SHARED_POINTS * sum(one < CARD_MILLI for one in free) // count + FULL_POINTS * used_percent // 100
    return points + TIGHT_POINTS * (count * CARD_MILLI - left) // (count * CARD_MILLI)


def test_device_chosen_by_score_is_bound_over_a_better_fit() -> None:
    bench = Bench(HighestDevice, gpu_node("n", 4), gpu_node("small", 2))
    assert devices_text_of(bench.schedule(fraction("a", 600))) == "3"
    assert devices_text_of(bench.schedule(fraction("b", 600))) == "2", "the third has no room any more"
    assert devices_text_of(bench.schedule(fraction("c", 300))) == "3"
    assert devices_text_of(bench.schedule(fraction("d", 100, count=2))) == "2,3"
    assert devices_text_of(bench.schedule(fraction("e", 900))) == "1"
    bench.must_be_whole()


def test_pod_placed_without_scoring_gets_the_device_of_its_plugin() -> None:
    alone = Bench(HighestDevice, gpu_node("n", 4))
    assert devices_text_of(alone.schedule(fraction("a", 600))) == "3"
    nominated = Bench(HighestDevice, gpu_node("n", 4), gpu_node("m", 8))
    assert devices_text_of(nominated.schedule(fraction("a", 600, nominated_node="n"))) == "3"


def test_ledger_picks_the_best_fit_if_no_plugin_chooses() -> None:
    cache = make_cache([gpu_node("n", 2)], GpuLedger())
    assert cache.assume(fraction("a", 600), 0).annotations[GPU_DEVICES] == "0"
    assert cache.assume(fraction("b", 500), 0).annotations[GPU_DEVICES] == "1"
    assert cache.assume(fraction("c", 400), 0).annotations[GPU_DEVICES] == "0"


steps = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.sampled_from((200, 500, 600, 1000)), st.integers(1, 2)),
        st.tuples(st.just("place"), st.sampled_from((200, 500, 600, 1000)), st.integers(1, 2)),
        st.tuples(st.just("answer"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("remove"), st.integers(0, 9), st.just(0)),
    ),
    max_size=16,
)


@pytest.mark.parametrize("make", [packs, HighestDevice])
@given(history=steps)
def test_annotations_keep_the_choice_of_score_after_a_wait(make: Any, history: list[tuple[str, int, int]]) -> None:
    bench = Bench(make, gpu_node("a", 2), gpu_node("b", 3))
    waiting: list[tuple[Pod, Waiting]] = []

    def judge(pod: Pod, result: Result, rows: Mapping[str, CardRow], scores: Mapping[str, int]) -> None:
        if not isinstance(result, Placed):
            return
        devices = indices_in(result.annotations[GPU_DEVICES])
        milli = bench.ledger.demands(pod).first.amount.milli
        preferred = points_of(rows[result.node], milli, devices) if make is packs else sum(devices)
        assert preferred == scores[result.node]

    for number, (step, amount, count) in enumerate(history):
        if step == "begin":
            pod = fraction(f"slow{number}", amount, count)
            with suppress(StopIteration):  # no node had room for it
                waiting.append((pod, Waiting.begin(bench.domain, pod)))
        elif step == "place":
            pod = fraction(f"fast{number}", amount, count)
            rows, scores = bench.device_rows(), bench.scores(pod)
            judge(pod, bench.schedule(pod), rows, scores)
        elif step == "answer" and waiting:
            pod, attempt = waiting.pop(amount % len(waiting))
            rows, scores = bench.device_rows(), bench.scores(pod)
            judge(pod, attempt.answer({"Asks": ""}), rows, scores)
        elif step == "remove" and len(bench.domain.cache):
            uids = bench.domain.cache.uids()
            bench.domain.cache.remove(uids[amount % len(uids)])
        bench.must_be_whole()


def test_outdated_choice_is_repeated_on_the_same_or_next_row() -> None:
    bench = Bench(HighestDevice, gpu_node("a", 2))
    slow = Waiting.begin(bench.domain, fraction("slow", 700))
    assert devices_text_of(bench.schedule(fraction("fast", 700))) == "1"
    assert devices_text_of(slow.answer({"Asks": ""})) == "0"
    late = Waiting.begin(bench.domain, fraction("slow2", 300))
    bench.schedule(fraction("fast2", 300, count=2))
    assert isinstance(late.answer({"Asks": ""}), Conflicted)


class ExternallyChosen(HighestDevice):
    """Takes the device that somebody outside has named before."""

    def choose(self, cycle: CycleView, pod: Pod, row: int) -> tuple[int, ...] | None:
        named = cycle.responses["Asks"]
        assert isinstance(named, Mapping)
        return (named[cycle.nodes.node(row).name],)


def test_outdated_external_choice_is_a_conflict_instead_of_another_device() -> None:
    bench = Bench(ExternallyChosen, gpu_node("a", 2), gpu_node("b", 1))
    slow = [Waiting.begin(bench.domain, fraction(f"slow{number}", 700)) for number in range(3)]
    named = {"a": 1, "b": 0}
    first = slow[0].answer({"Asks": named})
    assert isinstance(first, Placed)
    assert first.node == "a"
    second = slow[1].answer({"Asks": named})
    assert isinstance(second, Placed)
    assert (second.node, second.annotations[GPU_DEVICES]) == ("b", "0"), (
        "the next row, since the device on the first is taken"
    )
    third = slow[2].answer({"Asks": named})
    assert isinstance(third, Conflicted)
    assert third.refusal == f"node a: {CHOSEN_WITHOUT_ROOM}", "device 0 would have room"
    bench.must_be_whole()


def test_pods_of_one_transaction_choose_in_order_or_not_at_all() -> None:
    bench = Bench(HighestDevice, gpu_node("n", 3))
    cache = bench.domain.cache
    view = bench.domain.cycle.classes.find(fraction("x", 1), 1).view

    def choose(pod: Pod, row: int) -> Choices:
        found = bench.plugin.choose(view, pod, row)
        return {} if found is None else {GpuLedger.name: found}

    pods = [(fraction(f"p{number}", 600), 0) for number in range(4)]
    refused = assume_in_turn(cache, pods, lambda pod, row: True, choose)
    assert refused == (pods[3][0], "node n: Insufficient gpu-milli")
    assert dict(bench.ledger.held()) == {}
    found = assume_in_turn(cache, pods[:3], lambda pod, row: True, choose)
    assert isinstance(found, list)
    assert [one.annotations[GPU_DEVICES] for one in found] == ["2", "1", "0"]


def test_ledger_refuses_a_choice_that_does_not_fit() -> None:
    ledger = GpuLedger()
    ledger.set_node(0, gpu_node("n", 2))
    pod = fraction("p", 600)
    ledger.take(fraction("before", 600), 0, (1,))
    for devices in ((1,), (2,), (-1,)):
        assert ledger.fits(pod, 0, devices) == CHOSEN_WITHOUT_ROOM
        with pytest.raises(AssertionError, match="I1: pod default/p takes GPUs where they do not fit"):
            ledger.take(pod, 0, devices)
    wide = fraction("wide", 300, count=2)
    for odd in ((0,), (0, 0), (1, 0), (0, 1, 2)):
        with pytest.raises(ValueError, match="are not 2 devices in ascending order"):
            ledger.fits(wide, 0, odd)
    for nonsense in ("0", [0], (0.0,), (True,)):
        with pytest.raises(TypeError, match="is not a tuple of device indices"):
            ledger.take(pod, 0, nonsense)
    assert list(ledger.held()) == ["uid-before"]


def test_pod_can_take_only_its_held_devices_again() -> None:
    ledger = GpuLedger()
    ledger.set_node(0, gpu_node("n", 2))
    pod = fraction("p", 600)
    taken = ledger.take(pod, 0, (1,))
    assert ledger.take(pod, 0, (1,)) == ledger.take(pod, 0) == taken
    assert ledger.fits(pod, 0, (0,)) == "the pod holds GPUs 1 there"
    with pytest.raises(AssertionError, match="holds GPUs 1 there"):
        ledger.take(pod, 0, (0,))


class FailingChoice(HighestDevice):
    """Chooses in an unusable way."""

    answer: Any = None

    def choose(self, cycle: CycleView, pod: Pod, row: int) -> Any:
        if self.answer is None:
            raise RuntimeError("boom")
        return self.answer


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, 'running Choose plugin "HighestDevice": RuntimeError: boom'),
        ("0", "running Ledger \"gpu-devices\": TypeError: '0' is not a tuple of device indices"),
    ],
)
def test_failed_choice_fails_the_attempt_and_holds_nothing(answer: Any, message: str) -> None:
    bench = Bench(FailingChoice, gpu_node("n", 2))
    bench.plugin.answer = answer  # type: ignore[attr-defined]
    result = bench.schedule(fraction("p", 600))
    assert isinstance(result, Unplaced)
    assert (result.is_error, result.message) == (True, message)
    assert dict(bench.ledger.held()) == {}
    assert len(bench.domain.cache) == 0


class FromTickets:
    """Chooses from a ledger of which nobody can choose."""

    name = "FromTickets"
    depends_on = Dependency.ROW

    def __init__(self, context: PluginContext) -> None:
        self.choice_ledger: Any = context.hold.register(Tickets())

    def sign(self, pod: Pod) -> Hashable:
        return ()

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        return np.zeros(len(rows), np.int64)

    def choose(self, cycle: CycleView, pod: Pod, row: int) -> object | None:
        return 1


def test_ledger_without_choices_raises_on_a_choice() -> None:
    domain = Domain(make_node("n"), factories=[FromTickets])
    result = domain.schedule(make_pod("p", annotations={"tickets": "1"}))
    assert isinstance(result, Unplaced)
    assert result.message.startswith('running Ledger "tickets": TypeError: ')


def test_only_one_plugin_per_profile_chooses_from_a_ledger() -> None:
    context = make_context()
    plugins: list[Plugin] = [GpuShare(context), HighestDevice(context)]
    with pytest.raises(PluginSetupError) as refused:
        PluginSet([BuiltPlugin(plugin, PluginUse(plugin.name)) for plugin in plugins])
    words = "plugins GpuShare and HighestDevice both choose from ledger gpu-devices; remove one"
    assert str(refused.value) == f"profile: {words}"


@pytest.mark.parametrize("isolation", [Isolation.THREAD, Isolation.PROCESS])
def test_a_plugin_that_chooses_cannot_be_isolated(isolation: Isolation) -> None:
    plugin: ChoosingPlugin = FromTickets(make_context())
    worker_factory: Any = None
    with pytest.raises(PluginSetupError, match="its choice is taken in the same step; run it inline"):
        Isolator(worker_factory)(plugin, PluginUse("FromTickets", isolation=isolation), FromTickets)

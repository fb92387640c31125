"""GpuShare: its answers agree with the ledger, and its scores pack."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domains.gpu.card_arrays import ROWS_FIRST
from domains.gpu.dialects.hami import NO_ID, NO_TYPE, NUMA_BIND, REGISTER, USE_ID, USE_TYPE
from domains.gpu.dialects.own import GPU_COUNT, GPU_DEVICES, GPU_MILLI
from domains.gpu.dialects.whole import GPU_INDICES, HONOURED
from domains.gpu.gpu_share import GpuShare
from domains.gpu.policies import SCORED_FEW
from multisched.framework.events import Hint
from multisched.framework.status import Code
from multisched.model.objects import Node, Pod
from multisched.state.cluster_cache import ClusterCache
from multisched.testing.builders import GPU, all_rows, make_context, make_node, make_pod, make_view, row_of


def fraction(name: str, milli: int, count: int = 1, *, node: str = "", devices: str = "") -> Pod:
    annotations = {GPU_MILLI: str(milli), GPU_COUNT: str(count)}
    return make_pod(name, annotations=annotations | ({GPU_DEVICES: devices} if devices else {}), node=node)


def whole(name: str, count: int, *, node: str = "") -> Pod:
    return make_pod(name, extra={GPU: count}, node=node)


class Bench:
    """A cache with GpuShare on it, with the policy whose scores depend on the cards alone."""

    def __init__(self, *nodes: Node) -> None:
        self.cache = ClusterCache()
        self.plugin = GpuShare(make_context(self.cache), {"policy": "packing"})
        for node in nodes:
            self.cache.set_node(node)
        self.view = make_view(self.cache)

    def refusals(self, pod: Pod) -> dict[str, str]:
        rows = all_rows(self.cache)
        codes = self.plugin.filter(self.view, pod, rows)
        names = [self.cache.nodes.node(int(row)).name for row in rows]
        return {
            name: self.plugin.reasons.status(int(code)).message for name, code in zip(names, codes, strict=True) if code
        }

    def scores(self, pod: Pod) -> dict[str, int]:
        rows = all_rows(self.cache)
        raw = self.plugin.score(self.view, pod, rows)
        return {self.cache.nodes.node(int(row)).name: int(score) for row, score in zip(rows, raw, strict=True)}

    def best(self, pod: Pod) -> str:
        scores = self.scores(pod)
        return max(scores, key=lambda name: scores[name])


def test_rows_are_refused_with_the_message_of_the_ledger() -> None:
    bench = Bench(
        make_node("empty", extra={GPU: 2}),
        make_node("shared", extra={GPU: 2}),
        make_node("whole", extra={GPU: 2}),
        make_node("none"),
    )
    bench.cache.assume(fraction("a", 500), row_of(bench.cache, "shared"))
    bench.cache.assume(whole("b", 1), row_of(bench.cache, "whole"))

    assert bench.refusals(whole("late", 2)) == {
        "shared": "node(s) had GPUs shared by fractional pods",
        "whole": "Insufficient nvidia.com/gpu",
        "none": "Insufficient nvidia.com/gpu",
    }
    assert bench.refusals(fraction("late", 600, 2)) == {
        "shared": "Insufficient gpu-milli",
        "whole": "node(s) had GPUs taken by whole-GPU pods",
        "none": "Insufficient gpu-milli",
    }


def hami_node(name: str, *numas: int, model: str = "A10") -> Node:
    """`numas`: the NUMA node of each card. Ids of cards are unique within a model."""
    cards = "".join(f"GPU-{model}-{index},10,24000,100,{model},{numa},true:" for index, numa in enumerate(numas))
    return make_node(name, extra={GPU: 10 * len(numas)}, annotations={REGISTER: cards})


def test_numa_bound_pod_is_refused_where_its_cards_are_on_two_numa_nodes() -> None:
    bench = Bench(hami_node("apart", 0, 1), hami_node("together", 1, 1))
    bound = make_pod("bound", extra={GPU: 2}, annotations={NUMA_BIND: "true"})

    assert bench.refusals(bound) == {"apart": "Insufficient nvidia.com/gpu"}
    assert bench.refusals(whole("free", 2)) == {}


NO_MODEL, NO_ID_TEXT = "node(s) had no GPU of an accepted model", "node(s) had no GPU with an accepted UUID"
TOO_FEW = "Insufficient nvidia.com/gpu"


@pytest.mark.parametrize(
    ("annotations", "refusals"),
    [
        ({USE_TYPE: "a100"}, {"three": NO_MODEL, "one": TOO_FEW}),
        ({NO_TYPE: "A100"}, {"one": NO_MODEL}),
        ({USE_ID: "GPU-A100-0"}, {"three": NO_ID_TEXT, "one": TOO_FEW}),
        ({NO_ID: "GPU-A100-0"}, {"one": NO_ID_TEXT}),
        ({USE_TYPE: "A100", USE_ID: "GPU-A10-0"}, dict.fromkeys(("three", "one"), f"{NO_MODEL} with an accepted UUID")),
    ],
)
def test_node_without_an_accepted_card_is_refused_as_such(
    annotations: dict[str, str], refusals: dict[str, str]
) -> None:
    bench = Bench(hami_node("three", 0, 0, 0), hami_node("one", 0, model="A100"))

    assert bench.refusals(make_pod("late", extra={GPU: 2}, annotations=annotations)) == refusals


def test_invalid_annotation_makes_the_pod_unresolvable() -> None:
    bench = Bench(make_node("n", extra={GPU: 2}))
    status = bench.plugin.pre_filter(bench.view, make_pod("odd", annotations={GPU_MILLI: "half"})).status

    assert status.code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE
    assert "multisched.io/gpu-milli" in status.message


def test_pods_without_gpus_are_left_to_the_other_plugins() -> None:
    bench = Bench(make_node("n", extra={GPU: 2}))

    assert bench.plugin.pre_filter(bench.view, make_pod("cpu")).status.code is Code.SKIP
    assert bench.plugin.pre_score(bench.view, make_pod("cpu"), all_rows(bench.cache)).code is Code.SKIP


def test_fraction_prefers_the_shared_device_that_it_fills_best() -> None:
    bench = Bench(*(make_node(name, extra={GPU: 4}) for name in ("untouched", "loose", "tight")))
    bench.cache.assume(fraction("a", 300), row_of(bench.cache, "loose"))
    bench.cache.assume(fraction("b", 700), row_of(bench.cache, "tight"))

    scores = bench.scores(fraction("late", 300))

    assert scores["tight"] > scores["loose"] > scores["untouched"]


def test_fraction_that_needs_an_idle_device_prefers_the_fuller_node() -> None:
    bench = Bench(make_node("untouched", extra={GPU: 2}), make_node("used", extra={GPU: 2}))
    bench.cache.assume(fraction("a", 800), row_of(bench.cache, "used"))

    assert bench.best(fraction("late", 500)) == "used"


def test_whole_pod_prefers_the_node_with_fewest_remaining_devices() -> None:
    bench = Bench(
        make_node("large", extra={GPU: 8}), make_node("small", extra={GPU: 2}), make_node("half", extra={GPU: 8})
    )
    bench.cache.assume(whole("a", 5), row_of(bench.cache, "half"))

    assert bench.best(whole("one", 1)) == "small"
    assert bench.best(whole("three", 3)) == "half"
    assert bench.scores(whole("three", 3))["small"] == 0


def test_a_demand_for_more_devices_than_any_node_has_scores_nothing() -> None:
    bench = Bench(make_node("n", extra={GPU: 2}))

    assert bench.scores(fraction("wide", 10, 200)) == {"n": 0}
    assert bench.scores(fraction("too wide by one", 10, 3)) == {"n": 0}
    for devices in (1, 2, 4, 8, 16, 32):
        large = Bench(make_node("n", extra={GPU: devices}))
        assert large.scores(fraction("all of them", 900, devices))["n"] > 0
    assert bench.plugin.score(bench.view, fraction("wide", 10, 200), all_rows(bench.cache)).dtype == np.int64
    assert bench.refusals(fraction("wide", 10, 200)) == {"n": "Insufficient gpu-milli"}


def test_removed_victim_frees_devices_only_in_its_cycle_state() -> None:
    bench = Bench(make_node("n", extra={GPU: 1}))
    victim = fraction("victim", 900)
    bench.cache.assume(victim, 0)
    late = whole("late", 1)
    thought = make_view(bench.cache)

    bench.plugin.remove_pod(thought, late, victim, 0)

    assert bench.plugin.filter(thought, late, all_rows(bench.cache)).tolist() == [0]
    assert bench.plugin.filter(bench.view, late, all_rows(bench.cache)).tolist() != [0]
    assert victim.uid in bench.plugin._ledger.held()


def test_nominated_pod_takes_devices_in_the_cycle_state() -> None:
    bench = Bench(make_node("n", extra={GPU: 2}))
    late = fraction("late", 600, 2)
    thought = make_view(bench.cache)
    copied = thought.state.copy()

    bench.plugin.add_pod(thought, late, fraction("nominated", 500), 0)

    assert bench.plugin.filter(thought, late, all_rows(bench.cache)).tolist() != [0]
    assert bench.plugin.filter(bench.view, late, all_rows(bench.cache)).tolist() == [0]
    thought.state = copied
    assert bench.plugin.filter(thought, late, all_rows(bench.cache)).tolist() == [0]


def test_nominated_pod_counts_as_whole_or_fraction() -> None:
    """Where indices are not honoured, whole and fractional pods never meet."""
    bench = Bench(make_node("n", extra={GPU: 2}))
    for nominated, late, other in (
        (whole("nominated", 1), whole("late", 1), fraction("other", 100)),
        (fraction("nominated", 600), fraction("late", 900), whole("other", 1)),
    ):
        thought = make_view(bench.cache)
        bench.plugin.add_pod(thought, late, nominated, 0)

        codes = [bench.plugin.filter(thought, pod, all_rows(bench.cache)).item() for pod in (late, other)]

        assert [code != 0 for code in codes] == [False, True]


def test_only_gpu_events_requeue_a_refused_pod() -> None:
    bench = Bench()
    hints = {registration.event.label: registration.hint for registration in bench.plugin.events_to_register()}
    late, held = fraction("late", 1), fraction("held", 1, node="n")
    deleted, node = hints["AssignedPodDelete"], hints["NodeGpusChanged"]
    own = hints["PodGpusChanged"]

    assert deleted is not None
    assert deleted(late, held, None) is Hint.QUEUE
    assert deleted(late, make_pod("cpu"), None) is Hint.SKIP
    assert node is not None
    assert node(late, None, make_node("n", extra={GPU: 1})) is Hint.QUEUE
    assert node(late, None, make_node("n")) is Hint.SKIP
    assert node(late, make_node("n", extra={GPU: 1}), make_node("n", extra={GPU: 2})) is Hint.QUEUE
    assert node(late, make_node("n", extra={GPU: 2}), make_node("n", extra={GPU: 2}, cpu_milli=9)) is Hint.SKIP
    assert (
        node(late, make_node("n", extra={GPU: 2}), make_node("n", extra={GPU: 2}, labels={GPU_INDICES: HONOURED}))
        is Hint.QUEUE
    )
    assert own is not None
    assert own(late, late, fraction("late", 2)) is Hint.QUEUE
    assert own(late, late, fraction("late", 1)) is Hint.SKIP


def test_pods_with_equal_demands_share_a_signature() -> None:
    plugin = Bench().plugin

    assert plugin.sign(fraction("a", 5)) == plugin.sign(fraction("b", 5))
    assert plugin.sign(fraction("a", 5)) != plugin.sign(fraction("b", 6))
    assert plugin.sign(make_pod("cpu")) is not None


pods = st.one_of(
    st.builds(lambda milli, count: ("fraction", milli, count), st.sampled_from([1, 250, 500, 1000]), st.integers(1, 3)),
    st.builds(lambda count: ("whole", 0, count), st.integers(1, 4)),
)


def documented_score(free: list[int], kind: tuple[str, int, int]) -> int:
    """A hundred by the whole devices left; or 50, 40 and 10 points for shared devices, little left of them and a full node."""
    name, milli, count = kind
    if name == "whole":
        left = free.count(1000) - count
        return 100 // (1 + left) if left >= 0 else 0
    chosen = sorted(one for one in free if one >= milli)[:count]
    if len(chosen) < count:
        return 0
    shared, left = sum(one < 1000 for one in chosen), sum(one - milli for one in chosen)
    full = 100 - 100 * sum(free) // (len(free) * 1000)
    return 50 * shared // count + 10 * full // 100 + 40 * (count * 1000 - left) // (count * 1000)


@given(st.lists(st.tuples(pods, st.integers(0, 3)), max_size=12), pods)
def test_filter_equals_the_ledger_and_scores_are_as_documented(
    steps: list[tuple[tuple[str, int, int], int]], last: tuple[str, int, int]
) -> None:
    honoured = {GPU_INDICES: HONOURED}
    bench = Bench(
        make_node("a", extra={GPU: 1}),
        make_node("b", extra={GPU: 3}),
        make_node("c", extra={GPU: 2}, labels=honoured),
        # Many rows are evaluated in another way than few.
        *(make_node(f"empty-{number}") for number in range(SCORED_FEW)),
    )

    def build(name: str, kind: tuple[str, int, int]) -> Pod:
        return whole(name, kind[2]) if kind[0] == "whole" else fraction(name, kind[1], kind[2])

    for number, (kind, row) in enumerate(steps):
        pod = build(f"p{number}", kind)
        if not bench.plugin._ledger.fits(pod, row):
            bench.cache.assume(pod, row)
    late = build("late", last)
    refusals = bench.refusals(late)
    scores = bench.scores(late)
    codes = bench.plugin.filter(bench.view, late, all_rows(bench.cache)).tolist()
    for row, node in bench.cache.nodes.live_rows():
        assert bench.plugin.filter(bench.view, late, np.array([row], np.intp)).tolist() == [codes[row]]
        assert refusals.get(node.name, "") == bench.plugin._ledger.fits(late, row)
        assert 0 <= scores[node.name] <= 100
        assert scores[node.name] == documented_score(bench.plugin._ledger.cards(row).free_milli, last)
        part = bench.plugin.score(bench.view, late, np.array([row], np.intp))
        assert part.tolist() == [scores[node.name]]
        assert part.dtype == np.int64


@pytest.mark.parametrize("pod", [fraction("part", 200), whole("all", 1)], ids=["fraction", "whole"])
def test_first_filter_over_many_nodes_without_devices_covers_each(pod: Pod) -> None:
    """Found by a mutant: arrays that grew as they were read answered in their old size, and the attempt failed."""
    nodes = [make_node(f"n{row}", extra={GPU: 1 if row == 3 else 0}) for row in range(3 * ROWS_FIRST)]
    names = {node.name for node in nodes}
    assert names - Bench(*nodes).refusals(pod).keys() == {"n3"}
    assert Bench(*nodes).scores(pod).keys() == names
    bench = Bench(*nodes)
    sensitivity = bench.plugin.pod_sensitivity(bench.view, pod)
    assert sensitivity.rows_that_matter is not None
    assert sensitivity.rows_that_matter(all_rows(bench.cache)).tolist() == [False] * len(nodes)

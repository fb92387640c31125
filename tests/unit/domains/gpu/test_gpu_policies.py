"""The placement policies: which node and which card each takes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from domains.gpu.dialects.fgd import MILLI
from domains.gpu.dialects.whole import FGD_COUNT, FGD_MODEL
from domains.gpu.gpu_share import GpuShare
from domains.gpu.policies import SCORED_FEW
from domains.gpu.settings import POLICIES
from domains.gpu.typical_pods import PodShape, TypicalPod
from multisched.framework.plugin_args import PluginArgsError
from multisched.framework.status import SKIP
from multisched.framework.traits import traits_of
from multisched.model.objects import Pod
from multisched.state.cluster_cache import ClusterCache
from multisched.testing.builders import all_rows, make_context, make_node, make_pod, make_view, row_of
from tests.kit.checkers import plain_fragments

QUARTER_AND_WHOLE = [
    {"cpu": "1", "gpuMilli": 250, "gpuCount": 1, "share": 3},
    {"cpu": "4", "gpuMilli": 1000, "gpuCount": 1, "share": 1},
]
WITH_TYPICAL: dict[str, Any] = {"fragmentation": {"typicalPods": QUARTER_AND_WHOLE}}


def pod_of(name: str, milli: int, count: int = 1, *, cpu_milli: int = 1000, models: str = "") -> Pod:
    annotations = {MILLI: str(milli), FGD_COUNT: str(count)} if count else {}
    return make_pod(name, cpu_milli=cpu_milli, annotations=annotations | ({FGD_MODEL: models} if models else {}))


class Bench:
    """A cluster with one GpuShare. Nodes: name -> what is left of each card."""

    def __init__(
        self, nodes: Mapping[str, Sequence[int]], *, cpu_milli: int = 64_000, model: str = "T4", **args: Any
    ) -> None:
        self.cache = ClusterCache()
        self.plugin = GpuShare(make_context(self.cache), args)
        for name, left in nodes.items():
            labels = {FGD_MODEL: model}
            self.cache.set_node(
                make_node(name, cpu_milli=cpu_milli, pods=1000, extra={FGD_COUNT: len(left)}, labels=labels)
            )
        for name, left in nodes.items():
            for place, milli in enumerate(left):
                if milli < 1000:
                    held = make_pod(f"{name}-{place}", annotations={MILLI: str(1000 - milli)})
                    self.cache.assume(held, row_of(self.cache, name), {"gpu-devices": (place,)})
        self.view = make_view(self.cache)

    def scores(self, pod: Pod) -> dict[str, int]:
        rows = all_rows(self.cache)
        found = self.plugin.score(self.view, pod, rows)
        return {self.cache.nodes.node(int(row)).name: int(score) for row, score in zip(rows, found, strict=True)}

    def card(self, pod: Pod, node: str) -> tuple[int, ...] | None:
        return self.plugin.choose(self.view, pod, row_of(self.cache, node))


def test_fragmentation_chooses_the_card_whose_remainder_typical_pods_can_use() -> None:
    bench = Bench({"n": [600, 750]}, policy="fragmentation", typicalPods=QUARTER_AND_WHOLE)

    # 500 of 600 leave 100, which no quarter fits on; 500 of 750 leave 250, which one uses.
    assert bench.card(pod_of("p", 500), "n") == (1,)
    assert Bench({"n": [600, 750]}, policy="best-fit").card(pod_of("p", 500), "n") == (0,)


def test_fragmentation_prefers_a_node_that_keeps_room_for_whole_cards() -> None:
    bench = Bench({"idle": [1000], "used": [500]}, policy="fragmentation", typicalPods=QUARTER_AND_WHOLE)

    scores = bench.scores(pod_of("p", 250))

    # On `idle` three quarters are left, of which a whole pod (share 1/4) can use none: F rises by 187.5 from 0. On `used`
    # whole pods could use nothing before: F falls from 125 to 62.5.
    assert scores == {"idle": int(100 / (1 + 2.718281828**0.1875)), "used": int(100 / (1 + 2.718281828**-0.0625))}


NODES = st.lists(
    st.lists(st.sampled_from((0, 100, 250, 500, 700, 1000)), min_size=1, max_size=5),
    min_size=1,
    max_size=SCORED_FEW + 3,
)
"""Few rows and many: the policy scores them in different ways."""
WANTED = st.builds(
    PodShape,
    st.sampled_from((0, 1000, 4000, 9000)),
    st.sampled_from((50, 250, 500, 1000)),
    st.sampled_from((0, 1, 1, 2)),
).map(lambda one: one if one.count else replace(one, milli=0))
TYPICAL = st.lists(
    st.fixed_dictionaries({
        "cpu": st.sampled_from(("0", "2", "8")),
        "gpuMilli": st.sampled_from((100, 250, 600, 1000)),
        "gpuCount": st.sampled_from((1, 1, 2)),
        "models": st.sampled_from(([], ["T4"], ["V100"])),
        "share": st.sampled_from((1, 3, 10)),
    }),
    min_size=1,
    max_size=4,
)  # fmt: skip


@given(NODES, WANTED, TYPICAL)
def test_fragmentation_equals_plain_arithmetic(
    nodes: list[list[int]], wanted: PodShape, typical: list[dict[str, Any]]
) -> None:
    bench = Bench(
        {f"n{number}": left for number, left in enumerate(nodes)},
        cpu_milli=10_000,
        policy="fragmentation",
        typicalPods=typical,
    )
    total = sum(one["share"] for one in typical)
    mix = tuple(
        TypicalPod(
            PodShape(1000 * int(one["cpu"]), one["gpuMilli"], one["gpuCount"], tuple(one["models"])),
            one["share"] / total,
        )
        for one in typical
    )
    pod = pod_of("p", wanted.milli, wanted.count, cpu_milli=wanted.cpu_milli)

    expected = {
        f"n{number}": plain_fragments.score(left, 10_000, "T4", mix, wanted) for number, left in enumerate(nodes)
    }

    assert bench.scores(pod) == {name: score for name, (score, _) in expected.items()}
    for name, (score, places) in expected.items():
        if score and wanted.count:
            assert bench.card(pod, name) == tuple(sorted(places))


@given(
    policy=st.sampled_from(POLICIES),
    left=st.lists(st.sampled_from((200, 300, 550, 750, 1000)), min_size=2, max_size=6),
    milli=st.sampled_from((100, 200, 500, 750)),
    count=st.sampled_from((1, 1, 2)),
)
def test_explain_and_overlays_name_the_cards_that_are_taken(
    policy: str, left: list[int], milli: int, count: int
) -> None:
    bench = Bench({"n": left, "other": [1000]}, policy=policy, **WITH_TYPICAL.get(policy, {}))
    pod = pod_of("p", milli, count)
    row = row_of(bench.cache, "n")
    taken = bench.card(pod, "n")
    bench.plugin.add_pod(bench.view, pod_of("q", 10), pod, row)

    described = bench.plugin.describe(pod, row)
    refused = bool(bench.plugin.filter(bench.view, pod_of("r", 1000, left.count(1000) or 1), np.array([row]))[0])

    if taken is None:
        assert "would get no card" in described
    else:
        assert [int(one) for one in re.findall(r"card (\d+): free", described)] == list(taken)
        assert refused == (1000 not in left or any(left[card] == 1000 for card in taken))


def test_an_overlay_takes_cards_by_what_is_left_in_it() -> None:
    bench = Bench({"n": [750, 600]}, policy="fragmentation", typicalPods=QUARTER_AND_WHOLE)
    row = row_of(bench.cache, "n")
    # 500 of 750 leave 250, which a quarter uses. After that, 100 of 250 would leave 150, which no pod uses.
    for name, milli in (("first", 500), ("second", 100)):
        bench.plugin.add_pod(bench.view, pod_of("q", 10), pod_of(name, milli), row)

    refused = [bool(bench.plugin.filter(bench.view, pod_of("r", milli), np.array([row]))[0]) for milli in (500, 501)]

    assert refused == [False, True]


def test_best_fit_weighs_cpu_and_gpu_that_are_left() -> None:
    bench = Bench({"idle": [1000, 1000], "used": [1000, 300]}, policy="best-fit")

    scores = bench.scores(pod_of("p", 500, cpu_milli=4000))

    cpu = 0.5 * 60_000 / 128_000
    assert scores == {"idle": int(100 * (1 - cpu - 0.5 * 1500 / 8000)), "used": int(100 * (1 - cpu - 0.5 * 800 / 8000))}


def test_spread_prefers_idle_nodes_and_cards() -> None:
    bench = Bench({"idle": [1000, 1000], "used": [1000, 300]}, policy="spread")

    scores = bench.scores(pod_of("p", 200))

    assert scores["idle"] > scores["used"]
    assert bench.card(pod_of("p", 200), "used") == (0,)


def test_packing_prefers_used_nodes_and_cards() -> None:
    bench = Bench({"idle": [1000, 1000], "used": [1000, 300]}, policy="packing")

    scores = bench.scores(pod_of("p", 200))

    assert scores["idle"] < scores["used"]
    assert bench.card(pod_of("p", 200), "used") == (1,)


def test_random_policy_scores_nothing_and_takes_cards_by_uid() -> None:
    bench = Bench({"n": [1000] * 8}, policy="random")
    taken = [bench.card(pod_of(f"p{number}", 200), "n") for number in range(40)]

    assert bench.plugin.pre_score(bench.view, pod_of("p", 200), all_rows(bench.cache)) is SKIP
    assert set(taken) == {(place,) for place in range(8)}
    assert taken == [bench.card(pod_of(f"p{number}", 200), "n") for number in range(40)]


@pytest.mark.parametrize(
    ("policy", "is_first"),
    [("fragmentation", True), ("best-fit", True), ("packing", True), ("spread", False), ("random", False)],
)
def test_policies_that_pack_fill_equal_nodes_in_order(policy: str, is_first: bool) -> None:
    assert traits_of(Bench({}, policy=policy).plugin).prefers_first_row is is_first


def test_pods_without_gpus_keep_away_from_idle_cards() -> None:
    bench = Bench({"idle": [1000], "full": [0]}, cpu_milli=4000, policy="fragmentation", typicalPods=QUARTER_AND_WHOLE)

    scores = bench.scores(pod_of("p", 0, 0, cpu_milli=2000))

    assert scores["idle"] < scores["full"]


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ({"policy": "fragmentaton"}, "args.policy: 'fragmentaton' is not known; did you mean fragmentation?"),
        ({"policy": "packing", "typicalPods": QUARTER_AND_WHOLE}, "args.typicalPods: policy packing does not use it"),
        ({"policy": "fragmentation", "typicalPods": []}, "args.typicalPods: is empty"),
        ({"policy": "fragmentation", "typicalPods": [{"gpuMilli": 1001}]}, "args.typicalPods[0].gpuMilli: 1001 is not within 0..1000"),
        ({"policy": "fragmentation", "typicalPods": [{"gpuCount": 2}]}, "args.typicalPods[0].gpuCount: 2 cards with 0"),
        ({"policy": "fragmentation", "typicalPods": [{"cpu": "x"}]}, "args.typicalPods[0].cpu: "),
        ({"policy": "fragmentation", "typicalPods": [{"share": 0}]}, "args.typicalPods[0].share: "),
    ],
)  # fmt: skip
def test_bad_args_name_the_field(args: dict[str, Any], problem: str) -> None:
    with pytest.raises(PluginArgsError) as raised:
        Bench({}, **args)

    assert str(raised.value).startswith(problem)

"""NodeResourcesFit and NodeResourcesBalancedAllocation against the rules worked out node by node."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.framework.events import Hint
from multisched.framework.node_view import VIEW_FROM
from multisched.framework.plugin_args import PluginArgsError
from multisched.framework.status import Code
from multisched.plugins.columns import FEW_ROWS
from multisched.plugins.node_resources_balanced_allocation import (
    NodeResourcesBalancedAllocation,
    NodeResourcesBalancedAllocationArgs,
)
from multisched.plugins.node_resources_fit import NodeResourcesFit, NodeResourcesFitArgs
from multisched.testing.builders import Document, container, decode_node, decode_pod, node_document, pod_document
from tests.unit.plugins.scenes import EXTRA, MEBI, Scene, parsed, scenes

DEFAULTS = {"cpu": 100, "memory": 200 * MEBI}
ORDER = ("cpu", "memory", "ephemeral-storage", "example.com/fpga", "hugepages-2Mi", "nvidia.com/gpu")


def asked(pod: Document, *, with_defaults: bool = False) -> dict[str, int]:
    total = parsed(pod["spec"].get("overhead") or {})
    for one in pod["spec"]["containers"]:
        requests = parsed(one["resources"]["requests"])
        if with_defaults:
            requests = {**DEFAULTS, **requests}
        for name, amount in requests.items():
            total[name] = total.get(name, 0) + amount
    return total


def taken(scene: Scene, node: str, resource: str, *, with_defaults: bool = False) -> int:
    with_defaults = with_defaults and resource in DEFAULTS
    return sum(asked(pod, with_defaults=with_defaults).get(resource, 0) for pod in scene.on(node))


def capacity(scene: Scene, node: str) -> dict[str, int]:
    document = scene.nodes[scene.names.index(node)]
    return parsed(document["status"]["allocatable"])


def fit_by_hand(scene: Scene, node: str) -> tuple[Code, tuple[str, ...]] | None:
    has, reasons, code = capacity(scene, node), [], Code.UNSCHEDULABLE
    if len(scene.on(node)) + 1 > has["pods"]:
        reasons.append("Too many pods")
    wanted = asked(scene.pending)
    for name in ORDER:
        amount = wanted.get(name, 0)
        if amount > 0 and amount > has.get(name, 0) - taken(scene, node, name):
            reasons.append(f"Insufficient {name}")
            if amount > has.get(name, 0):
                code = Code.UNSCHEDULABLE_AND_UNRESOLVABLE
    return (code, tuple(reasons)) if reasons else None


def curve_by_hand(shape: list[tuple[int, int]], percent: int) -> int:
    if percent <= shape[0][0]:
        return shape[0][1] * 10
    for (left, low), (right, high) in pairwise(shape):
        if percent <= right:
            return low * 10 + int((high - low) * 10 * (percent - left) / (right - left))
    return shape[-1][1] * 10


def fit_score_by_hand(
    scene: Scene, node: str, kind: str, weights: list[tuple[str, int]], shape: list[tuple[int, int]]
) -> int:
    has, total, weight_sum = capacity(scene, node), 0, 0
    for name, weight in weights:
        wanted = asked(scene.pending, with_defaults=name in DEFAULTS).get(name, 0)
        if not has.get(name, 0) or (not wanted and name not in ("cpu", "memory", "ephemeral-storage")):
            continue
        used, limit = taken(scene, node, name, with_defaults=True) + wanted, has[name]
        if kind == "LeastAllocated":
            score = 0 if used > limit else (limit - used) * 100 // limit
        elif kind == "MostAllocated":
            score = min(used, limit) * 100 // limit
        else:
            score = curve_by_hand(shape, 100 if used > limit else used * 100 // limit)
            if not score:
                continue
        total, weight_sum = total + score * weight, weight_sum + weight
    if not weight_sum:
        return 0
    return math.floor(total / weight_sum + 0.5) if kind == "RequestedToCapacityRatio" else total // weight_sum


def balance_by_hand(scene: Scene, node: str, names: list[str], extra: dict[str, int]) -> int:
    has, wanted = capacity(scene, node), asked(scene.pending)
    counted = [n for n in names if has.get(n, 0) and (wanted.get(n, 0) or n in ("cpu", "memory", "ephemeral-storage"))]
    fractions = [min(1.0, (taken(scene, node, name) + extra.get(name, 0)) / has[name]) for name in counted]
    deviation = 0.0
    if len(fractions) == 2:
        deviation = abs((fractions[0] - fractions[1]) / 2)
    elif len(fractions) > 2:
        total = 0.0
        for fraction in fractions:
            total += fraction
        mean, squares = total / len(fractions), 0.0
        for fraction in fractions:
            squares += (fraction - mean) * (fraction - mean)
        deviation = math.sqrt(squares / len(fractions))
    return int((1 - deviation) * 100.0)


@given(scenes("resources"))
def test_fit_names_all_missing_resources(scene: Scene) -> None:
    assert scene.statuses(NodeResourcesFit()) == {name: fit_by_hand(scene, name) for name in scene.names}


weights = st.lists(
    st.tuples(st.sampled_from(("cpu", "memory", "pods", *EXTRA)), st.integers(1, 100)), min_size=1, max_size=4
)
shapes = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 10)), min_size=1, max_size=4, unique_by=lambda p: p[0])


@given(
    scenes("resources"),
    st.sampled_from(("LeastAllocated", "MostAllocated", "RequestedToCapacityRatio")),
    weights,
    shapes,
)
def test_each_scoring_strategy_is_the_weighted_mean(
    scene: Scene, kind: str, weights: list[tuple[str, int]], shape: list[tuple[int, int]]
) -> None:
    shape = sorted(shape)
    strategy: dict[str, Any] = {"type": kind, "resources": [{"name": n, "weight": w} for n, w in weights]}
    if kind == "RequestedToCapacityRatio":
        strategy["requestedToCapacityRatio"] = {"shape": [{"utilization": u, "score": s} for u, s in shape]}
    plugin = NodeResourcesFit(NodeResourcesFitArgs.from_config({"scoringStrategy": strategy}))

    weights = [(name, weight) for name, weight in weights if name != "pods"]  # pods are counted, never scored
    assert scene.scores(plugin) == {n: fit_score_by_hand(scene, n, kind, weights, shape) for n in scene.names}


def test_zero_resource_weight_counts_as_one() -> None:
    """As upstream."""
    scene = one_node(pod_document("p", container(cpu="1000m", memory=6144 * MEBI)), cpu=4000, memory=8192 * MEBI)

    def score(cpu: int, memory: int) -> dict[str, int]:
        resources = [{"name": "cpu", "weight": cpu}, {"name": "memory", "weight": memory}]
        return scene.scores(
            NodeResourcesFit(NodeResourcesFitArgs.from_config({"scoringStrategy": {"resources": resources}}))
        )

    assert score(0, 1) == score(1, 0) == score(1, 1) == {"n0": 50}
    assert score(2, 1) == {"n0": 58}


@given(scenes("resources"), st.lists(st.sampled_from(("cpu", "memory", *EXTRA)), min_size=1, max_size=4, unique=True))
def test_balanced_allocation_scores_the_change_in_balance(scene: Scene, names: list[str]) -> None:
    args = NodeResourcesBalancedAllocationArgs.from_config({"resources": [{"name": name} for name in names]})
    plugin, wanted = NodeResourcesBalancedAllocation(args), asked(scene.pending)

    expected = {}
    for node in scene.names:
        change = balance_by_hand(scene, node, names, wanted) - balance_by_hand(scene, node, names, {})
        expected[node] = 50 + (50 + change) // 2
    assert scene.scores(plugin) == expected
    skips = plugin.pre_score(scene.view(), scene.pod, scene.rows(scene.names)).code is Code.SKIP
    assert skips == (not any(wanted.get(name) for name in names))


@given(
    st.lists(st.tuples(*[st.sampled_from((0, 1, 100, 999, 3_000))] * 4), min_size=FEW_ROWS + 1, max_size=12),
    st.sampled_from((0, 1, 250, 4_000)),
    st.sampled_from((0, 7, 100)),
)
def test_balanced_allocation_of_few_rows_equals_that_of_many(nodes: list[tuple[int, ...]], cpu: int, mebi: int) -> None:
    placed = [
        pod_document(f"p{n}", container(cpu=f"{held}m", memory=held_mebi * MEBI), node=f"n{n}")
        for n, (_, _, held, held_mebi) in enumerate(nodes)
    ]
    documents = [
        node_document(f"n{n}", cpu=f"{has}m", memory=has_mebi * MEBI) for n, (has, has_mebi, _, _) in enumerate(nodes)
    ]
    scene = Scene(documents, placed, pod_document("new", container(cpu=f"{cpu}m", memory=mebi * MEBI)))
    plugin, view, rows = NodeResourcesBalancedAllocation(), scene.view(), scene.rows(scene.names)

    few = [score for at in range(len(rows)) for score in plugin.score(view, scene.pod, rows[at : at + 1]).tolist()]
    assert few == plugin.score(view, scene.pod, rows).tolist()


def one_node(pending: Document, *placed: Document, cpu: int = 4000, **node: Any) -> Scene:
    """`cpu` in milli."""
    return Scene([node_document("n0", cpu=f"{cpu}m", **node)], placed, pending)


def asking(cpu: int, *, node: str = "", name: str = "p", **spec: Any) -> Document:
    return pod_document(name, container(cpu=f"{cpu}m"), node=node, **spec)


SIDECAR = {"restartPolicy": "Always"}


@pytest.mark.parametrize(
    ("pod", "cpu"),
    [
        (pod_document("p", container(cpu="300m"), initContainers=[container(cpu="1000m")]), 1000),
        (pod_document("p", container(cpu="300m"), initContainers=[container(cpu="100m"), container(cpu="200m")]), 300),
        (pod_document("p", container(cpu="300m"), initContainers=[{**container(cpu="200m"), **SIDECAR}]), 500),
        (pod_document("p", container(cpu="300m"), initContainers=[{**container(cpu="200m"), **SIDECAR}, container(cpu="400m")]), 600),
        (pod_document("p", container(cpu="300m"), initContainers=[container(cpu="400m"), {**container(cpu="200m"), **SIDECAR}]), 500),
        (pod_document("p", container(cpu="300m"), overhead={"cpu": "50m"}), 350),
        (pod_document("p", container(cpu="300m"), resources={"requests": {"cpu": "2"}}), 2000),
        (pod_document("p", container(cpu="300m"), resources={"requests": {"cpu": "2"}}, overhead={"cpu": "50m"}), 2050),
        (pod_document("p", container(cpu="300m"), resources={"requests": {"memory": "1Gi"}}), 300),
        (pod_document("p", container(cpu="0m")), 0),
    ],
    ids=["init", "small inits", "sidecar", "sidecar before init", "sidecar after init", "overhead", "pod level",
         "pod level and overhead", "pod level of another resource", "nothing"],
)  # fmt: skip
def test_pod_requests_are_the_maximum_over_its_containers_lifecycle(pod: Document, cpu: int) -> None:
    assert one_node(pod, cpu=cpu).statuses(NodeResourcesFit())["n0"] is None
    if cpu:
        refusal = (Code.UNSCHEDULABLE_AND_UNRESOLVABLE, ("Insufficient cpu",))
        assert one_node(pod, cpu=cpu - 1).statuses(NodeResourcesFit())["n0"] == refusal


def resized(spec_cpu: int, actuated: int, allocated: int, condition: str = "") -> Document:
    pod = asking(spec_cpu, node="n0", name="resized")
    status: Document = {
        "phase": "Running",
        "containerStatuses": [
            {
                "name": "main",
                "resources": {"requests": {"cpu": f"{actuated}m"}},
                "allocatedResources": {"cpu": f"{allocated}m"},
            }
        ],
    }
    if condition:
        status["conditions"] = [{"type": "PodResizePending", "status": "True", "reason": condition}]
    return {**pod, "status": status}


@pytest.mark.parametrize(
    ("pod", "held"),
    [
        (resized(500, 1000, 1000), 1000),
        (resized(1000, 500, 500), 1000),
        (resized(500, 700, 900), 900),
        (resized(2000, 500, 600, "Infeasible"), 600),
        (resized(2000, 500, 600, "Deferred"), 2000),
    ],
    ids=["shrinking", "growing", "allocated", "infeasible", "deferred"],
)
def test_resized_pod_uses_the_maximum_of_spec_and_status(pod: Document, held: int) -> None:
    assert one_node(asking(1000), pod, cpu=held + 1000).statuses(NodeResourcesFit())["n0"] is None
    refusal = (Code.UNSCHEDULABLE, ("Insufficient cpu",))
    assert one_node(asking(1001), pod, cpu=held + 1000).statuses(NodeResourcesFit())["n0"] == refusal


def test_pod_level_resize_uses_the_status() -> None:
    pod = asking(100, node="n0", name="resized", resources={"requests": {"cpu": "500m"}})
    pod["status"] = {"resources": {"requests": {"cpu": "1500m"}}, "allocatedResources": {"cpu": "600m"}}

    assert one_node(asking(500), pod, cpu=2000).statuses(NodeResourcesFit())["n0"] is None
    assert one_node(asking(501), pod, cpu=2000).statuses(NodeResourcesFit())["n0"] is not None


def test_pod_level_requests_are_scored_for_placed_pods_only() -> None:
    """Upstream's Fit scorer is built without the pod-level switch; NodeInfo counts it."""
    level = {"requests": {"cpu": "2", "memory": "4Gi"}}
    big = {"cpu": 4000, "memory": 8192 * MEBI}
    pending = pod_document("p", container(cpu="1000m", memory=2048 * MEBI), resources=level)
    placed = pod_document("q", container(cpu="1000m", memory=2048 * MEBI), node="n0", resources=level)

    assert one_node(pending, **big).scores(NodeResourcesFit()) == {"n0": 75}
    assert one_node(pending, placed, **big).scores(NodeResourcesFit()) == {"n0": 25}


def test_container_requests_separate_classes_only_if_scored() -> None:
    """Requests of the pod level stand for those of the containers, but not where a pending pod is scored."""

    def asking(pages: int) -> Document:
        return pod_document(
            "p", container(extra={"hugepages-2Mi": pages}), resources={"requests": {"hugepages-2Mi": "8"}}
        )

    scene = Scene([node_document("n0", extra={"hugepages-2Mi": 16})], [], asking(2))
    few, many = scene.pod, decode_pod(asking(8))
    assert few.requests == many.requests
    plain = NodeResourcesFit()
    pages = {"scoringStrategy": {"resources": [{"name": "hugepages-2Mi", "weight": 1}]}}
    scoring = NodeResourcesFit(NodeResourcesFitArgs.from_config(pages))
    rows = scene.rows(["n0"])
    scores = [[int(one.score(scene.view(), pod, rows)[0]) for pod in (few, many)] for one in (plain, scoring)]
    assert scores == [[scores[0][0]] * 2, [87, 50]]
    assert plain.sign(few) == plain.sign(many)
    assert scoring.sign(few) != scoring.sign(many)


def test_ignored_resources_and_groups_are_not_checked() -> None:
    pod = pod_document(
        "p", container(extra={"example.com/fpga": 1, "other.io/a": 1, "other.io/b": 1, "hugepages-2Mi": 1})
    )
    args = {"ignoredResources": ["example.com/fpga", "hugepages-2Mi"], "ignoredResourceGroups": ["other.io"]}
    plugin = NodeResourcesFit(NodeResourcesFitArgs.from_config(args))

    # Only extended resources can be ignored: huge pages are none.
    assert one_node(pod).statuses(plugin)["n0"] == (
        Code.UNSCHEDULABLE_AND_UNRESOLVABLE,
        ("Insufficient hugepages-2Mi",),
    )


def test_uncounted_resource_names_are_not_checked() -> None:
    pod = pod_document("p", container(extra={"pods": 500, "storage": 1, "bare": 7, "requests.example.com/x": 1}))
    assert one_node(pod).statuses(NodeResourcesFit())["n0"] is None


def test_pod_with_more_resources_than_reason_bits_is_refused_if_any_is_missing() -> None:
    many = {f"example.com/r{index:03}": 1 for index in range(100)}
    pod = pod_document("p", container(extra=many))
    assert one_node(pod, extra=many).statuses(NodeResourcesFit())["n0"] is None
    short = {**many, "example.com/r099": 0}
    refusal = one_node(pod, extra=short).statuses(NodeResourcesFit())["n0"]
    assert refusal is not None
    assert refusal[0] is Code.UNSCHEDULABLE_AND_UNRESOLVABLE


def test_fit_requeues_for_deleted_pods_with_needed_resources() -> None:
    fit, pod = NodeResourcesFit(), decode_pod(asking(1000, name="waiting"))
    hint = fit._after_pod_event
    placed, less = decode_pod(asking(500, node="n0")), decode_pod(asking(400, node="n0"))
    memory = decode_pod(pod_document("m", container(memory=9), node="n0"))
    no_memory = decode_pod(pod_document("m", container(memory=8), node="n0"))
    unplaced = decode_pod(asking(500))

    assert hint(pod, placed, None) is Hint.QUEUE
    assert hint(pod, unplaced, None) is Hint.SKIP
    assert hint(pod, placed, less) is Hint.QUEUE
    assert hint(pod, less, placed) is Hint.SKIP
    assert hint(pod, memory, no_memory) is Hint.SKIP
    assert hint(pod, pod, decode_pod(asking(900, name="waiting"))) is Hint.QUEUE


def test_fit_requeues_for_grown_nodes_that_could_fit_the_pod() -> None:
    hint, pod = NodeResourcesFit()._after_node_change, decode_pod(asking(1000))
    small, enough, larger = (decode_node(node_document("n", cpu=f"{cpu}m")) for cpu in (999, 1000, 2000))
    more_memory = decode_node(node_document("n", cpu="1000m", memory=9000 * MEBI))
    more_pods = decode_node(node_document("n", cpu="1000m", pods=111))

    assert hint(pod, None, small) is Hint.SKIP
    assert hint(pod, None, enough) is Hint.QUEUE
    assert hint(pod, small, enough) is Hint.QUEUE
    assert hint(pod, enough, larger) is Hint.QUEUE
    assert hint(pod, larger, enough) is Hint.SKIP
    assert hint(pod, enough, more_memory) is Hint.SKIP
    assert hint(pod, enough, more_pods) is Hint.QUEUE
    assert hint(pod, None, decode_node(node_document("n", cpu="1000m", pods=0))) is Hint.SKIP


STRATEGY = "args.scoringStrategy"
SHAPED = f"{STRATEGY}.requestedToCapacityRatio"
RATIO = {"type": "RequestedToCapacityRatio"}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"ignoredResource": []}, "args.ignoredResource: unknown field; did you mean ignoredResources?"),
        ({"ignoredResources": "a"}, "args.ignoredResources: is a text; write a list"),
        (
            {"ignoredResources": ["a b"]},
            "args.ignoredResources[0]: 'a b' is not a resource name; write for example example.com/fpga",
        ),
        (
            {"ignoredResourceGroups": ["a/b"]},
            "args.ignoredResourceGroups[0]: 'a/b' has a slash; write only the part before it",
        ),
        (
            {"scoringStrategy": []},
            f"{STRATEGY}: is a list; write a mapping with type, resources, requestedToCapacityRatio",
        ),
        (
            {"scoringStrategy": {"type": "LeastAlocated"}},
            f"{STRATEGY}.type: 'LeastAlocated' is not known; did you mean LeastAllocated?",
        ),
        (
            {"scoringStrategy": {"resources": [{"name": "cpu", "weight": 101}]}},
            f"{STRATEGY}.resources[0].weight: 101 is not within 0..100",
        ),
        (
            {"scoringStrategy": {"resources": [{"name": "cpu", "weight": "1"}]}},
            f"{STRATEGY}.resources[0].weight: '1' is text; write the number without quotes",
        ),
        (
            {"scoringStrategy": {"resources": [{"weight": 1}]}},
            f"{STRATEGY}.resources[0].name: is missing; write a resource, for example cpu",
        ),
        ({"scoringStrategy": RATIO}, f"{SHAPED}: is missing; type RequestedToCapacityRatio needs a shape"),
        (
            {"scoringStrategy": {"requestedToCapacityRatio": {}}},
            f"{SHAPED}: applies to type RequestedToCapacityRatio only; remove it",
        ),
        (
            {"scoringStrategy": {**RATIO, "requestedToCapacityRatio": {"shape": []}}},
            f"{SHAPED}.shape: is empty; write at least one point with utilization and score",
        ),
        (
            {
                "scoringStrategy": {
                    **RATIO,
                    "requestedToCapacityRatio": {"shape": [{"utilization": 5}, {"utilization": 5}]},
                }
            },
            f"{SHAPED}.shape[1].utilization: 5 is not greater than the previous one; sort the points by utilization",
        ),
    ],
)
def test_bad_fit_args_are_refused_with_path_and_fix(document: Document, message: str) -> None:
    with pytest.raises(PluginArgsError) as refused:
        NodeResourcesFitArgs.from_config(document)
    assert str(refused.value) == message


def test_balanced_allocation_refuses_weights_and_duplicates() -> None:
    with pytest.raises(PluginArgsError, match=r"args\.resources\[0\]\.weight: 2 is not within"):
        NodeResourcesBalancedAllocationArgs.from_config({"resources": [{"name": "cpu", "weight": 2}]})
    with pytest.raises(PluginArgsError, match=r"args\.resources\[1\]\.name: cpu is listed twice"):
        NodeResourcesBalancedAllocationArgs.from_config({"resources": [{"name": "cpu"}, {"name": "cpu"}]})


@pytest.mark.parametrize("kind", ["LeastAllocated", "MostAllocated"])
@given(st.lists(st.tuples(st.integers(1, 2**50), st.integers(0, 2**50)), min_size=1, max_size=4))
def test_capacities_beyond_float_precision_are_scored_exactly(kind: str, sizes: list[tuple[int, int]]) -> None:
    nodes = [node_document(f"n{at}", cpu="4m", memory=capacity) for at, (capacity, _) in enumerate(sizes)]
    placed = [
        pod_document(f"p{at}", container(memory=used), node=f"n{at}") for at, (_, used) in enumerate(sizes) if used
    ]
    scene = Scene(nodes, placed, pod_document("new", container(memory=1)))
    strategy = {"type": kind, "resources": [{"name": "memory", "weight": 1}]}
    plugin = NodeResourcesFit(NodeResourcesFitArgs.from_config({"scoringStrategy": strategy}))
    expected = {}
    for at, (size, used) in enumerate(sizes):
        taken_then = used + 1 if used else 1
        counted = max(0, size - taken_then) if kind == "LeastAllocated" else min(taken_then, size)
        expected[f"n{at}"] = counted * 100 // size
    assert scene.scores(plugin) == expected


def test_balanced_allocation_of_many_rows_equals_single_rows() -> None:
    nodes = [node_document(f"n{at}", cpu=f"{1 + at % 7}m", memory=(1 + at % 5) << 30) for at in range(2 * VIEW_FROM)]
    placed = [
        pod_document(f"p{at}", container(cpu=f"{100 * (1 + at % 9)}m", memory=(at % 4) << 28), node=f"n{at}")
        for at in range(0, 2 * VIEW_FROM, 3)
    ]
    scene = Scene(nodes, placed, pod_document("new", container(cpu="300m", memory=1 << 29)))
    plugin = NodeResourcesBalancedAllocation()
    rows = scene.rows(scene.names)
    assert len(rows) > VIEW_FROM
    at_once = plugin.score(scene.view(), scene.pod, rows).tolist()
    assert at_once == [int(plugin.score(scene.view(), scene.pod, rows[at : at + 1])[0]) for at in range(len(rows))]
    assert plugin.score(scene.view(), scene.pod, rows[:0]).tolist() == []
    assert len(set(at_once)) > 5

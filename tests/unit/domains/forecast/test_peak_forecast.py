"""PeakForecast: the worst dimension decides, assumed pods count, bad settings are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domains.forecast.peak_forecast import FEW_ROWS, PeakForecast, peak_forecast
from multisched.framework.context import PluginContext
from multisched.framework.plugin_args import PluginArgsError
from multisched.framework.registry import PluginSetupError, PluginUse, Registry
from multisched.model.objects import CPU, MEMORY, Node, Pod, PodSpec
from multisched.state.cluster_cache import ClusterCache
from multisched.testing.builders import all_rows, make_context, make_node, make_pod, make_view, row_of
from tests.unit.domains.forecast.profiles import make_profiles

HEADER = "timestamp,service,resource,value\n"


def history(tmp_path: Path, **services: dict[str, float]) -> dict[str, Any]:
    lines = [f"0,{name},{resource},{value}\n" for name, peaks in services.items() for resource, value in peaks.items()]
    path = tmp_path / "history.csv"
    path.write_text(HEADER + "".join(lines))
    return {"files": [str(path)]}


def pod_of(service: str, name: str, *, cpu: int = 0, node: str = "") -> Pod:
    return make_pod(name, labels={"multisched.io/service": service}, cpu_milli=cpu, node=node)


class Bench:
    """A cache with PeakForecast on it."""

    def __init__(self, args: dict[str, Any], *nodes: Node) -> None:
        self.cache = ClusterCache()
        self.plugin = PeakForecast(args, make_context(self.cache))
        for node in nodes:
            self.cache.set_node(node)

    def scores(self, pod: Pod) -> list[int]:
        raw = self.plugin.score(make_view(self.cache), pod, all_rows(self.cache))
        assert raw.dtype == np.int64
        return [int(score) for score in raw]


def test_score_without_profiles_uses_free_requests_of_the_worst_dimension() -> None:
    bench = Bench(
        {}, make_node("a", cpu_milli=10_000, memory_bytes=1_000), make_node("b", cpu_milli=4_000, memory_bytes=10_000)
    )

    assert bench.scores(make_pod("w", cpu_milli=3_000, memory_bytes=100)) == [70, 25]
    assert bench.scores(make_pod("w", cpu_milli=1, memory_bytes=300)) == [70, 97]


@given(
    nodes=st.lists(
        st.tuples(st.integers(0, 5_000), st.integers(-1, 2**40), st.integers(0, 6_000), st.integers(0, 2**40)),
        min_size=5,
        max_size=8,
    ),
    cpu=st.integers(0, 6_000),
    memory=st.integers(0, 2**41),
)
def test_rows_scored_singly_equal_rows_scored_together(
    nodes: list[tuple[int, int, int, int]], cpu: int, memory: int
) -> None:
    made = []
    for index, (cpu_milli, memory_bytes, _, _) in enumerate(nodes):
        stated = {CPU: cpu_milli, MEMORY: memory_bytes}
        allocatable = {name: amount for name, amount in stated.items() if amount >= 0}
        made.append(msgspec.structs.replace(make_node(f"n{index}"), allocatable=allocatable))
    bench = Bench({}, *made)
    for index, (_, _, used_cpu, used_memory) in enumerate(nodes):
        bench.cache.place(make_pod(f"p{index}", cpu_milli=used_cpu, memory_bytes=used_memory, node=f"n{index}"))
    pod, view = make_pod("w", cpu_milli=cpu, memory_bytes=memory), make_view(bench.cache)

    assert len(nodes) > FEW_ROWS
    together = bench.scores(pod)
    assert [bench.plugin.score(view, pod, np.array([row], np.intp)).item() for row in range(len(nodes))] == together


def test_placed_and_assumed_pods_count(tmp_path: Path) -> None:
    args = history(tmp_path, web={"cpu": 2})
    bench = Bench(
        args, make_node("a", cpu_milli=10_000, memory_bytes=2**40), make_node("b", cpu_milli=10_000, memory_bytes=2**40)
    )
    first, second = bench.scores(pod_of("web", "next"))
    assert first == second
    bench.cache.place(pod_of("web", "bound", node="a"))
    bench.cache.assume(pod_of("web", "assumed"), 0)

    both, none = bench.scores(pod_of("web", "next"))
    assert both < none
    bench.cache.forget("uid-assumed")
    one, none = bench.scores(pod_of("web", "next"))
    assert one < none
    bench.cache.remove("uid-bound")
    assert bench.scores(pod_of("web", "next")) == [first, second]


def test_services_with_different_peak_hours_are_colocated_and_others_separated() -> None:
    bench = Bench({}, make_node("evening", cpu_milli=10_000), make_node("morning", cpu_milli=10_000))
    hours = np.arange(168) % 24
    bench.plugin.adopt(
        make_profiles(
            ("cpu",), early={"cpu": np.where(hours < 12, 2.0, 0.1)}, late={"cpu": np.where(hours < 12, 0.1, 2.0)}
        )
    )
    bench.cache.place(pod_of("late", "l", node="evening"))
    bench.cache.place(pod_of("early", "e", node="morning"))

    evening, morning = bench.scores(pod_of("early", "next"))
    assert evening > morning
    evening, morning = bench.scores(pod_of("late", "next"))
    assert evening < morning


def test_two_services_with_much_logging_are_separated_despite_little_cpu() -> None:
    nodes = [make_node(name, annotations={"multisched.io/capacity-log": "50"}, cpu_milli=10_000) for name in "ab"]
    bench = Bench({}, *nodes)
    flat = np.ones(168)
    bench.plugin.adopt(
        make_profiles(
            ("cpu", "log"),
            logger={"cpu": 0.1 * flat, "log": 20 * flat},
            other={"cpu": 0.1 * flat, "log": 15 * flat},
            counter={"cpu": 3 * flat, "log": 0 * flat},
        )
    )
    bench.cache.place(pod_of("logger", "l", node="a"))
    bench.cache.place(pod_of("counter", "c", node="b"))

    first, second = bench.scores(pod_of("other", "next"))
    assert first < second
    first, second = bench.scores(pod_of("counter", "next"))
    assert first > second


def test_dimension_with_zero_weight_does_not_count() -> None:
    nodes = [make_node(name, annotations={"multisched.io/capacity-log": "50"}, cpu_milli=10_000) for name in "ab"]
    flat = np.ones(168)
    profiles = make_profiles(("cpu", "log"), logger={"cpu": 0.1 * flat, "log": 20 * flat})
    light = {"weights": {"log": 0, "memory": 0}}
    apart, alike = Bench({}, *nodes), Bench({"dimensions": ["cpu", "log", "memory"], **light}, *nodes)
    for bench in (apart, alike):
        bench.plugin.adopt(profiles)
        bench.cache.place(pod_of("logger", "l", node="a"))

    first, second = apart.scores(pod_of("logger", "next"))
    assert first < second
    apart.plugin.adopt(make_profiles(("cpu", "log"), logger={"cpu": 0 * flat, "log": 20 * flat}))
    alike.plugin.adopt(make_profiles(("cpu", "log"), logger={"cpu": 0 * flat, "log": 20 * flat}))
    first, second = apart.scores(pod_of("logger", "next"))
    assert first < second
    first, second = alike.scores(pod_of("logger", "next"))
    assert first == second == 100


def test_new_profiles_apply_at_once_and_change_signatures() -> None:
    bench = Bench({}, make_node("a", cpu_milli=10_000), make_node("b", cpu_milli=10_000))
    pod = pod_of("web", "next", cpu=1_000)
    bench.cache.place(pod_of("web", "w", cpu=1_000, node="a"))
    assert bench.scores(pod) == [80, 90]
    before = bench.plugin.sign(pod)
    first, second = (
        make_profiles(("cpu",), version=number, web={"cpu": np.full(168, amount)})
        for number, amount in ((1, 0.0), (2, 4.0))
    )
    bench.plugin.adopt(first)
    assert bench.plugin.sign(pod) != before
    assert bench.scores(pod) == [100, 100] or bench.plugin.dimensions == ("cpu", "memory")
    before = bench.plugin.sign(pod)
    bench.plugin.adopt(second)

    assert bench.plugin.sign(pod) != before
    assert bench.plugin.statistics().version == 2
    busy, idle = bench.scores(pod)
    assert busy < idle
    bench.cache.validate()


def test_rebuilt_domain_keeps_newer_profiles(tmp_path: Path) -> None:
    cache, args = ClusterCache(), history(tmp_path, web={"cpu": 1})
    first = PeakForecast(args, make_context(cache))
    again = PeakForecast(args, make_context(cache))
    assert again.statistics().services == 1
    again.adopt(make_profiles(("cpu",), version=7, web={"cpu": np.ones(168)}, api={"cpu": np.ones(168)}))
    third = PeakForecast(args, make_context(cache))

    assert [plugin.statistics().services for plugin in (first, again, third)] == [2, 2, 2]


@pytest.mark.parametrize("service", ["web", "without-history"])
def test_scheduler_plugins_797_burst_is_spread_over_nodes(tmp_path: Path, service: str) -> None:
    """Known bug of load-aware schedulers: no metric tells of pods assumed a moment ago; nor of a service that is new."""
    nodes = [make_node(name, cpu_milli=20_000, memory_bytes=2**40) for name in "abcd"]
    bench = Bench(history(tmp_path, web={"cpu": 1}), *nodes)
    bench.cache.place(pod_of("web", "standing", cpu=1_000, node="a"))
    for number in range(43):
        pod = pod_of(service, f"burst-{number}", cpu=1_000)
        bench.cache.assume(pod, int(np.argmax(bench.scores(pod))))

    assert [len(bench.cache.nodes.pods_by_uid(row_of(bench.cache, name))) for name in "abcd"] == [11] * 4


def test_dimension_without_capacity_still_distinguishes_rows(tmp_path: Path) -> None:
    args = history(tmp_path, logger={"log": 40})
    bench = Bench(args | {"dimensions": ["log"]}, make_node("a"), make_node("b"), make_node("c"))
    for number in range(3):
        bench.cache.place(pod_of("logger", f"l{number}", node="a" if number else "b"))

    two, one, none = bench.scores(pod_of("logger", "next"))
    assert two < one < none


def test_row_without_capacity_scores_lowest(tmp_path: Path) -> None:
    args = history(tmp_path, web={"cpu": 4}) | {"dimensions": ["cpu"]}
    bench = Bench(
        args,
        make_node("large", cpu_milli=40_000),
        make_node("small", cpu_milli=1_000),
        make_node("none", allocatable={"cpu": 0}),
    )

    large, small, none = bench.scores(pod_of("web", "w"))
    assert large > small == none == 0
    assert bench.scores(make_pod("idle", spec=PodSpec())) == [100, 100, 100]


def test_absurd_amounts_stay_in_range(tmp_path: Path) -> None:
    args = history(tmp_path, web={"cpu": 1e15})
    bench = Bench(
        args,
        make_node("huge", allocatable={CPU: 2**62 - 1, MEMORY: 2**62 - 1}),
        make_node("negative", allocatable={CPU: -1, MEMORY: -1}),
    )
    for number in range(10):
        bench.cache.place(pod_of("web", f"w{number}", node="huge"))

    assert all(0 <= score <= 100 for score in bench.scores(pod_of("web", "next")))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 10**7)), max_size=8), st.integers(0, 10**7))
def test_score_is_independent_of_other_requested_rows(placed: list[tuple[int, int]], cpu: int) -> None:
    bench = Bench({}, *(make_node(f"n{n}", cpu_milli=10 ** (n + 4), memory_bytes=2**34) for n in range(3)))
    for number, (row, amount) in enumerate(placed):
        bench.cache.place(pod_of("new", f"p{number}", cpu=amount, node=f"n{row}"))
    pod = pod_of("new", "next", cpu=cpu)
    together = bench.scores(pod)
    alone = [bench.plugin.score(make_view(bench.cache), pod, np.array([row], np.intp)).tolist()[0] for row in range(3)]

    assert together == alone
    assert all(0 <= score <= 100 for score in together)


def test_requests_decide_without_history_and_the_counter_has_the_reason(tmp_path: Path) -> None:
    args = history(tmp_path, web={"cpu": 1, "memory": 1}, half={"cpu": 1})
    bench = Bench(
        args, make_node("a", cpu_milli=10_000, memory_bytes=2**40), make_node("b", cpu_milli=10_000, memory_bytes=2**40)
    )
    bench.cache.place(pod_of("new", "n", cpu=5_000, node="a"))

    busy, idle = bench.scores(pod_of("new", "next", cpu=1_000))
    assert busy < idle
    view = make_view(bench.cache)
    for service in ("web", "new", "new", "", "half"):
        bench.plugin.post_bind(view, pod_of(service, "p"), "a")
    assert bench.plugin.fallbacks == {
        "no_service": 1,
        "no_history": 2,
        "partial_history": 1,
        "class": 0,
        "namespace": 0,
    }
    assert bench.plugin.statistics().fallbacks == bench.plugin.fallbacks
    assert (bench.plugin.statistics().services, bench.plugin.statistics().samples) == (2, 3)


def test_containers_without_requests_count_with_scoring_defaults() -> None:
    bench = Bench({}, make_node("a", cpu_milli=1_000, memory_bytes=2**40))
    silent = Pod(namespace="d", name="p", uid="u", version=1, spec=PodSpec(scoring_cpu_milli=100))

    assert bench.scores(silent) == [90]


def test_pods_of_equal_prediction_share_a_signature(tmp_path: Path) -> None:
    plugin = Bench(history(tmp_path, web={"cpu": 1, "memory": 1})).plugin

    assert plugin.sign(pod_of("web", "a", cpu=1)) == plugin.sign(pod_of("web", "b", cpu=2))
    assert plugin.sign(pod_of("new", "a", cpu=1)) != plugin.sign(pod_of("new", "b", cpu=2))


def test_domains_have_separate_sums_and_plugins_of_one_share_them() -> None:
    cache = ClusterCache()
    for domain in ("one", "two", "one"):
        PeakForecast({}, make_context(cache, domain=domain))

    assert [ledger.name for ledger in cache.ledgers] == ["predicted-peaks/one", "predicted-peaks/two"]
    with pytest.raises(ValueError, match="other capacities or dimensions"):
        PeakForecast({"dimensions": ["cpu"]}, make_context(cache, domain="one"))


def test_bad_lines_are_logged_once_with_the_first_of_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "history.csv"
    path.write_text(HEADER + "0,web,cpu,1\n0,web,cpu,much\nbad\n")
    bench = Bench({"historyDir": str(tmp_path)})

    assert bench.plugin.statistics().ignored_lines == 2
    record, *others = caplog.records
    assert record.message == "history lines ignored"
    assert "line 3, column value" in record.__dict__["first"]
    assert [other.__dict__["note"] for other in others] == [
        "cpu: 0.0 days of samples, 28.0 were requested (windowDays)",
        "cpu: 1 of 1 services has too few days of samples, and one quantile is used for the whole week: web",
    ]


def test_setting_of_a_dimension_missing_in_files_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "history.csv"
    path.write_text(HEADER + "0,web,log,1\n")
    said = {
        "weights": {"lgo": 2, "cpu": 1},
        "capacities": {"blah": 5},
        "repair": {"thresholdPercent": {"x": 80, "log": 90}},
    }
    with pytest.raises(PluginArgsError) as told:
        PeakForecast({"files": [str(path)], **said}, make_context())
    assert str(told.value).split("\n") == [
        "args.weights.lgo: no dimension is called lgo; did you mean log?",
        "args.capacities.blah: no dimension is called blah; known here: cpu, log, memory",
        "args.repair.thresholdPercent.x: no dimension is called x; known here: cpu, log, memory",
    ]
    PeakForecast({"files": [str(path)], **said, "dimensions": ["cpu", "log", "lgo", "blah", "x"]}, make_context())


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"file": ["a"]}, ["args.file", "files"]),
        ({"files": "a.csv"}, ["args.files", "list"]),
        ({"files": [1]}, ["args.files[0]", "1 is not text; put it in quotes"]),
        ({"files": ["a", "a"]}, ["args.files[1]: names a twice"]),
        ({"files": ["/nowhere/history.csv"]}, ["/nowhere/history.csv", "No such file"]),
        ({"historyDir": 5}, ["args.historyDir"]),
        ({"historyDir": "/nowhere"}, ["args.historyDir: /nowhere: No such file"]),
        ({"percentile": 101}, ["args.percentile", "100"]),
        ({"percentile": True}, ["args.percentile"]),
        ({"windowDays": 0}, ["args.windowDays", "above 0"]),
        ({"dimensions": ["cpu"] * 2}, ["args.dimensions[1]: names cpu twice"]),
        ({"dimensions": [f"d{n}" for n in range(33)]}, ["args.dimensions", "32"]),
        ({"mode": "both"}, None),
        ({"mode": "refuse"}, ["args.mode", "score, filter, both"]),
        ({"mode": ["score"]}, ["args.mode: is a list; write a text"]),
        ({"thresholdPercent": 0}, ["args.thresholdPercent", "above 0"]),
        ({"weights": {"cpu": -1}}, ["args.weights.cpu: -1 is not within 0..100"]),
        ({"weights": {5: 1}}, ["args.weights: write a mapping by dimension", "names that are numbers in quotes"]),
        ({"windowDays": float("nan")}, ["args.windowDays: nan is not above 0"]),
        ({"weights": ["cpu"]}, ["args.weights", "mapping"]),
        ({"dimensions": ["cpu", "log"], "weights": {"cpu": 2, "log": 0.5}}, None),
        ({"capacities": []}, ["args.capacities", "mapping"]),
        ({"capacities": ["log"]}, ["args.capacities", "mapping"]),
        ({"dimensions": ["log"], "capacities": {"log": "lots"}}, ["capacities.log", "lots"]),
        ({"dimensions": ["log"], "capacities": {"log": 0}}, ["capacities.log", "above zero"]),
        ({"dimensions": ["log"], "capacities": {"log": {"tag": "x"}}}, ["capacities.log", "annotation"]),
        ({"dimensions": ["log"], "capacities": {"log": {"label": "a", "annotation": "b"}}}, ["capacities.log"]),
        ({"dimensions": ["log"], "capacities": {"log": None}}, ["capacities.log"]),
    ],
)
def test_invalid_settings_are_reported_by_name_with_a_fix(args: dict[str, Any], words: list[str] | None) -> None:
    registry = Registry()
    registry.add("PeakForecast", peak_forecast, "test")
    context: PluginContext = make_context()
    if words is None:
        registry.build(PluginUse("PeakForecast", args=args), context)
        return
    with pytest.raises(PluginSetupError) as error:
        registry.build(PluginUse("PeakForecast", args=args), context)
    assert "PeakForecast" in str(error.value)
    assert all(word in str(error.value) for word in words)

"""Series become use per replica of each service: whose they are, where they lie on the grid, and what is wrong with them."""

from __future__ import annotations

import re

import numpy as np
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from domains.forecast.curves.node_usage import LoadRequest, PlacementInterval
from domains.forecast.history.prometheus_source import OVERLAP_S
from domains.forecast.history.source import Reading, SourceError, Table, TableFold, joined, merged
from domains.forecast.service_names import Labels, Owners, ServiceNames, stripped
from domains.forecast.settings.queries import (
    JOB_OWNERS,
    PLACES,
    POD_OWNERS,
    REPLICASET_OWNERS,
    WINDOW,
    Per,
    promql_duration,
)
from domains.forecast.settings.sources import Aggregation, Dimension, QueryCapacity
from multisched.forecasting.usage import Usage
from multisched.framework.measures import Grid, Piece
from tests.unit.domains.forecast.history.prometheus_kit import SmallPrometheus, in_thread, source_of

STEP_S = 300.0
FIRST = 5_666_667
GRID = Grid(FIRST * STEP_S, STEP_S, 4)
CPU = Dimension("cpu", "Q")


def pod(name: str, namespace: str = "shop") -> dict[str, str]:
    return {"namespace": namespace, "pod": name}


def at_steps(*values: float | str | None) -> dict[float, float | str | None]:
    """Values of the grid's steps, by the moments at which they are asked for: the ends of the steps."""
    return {GRID.start_s + (number + 1) * STEP_S: value for number, value in enumerate(values)}


def of(usage: Usage, service: str, dimension: str = "cpu") -> list[float | None]:
    row = usage.values[usage.services.index(service), usage.dimensions.index(dimension)]
    return [None if np.isnan(value) else float(value) for value in row]


async def test_usage_of_a_service_is_the_mean_over_replicas_per_step() -> None:
    server = SmallPrometheus(
        Q=[
            (pod("web-6d4cf56db6-x7k2p"), at_steps(1, 2, None, None).get),
            (pod("web-6d4cf56db6-bbbbb"), at_steps(3, None, None, 5).get),
            (pod("db-0"), at_steps(None, 8, None, None).get),
        ]
    )
    async with source_of(server, CPU) as source:
        reading = await source.read(GRID, in_thread)
    assert reading.usage.start_s == GRID.start_s
    assert of(reading.usage, "shop/web") == [1, 2, None, 5], "the 3 is of a part of a step: that pod went within it"
    assert of(reading.usage, "shop/db") == [None, 8, None, None]
    assert reading.named["pod name"] == 3
    told = (
        "services: 3 pods have no known owner; their services are guessed from their names; scrape kube-state-metrics"
    )
    assert reading.notes == (told,)


async def test_impossible_samples_become_reported_gaps_and_spikes_are_kept() -> None:
    server = SmallPrometheus(Q=[(pod("a"), at_steps("NaN", -3, 1, 100).get)])
    server.warnings = ["store-2 is down"]
    async with source_of(server, CPU, known={("shop", "a"): "web"}) as source:
        reading = await source.read(GRID, in_thread)
    assert of(reading.usage, "shop/web") == [None, None, 1, 100]
    assert reading.notes == (
        "cpu: 1 sample not finite; it counts as a gap (query: Q)",
        "cpu: 1 sample negative; it counts as a gap (query: Q)",
        "cpu: the server warns: store-2 is down (query: Q)",
    )


async def test_service_of_a_pod_comes_from_scheduler_then_owner_then_name() -> None:
    one = at_steps(1, 1, 1, 1).get
    window = f"{GRID.steps * STEP_S:g}s"

    def owned(query: str, label: str, name: str, kind: str, owner: str) -> None:
        labels = {"namespace": "shop", label: name, "owner_kind": kind, "owner_name": owner}
        held = server.queries.get(query.replace(WINDOW, window), ())
        server.queries[query.replace(WINDOW, window)] = [*held, (labels, lambda _: 1)]

    pods = ["live", "gone-1", "gone-2", "gone-3", "gone-4", "left-5d8f7c9b8d-abcde", "left-5d8f7c9b8d-x7k2p"]
    server = SmallPrometheus(Q=[(pod(name), one) for name in pods])
    owned(POD_OWNERS, "pod", "gone-1", "ReplicaSet", "web-6d4cf56db6")
    owned(REPLICASET_OWNERS, "replicaset", "web-6d4cf56db6", "Deployment", "web")
    owned(POD_OWNERS, "pod", "gone-2", "ReplicaSet", "api-6d4cf56db6")
    owned(POD_OWNERS, "pod", "gone-3", "Job", "nightly-29000000")
    owned(JOB_OWNERS, "job_name", "nightly-29000000", "CronJob", "night")
    owned(POD_OWNERS, "pod", "gone-4", "StatefulSet", "db")
    async with source_of(server, CPU, known={("shop", "live"): "checkout"}, asks_owners=True) as source:
        reading = await source.read(GRID, in_thread)
    assert set(reading.usage.services) == {
        *("shop/checkout", "shop/web", "shop/api", "shop/night", "shop/db"),
        *("shop/left-5d8f7c9b8d-abcde", "shop/left"),  # "abcde" has letters that Kubernetes makes no names of
    }
    assert reading.named == {"label": 0, "known pod": 1, "owner": 4, "pod name": 2}


async def test_owner_query_over_weeks_uses_a_valid_promql_duration() -> None:
    weeks = Grid(FIRST * STEP_S, STEP_S, 28 * 288)
    server = SmallPrometheus(Q=[(pod("a"), lambda _: 1)])
    async with source_of(server, CPU, asks_owners=True) as source:
        await source.read(weeks, in_thread)
    asked = {form["query"] for form in server.asked}
    assert {POD_OWNERS.replace(WINDOW, "2419200s"), JOB_OWNERS.replace(WINDOW, "2419200s")} <= asked


@given(st.floats(min_value=0.001, max_value=1e9))
def test_durations_are_written_as_integers(seconds: float) -> None:
    text = promql_duration(seconds)
    found = re.fullmatch(r"(\d+)(ms|s)", text)
    assert found is not None
    amount_s = int(found[1]) * {"ms": 0.001, "s": 1}[found[2]]
    assert amount_s == pytest.approx(seconds, abs=0.0006, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "service"),
    [
        ("web-6d4cf56db6-x7k2p", "web"),
        ("my-web-7f9c6d-x7k2p", "my-web"),
        ("db-0", "db"),
        ("db-12", "db"),
        ("night-29000000-x7k2p", "night"),
        ("night-29000000-3-x7k2p", "night"),
        ("agent-x7k2p", "agent"),
        ("single", "single"),
        ("-0", "-0"),
        ("kube-proxy", "kube-proxy"),
    ],
)
def test_suffixes_appended_by_controllers_are_removed_from_names(name: str, service: str) -> None:
    assert stripped(name) == service


async def test_label_can_name_the_service() -> None:
    server = SmallPrometheus(
        Q=[
            ({"namespace": "shop", "pod": "a", "app": "web"}, at_steps(1, 1, 1, 1).get),
            ({"namespace": "shop", "pod": "b", "app": "web"}, at_steps(3, 3, 3, 3).get),
        ]
    )
    async with source_of(server, CPU, labels=Labels(service="app")) as source:
        reading = await source.read(GRID, in_thread)
    assert of(reading.usage, "shop/web") == [2, 2, 2, 2]
    assert reading.named["label"] == 2


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([{}], "a series {} without the label 'namespace'; write sum by (namespace, pod)"),
        ([{"namespace": "shop"}], "without the label 'pod'; write sum by (namespace, pod) (…), or set labels.pod"),
        (
            [{**pod("a"), "container": "x"}, {**pod("a"), "container": "y"}],
            'two series have the same pod or node: {container="x", namespace="shop", pod="a"} and {container="y"',
        ),
    ],
)
async def test_wrong_labels_are_refused_with_series_query_and_fix(labels: list[dict[str, str]], words: str) -> None:
    server = SmallPrometheus(Q=[(one, at_steps(1, 1, 1, 1).get) for one in labels])
    async with source_of(server, CPU) as source:
        with pytest.raises(SourceError) as caught:
            await source.read(GRID, in_thread)
    assert words in str(caught.value)
    assert "cpu: " in str(caught.value)
    assert "(query: Q)" in str(caught.value)


async def test_invalid_query_error_names_its_dimension() -> None:
    server = SmallPrometheus()
    server.fail_with = web.Response(
        status=400, body=b'{"status":"error","errorType":"bad_data","error":"parse error: x"}'
    )
    async with source_of(server, CPU) as source:
        with pytest.raises(SourceError, match=r"^cpu: prometheus http://.*parse error: x \(query: Q\)"):
            await source.read(GRID, in_thread)


async def test_empty_query_result_is_reported_and_other_queries_count() -> None:
    server = SmallPrometheus(Q=[(pod("a"), at_steps(1, 1, 1, 1).get)])
    async with source_of(server, CPU, Dimension("log", "L"), known={("shop", "a"): "web"}) as source:
        reading = await source.read(GRID, in_thread)
    assert of(reading.usage, "shop/web", "log") == [None] * 4
    assert reading.notes == (
        "log: the query returns no samples; check that this server has the metric with these labels (query: L)",
    )


async def test_later_reads_query_new_data_and_the_last_hour_again() -> None:
    server = SmallPrometheus(Q=[(pod("a"), lambda time: time)])
    steps, later = 100, 6
    async with source_of(server, CPU, known={("shop", "a"): "web"}) as source:
        await source.read(Grid(FIRST * STEP_S, STEP_S, steps), in_thread)
        grid = Grid((FIRST + later) * STEP_S, STEP_S, steps)
        reading = await source.read(grid, in_thread)
    first, second = server.asked
    assert float(first["end"]) == (FIRST + steps) * STEP_S
    assert float(second["start"]) == (FIRST + steps + 1) * STEP_S - OVERLAP_S
    assert float(second["end"]) == (FIRST + steps + later) * STEP_S
    want = [np.float32((FIRST + later + number + 1) * STEP_S) for number in range(steps)]
    assert of(reading.usage, "shop/web") == want


async def test_failed_read_keeps_earlier_data() -> None:
    server = SmallPrometheus(Q=[(pod("a"), lambda _: 1)])
    async with source_of(server, CPU, known={("shop", "a"): "web"}) as source:
        await source.read(GRID, in_thread)
        server.fail_with = web.Response(status=500)
        with pytest.raises(SourceError):
            await source.read(GRID, in_thread)
        server.fail_with = None
        later = Grid(GRID.start_s + STEP_S, STEP_S, GRID.steps)
        assert of((await source.read(later, in_thread)).usage, "shop/web") == [1, 1, 1, 1]


async def test_node_totals_include_placement_intervals() -> None:
    def placed(name: str, node: str) -> dict[str, str]:
        return {**pod(name), "node": node}

    server = SmallPrometheus(
        N=[
            ({"instance": "n1:9100"}, at_steps(10, 11, None, 13).get),
            ({"nodename": "n2"}, at_steps(20, 21, 22, 23).get),
        ]
    )
    server.queries[PLACES] = [
        (placed("a", "n1"), at_steps(1, 1, None, 1).get),
        (placed("b", "n2"), at_steps(None, None, 1, 1).get),
        (placed("b", "n1"), at_steps(1, 1, None, None).get),
    ]
    disk = Dimension("disk", "N", per=Per.NODE)
    async with source_of(server, disk, known={("shop", "a"): "web", ("shop", "b"): "web"}) as source:
        for _ in range(2):  # the second reading asks for the last hour again and changes nothing
            reading = await source.read(GRID, in_thread)
            assert reading.totals is not None
            assert reading.totals.nodes == ("n1", "n2")
            np.testing.assert_array_equal(reading.totals.values[:, 0], [[10, 11, np.nan, 13], [20, 21, 22, 23]])
            start = GRID.start_s
            assert sorted(
                reading.totals.placement_intervals, key=lambda interval: (interval.node, interval.begin_s)
            ) == [
                PlacementInterval("shop/web", "n1", start, start + 2 * STEP_S),
                PlacementInterval("shop/web", "n1", start, start + 2 * STEP_S),
                PlacementInterval("shop/web", "n1", start + 3 * STEP_S, start + 4 * STEP_S),
                PlacementInterval("shop/web", "n2", start + 2 * STEP_S, start + 4 * STEP_S),
            ]


async def test_capacities_can_be_queried() -> None:
    server = SmallPrometheus(
        Q=[(pod("a"), lambda _: 1)], C=[({"node": "n1"}, lambda _: 40e6), ({"node": "n2"}, lambda _: 0)]
    )
    asked = Dimension("cpu", "Q", capacity=QueryCapacity("C"))
    async with source_of(server, asked) as source:
        reading = await source.read(GRID, in_thread)
        assert reading.capacities == {"cpu": {"n1": 40e6, "n2": 0}}
        assert "cpu, capacity: 1 nodes have no capacity, such as n2 (query: C)" in reading.notes
        server.queries["C"] = []
        with pytest.raises(SourceError, match=r"dimension cpu: capacity: the query returns no samples \(query: C"):
            await source.read(GRID, in_thread)


def test_window_of_a_query_is_the_step_or_its_resolution() -> None:
    query = f"rate(x[{WINDOW}])"
    assert Dimension("a", query).promql(300) == "rate(x[300s])"
    highest = Dimension("a", query, aggregation=Aggregation.MAX)
    assert highest.promql(300) == "max_over_time((rate(x[120s]))[300s:60s])"
    assert Dimension("a", query, aggregation=Aggregation.MAX, resolution_s=30).promql(300) == (
        "max_over_time((rate(x[60s]))[300s:30s])"
    )


samples = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7), st.floats(0, 1e6)), unique_by=lambda s: s[:2])


def folded(fold: TableFold, found: list[tuple[int, int, float]], series: int, low: int, high: int, of: int) -> None:
    """Adds the piece of these steps; each service has `of` series."""
    rows = [sorted((step, v) for row, step, v in found if row == n and low <= step < high) for n in range(series)]
    flat = [pair for row in rows for pair in row]
    piece = Piece(
        tuple({} for _ in rows),
        np.cumsum([len(row) for row in rows]),
        np.array([step for step, _ in flat], np.int64),
        np.array([value for _, value in flat], np.float64),
    )
    fold.add(piece, [f"s{n // of}" for n in range(series)])


def cells_of(table: Table) -> dict[tuple[str, int], float]:
    return {
        (name, step): float(table.values[n, step])
        for n, name in enumerate(table.names)
        for step in range(table.values.shape[1])
        if not np.isnan(table.values[n, step])
    }


@given(samples, st.integers(1, 7))
def test_folded_usage_is_the_mean_over_complete_steps_or_all_samples(
    found: list[tuple[int, int, float]], cut: int
) -> None:
    """Series 0..5 belong to services 0..2; the grid is cut in two at `cut`."""
    fold = TableFold(8)
    want: dict[tuple[str, int], list[float]] = {}
    whole: dict[tuple[str, int], list[float]] = {}
    for low, high in ((0, cut), (cut, 8)):
        folded(fold, found, 6, low, high, 2)
        known = {(row, step) for row, step, _ in found if low <= step < high}
        reach = {step for _, step in known}
        for row, step, value in found:
            if low <= step < high:
                want.setdefault((f"s{row // 2}", step), []).append(value)
                begins = step == min(reach) or (row, step - 1) in known
                if begins and (step == max(reach) or (row, step + 1) in known):
                    whole.setdefault((f"s{row // 2}", step), []).append(value)
    got = cells_of(fold.table(0))
    assert got.keys() == want.keys()
    for key, values in want.items():
        assert got[key] == pytest.approx(np.mean(whole.get(key, values)), rel=1e-6)


lives = st.lists(st.tuples(st.floats(0, 19.5), st.floats(0.01, 20)), min_size=1, max_size=40)


@given(lives, st.floats(0.1, 100))
def test_usage_per_replica_is_independent_of_pod_churn(lives: list[tuple[float, float]], use: float) -> None:
    """Every pod uses the same while it lives; what is measured of a step is the part of it in which it lived.

    So at a release, when a service is scaled from one pod to fifty, and for a pod that comes again under its name.
    """
    found = []
    for row, (begin, length) in enumerate(lives):
        end = min(begin + length, 20.0)
        for step in range(int(begin), int(np.ceil(end))):
            part = min(end, step + 1) - max(begin, step)
            if part > 0:
                found.append((row, step, use * part))
    fold = TableFold(20)
    folded(fold, found, len(lives), 0, 20, len(lives))
    got = cells_of(fold.table(0))
    reach = {step for _, step, _ in found}
    for step in reach:
        values = [value for _, at, value in found if at == step]
        assert got[("s0", step)] <= use * (1 + 1e-5)
        assert got[("s0", step)] >= min(values) * (1 - 1e-5)
        stayed = [begin <= step - 1 and min(begin + length, 20.0) >= step + 2 for begin, length in lives]
        if any(stayed) and min(reach) < step < max(reach):
            assert got[("s0", step)] == pytest.approx(use, rel=1e-5)


def test_usage_per_replica_is_unchanged_by_scaling_from_1_to_50() -> None:
    """Forty-nine pods begin within step 5, and are seen in a tenth of it."""
    found = [(0, step, 2.0) for step in range(10)]
    found += [(row, step, 0.2 if step == 5 else 2.0) for row in range(1, 50) for step in range(5, 10)]
    fold = TableFold(10)
    folded(fold, found, 50, 0, 10, 50)
    assert list(cells_of(fold.table(0)).values()) == [pytest.approx(2.0)] * 10


def table(first: int, **rows: list[float]) -> Table:
    return Table(first, tuple(rows), np.array(list(rows.values()), np.float32))


def test_newer_table_replaces_the_older_where_they_overlap() -> None:
    found = joined(table(0, a=[1, 2, 3, 4], b=[5, 5, 5, 5]), table(2, a=[9, np.nan, 7], c=[1, 1, 1]), 1, 5)
    assert found.names == ("a", "b", "c")
    nan = np.nan
    np.testing.assert_array_equal(found.values, [[2, 9, nan, 7, nan], [5, nan, nan, nan, nan], [nan, 1, 1, 1, nan]])
    assert joined(table(0, a=[1.0]), table(3, b=[2.0]), 3, 2).names == ("b",)


def test_first_of_overlapping_readings_counts() -> None:
    def reading(first: int, values: list[list[float]], dimensions: tuple[str, ...], *services: str) -> Reading:
        grid = np.array([[row] for row in values], np.float32)
        return Reading(Usage(first * STEP_S, STEP_S, services, dimensions, grid), notes=(f"from {first}",))

    nan = np.nan
    both = merged(
        [reading(10, [[1, nan]], ("cpu",), "a"), reading(8, [[5, 6, 7, 8, 9], [3, 3, 3, 3, 3]], ("cpu",), "a", "b")], 4
    )
    assert (both.usage.start_s, both.usage.services, both.notes) == (9 * STEP_S, ("a", "b"), ("from 10", "from 8"))
    np.testing.assert_array_equal(both.usage.values[:, 0], [[6, 1, 8, 9], [3, 3, 3, 3]])


def test_replica_set_without_owner_keeps_its_name_only_without_a_hash() -> None:
    owners = Owners()
    owners.note(owners.pods, "pod", {**pod("p"), "owner_kind": "ReplicaSet", "owner_name": "standalone"})
    owners.note(owners.pods, "pod", {**pod("q"), "owner_kind": "<none>", "owner_name": "<none>"})
    names = ServiceNames({}, owners)
    assert names.of_pod(("shop", "p")) == "shop/standalone"
    assert names.of_pod(("shop", "q")) == "shop/q"


async def test_current_load_is_the_pod_sum_per_node_or_the_node_value() -> None:
    server = SmallPrometheus(
        Q=[(pod("a"), lambda _: 1), (pod("b"), lambda _: 2), (pod("gone"), lambda _: 9), (pod("ill"), lambda _: "NaN")],
        N=[({"instance": "n1:9100"}, lambda _: 7), ({"instance": "n2:9100"}, lambda _: None)],
    )
    asked = LoadRequest(GRID.start_s + 17, STEP_S, 5.0, {("shop", "a"): 3, ("shop", "b"): 4, ("shop", "ill"): 4})
    async with source_of(server, CPU, Dimension("disk", "N", Per.NODE)) as source:
        seen = await source.look(asked)
        rows, values = seen.by_row["cpu"]
        assert (rows.tolist(), values.tolist()) == ([3, 4], [1, 2])
        assert seen.by_node == {"disk": {"n1": 7}}
        assert {(form["start"], form["end"]) for form in server.asked} == {(f"{asked.now_s:.3f}",) * 2}
        server.fail_with = web.Response(status=503, body=b"starting up")
        with pytest.raises(SourceError, match="starting up"):
            await source.look(asked)

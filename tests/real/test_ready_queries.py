"""Ready-made queries on a real Prometheus: recorded node-exporter output, and the series that cAdvisor and collectors write."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from domains.forecast.history.source import Reading
from domains.forecast.settings.queries import POD_OWNERS, READY, Per
from domains.forecast.settings.sources import Dimension
from multisched.framework.measures import Grid
from tests.real.prometheus_server import Series, make_blocks
from tests.real.test_prometheus import source_on
from tests.unit.domains.forecast.history.prometheus_kit import in_thread

pytestmark = pytest.mark.timeout(300)

RECORDED: Final = Path(__file__).parent / "recorded"
STEP_S: Final = 300.0
FIRST: Final = 5_666_666
"""Of the grid, in steps since the epoch."""
STEPS: Final = 4
SCRAPE_S: Final = 30
SHOP: Final = {"namespace": "shop", "pod": "web-0"}
_LINE: Final = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')


def scrapes(begin: float = 0, end: float = STEPS) -> list[float]:
    """Moments of scrapes from one step of the grid to another."""
    low, high = (FIRST + begin) * STEP_S, (FIRST + end) * STEP_S
    return [low + n * SCRAPE_S + 1 for n in range(int((high - low) // SCRAPE_S))]


def node_exporter() -> Iterator[Series]:
    """The two looks of the recording in turn, so that counters grow from the first to the second and are reset again."""
    looks: list[dict[tuple[str, tuple[tuple[str, str], ...]], float]] = []
    for path in sorted(RECORDED.glob("node-exporter-*.prom")):
        found = (_LINE.fullmatch(line) for line in path.read_text().splitlines() if not line.startswith("#"))
        looks.append({(m[1], tuple(_LABEL.findall(m[2] or ""))): float(m[3]) for m in found if m is not None})
    for name, labels in looks[0]:
        values = [look[name, labels] for look in looks]
        own = {**dict(labels), "instance": "10.0.0.7:9100", "job": "node-exporter"}
        yield name, own, [(at, values[number % 2]) for number, at in enumerate(scrapes())]


def counter(name: str, labels: Mapping[str, str], per_s: float, begin: float = 0, end: float = STEPS) -> Series:
    moments = scrapes(begin, end)
    return name, labels, [(at, per_s * (at - moments[0])) for at in moments]


def gauge(name: str, labels: Mapping[str, str], value: float, begin: float = 0, end: float = STEPS) -> Series:
    return name, labels, [(at, value) for at in scrapes(begin, end)]


def cadvisor() -> Iterator[Series]:
    """One pod with two containers, its sandbox and its cgroup; `main` is restarted in the middle of the third step."""
    for container, identity, begin, end in (
        ("main", "a1", 0.0, 2.5),
        ("main", "a2", 2.5, 4.0),
        ("side", "b1", 0.0, 4.0),
        ("", "sandbox", 0.0, 4.0),
        ("", "pod-cgroup", 0.0, 4.0),
    ):
        labels = {**SHOP, "container": container, "id": f"/kubepods/{identity}", "image": "x"}
        yield counter("container_cpu_usage_seconds_total", {**labels, "cpu": "total"}, 0.5, begin, end)
        yield gauge("container_memory_working_set_bytes", labels, 100.0, begin, end)
        for way in ("reads", "writes"):
            yield counter(f"container_fs_{way}_bytes_total", {**labels, "device": "/dev/vda"}, 10.0, begin, end)
    for interface, per_s in (("eth0", 1_000.0), ("lo", 5_000.0)):
        own = {**SHOP, "container": "", "id": "/kubepods/sandbox", "image": "pause", "interface": interface}
        for way in ("receive", "transmit"):
            yield counter(f"container_network_{way}_bytes_total", own, per_s)


def collectors() -> Iterator[Series]:
    """What promtail, Alloy and vector on one node say of the same pod; their own pods' labels are the scrape's."""
    own = {"namespace": "logging", "pod": "collector-abcde"}
    path = "/var/log/pods/shop_web-0_6b1e0f2a-0000-4000-8000-1234567890ab/main/0.log"
    yield counter("promtail_read_bytes_total", {**own, "path": path}, 7.0)
    yield counter(
        "loki_source_file_read_bytes_total", {**own, "path": path, "component_id": "loki.source.file.pods"}, 7.0
    )
    kind = {"component_id": "logs", "component_kind": "source", "component_type": "kubernetes_logs"}
    named = {"pod_name": "web-0", "pod_namespace": "shop"}
    yield counter("vector_component_received_event_bytes_total", {**own, **kind, **named}, 7.0)
    yield counter("vector_component_received_event_bytes_total", {**own, **kind}, 99.0)
    yield counter("fluentbit_input_bytes_total", {**own, "name": "tail.0"}, 7.0)
    yield gauge("kube_pod_info", {**own, "node": "n1", "uid": "1"}, 1.0)
    yield gauge("kube_pod_info", {**SHOP, "node": "n1", "uid": "2"}, 1.0)
    for owner, is_controller in (("web", "true"), ("somebody", "false")):
        said = {"owner_kind": "StatefulSet", "owner_name": owner, "owner_is_controller": is_controller}
        yield gauge("kube_pod_owner", {**SHOP, "uid": "2", **said}, 1.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("ready")
    make_blocks(made, sorted([*node_exporter(), *cadvisor(), *collectors()], key=lambda series: series[0]))
    return made


def of(reading: Reading, dimension: str, name: str) -> list[float]:
    usage = reading.usage
    values = usage.values[usage.services.index(name), usage.dimensions.index(dimension)]
    return [round(float(value), 4) for value in values]


async def test_usage_per_pod_is_counted_once(folder: Path) -> None:
    names = [name for name, ready in READY.items() if ready.per is Per.POD and name != "loki-log"]
    async with source_on(folder, *(Dimension(name, READY[name].query) for name in names)) as source:
        reading = await source.read(Grid(FIRST * STEP_S, STEP_S, STEPS), in_thread)
    assert reading.usage.services == ("shop/web",)
    steady = slice(1, 2)
    for name, expected in (
        ("cadvisor-cpu", 1.0),
        ("cadvisor-memory", 200.0),
        ("cadvisor-network", 2_000.0),
        ("cadvisor-disk", 40.0),
        ("promtail-log", 7.0),
        ("alloy-log", 7.0),
        ("vector-log", 7.0),
    ):
        assert of(reading, name, "shop/web")[steady] == [pytest.approx(expected, rel=1e-3)], name
    assert of(reading, "cadvisor-memory", "shop/web")[2] == pytest.approx(200), "restarted, and not there twice"
    assert of(reading, "cadvisor-cpu", "shop/web")[2] == pytest.approx(1.0, rel=0.1), "half of it before, half after"


async def test_usage_per_node_has_the_node_name(folder: Path) -> None:
    dimensions = [Dimension(name, r.query, per=Per.NODE) for name, r in READY.items() if r.per is Per.NODE]
    async with source_on(folder, *dimensions) as source:
        reading = await source.read(Grid(FIRST * STEP_S, STEP_S, STEPS), in_thread)
    totals = reading.totals
    assert totals is not None
    assert set(totals.nodes) == {"vm", "n1"}
    machine, node = totals.nodes.index("vm"), totals.nodes.index("n1")
    means = {
        name: float(np.nanmean(totals.values[machine, number]))
        for number, name in enumerate(totals.dimensions)
        if name.startswith("node-")
    }
    text = (RECORDED / "node-exporter-1.5.0-1.prom").read_text()
    total = float(re.findall(r"MemTotal_bytes ([\d.e+]+)", text)[0])
    assert 0 < means["node-memory"] < total
    assert means["node-cpu"] > 0
    assert means["node-disk"] > 0
    assert means["node-network"] >= 0
    log = totals.values[node, totals.dimensions.index("fluent-bit-log")]
    assert log[1] == pytest.approx(7.0, rel=1e-3)
    assert {stay.node for stay in totals.placement_intervals} == {"n1"}


async def test_controller_among_several_owners_counts(folder: Path) -> None:
    assert 'owner_is_controller!="false"' in POD_OWNERS
    asked = Dimension("cpu", READY["cadvisor-cpu"].query)
    async with source_on(folder, asked, asks_owners=True) as source:
        reading = await source.read(Grid(FIRST * STEP_S, STEP_S, STEPS), in_thread)
    assert reading.usage.services == ("shop/web",)
    assert reading.named["owner"] == 1

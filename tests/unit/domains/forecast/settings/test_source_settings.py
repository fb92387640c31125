"""What the configuration says of history: read whole, or refused with every field that is wrong and what to write there."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from domains.forecast.curves.capacity import Capacity, Source
from domains.forecast.service_names import Labels
from domains.forecast.settings import sources as source_settings
from domains.forecast.settings.queries import READY, Per
from domains.forecast.settings.sources import (
    Aggregation,
    CsvSettings,
    LoadSettings,
    PrometheusSettings,
    QueryCapacity,
)
from multisched.framework.measures import MeterSettings
from multisched.framework.plugin_args import PluginArgsError
from multisched.framework.ports import ExtenderTrust
from tests.unit.domains.forecast.history_settings import read_history_settings

FULL = """
stepSeconds: 60
windowDays: 7
refreshSeconds: 1800
sources:
- type: prometheus
  url: https://mimir:8080/prometheus
  tokenFile: /var/run/token
  headers: {X-Scope-OrgID: shop}
  parameters: {dedup: "true"}
  timeoutSeconds: 20
  answerBytesMax: 1048576
  pointsMax: 5000
  concurrency: 2
  tries: 3
  tls: {caFile: /ca.pem, serverName: mimir.team}
  labels: {pod: pod_name, service: app}
  owners: false
- type: metrics-api
  stepSeconds: 30
- type: csv
  files: [a.csv, b.csv]
dimensions:
- {name: cpu, ready: cadvisor-cpu, capacity: allocatable}
- {name: disk, ready: node-disk, capacity: {query: max by (node) (disk_limit)}, weight: 0.5}
- {name: log, query: "sum by (namespace, pod) (rate(log[$window]))", unit: bytes/s, capacity: {number: 40M}, aggregation: max}
- {name: net, query: x, per: node, capacity: {label: example.com/net}, resolutionSeconds: 30}
- {name: gpu-mem, capacity: {annotation: example.com/gpu}}
- {name: own}
"""


def document(text: str) -> dict[str, Any]:
    found = yaml.safe_load(text)
    assert isinstance(found, dict)
    return found


def test_every_field_is_read() -> None:
    found = read_history_settings(document(FULL))
    assert (found.step_s, found.window_days, found.refresh_s, found.steps) == (60, 7, 1800, 7 * 1440)
    assert found.sources == (
        PrometheusSettings(
            MeterSettings(
                "https://mimir:8080/prometheus",
                "/var/run/token",
                {"X-Scope-OrgID": "shop"},
                {"dedup": "true"},
                20,
                1_048_576,
                5_000,
                2,
                3,
                ExtenderTrust(ca_file="/ca.pem", server_name="mimir.team"),
            ),
            Labels(pod="pod_name", service="app"),
            asks_owners=False,
        ),
        LoadSettings(30),
        CsvSettings(("a.csv", "b.csv")),
    )
    cpu, disk, log, net, gpu, own = found.dimensions
    assert (cpu.query, cpu.unit, cpu.capacity) == (
        READY["cadvisor-cpu"].query,
        "cores",
        Capacity(Source.ALLOCATABLE, "cpu"),
    )
    assert (disk.per, disk.capacity, disk.weight) == (Per.NODE, QueryCapacity("max by (node) (disk_limit)"), 0.5)
    assert (log.aggregation, log.capacity) == (Aggregation.MAX, Capacity(Source.NUMBER, milli=40_000_000_000))
    assert (net.per, net.capacity, net.resolution_s) == (Per.NODE, Capacity(Source.LABEL, "example.com/net"), 30)
    assert gpu.capacity == Capacity(Source.ANNOTATION, "example.com/gpu")
    assert own.capacity == Capacity(Source.ANNOTATION, "multisched.io/capacity-own")


def test_example_in_the_docstring_is_valid() -> None:
    text = (source_settings.__doc__ or "").split("```yaml\nhistory:")[1].split("```")[0]
    found = read_history_settings(document(text))
    assert len(found.sources) == 3
    assert [dimension.name for dimension in found.dimensions] == ["cpu", "log"]


GOOD = "sources: [{type: csv, files: [a.csv]}]\ndimensions: [{name: cpu}]\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("stepSecond: 5", "history.stepSecond: unknown field; did you mean stepSeconds?"),
        ("stepSeconds: 0", "history.stepSeconds: 0 is not within 1..3600"),
        ("windowDays: .nan", "history.windowDays: nan is not within"),
        ("stepSeconds: 1", "history.windowDays: has 2419200 steps of 1 s, more than 40000; set longer steps"),
        ("sources: {}", "history.sources: is a mapping; write a list"),
        ("sources: []", "history.sources: is empty; write at least one, such as {type: prometheus"),
        ("dimensions: []", "history.dimensions: is empty; write at least one, such as {name: cpu, ready: cadvisor-cpu}"),
        ("sources: [{type: influx}]", "history.sources[0].type: 'influx' is not known; write one of prometheus, metrics-api, csv"),
        ("sources: [7]", "history.sources[0].type: None is not known"),
        ("sources: [{type: csv}]", "history.sources[0].files: is empty; name at least one CSV file"),
        ("sources: [{type: csv, files: [7]}]", "history.sources[0].files[0]: 7 is not text; put it in quotes"),
        ("sources: [{type: csv, url: x}]", "history.sources[0].url: unknown field; remove it; known here: type, files"),
        ("sources: [{type: prometheus}]", "history.sources[0].url: is ''; write the address before /api/v1"),
        ("sources: [{type: prometheus, url: 'http://p/api/v1'}]", "history.sources[0].url: is 'http://p/api/v1'; leave /api/v1 out"),
        ("sources: [{type: prometheus, url: 'http://p?dedup=1'}]", "write the part after ? under parameters"),
        (
            "sources: [{type: prometheus, url: 'http://p', headers: {Authorization: x}}]",
            "history.sources[0].headers: has Authorization; write the token to a file and name it under tokenFile",
        ),
        ("sources: [{type: prometheus, url: 'http://p', headers: {A: 7}}]", "headers.A: is not one line of text; put it in quotes"),
        ("sources: [{type: prometheus, url: 'http://p', tls: {caFil: x}}]", "tls.caFil: unknown field; did you mean caFile?"),
        ("sources: [{type: prometheus, url: 'http://p', pointsMax: 11001}]", "pointsMax: 11001 is not within 1..11000"),
        ("sources: [{type: prometheus, url: 'http://p', owners: often}]", "owners: is a text; write true or false"),
        ("dimensions: [{query: x}]", "history.dimensions[0].name: is missing; name the dimension, such as log"),
        ("dimensions: [{name: a}, {name: a}]", "history.dimensions[1].name: a is a duplicate; remove one"),
        ("dimensions: [{name: a, ready: cadvisor-cpus}]", "dimensions[0].ready: 'cadvisor-cpus' is not known; did you mean cadvisor-cpu?"),
        ("dimensions: [{name: a, ready: cadvisor-cpu, query: x}]", "query: cannot be combined with ready; remove one of the two"),
        ("dimensions: [{name: a, ready: node-cpu, per: pod}]", "dimensions[0].per: is pod, and node-cpu is per node; remove it"),
        ("dimensions: [{name: a, aggregation: sum}]", "dimensions[0].aggregation: 'sum' is not known; write one of mean, max"),
        ("dimensions: [{name: a, weight: -1}]", "dimensions[0].weight: -1 is not within 0..100"),
        ("dimensions: [{name: a, capacity: 0}]", "dimensions[0].capacity: must be above zero; write"),
        ("dimensions: [{name: a, capacity: {number: 0}}]", "dimensions[0].capacity: must be above zero; write"),
        ("dimensions: [{name: a, capacity: {query: ''}}]", "dimensions[0].capacity: has no query; write allocatable, a number"),
        ("dimensions: [{name: a, capacity: {query: x}}]", "sources: has no prometheus, which the capacity query of a dimension needs"),
        ("dimensions: [{name: a, capacity: lots}]", "dimensions[0].capacity: "),
    ],
)  # fmt: skip
def test_problem_is_reported_with_its_path_and_fix(text: str, told: str) -> None:
    with pytest.raises(PluginArgsError) as caught:
        read_history_settings({**document(GOOD), **document(text)})
    assert told in str(caught.value)


def test_unusable_source_is_reported_once() -> None:
    with pytest.raises(PluginArgsError) as caught:
        read_history_settings({**document(GOOD), "sources": [{"type": "influx"}]})
    assert str(caught.value).splitlines() == [
        "args.history.sources[0].type: 'influx' is not known; write one of prometheus, metrics-api, csv"
    ]


def test_a_password_in_the_address_is_refused_and_not_shown() -> None:
    with pytest.raises(PluginArgsError, match="names a user or a password; write a token to a file") as caught:
        read_history_settings({**document(GOOD), "sources": [{"type": "prometheus", "url": "http://me:secret@p"}]})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "host", ["prometheus.monitoring:9090", "10.0.0.7", "[::2]:9090", "localhost.example:80", "127.0.0.1.example"]
)
def test_a_token_is_not_sent_unencrypted_to_another_host(host: str) -> None:
    sources = [{"type": "prometheus", "url": f"http://{host}/prefix", "tokenFile": "/var/run/token"}]
    with pytest.raises(PluginArgsError) as caught:
        read_history_settings({**document(GOOD), "sources": sources})
    assert str(caught.value) == (
        "args.history.sources[0].tokenFile: would be sent unencrypted, so that others on the network could read the token;"
        " write https:// in url, use a loopback address, or remove tokenFile"
    )


@pytest.mark.parametrize(
    "url", ["https://10.0.0.7", "http://127.0.0.1:9090/x", "http://localhost", "http://[::1]:9090"]
)
def test_token_is_sent_encrypted_or_to_this_host(url: str) -> None:
    sources = [{"type": "prometheus", "url": url, "tokenFile": "/var/run/token"}]
    assert read_history_settings({"sources": sources, "dimensions": [{"name": "cpu", "ready": "cadvisor-cpu"}]})


def test_all_problems_are_reported_together() -> None:
    with pytest.raises(PluginArgsError) as caught:
        read_history_settings(
            {"sources": [{"type": "prometheus", "url": "p", "tries": 0}], "dimensions": [{"wait": 1}]}
        )
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == [
        "args.history.dimensions[0].wait",
        "args.history.dimensions[0].name",
        "args.history.sources[0].url",
        "args.history.sources[0].tries",
    ]


def test_non_mapping_is_refused() -> None:
    with pytest.raises(PluginArgsError, match=r"args\.history: is a text; write a mapping with stepSeconds"):
        read_history_settings("prometheus")

"""`multisched run` against an API server that answers badly: it tries again, counts, never crashes, binds each pod once."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from pathlib import Path

import anyio
import pytest
import yaml

from multisched.testing.builders import Document, container, node_document, pod_document
from tests.integration.program.command import Command, multisched
from tests.integration.program.faulty_api import Fault, FaultyApi

PODS = 12
CONFIGURATION = {
    "apiVersion": "multisched.io/v1",
    "kind": "MultischedConfiguration",
    "domains": [{"name": "forecast"}],
    "lease": {"duration": "4s", "renewDeadline": "3s", "retryPeriod": "500ms"},
    "server": {"port": 0},
    "logging": {"level": "debug"},
    "client": {"bindTimeout": "1s"},
}


def forecast_pod(name: str, cpu: str = "100m") -> Document:
    return pod_document(name, container("c", cpu=cpu), schedulerName="forecast-scheduler")


ALWAYS = frozenset({Fault.TRUNCATED, Fault.GARBLED, Fault.PROXY})
"""A body that ends early, a body that cannot be decoded, a refusal: what the program tells apart. The others run in CI."""


def marks_of(fault: Fault) -> tuple[pytest.MarkDecorator, ...]:
    return () if fault in ALWAYS else (pytest.mark.slow,)


async def url_of(command: Command) -> str:
    line: dict[str, str] = json.loads(await command.has_printed('"url"'))
    return line["url"]


def metric(text: str, name: str) -> float:
    """The sum over all labels."""
    return sum(float(value) for value in re.findall(rf"^multisched_{name}(?:{{.*}})? (\S+)$", text, re.M))


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return str(answer.read().decode())


async def all_bound(api: FaultyApi, count: int) -> None:
    async with asyncio.timeout(90):
        while True:
            items = (await api.get("/api/v1/namespaces/default/pods"))["items"]
            if sum(bool(item["spec"].get("nodeName")) for item in items) == count:
                return
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("fault", [pytest.param(one, id=one.name, marks=marks_of(one)) for one in Fault])
async def test_every_bad_response_is_handled_and_counted(fault: Fault, tmp_path: Path) -> None:
    kubeconfig, config = tmp_path / "kubeconfig", tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(CONFIGURATION))
    async with FaultyApi.start(fault) as api:
        api.write_kubeconfig(kubeconfig)
        for name in ("n1", "n2"):
            await api.create("/api/v1/nodes", node_document(name))
        for number in range(PODS):
            await api.create("/api/v1/namespaces/default/pods", forecast_pod(f"p{number}"))
        await api.create("/api/v1/namespaces/default/pods", forecast_pod("large", cpu="1000"))
        async with multisched("run", "--kubeconfig", str(kubeconfig), "--config", str(config)) as command:
            url = await url_of(command)
            await all_bound(api, PODS)
            await api.create("/api/v1/namespaces/default/pods", forecast_pod("late"))  # by watch
            await all_bound(api, PODS + 1)
            metrics = await anyio.to_thread.run_sync(read, f"{url}/metrics")
            ended = await command.end()

    assert ended.code == 0, ended.err
    assert "Traceback" not in ended.err
    told = [json.loads(line) for line in ended.err.splitlines()]
    bound = {line["pod"]: (line["domain"], line["node"]) for line in told if line["message"] == "pod bound"}
    assert len(bound) == PODS + 1
    assert {domain for domain, _ in bound.values()} == {"forecast"}
    assert {"bind", "GET pods", "GET nodes", "watch pods", "watch nodes"} <= api.spoiled
    assert set(api.binds.values()) == {1}
    assert metric(metrics, "reflector_errors_total") >= 2
    assert metric(metrics, "log_lines_dropped_total") == 0
    assert metric(metrics, "event_handling_duration_seconds_count") > 0
    assert metric(metrics, "scheduling_attempt_duration_seconds_count") > PODS
    if fault in (Fault.CUT, Fault.GARBLED, Fault.EMPTY, Fault.HTML, Fault.OTHER):
        assert metric(metrics, "malformed_objects_total") >= 2

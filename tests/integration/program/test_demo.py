"""`multisched demo` as a process: its document, its lines, the commands beside it, and that it leaves nothing behind however it ends."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from multisched.client.transport import connect
from multisched.model.wire import MERGE_PATCH
from multisched.testing.builders import container, pod_document
from tests.integration.program.command import START_TIMEOUT_S, Command, call, multisched

SMALL = ("--nodes", "30")
PODS = {"forecast": (40, 39), "gpu": (7, 7), "job": (112, 112)}
"""Of all manifests, and binds. One pod of the forecast domain fits nowhere; two of the job domain are bound, and evicted."""


def check_counts(document: Any, expected: dict[str, tuple[int, int]]) -> None:
    """Checks pods and binds of each domain. An image job that returns CPU to the gpu domain is replaced, and its successor is one more bind
    of the job domain.
    """
    counts = {name: (domain["pods"], domain["bound"]) for name, domain in document["domains"].items()}
    pods, least = expected["job"]
    assert counts == {**expected, "job": (pods, counts["job"][1])}
    assert counts["job"][1] >= least


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


@asynccontextmanager
async def demo(temporary: Path, *arguments: str) -> AsyncIterator[Command]:
    """At any free port: many demos run at once here."""
    async with multisched("demo", *SMALL, "--port", "0", *arguments, environment=surroundings(temporary)) as command:
        yield command


def surroundings(temporary: Path) -> dict[str, str]:
    """A user without any cluster, and without a file that the demo did not write."""
    run = temporary.parent / "run"
    run.mkdir(mode=0o700, exist_ok=True)
    return {"TMPDIR": str(temporary), "HOME": str(temporary.parent), "XDG_RUNTIME_DIR": str(run), "KUBECONFIG": ""}


def cluster_processes(temporary: Path) -> list[int]:
    """Processes that were told a path below `temporary`."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            told = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"cluster" in told and any(argument.startswith(os.fsencode(temporary)) for argument in told):
            found.append(int(folder.name))
    return found


def left_behind(temporary: Path) -> list[str]:
    run = temporary.parent / "run" / "multisched" / "tokens"
    return [path.name for folder in (temporary, run) if folder.exists() for path in folder.iterdir()]


def current_context(kubeconfig: str) -> str:
    return str(yaml.safe_load(Path(kubeconfig).read_text())["current-context"])


async def test_demo_once_ends_and_prints_one_document(temporary: Path) -> None:
    async with demo(temporary, "--once", "-o", "json") as command:
        ended = await command.ended()

    assert (ended.code, ended.err) == (0, "")
    document = json.loads(ended.out)
    assert document["overcommitted"] == 0
    assert document["violations"] == []
    check_counts(document, PODS)
    for domain in document["domains"].values():
        assert set(domain) == {"pods", "bound", "p50_ms", "p99_ms", "conflicts_true", "conflicts_false"}
        assert 0 < domain["p50_ms"] <= domain["p99_ms"]
    assert document["gang"] == {"name": "default/llm", "members": 2, "there": 2, "bound": 2}
    assert document["quota"] == {
        "borrower": "team-red",
        "owner": "team-blue",
        "total_cpu": 8,
        "min_cpu": 4,
        "borrower_cpu": 4,
        "owner_cpu": 4,
        "evicted": 2,
    }
    assert document["loan"] == {"app": "images", "pods": 6, "cpu": 24, "evicted": 0}
    refused = document["refused"]
    assert refused["message"].startswith("0/21 nodes are available: 21 Insufficient cpu.")
    assert re.fullmatch(r"lower the cpu request from 40 to \d+m?; it is then placed on work-\d{3}", refused["fix"])
    peaks = {name: one["at"].split()[1] for name, one in document["forecast"]["services"].items()}
    assert {peaks[name] for name in ("web", "api", "search")} <= {"19:00", "20:00", "21:00"}
    assert {peaks[name] for name in ("ingest", "reports")} <= {"02:00", "03:00", "04:00", "05:00"}
    assert 0 < document["forecast"]["fullest"]["share"] < 1
    assert left_behind(temporary) == []


@pytest.mark.slow
async def test_demo_once_ends_when_the_rest_is_infeasible(temporary: Path, tmp_path: Path) -> None:
    """A gpu domain without nodes: its pods wait, are counted, and do not hold up the end. Its nodes take the largest pod."""
    config = tmp_path / "config.yaml"
    document = {
        "apiVersion": "multisched.io/v1",
        "kind": "MultischedConfiguration",
        "domains": [
            {"name": "forecast", "queue": {"maxBackoff": "1s"}},
            {"name": "gpu", "nodes": {"rule": "labelled"}, "queue": {"maxBackoff": "1s"}},
            {"name": "job", "queue": {"maxBackoff": "1s"}},
        ],
    }
    config.write_text(yaml.safe_dump(document))
    async with demo(temporary, "--once", "-o", "json", "--config", str(config)) as command:
        ended = await command.ended()

    assert ended.code == 0
    check_counts(json.loads(ended.out), {**PODS, "forecast": (40, 40), "gpu": (7, 0), "job": (106, 106)})


@pytest.mark.slow
async def test_demo_workload_scales_with_nodes_except_named_jobs(temporary: Path) -> None:
    async with demo(temporary, "--once", "-o", "json", "--nodes", "3", "--job-pods", "7") as command:
        ended = await command.ended()

    assert (ended.code, ended.err) == (0, "")
    check_counts(json.loads(ended.out), {"forecast": (7, 6), "gpu": (3, 3), "job": (14, 14)})


@pytest.mark.slow
async def test_commands_find_the_demo_without_options(temporary: Path) -> None:
    """Another program has the port: the demo says so, goes on at another one, and says what others need to find it."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        async with multisched("demo", *SMALL, "--port", str(port), environment=surroundings(temporary)) as command:
            assert f"Port {port} is in use by another program" in await command.has_printed("another program")
            server = (await command.has_printed("export MULTISCHED_SERVER=")).strip().partition("=")[2]
            await command.has_printed("quota: team-blue reclaimed 4 of its 4 CPUs: 2 pods of team-red were evicted")
            environment = {**surroundings(temporary), "MULTISCHED_SERVER": server}
            said = {
                words: await call(*words.split(), environment=environment)
                for words in ("queue", "explain pod too-big --fix", "forecast nodes", "quota tree")
            }
            metrics = urllib.request.urlopen(f"{server}/metrics").read().decode()  # noqa: ASYNC210 -- nothing else waits
            ended = await command.end(signal.SIGINT)

    assert {words: one.code for words, one in said.items()} == dict.fromkeys(said, 0)
    assert re.search(r"forecast +unschedulable +default +too-big", said["queue"].out)
    assert "The smallest fix: lower the cpu request from 40 to" in said["explain pod too-big --fix"].out
    assert re.search(r"work-\d{3} .* cpu ", said["forecast nodes"].out)
    assert re.search(r"^root.team-blue", said["quota tree"].out, re.M)
    assert "using the cluster of the demo" in said["quota tree"].err
    assert 'multisched_schedule_attempts_total{domain="job",result="scheduled"} ' in metrics
    assert (ended.code, ended.err) == (0, "")


async def test_demo_binds_pods_and_ends_cleanly_on_ctrl_c(temporary: Path) -> None:
    async with demo(temporary) as command:
        kubeconfig = (await command.has_printed("export KUBECONFIG=")).strip().partition("=")[2]
        await command.has_printed("bound 110,")
        assert current_context(kubeconfig) == "embedded"
        assert len(cluster_processes(temporary)) == 1
        ended = await command.end(signal.SIGINT)

    assert (ended.code, ended.err) == (0, "")
    assert "\x1b" not in ended.out
    assert cluster_processes(temporary) == []
    assert left_behind(temporary) == []


@pytest.mark.slow
async def test_interrupted_demo_once_reports_it(temporary: Path) -> None:
    many = ("--job-pods", "20000")  # more than are bound before the signal comes
    async with demo(temporary, "--once", *many, "--kubeconfig", str(temporary / "kubeconfig")) as command:
        async with asyncio.timeout(START_TIMEOUT_S):
            while not cluster_processes(temporary):
                assert command.process.returncode is None, command.err
                await asyncio.sleep(0.01)
        ended = await command.end(signal.SIGINT)
    assert (ended.code, ended.err) == (130, "")
    assert cluster_processes(temporary) == []
    assert left_behind(temporary) == []


@pytest.mark.slow
async def test_killed_demo_ends_its_cluster(temporary: Path) -> None:
    async with demo(temporary) as command:
        await command.has_printed("bound 39,")
        await command.end(signal.SIGKILL)
    async with asyncio.timeout(START_TIMEOUT_S):
        while cluster_processes(temporary):  # noqa: ASYNC110 -- another process's life
            await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_dead_cluster_ends_the_demo(temporary: Path) -> None:
    async with demo(temporary) as command:
        await command.has_printed("bound 39,")
        os.kill(cluster_processes(temporary)[0], signal.SIGKILL)
        ended = await command.ended()
    assert ended.code == 1
    assert "the embedded cluster has ended" in ended.err
    assert left_behind(temporary) == []


@pytest.mark.parametrize("command", ["demo", "cluster"])
async def test_foreign_kubeconfig_is_never_overwritten(tmp_path: Path, command: str) -> None:
    path = tmp_path / "config"
    path.write_text("apiVersion: v1\nkind: Config\n")
    ended = await call(command, "--nodes", "3", "--kubeconfig", str(path))
    assert ended.code == 2
    assert ended.err == f"multisched: {path} was not written by multisched; name a file that does not exist\n"
    assert path.read_text() == "apiVersion: v1\nkind: Config\n"


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_cluster_removes_only_its_own_kubeconfig(tmp_path: Path, is_replaced: bool) -> None:
    path = tmp_path / "config"
    async with multisched("cluster", "--kubeconfig", str(path)) as command:
        await command.has_printed("export KUBECONFIG=")
        assert current_context(str(path)) == "embedded"
        if is_replaced:
            path.write_text("another")
        ended = await command.end()
    assert (ended.code, path.exists()) == (0, is_replaced)


async def test_pod_of_a_slow_gpu_plugin_waits_while_other_pods_of_its_node_run(tmp_path: Path) -> None:
    path = tmp_path / "config"
    options = ("--gpu-nodes", "hami=1", "--gpu-plugin-delay", "600")
    async with multisched("cluster", "--kubeconfig", str(path), *options) as command:
        await command.has_printed("export KUBECONFIG=")
        async with connect(path) as transport:
            pods = "/api/v1/namespaces/default/pods"
            for name, extra in (("slow", {"nvidia.com/gpu": 1}), ("plain", {})):
                resources = {"limits": extra, "requests": extra}
                document = pod_document(name, container("c") | {"resources": resources}, nodeName="hami-000")
                answer = await transport.request("POST", pods, body=json.dumps(document).encode())
                assert answer.status == 201, answer.body
            phases = {"plain": "Pending"}
            while phases["plain"] == "Pending":
                listed = json.loads((await transport.request("GET", pods)).body)["items"]
                phases = {pod["metadata"]["name"]: pod["status"].get("phase", "Pending") for pod in listed}
        assert phases == {"plain": "Running", "slow": "Pending"}


async def test_virtual_nodes_create_sandboxes_at_the_rate_in_their_annotation(tmp_path: Path) -> None:
    path = tmp_path / "config"
    settings = ("account=eci", "burst=1", "perSecond=0.001", "startupSeconds=0", "cpu=1")
    options = [word for setting in settings for word in ("--provider", setting)]
    async with multisched("cluster", "--kubeconfig", str(path), "--virtual", "1", *options) as command:
        await command.has_printed("export KUBECONFIG=")
        async with connect(path) as transport:
            pods, node = "/api/v1/namespaces/default/pods", "/api/v1/nodes/eci-000"

            async def phases_of(*names: str) -> set[tuple[str, str | None]]:
                for name in names:
                    document = pod_document(name, container("c", cpu="800m"), nodeName="eci-000", restartPolicy="Never")
                    answer = await transport.request("POST", pods, body=json.dumps(document).encode())
                    assert answer.status == 201, answer.body
                statuses = [{"phase": "Pending"}]
                while any(status["phase"] == "Pending" for status in statuses):
                    listed = json.loads((await transport.request("GET", pods)).body)["items"]
                    statuses = [pod["status"] for pod in listed if pod["metadata"]["name"] in names]
                return {(status["phase"], status.get("reason")) for status in statuses}

            assert await phases_of("a", "b") == {("Running", None), ("Failed", "ProviderFailed")}
            annotations = json.loads((await transport.request("GET", node)).body)["metadata"]["annotations"]
            text = annotations["multisched.io/fake-provider"].replace("0.001", "1000")
            body = json.dumps({"metadata": {"annotations": {"multisched.io/fake-provider": text}}}).encode()
            assert (await transport.request("PATCH", node, body=body, content_type=MERGE_PATCH)).status == 200
            assert await phases_of("c") == {("Running", None)}

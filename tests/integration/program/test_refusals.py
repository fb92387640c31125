"""What a user can get wrong, and what may be missing: a sentence with the fix, the right exit code, and nothing started."""

from __future__ import annotations

import asyncio
import atexit
import json
import socket
import urllib.error
import urllib.request
from pathlib import Path

import anyio
import pytest
import yaml

from multisched.testing.builders import node_document
from tests.integration.program.command import asked, call, multisched
from tests.integration.program.faulty_api import FaultyApi
from tests.integration.program.test_bad_answers import CONFIGURATION, all_bound, forecast_pod, metric, read, url_of

HEAD = "apiVersion: multisched.io/v1\nkind: MultischedConfiguration\n"


TOKEN = "a-token-that-no-log-may-hold"


def refusing_port() -> int:
    """Returns a port on which no process listens or will listen: it is held until this process ends."""
    held = socket.socket()
    held.bind(("127.0.0.1", 0))
    atexit.register(held.close)
    return int(held.getsockname()[1])


def status_of(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "domains: [{name: forecast, schedulerNames: [same]}, {name: gpu, schedulerNames: [same]}]\n",
            [
                "3:82: domains[1].schedulerNames[0]: schedulerName 'same' is already used by domains[0].schedulerNames[0]"
            ],
        ),
        (
            "domains: [{name: forecast}, {name: other}]\n",
            ["domains[1].nodes: domain 'other' claims nodes by the rule 'rest', as domain 'forecast' does"],
        ),
        (
            "domians: []\nlease: {duratoin: 3s, duration: banana}\nserver: {port: no}\n",
            [
                "3:1: domians: unknown key (did you mean domains?)",
                "4:9: lease.duratoin: unknown key (did you mean duration?)",
                "4:33: lease.duration: not a duration",
                "5:16: server.port: ",
            ],
        ),
        ("domains: [{name: forecast\n", ["4:1: "]),
    ],
    ids=["schedulerName", "nodes", "all-at-once", "not-yaml"],
)
async def test_invalid_configuration_starts_nothing(text: str, told: list[str], tmp_path: Path) -> None:
    """The kubeconfig names a port that nobody listens on: whoever began to work would say so."""
    path = tmp_path / "config.yaml"
    path.write_text(HEAD + text)
    ended = await call("run", "--config", str(path), "--kubeconfig", str(unreachable(tmp_path, refusing_port())))

    assert (ended.code, ended.out) == (2, "")
    lines = ended.err.splitlines()
    assert len(lines) == len(told)
    for line, start in zip(lines, told, strict=True):
        message = json.loads(line)["message"]
        assert message.startswith(f"{path}:")
        assert start in message


def unreachable(folder: Path, port: int) -> Path:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {"token": TOKEN}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    }
    path = folder / "unreachable"
    path.write_text(yaml.safe_dump(document))
    return path


def configuration(folder: Path, port: int = 0) -> str:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({**CONFIGURATION, "server": {"port": port}, "logging": {"level": "debug"}}))
    return str(path)


async def test_run_without_an_api_server_retries_and_ends_on_request(tmp_path: Path) -> None:
    port = refusing_port()
    kubeconfig = unreachable(tmp_path, port)
    async with multisched("run", "--kubeconfig", str(kubeconfig), "--config", configuration(tmp_path)) as command:
        url = await url_of(command)
        complaint = json.loads(await command.has_printed("API server does not respond"))
        await command.has_printed("API server does not respond", after=len(command.err))
        statuses = [await anyio.to_thread.run_sync(status_of, url + path) for path in ("/livez", "/readyz")]
        ended = await command.end()

    assert statuses == [200, 503]
    assert TOKEN not in ended.err + ended.out
    assert f"127.0.0.1:{port}" in complaint["error"]
    assert "the address in the kubeconfig" in complaint["fix"]
    assert ended.code == 0
    assert "Traceback" not in ended.err


async def test_late_api_server_is_found(tmp_path: Path) -> None:
    async with FaultyApi.start() as api:
        kubeconfig = tmp_path / "kubeconfig"
        api.write_kubeconfig(kubeconfig)
        await api.stop_listening()
        await api.create("/api/v1/nodes", node_document("n1"))
        await api.create("/api/v1/namespaces/default/pods", forecast_pod("a"))
        async with multisched("run", "--kubeconfig", str(kubeconfig), "--config", configuration(tmp_path)) as command:
            url = await url_of(command)
            await command.has_printed("API server does not respond")
            await api.listen()
            await all_bound(api, 1)
            assert await anyio.to_thread.run_sync(status_of, f"{url}/readyz") == 200
            ended = await command.end()
    assert ended.code == 0


async def test_lost_lease_ends_the_process_with_a_message(tmp_path: Path) -> None:
    """The API server goes away for longer than the lease may stay unrenewed."""
    async with FaultyApi.start() as api:
        kubeconfig = tmp_path / "kubeconfig"
        api.write_kubeconfig(kubeconfig)
        async with multisched("run", "--kubeconfig", str(kubeconfig), "--config", configuration(tmp_path)) as command:
            # Who only holds the lease, and does not lead yet, waits for it to come back.
            await api.create("/api/v1/nodes", node_document("n1"))
            await api.create("/api/v1/namespaces/default/pods", forecast_pod("a"))
            await all_bound(api, 1)
            api.is_down = True
            ended = await command.ended()

    last = json.loads(ended.err.splitlines()[-1])
    assert ended.code == 1
    assert (last["level"], last["reasons"]) == ("error", ["the lease of domain forecast was lost"])
    assert "Traceback" not in ended.err


async def test_hung_program_ends_at_the_second_signal_and_names_the_function(tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text(
        "class Endless:\n"
        '    name = "Endless"\n'
        "    def __init__(self, args):\n        pass\n"
        "    def pre_enqueue(self, pod):\n"
        "        print('endless', flush=True)\n"
        "        while True:\n            pass\n"
    )
    profile = {"plugins": {"enabled": [{"name": "endless:Endless"}]}}
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({**CONFIGURATION, "domains": [{"name": "forecast", "profile": profile}]}))
    async with FaultyApi.start() as api:
        kubeconfig = tmp_path / "kubeconfig"
        api.write_kubeconfig(kubeconfig)
        await api.create("/api/v1/namespaces/default/pods", forecast_pod("a"))
        arguments = ("run", "--kubeconfig", str(kubeconfig), "--config", str(config))
        async with multisched(*arguments, environment={"PYTHONPATH": str(tmp_path)}) as command:
            await command.has_printed("endless")
            while command.process.returncode is None:  # two signals at once are one to the system
                command.process.terminate()
                with anyio.move_on_after(0.2):
                    await command.process.wait()
            ended = await command.ended()

    last = json.loads(ended.err.splitlines()[-1])
    assert ended.code == 1
    assert (last["level"], last["why"]) == ("critical", "at a second signal")
    assert any("pre_enqueue" in frame for frame in last["stack"])


async def test_queue_without_a_server_exits_with_no_cluster() -> None:
    ended = await asked("queue", "--server", f"http://127.0.0.1:{refusing_port()}")
    assert (ended.code, ended.out) == (3, "")
    assert "no multisched responds at" in ended.err
    assert "--server" in ended.err


async def test_queue_of_a_running_program_shows_pending_pods_and_reasons(tmp_path: Path) -> None:
    async with FaultyApi.start() as api:
        kubeconfig = tmp_path / "kubeconfig"
        api.write_kubeconfig(kubeconfig)
        await api.create("/api/v1/nodes", node_document("n1"))
        await api.create("/api/v1/namespaces/default/pods", forecast_pod("large", cpu="1000"))
        tolerant = forecast_pod("tolerant")
        tolerant["spec"]["tolerations"] = [{"key": f"k{i}", "operator": "Exists"} for i in range(300)]
        await api.create("/api/v1/namespaces/default/pods", tolerant)
        async with multisched("run", "--kubeconfig", str(kubeconfig), "--config", configuration(tmp_path)) as command:
            url = await url_of(command)
            async with asyncio.timeout(90):
                while True:
                    shown = json.loads((await asked("queue", "--server", url, "-o", "json")).out)
                    waiting = {pod["name"]: pod for pod in shown["pods"]}
                    if len(waiting) == 2 and all(pod["message"] for pod in waiting.values()):
                        break
            metrics = await anyio.to_thread.run_sync(read, f"{url}/metrics")
    assert {name: (pod["state"], pod["plugins"]) for name, pod in waiting.items()} == {
        "large": ("unschedulable", ["NodeResourcesFit"]),
        "tolerant": ("refused", []),
    }
    assert waiting["large"]["message"].startswith("0/1 nodes are available: 1 Insufficient cpu.")
    assert "more than the 256 that are read" in waiting["tolerant"]["message"]
    [domain] = shown["domains"]
    assert (domain["counts"]["unschedulable"], domain["counts"]["refused"]) == (1, 1)
    assert metric(metrics, "malformed_objects_total") == 1


async def test_used_port_is_reported_in_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        kubeconfig = unreachable(tmp_path, refusing_port())
        ended = await call("run", "--kubeconfig", str(kubeconfig), "--config", configuration(tmp_path, port))
        cluster = await call("cluster", "--kubeconfig", str(tmp_path / "new"), "--port", str(port))
    assert ended.code == 2
    assert f"127.0.0.1:{port}" in json.loads(ended.err.splitlines()[-1])["message"]
    assert "Traceback" not in ended.err
    assert cluster.code == 2
    assert cluster.err.splitlines() == [
        f"multisched: 127.0.0.1:{port} is taken; name another --port, or 0 for any free one"
    ]


@pytest.mark.parametrize("command", ["run", "kubelets"])
async def test_invalid_kubeconfig_is_reported_in_one_sentence(command: str, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text("apiVersion: v1\nkind: Config\nclusters: []\n")
    ended = await call(command, "--kubeconfig", str(path))
    assert ended.code == 3
    assert str(path) in ended.err
    assert "Traceback" not in ended.err

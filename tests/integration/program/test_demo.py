"""`multisched demo` as a process: its document, its lines, and that it leaves nothing behind however it ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml

from tests.integration.program.command import START_TIMEOUT_S, Command, call, multisched

SMALL = ("--nodes", "30", "--job-pods", "50")


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


@asynccontextmanager
async def demo(temporary: Path, *arguments: str) -> AsyncIterator[Command]:
    async with multisched("demo", *SMALL, *arguments, environment={"TMPDIR": str(temporary)}) as command:
        yield command


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
    return [path.name for path in temporary.iterdir()]


def current_context(kubeconfig: str) -> str:
    return str(yaml.safe_load(Path(kubeconfig).read_text())["current-context"])


async def test_once_ends_by_itself_and_tells_one_document(temporary: Path) -> None:
    async with demo(temporary, "--once", "-o", "json") as command:
        ended = await command.ended()

    assert (ended.code, ended.err) == (0, "")
    document = json.loads(ended.out)
    assert set(document) == {"domains", "overcommitted", "violations"}
    assert document["overcommitted"] == 0
    assert document["violations"] == []
    assert {name: (d["pods"], d["bound"]) for name, d in document["domains"].items()} == {
        "forecast": (17, 17),
        "gpu": (5, 5),
        "job": (50, 50),
    }
    for domain in document["domains"].values():
        assert set(domain) == {"pods", "bound", "p50_ms", "p99_ms", "conflicts_true", "conflicts_false"}
        assert 0 < domain["p50_ms"] <= domain["p99_ms"]
    assert left_behind(temporary) == []


async def test_once_ends_when_the_rest_is_infeasible(temporary: Path, tmp_path: Path) -> None:
    """A gpu domain without nodes: its pods wait, are counted, and do not hold up the end."""
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
    counts = {name: (d["pods"], d["bound"]) for name, d in json.loads(ended.out)["domains"].items()}
    assert counts == {"forecast": (17, 17), "gpu": (5, 0), "job": (50, 50)}


async def test_pods_are_bound_and_ctrl_c_ends_cleanly(temporary: Path) -> None:
    async with demo(temporary) as command:
        kubeconfig = (await command.has_printed("export KUBECONFIG=")).strip().partition("=")[2]
        await command.has_printed("bound 50,")
        assert current_context(kubeconfig) == "embedded"
        assert len(cluster_processes(temporary)) == 1
        ended = await command.end(signal.SIGINT)

    assert (ended.code, ended.err) == (0, "")
    assert "\x1b" not in ended.out
    assert cluster_processes(temporary) == []
    assert left_behind(temporary) == []


async def test_cut_short_once_says_so(temporary: Path) -> None:
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


async def test_a_killed_demo_takes_its_cluster_along(temporary: Path) -> None:
    async with demo(temporary) as command:
        await command.has_printed("bound 50,")
        await command.end(signal.SIGKILL)
    async with asyncio.timeout(START_TIMEOUT_S):
        while cluster_processes(temporary):  # noqa: ASYNC110 -- another process's life
            await asyncio.sleep(0.01)


async def test_a_dead_cluster_ends_the_demo(temporary: Path) -> None:
    async with demo(temporary) as command:
        await command.has_printed("bound 50,")
        os.kill(cluster_processes(temporary)[0], signal.SIGKILL)
        ended = await command.ended()
    assert ended.code == 1
    assert "the embedded cluster has ended" in ended.err
    assert left_behind(temporary) == []


@pytest.mark.parametrize("command", ["demo", "cluster"])
async def test_a_kubeconfig_of_somebody_else_is_never_written_over(tmp_path: Path, command: str) -> None:
    path = tmp_path / "config"
    path.write_text("apiVersion: v1\nkind: Config\n")
    ended = await call(command, "--nodes", "3", "--kubeconfig", str(path))
    assert ended.code == 2
    assert ended.err == f"multisched: {path} is somebody's kubeconfig; name a file that does not exist\n"
    assert path.read_text() == "apiVersion: v1\nkind: Config\n"

"""The cluster that the integration tests stand on, one per session: `--cluster=embedded` (ours) or `--cluster=real`.

Owns the processes of that cluster. Its controllers run; its nodes are what tests create, and their kubelets run from the
first test on that asks for `node_agents`: before that, nothing but the test itself changes a bound pod.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
import pytest_asyncio

from tests.real.control_plane import ControlPlane, binaries
from tests.real.program import Program

MULTISCHED = Path(sys.executable).with_name("multisched")
START_LIMIT_S = 90.0
STOP_GRACE_S = 5.0
KUBECTL_TESTS = Path(__file__).parent / "kubectl"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """kubectl comes from `make controlplane`: its tests run in `make real`, where they are asked for by their path."""
    return True if collection_path == KUBECTL_TESTS and _is_embedded(config) else None


def _is_embedded(config: pytest.Config) -> bool:
    return bool(config.getoption("--cluster") == "embedded")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def control_plane(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ControlPlane]:
    """The real control plane, for what only a real one can do. Whoever breaks it mends it before the test ends."""
    async with ControlPlane.start(tmp_path_factory.mktemp("control-plane")) as plane:
        yield plane


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def _embedded_kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Path]:
    folder = tmp_path_factory.mktemp("embedded")
    kubeconfig = folder / "kubeconfig"
    command = [str(MULTISCHED), "cluster", "--kubeconfig", str(kubeconfig)]
    program = await Program.start("multisched-cluster", command, folder / "cluster.log")
    try:
        with anyio.fail_after(START_LIMIT_S):
            while not await anyio.Path(kubeconfig).exists():
                program.check_running()
                await anyio.sleep(0.02)
        yield kubeconfig
    finally:
        await program.stop(STOP_GRACE_S)


# The two below are synchronous, and depend by name: a fixture that is chosen at run time cannot be started by an async one.


@pytest.fixture(scope="session")
def real_kubeconfig(request: pytest.FixtureRequest) -> Path | None:
    """An administrator's kubeconfig of the session's real cluster; None where tests start embedded ones of their own."""
    if _is_embedded(request.config):
        return None
    plane: ControlPlane = request.getfixturevalue("control_plane")
    return plane.kubeconfig


@pytest.fixture(scope="session")
def cluster_kubeconfig(request: pytest.FixtureRequest, real_kubeconfig: Path | None) -> Path:
    """An administrator's kubeconfig of the chosen cluster, which lives as long as the session."""
    return real_kubeconfig or Path(request.getfixturevalue("_embedded_kubeconfig"))


@pytest.fixture(scope="session")
def kubectl() -> Path:
    """kubectl 1.36.3, as `make controlplane` built it."""
    return binaries() / "kubectl"


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def node_agents(
    request: pytest.FixtureRequest, cluster_kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[None]:
    """Kubelets for every node from now on: in the embedded cluster they always run, on the real one `multisched kubelets`."""
    if _is_embedded(request.config):
        yield
        return
    log = tmp_path_factory.mktemp("kubelets") / "kubelets.log"
    command = [str(MULTISCHED), "kubelets", "--kubeconfig", str(cluster_kubeconfig)]
    program = await Program.start("multisched-kubelets", command, log)
    try:
        yield
    finally:
        await program.stop(STOP_GRACE_S)

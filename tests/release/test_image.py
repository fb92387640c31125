"""The image without Docker: each step of the Dockerfile, then its entry point as a user without rights on a read-only tree."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import anyio
import pytest
import yaml

from tests.real.admin import until
from tests.real.program import Program
from tests.release.dockerfile import Image

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
READY_LIMIT_S = 90
STOP_LIMIT_S = 30
NOBODY = 65532


def state(folder: Path) -> dict[str, tuple[int, int]]:
    """Path -> size and time of the last change."""
    found = {path: path.lstat() for path in folder.rglob("*")}
    return {str(path): (status.st_size, status.st_mtime_ns) for path, status in found.items()}


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    """Built below a folder that every user may enter, and made read-only."""
    with tempfile.TemporaryDirectory(prefix="image-") as name:
        root = Path(name)
        root.chmod(0o755)
        built = Image(root, ROOT)
        built.install_python()
        built.build(DOCKERFILE)
        folders = [folder for folder, _folders, _files in os.walk(root)]
        for folder in folders:
            os.chmod(folder, 0o555)
        yield built
        for folder in folders:
            os.chmod(folder, 0o755)


@pytest.fixture
def scratch() -> Iterator[Path]:
    """The only folder that the image's user may write, as /tmp is in the pod."""
    with tempfile.TemporaryDirectory(prefix="scratch-") as name:
        folder = Path(name)
        folder.chmod(0o777)
        yield folder


@asynccontextmanager
async def embedded(folder: Path) -> AsyncIterator[Path]:
    """The kubeconfig of an embedded cluster."""
    kubeconfig = folder / "kubeconfig"
    multisched = Path(sys.executable).with_name("multisched")
    command = [str(multisched), "cluster", "--nodes", "3", "--kubeconfig", str(kubeconfig)]
    program = await Program.start("multisched-cluster", command, folder / "cluster.log")
    try:

        async def is_there() -> bool:
            program.check_running()
            return await anyio.Path(kubeconfig).exists()

        await until(is_there, READY_LIMIT_S)
        yield kubeconfig
    finally:
        with anyio.CancelScope(shield=True):
            await program.kill()


def user_of(image: Image) -> int | None:
    """The image's own where one may change users; else whoever runs this, who has no rights either."""
    assert image.user == f"{NOBODY}:{NOBODY}"
    return NOBODY if os.geteuid() == 0 else None


def test_entry_point_works_as_an_unprivileged_user_and_writes_nothing(image: Image, scratch: Path) -> None:
    before = state(image.root)

    def multisched(*arguments: str) -> subprocess.CompletedProcess[str]:
        return image.run([*image.entrypoint, *arguments], user_of(image), HOME="/nonexistent", TMPDIR=str(scratch))

    shown = multisched("config", "default")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout == (ROOT / "config" / "default.yaml").read_text()
    assert multisched("config", "validate", str(ROOT / "deploy/base/multisched.yaml")).returncode == 0
    alone = multisched(*image.command)
    assert alone.returncode == 3, f"{image.command}: {alone.stdout}{alone.stderr}"
    assert state(image.root) == before


async def test_image_schedules_pods_on_a_cluster(image: Image, scratch: Path, tmp_path: Path) -> None:
    """With the flags of the Deployment and its configuration, but for the addresses."""
    before = state(image.root)
    document = yaml.safe_load((ROOT / "deploy/base/multisched.yaml").read_text())
    document["server"] |= {"bindAddress": "127.0.0.1", "port": 0, "probePort": 0}
    configuration = scratch / "multisched.yaml"
    configuration.write_text(json.dumps(document))
    async with embedded(tmp_path) as kubeconfig:
        copied = scratch / "kubeconfig"
        shutil.copy(kubeconfig, copied)
        copied.chmod(0o644)
        process = subprocess.Popen(  # noqa: ASYNC220 - blocks for a fork
            [*image.entrypoint, "run", "--config", str(configuration), "--kubeconfig", str(copied)],
            env=image.variables({"HOME": "/nonexistent", "TMPDIR": str(scratch)}),
            user=user_of(image),
            group=user_of(image),
            extra_groups=None if user_of(image) is None else [],
            stderr=subprocess.PIPE,
        )
        try:
            assert process.stderr is not None
            lines = []
            for line in process.stderr:
                lines.append(json.loads(line))
                if "probes" in lines[-1]:
                    break

            async def is_ready() -> bool:
                async with aiohttp.request("GET", f"{lines[-1]['probes']}/readyz") as answer:
                    return answer.status == 200

            await until(is_ready, READY_LIMIT_S)
            process.send_signal(signal.SIGTERM)
            rest = process.communicate(timeout=STOP_LIMIT_S)[1]
            assert process.returncode == 0, rest
        finally:
            process.kill()
    assert state(image.root) == before


def test_failing_build_step_is_detected(tmp_path: Path) -> None:
    image = Image(tmp_path, ROOT)
    with pytest.raises(AssertionError, match="RUN false"):
        image.build("FROM scratch\nRUN false\n")
    with pytest.raises(AssertionError, match=r"COPY tests: \.dockerignore"):
        image.build("FROM scratch\nCOPY tests tests\n")

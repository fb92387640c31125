"""A real Prometheus on loopback: its binaries, blocks made of generated series, and the server.

`binaries()` finds `prometheus` and `promtool` on the PATH, else fetches Debian's package `prometheus` once into the cache folder
of the control plane, outside the repository and without root: `apt-get download`, then `dpkg-deb -x`. `make_blocks` fills a folder;
`serving` owns the process that serves it until the block ends.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp
import anyio
import anyio.to_thread

from tests.real.program import Program

PROGRAMS: Final = ("prometheus", "promtool")
PACKAGE: Final = "prometheus"
LOOPBACK: Final = "127.0.0.1"
FETCH_TIMEOUT_S: Final = 300
BLOCKS_TIMEOUT_S: Final = 120
READY_TIMEOUT_S: Final = 60
POLL_INTERVAL_S: Final = 0.1
SCRAPE_INTERVAL: Final = "3s"
"""And how long a scrape may take."""

Series = tuple[str, Mapping[str, str], Sequence[tuple[float, float]]]
"""(metric, labels, (epoch seconds, value) in the order of time)"""


class NotFetchedError(RuntimeError):
    """There is no Prometheus here and none can be had."""


def binaries() -> Path:
    """The folder of both programs; fetches them where they are missing. Raises NotFetchedError."""
    found = [shutil.which(name) for name in PROGRAMS]
    if all(found):
        return Path(str(found[0])).parent
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "multisched" / "prometheus"
    folder = cache / "usr" / "bin"
    if not all((folder / name).exists() for name in PROGRAMS):
        _fetch(cache)
    return folder


def _fetch(cache: Path) -> None:
    """Unpacks beside the cache and moves it there whole, so that a fetch that is cut off leaves nothing half done."""
    cache.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache.parent, prefix=".prometheus.") as name:
        folder = Path(name)
        try:
            _run(["apt-get", "download", PACKAGE], folder)
            (package,) = folder.glob("*.deb")
            _run(["dpkg-deb", "-x", str(package), "unpacked"], folder)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            told = getattr(error, "stderr", b"") or b""
            raise NotFetchedError(
                f"no {' and '.join(PROGRAMS)} on the PATH, and Debian's package {PACKAGE} could not be fetched into {cache}:"
                f" {error} {told.decode(errors='replace').strip()}; install Prometheus, or put both programs on the PATH"
            ) from error
        if not all((folder / "unpacked/usr/bin" / program).exists() for program in PROGRAMS):
            raise NotFetchedError(f"Debian's package {PACKAGE} holds no {' and '.join(PROGRAMS)}; put both on the PATH")
        if cache.exists():
            shutil.rmtree(cache)
        (folder / "unpacked").rename(cache)


def _run(command: Sequence[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=FETCH_TIMEOUT_S)


@dataclass(frozen=True, slots=True)
class Scraped:
    """Who is scraped every SCRAPE_INTERVAL."""

    job: str
    address: str
    is_tls: bool = False


@asynccontextmanager
async def serving(folder: Path, scraped: Scraped | None = None) -> AsyncIterator[str]:
    """The address of a server that holds what `make_blocks` wrote. Raises ProgramEndedError or TimeoutError."""
    programs = await anyio.to_thread.run_sync(binaries)
    (folder / "prometheus.yml").write_text(_settings(scraped))
    address = f"{LOOPBACK}:{free_port()}"
    flags = [
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--storage.tsdb.retention.time=100y",
        f"--web.listen-address={address}",
    ]
    program = await Program.start("prometheus", [str(programs / "prometheus"), *flags], folder / "prometheus.log")
    try:
        await _wait_for(f"http://{address}/-/ready", program)
        yield f"http://{address}"
    finally:
        with anyio.CancelScope(shield=True):
            await program.kill()


def make_blocks(folder: Path, series: Iterable[Series]) -> None:
    """What a server would have in `folder` that had scraped the series."""
    text = folder / "series.om"
    with text.open("w") as file:
        typed: set[str] = set()
        for metric, labels, samples in series:
            if metric not in typed:
                typed.add(metric)
                file.write(f"# TYPE {metric} gauge\n")
            shown = ",".join(f'{name}="{value}"' for name, value in labels.items())
            file.writelines(f"{metric}{{{shown}}} {value!r} {second:.3f}\n" for second, value in samples)
        file.write("# EOF\n")
    command = [
        str(binaries() / "promtool"),
        "tsdb",
        "create-blocks-from",
        "openmetrics",
        str(text),
        str(folder / "data"),
    ]
    made = subprocess.run(command, check=False, capture_output=True, timeout=BLOCKS_TIMEOUT_S)
    assert made.returncode == 0, made.stderr.decode(errors="replace")


def _settings(scraped: Scraped | None) -> str:
    if scraped is None:
        return "global: {}\n"
    job: dict[str, object] = {"job_name": scraped.job, "static_configs": [{"targets": [scraped.address]}]}
    if scraped.is_tls:
        job |= {"scheme": "https", "tls_config": {"insecure_skip_verify": True}}
    return json.dumps({"global": {"scrape_interval": SCRAPE_INTERVAL}, "scrape_configs": [job]})


def free_port() -> int:
    """One that nobody listens on."""
    with socket.socket() as held:
        held.bind((LOOPBACK, 0))
        return int(held.getsockname()[1])


async def _wait_for(url: str, program: Program) -> None:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
        for _ in range(round(READY_TIMEOUT_S / POLL_INTERVAL_S)):
            program.check_running()
            try:
                async with session.get(url) as answer:
                    if answer.status == 200:
                        return
            except (aiohttp.ClientError, TimeoutError):
                pass  # it does not listen yet
            await anyio.sleep(POLL_INTERVAL_S)
    raise TimeoutError(f"prometheus did not answer {url} within {READY_TIMEOUT_S} s; see {program.log}")

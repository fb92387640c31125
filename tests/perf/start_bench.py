"""CPU that a process spends from its start to its first list, beside that of the libraries it imports and of Python alone.

    python -m tests.perf.start_bench --rounds 10
    python -m tests.perf.start_bench --rounds 5 --imports

The shipped configuration runs with its own probes and leases against a server that answers leases alone. Rounds take
turns, and the least of each counts: what a noisy machine adds is not the program's. The libraries are imported as the
program does it: one thread for BLAS, no look for garbage. `--imports` shows instead what each
package takes of a start, in milliseconds of the clock, with what it takes to measure that.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Final

LIBRARIES: Final = "numpy, aiohttp, aiohttp.web, msgspec, orjson, prometheus_client, typer, yaml, anyio, uvloop"
AS_WE_DO: Final = {"OPENBLAS_NUM_THREADS": "1"}
"""What `multisched.cli.main` sets before anything is imported."""
COMPILED: Final = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""The environment of what is measured: an installed program does not compile itself at each start."""
LIST_LIMIT_S: Final = 120.0
PACKAGES_SHOWN: Final = 25
TICKS: Final = os.sysconf("SC_CLK_TCK")
KUBECONFIG: Final = """
apiVersion: v1
kind: Config
current-context: bench
contexts: [{{name: bench, context: {{cluster: bench, user: bench}}}}]
clusters: [{{name: bench, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
users: [{{name: bench, user: {{token: none}}}}]
"""


class Witness:
    """An API server that keeps leases, and notes that somebody asked for a list."""

    def __init__(self) -> None:
        self.is_listed = asyncio.Event()
        self._leases: dict[str, bytes] = {}

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[int]:
        """Its port."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            yield int(server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Whoever asks is killed once it has asked enough.
        with closing(writer), suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                method, target, _ = head.split("\r\n", 1)[0].split(" ", 2)
                lengths = [
                    line.split(":")[1] for line in head.split("\r\n") if line.lower().startswith("content-length:")
                ]
                body = await reader.readexactly(int(lengths[0])) if lengths else b""
                status, answer = self._answer(method, target, body)
                writer.write(
                    b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                    % (status, len(answer))
                )
                writer.write(answer)
                await writer.drain()

    def _answer(self, method: str, target: str, body: bytes) -> tuple[int, bytes]:
        if "/leases" in target:
            if method == "GET":
                kept = self._leases.get(target.split("?")[0])
                return (200, kept) if kept else (404, b'{"kind":"Status","reason":"NotFound","code":404}')
            lease = json.loads(body)
            lease["metadata"]["resourceVersion"] = "1"
            answer = json.dumps(lease).encode()
            self._leases[f"{target.split('/leases')[0]}/leases/{lease['metadata']['name']}"] = answer
            return 200 if method == "PUT" else 201, answer
        if method == "GET" and target.split("?")[0] in ("/api/v1/nodes", "/api/v1/pods"):
            self.is_listed.set()
        return 500, b'{"kind":"Status","message":"the bench answers leases alone","code":500}'


def cpu_s(pid: int) -> float:
    """User and system time of a running process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


@asynccontextmanager
async def started(folder: Path, *options: str) -> AsyncIterator[int]:
    """A process that has just asked for pods or nodes: its pid. What it prints is in `folder / "log"`."""
    witness = Witness()
    async with witness.serving() as port:
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(KUBECONFIG.format(port=port))
        command = [sys.executable, *options, "-m", "multisched", "run", "--kubeconfig", str(kubeconfig), "--port", "0"]
        with (folder / "log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log, env=COMPILED)
        try:
            async with asyncio.timeout(LIST_LIMIT_S):
                await witness.is_listed.wait()
            yield process.pid
        except TimeoutError as error:
            raise SystemExit(f"no list within {LIST_LIMIT_S:g} s:\n{(folder / 'log').read_text()}") from error
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def start_s(folder: Path) -> float:
    """Of one process until it asks for pods or nodes."""
    async with started(folder) as pid:
        return cpu_s(pid)


async def imports_ms(folder: Path) -> dict[str, float]:
    """Module -> what its import took without those in it, of all that were imported before the first list."""
    async with started(folder, "-X", "importtime"):
        pass
    found = {}
    for line in (folder / "log").read_text().splitlines():
        own_us, _, name = line.removeprefix("import time:").partition("|")
        if line.startswith("import time:") and own_us.strip().isdecimal():
            found[name.rpartition("|")[2].strip()] = int(own_us) / 1000
    return found


async def code_s(code: str) -> float:
    """Of a process that executes some code and ends."""
    spent = "import resource\nused = resource.getrusage(resource.RUSAGE_SELF)\nprint(used.ru_utime + used.ru_stime)"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        f"import gc\ngc.disable()\n{code}\n{spent}",
        stdout=asyncio.subprocess.PIPE,
        env=COMPILED | AS_WE_DO,
    )
    printed, _ = await process.communicate()
    return float(printed)


async def measure(rounds: int) -> None:
    """Prints the table."""
    taken: dict[str, list[float]] = {"python alone": [], "its libraries": [], "multisched to its first list": []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds + 1):
            found = [await code_s(""), await code_s(f"import {LIBRARIES}"), await start_s(Path(folder))]
            if number:  # the first one writes bytecode
                for times, one in zip(taken.values(), found, strict=True):
                    times.append(one)
    libraries_s = min(taken["its libraries"])
    print(f"{'CPU seconds':<30} {'least':>6} {'median':>7} {'of the libraries':>17}")
    for name, times in taken.items():
        median = sorted(times)[len(times) // 2]
        print(f"{name:<30} {min(times):6.2f} {median:7.2f} {min(times) / libraries_s:16.2f}x")


async def measure_imports(rounds: int) -> None:
    """Prints the packages that take longest, ours by the folder."""
    least: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds + 1):
            for name, ms in (await imports_ms(Path(folder))).items() if number else ():
                least[name] = min(ms, least.get(name, ms))
    taken, modules = dict[str, float](), Counter[str]()
    for name, ms in least.items():
        parts = name.split(".")
        package = ".".join(parts[: 2 if parts[0] in ("multisched", "domains") else 1])
        taken[package] = taken.get(package, 0.0) + ms
        modules[package] += 1
    print(f"{'package':<30} {'ms':>6} {'modules':>8}")
    for package in sorted(taken, key=taken.__getitem__, reverse=True)[:PACKAGES_SHOWN]:
        print(f"{package:<30} {taken[package]:6.0f} {modules[package]:8}")
    print(f"{'all':<30} {sum(taken.values()):6.0f} {modules.total():8}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--imports", action="store_true", help="show what each package takes")
    given = parser.parse_args(arguments)
    asyncio.run((measure_imports if given.imports else measure)(given.rounds))


if __name__ == "__main__":
    main()

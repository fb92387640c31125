"""CPU that a process spends from its start to its first list, beside that of the libraries it imports and of Python alone.

    python -m tests.perf.start_bench --rounds 10

The shipped configuration runs with its own probes and leases against a server that answers leases alone. Rounds take
turns, and the least of each counts: what a noisy machine adds is not the program's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Final

LIBRARIES: Final = (
    "numpy, aiohttp, aiohttp.web, pydantic, msgspec, orjson, prometheus_client, typer, yaml, anyio, uvloop"
)
LIST_LIMIT_S: Final = 120.0
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


async def start_s(folder: Path) -> float:
    """Of one process until it asks for pods or nodes."""
    witness = Witness()
    async with witness.serving() as port:
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(KUBECONFIG.format(port=port))
        command = [sys.executable, "-m", "multisched", "run", "--kubeconfig", str(kubeconfig), "--port", "0"]
        log = (folder / "log").open("wb")
        with log:
            process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
        try:
            async with asyncio.timeout(LIST_LIMIT_S):
                await witness.is_listed.wait()
            return cpu_s(process.pid)
        except TimeoutError as error:
            raise SystemExit(f"no list within {LIST_LIMIT_S:g} s:\n{(folder / 'log').read_text()}") from error
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def code_s(code: str) -> float:
    """Of a process that executes some code and ends."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        f"{code}\nimport resource\nused = resource.getrusage(resource.RUSAGE_SELF)\nprint(used.ru_utime + used.ru_stime)",
        stdout=asyncio.subprocess.PIPE,
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    asyncio.run(measure(parser.parse_args(arguments).rounds))


if __name__ == "__main__":
    main()

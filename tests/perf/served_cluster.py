"""A process that serves an embedded cluster until SIGTERM: what the bench measures. Also reads kubeconfigs for clients."""

from __future__ import annotations

import argparse
import asyncio
import base64
import cProfile
import os
import signal
import ssl
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path

import anyio
import orjson


class SystemClock:
    """The machine's own time."""

    def now(self) -> datetime:
        """UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds."""
        return time.monotonic()


def client_context(kubeconfig: Path) -> tuple[str, ssl.SSLContext]:
    """URL and TLS context of the kubeconfig that the embedded cluster wrote (client certificate of its admin)."""
    document = orjson.loads(kubeconfig.read_bytes())
    cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
    context = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    with tempfile.NamedTemporaryFile() as pair:
        pair.write(base64.b64decode(user["client-certificate-data"]) + base64.b64decode(user["client-key-data"]))
        pair.flush()
        context.load_cert_chain(pair.name)
    return str(cluster["server"]), context


async def serve(kubeconfig: Path, bindings: Path | None = None) -> None:
    """Serves until SIGTERM; says so on stdout when ready. `bindings`: gets how many were taken, by their paths."""
    from multisched.cluster.embedded import EmbeddedCluster

    taken: Counter[str] = Counter()

    def count(method: str, path: str, user: str, status: int) -> None:
        if method == "POST" and status == HTTPStatus.CREATED and path.endswith("/binding"):
            taken[path] += 1

    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with EmbeddedCluster.start(SystemClock()) as cluster:
        cluster.server.request_log = count if bindings is not None else None
        cluster.write_kubeconfig(kubeconfig)
        print("ready", flush=True)
        await stopped.wait()
    if bindings is not None:
        await anyio.Path(bindings).write_bytes(orjson.dumps(taken))


def main() -> None:
    """The process."""
    import uvloop

    parser = argparse.ArgumentParser()
    parser.add_argument("kubeconfig", type=Path)
    parser.add_argument("--core", type=int)
    parser.add_argument("--profile")
    parser.add_argument("--bindings", type=Path)
    options = parser.parse_args()
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    profile = cProfile.Profile() if options.profile else None
    if profile is not None:
        profile.enable()
    uvloop.run(serve(options.kubeconfig, options.bindings))
    if profile is not None:
        profile.disable()
        profile.dump_stats(options.profile)
    sys.exit(0)


if __name__ == "__main__":
    main()

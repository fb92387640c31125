"""A process that answers range queries as a Prometheus with much history would, well or ill, until its input ends.

    python -m tests.perf.history_server KIND [--pods 2000]

KIND: `good`; `NaN`, `negative`, `spikes` (a sample in fifty is a hundred times too high), `empty`, `html`, `slow` (never answers),
`flood` (a gigabyte of spaces). Prints its address. Pods are those of `forecast_refit_bench`, in as many series for each query.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import os
import sys
from typing import Final

from aiohttp import web

KINDS: Final = ("good", "NaN", "negative", "spikes", "empty", "html", "slow", "flood")
SHAPES: Final = 16
"""Distinct curves: the text of each is made once per answer, so that the server is not what is measured."""
FLOOD_BYTES: Final = 1_000_000_000
SPIKE_EVERY: Final = 50


def pod_name(number: int) -> str:
    """As a Deployment names them, two of each service."""
    return f"{service_name(number // 2)}-7d9f8b6c5d-{number:05}"


def service_name(number: int) -> str:
    return f"svc-{number:04}"


class HistoryServer:
    """Answers as its kind does, whatever is asked."""

    def __init__(self, kind: str, pods: int) -> None:
        self._kind = kind
        self._heads = [
            f'{{"metric":{{"namespace":"bench","pod":"{pod_name(number)}"}},"values":['.encode()
            for number in range(pods)
        ]

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        form = await request.post()
        start, end, step = (float(str(form[name])) for name in ("start", "end", "step"))
        match self._kind:
            case "slow":
                await asyncio.Event().wait()
            case "html":
                return web.Response(body=b"<html>Sign in</html>")
            case "flood":
                return await self._flood(request)
        return web.Response(body=self._matrix([start + n * step for n in range(round((end - start) / step) + 1)]))

    def _matrix(self, times: list[float]) -> bytes:
        if self._kind == "empty":
            return b'{"status":"success","data":{"resultType":"matrix","result":[]}}'
        texts = [",".join(f'[{at:.0f},"{self._value(shape, at)}"]' for at in times).encode() for shape in range(SHAPES)]
        series = (head + texts[number % SHAPES] + b"]}" for number, head in enumerate(self._heads))
        return b'{"status":"success","data":{"resultType":"matrix","result":[' + b",".join(series) + b"]}}"

    def _value(self, shape: int, at_s: float) -> str:
        value = (
            0.2 + 0.01 * shape + 0.1 * math.cos(2 * math.pi * (at_s / 86_400 - shape / SHAPES)) + 0.013 * math.sin(at_s)
        )
        match self._kind:
            case "NaN":
                return "NaN"
            case "negative":
                return f"{-value:.6f}"
            case "spikes" if (at_s // 300 + shape) % SPIKE_EVERY == 0:
                return f"{100 * value:.6f}"
        return f"{value:.6f}"

    async def _flood(self, request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):  # who asks has had enough
            for _ in range(FLOOD_BYTES // 65_536):
                await response.write(b" " * 65_536)
        return response


async def _serve(kind: str, pods: int) -> None:
    runner = web.ServerRunner(web.Server(HistoryServer(kind, pods).handle), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    os._exit(0)  # answers under way are of no use to anybody


def main() -> None:
    """The process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--pods", type=int, default=2_000)
    options = parser.parse_args()
    os.nice(15)  # in earnest it has a machine of its own
    asyncio.run(_serve(options.kind, options.pods))


if __name__ == "__main__":
    main()

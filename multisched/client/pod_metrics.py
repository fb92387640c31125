"""The metrics API (metrics.k8s.io), through the API server; implements `framework.measures.LoadReader`.

Stateless. Reads page by page, at most PODS_MAX pods; leaves out pods with missing or invalid figures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

import msgspec

from multisched.framework.measures import MeterError, PodUse
from multisched.model.quantity import QuantityError, parse_milli
from multisched.model.wire import UNREADABLE, Response, Transport, TransportError

PATH: Final = "/apis/metrics.k8s.io/v1beta1/pods"
PAGE_PODS: Final = 1_000
"""metrics-server ignores the limit and returns all pods at once."""
PODS_MAX: Final = 300_000
PODS_PER_PIECE: Final = 500
"""Number of pods decoded without a pause, in about two milliseconds; then other tasks run."""
TIMEOUT_S: Final = 30.0


class MetricsApi:
    """Reads the current use of every pod."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def pods(self) -> tuple[PodUse, ...]:
        """See `LoadReader`."""
        found: list[PodUse] = []
        path = f"{PATH}?limit={PAGE_PODS}"
        while True:
            page = _decoded(await self._page(path))
            if len(found) + len(page.items) > PODS_MAX:
                raise MeterError(f"metrics.k8s.io: returns more than {PODS_MAX} pods")
            for start in range(0, len(page.items), PODS_PER_PIECE):
                found += _uses(page.items[start : start + PODS_PER_PIECE])
                await asyncio.sleep(0)
            following = page.metadata.continue_
            if not following:
                return tuple(found)
            path = f"{PATH}?limit={PAGE_PODS}&continue={quote(following, safe='')}"

    async def _page(self, path: str) -> Response:
        try:
            response = await self._transport.request("GET", path, timeout_s=TIMEOUT_S)
        except TransportError as error:
            raise MeterError(f"metrics.k8s.io: no answer: {error}") from error
        if response.status == 404:
            raise MeterError(
                "metrics.k8s.io: not served by this API server (404); install metrics-server, or remove the source"
            )
        if response.status != 200:
            raise MeterError(f"metrics.k8s.io: HTTP {response.status}: {response.body[:200].decode(errors='replace')}")
        return response


class _Metadata(msgspec.Struct):
    name: str = ""
    namespace: str = ""


class _ListMetadata(msgspec.Struct, rename={"continue_": "continue"}):
    continue_: str = ""


class _Container(msgspec.Struct):
    usage: dict[str, str] = {}


class _PodMetrics(msgspec.Struct):
    metadata: _Metadata
    containers: list[_Container] = []


class _Page(msgspec.Struct):
    metadata: _ListMetadata = msgspec.field(default_factory=_ListMetadata)
    items: list[msgspec.Raw] = []


_PAGE: Final = msgspec.json.Decoder(_Page)
_ITEM: Final = msgspec.json.Decoder(_PodMetrics)


def _decoded(response: Response) -> _Page:
    try:
        return _PAGE.decode(response.body)
    except UNREADABLE as error:
        raise MeterError(f"metrics.k8s.io: the response is not a list of PodMetrics: {error}") from error


def _uses(items: Sequence[msgspec.Raw]) -> list[PodUse]:
    try:
        return [use for item in items if (use := _use(_ITEM.decode(item))) is not None]
    except UNREADABLE as error:
        raise MeterError(f"metrics.k8s.io: the response is not a list of PodMetrics: {error}") from error


def _use(item: _PodMetrics) -> PodUse | None:
    """Returns None if figures are missing, not quantities, or negative."""
    cpu = memory = 0.0
    try:
        for container in item.containers:
            cpu += _cores(container.usage["cpu"])
            memory += parse_milli(container.usage["memory"]) / 1000
    except (KeyError, QuantityError):
        return None
    if not item.containers or cpu < 0 or memory < 0:
        return None
    return PodUse(item.metadata.namespace, item.metadata.name, cpu, memory)


def _cores(text: str) -> float:
    """Parses cores. Metrics have nano and micro cores, which are finer than the milli units of other quantities."""
    for suffix, size in (("n", 1e9), ("u", 1e6)):
        if text.endswith(suffix) and text[:-1].isdecimal():
            return int(text[:-1]) / size
    return parse_milli(text) / 1000

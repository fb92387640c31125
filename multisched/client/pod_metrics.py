"""The metrics API (metrics.k8s.io), over the API server; implements `framework.measures.LoadReader`.

Owns nothing. Promises to read page by page, at most PODS_MAX pods, and that a pod whose figures make no sense is left out.
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
"""metrics-server ignores the limit and answers with all pods at once."""
PODS_MAX: Final = 300_000
PODS_PER_PIECE: Final = 500
"""Decoded in one go, in some two milliseconds: others have their turn after each."""
TIMEOUT_S: Final = 30.0


class MetricsApi:
    """What every pod uses now."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def pods(self) -> tuple[PodUse, ...]:
        """See `LoadReader`."""
        found: list[PodUse] = []
        path = f"{PATH}?limit={PAGE_PODS}"
        while True:
            page = _decoded(await self._page(path))
            if len(found) + len(page.items) > PODS_MAX:
                raise MeterError(f"metrics.k8s.io: answers with more than {PODS_MAX} pods")
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
            raise MeterError("metrics.k8s.io: is not served here (404); install metrics-server, or remove the source")
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
        raise MeterError(f"metrics.k8s.io: answers what is no list of PodMetrics: {error}") from error


def _uses(items: Sequence[msgspec.Raw]) -> list[PodUse]:
    try:
        return [use for item in items if (use := _use(_ITEM.decode(item))) is not None]
    except UNREADABLE as error:
        raise MeterError(f"metrics.k8s.io: answers what is no list of PodMetrics: {error}") from error


def _use(item: _PodMetrics) -> PodUse | None:
    """None for figures that are missing, no quantities or below zero."""
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
    """Metrics are finer than the thousandths that quantities are kept in: nano and micro cores are read here."""
    for suffix, size in (("n", 1e9), ("u", 1e6)):
        if text.endswith(suffix) and text[:-1].isdecimal():
            return int(text[:-1]) / size
    return parse_milli(text) / 1000

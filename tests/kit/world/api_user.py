"""A user of the API, who repeats requests while the server is away."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from multisched.cluster.api.direct import DirectTransport
from multisched.cluster.api.server import ApiServer
from multisched.model.objects import Pod
from multisched.model.wire import JSON, Response

NAMESPACE = "default"


class ApiUser:
    """A client of the API other than the program."""

    def __init__(self, server: ApiServer) -> None:
        self.api = DirectTransport(server)

    async def send(
        self,
        method: str,
        path: str,
        document: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        content_type: str = JSON,
    ) -> Response:
        body = orjson.dumps(document) if document is not None else None
        while True:
            answer = await self.api.request(method, path, body=body, content_type=content_type)
            if answer.status != 503:
                return answer
            await asyncio.sleep(0.5)

    async def create_pod(self, pod: dict[str, Any]) -> bool:
        answer = await self.send("POST", pods_path(pod["metadata"].get("namespace", NAMESPACE)), pod)
        if answer.status not in (201, 409):
            raise AssertionError(answer.body)
        return answer.status == 201

    async def delete_pod(self, pod: Pod) -> None:
        await self.delete_named(pod.name, pod.namespace)

    async def delete_named(self, name: str, namespace: str = NAMESPACE) -> None:
        await self.send("DELETE", f"{pods_path(namespace)}/{name}?gracePeriodSeconds=0")


def pods_path(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"

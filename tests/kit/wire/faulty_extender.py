"""HTTP extenders of a simulated cluster: they respond in virtual time, with faults of services.

An extender refuses nodes by itself only while faults are on: after the last fault its responses must allow the pod. An extender
that binds uses the connection of its process, so that the binding is checked like any other.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import Mapping
from typing import Any

import orjson

from multisched.client.paths import pod_path
from multisched.framework.ports import ExtenderError, ExtenderSettings
from multisched.model.wire import Transport, TransportError
from tests.kit.wire.faults import Faults

DELAY_MAX_S = 0.03
UNREACHABLE, UNANSWERED, UNREADABLE, FAILED, INVALID_NODE = 0.05, 0.04, 0.04, 0.04, 0.03
"""Shares of requests: connection refused; response lost; invalid JSON; an error; a node that was not in the request."""
REFUSED_EVERY = 7
"""One node in this number is refused to a pod, for SPOILED_S."""
REFUSED_S = 5.0


class SimExtender:
    """Implements `ports.ExtenderClient`."""

    def __init__(self, settings: ExtenderSettings, rng: random.Random, faults: Faults, transport: Transport) -> None:
        self.settings = settings
        self._rng = rng
        self._faults = faults
        self._transport = transport

    async def post(self, verb: str, body: bytes, *, answer_bytes_max: int) -> bytes:
        """See `ExtenderClient`."""
        await asyncio.sleep(self._rng.uniform(0.0, DELAY_MAX_S))
        faults = self._faults
        if faults.strikes("extender unreachable", UNREACHABLE):
            raise ExtenderError(f'extender "{self.settings.url}" ({verb}): cannot be reached', was_sent=False)
        said = await self._said(verb, {key.lower(): value for key, value in orjson.loads(body).items()})
        if faults.strikes("extender unanswered", UNANSWERED):
            raise ExtenderError(f'extender "{self.settings.url}" ({verb}): no answer')
        if faults.strikes("extender unreadable", UNREADABLE):
            return b"<html>bad gateway</html>"
        return orjson.dumps(said)

    async def close(self) -> None:
        """Does nothing: no connection is open."""

    async def _said(self, verb: str, asked: Mapping[str, Any]) -> Any:
        settings = self.settings
        if verb == settings.bind_verb:
            return {"Error": await self._bind(asked)}
        if verb == settings.preempt_verb:
            return self._preempt(asked)
        names = asked["nodenames"]
        if names is None:
            names = [node["metadata"]["name"] for node in asked["nodes"]["items"]]
        return self._filter(asked, names) if verb == settings.filter_verb else self._prioritize(names)

    def _filter(self, asked: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
        if self._faults.strikes("extender unwilling", FAILED):
            return {"Error": "the extender is busy"}
        kept = [name for name in names if not self._refuses_node(asked["pod"], name)]
        left_out = [name for name in names if name not in kept]
        said: dict[str, Any] = {"FailedNodes": dict.fromkeys(left_out[::2], "is too hot")}
        said["FailedAndUnresolvableNodes"] = dict.fromkeys(left_out[1::2], "has no licence")
        if self._faults.strikes("extender astray", INVALID_NODE):
            if self._rng.random() < 0.5:
                return said | {"NodeNames": "all of them", "Nodes": 7}
            kept = [*kept, "node-of-another-cluster"]
        if asked["nodenames"] is not None:
            return said | {"NodeNames": kept}
        return said | {"Nodes": {"items": [{"metadata": {"name": name}} for name in kept]}}

    def _refuses_node(self, pod: Mapping[str, Any], node: str) -> bool:
        moment = int(asyncio.get_running_loop().time() / REFUSED_S)
        drawn = zlib.crc32(f"{pod['metadata']['uid']}/{node}/{moment}".encode())
        return self._faults.is_on and drawn % REFUSED_EVERY == 0

    def _prioritize(self, names: list[str]) -> list[dict[str, Any]]:
        if self._faults.strikes("extender astray", INVALID_NODE):
            return [{"Host": names[0], "Score": self._rng.choice((True, "10", 2**40))}]
        return [{"Host": name, "Score": zlib.crc32(name.encode()) % 11} for name in names]

    def _preempt(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Omits nodes on which most budgets would be violated, and no others, since the checkers would have to know these."""
        offered = asked["nodenametometavictims"] or asked["nodenametovictims"]
        uids = {
            node: {
                "Pods": [{"UID": pod.get("UID") or pod["metadata"]["uid"]} for pod in victims["Pods"]],
                "NumPDBViolations": victims["NumPDBViolations"],
            }
            for node, victims in offered.items()
        }
        if self._faults.strikes("extender astray", 4 * INVALID_NODE):
            node = next(iter(uids))
            nonsense: tuple[dict[str, Any], ...] = (
                {"node-of-another-cluster": uids[node]},
                {node: {"Pods": [{"UID": "nobody"}]}},
                {node: {"Pods": []}},
            )
            return {"NodeNameToMetaVictims": self._rng.choice(nonsense)}
        worst = max((one["NumPDBViolations"] for one in uids.values()), default=0)
        kept = {node: one for node, one in uids.items() if not worst or one["NumPDBViolations"] < worst} or uids
        return {"NodeNameToMetaVictims": kept}

    async def _bind(self, asked: Mapping[str, Any]) -> str:
        """Binds the pod. Returns the error; empty for none."""
        path = f"{pod_path(asked['podnamespace'], asked['podname'])}/binding"
        target = {"apiVersion": "v1", "kind": "Node", "name": asked["node"]}
        metadata = {"name": asked["podname"], "namespace": asked["podnamespace"], "uid": asked["poduid"]}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
        timeout_s = self.settings.timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._transport.request("POST", path, body=orjson.dumps(body), timeout_s=timeout_s)
        except (TimeoutError, TransportError) as error:
            raise ExtenderError(f'extender "{self.settings.url}" (bind): {error or "no answer"}') from error
        return "" if answer.status in (200, 201) else f"HTTP {answer.status}"

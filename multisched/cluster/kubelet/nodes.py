"""The nodes of the fake kubelets: readiness, Leases, heartbeats and the admitted pods of each.

Owns one NodeAccount and one heartbeat plan per node. Keeps nodes Ready (unless a stage says otherwise) and renews their
Leases. Called only by Kubelets.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from multisched.cluster.client.object_client import LEASES, NAMESPACES, NODES, ObjectClient, WallClock
from multisched.cluster.client.object_watch import ObjectWatch
from multisched.cluster.controllers.reconcile_queue import RESOLUTION_S, ReconcileQueue
from multisched.cluster.kubelet.admission import NodeAccount, amounts
from multisched.cluster.kubelet.stages import Condition, Meta, Stage, StagedObject, StageSet, choose
from multisched.cluster.kubelet.status import node_status
from multisched.model.api_time import micro_timestamp, timestamp
from multisched.model.wire import STRATEGIC_MERGE_PATCH

NODE_WRITES_AT_ONCE = 8
LEASE_NAMESPACE = "kube-node-lease"
LEASE_DURATION_S = 40
_NEVER = math.inf


class _Address(msgspec.Struct, frozen=True, gc=False):
    type: str = ""
    address: str = ""


class _NodeStatus(msgspec.Struct, frozen=True, gc=False):
    allocatable: dict[str, str | int | float] | None = None
    conditions: tuple[Condition, ...] | None = None
    addresses: tuple[_Address, ...] | None = None


class _KubeletNode(msgspec.Struct, frozen=True, gc=False):
    metadata: Meta
    status: _NodeStatus = _NodeStatus()

    @property
    def readiness(self) -> str:
        """Returns True, False, Unknown, or an empty string before a kubelet has written the condition."""
        return next((c.status for c in self.status.conditions or () if c.type == "Ready"), "")


_NODE = msgspec.json.Decoder(_KubeletNode)


@dataclass(slots=True)
class _NodeRun:
    """One node and its next actions. Times are the event loop's."""

    node: _KubeletNode
    address: str
    since: str
    """Time of the Ready condition's last transition."""
    is_ready: bool = True
    reason: str = ""
    message: str = ""
    lease_due_s: float = _NEVER
    status_due_s: float = _NEVER
    stage_due_s: float = _NEVER
    matching: tuple[Stage, ...] = ()
    stage: Stage | None = None


class NodeKeeper:
    """Watches the nodes that a label selector matches, and writes their status and Leases."""

    def __init__(
        self,
        client: ObjectClient,
        *,
        clock: WallClock,
        rng: random.Random,
        stages: StageSet,
        node_selector: str,
        lease_interval_s: float,
        status_interval_s: float,
        on_node: Callable[[Meta, bool], None],
    ) -> None:
        """`on_node`: called with the metadata of each new or changed node, and whether the node is new."""
        self.accounts: dict[str, NodeAccount] = {}
        self.lease_renewals = 0
        self.refused_writes = 0
        self._client = client
        self._clock = clock
        self._rng = rng
        self._stages = stages
        self._lease_interval_s = lease_interval_s
        self._status_interval_s = status_interval_s
        self._on_node = on_node
        self._runs: dict[str, _NodeRun] = {}
        self._number = 0
        self._queue = ReconcileQueue("kubelet nodes", self._advance, rng=rng, workers=NODE_WRITES_AT_ONCE)
        query = {"labelSelector": node_selector} if node_selector else None
        self._watch = ObjectWatch(client, NODES.path(), self, rng=rng, query=query)
        self.synced = self._watch.synced

    async def run(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch.run(), name="kubelet node watch")
            group.create_task(self._queue.run(), name="kubelet heartbeats")

    def account(self, name: str) -> NodeAccount | None:
        """Returns the account of an existing node that the selector matches; else None."""
        return self.accounts.get(name) if name in self._runs else None

    def meta(self, name: str) -> Meta | None:
        """Returns the metadata of a known node."""
        run = self._runs.get(name)
        return run.node.metadata if run is not None else None

    def release(self, name: str, uid: str) -> None:
        """Stops counting a pod; removes the account of a deleted node with its last pod."""
        account = self.accounts.get(name)
        if account is not None:
            account.release(uid)
            if not account.pods and name not in self._runs:
                del self.accounts[name]

    def address(self, name: str) -> str:
        """Returns the node's internal address."""
        run = self._runs.get(name)
        return run.address if run is not None else ""

    async def refresh(self, name: str) -> None:
        """Reads one node from the server. Raises RefusedError or TransportError unless the server returns the node or 404."""
        answer = (await self._client.get(NODES, "", name)).expect(404)
        if answer.is_success and name in self._runs:
            self._take(_NODE.decode(answer.body))

    def replace(self, items: list[msgspec.Raw]) -> None:
        nodes = [_NODE.decode(item) for item in items]
        present = {node.metadata.name for node in nodes}
        for name in [name for name in self._runs if name not in present]:
            self._forget(name)
        for node in nodes:
            self._take(node)

    def put(self, item: msgspec.Raw) -> None:
        self._take(_NODE.decode(item))

    def remove(self, item: msgspec.Raw) -> None:
        self._forget(_NODE.decode(item).metadata.name)

    def _forget(self, name: str) -> None:
        """Removes a deleted node. Keeps counting its pods, which may still exist when a node of the same name is created."""
        self._runs.pop(name, None)
        account = self.accounts.get(name)
        if account is not None and not account.pods:
            del self.accounts[name]

    def _take(self, node: _KubeletNode) -> None:
        name = node.metadata.name
        run = self._runs.get(name)
        is_new = run is None or run.node.metadata.uid != node.metadata.uid
        if run is None or is_new:
            run = self._runs[name] = self._begin(node)
            self.accounts.setdefault(name, NodeAccount())
        run.node = node
        account = self.accounts[name]
        account.allocatable = amounts(node.status.allocatable)
        if node.readiness not in ("True", "False") or (is_new and node.readiness == "False"):
            run.status_due_s = 0.0
            self._queue.add(name)
        self._plan(name, run)
        self._on_node(node.metadata, is_new)

    def _begin(self, node: _KubeletNode) -> _NodeRun:
        """Starts a node. The time of its first heartbeats is random, so that thousands of nodes do not send them together."""
        now = asyncio.get_running_loop().time()
        self._number += 1
        known = next((a.address for a in node.status.addresses or () if a.type == "InternalIP"), "")
        run = _NodeRun(
            node,
            known or f"10.{self._number >> 16 & 63}.{self._number >> 8 & 255}.{self._number & 255}",
            timestamp(self._clock.now()),
        )
        if self._lease_interval_s:
            run.lease_due_s = now + self._rng.random() * min(self._lease_interval_s, 1.0)
        if self._status_interval_s:
            run.status_due_s = now + self._rng.random() * self._status_interval_s
        self._queue.add(node.metadata.name)
        return run

    def _plan(self, name: str, run: _NodeRun) -> None:
        if not self._stages.nodes:
            return
        subject = StagedObject(metadata=run.node.metadata, phase="", conditions=run.node.status.conditions or ())
        matching = self._stages.matching(subject, kind="Node")
        if matching == run.matching and run.stage is not None:
            return
        run.matching, run.stage, run.stage_due_s = matching, choose(matching, self._rng), _NEVER
        if run.stage is not None:
            delay_s = run.stage.draw_delay_s(run.node.metadata, self._rng)
            run.stage_due_s = asyncio.get_running_loop().time() + delay_s
            self._queue.add_after(name, delay_s)

    async def _advance(self, name: str) -> float | None:
        """Does the actions that are due for one node; returns the seconds until the next one."""
        run = self._runs.get(name)
        if run is None:
            return None
        now = asyncio.get_running_loop().time() + RESOLUTION_S
        if run.stage is not None and run.stage_due_s <= now:
            self._play(run, run.stage)
        if run.status_due_s <= now:
            await self._write_status(name, run)
            run.status_due_s = now + self._jittered(self._status_interval_s)
        if run.lease_due_s <= now:
            await self._renew_lease(name, run)
            run.lease_due_s = now + self._jittered(self._lease_interval_s)
        if self._runs.get(name) is not run:
            return None
        due_s = min(run.lease_due_s, run.status_due_s, run.stage_due_s)
        return None if due_s == _NEVER else max(0.0, due_s - asyncio.get_running_loop().time())

    def _jittered(self, interval_s: float) -> float:
        return interval_s * (0.9 + self._rng.random() / 10) if interval_s else _NEVER

    def _play(self, run: _NodeRun, stage: Stage) -> None:
        run.stage, run.stage_due_s, run.matching = None, _NEVER, ()
        if stage.next.ready is not None:
            run.is_ready, run.reason, run.message = stage.next.ready, stage.next.reason, stage.next.message
            run.since = timestamp(self._clock.now())
            run.status_due_s = 0.0

    async def _write_status(self, name: str, run: _NodeRun) -> None:
        body = node_status(
            name=name,
            address=run.address,
            ready=run.is_ready,
            reason=run.reason,
            message=run.message,
            now=timestamp(self._clock.now()),
            transition=run.since,
            allocatable=bool(run.node.status.allocatable),
        )
        answer = await self._client.patch(
            NODES, "", name, body=body, subresource="status", content_type=STRATEGIC_MERGE_PATCH
        )
        answer.expect(404)

    async def _renew_lease(self, name: str, run: _NodeRun) -> None:
        renewed = {"spec": {"renewTime": micro_timestamp(self._clock.now())}}
        answer = await self._client.patch(LEASES, LEASE_NAMESPACE, name, body=renewed)
        if answer.status == 404:
            answer = await self._client.create(LEASES, LEASE_NAMESPACE, self._lease(name, run))
            if answer.status == 404:
                await self._client.create(
                    NAMESPACES, "", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": LEASE_NAMESPACE}}
                )
                answer = await self._client.create(LEASES, LEASE_NAMESPACE, self._lease(name, run))
        answer.expect(409)
        self.lease_renewals += 1

    def _lease(self, name: str, run: _NodeRun) -> dict[str, object]:
        owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": run.node.metadata.uid}
        return {
            "apiVersion": LEASES.api_version,
            "kind": "Lease",
            "metadata": {"name": name, "namespace": LEASE_NAMESPACE, "ownerReferences": [owner]},
            "spec": {
                "holderIdentity": name,
                "leaseDurationSeconds": LEASE_DURATION_S,
                "renewTime": micro_timestamp(self._clock.now()),
            },
        }

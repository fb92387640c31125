"""How GPU device plugins find the pod whose containers they serve: the rule of each sharing system, including its wrong guesses.

The kubelet asks a plugin for a number of devices and does not name the pod. Each rule reads the API server as its plugin does, guesses
the pod and writes to it. No code of the scheduler is used, so that tests can compare the two.

Other systems need no rule. The kubelet itself chooses the devices of whole GPUs and counted units. If a fraction is requested by an
annotation, or Koordinator's resources are used, the containers or the runtime hook read the cards from the pod.
Sources: HAMi, pkg/util/util.go and pkg/device-plugin/…/plugin; volcano-vgpu-device-plugin, pkg/util/util.go;
gpushare-device-plugin, pkg/gpu/nvidia/allocate.go.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol
from urllib.parse import quote

from multisched.cluster.client.object_client import NODES, PODS, Document, ObjectClient
from multisched.cluster.kubelet.admission import Amounts, KubeletPod, amounts
from multisched.cluster.kubelet.stages import Meta

HAMI_LOCK: Final = "hami.io/mutex.lock"
HAMI_REGISTER, VOLCANO_REGISTER = "hami.io/node-nvidia-register", "volcano.sh/node-vgpu-register"
HAMI_GPU, VOLCANO_NUMBER, GPUSHARE_MEMORY = "nvidia.com/gpu", "volcano.sh/vgpu-number", "aliyun.com/gpu-mem"
DONE_TIME: Final = str(2**64 - 1)
"""`vgpu-time` of a pod that Volcano's plugin has served: the largest time, so that the pod is chosen last."""
LOCK_WRITES_MAX: Final = 5


class AllocateError(Exception):
    """Allocate returns an error, for which the kubelet fails the pod."""


@dataclass(frozen=True, slots=True)
class Slice:
    """The part of one card that a container gets."""

    card: str
    """Id or index."""
    memory: int
    """In the unit of the node's plugin."""
    cores: int = 0


@dataclass(frozen=True, slots=True)
class Pick:
    """The pod that a plugin guessed, and the cards that it allocates to the container."""

    namespace: str
    name: str
    uid: str
    slices: tuple[Slice, ...]
    left: str = ""
    """The new text of the pod's annotation: the cards of its other containers."""
    error: str = ""
    """Why Allocate fails; empty if it succeeds."""


@dataclass(frozen=True, slots=True)
class PluginPorts:
    """The API client, node and time that a rule uses."""

    client: ObjectClient
    node: str
    now: datetime

    async def pods(self, *, everywhere: bool = False) -> list[Document]:
        """Returns the pods of the node, or of the cluster, in the API server's order."""
        query = "" if everywhere else f"?fieldSelector={quote(f'spec.nodeName={self.node}')}"
        answer = (await self.client.call("GET", PODS.path() + query)).expect()
        return list(answer.document["items"])

    async def pod(self, namespace: str, name: str) -> Document | None:
        answer = (await self.client.get(PODS, namespace, name)).expect(404)
        return answer.document if answer.is_success else None

    async def annotate(self, pick: Pick, annotations: Document) -> None:
        """Patches the picked pod; does nothing if it no longer exists."""
        body = {"metadata": {"uid": pick.uid, "annotations": annotations}}
        (await self.client.patch(PODS, pick.namespace, pick.name, body=body)).expect(404, 409)


class PluginRule(Protocol):
    """The rule of one device plugin."""

    name: str
    resource: str
    """The extended resource by which the kubelet counts its devices."""

    def serves(self, node: Meta, allocatable: Amounts) -> bool:
        """Reports whether the node runs this plugin."""
        ...

    async def find(self, ports: PluginPorts, count: int) -> Pick:
        """Chooses a pod for a container that asks for `count` devices. Raises AllocateError if there is none."""
        ...

    async def settle(self, ports: PluginPorts, pick: Pick) -> None:
        """Writes the result to the picked pod. Raises AllocateError after a failure."""
        ...


class HamiRule:
    """Picks the pod that the node's lock names; without a lock, the first listed Pending pod whose bind is in progress or done."""

    name = "hami"
    resource = HAMI_GPU

    def serves(self, node: Meta, allocatable: Amounts) -> bool:
        return HAMI_REGISTER in (node.annotations or {})

    async def find(self, ports: PluginPorts, count: int) -> Pick:
        pod = await self._named_by_lock(ports) or await self._first_listed(ports)
        if pod is None:
            raise AllocateError(f"no binding pod found on node {ports.node}")
        return _pick(pod, _annotations(pod).get("hami.io/vgpu-devices-to-allocate", ""), count)

    async def _named_by_lock(self, ports: PluginPorts) -> Document | None:
        parts = await _lock_parts(ports)
        if len(parts) == 1:
            return None
        pod = await ports.pod(parts[1], parts[2])
        if pod is None:
            raise AllocateError(f'pods "{parts[2]}" not found')
        return pod

    async def _first_listed(self, ports: PluginPorts) -> Document | None:
        for pod in await ports.pods():
            found = _annotations(pod)
            is_bound = "hami.io/bind-time" in found and found.get("hami.io/vgpu-node") == ports.node
            if is_bound and _is_pending(pod) and found.get("hami.io/bind-phase") in ("allocating", "success"):
                return pod
        return None

    async def settle(self, ports: PluginPorts, pick: Pick) -> None:
        if pick.error:
            await ports.annotate(pick, {"hami.io/bind-phase": "failed"})
            await _release_lock(ports, pick)
            raise AllocateError(pick.error)
        await ports.annotate(pick, {"hami.io/vgpu-devices-to-allocate": pick.left})
        if not any(_devices(part) for part in pick.left.split(";")):
            await ports.annotate(pick, {"hami.io/bind-phase": "success"})
            await _release_lock(ports, pick)


class VolcanoRule:
    """Picks, of all pods assigned to the node with this number of devices left to allocate, the one assigned first."""

    name = "volcano-vgpu"
    resource = VOLCANO_NUMBER

    def serves(self, node: Meta, allocatable: Amounts) -> bool:
        return VOLCANO_REGISTER in (node.annotations or {})

    async def find(self, ports: PluginPorts, count: int) -> Pick:
        matching = []
        for pod in await ports.pods(everywhere=True):
            found = _annotations(pod)
            left = found.get("volcano.sh/devices-to-allocate", "")
            number = sum(len(_devices(part)) for part in left.split(";"))
            if found.get("volcano.sh/vgpu-node") == ports.node and number == count:
                matching.append((_integer(found.get("volcano.sh/vgpu-time", "")), left, pod))
        if not matching:
            raise AllocateError("cannot get valid pod")
        _, left, pod = min(matching, key=lambda one: one[0])
        return _pick(pod, left, count)

    async def settle(self, ports: PluginPorts, pick: Pick) -> None:
        is_done = not any(_devices(part) for part in pick.left.split(";"))
        if not pick.error:
            await ports.annotate(pick, {"volcano.sh/devices-to-allocate": pick.left})
        if pick.error or is_done:
            phase = "failed" if pick.error else "success"
            await ports.annotate(pick, {"volcano.sh/bind-phase": phase, "volcano.sh/vgpu-time": DONE_TIME})
        if pick.error:
            raise AllocateError(pick.error)


class GpushareRule:
    """Picks, of the node's Pending pods that are assumed, not assigned and request this total, the one assumed first.

    Several cards per pod work as ACK documents them; the open-source plugin supports only one card.
    """

    name = "gpushare"
    resource = GPUSHARE_MEMORY

    def serves(self, node: Meta, allocatable: Amounts) -> bool:
        return allocatable.get(GPUSHARE_MEMORY, 0) > 0

    async def find(self, ports: PluginPorts, count: int) -> Pick:
        matching = []
        for pod in await ports.pods():
            found = _annotations(pod)
            is_assumed = found.get("ALIYUN_COM_GPU_MEM_ASSIGNED") == "false" and _is_pending(pod)
            assumed_at = found.get("ALIYUN_COM_GPU_MEM_ASSUME_TIME", "")
            if is_assumed and assumed_at and _total(pod, GPUSHARE_MEMORY) == count:
                matching.append((_integer(assumed_at), pod))
        if not matching:
            raise AllocateError(f"invalid allocation request: request GPU memory {count} can't be satisfied")
        pod = min(matching, key=lambda one: one[0])[1]
        slices = _assumed_slices(_annotations(pod), count)
        return _picked(pod, slices, error="" if slices else f"no card index on pod {pod['metadata']['name']}")

    async def settle(self, ports: PluginPorts, pick: Pick) -> None:
        if pick.error:
            raise AllocateError(pick.error)
        now = str(int(ports.now.timestamp() * 1_000_000) * 1_000)
        answer = {"ALIYUN_COM_GPU_MEM_ASSIGNED": "true", "ALIYUN_COM_GPU_MEM_ASSUME_TIME": now}
        await ports.annotate(pick, answer)


RULES: Final[tuple[PluginRule, ...]] = (HamiRule(), VolcanoRule(), GpushareRule())
"""The rules, in the order in which `rule_of` tries them."""


def rule_of(node: Meta, allocatable: Amounts) -> PluginRule | None:
    """Returns the rule of the node's plugin; None if it has no such plugin."""
    return next((rule for rule in RULES if rule.serves(node, allocatable)), None)


def asked_of(pod: KubeletPod, resource: str) -> list[tuple[str, int]]:
    """Returns each container that requests devices, with their number, in the order in which the kubelet allocates them."""
    containers = [*(pod.spec.initContainers or ()), *pod.spec.containers]
    found = [(one.name, amounts(one.resources.requests if one.resources else None)) for one in containers]
    return [(name, requests[resource]) for name, requests in found if requests.get(resource, 0) > 0]


def _pick(pod: Document, text: str, count: int) -> Pick:
    """Picks the cards of the first container with devices in the text. It is an error if there is none, or if it has another number."""
    parts = text.split(";")
    position = next((place for place, part in enumerate(parts) if _devices(part)), None)
    if position is None:
        return _picked(pod, (), error="device request not found")
    devices = _devices(parts[position])
    if len(devices) != count:
        return _picked(pod, (), error="device number not matched")
    parts[position] = ""
    slices = tuple(Slice(one[0], _integer(one[2]), _integer(one[3])) for one in devices)
    return _picked(pod, slices, left=";".join(parts))


def _picked(pod: Document, slices: tuple[Slice, ...], *, left: str = "", error: str = "") -> Pick:
    meta = pod["metadata"]
    return Pick(meta["namespace"], meta["name"], meta["uid"], slices, left, error)


def _assumed_slices(found: Document, count: int) -> tuple[Slice, ...]:
    """Returns the cards in the annotations of a gpushare pod; none if the annotations are missing or unreadable."""
    index = found.get("ALIYUN_COM_GPU_MEM_IDX", "")
    if index.isdigit():
        return (Slice(index, count),)
    try:
        containers = json.loads(found.get("scheduler.framework.gpushare.allocation") or "{}")
        return tuple(Slice(card, int(amount)) for cards in containers.values() for card, amount in cards.items())
    except (ValueError, AttributeError, TypeError):
        return ()


def _devices(text: str) -> list[list[str]]:
    """Returns the devices `id,vendor,memory,cores` of one container."""
    return [part.split(",") for part in text.split(":") if part.count(",") == 3]


def _annotations(pod: Document) -> dict[str, str]:
    return pod["metadata"].get("annotations") or {}


def _is_pending(pod: Document) -> bool:
    return bool((pod.get("status") or {}).get("phase", "Pending") == "Pending")


def _total(pod: Document, resource: str) -> int:
    containers: Iterable[Document] = pod["spec"].get("containers") or ()
    return sum(amounts((one.get("resources") or {}).get("limits")).get(resource, 0) for one in containers)


def _integer(text: str) -> int:
    return int(text) if text.isdigit() else 2**64 - 1


async def _lock_parts(ports: PluginPorts) -> Sequence[str]:
    """Returns [time, namespace, pod] of the node's lock; one element if the lock names no pod or there is none. Raises AllocateError."""
    node = (await ports.client.get(NODES, "", ports.node)).expect().document
    text = _annotations(node).get(HAMI_LOCK, "")
    parts = text.split(",")
    try:
        if text:
            datetime.fromisoformat(parts[0])
        if len(parts) in (1, 3):
            return parts
    except ValueError:
        pass
    raise AllocateError(f"malformed lock annotation {text!r} of node {ports.node}")


async def _release_lock(ports: PluginPorts, pick: Pick) -> None:
    """Removes the node's lock if it names the picked pod, as a compare-and-set."""
    for _ in range(LOCK_WRITES_MAX):
        answer = (await ports.client.get(NODES, "", ports.node)).expect(404)
        if not answer.is_success:
            return
        meta = answer.document["metadata"]
        if not str((meta.get("annotations") or {}).get(HAMI_LOCK, "")).endswith(f",{pick.namespace},{pick.name}"):
            return
        body = {"metadata": {"resourceVersion": meta["resourceVersion"], "annotations": {HAMI_LOCK: None}}}
        written = (await ports.client.patch(NODES, "", ports.node, body=body)).expect(404, 409)
        if written.status != 409:
            return

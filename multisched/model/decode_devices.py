"""Decodes descriptions of nodes' devices: Koordinator's Device, and whose devices a ResourceSlice publishes.

See decode_objects.py. Source: koordinator apis/scheduling/v1alpha1/device_types.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from multisched.model.cluster_objects import NodeDevice
from multisched.model.decode_metadata import WireMetadata
from multisched.model.decode_selectors import Wire
from multisched.model.quantity import QuantityError, parse_nano, value_of_nano

DEVICES_MAX: Final = 256
"""Devices that are read of one object."""
AMOUNT_MAX: Final = 1 << 44
GPU_TYPE: Final = "gpu"
KOORDINATOR_CORES: Final = "koordinator.sh/gpu-core"
KOORDINATOR_MEMORY: Final = "koordinator.sh/gpu-memory"


class _Topology(Wire):
    node_id: int = msgspec.field(default=-1, name="nodeID")
    pcie_id: str = msgspec.field(default="", name="pcieID")


class _Device(Wire):
    type: str = ""
    id: str = ""
    minor: int | None = None
    health: bool = False
    resources: dict[str, str | int] | None = None
    topology: _Topology | None = None
    labels: dict[str, str] | None = None


class _Spec(Wire):
    devices: list[_Device] | None = None


class WireDevice(Wire):
    metadata: WireMetadata
    spec: _Spec = msgspec.field(default_factory=_Spec)


class _SliceSpec(Wire):
    driver: str = ""
    node_name: str = msgspec.field(default="", name="nodeName")
    devices: list[msgspec.Raw] | None = None


class WireSlice(Wire):
    """The fields that all versions of resource.k8s.io have in common."""

    metadata: WireMetadata
    spec: _SliceSpec = msgspec.field(default_factory=_SliceSpec)


def node_devices(wire: WireDevice) -> tuple[tuple[NodeDevice, ...], tuple[str, ...]]:
    """Returns the GPUs by minor, and field and problem of each GPU that is left out."""
    found: dict[int, NodeDevice] = {}
    problems: list[str] = []
    devices = wire.spec.devices or []
    for place, device in enumerate(devices[:DEVICES_MAX]):
        if device.type != GPU_TYPE:
            continue
        path = f"spec.devices[{place}]"
        minor = device.minor
        memory, cores = _amount(device.resources, KOORDINATOR_MEMORY), _amount(device.resources, KOORDINATOR_CORES)
        if minor is None or not 0 <= minor < DEVICES_MAX:
            problems.append(f"{path}.minor: {minor} is not within 0..{DEVICES_MAX - 1}")
        elif minor in found:
            problems.append(f"{path}.minor: {minor} appears twice")
        elif memory is None or not 1 <= memory <= AMOUNT_MAX:
            problems.append(f"{path}.resources[{KOORDINATOR_MEMORY}]: missing, or not within 1..{AMOUNT_MAX} bytes")
        else:
            topology = device.topology or _Topology()
            cores = 100 if cores is None else max(0, min(cores, AMOUNT_MAX))
            found[minor] = NodeDevice(device.id[:128], minor, memory, cores, topology.node_id, is_healthy=device.health)
    if len(devices) > DEVICES_MAX:
        problems.append(f"spec.devices: {len(devices)} devices, more than {DEVICES_MAX}; the others are not used")
    return tuple(found[minor] for minor in sorted(found)), tuple(problems)


def _amount(resources: Mapping[str, str | int] | None, name: str) -> int | None:
    """Returns a quantity in whole units; None if it is missing or unreadable."""
    try:
        return value_of_nano(parse_nano((resources or {})[name]))
    except (KeyError, QuantityError):
        return None

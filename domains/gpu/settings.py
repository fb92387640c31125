"""The args of GpuShare: the placement policy and, for `fragmentation`, the typical pods. Every error names the field and the fix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from domains.gpu.cards import CARD_MILLI, CARDS_MAX
from domains.gpu.fragmentation import Fragmentation
from domains.gpu.policies import SIMPLE_POLICIES
from domains.gpu.typical_pods import PodShape, Typical, TypicalPod
from multisched.framework.plugin_args import Fields
from multisched.model.quantity import QuantityError, parse_milli

POLICIES: Final = (Fragmentation.name, *SIMPLE_POLICIES)
DEFAULT_POLICY: Final = Fragmentation.name
TYPICAL_LISTED_MAX: Final = 1024
CPU_MAX_MILLI: Final = 10**9
SHARE_MAX: Final = 1e9
_POD_FIELDS: Final = ("cpu", "gpuMilli", "gpuCount", "models", "share")


class GpuSettings(msgspec.Struct, frozen=True):
    """All args of GpuShare, checked."""

    policy: str = DEFAULT_POLICY
    typical: Typical | None = None
    """None: learned."""


def gpu_settings(args: Mapping[str, Any], path: str = "args") -> GpuSettings:
    """Reads the args. Raises PluginArgsError."""
    with Fields(args, path, ("policy", "typicalPods")) as fields:
        policy = fields.choice("policy", DEFAULT_POLICY, POLICIES)
        pods = [_typical(one) for one in fields.entries("typicalPods", _POD_FIELDS, TYPICAL_LISTED_MAX)]
        if fields.has("typicalPods") and not pods:
            fields.refuse("typicalPods", "is empty; list typical pods, or leave it out so that they are learned")
        if fields.has("typicalPods") and policy != Fragmentation.name and not fields.is_refused("policy"):
            fields.refuse("typicalPods", f"policy {policy} does not use it; remove it, or write policy: fragmentation")
    total = sum(one.share for one in pods)
    typical = tuple(TypicalPod(one.shape, one.share / total) for one in pods) if pods else None
    return GpuSettings(policy, typical)


def _typical(fields: Fields) -> TypicalPod:
    milli = fields.integer("gpuMilli", 0, 0, CARD_MILLI)
    count = fields.integer("gpuCount", 1 if milli else 0, 0, CARDS_MAX)
    if bool(milli) != bool(count):
        fields.refuse(
            "gpuCount", f"{count} cards with {milli} thousandths of each; write both, or none for a pod without GPUs"
        )
    shape = PodShape(_cpu_milli(fields), milli, count, fields.names("models", CARDS_MAX))
    return TypicalPod(shape, fields.above_zero("share", 1.0, SHARE_MAX))


def _cpu_milli(fields: Fields) -> int:
    value = fields.value("cpu")
    if value is None:
        return 0
    try:
        milli = parse_milli(value)
    except QuantityError as error:
        fields.refuse("cpu", str(error))
        return 0
    if not 0 <= milli <= CPU_MAX_MILLI:
        fields.refuse("cpu", f"{value} is not within 0..{CPU_MAX_MILLI // 1000}")
        return 0
    return milli

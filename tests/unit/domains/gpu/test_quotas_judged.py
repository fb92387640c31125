"""The judge of quotas counts the same thousandths of GPUs for a pod as the device ledger, in every dialect."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from domains.gpu.dialects import hami, koordinator, volcano
from domains.gpu.gpu_ledger import GpuLedger
from multisched.model.objects import Pod
from multisched.testing.builders import make_pod
from multisched.verify.quotas import quota_requests

GPU = "nvidia.com/gpu"
OWN, FGD, KOO = "multisched.io/gpu-", "alibabacloud.com/gpu-", "koordinator.sh/"
ON_CARD = json.dumps({"gpu": [{"minor": 0, "resources": {koordinator.RATIO: "50"}}]})


def pod_with(node: str = "", requests: dict[str, Any] | None = None, **annotations: str) -> Pod:
    """`own_…`, `fgd_…`: their annotations; others by name with `_` for `-`."""
    prefixes = {"own_": OWN, "fgd_": FGD}
    named = {}
    for key, text in annotations.items():
        prefix = next((prefix for prefix in prefixes if key.startswith(prefix)), "")
        named[prefixes.get(prefix, "") + key.removeprefix(prefix).replace("_", "-")] = text
    return make_pod("p", node=node, extra=requests or {}, annotations=named)


def with_annotations(node: str, requests: dict[str, Any], annotations: dict[str, str]) -> Pod:
    return make_pod("p", node=node, extra=requests, annotations=annotations)


def judged(pod: Pod, *, is_ours: bool = True) -> int:
    """Thousandths of nvidia.com/gpu that the judge counts besides the pod's requests."""
    found = quota_requests(pod.requests, pod.annotations, node=pod.node, is_ours=is_ours)
    return found.get(GPU, 0) - 1000 * pod.requests.get(GPU, 0)


def counted(pod: Pod) -> int:
    return GpuLedger().device_demand(pod).get(GPU, 0)


@pytest.mark.parametrize(
    ("pod", "milli"),
    [
        (pod_with(own_milli="250", own_count="2"), 500),
        (pod_with("n", own_devices="0,3", own_allocated_milli="250"), 500),
        (pod_with("n", own_devices="0", own_allocated_mib="2000"), 1000),
        (pod_with(fgd_milli="460"), 460),
        (pod_with(fgd_count="2"), 2000),
        (pod_with(fgd_milli="0"), 0),
        (pod_with("n", fgd_index="0-2", fgd_milli="460"), 920),
        (pod_with("n", fgd_index="0", fgd_milli="460", own_allocated_milli="500"), 500),
        (pod_with(gpu_fraction="0.25", gpu_fraction_num_devices="2"), 500),
        (pod_with(gpu_fraction="2.5e-1"), 250),
        (pod_with(gpu_memory="20000"), 1000),
        (pod_with(gpu_fraction="1"), 0),
        (pod_with(gpu_fraction="0.5", gpu_memory="1"), 0),
        (pod_with(requests={KOO + "gpu": 200}), 2000),
        (pod_with(requests={KOO + "gpu-core": 30, KOO + "gpu-memory-ratio": 50}), 500),
        (pod_with(requests={KOO + "gpu-memory": 1 << 30}), 1000),
        (pod_with(requests={KOO + "gpu.shared": 2, KOO + "gpu-memory": 1 << 30}), 2000),
        (pod_with(requests={KOO + "gpu": 150}), 0),
        (pod_with(requests={KOO + "gpu": 50, GPU: 1}), 0),
        (with_annotations("", {KOO + "gpu": 50}, {koordinator.JOINT: "{}"}), 0),
        (with_annotations("n", {KOO + "gpu": 50}, {koordinator.ALLOCATED: ON_CARD}), 500),
        (with_annotations("n", {KOO + "gpu": 50}, {}), 0),
        (pod_with(own_milli="250", gpu_fraction="0.5"), 0),
        (pod_with(requests={"volcano.sh/vgpu-number": 1}, own_milli="250"), 0),
        (pod_with(requests={"aliyun.com/gpu-mem": 3}), 0),
        (pod_with(requests={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000}), 0),
        (with_annotations("n", {GPU: 1}, {hami.ALLOCATED: "GPU-0,NVIDIA,1,1:;", hami.NODE: "n"}), 0),
    ],
)
def test_judge_and_ledger_count_a_pod_alike(pod: Pod, milli: int) -> None:
    assert (judged(pod), counted(pod)) == (milli, milli)


def test_annotations_of_a_strangers_pod_count_nothing_except_koordinators() -> None:
    own, fgd = pod_with("n", own_devices="0"), pod_with("n", fgd_index="0")
    koo = with_annotations("n", {KOO + "gpu": 50}, {koordinator.ALLOCATED: ON_CARD})

    assert [judged(pod, is_ours=False) for pod in (own, fgd, koo)] == [0, 0, 500]
    ledger = GpuLedger(served=frozenset({"another"}))
    assert [ledger.device_demand(pod).get(GPU, 0) for pod in (own, fgd, koo)] == [0, 0, 500]


TEXTS = {
    OWN + "milli": ("250", "1000", "1001", "0", "x"),
    OWN + "count": ("2", "256", "257", ""),
    OWN + "devices": ("0", "0,3", "0,0", "a", ""),
    OWN + "allocated-milli": ("250", "0"),
    OWN + "allocated-mib": ("2000", "x"),
    FGD + "milli": ("460", "1001", ""),
    FGD + "count": ("2", "0"),
    FGD + "index": ("0-2", "1", "x"),
    "gpu-fraction": ("0.5", ".125", "0.3333", "1", "nan", "1/2"),
    "gpu-memory": ("2000", "0", "x"),
    "gpu-fraction-num-devices": ("2", "x"),
    koordinator.ALLOCATED: (ON_CARD, "{"),
    koordinator.HINT: (
        '{"gpu":{"requiredTopologyScope":"NUMANode"}}',
        '{"gpu":{"requiredTopologyScope":"PCIe"}}',
        '{"gpu":{"selector":{}}}',
        "[",
        "{}",
    ),
    koordinator.PARTITION: ("{}",),
    hami.USE_TYPE: ("A100",),
    hami.ALLOCATED: ("GPU-0,NVIDIA,1,1:;", "x"),
    hami.NODE: ("n", "other"),
    volcano.ALLOCATED: ("GPU-0,NVIDIA,1,1:",),
    volcano.NODE: ("n", "other"),
}
AMOUNTS = {
    GPU: (1, 2),
    "amd.com/gpu": (1,),
    "nvidia.com/gpumem": (3000,),
    "nvidia.com/mig-1g.5gb": (1,),
    "volcano.sh/vgpu-number": (1,),
    "aliyun.com/gpu-mem": (8,),
    "aliyun.com/gpu-core.percentage": (50,),
    KOO + "gpu": (50, 150, 200),
    KOO + "gpu-core": (50, 101, 200),
    KOO + "gpu-memory": (1 << 30, (1 << 30) + 1, 1 << 50),
    KOO + "gpu-memory-ratio": (50, 150, 200),
    KOO + "gpu.shared": (1, 2, 300),
}


def test_judge_and_ledger_count_random_pods_alike() -> None:
    rng = random.Random(42)
    for _ in range(5_000):
        texts = {key: rng.choice(TEXTS[key]) for key in rng.sample(sorted(TEXTS), rng.choice((0, 1, 1, 2, 3)))}
        amounts = {key: rng.choice(AMOUNTS[key]) for key in rng.sample(sorted(AMOUNTS), rng.choice((0, 0, 1, 2, 3)))}
        pod = with_annotations(rng.choice(("", "n")), amounts, texts)

        assert judged(pod) == counted(pod), (pod.node, amounts, texts)

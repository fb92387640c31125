"""The rule `devices` in each sharing system: an overcommitted card, and a legal one that is as full as possible."""

from __future__ import annotations

import json
from typing import Any

import pytest

from multisched.verify import Domain
from tests.unit.verify.clusters import GPU, Told, certain, found, make_node, make_pod, possible, problems

HAMI_JSON = json.dumps(
    [
        {"id": "GPU-a", "count": 3, "devmem": 8000, "devcore": 100, "type": "T4", "health": True},
        {"id": "GPU-b", "index": 1, "count": 3, "devmem": 8000, "devcore": 100, "type": "T4"},
    ]
)
HAMI_TEXT = "GPU-a,3,8000,100,NVIDIA-T4,0,true:GPU-b,3,8000,100,NVIDIA-T4,0,true:"
VOLCANO_TEXT = "GPU-a,3,8000,NVIDIA-T4,true,hami-core:GPU-b,3,8000,NVIDIA-T4,true,hami-core:"


def node(
    annotations: dict[str, str] | None = None, labels: dict[str, str] | None = None, more: dict[str, str] | None = None
) -> Told:
    kind, document = make_node("n1", labels=labels, more={"pods": "100", **(more or {})})
    document["metadata"]["annotations"] = annotations or {}
    return kind, document


def hami(text: str = HAMI_JSON) -> Told:
    return node({"hami.io/node-nvidia-register": text}, more={GPU: "6"})


def volcano() -> Told:
    return node({"volcano.sh/node-vgpu-register": VOLCANO_TEXT}, more={"volcano.sh/vgpu-number": "6"})


def gpushare(count: str = "2") -> Told:
    return node(
        more={"aliyun.com/gpu-mem": "32", "aliyun.com/gpu-count": count, "aliyun.com/gpu-core.percentage": "200"}
    )


def whole(labels: dict[str, str] | None = None, name: str = GPU) -> Told:
    return node(None, labels, more={name: "2"})


def device(*memories: str) -> Told:
    """Koordinator's description of n1, one GPU for each amount of memory."""
    devices = [
        {"type": "gpu", "minor": at, "health": True, "resources": {"koordinator.sh/gpu-memory": amount}}
        for at, amount in enumerate(memories)
    ]
    metadata = {"name": "n1"}
    return "Device", {
        "kind": "Device",
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "metadata": metadata,
        "spec": {"devices": devices},
    }


def in_hami(text: str, place: str = "n1") -> dict[str, Any]:
    return {"annotations": {"hami.io/vgpu-devices-allocated": text, "hami.io/vgpu-node": place}}


def in_volcano(text: str) -> dict[str, Any]:
    return {"annotations": {"volcano.sh/vgpu-ids-new": text, "volcano.sh/vgpu-node": "n1"}}


def in_gpushare(memory: str, index: str, cores: str = "") -> dict[str, Any]:
    requests = {"aliyun.com/gpu-mem": memory} | ({"aliyun.com/gpu-core.percentage": cores} if cores else {})
    return {"requests": requests, "annotations": {"ALIYUN_COM_GPU_MEM_IDX": index}}


def on_cards(memory: str, **cards: int) -> dict[str, Any]:
    text = json.dumps({"0": {name.removeprefix("c"): amount for name, amount in cards.items()}})
    return {
        "requests": {"aliyun.com/gpu-mem": memory},
        "annotations": {"scheduler.framework.gpushare.allocation": text},
    }


def in_koordinator(minor: int, core: str, memory: str, ratio: str) -> dict[str, Any]:
    resources = {"gpu-core": core, "gpu-memory": memory, "gpu-memory-ratio": ratio}
    one = {"minor": minor, "resources": {f"koordinator.sh/{name}": amount for name, amount in resources.items()}}
    return {"annotations": {"scheduling.koordinator.sh/device-allocated": json.dumps({"gpu": [one]})}}


def noted(**annotations: str) -> dict[str, Any]:
    """`own_…` for multisched.io/gpu-…, `fgd_…` for alibabacloud.com/gpu-…"""
    prefixes = {"own": "multisched.io/gpu-", "fgd": "alibabacloud.com/gpu-"}
    split = [(*key.split("_", 1), text) for key, text in annotations.items()]
    return {"annotations": {prefixes[who] + key.replace("_", "-"): text for who, key, text in split}}


KAI = {"nvidia.com/gpu.memory": "46068"}
OVER = [
    (hami(), in_hami("GPU-a,NVIDIA,4000,50:;"), in_hami("GPU-a,NVIDIA,4001,50:;"), "8001 of 8000 units of memory"),
    (
        hami(HAMI_TEXT),
        in_hami("GPU-b,NVIDIA,1,60:;"),
        in_hami("GPU-b,NVIDIA,1,41:;"),
        "101 of 100 percent of the cores",
    ),
    (volcano(), in_volcano("GPU-a,NVIDIA,8000,0:"), in_volcano("GPU-a,NVIDIA,1,0:"), "8001 of 8000 units of memory"),
    (volcano(), in_volcano("GPU-a,NVIDIA,1,60:"), in_volcano("GPU-a,NVIDIA,1,41:"), "101 of 100 percent"),
    (gpushare(), in_gpushare("9", "0"), in_gpushare("8", "0"), "17 of 16 units of memory of card 0"),
    (gpushare(), in_gpushare("1", "1", "60"), in_gpushare("1", "1", "45"), "105 of 100 percent of the cores"),
    (gpushare(), on_cards("18", c0=9, c1=9), in_gpushare("8", "1"), "17 of 16 units of memory of card 1"),
    (
        whole(),
        noted(own_devices="0", own_allocated_milli="600"),
        noted(fgd_index="0-1", fgd_milli="401"),
        "1001 of 1000",
    ),
    (
        whole(KAI),
        noted(own_devices="0", own_allocated_mib="44069"),
        noted(own_devices="0", own_allocated_mib="2000"),
        "1001 of 1000 thousandths of device 0",
    ),
    (
        whole(name="amd.com/gpu"),
        noted(own_devices="1", own_allocated_milli="600"),
        noted(own_devices="1", own_allocated_milli="500"),
        "1100 of 1000",
    ),
]


@pytest.mark.parametrize(("node", "first", "second", "message"), OVER)
def test_overcommitted_card_is_a_violation(
    node: Told, first: dict[str, Any], second: dict[str, Any], message: str
) -> None:
    faults = found(node, make_pod("early", "n1", second=10, **first), make_pod("late", "n1", second=20, **second))
    assert [(one.pod, one.rule, one.is_sure) for one in faults] == [("default/late", "devices", True)]
    assert message in faults[0].message


FULL = [
    (hami(), in_hami("GPU-a,NVIDIA,4000,50:;"), in_hami("GPU-a,NVIDIA,4000,50:GPU-b,NVIDIA,8000,100:;")),
    (hami(HAMI_TEXT), in_hami(";GPU-a,NVIDIA,3000,0:;"), in_hami(";GPU-a,NVIDIA,5000,100:;")),
    (volcano(), in_volcano("GPU-a,NVIDIA,4000,50:"), in_volcano("GPU-a,NVIDIA,4000,50:")),
    (gpushare(), on_cards("16", c0=8, c1=8), in_gpushare("8", "1", "100")),
    (gpushare(), in_gpushare("16", "0"), in_gpushare("16", "1")),
    (whole(), noted(own_devices="0", own_allocated_milli="600"), noted(fgd_index="0-1", fgd_milli="400")),
    (whole(KAI), noted(own_devices="0", own_allocated_mib="44068"), noted(own_devices="0", own_allocated_mib="2000")),
]


@pytest.mark.parametrize(("node", "first", "second"), FULL)
def test_full_card_is_legal(node: Told, first: dict[str, Any], second: dict[str, Any]) -> None:
    assert found(node, make_pod("early", "n1", second=10, **first), make_pod("late", "n1", second=20, **second)) == []


@pytest.mark.parametrize(
    ("first", "second", "is_over"),
    [
        (("50", "8Gi", "50"), ("50", "8Gi", "50"), False),
        (("60", "1Gi", "6"), ("50", "1Gi", "6"), True),
        (("1", "9Gi", "56"), ("1", "8Gi", "50"), True),
        (("1", "8Gi", "50"), ("1", "8589934593", "50"), True),
    ],
)
def test_koordinator_card_by_its_device(
    first: tuple[str, str, str], second: tuple[str, str, str], is_over: bool
) -> None:
    pods = [
        make_pod("early", "n1", **in_koordinator(0, *first)),
        make_pod("late", "n1", second=70, **in_koordinator(0, *second)),
    ]
    assert certain(node(), device("16Gi"), *pods) == ({("late", "devices")} if is_over else set())


def test_sharers_of_a_card_are_limited() -> None:
    pods = [make_pod(f"p{at}", "n1", second=at, **in_hami("GPU-a,NVIDIA,1,0:;")) for at in range(4)]
    assert certain(hami(), *pods) == {("p3", "devices")}


def test_init_containers_use_their_cards_before_the_others() -> None:
    init = [{"name": "init"}]
    text = "GPU-a,NVIDIA,8000,100:;GPU-a,NVIDIA,8000,100:;"
    assert certain(hami(), make_pod("one", "n1", initContainers=init, **in_hami(text))) == set()
    assert certain(hami(), make_pod("one", "n1", **in_hami(text))) == {("one", "devices")}


def test_card_that_the_node_no_longer_publishes_may_have_been_there() -> None:
    assert possible(hami(), make_pod("one", "n1", **in_hami("GPU-z,NVIDIA,1,0:;"))) == {("one", "devices")}
    assert certain(gpushare(), make_pod("one", "n1", **in_gpushare("1", "7"))) == {("one", "devices")}
    kind, document = gpushare("1")
    document["status"]["capacity"] = {"aliyun.com/gpu-mem": "32", "aliyun.com/gpu-count": "8"}
    assert possible((kind, document), make_pod("one", "n1", **in_gpushare("1", "7"))) == {("one", "devices")}


def test_cards_of_another_node_do_not_count() -> None:
    assert found(hami(), make_pod("one", "n1", **in_hami("GPU-a,NVIDIA,9000,0:;", place="n2"))) == []


def test_resources_that_only_a_device_plugin_reads_need_no_allocatable() -> None:
    """The kubelet drops extended resources that its node does not list."""
    requests = {GPU: "1", "nvidia.com/gpumem": "4000", "nvidia.com/gpucores": "30"}
    assert found(hami(), make_pod("one", "n1", requests=requests, **in_hami("GPU-a,NVIDIA,4000,30:;"))) == []
    assert certain(node(), make_pod("one", "n1", requests={"example.com/other": "1"})) == {("one", "resources")}


@pytest.mark.parametrize("node", [hami(), volcano(), gpushare(), node({}, {"nvidia.com/gpu.product": "T4"})])
def test_nodes_of_every_mode_belong_to_the_gpu_domain(node: Told) -> None:
    domains = (Domain("gpu", frozenset({"gpu-scheduler"}), "gpu"), Domain("rest", frozenset({"other"}), "rest"))
    assert certain(node, make_pod("one", "n1", schedulerName="gpu-scheduler"), domains=domains) == set()
    assert certain(node, make_pod("one", "n1", schedulerName="other"), domains=domains) == {("one", "domain")}


BAD_NODES = [
    "[",
    "[1]",
    '[{"id": "GPU-a", "devmem": NaN, "count": 1}]',
    '[{"id": "GPU-a", "devmem": -8000, "count": 1}]',
    '[{"id": "GPU-a", "devmem": 1e400, "count": 1}]',
    '[{"devmem": 8000, "count": 1}]',
    "GPU-a,3,80",
    "GPU-a,3,eight,100,NVIDIA-T4,0,true:",
    "[" * 100_000,
    "x" * (1 << 20),
]


@pytest.mark.parametrize("text", BAD_NODES)
def test_unreadable_cards_are_reported_and_judge_nothing(text: str) -> None:
    pod = make_pod("one", "n1", **in_hami("GPU-a,NVIDIA,9000,0:;"))
    assert [one for one, _ in problems(hami(text), pod)] == ["node n1"]
    assert certain(hami(text), pod) == set()


def test_card_that_appears_twice_is_reported_and_the_others_are_judged() -> None:
    text = f"{HAMI_TEXT}GPU-a,9,99000,100,NVIDIA-T4,0,true:"
    assert "appears twice" in problems(hami(text))[0][1]
    assert certain(hami(text), make_pod("one", "n1", **in_hami("GPU-a,NVIDIA,9000,0:;"))) == {("one", "devices")}


BAD_PODS = [
    {"hami.io/vgpu-devices-allocated": "GPU-a,NVIDIA,4000:;"},
    {"hami.io/vgpu-devices-allocated": "GPU-a,NVIDIA,-4000,0:;"},
    {"volcano.sh/vgpu-ids-new": "x" * (1 << 20)},
    {"ALIYUN_COM_GPU_MEM_IDX": "-1"},
    {"ALIYUN_COM_GPU_MEM_IDX": "256"},
    {"scheduler.framework.gpushare.allocation": "[" * 100_000},
    {"scheduler.framework.gpushare.allocation": '{"0": {"0": 3}}'},
    {"scheduler.framework.gpushare.allocation": '{"0": [1]}'},
    {"scheduling.koordinator.sh/device-allocated": '{"gpu": [{"minor": -1}]}'},
    {"scheduling.koordinator.sh/device-allocated": '{"gpu": [{"minor": 0, "resources": {"a": "x"}}]}'},
    {"scheduling.koordinator.sh/device-allocated": '"gpu"'},
]


@pytest.mark.parametrize("annotations", BAD_PODS)
def test_unreadable_annotation_of_a_pod_is_reported(annotations: dict[str, str]) -> None:
    pod = make_pod("one", "n1", annotations=annotations)
    assert problems(hami(), pod)[0][0] == "pod default/one"
    assert next(iter(annotations)) in problems(hami(), pod)[0][1]
    assert certain(hami(), pod) == set()


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"devices": [{"type": "gpu", "minor": 999}]}, "spec.devices[0].minor"),
        (
            {"devices": [{"type": "gpu", "minor": 0, "resources": {"koordinator.sh/gpu-memory": "x"}}]},
            "spec.devices[0]",
        ),
        ({"devices": "none"}, "devices"),
    ],
)
def test_unreadable_device_is_reported(fields: dict[str, Any], problem: str) -> None:
    kind, document = device()
    document["spec"] = fields
    assert problem in problems((kind, document))[0][1]


def test_device_of_another_api_group_is_not_read_as_koordinator() -> None:
    kind, document = device("x")
    assert problems((kind, {**document, "apiVersion": "example.com/v1"})) == []

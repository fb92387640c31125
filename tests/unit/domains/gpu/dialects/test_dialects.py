"""What pods of each dialect request, what nodes publish, and what a binding answers; a restarted process holds the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from domains.gpu.cards import Mode
from domains.gpu.dialects import demands_of, fgd, gpushare, hami, kai, koordinator, own, volcano, whole
from domains.gpu.gpu_ledger import GpuLedger
from multisched.model.cluster_objects import ClusterObject
from multisched.model.decode import Decoder
from multisched.model.decode_objects import decode_node_devices, decode_resource_slice
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Node, Pod
from multisched.state.node_table import NodeTable
from multisched.state.object_store import ObjectStore
from multisched.testing.builders import container, decode_pod, make_node, make_pod, node_document, pod_document

NOW = datetime(2026, 11, 28, 12, 0, 0, 250_000, tzinfo=UTC)
GPU = whole.GPU


def hami_register(cards: int, *, memory: int = 24_000, count: int = 10, **fields: Any) -> str:
    one = {"count": count, "devmem": memory, "devcore": 100, "type": "NVIDIA-A10", "health": True, **fields}
    return json.dumps([{"id": f"GPU-{index}", "index": index, "numa": index // 2, **one} for index in range(cards)])


def hami_node(cards: int = 2, *, split: int = 10, **register: Any) -> Node:
    return make_node(
        "n", extra={GPU: cards * split}, annotations={hami.REGISTER: hami_register(cards, count=split, **register)}
    )


def volcano_node(cards: int = 2) -> Node:
    text = "".join(f"GPU-{index},10,24000,NVIDIA-A10,true,hami-core:" for index in range(cards))
    room = {volcano.NUMBER: 10 * cards, volcano.MEMORY: 24_000 * cards, volcano.CORES: 100 * cards}
    return make_node("n", extra=room, annotations={volcano.REGISTER: text})


def gpushare_node(cards: int = 4, memory: int = 24) -> Node:
    return make_node("n", extra={gpushare.GPU_MEMORY: cards * memory, gpushare.GPU_COUNT: cards})


def device(cards: int = 2, **fields: Any) -> ClusterObject:
    amounts = {koordinator.CORES: "100", koordinator.MEMORY: "80Gi", koordinator.RATIO: "100"}
    gpus = [
        {"type": "gpu", "id": f"GPU-{minor}", "minor": minor, "health": True, "resources": amounts, **fields}
        for minor in range(cards)
    ]
    document = {"metadata": {"name": "n", "uid": "d", "resourceVersion": "1"}, "spec": {"devices": gpus}}
    return decode_node_devices(json.dumps(document).encode())


def make_ledger(node: Node, *objects: ClusterObject) -> GpuLedger:
    store = ObjectStore()
    for one in objects:
        store.set(ObjectKind.NODE_DEVICES, one)
    ledger = GpuLedger(None, store)
    ledger.set_node(0, node)
    return ledger


def bound(pod: Pod, answer: Mapping[str, str], **changes: str) -> Pod:
    annotations = {**pod.annotations, **answer, **changes}
    return make_pod(pod.name, spec=pod.spec, annotations=annotations, node="n", phase="Pending")


def refusal(ledger: GpuLedger, pod: Pod) -> str:
    return ledger.fits(pod, 0)


def holds_again(ledger: GpuLedger, node: Node, *pods: Pod, objects: tuple[ClusterObject, ...] = ()) -> None:
    """A new process that sees these bound pods holds what this one holds, and has the same free."""
    fresh = make_ledger(node, *objects)
    for pod in pods:
        fresh.restore(pod, 0)
    assert fresh.held() == ledger.held()
    assert fresh.sums(0) == ledger.sums(0)


# -- HAMi --------------------------------------------------------------------------------------------------------------


def hami_pod(name: str, count: int = 1, **amounts: int) -> Pod:
    names = {"memory": hami.MEMORY, "percent": hami.MEMORY_PERCENT, "cores": hami.CORES}
    return make_pod(name, extra={GPU: count, **{names[key]: amount for key, amount in amounts.items()}})


def test_hami_pod_waits_until_the_plugin_emptied_entries_of_the_previous_pod() -> None:
    node = hami_node()
    ledger = make_ledger(node)
    first = hami_pod("a", memory=3000, cores=30)
    answer = ledger.take(first, 0)

    assert answer == {
        hami.NODE: "n",
        hami.TO_ALLOCATE: "GPU-0,NVIDIA,3000,30:;",
        hami.ALLOCATED: "GPU-0,NVIDIA,3000,30:;",
        hami.BIND_PHASE: "allocating",
    }
    assert ledger.binding_labels(answer) == {hami.NODE: "n"}, "HAMi's monitor lists pods by it"
    assert ledger.binding_labels({hami.NODE: "n" * 64}) == {}, "no label can have it"
    assert ledger.timed_annotations(answer, NOW) == {hami.TIME: "1795867200", hami.BIND_TIME: "1795867200"}
    assert "has not allocated yet" in refusal(ledger, hami_pod("b", memory=1))
    done = bound(first, answer, **{hami.TO_ALLOCATE: ";", hami.BIND_PHASE: "success"})
    ledger.restore(done, 0)
    assert refusal(ledger, hami_pod("b", memory=1)) == ""
    holds_again(ledger, node, done)


def test_hami_pod_without_amounts_uses_a_whole_card_despite_ten_slots() -> None:
    ledger = make_ledger(hami_node())
    for name in "ab":
        pod = hami_pod(name)
        ledger.restore(bound(pod, ledger.take(pod, 0), **{hami.TO_ALLOCATE: ";"}), 0)

    assert refusal(ledger, hami_pod("c")) == "Insufficient nvidia.com/gpu"
    assert refusal(ledger, hami_pod("c", memory=1)) == "Insufficient nvidia.com/gpumem"


def test_hami_containers_share_cards_as_they_run() -> None:
    """Init containers use the cards before the containers, which use them together."""
    document = pod_document("p")

    def asking(name: str, memory: str) -> dict[str, Any]:
        amounts = {GPU: "1", hami.MEMORY: memory}
        return {"name": name, "image": "x", "resources": {"limits": amounts, "requests": amounts}}

    document["spec"]["containers"] = [asking("a", "14000"), asking("b", "14000")]
    document["spec"]["initContainers"] = [asking("init", "20000")]
    pod = Decoder().pod(json.dumps(document).encode())
    node = hami_node()
    ledger = make_ledger(node)
    answer = ledger.take(pod, 0)

    assert answer[hami.ALLOCATED] == "GPU-0,NVIDIA,20000,0:;GPU-0,NVIDIA,14000,0:;GPU-1,NVIDIA,14000,0:;"
    assert [free.memory for free in ledger.cards(0).free] == [4_000, 10_000]
    holds_again(ledger, node, bound(pod, answer))


@pytest.mark.parametrize(
    ("annotations", "cards"),
    [
        ({hami.USE_TYPE: "a100,l40"}, []),
        ({hami.USE_TYPE: "a10"}, [0, 1]),
        ({hami.NO_TYPE: "A10"}, []),
        ({hami.USE_ID: "GPU-1"}, [1]),
        ({hami.NO_ID: "GPU-0"}, [1]),
    ],
)
def test_hami_annotations_choose_cards(annotations: dict[str, str], cards: list[int]) -> None:
    pod = make_pod("p", extra={GPU: 1, hami.MEMORY: 10}, annotations=annotations)
    found = make_ledger(hami_node()).cards(0).choose(demands_of(pod).first)

    assert (list(found or ()), bool(found)) == (cards[:1], bool(cards))


@pytest.mark.parametrize(
    ("requests", "annotations", "problem"),
    [
        ({hami.MEMORY: 10}, {}, f"{hami.MEMORY}]: requires {GPU}; write {GPU}: 1"),
        ({GPU: 1, hami.MEMORY_PERCENT: 101}, {}, f"{hami.MEMORY_PERCENT}]: 101 is more than 100"),
        ({GPU: 1}, {hami.VGPU_MODE: "mig"}, "mig is not supported"),
        ({GPU: 1, hami.MEMORY: 10, gpushare.GPU_MEMORY: 2}, {}, "in two ways, gpushare and hami"),
        ({hami.MEMORY: 10, GPU: 1}, {own.GPU_MILLI: "100"}, "the pod also requests whole nvidia.com/gpu"),
    ],
)
def test_invalid_hami_demands_name_field_and_fix(
    requests: dict[str, int], annotations: dict[str, str], problem: str
) -> None:
    assert problem in demands_of(make_pod("p", extra=requests, annotations=annotations)).problem


@pytest.mark.parametrize(
    ("text", "cards", "problem"),
    [
        (hami_register(2), 2, ""),
        ("GPU-0,10,24000,100,NVIDIA-A10,0,true:GPU-1,10,24000,100,NVIDIA-A10,0,true:", 2, ""),
        ("GPU-0,10,24000,100,NVIDIA-A10,0,true,0,hami-core:", 1, ""),
        (hami_register(2)[:-20], 0, "annotation hami.io/node-nvidia-register: "),
        (hami_register(1, memory=-1), 0, "card 0: devmem -1 is not within 1.."),
        ('[{"id": "a", "count": 1, "devmem": NaN}]', 0, "annotation hami.io/node-nvidia-register: "),
        (json.dumps([{"id": "a", "count": 1, "devmem": 9, "health": True}] * 2), 1, "id 'a' appears twice"),
        ("GPU-0,ten,24000,100,NVIDIA-A10,0,true:", 0, "is not a list of cards"),
        ("x" * 300_000, 0, "300000 bytes, more than"),
        ("[" * 60_000, 0, "annotation hami.io/node-nvidia-register: "),
        (hami_register(1, id="GPU-0,NVIDIA,1,1:GPU-9"), 0, "card 0: id 'GPU-0,NVIDIA,1,1:GPU-9' has one of , : ;"),
        (hami_register(1, mode="mig"), 1, "mode mig is not supported"),
    ],
)
def test_hami_register_is_read_or_its_problem_named(text: str, cards: int, problem: str) -> None:
    node = make_ledger(make_node("n", extra={GPU: 10}, annotations={hami.REGISTER: text})).cards(0).node

    assert node.mode is Mode.HAMI
    assert len(node.cards) == cards
    assert problem in "".join(node.problems)
    assert bool(problem) == bool(node.problems)


def test_node_keeps_its_last_good_cards_while_its_data_cannot_be_read() -> None:
    ledger = make_ledger(hami_node())
    good = ledger.cards(0).node.cards
    ledger.set_node(0, make_node("n", extra={GPU: 20}, annotations={hami.REGISTER: "[{"}))

    assert ledger.cards(0).node.cards == good
    assert "hami.io/node-nvidia-register" in ledger.cards(0).node.problems[0]
    copied = ledger.empty_copy()
    assert copied.cards(0).node.cards == good, "an audit finds the same"
    assert copied.sums(0) == ledger.sums(0)


def test_cards_that_disappear_and_return_stay_held() -> None:
    ledger = make_ledger(hami_node(2))
    pod = hami_pod("a", memory=20_000)
    ledger.restore(bound(pod, {hami.ALLOCATED: "GPU-1,NVIDIA,20000,0:;", hami.NODE: "n"}), 0)
    ledger.set_node(0, hami_node(1))
    assert ledger.cards(0).free_milli == [1000], "a card with an id takes nothing of the others while it is missing"
    ledger.set_node(0, hami_node(2))

    assert [free.memory for free in ledger.cards(0).free] == [24_000, 4_000]


def test_answer_for_another_node_does_not_count_as_an_answer() -> None:
    """Its cards are of the other node: the pod counts as a whole card of its own."""
    ledger = make_ledger(hami_node())
    pod = hami_pod("a", memory=10)
    ledger.restore(bound(pod, {hami.ALLOCATED: "GPU-0,NVIDIA,10,0:;", hami.NODE: "another"}), 0)

    assert ledger.cards(0).free_milli == [0, 1000]


# -- Volcano vGPU ------------------------------------------------------------------------------------------------------


def test_waiting_pod_that_requests_no_gpu_holds_no_card_and_keeps_others_away() -> None:
    """HAMi's plugin could take it for another pod if its author wrote what a scheduler writes."""
    text = "GPU-0,NVIDIA,24000,100:;"
    answer = {hami.NODE: "n", hami.ALLOCATED: text, hami.TO_ALLOCATE: text, hami.BIND_PHASE: "allocating"}
    ledger = make_ledger(hami_node())
    ledger.restore(bound(make_pod("forger"), answer), 0)

    assert ledger.cards(0).free == list(ledger.cards(0).totals)
    assert "has not allocated yet" in refusal(ledger, hami_pod("b", memory=1))


def vgpu(name: str, number: int = 1, memory: int = 1000) -> Pod:
    return make_pod(name, extra={volcano.NUMBER: number, volcano.MEMORY: memory})


def test_volcano_pods_with_the_same_number_of_cards_wait_for_each_other() -> None:
    node = volcano_node()
    ledger = make_ledger(node)
    one, two = vgpu("one"), vgpu("two", number=2)
    answer, wide = ledger.take(one, 0), ledger.take(two, 0)

    assert answer[volcano.ALLOCATED] == "GPU-0,NVIDIA,1000,0:"
    assert wide[volcano.ALLOCATED] == "GPU-0,NVIDIA,1000,0:GPU-1,NVIDIA,1000,0:"
    assert "has not allocated yet" in refusal(ledger, vgpu("late"))
    done = bound(one, answer, **{volcano.BIND_PHASE: "success"})
    ledger.restore(done, 0)
    assert refusal(ledger, vgpu("late")) == ""
    assert "has not allocated yet" in refusal(ledger, vgpu("later", number=2))
    holds_again(ledger, node, done, bound(two, wide))


# -- gpushare ----------------------------------------------------------------------------------------------------------


def test_volcano_pod_with_cards_in_two_containers_is_refused_with_the_fix() -> None:
    """The plugin compares the number of one container with the total of the pod."""
    limits = {volcano.NUMBER: "1", volcano.MEMORY: "1000"}
    pod = decode_pod(pod_document("p", *(container(name, extra=limits) for name in ("a", "b"))))

    assert demands_of(pod).problem == (
        "spec.containers[b].resources.limits[volcano.sh/vgpu-number]: several containers request vGPUs, and the device plugin "
        "compares each with the pod's total; write them in one container"
    )


def share(name: str, memory: int, **labels: str) -> Pod:
    return make_pod(name, extra={gpushare.GPU_MEMORY: memory}, labels=labels)


def test_gpushare_pods_with_the_same_total_wait_for_each_other() -> None:
    node = gpushare_node()
    ledger = make_ledger(node)
    pod = share("a", 10)
    answer = ledger.take(pod, 0)

    assert answer == {
        gpushare.INDEX: "0",
        gpushare.TOTAL: "10",
        gpushare.CARD_SIZE: "24",
        gpushare.ASSIGNED: "false",
    }
    assert ledger.timed_annotations(answer, NOW) == {gpushare.ASSUME_TIME: "1795867200250000000"}
    assert "has not allocated yet" in refusal(ledger, share("b", 10))
    assert refusal(ledger, share("b", 11)) == ""
    done = bound(pod, answer, **{gpushare.ASSIGNED: "true"})
    ledger.restore(done, 0)
    assert refusal(ledger, share("b", 10)) == ""
    holds_again(ledger, node, done)


def test_gpushare_label_spreads_memory_over_cards() -> None:
    node = gpushare_node()
    ledger = make_ledger(node)
    pod = make_pod("p", extra={gpushare.GPU_MEMORY: 12}, labels={gpushare.GPU_COUNT: "2"})
    answer = ledger.take(pod, 0)

    assert json.loads(answer[gpushare.ALLOCATION]) == {"0": {"0": 6, "1": 6}}
    assert [free.memory for free in ledger.cards(0).free] == [18, 18, 24, 24]
    holds_again(ledger, node, bound(pod, answer))


def test_gpushare_memory_is_free_after_the_pod_was_released() -> None:
    ledger = make_ledger(gpushare_node(1))
    pod = share("a", 24)
    ledger.restore(bound(pod, ledger.take(pod, 0), **{gpushare.ASSIGNED: "true"}), 0)
    assert refusal(ledger, share("b", 1)) == "Insufficient aliyun.com/gpu-mem"
    ledger.release(pod.uid)

    assert refusal(ledger, share("b", 1)) == ""


@pytest.mark.parametrize(
    ("requests", "labels", "problem"),
    [
        ({gpushare.GPU_CORES: 5}, {}, "requires aliyun.com/gpu-mem"),
        ({gpushare.GPU_MEMORY: 5, gpushare.GPU_CORES: 7}, {}, "7 is not a multiple of 5"),
        ({gpushare.GPU_MEMORY: 5}, {gpushare.GPU_COUNT: "2"}, "cannot be spread evenly over 2 cards"),
        ({gpushare.GPU_MEMORY: 5}, {gpushare.GPU_COUNT: "two"}, "'two' is not an integer of 1..256"),
    ],
)
def test_invalid_gpushare_demands_name_field_and_fix(
    requests: dict[str, int], labels: dict[str, str], problem: str
) -> None:
    assert problem in demands_of(make_pod("p", extra=requests, labels=labels)).problem


def test_gpushare_memory_of_an_init_container_is_refused_with_the_fix() -> None:
    """The device plugin sums up containers only, so it would never find the pod."""
    pod = decode_pod(
        pod_document("p", container("a"), initContainers=[container("b", extra={gpushare.GPU_MEMORY: "4"})])
    )

    assert demands_of(pod).problem == (
        "spec.initContainers[b].resources.limits[aliyun.com/gpu-mem]: the device plugin does not count init containers; "
        "write it in a container"
    )


def test_gpushare_node_that_reports_no_cards_is_named() -> None:
    node = make_ledger(make_node("n", extra={gpushare.GPU_MEMORY: 24})).cards(0).node
    assert node.problems == (
        "status.allocatable[aliyun.com/gpu-count]: 0 cards share 24 of aliyun.com/gpu-mem; the device plugin must report 1..256 cards",
    )


# -- Koordinator -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requests", "answer", "free"),
    [
        ({koordinator.PERCENT: 50}, [(0, "50", "42949672960", "50")], [50, 100]),
        ({koordinator.PERCENT: 200}, [(0, "100", "85899345920", "100"), (1, "100", "85899345920", "100")], [0, 0]),
        ({koordinator.CORES: 30, koordinator.MEMORY: 8 << 30}, [(0, "30", "8589934592", "10")], [70, 100]),
        (
            {koordinator.SHARED: 2, koordinator.RATIO: 50},
            [(0, "0", "21474836480", "25"), (1, "0", "21474836480", "25")],
            [100, 100],
        ),
    ],
)
def test_koordinator_requests_are_answered_with_all_three_resources(
    requests: dict[str, int], answer: list[tuple[int, str, str, str]], free: list[int]
) -> None:
    node, description = make_node("n"), device()
    ledger = make_ledger(node, description)
    pod = make_pod("p", extra=requests)
    written = ledger.take(pod, 0)

    found = [
        (one["minor"], *(one["resources"][name] for name in (koordinator.CORES, koordinator.MEMORY, koordinator.RATIO)))
        for one in json.loads(written[koordinator.ALLOCATED])["gpu"]
    ]
    assert found == answer
    assert [one.cores for one in ledger.cards(0).free] == free
    holds_again(ledger, node, bound(pod, written), objects=(description,))


@pytest.mark.parametrize(
    ("requests", "annotations", "problem"),
    [
        ({koordinator.PERCENT: 150}, {}, "150 is over 100 and not a multiple of 100"),
        ({koordinator.CORES: 50}, {}, f"requires {koordinator.MEMORY} or {koordinator.RATIO}"),
        ({koordinator.MEMORY: 5, koordinator.RATIO: 5}, {}, "write only one of them"),
        ({koordinator.PERCENT: 50, koordinator.CORES: 5}, {}, "it sets both"),
        ({koordinator.SHARED: 3, koordinator.RATIO: 50}, {}, "50 cannot be spread evenly over 3 cards"),
        ({koordinator.PERCENT: 50, GPU: 1}, {}, "the pod also requests koordinator.sh/gpu; write only one"),
        ({koordinator.PERCENT: 50}, {koordinator.JOINT: "{}"}, "not supported by this scheduler"),
        ({koordinator.PERCENT: 50}, {koordinator.HINT: "{"}, f"annotation {koordinator.HINT}: "),
    ],
)
def test_koordinator_sets_that_are_not_allowed_name_field_and_fix(
    requests: dict[str, int], annotations: dict[str, str], problem: str
) -> None:
    assert problem in demands_of(make_pod("p", extra=requests, annotations=annotations)).problem


def test_device_that_arrives_after_its_node_is_read() -> None:
    store = ObjectStore()
    ledger = GpuLedger(None, store)
    ledger.set_node(0, make_node("n"))
    assert ledger.cards(0).node.mode is Mode.NONE
    store.set(ObjectKind.NODE_DEVICES, device())

    assert list(ledger.object_changed(ObjectKind.NODE_DEVICES, device())) == [0]
    assert len(ledger.cards(0).node.cards) == 2
    assert list(ledger.object_changed(ObjectKind.NODE_DEVICES, device())) == [], "nothing has changed since"


# -- thousandths: FGD and KAI beside multisched's own ------------------------------------------------------------------


def test_fractions_of_three_dialects_share_one_card_exactly() -> None:
    """2,000 MiB of 46,068 are not rounded to a fraction: 23 such pods fit one card, and no more."""
    node = make_node("n", extra={GPU: 1}, labels={whole.MEMORY_LABEL: "46068", "nvidia.com/gpu.product": "L40"})
    ledger = make_ledger(node)
    pods = [make_pod(f"p{number}", annotations={kai.MEMORY: "2000"}) for number in range(24)]
    answers = [ledger.take(pod, 0) for pod in pods[:23]]

    assert answers[0] == {own.GPU_DEVICES: "0", own.GPU_ALLOCATED_MIB: "2000"}
    assert refusal(ledger, pods[23]) == "Insufficient gpu-memory"
    assert refusal(ledger, make_pod("own", annotations={own.GPU_MILLI: "1"})) == ""
    assert refusal(ledger, make_pod("own", annotations={own.GPU_MILLI: "2"})) == "Insufficient gpu-milli"
    holds_again(ledger, node, *(bound(pod, answer) for pod, answer in zip(pods, answers, strict=False)))


def test_fgd_pod_takes_an_accepted_model_and_ignores_the_index_that_its_author_wrote() -> None:
    node = make_node("n", extra={GPU: 2}, labels={whole.FGD_MODEL: "T4"})
    ledger = make_ledger(node)
    pod = make_pod("p", annotations={fgd.MILLI: "460", whole.FGD_MODEL: "P100|T4", fgd.INDEX: "1"})
    answer = ledger.take(pod, 0)

    assert answer == {fgd.INDEX: "0", own.GPU_ALLOCATED: "460"}
    holds_again(ledger, node, bound(pod, answer))
    other = make_pod("q", annotations={fgd.MILLI: "460", whole.FGD_MODEL: "P100"})
    assert refusal(ledger, other) == "node(s) had no GPU of an accepted model"


@pytest.mark.parametrize(
    ("annotations", "milli"),
    [({kai.FRACTION: "0.5"}, 500), ({kai.FRACTION: "0.125"}, 125), ({kai.FRACTION: "0.25", kai.COUNT: "2"}, 500)],
)
def test_kai_fractions_are_thousandths(annotations: dict[str, str], milli: int) -> None:
    demand = demands_of(make_pod("p", annotations=annotations)).first
    assert (demand.problem, demand.quota_milli) == ("", milli)


@pytest.mark.parametrize("text", ["0", "1", "1.5", "-0.5", "0.3333", "half", "NaN", "1e-400", "0." + "1" * 99, "٣"])
def test_kai_fractions_out_of_range_or_finer_than_thousandths_are_refused(text: str) -> None:
    assert (
        "is not a decimal number between 0 and 1" in demands_of(make_pod("p", annotations={kai.FRACTION: text})).problem
    )


# -- modes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "mode"),
    [
        (node_document("n", extra={GPU: 8}), Mode.WHOLE),
        (node_document("n", extra={"amd.com/gpu": 8}), Mode.WHOLE),
        (node_document("n", extra={"gpu.intel.com/i915": 8}), Mode.WHOLE),
        (node_document("n", extra={whole.FGD_COUNT: 8}), Mode.WHOLE),
        (node_document("n", extra={GPU: 8}, labels={whole.REPLICAS_LABEL: "4"}), Mode.SHARED),
        (node_document("n", extra={whole.SHARED_GPU: 8}), Mode.SHARED),
        (node_document("n", extra={"nvidia.com/mig-1g.5gb": 7}), Mode.MIG),
        (node_document("n"), Mode.NONE),
    ],
)
def test_each_node_has_one_mode(node: dict[str, Any], mode: Mode) -> None:
    assert make_ledger(Decoder().node(json.dumps(node).encode())).cards(0).node.mode is mode


def test_time_sliced_nodes_and_mig_instances_are_only_counted() -> None:
    sliced = make_ledger(make_node("n", extra={GPU: 8}, labels={whole.REPLICAS_LABEL: "4"}))
    pod = make_pod("p", extra={GPU: 1})

    assert refusal(sliced, pod) == ""
    assert sliced.take(pod, 0) == {}
    mig = make_ledger(make_node("n", extra={"nvidia.com/mig-1g.5gb": 7}))
    assert refusal(mig, make_pod("p", extra={"nvidia.com/mig-1g.5gb": 1})) == ""
    fraction = make_pod("f", annotations={own.GPU_MILLI: "100"})
    assert refusal(sliced, fraction) == "node(s) shared GPUs in mode shared, which does not serve multisched pods"


def test_hold_of_another_mode_counts_as_whole_cards() -> None:
    """A node that was HAMi's counts whole GPUs now: what its old pods hold is not known there."""
    ledger = make_ledger(make_node("n", extra={GPU: 2}))
    pod = hami_pod("old", memory=1)
    ledger.restore(bound(pod, {hami.ALLOCATED: "GPU-0,NVIDIA,1,0:;", hami.NODE: "n"}), 0)

    assert ledger.cards(0).free_milli == [0, 1000]


# -- DRA ---------------------------------------------------------------------------------------------------------------


def resource_slice(driver: str = "gpu.nvidia.com", node: str = "n", devices: int = 8) -> ClusterObject:
    spec = {"driver": driver, "nodeName": node, "devices": [{"name": f"gpu-{n}"} for n in range(devices)]}
    return decode_resource_slice(json.dumps({"metadata": {"name": f"{node}-{driver}-x7"}, "spec": spec}).encode())


def with_slices(*slices: ClusterObject, node: Node | None = None) -> GpuLedger:
    store = ObjectStore()
    for one in slices:
        store.set(ObjectKind.RESOURCE_SLICE, one)
    ledger = GpuLedger(None, store)
    ledger.set_node(0, node or make_node("n", extra={GPU: 8}))
    return ledger


def test_cards_of_a_dra_driver_beside_a_device_plugin_count_once() -> None:
    ledger = with_slices(resource_slice())

    assert ledger.cards(0).node.mode is Mode.DRA
    (problem,) = ledger.problems(0, NodeTable())
    assert problem.startswith(
        "the DRA driver and the vendor's device plugin describe the same cards; only those of the DRA driver"
    )
    why = refusal(ledger, make_pod("p", extra={GPU: 1}))
    assert why == "node(s) shared GPUs in mode dra, which does not serve whole-GPU pods"


def test_hami_beside_a_dra_driver_is_named() -> None:
    ledger = with_slices(resource_slice(), node=hami_node())

    assert ledger.cards(0).node.mode is Mode.DRA
    assert [one.partition(" describe")[0] for one in ledger.problems(0, NodeTable())] == ["the DRA driver and hami"]


def test_node_of_a_dra_driver_alone_has_no_problem() -> None:
    ledger = with_slices(resource_slice(), node=make_node("n"))

    assert (ledger.cards(0).node.mode, list(ledger.problems(0, NodeTable()))) == (Mode.DRA, [])


@pytest.mark.parametrize(
    "other",
    [
        resource_slice("compute-domain.nvidia.com"),
        resource_slice("dra.net"),
        resource_slice(node="another"),
        resource_slice(node=""),
        resource_slice(devices=0),
        decode_resource_slice(b'{"metadata": {"name": "n"}, "spec": {"driver": 7, "nodeName": ["n"]}}'),
    ],
    ids=["channels", "network", "another node", "no node", "no devices", "malformed"],
)
def test_other_resource_slices_leave_the_cards_to_the_device_plugin(other: ClusterObject) -> None:
    ledger = with_slices(other)

    assert (ledger.cards(0).node.mode, list(ledger.problems(0, NodeTable()))) == (Mode.WHOLE, [])


def test_resource_slices_that_arrive_and_leave_change_the_mode() -> None:
    store = ObjectStore()
    ledger = GpuLedger(None, store)
    ledger.set_node(0, make_node("n", extra={GPU: 8}))
    found = resource_slice()
    store.set(ObjectKind.RESOURCE_SLICE, found)
    assert list(ledger.object_changed(ObjectKind.RESOURCE_SLICE, found)) == [0]
    assert ledger.cards(0).node.mode is Mode.DRA

    store.remove(ObjectKind.RESOURCE_SLICE, "", found.name)

    assert list(ledger.object_changed(ObjectKind.RESOURCE_SLICE, found)) == [0]
    assert ledger.cards(0).node.mode is Mode.WHOLE

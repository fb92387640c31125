"""What a pod takes: containers, init containers, sidecars, overhead, pod-level requests and resize in place."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.model.objects import CPU, EPHEMERAL_STORAGE, MEMORY, QosClass
from multisched.model.resources import SCORING_CPU_MILLI, SCORING_MEMORY_BYTES, is_extended_resource, is_scalar_resource
from tests.unit.model.documents import Document, container, decode_pod, pod_document

MEBI = 1024 * 1024


def milli(amount: int) -> Document:
    return container(cpu=f"{amount}m")


def sidecar(amount: int) -> Document:
    return {**milli(amount), "restartPolicy": "Always"}


amounts = st.integers(0, 4000)
inits = st.lists(st.tuples(st.booleans(), amounts), max_size=5)


@given(st.lists(amounts, min_size=1, max_size=4), inits, amounts)
def test_largest_phase_of_a_pod_counts(
    containers: list[int], init_containers: list[tuple[bool, int]], overhead: int
) -> None:
    """Each init container runs beside the sidecars started before it; all containers run beside all sidecars."""
    documents = [sidecar(amount) if is_sidecar else milli(amount) for is_sidecar, amount in init_containers]
    pod = decode_pod(pod_document(*map(milli, containers), initContainers=documents, overhead={"cpu": f"{overhead}m"}))
    beside = [
        sum(amount for is_sidecar, amount in init_containers[:at] if is_sidecar) for at in range(len(init_containers))
    ]
    phases = [sum(containers) + sum(amount for is_sidecar, amount in init_containers if is_sidecar)]
    phases += [before + amount for before, (_, amount) in zip(beside, init_containers, strict=True)]
    assert pod.requests.get(CPU, 0) == max(phases) + overhead


@given(st.lists(st.sampled_from(("1n", "500u", "1m", "0.1", "333333333n")), min_size=1, max_size=8))
def test_fractions_of_a_milli_are_summed_before_they_are_rounded(texts: list[str]) -> None:
    nano = {"1n": 1, "500u": 500_000, "1m": 1_000_000, "0.1": 100_000_000, "333333333n": 333_333_333}
    pod = decode_pod(pod_document(*(container(cpu=text) for text in texts)))
    assert pod.requests[CPU] == -(-sum(nano[text] for text in texts) // 1_000_000)


@pytest.mark.parametrize(
    ("spec", "requests"),
    [
        ({"resources": {"requests": {"cpu": "3"}}}, {CPU: 3000, MEMORY: 10 * MEBI}),
        ({"resources": {"requests": {"cpu": "1m"}}}, {CPU: 1, MEMORY: 10 * MEBI}),
        ({"resources": {"requests": {}}}, {CPU: 2000, MEMORY: 10 * MEBI}),
        ({"resources": {"limits": {"cpu": "3"}}}, {CPU: 2000, MEMORY: 10 * MEBI}),
        ({"resources": {"requests": {"cpu": "3"}}, "overhead": {"cpu": "1"}}, {CPU: 4000, MEMORY: 10 * MEBI}),
    ],
)
def test_pod_level_requests_replace_those_of_containers(spec: Document, requests: dict[str, int]) -> None:
    assert decode_pod(pod_document(container(cpu="2", memory="10Mi"), **spec)).requests == requests


def status(spec: str, *, actuated: str = "", allocated: str = "", reason: str = "") -> Document:
    """A pod on a node whose container's cpu is being resized."""
    reported: Document = {"name": "c"}
    if actuated:
        reported["resources"] = {"requests": {"cpu": actuated}}
    if allocated:
        reported["allocatedResources"] = {"cpu": allocated}
    conditions = [{"type": "PodResizePending", "status": "True", "reason": reason}] if reason else []
    return pod_document(
        container(cpu=spec), nodeName="n", status={"containerStatuses": [reported], "conditions": conditions}
    )


@pytest.mark.parametrize(
    ("document", "held"),
    [
        (status("1", actuated="2", allocated="1"), 2000),
        (status("2", actuated="1", allocated="1"), 2000),
        (status("1", actuated="1", allocated="3"), 3000),
        (status("5", actuated="1", allocated="2", reason="Infeasible"), 2000),
        (status("5", actuated="1", allocated="2", reason="Deferred"), 5000),
        (status("1", allocated="3"), 1000),
        (status("1"), 1000),
    ],
)
def test_a_pod_being_resized_holds_the_larger_of_spec_and_status(document: Document, held: int) -> None:
    pod = decode_pod(document)
    assert pod.requests[CPU] == held
    assert pod.scoring_requests == (held, SCORING_MEMORY_BYTES)
    assert (pod.held is None) == (held == pod.spec.requests[CPU])


def test_status_of_an_unbound_pod_is_ignored() -> None:
    document = status("1", actuated="2")
    document["spec"]["nodeName"] = ""
    assert decode_pod(document).requests[CPU] == 1000


def test_pod_level_requests_are_resized_too() -> None:
    document = pod_document(
        container(cpu="1"),
        nodeName="n",
        resources={"requests": {"cpu": "2"}},
        status={"resources": {"requests": {"cpu": "3"}}, "allocatedResources": {"cpu": "1"}},
    )
    assert decode_pod(document).requests[CPU] == 3000


def test_sidecars_are_resized_and_other_init_containers_are_not() -> None:
    statuses = [{"name": name, "resources": {"requests": {"cpu": "3"}}} for name in ("s", "i")]
    inits = [{**container("s", cpu="1"), "restartPolicy": "Always"}, container("i", cpu="1")]
    document = pod_document(
        container(cpu="1"), nodeName="n", initContainers=inits, status={"initContainerStatuses": statuses}
    )
    assert decode_pod(document).requests[CPU] == max(3000 + 1000, 3000 + 1000)
    document["spec"]["initContainers"] = inits[1:]
    assert decode_pod(document).requests[CPU] == 1000


@pytest.mark.parametrize(
    ("containers", "pending", "placed"),
    [
        ([container()], (SCORING_CPU_MILLI, SCORING_MEMORY_BYTES), (SCORING_CPU_MILLI, SCORING_MEMORY_BYTES)),
        ([container(cpu="0", memory="0")], (0, 0), (0, 0)),
        ([container(cpu="1"), container()], (1100, 2 * SCORING_MEMORY_BYTES), (1100, 2 * SCORING_MEMORY_BYTES)),
    ],
)
def test_containers_that_name_no_amount_count_with_defaults_in_scores(
    containers: Sequence[Document], pending: tuple[int, int], placed: tuple[int, int]
) -> None:
    spec = decode_pod(pod_document(*containers)).spec
    assert (spec.scoring_cpu_milli, spec.scoring_memory_bytes) == pending
    assert (spec.placed_cpu_milli, spec.placed_memory_bytes) == placed


def test_pod_level_requests_count_in_scores_once_the_pod_is_placed() -> None:
    spec = decode_pod(pod_document(container(), resources={"requests": {"cpu": "2"}})).spec
    assert (spec.scoring_cpu_milli, spec.placed_cpu_milli) == (SCORING_CPU_MILLI, 2000)
    assert spec.requests == {CPU: 2000}
    assert spec.container_requests == {}


@pytest.mark.parametrize(
    ("name", "is_scalar", "is_extended"),
    [
        ("nvidia.com/gpu", True, True),
        ("hugepages-2Mi", True, False),
        ("attachable-volumes-csi-x", True, False),
        ("kubernetes.io/odd", True, False),
        ("example.kubernetes.io/odd", True, False),
        ("requests.nvidia.com/gpu", False, False),
        ("storage", False, False),
        ("a/b/c", False, False),
        ("/x", False, False),
        ("x" * 64 + ".com/" + "y" * 64, False, False),
    ],
)
def test_only_resource_names_that_a_scheduler_counts_are_kept(name: str, is_scalar: bool, is_extended: bool) -> None:
    assert (is_scalar_resource(name), is_extended_resource(name)) == (is_scalar, is_extended)
    pod = decode_pod(pod_document(container(**{name: "2", EPHEMERAL_STORAGE: "1"})))
    assert pod.requests == {EPHEMERAL_STORAGE: 1, **({name: 2} if is_scalar else {})}


BOTH = {"cpu": "1", "memory": "1Gi"}


@pytest.mark.parametrize(
    ("blocks", "pod_level", "qos"),
    [
        ([{}], None, QosClass.BEST_EFFORT),
        ([{"requests": {"cpu": "0"}}], None, QosClass.BEST_EFFORT),
        ([{"requests": {"nvidia.com/gpu": "1"}}], None, QosClass.BEST_EFFORT),
        ([{"requests": BOTH, "limits": BOTH}], None, QosClass.GUARANTEED),
        ([{"requests": BOTH, "limits": BOTH}, {}], None, QosClass.BURSTABLE),
        ([{"requests": {"cpu": "1"}, "limits": BOTH}], None, QosClass.BURSTABLE),
        ([{"limits": {"cpu": "1"}}], None, QosClass.BURSTABLE),
        ([{}], {"requests": BOTH, "limits": BOTH}, QosClass.GUARANTEED),
        ([{"requests": BOTH, "limits": BOTH}], {"requests": {"cpu": "2"}}, QosClass.BURSTABLE),
    ],
)
def test_quality_of_service_class_is_computed(
    blocks: Sequence[Document], pod_level: Document | None, qos: QosClass
) -> None:
    containers = [{"name": f"c{i}", "resources": block} for i, block in enumerate(blocks)]
    assert decode_pod(pod_document(*containers, resources=pod_level)).spec.qos is qos


def test_absurd_requests_are_capped_so_that_no_sum_overflows() -> None:
    pod = decode_pod(pod_document(*(container(memory="9E", cpu="9E") for _ in range(100))))
    assert not pod.malformed
    assert pod.requests[CPU] == pod.requests[MEMORY] == 2**51

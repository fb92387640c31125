"""The demonstration's nodes and workload: complete, deterministic, and feasible."""

from __future__ import annotations

from collections import Counter

import pytest

from multisched.cluster.client.object_client import Document
from multisched.cluster.seed import (
    GPU_MILLI_ANNOTATION,
    JOB_PODS_MAX,
    demo_nodes,
    demo_storage,
    demo_workload,
    pods_by_scheduler,
)
from multisched.model.quantity import parse_milli, parse_value

ROLES = {"forecast-scheduler": "work", "gpu-scheduler": "gpu", "job-scheduler": "virtual"}


def pods_of(manifest: Document) -> int:
    spec = manifest["spec"]
    return int(spec.get("completions", spec.get("replicas", 1)))


def template_of(manifest: Document) -> Document:
    return dict(manifest["spec"].get("template", manifest))


def requested(pod: Document, resource: str) -> int:
    amounts = [c["resources"]["requests"].get(resource, "0") for c in pod["spec"]["containers"]]
    return sum(parse_milli(a) if resource == "cpu" else parse_value(a) for a in amounts)


def fits(free: Counter[str], needs: Counter[str]) -> bool:
    return all(free[resource] >= amount for resource, amount in needs.items())


def test_seed_of_300_nodes_has_three_kinds_with_unique_names_and_hostnames() -> None:
    nodes = demo_nodes(300)
    roles = Counter(str(node["metadata"]["name"]).split("-")[0] for node in nodes)

    assert roles == {"work": 212, "virtual": 50, "gpu": 38}
    assert len({node["metadata"]["name"] for node in nodes}) == 300
    assert all(node["metadata"]["labels"]["kubernetes.io/hostname"] == node["metadata"]["name"] for node in nodes)
    assert len({node["metadata"]["labels"]["topology.kubernetes.io/zone"] for node in nodes}) == 3


def test_virtual_nodes_have_label_and_taint_and_gpu_nodes_eight_devices() -> None:
    for node in demo_nodes(300):
        kind = node["metadata"]["name"].split("-")[0]
        labels, taints = node["metadata"]["labels"], node["spec"].get("taints", [])

        assert (labels.get("type") == "virtual-kubelet") == (kind == "virtual")
        assert [t["key"] for t in taints] == (["virtual-kubelet.io/provider"] if kind == "virtual" else [])
        assert node["status"]["allocatable"].get("nvidia.com/gpu") == ("8" if kind == "gpu" else None)


def test_every_physical_node_has_the_volume_driver_and_one_class_is_default() -> None:
    nodes = demo_nodes(48)
    kinds: dict[str, list[Document]] = {}
    for document in demo_storage(nodes):
        kinds.setdefault(document["kind"], []).append(document)
    names = {node["metadata"]["name"] for node in nodes}

    assert {csi["metadata"]["name"] for csi in kinds["CSINode"]} == {n for n in names if not n.startswith("virtual")}
    modes = {c["metadata"]["name"]: c["volumeBindingMode"] for c in kinds["StorageClass"]}
    assert modes == {"fast": "WaitForFirstConsumer", "shared": "Immediate"}
    (driver,) = kinds["CSIDriver"]
    assert {c["provisioner"] for c in kinds["StorageClass"]} == {driver["metadata"]["name"]}


def test_jobs_have_exactly_the_requested_number_of_pods() -> None:
    for pods in (0, 1, 99, 100, 1000, 1050):
        jobs = [m for m in demo_workload(pods) if m["kind"] == "Job"]

        assert sum(pods_of(job) for job in jobs) == pods
        assert all(job["spec"]["parallelism"] == job["spec"]["completions"] for job in jobs)


def test_number_of_job_pods_grows_with_the_nodes_by_default() -> None:
    for nodes, pods in ((3, 10), (300, 1_000), (3_000, 10_000)):
        assert pods_by_scheduler(demo_workload(nodes=nodes))["job-scheduler"] == pods


def test_gpu_pods_request_whole_devices_or_fractions_but_not_both() -> None:
    templates = [template_of(m) for m in demo_workload(0)]
    gpu = [t for t in templates if t["spec"]["schedulerName"] == "gpu-scheduler"]
    fractions = [t for t in gpu if GPU_MILLI_ANNOTATION in t["metadata"].get("annotations", {})]
    whole = [t for t in gpu if requested(t, "nvidia.com/gpu")]

    assert fractions
    assert whole
    assert len(fractions) + len(whole) == len(gpu)


@pytest.mark.parametrize(
    ("nodes", "job_pods"),
    [(300, JOB_PODS_MAX), (3, 1000), (9, 1000), (17, 0), (30, 50), (50, 50), (100, 1000), (1000, 0)],
)
def test_the_workload_fits_on_the_nodes_of_its_domains_by_first_fit(nodes: int, job_pods: int) -> None:
    rooms: dict[str, list[Counter[str]]] = {role: [] for role in ROLES.values()}
    for node in demo_nodes(nodes):
        allocatable = node["status"]["allocatable"]
        room = Counter({r: parse_value(a) for r, a in allocatable.items() if r != "cpu"})
        room["cpu"] = parse_milli(allocatable["cpu"])
        rooms[node["metadata"]["name"].split("-")[0]].append(room)

    for manifest in demo_workload(job_pods, nodes):
        pod = template_of(manifest)
        needs = Counter({r: requested(pod, r) for r in ("cpu", "memory", "nvidia.com/gpu")})
        # Fractions never share a node with whole devices: counted here as whole ones, they still fit.
        needs["nvidia.com/gpu"] += GPU_MILLI_ANNOTATION in pod["metadata"].get("annotations", {})
        needs["pods"] = 1
        candidates = iter(rooms[ROLES[pod["spec"]["schedulerName"]]])
        room = next(candidates)
        for _ in range(pods_of(manifest)):
            while not fits(room, needs):
                room = next(candidates)
            room.subtract(needs)


def test_the_same_arguments_give_the_same_documents() -> None:
    assert demo_nodes(60) == demo_nodes(60)
    assert demo_workload(250) == demo_workload(250)


def test_the_pods_of_a_workload_are_counted_by_scheduler() -> None:
    assert pods_by_scheduler(demo_workload(1050)) == {
        "forecast-scheduler": 400,
        "gpu-scheduler": 74,
        "job-scheduler": 1050,
    }
    assert pods_by_scheduler(demo_workload(0, 3)) == {"forecast-scheduler": 6, "gpu-scheduler": 1}

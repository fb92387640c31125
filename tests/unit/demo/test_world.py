"""What the demo creates: it fits beside the workload, grows with the nodes, and what ships as data is what it is said to be."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import pytest

from multisched.cluster.seed import demo_nodes, demo_workload
from multisched.demo.configuration import HISTORY_DAYS, LOAN, demo_configuration, sample_history, with_port
from multisched.demo.world import (
    BORROWER,
    GANG,
    IMAGE_CPU,
    LENT_NODES,
    OWNER,
    POD_CPU,
    REFUSED_CPU,
    feasible_pods,
    first_act,
    ground,
    late_act,
    world_of,
)
from multisched.model.gang import ACK_MIN
from multisched.plugins.quota.quota_source import QUOTA_KINDS
from tests.unit.demo import make_history

ROOT = Path(__file__).parents[3]
MILLI_PER_GPU_OF_ANY_POD = 4_000
"""CPU that pods request for each GPU, at most."""


@pytest.mark.parametrize("nodes", [3, 9, 30, 300, 3000])
def test_last_act_completes_the_gang_and_all_gpu_pods_fit(nodes: int) -> None:
    world = world_of(nodes)
    members = [one for one in (*first_act(world), *late_act(world)) if one["metadata"]["name"].startswith(GANG)]
    assert len(members) == world.gang_members
    assert len(first_act(world)) - 3 == world.gang_members - 1
    assert {one["metadata"]["labels"][ACK_MIN] for one in members} == {str(world.gang_members)}

    gpus = Counter[str]()
    for one in (*members, *demo_workload(0, nodes)):
        pod = one["spec"].get("template", one)
        limits = pod["spec"]["containers"][0]["resources"].get("limits", {})
        fractions = "multisched.io/gpu-milli" in pod["metadata"].get("annotations", {})
        gpus["whole"] += int(limits.get("nvidia.com/gpu", 0)) * one["spec"].get("replicas", 1)
        gpus["shared"] += fractions * one["spec"]["replicas"] if fractions else 0
    room = sum(int(node["status"]["allocatable"].get("nvidia.com/gpu", 0)) for node in demo_nodes(nodes))
    # Nodes with fractions take no whole devices; eight of 500 thousandths or more are counted as a node.
    assert gpus["whole"] + 8 * -(-gpus["shared"] // 8) <= room


@pytest.mark.parametrize("nodes", [3, 30, 300, 3000])
def test_borrower_fills_the_tree_and_the_owner_requests_its_half(nodes: int) -> None:
    world = world_of(nodes)
    tree = ground(world)[-1]["spec"]["root"]
    leaves = {leaf["name"]: leaf for leaf in tree["children"]}
    assert leaves.keys() == {BORROWER, OWNER}
    assert world.borrowers * POD_CPU == int(tree["max"]["cpu"]) == int(leaves[BORROWER]["max"]["cpu"])
    assert world.owners * POD_CPU == int(leaves[OWNER]["min"]["cpu"])
    assert 2 * world.owners == world.borrowers


@pytest.mark.parametrize("nodes", [3, 30, 300, 3000])
def test_image_jobs_fit_beside_all_gpu_pods_on_the_nodes_that_are_lent(nodes: int) -> None:
    world, headroom = world_of(nodes), int(LOAN["headroom"]["cpu"])
    lent = [
        one["status"]["allocatable"]
        for one in demo_nodes(nodes)
        if LENT_NODES.items() <= one["metadata"]["labels"].items()
    ]
    own = MILLI_PER_GPU_OF_ANY_POD * sum(int(one["nvidia.com/gpu"]) for one in lent) // 1000
    cores = sum(int(one["cpu"]) - headroom for one in lent)
    assert 0 < world.images * IMAGE_CPU <= cores - own


def test_workload_grows_with_the_number_of_nodes() -> None:
    small, large = (sum(feasible_pods(world_of(nodes)).values()) for nodes in (300, 3000))
    assert large == 10 * small


def test_the_refused_pod_is_larger_than_any_work_node() -> None:
    largest = max(int(n["status"]["allocatable"]["cpu"]) for n in demo_nodes(300) if n["metadata"]["name"][0] == "w")
    assert largest < REFUSED_CPU


def test_shipped_custom_resource_definition_equals_that_of_deploy() -> None:
    deployed = (ROOT / "deploy" / "crds" / "elasticquotatrees.yaml").read_bytes()
    assert (ROOT / "multisched" / "demo" / "elasticquotatrees.yaml").read_bytes() == deployed
    assert ground(world_of(3))[0]["spec"]["names"]["kind"] in {kind.name for kind in QUOTA_KINDS} | {"ElasticQuotaTree"}


def test_shipped_history_equals_the_generated_one() -> None:
    assert sample_history().read_text() == "".join(f"{line}\n" for line in make_history.lines())
    assert make_history.DAYS == HISTORY_DAYS


def test_every_service_has_a_history() -> None:
    with sample_history().open() as file:
        known = {line["service"] for line in csv.DictReader(file)}
    services = {
        one["metadata"]["name"]
        for one in demo_workload(0)
        if one["spec"].get("template", one)["spec"]["schedulerName"] == "forecast-scheduler"
    }
    assert known == services


def test_configuration_learns_from_the_history_and_serves_on_loopback() -> None:
    configuration = demo_configuration()
    (plugin,) = configuration.domains[0].profile.plugins.enabled
    assert (plugin.name, plugin.args) == (
        "PeakForecast",
        {"files": [str(sample_history())], "windowDays": HISTORY_DAYS},
    )
    server = with_port(configuration, 0).server
    assert (server.port, server.enabled, server.is_loopback, server.tls.is_on) == (0, True, True, False)

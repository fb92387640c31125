"""What goes when its owner goes: garbage collection and namespace deletion, in process and on virtual time."""

from __future__ import annotations

import asyncio

import pytest

from multisched.cluster.client.object_client import (
    DEPLOYMENTS,
    JOBS,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    REPLICA_SETS,
    SERVICE_ACCOUNTS,
    Document,
    Resource,
)
from tests.unit.cluster.cluster_kit import (
    PATIENCE_S,
    Fleet,
    a_cluster,
    a_deployment,
    a_job,
    a_node,
    a_pod,
    a_replica_set,
    condition_of,
    phases,
)

pytestmark = pytest.mark.looptime

CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
DEFINITIONS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", is_namespaced=False
)
WIDGETS = Resource("example.org", "v1", "widgets", "Widget")


def a_reference(resource: Resource, owner: Document, *, blocks: bool = False) -> Document:
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "blockOwnerDeletion": blocks,
    }


async def a_config_map(cluster: Fleet, name: str, *owners: Document, finalizers: tuple[str, ...] = ()) -> Document:
    metadata = {"name": name, "ownerReferences": list(owners), "finalizers": list(finalizers)}
    return await cluster.create(CONFIG_MAPS, {"metadata": metadata})


async def a_running_deployment(cluster: Fleet, replicas: int) -> None:
    await cluster.create(DEPLOYMENTS, a_deployment("web", replicas))
    await cluster.wait_listed(PODS, lambda pods: phases(pods) == ["Running"] * replicas)


async def test_background_deletion_removes_replica_sets_and_pods() -> None:
    async with a_cluster(a_node()) as cluster:
        await a_running_deployment(cluster, 4)
        await cluster.create(PODS, a_pod("stranger"))
        await cluster.delete(DEPLOYMENTS, "web", propagation="Background")
        assert await cluster.get(DEPLOYMENTS, "web") is None

        await cluster.wait_listed(REPLICA_SETS, lambda sets: not sets)
        pods = await cluster.wait_listed(PODS, lambda pods: len(pods) == 1)
        await asyncio.sleep(60)

        assert pods[0]["metadata"]["name"] == "stranger"
        assert len(await cluster.list_all(PODS)) == 1


async def test_foreground_deletion_removes_the_deployment_last() -> None:
    async with a_cluster(a_node()) as cluster:
        await a_running_deployment(cluster, 4)
        await cluster.delete(DEPLOYMENTS, "web", propagation="Foreground")
        waiting = await cluster.get(DEPLOYMENTS, "web")
        assert waiting is not None
        assert waiting["metadata"]["finalizers"] == ["foregroundDeletion"]

        async with asyncio.timeout(PATIENCE_S):
            while await cluster.get(DEPLOYMENTS, "web") is not None:
                left = len(await cluster.list_all(PODS)), len(await cluster.list_all(REPLICA_SETS))
                assert left[1] or not left[0], "pods outlived their ReplicaSet"
                await asyncio.sleep(0.01)

        assert await cluster.list_all(REPLICA_SETS) == []
        assert await cluster.list_all(PODS) == []


async def test_orphaned_pods_are_kept_without_their_owner() -> None:
    async with a_cluster(a_node()) as cluster:
        await cluster.create(REPLICA_SETS, a_replica_set("web", 3))
        await cluster.wait_listed(PODS, lambda pods: phases(pods) == ["Running"] * 3)
        await cluster.delete(REPLICA_SETS, "web", propagation="Orphan")
        await cluster.wait_gone(REPLICA_SETS, "web")
        await asyncio.sleep(60)

        pods = await cluster.list_all(PODS)
        assert phases(pods) == ["Running"] * 3
        assert not any(p["metadata"].get("ownerReferences") for p in pods)


async def test_pods_of_a_deleted_job_are_deleted() -> None:
    async with a_cluster(a_node()) as cluster:
        await cluster.create(JOBS, a_job("batch", parallelism=5, completions=5))
        await cluster.wait_until(JOBS, "batch", lambda j: condition_of(j, "Complete"))
        await cluster.delete(JOBS, "batch", propagation="Background")

        await cluster.wait_listed(PODS, lambda pods: not pods)


async def test_object_with_two_owners_is_deleted_after_the_last_one() -> None:
    async with a_cluster() as cluster:
        first, second = [await a_config_map(cluster, name) for name in ("first", "second")]
        references = [a_reference(CONFIG_MAPS, owner) for owner in (first, second)]
        await a_config_map(cluster, "shared", *references)

        await cluster.delete(CONFIG_MAPS, "first")
        shared = await cluster.wait_until(CONFIG_MAPS, "shared", lambda s: len(s["metadata"]["ownerReferences"]) == 1)
        assert shared["metadata"]["ownerReferences"][0]["name"] == "second"

        await cluster.delete(CONFIG_MAPS, "second")
        await cluster.wait_gone(CONFIG_MAPS, "shared")


async def test_object_created_with_a_deleted_owner_is_deleted() -> None:
    async with a_cluster() as cluster:
        owner = await a_config_map(cluster, "owner")
        await cluster.delete(CONFIG_MAPS, "owner")
        await a_config_map(cluster, "owner")  # the name alone makes no owner
        await a_config_map(cluster, "late", a_reference(CONFIG_MAPS, owner))

        await cluster.wait_gone(CONFIG_MAPS, "late")
        assert await cluster.get(CONFIG_MAPS, "owner") is not None


async def test_owner_of_an_unserved_kind_keeps_its_dependents() -> None:
    async with a_cluster() as cluster:
        stranger = {"apiVersion": "nobody.example/v1", "kind": "Ghost", "name": "g", "uid": "1-2-3"}
        await a_config_map(cluster, "kept", stranger)
        await asyncio.sleep(200)

        assert await cluster.get(CONFIG_MAPS, "kept") is not None


async def test_foreground_deletion_waits_only_for_dependents_that_block_it() -> None:
    async with a_cluster() as cluster:
        owner = await a_config_map(cluster, "owner")
        await a_config_map(cluster, "blocking", a_reference(CONFIG_MAPS, owner, blocks=True), finalizers=("x/hold",))
        await a_config_map(cluster, "loose", a_reference(CONFIG_MAPS, owner), finalizers=("x/hold",))
        await cluster.delete(CONFIG_MAPS, "owner", propagation="Foreground")
        await asyncio.sleep(30)
        assert await cluster.get(CONFIG_MAPS, "owner") is not None

        await cluster.patch(CONFIG_MAPS, "blocking", {"metadata": {"finalizers": None}})
        await cluster.wait_gone(CONFIG_MAPS, "owner")

        loose = await cluster.get(CONFIG_MAPS, "loose")
        assert loose is not None
        assert loose["metadata"]["deletionTimestamp"]


async def test_dependents_are_deleted_if_the_owner_was_deleted_before_a_relist() -> None:
    async with a_cluster(a_node()) as cluster:
        owner = await a_config_map(cluster, "owner")
        await a_config_map(cluster, "dependent", a_reference(CONFIG_MAPS, owner))
        await asyncio.sleep(1)
        cluster.server.drop_watches()
        await cluster.delete(CONFIG_MAPS, "owner")
        cluster.server.compact()

        await cluster.wait_gone(CONFIG_MAPS, "dependent")


async def test_lease_of_a_node_is_deleted_with_the_node() -> None:
    async with a_cluster(a_node()) as cluster:
        await cluster.wait_until(LEASES, "n", lambda _: True, "kube-node-lease")
        await cluster.delete(NODES, "n")

        await cluster.wait_gone(LEASES, "n", "kube-node-lease")


async def test_custom_objects_can_be_owners_once_their_kind_is_defined() -> None:
    definition = {
        "metadata": {"name": "widgets.example.org"},
        "spec": {
            "group": "example.org",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                }
            ],
        },
    }
    async with a_cluster() as cluster:
        await cluster.create(DEFINITIONS, definition)
        widget = await cluster.create(WIDGETS, {"metadata": {"name": "w"}})
        await a_config_map(cluster, "made-by-w", a_reference(WIDGETS, widget))
        await asyncio.sleep(5)
        assert await cluster.get(CONFIG_MAPS, "made-by-w") is not None

        await cluster.delete(WIDGETS, "w")
        await cluster.wait_gone(CONFIG_MAPS, "made-by-w")


# --- namespaces --------------------------------------------------------------------------------------------------


async def test_default_service_account_is_created_and_recreated() -> None:
    async with a_cluster() as cluster:
        await cluster.create(NAMESPACES, {"metadata": {"name": "team"}})
        first = await cluster.wait_until(SERVICE_ACCOUNTS, "default", lambda _: True, "team")
        (await cluster.client.delete(SERVICE_ACCOUNTS, "team", "default")).expect()

        again = await cluster.wait_until(SERVICE_ACCOUNTS, "default", lambda _: True, "team")
        assert again["metadata"]["uid"] != first["metadata"]["uid"]


async def test_deleted_namespace_is_emptied_first() -> None:
    async with a_cluster(a_node()) as cluster:
        await cluster.create(NAMESPACES, {"metadata": {"name": "team"}})
        await cluster.wait_until(SERVICE_ACCOUNTS, "default", lambda _: True, "team")
        deployment = a_deployment("web", 3)
        deployment["metadata"]["namespace"] = "team"
        await cluster.create(DEPLOYMENTS, deployment)
        await cluster.create(CONFIG_MAPS, {"metadata": {"name": "settings", "namespace": "team"}})
        await cluster.create(CONFIG_MAPS, {"metadata": {"name": "other"}})
        await cluster.wait_listed(PODS, lambda pods: phases(pods) == ["Running"] * 3)

        await cluster.delete(NAMESPACES, "team")
        going = await cluster.get(NAMESPACES, "team")
        assert going is not None
        assert going["status"]["phase"] == "Terminating"
        await cluster.wait_gone(NAMESPACES, "team")

        for resource in (PODS, REPLICA_SETS, DEPLOYMENTS, SERVICE_ACCOUNTS, CONFIG_MAPS):
            left = (await cluster.client.call("GET", resource.path("team"))).expect().document["items"]
            assert left == [], resource.plural
        assert await cluster.get(CONFIG_MAPS, "other") is not None


async def test_deleted_namespace_waits_for_an_object_with_a_finalizer() -> None:
    async with a_cluster() as cluster:
        await cluster.create(NAMESPACES, {"metadata": {"name": "team"}})
        held = {"metadata": {"name": "held", "namespace": "team", "finalizers": ["x/hold"]}}
        await cluster.create(CONFIG_MAPS, held)
        await cluster.delete(NAMESPACES, "team")
        await asyncio.sleep(30)
        assert await cluster.get(NAMESPACES, "team") is not None

        body = {"metadata": {"finalizers": None}}
        (await cluster.client.patch(CONFIG_MAPS, "team", "held", body=body)).expect()
        await cluster.wait_gone(NAMESPACES, "team")

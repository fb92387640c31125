"""HTTP extenders through the whole program: a converted configuration, real sockets, and nobody delayed by a bad one."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import orjson

from multisched.cluster.api.direct import DirectTransport
from multisched.config.kube.convert import convert
from tests.integration.plugins.program_cluster import HEAD, ProgramCluster, open_cluster
from tests.unit.plugins.extender.extender_kit import Extender, extending, hanging, keeping, scoring, status

NODES = ("n1", "n2", "n3")


def converted(*extenders: dict[str, Any], profiles: tuple[str, ...] = ("tests-scheduler",)) -> str:
    """Our configuration, made of kube-scheduler's; without leader election, as everywhere in these tests."""
    document = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "podMaxBackoffSeconds": 1,
        "profiles": [{"schedulerName": name} for name in profiles],
        "extenders": list(extenders),
    }
    return json.dumps({**convert(json.dumps(document), "kube.json").data, "client": {"bindTimeout": "500ms"}})


def one(extender: Extender, **fields: Any) -> dict[str, Any]:
    return {"urlPrefix": extender.url, "nodeCacheCapable": True, "httpTimeout": "500ms", **fields}


async def with_nodes(cluster: ProgramCluster) -> None:
    for name in NODES:
        await cluster.node(name, extra={"example.com/fpga": 8})


async def condition(cluster: ProgramCluster, pod: str) -> str:
    """The message of PodScheduled."""
    answer = await DirectTransport(cluster.server).request("GET", f"/api/v1/namespaces/default/pods/{pod}")
    conditions = orjson.loads(answer.body).get("status", {}).get("conditions", [])
    return next((c.get("message", "") for c in conditions if c["type"] == "PodScheduled"), "")


async def told(cluster: ProgramCluster, pod: str, text: str) -> str:
    """The pod's condition, once it holds the text."""
    message = ""
    async with asyncio.timeout(60):
        while text not in message:
            message = await condition(cluster, pod)
            await asyncio.sleep(0.01)
    return message


async def test_converted_extender_filters_scores_and_gets_whole_objects() -> None:
    def leave(body: Any) -> object:
        assert body["Pod"]["spec"]["containers"][0]["image"] == "app:v1"
        assert all(node["status"]["allocatable"]["cpu"] == "8" for node in body["Nodes"]["items"])
        items = [node for node in body["Nodes"]["items"] if node["metadata"]["name"] != "n1"]
        return {"Nodes": {"items": items}, "FailedNodes": {"n1": "too far"}}

    async with extending(filter=leave, prioritize=scoring(n3=10)) as extender:
        asked = one(extender, nodeCacheCapable=False, filterVerb="filter", prioritizeVerb="prioritize", weight=50)
        async with open_cluster(converted(asked), before=with_nodes) as cluster:
            names = [f"p{number}" for number in range(5)]
            for name in names:
                await cluster.pod(name, cpu="1")
            await cluster.bound(*names)
            assert {cluster.node_of(name) for name in names} == {"n3"}
            await cluster.at_rest()


async def test_pod_refused_by_extenders_has_their_message_and_is_retried() -> None:
    refusal = keeping(
        FailedNodes={"n1": "no licence", "n2": "no licence"}, FailedAndUnresolvableNodes={"n3": "too old"}
    )
    async with (
        extending(filter=refusal) as extender,
        open_cluster(converted(one(extender, filterVerb="filter")), before=with_nodes) as cluster,
    ):
        await cluster.pod("p", cpu="1")
        message = await told(cluster, "p", "no licence")
        assert message.startswith("0/3 nodes are available: 1 too old, 2 no licence.")

        extender.responses["filter"] = keeping(*NODES)
        await cluster.node("n4")  # any event wakes a pod that an extender has refused
        await cluster.bound("p")
        await cluster.at_rest()


async def test_hung_or_unreachable_extender_affects_only_its_pods() -> None:
    async with extending(filter=hanging) as extender:
        managed = [{"name": "example.com/fpga", "ignoredByScheduler": True}]
        asked = one(extender, filterVerb="filter", managedResources=managed)
        async with open_cluster(converted(asked), before=with_nodes) as cluster:
            for number in range(4):
                await cluster.pod(f"victim{number}", cpu="1", limits={"example.com/fpga": "1"})
            message = await told(cluster, "victim0", "no answer within 0.5 s")
            assert message == f'extender "{extender.url}" (filter): no answer within 0.5 s'

            began_s = cluster.now_s
            names = [f"p{number}" for number in range(20)]
            for name in names:
                await cluster.pod(name, cpu="100m")
            await cluster.bound(*names, within_s=5.0)
            assert cluster.now_s - began_s < 3.0
            assert not any(name.startswith("victim") for name in cluster.bound_at)

            extender.responses["filter"] = keeping(*NODES)
            await cluster.bound(*(f"victim{number}" for number in range(4)), within_s=30.0)
            await cluster.at_rest()


async def test_extender_of_one_scheduler_does_not_affect_others() -> None:
    async with extending(filter=status(500)) as extender:
        first = json.loads(converted(one(extender, filterVerb="filter")))["domains"][0]
        domains = [first, {"name": "other", "loans": [{"from": first["name"]}]}]
        async with open_cluster(HEAD + f"domains: {json.dumps(domains)}\n", before=with_nodes) as cluster:
            await cluster.pod("victim", cpu="1")
            await cluster.pod("other", scheduler="other-scheduler", cpu="1")
            await cluster.bound("other")
            assert "code 500" in await told(cluster, "victim", "failed filter with extender at URL")
            assert extender.asked[0][1]["Pod"]["metadata"]["name"] == "victim"
            await cluster.at_rest()


async def test_extender_binds_its_pods_and_the_result_is_verified() -> None:
    async with extending() as extender:
        asked = one(extender, bindVerb="bind", managedResources=[{"name": "example.com/fpga"}])
        async with open_cluster(converted(asked), before=with_nodes) as cluster:
            lies = Counter[str]()

            async def bind(body: Any) -> object:
                lies[body["PodName"]] += 1
                if lies[body["PodName"]] == 1 and body["PodName"] == "lied-to":
                    return {}  # says that it did
                binding = {
                    "metadata": {"name": body["PodName"], "namespace": body["PodNamespace"], "uid": body["PodUID"]},
                    "target": {"kind": "Node", "name": body["Node"]},
                }
                path = f"/api/v1/namespaces/{body['PodNamespace']}/pods/{body['PodName']}/binding"
                encoded = orjson.dumps(binding)
                answer = await DirectTransport(cluster.server).request("POST", path, body=encoded)
                cluster.on_bind_applied(path, encoded, answer)
                return {} if answer.status == 201 else {"Error": answer.body.decode()}

            extender.responses["bind"] = bind
            await cluster.pod("plain", cpu="1")
            await cluster.pod("fpga", cpu="1", limits={"example.com/fpga": "1"})
            await cluster.pod("lied-to", cpu="1", limits={"example.com/fpga": "1"})
            await cluster.bound("plain", "fpga")
            await cluster.bound("lied-to", within_s=30.0)

            assert {body["PodName"] for verb, body in extender.asked} == {"fpga", "lied-to"}
            assert lies["lied-to"] == 2
            await cluster.at_rest()


async def nominated(cluster: ProgramCluster, pod: str) -> str:
    answer = await DirectTransport(cluster.server).request("GET", f"/api/v1/namespaces/default/pods/{pod}")
    found = orjson.loads(answer.body).get("status", {}).get("nominatedNodeName", "")
    return str(found)


async def full_of_low_pods(cluster: ProgramCluster) -> None:
    await cluster.priority_class("high", 1000)
    for name in NODES:
        await cluster.node(name, cpu="1")


async def test_extender_chooses_among_preemption_candidates() -> None:
    def only_second(body: Any) -> object:
        victims = body["NodeNameToMetaVictims"]
        assert sorted(victims) == list(NODES)
        return {"NodeNameToMetaVictims": {"n2": victims["n2"]}}

    async with (
        extending(preempt=only_second) as extender,
        open_cluster(converted(one(extender, preemptVerb="preempt")), before=full_of_low_pods) as cluster,
    ):
        for number in range(3):
            await cluster.pod(f"low{number}", cpu="1")
        await cluster.bound("low0", "low1", "low2")
        await cluster.pod("high", cpu="1", priority="high")
        async with asyncio.timeout(60):
            while not await nominated(cluster, "high"):  # noqa: ASYNC110 -- asked over the API
                await asyncio.sleep(0.01)
        assert await nominated(cluster, "high") == "n2"

        victim = next(name for name in ("low0", "low1", "low2") if cluster.node_of(name) == "n2")
        await cluster.delete(f"namespaces/default/pods/{victim}")
        await cluster.bound("high")
        assert cluster.node_of("high") == "n2"
        await cluster.at_rest()


async def test_preemption_refused_by_an_extender_evicts_no_pod() -> None:
    async with (
        extending(preempt=lambda _: {}) as extender,
        open_cluster(converted(one(extender, preemptVerb="preempt")), before=full_of_low_pods) as cluster,
    ):
        for number in range(3):
            await cluster.pod(f"low{number}", cpu="1")
        await cluster.bound("low0", "low1", "low2")
        await cluster.pod("high", cpu="1", priority="high")
        message = await told(cluster, "high", "preemption: no candidate node for preemption")
        assert message.startswith("0/3 nodes are available: 3 Insufficient cpu.")

        extender.responses["preempt"] = lambda _: {"NodeNameToMetaVictims": {"elsewhere": {}}}
        taints = [{"key": "kept", "effect": "NoSchedule"}]  # large enough to wake the pod, and yet not for it
        await cluster.node("n4", cpu="1", memory="1Gi", pods=9, taints=taints)
        why = (
            f'extender "{extender.url}" (preempt): claims to preempt on node "elsewhere", which was not in the request'
        )
        message = await told(cluster, "high", why)
        assert message.endswith(f"preemption: {why}")
        assert await nominated(cluster, "high") == ""
        await cluster.at_rest()

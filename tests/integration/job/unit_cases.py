"""Cases of ResourcePolicy, written once for the embedded cluster and the real control plane.

Each case is a function of a `World`: it creates nodes, policies and pods, and waits for nodes of pods and for conditions. Nodes have
no kubelet, so that a bound pod stays as it is until the case changes it.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from multisched.model.wire import MERGE_PATCH

NODES, PODS = "/api/v1/nodes", "/api/v1/namespaces/default/pods"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
POLICIES = "/apis/scheduling.alibabacloud.com/v1alpha1/namespaces/default/resourcepolicies"
APP = {"app": "web"}
COST = "controller.kubernetes.io/pod-deletion-cost"
WAIT = "k8s.aliyun.com/resource-policy-wait-for-ecs-scaling"
KEEP = "example.com/keep"
TIMEOUT = "3s"
WAITS, UNSCHEDULABLE, INVALID = "WaitingForUnit", "Unschedulable", "ResourcePolicyInvalid"
Document = dict[str, Any]


class Api(Protocol):
    """Requests as administrator."""

    async def send(
        self, method: str, path: str, document: Mapping[str, Any] | None = None, content_type: str = ""
    ) -> Any:
        """Returns the decoded answer, which must be a success."""
        ...

    async def until(self, holds: Callable[[], Awaitable[str]]) -> None:
        """Waits until `holds` returns an empty text; fails with its last text."""
        ...


class World:
    """What a case does and sees."""

    def __init__(self, api: Api) -> None:
        self.api = api

    async def node(self, name: str, pool: str = "", cpu: int = 1, *, is_virtual: bool = False) -> None:
        amounts = {"cpu": str(cpu), "memory": "64Gi", "pods": "100"}
        labels = {"kubernetes.io/hostname": name, "multisched.io/domain": "job"}
        labels |= {"pool": pool} if pool else {}
        taint = {"key": "virtual-kubelet.io/provider", "value": "fake", "effect": "NoSchedule"}
        document = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "spec": {"taints": [taint] if is_virtual else []},
            "status": {
                "allocatable": amounts,
                "capacity": amounts,
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
        await self.api.send("POST", NODES, document)

    async def policy(self, *units: Mapping[str, Any], name: str = "web", **spec: Any) -> None:
        document = {
            "apiVersion": "scheduling.alibabacloud.com/v1alpha1",
            "kind": "ResourcePolicy",
            "metadata": {"name": name},
            "spec": {"selector": APP, "units": list(units), **spec},
        }
        await self.api.send("POST", POLICIES, document)
        await self._seen()

    async def _seen(self) -> None:
        """Waits until the scheduler knows all policies created so far: it refuses a pod because of one that was created later.

        Policies and pods come by different watches, so that a pod could be placed before its policy is known.
        """
        marker, labels = "marker", {"marker": "yes"}
        spec: Document = {"selector": labels, "units": [{"resource": "unknown"}]}
        kind = {"apiVersion": "scheduling.alibabacloud.com/v1alpha1", "kind": "ResourcePolicy"}
        await self.api.send("POST", POLICIES, {**kind, "metadata": {"name": marker}, "spec": spec})
        number = itertools.count()

        async def is_unseen() -> str:
            name = f"{marker}-{next(number)}"
            await self.pod(name, labels=labels, selector={"no": "node"})
            found: Document = {}

            async def is_untold() -> str:
                found.update(await self.why(name))
                return "" if found else f"{name} has no condition"

            await self.api.until(is_untold)
            await self.delete(f"{PODS}/{name}")
            return "" if found["reason"] == INVALID else f"{name}: {found}"

        await self.api.until(is_unseen)
        await self.delete(f"{POLICIES}/{marker}")

    async def pod(
        self,
        name: str,
        cpu: int = 1,
        *,
        priority: str = "",
        node: str = "",
        keep: bool = False,
        selector: Mapping[str, str] | None = None,
        **metadata: Any,
    ) -> None:
        spec: Document = {
            "schedulerName": "job-scheduler",
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "app:1", "resources": {"requests": {"cpu": str(cpu)}}}],
        }
        spec |= {"priorityClassName": priority} if priority else {}
        spec |= {"nodeName": node} if node else {}
        spec |= {"nodeSelector": selector} if selector else {}
        known = {"name": name, "labels": APP, "finalizers": [KEEP] if keep else []}
        await self.api.send(
            "POST", PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": known | metadata, "spec": spec}
        )

    async def classes(self) -> None:
        for name, value in (("low", 1), ("high", 1000)):
            await self.api.send(
                "POST",
                CLASSES,
                {
                    "apiVersion": "scheduling.k8s.io/v1",
                    "kind": "PriorityClass",
                    "metadata": {"name": name},
                    "value": value,
                },
            )

    async def read(self, name: str) -> Document:
        found: Document = await self.api.send("GET", f"{PODS}/{name}")
        return found

    async def delete(self, path: str) -> None:
        await self.api.send("DELETE", f"{path}?gracePeriodSeconds=0")

    async def change(self, path: str, changes: Mapping[str, Any]) -> None:
        await self.api.send("PATCH", path, changes, MERGE_PATCH)

    async def clear(self) -> None:
        """Removes everything that cases create, for the next one on the same cluster."""
        for one in await self._all(PODS):
            if one["metadata"].get("finalizers"):
                await self.gone(one["metadata"]["name"])
        for one in await self._all(PODS):
            await self.delete(f"{PODS}/{one['metadata']['name']}")
        for path in (POLICIES, NODES):
            for one in await self._all(path):
                await self.delete(f"{path}/{one['metadata']['name']}")
        for one in await self._all(CLASSES):
            if one["metadata"]["name"] in ("low", "high"):
                await self.delete(f"{CLASSES}/{one['metadata']['name']}")

    async def _all(self, path: str) -> list[Document]:
        found: list[Document] = (await self.api.send("GET", path))["items"]
        return found

    async def leave(self, name: str) -> None:
        """Deletes a pod with `keep`: it is terminating until `gone`."""
        await self.delete(f"{PODS}/{name}")

    async def gone(self, name: str) -> None:
        await self.change(f"{PODS}/{name}", {"metadata": {"finalizers": None}})

    async def on(self, **nodes: str) -> None:
        """Waits until each pod has its node."""

        async def differs() -> str:
            found = {name: (await self.read(name))["spec"].get("nodeName", "") for name in nodes}
            return "" if found == nodes else f"{found}, not {nodes}; {[await self.why(name) for name in nodes]}"

        await self.api.until(differs)

    async def waits(self, name: str, reason: str, *texts: str) -> None:
        """Waits until the pod's condition PodScheduled is False with this reason and these parts of the message."""

        async def differs() -> str:
            found = await self.why(name)
            is_told = found.get("status") == "False" and found.get("reason") == reason
            return (
                ""
                if is_told and all(text in found["message"] for text in texts)
                else f"{name}: {found}, not {reason} {texts}"
            )

        await self.api.until(differs)

    async def why(self, name: str) -> Document:
        conditions = (await self.read(name)).get("status", {}).get("conditions") or []
        return next((one for one in conditions if one["type"] == "PodScheduled"), {})


def unit(pool: str, **fields: Any) -> Document:
    return {"resource": "ecs", "nodeSelector": {"pool": pool}, **fields}


def after(policy: str, **fields: Any) -> Document:
    return {"policy": policy, **fields}


async def two_pools(world: World, cpu: int = 1) -> None:
    await world.node("a", "a", cpu)
    await world.node("b", "b", 8)


# -- whenTryNextUnits ----------------------------------------------------------------------------------------------------


async def by_default_a_pod_without_room_goes_on(world: World) -> None:
    await two_pools(world)
    await world.policy(unit("a", max=5), unit("b"))
    await world.pod("p")
    await world.on(p="a")
    await world.pod("q")
    await world.on(q="b")


async def by_default_a_full_unit_is_left_out(world: World) -> None:
    await two_pools(world, cpu=8)
    await world.policy(unit("a", max=1), unit("b", max=1))
    await world.pod("p")
    await world.on(p="a")
    await world.pod("q")
    await world.on(q="b")
    await world.pod("r")
    await world.waits("r", WAITS, "units[0] has its max of 1 pods", "units[1] has its max of 1 pods")
    await world.delete(f"{PODS}/p")
    await world.on(r="a")


async def by_default_terminating_pods_hold_nobody_back(world: World) -> None:
    await two_pools(world)
    await world.policy(unit("a"), unit("b"))
    await world.pod("p", keep=True)
    await world.on(p="a")
    await world.leave("p")
    await world.pod("q")
    await world.on(q="b")
    await world.gone("p")


async def exceed_max_waits_for_room(world: World) -> None:
    await two_pools(world)
    await world.policy(unit("a", max=5), unit("b"), whenTryNextUnits=after("ExceedMax"))
    await world.pod("p")
    await world.on(p="a")
    await world.pod("q")
    await world.waits("q", UNSCHEDULABLE, "waits for room in units[0] (ExceedMax)")
    await world.node("a2", "a")
    await world.on(q="a2")


async def exceed_max_goes_on_at_max_and_without_one(world: World) -> None:
    await two_pools(world)
    await world.node("c", "c", 8)
    await world.policy(unit("a"), unit("b", max=1), unit("c"), whenTryNextUnits=after("ExceedMax"))
    for name, node in (("p", "a"), ("q", "b"), ("r", "c")):
        await world.pod(name)
        await world.on(**{name: node})


async def timeout_lacking_goes_on_after_it(world: World) -> None:
    await two_pools(world)
    await world.policy(unit("a", max=5), unit("b"), whenTryNextUnits=after("TimeoutOrExceedMax", timeout=TIMEOUT))
    await world.pod("p")
    await world.on(p="a")
    await world.pod("q")
    await world.waits("q", WAITS, "waits for room in units[0] (TimeoutOrExceedMax)")
    await world.on(q="b")


async def timeout_with_the_label_waits_for_an_autoscaler(world: World) -> None:
    await two_pools(world)
    marked = unit("a", podLabels={WAIT: "true", "unit": "own"})
    await world.policy(marked, unit("b"), whenTryNextUnits=after("TimeoutOrExceedMax", timeout=TIMEOUT))
    await world.pod("p")
    await world.on(p="a")
    assert (await world.read("p"))["metadata"]["labels"] == {**APP, "unit": "own"}
    await world.pod("q")
    await world.waits("q", UNSCHEDULABLE, "waits for room in units[0]")
    await world.on(q="b")


async def timeout_full_or_unlimited_goes_on_at_once(world: World) -> None:
    await two_pools(world)
    await world.node("c", "c", 8)
    await world.policy(unit("a"), unit("b", max=1), unit("c"), whenTryNextUnits=after("TimeoutOrExceedMax"))
    for name, node in (("p", "a"), ("q", "b"), ("r", "c")):
        await world.pod(name)
        await world.on(**{name: node})


async def fifth_value_waits_without_a_max(world: World) -> None:
    await two_pools(world)
    await world.policy(unit("a"), unit("b"), whenTryNextUnits=after("Timeout", timeout=TIMEOUT))
    await world.pod("p")
    await world.on(p="a")
    await world.pod("q")
    await world.waits("q", WAITS, "waits for room in units[0] (Timeout)")
    await world.on(q="b")


async def no_terminating_goes_on_without_room(world: World) -> None:
    await two_pools(world)
    await world.policy(unit("a"), unit("b", max=1), unit("b"), whenTryNextUnits=after("LackResourceAndNoTerminating"))
    for name, node in (("p", "a"), ("q", "b"), ("r", "b")):
        await world.pod(name)
        await world.on(**{name: node})


async def no_terminating_waits_for_the_room(world: World) -> None:
    await two_pools(world)
    await world.policy(unit("a"), unit("b"), whenTryNextUnits=after("LackResourceAndNoterminating"))
    await world.pod("p", keep=True)
    await world.on(p="a")
    await world.leave("p")
    await world.pod("q")
    await world.waits("q", WAITS, "waits for room in units[0] (LackResourceAndNoTerminating)")
    await world.gone("p")
    await world.on(q="a")


# -- counting ------------------------------------------------------------------------------------------------------------


async def max_is_per_group(world: World) -> None:
    await two_pools(world, cpu=8)
    await world.policy(unit("a", max=1), unit("b"), matchLabelKeys=["version"])
    for name, version, node in (("p", "1", "a"), ("q", "1", "b"), ("r", "2", "a"), ("s", "2", "b")):
        await world.pod(name, labels={**APP, "version": version})
        await world.on(**{name: node})


async def pod_without_the_group_label_is_refused(world: World) -> None:
    await two_pools(world)
    await world.policy(unit("a", max=1), unit("b"), matchLabelKeys=["version"])
    await world.pod("p")
    await world.waits("p", INVALID, "ResourcePolicy default/web", "matchLabelKeys names version", "add it")
    await world.change(f"{PODS}/p", {"metadata": {"labels": {"version": "1"}}})
    await world.on(p="a")


async def only_pods_with_the_labels_count(world: World) -> None:
    await two_pools(world, cpu=8)
    await world.pod("other", node="a")
    written = {"podLabels": {"unit": "own"}, "podAnnotations": {"example.com/kind": "own"}}
    await world.policy(unit("a", max=1, **written), unit("b"))
    await world.pod("p")
    await world.on(p="a")
    metadata = (await world.read("p"))["metadata"]
    assert metadata["labels"] == {**APP, "unit": "own"}
    assert metadata["annotations"] == {"example.com/kind": "own", "multisched.io/unit": "default/web#0"}
    await world.pod("q")
    await world.on(q="b")


async def resources_are_limited(world: World) -> None:
    await two_pools(world, cpu=8)
    await world.policy(unit("a", maxResources={"cpu": "3"}), unit("b"))
    for name, cpu, node in (("p", 2, "a"), ("q", 2, "b"), ("r", 1, "a")):
        await world.pod(name, cpu)
        await world.on(**{name: node})


async def terminating_pods_count_if_they_shall(world: World) -> None:
    await world.node("a", "a", 8)
    await world.policy(unit("a", max=1), ignoreTerminatingPod=False)
    await world.pod("p", keep=True)
    await world.on(p="a")
    await world.pod("q")
    await world.leave("p")
    await world.waits("q", WAITS, "units[0] has its max of 1 pods")
    await world.gone("p")
    await world.on(q="a")


async def virtual_nodes_are_eci(world: World) -> None:
    await world.node("v", cpu=10_000, is_virtual=True)
    await world.node("r")
    await world.policy({"resource": "ecs"}, {"resource": "eci", "max": 1})
    for name, node in (("p", "r"), ("q", "v")):
        await world.pod(name)
        await world.on(**{name: node})


async def nodes_of_no_unit_come_last(world: World) -> None:
    await two_pools(world)
    await world.policy(unit("a"))
    for name, node in (("p", "a"), ("q", "b")):
        await world.pod(name)
        await world.on(**{name: node})


# -- preemption ----------------------------------------------------------------------------------------------------------


async def before_next_unit_preempts_first(world: World) -> None:
    await world.classes()
    await two_pools(world)
    await world.policy(unit("a"), unit("b"), preemptPolicy="BeforeNextUnit")
    await world.pod("low", priority="low")
    await world.on(low="a")
    await world.pod("high", priority="high")
    await world.on(high="a")
    await world.pod("same", priority="high")
    await world.on(same="b")


async def before_next_unit_lets_a_gang_go_on(world: World) -> None:
    await two_pools(world)
    await world.policy(unit("a"), unit("b"), preemptPolicy="BeforeNextUnit")
    ack = "pod-group.scheduling.sigs.k8s.io"
    for name in ("m0", "m1"):
        await world.pod(name, labels={**APP, f"{ack}/name": "m", f"{ack}/min-available": "2"})

    async def differs() -> str:
        found = sorted([(await world.read(name))["spec"].get("nodeName", "") for name in ("m0", "m1")])
        return "" if found == ["a", "b"] else f"{found}, {await world.why('m0')}"

    await world.api.until(differs)


async def after_all_units_preempts_last(world: World) -> None:
    await world.classes()
    await two_pools(world)
    await world.policy(unit("a"), unit("b"), preemptPolicy="AfterAllUnits")
    await world.pod("low", priority="low")
    await world.on(low="a")
    await world.pod("high", priority="high")
    await world.on(low="a", high="b")


# -- mistakes ------------------------------------------------------------------------------------------------------------


async def two_policies_are_refused(world: World) -> None:
    await two_pools(world)
    await world.policy(unit("a"), name="first")
    await world.policy(unit("b"), name="second", selector={})
    await world.pod("p")
    names = "ResourcePolicy default/first and ResourcePolicy default/second select this pod"
    await world.waits("p", INVALID, names, "delete one")
    await world.delete(f"{POLICIES}/second")
    await world.on(p="a")


async def wrong_units_are_refused(world: World) -> None:
    await two_pools(world)
    await world.policy({"resource": "elastic"})
    await world.pod("p")
    await world.waits("p", INVALID, "ResourcePolicy default/web: spec.units[0].resource: elastic is deprecated")
    await world.change(f"{POLICIES}/web", {"spec": {"units": [{"resource": "gcp"}]}})
    await world.waits("p", INVALID, "spec.units[0].resource: 'gcp' is not known; write ecs, eci or acs")
    await world.change(f"{POLICIES}/web", {"spec": {"units": [unit("b", max=0)]}})
    await world.waits("p", INVALID, "spec.units[0].max: 0 would keep all pods out")
    await world.change(f"{POLICIES}/web", {"spec": {"units": [unit("b", max=1)]}})
    await world.on(p="b")


CASES: tuple[Callable[[World], Awaitable[None]], ...] = (
    by_default_a_pod_without_room_goes_on,
    by_default_a_full_unit_is_left_out,
    by_default_terminating_pods_hold_nobody_back,
    exceed_max_waits_for_room,
    exceed_max_goes_on_at_max_and_without_one,
    timeout_lacking_goes_on_after_it,
    timeout_with_the_label_waits_for_an_autoscaler,
    timeout_full_or_unlimited_goes_on_at_once,
    fifth_value_waits_without_a_max,
    no_terminating_goes_on_without_room,
    no_terminating_waits_for_the_room,
    max_is_per_group,
    pod_without_the_group_label_is_refused,
    only_pods_with_the_labels_count,
    resources_are_limited,
    terminating_pods_count_if_they_shall,
    virtual_nodes_are_eci,
    nodes_of_no_unit_come_last,
    before_next_unit_preempts_first,
    before_next_unit_lets_a_gang_go_on,
    after_all_units_preempts_last,
    two_policies_are_refused,
    wrong_units_are_refused,
)

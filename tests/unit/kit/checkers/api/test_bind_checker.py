"""Each rule of `BindChecker` can fail: one forbidden step per rule, and a similar step that is allowed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec
import orjson
import pytest

from multisched.cluster.api.direct import DirectTransport
from multisched.cluster.api.server import ApiServer
from multisched.config import loading
from multisched.model.wire import MERGE_PATCH, STRATEGIC_MERGE_PATCH, Response
from multisched.testing.builders import GPU, NOTHING, container, node_document, pod_document
from multisched.testing.sim_loop import SimClock, SimLoop, simulate
from tests.kit.checkers.api.bind_checker import BindChecker
from tests.kit.checkers.delivered_state import DeliveredState
from tests.kit.settings.setting import ASKING
from tests.kit.world.policies import Policies

PODS = "/api/v1/namespaces/default/pods"
JUDGED = "stands against"
"""Part of the findings of `multisched verify`'s judge about the same binding."""
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
CONFIGURATION = f"""{ASKING}
  - from: forecast
    selector:
      matchLabels: {{lend: half}}
    sharePercent: 50
    return: {{notice: 20s, grace: 10s}}
"""


class CheckedCluster:
    """A bind checker with an API server, and a process `me` that leads."""

    def __init__(self, loop: SimLoop) -> None:
        self.broken: list[str] = []
        self.clock = SimClock(loop)
        self.server = ApiServer(self.clock, rbac=False)
        self.api = DirectTransport(self.server)
        policies = Policies(self.server, seed=0)
        self.bind_checker = BindChecker(
            self.server, loading.parse(CONFIGURATION, "test"), loop.time, self.broken, policies
        )

    async def post(self, path: str, document: Mapping[str, Any]) -> Response:
        return await self.api.request("POST", path, body=orjson.dumps(document))

    async def add_node(self, name: str, labels: Mapping[str, str] = NOTHING, gpus: int = 0) -> None:
        await self.post("/api/v1/nodes", node_document(name, cpu="1", extra={GPU: gpus}, labels=labels))

    async def add_pod(
        self, name: str, *, scheduler: str = "forecast-scheduler", cpu: str = "600m", **fields: Any
    ) -> None:
        """`fields`: as in `pod_document`."""
        spec = {"schedulerName": scheduler, "containers": [container(cpu=cpu)], **fields}
        await self.post(PODS, pod_document(name, **spec))

    async def write_lease(self, holder: str, *, name: str = "multisched-forecast") -> None:
        now = f"{self.clock.now():%Y-%m-%dT%H:%M:%S.%fZ}"
        spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": now, "acquireTime": now}
        answer = await self.post(LEASES, {"metadata": {"name": name}, "spec": spec})
        if answer.status == 409:
            lease = orjson.loads((await self.api.request("GET", f"{LEASES}/{name}")).body)
            lease["spec"] = spec
            await self.api.request("PUT", f"{LEASES}/{name}", body=orjson.dumps(lease))

    def deliver_all(self) -> DeliveredState:
        """Delivers all objects to `me`."""
        delivered = self.bind_checker.delivered.setdefault(
            "me", DeliveredState(self.bind_checker.objects.reader, lambda domain: lambda node: True, {})
        )
        for key, stored in self.server.store.collection("pods").objects.items():
            delivered.pod_delivered(key, msgspec.Raw(stored.raw))
        for name, stored in self.server.store.collection("nodes").objects.items():
            delivered.node_delivered(name, msgspec.Raw(stored.raw))
        return delivered

    async def resize(self, name: str, cpu: str) -> None:
        patch = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]}}
        path = f"{PODS}/{name}/resize"
        await self.api.request("PATCH", path, body=orjson.dumps(patch), content_type=STRATEGIC_MERGE_PATCH)

    async def set_cpu(self, node: str, cpu: str) -> None:
        patch = orjson.dumps({"status": {"allocatable": {"cpu": cpu}}})
        await self.api.request("PATCH", f"/api/v1/nodes/{node}/status", body=patch, content_type=MERGE_PATCH)

    def decide(self, name: str, node: str, *, missed_pods: str = "") -> tuple[str, bytes]:
        """Assumes and sends a bind as `me`, which has observed all pods but one."""
        delivered = self.deliver_all()
        if missed_pods:
            delivered.unknowable.add(self.uid(missed_pods))
        self.bind_checker.assumed(self.uid(name), node)
        delivered.assumed(self.uid(name), node)
        return self.sent(name, node)

    async def apply(self, path: str, body: bytes) -> None:
        answer = await self.api.request("POST", path, body=body)
        self.bind_checker.on_bind_applied(path, body, answer)
        self.bind_checker.on_bind_answered("me", body, answer)

    def uid(self, name: str) -> str:
        return self.server.store.collection("pods").objects[f"default/{name}"].uid

    def sent(self, name: str, node: str, *, sender: str = "me", uid: str | None = None) -> tuple[str, bytes]:
        path = f"{PODS}/{name}/binding?timeout=5000ms"
        uid = self.uid(name) if uid is None else uid
        body = orjson.dumps({"metadata": {"name": name, "uid": uid}, "target": {"name": node}})
        self.bind_checker.on_bind_sent(sender, path, body)
        return path, body

    async def bind(self, name: str, node: str, *, uid: str | None = None) -> None:
        """Sends, applies and answers a bind."""
        await self.apply(*self.sent(name, node, uid=uid))


async def _overcommit(cluster: CheckedCluster) -> None:
    await cluster.add_pod("second")
    await cluster.bind("first", "a")
    await cluster.bind("second", "a")


async def _share_a_device_twice(cluster: CheckedCluster) -> None:
    await cluster.add_node("gpu", gpus=1)
    await cluster.write_lease("me", name="multisched-gpu")
    for name in ("one", "two"):
        annotations = {"multisched.io/gpu-milli": "600", "multisched.io/gpu-devices": "0"}
        await cluster.add_pod(name, scheduler="gpu-scheduler", cpu="100m", annotations=annotations)
        await cluster.bind(name, "gpu")


async def _try_another_node(cluster: CheckedCluster) -> None:
    _, body = cluster.sent("first", "a")
    cluster.bind_checker.on_bind_answered("me", body, None)
    cluster.sent("first", "b")


async def _bind_gated(cluster: CheckedCluster) -> None:
    await cluster.add_pod("gated", schedulingGates=[{"name": "wait"}])
    cluster.sent("gated", "a")


async def _bind_foreign(cluster: CheckedCluster) -> None:
    await cluster.add_pod("foreign", scheduler="default-scheduler")
    cluster.sent("foreign", "a")


async def _bind_outside_the_domain(cluster: CheckedCluster) -> None:
    await cluster.add_node("lent", {"lend": "yes"})
    await cluster.add_pod("borrower", scheduler="job-scheduler", cpu="100m")
    await asyncio.sleep(1.0)
    await cluster.write_lease("me")
    await cluster.bind("borrower", "a")


async def _bind_without_the_lease(cluster: CheckedCluster) -> None:
    cluster.sent("first", "a", sender="another")


async def _bind_late(cluster: CheckedCluster) -> None:
    await asyncio.sleep(10.5)
    cluster.sent("first", "a")


async def _bind_early(cluster: CheckedCluster) -> None:
    await asyncio.sleep(15.0)
    await cluster.write_lease("successor")
    await asyncio.sleep(4.0)
    cluster.sent("first", "a", sender="successor")


async def _bind_while_another_may(cluster: CheckedCluster) -> None:
    cluster.sent("first", "a")
    await cluster.add_pod("second", cpu="100m")
    await cluster.write_lease("")
    cluster.broken.clear()  # another test covers the early release
    await cluster.write_lease("successor")
    cluster.sent("second", "a", sender="successor")


async def _believe_for_too_long(cluster: CheckedCluster) -> None:
    """The process believes 0.01 s longer than the renew deadline of 10 s that it may bind."""
    cluster.bind_checker.leases.believers["me"] = lambda domain: (
        domain == "forecast" and cluster.clock.monotonic() < 10.01
    )
    await asyncio.sleep(12.0)


async def _bind_too_many(cluster: CheckedCluster) -> None:
    for number in range(17):
        await cluster.add_pod(f"pod-{number}", cpu="1m")
        cluster.sent(f"pod-{number}", "a")


async def _preempt_without_the_lease(cluster: CheckedCluster) -> None:
    cluster.bind_checker.on_eviction_sent("another", f"{PODS}/first?timeout=5000ms")


async def _preempt_with_the_lease_of_others(cluster: CheckedCluster) -> None:
    await cluster.write_lease("another", name="multisched-gpu")
    cluster.bind_checker.on_eviction_sent("another", f"{PODS}/first?timeout=5000ms")


async def _preempt_late(cluster: CheckedCluster) -> None:
    await asyncio.sleep(10.5)
    cluster.bind_checker.on_eviction_sent("me", f"{PODS}/first?timeout=5000ms")


async def _preempt_the_most_urgent(cluster: CheckedCluster) -> None:
    await cluster.add_pod("urgent", priorityClassName="system-node-critical")
    cluster.bind_checker.on_eviction_sent("me", f"{PODS}/urgent?timeout=5000ms")


async def _release_too_early(cluster: CheckedCluster) -> None:
    cluster.sent("first", "a")
    await cluster.write_lease("")


async def _bind_soon_after_a_deletion(cluster: CheckedCluster) -> None:
    """The next holder knew the deleted lease. The last holder may bind for ten seconds and does not know of the deletion."""
    cluster.bind_checker.on_lease_read("successor", f"{LEASES}/multisched-forecast")
    await cluster.api.request("DELETE", f"{LEASES}/multisched-forecast")
    await cluster.write_lease("successor")
    cluster.sent("first", "b")
    await asyncio.sleep(7.0)
    await cluster.add_pod("second", cpu="100m")
    cluster.sent("second", "a", sender="successor")


async def _bind_to_recreated_pod(cluster: CheckedCluster) -> None:
    cluster.deliver_all().assumed(cluster.uid("first"), "a")
    await cluster.api.request("DELETE", "/api/v1/nodes/a")
    await cluster.add_node("a")
    cluster.deliver_all()
    cluster.sent("first", "a")


def _write_condition(cluster: CheckedCluster, message: str) -> None:
    conditions = [{"type": "PodScheduled", "status": "False", "message": message}]
    body = orjson.dumps({"metadata": {"uid": cluster.uid("first")}, "status": {"conditions": conditions}})
    cluster.bind_checker.on_pod_status_sent("me", body)


async def _write_older_condition(cluster: CheckedCluster) -> None:
    cluster.deliver_all().last_messages[cluster.uid("first")] = "newer"
    _write_condition(cluster, "newer")
    _write_condition(cluster, "older")


async def _write_condition_while_binding(cluster: CheckedCluster) -> None:
    cluster.deliver_all().last_messages[cluster.uid("first")] = "no room"
    cluster.sent("first", "a")
    _write_condition(cluster, "no room")


@pytest.mark.parametrize(
    ("step", "invariant"),
    [
        (_overcommit, "I1: a holds 1200 of 1000 cpu"),
        (_share_a_device_twice, "I1: device 0 of gpu is given out for 1200 milli"),
        (_try_another_node, "I2: default/first was sent to b"),
        (_bind_gated, "I7: a binding was sent for default/gated"),
        (_bind_foreign, "I7: a binding was sent for default/foreign of default-scheduler"),
        (_bind_outside_the_domain, "I8: default/borrower of job was bound to a"),
        (_bind_without_the_lease, "I9: another sent a binding"),
        (_bind_late, "I9: me sent a binding for default/first 10.50 s after it renewed"),
        (_bind_early, "I9: successor sent a binding for default/first 1.00 s before"),
        (_preempt_without_the_lease, "I9: another sent the deletion of default/first while me held the lease"),
        (_preempt_with_the_lease_of_others, "I9: another sent the deletion of default/first while me held the lease"),
        (_preempt_late, "I9: me sent the deletion of default/first 10.50 s after it renewed"),
        (_preempt_the_most_urgent, "I7: me asked default/urgent to go"),
        (_bind_while_another_may, "I8: successor sent default/second to a, to which me may be binding"),
        (_believe_for_too_long, "I9: me believes that it may bind for forecast, 10.00 s after it renewed"),
        (_bind_too_many, "I10: 17 bindings of forecast on the wire"),
        (_bind_soon_after_a_deletion, "I9: successor sent a binding for default/second 3.00 s before"),
        (_bind_to_recreated_pod, "I8: me sent default/first to a, which is another node than the one"),
        (_write_older_condition, "I3: me writes to the owner of"),
        (_write_condition_while_binding, "I3: me writes to the owner of"),
        (_release_too_early, "I11: me gave multisched-forecast back with 1 bindings on the wire"),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "",
)
def test_violation_is_reported_with_its_invariant(step: Callable[[CheckedCluster], Any], invariant: str) -> None:
    loop = SimLoop(seed=1)

    async def main() -> list[str]:
        cluster = CheckedCluster(loop)
        await cluster.add_node("a")
        await cluster.add_node("b")
        await cluster.add_pod("first")
        await cluster.write_lease("me")
        await step(cluster)
        return cluster.broken

    broken = [sentence for sentence in simulate(main(), loop) if JUDGED not in sentence]

    assert len(broken) == 1
    assert broken[0].startswith(invariant)


def test_process_that_stops_trusting_its_lease_in_time_is_no_violation() -> None:
    loop = SimLoop(seed=1)

    async def main() -> list[str]:
        cluster = CheckedCluster(loop)
        await cluster.write_lease("me")
        cluster.bind_checker.leases.believers["me"] = lambda domain: (
            domain == "forecast" and cluster.clock.monotonic() < 14.0
        )
        await asyncio.sleep(4.0)
        await cluster.write_lease("me")
        await asyncio.sleep(12.0)
        return cluster.broken

    assert simulate(main(), loop) == []


def test_allowed_steps_are_no_violations() -> None:
    """The same node is tried again while the outcome is unknown, another one afterwards, in time and within bounds."""
    loop = SimLoop(seed=1)

    async def main() -> list[str]:
        cluster = CheckedCluster(loop)
        await cluster.add_node("a")
        await cluster.add_node("b")
        await cluster.add_pod("first")
        await cluster.write_lease("me")
        _, body = cluster.sent("first", "a")
        cluster.bind_checker.on_bind_answered("me", body, None)
        _, body = cluster.sent("first", "a")
        cluster.bind_checker.on_bind_answered("me", body, None)
        await asyncio.sleep(5.1)
        await cluster.bind("first", "b")
        lend = orjson.dumps({"metadata": {"labels": {"lend": "yes"}}})
        await cluster.api.request("PATCH", "/api/v1/nodes/a", body=lend, content_type=MERGE_PATCH)
        await cluster.add_pod("borrower", scheduler="job-scheduler", cpu="100m")
        await cluster.bind("borrower", "a")
        await cluster.write_lease("")
        await cluster.write_lease("successor")
        cluster.bind_checker.on_eviction_sent("successor", f"{PODS}/first?timeout=5000ms")
        await cluster.add_pod("next", cpu="100m")
        cluster.sent("next", "a", sender="successor")
        return cluster.broken

    assert simulate(main(), loop) == []


def violations(test: Callable[[CheckedCluster], Coroutine[Any, Any, None]]) -> list[str]:
    """Returns the violations of a test with one node, which `me` leads."""
    loop = SimLoop(seed=1)

    async def main() -> list[str]:
        cluster = CheckedCluster(loop)
        await cluster.add_node("a")
        await cluster.write_lease("me")
        await test(cluster)
        return cluster.broken

    return simulate(main(), loop)


@pytest.mark.parametrize("is_delivered", [False, True])
def test_pod_resized_during_its_bind_counts_with_the_decided_size(is_delivered: bool) -> None:
    """Two binds take effect in the opposite order of their decisions, and the second pod is resized up. After its delivery the new
    size counts.
    """

    async def main(cluster: CheckedCluster) -> None:
        await cluster.add_pod("first", cpu="500m")
        first = cluster.decide("first", "a")
        await cluster.add_pod("second", cpu="400m")
        if is_delivered:
            cluster.deliver_all()
            await cluster.resize("second", "600m")
        second = cluster.decide("second", "a")
        if not is_delivered:
            await cluster.resize("second", "600m")
        await cluster.apply(*second)
        await cluster.apply(*first)

    broken = violations(main)

    assert any(sentence.startswith("I1: a holds 1100 of 1000 cpu") for sentence in broken) is is_delivered
    assert any(JUDGED in sentence for sentence in broken) is is_delivered


@pytest.mark.parametrize("is_last", [False, True])
def test_late_bind_is_judged_without_pods_decided_after_it(is_last: bool) -> None:
    """The node was larger when the other pod was decided on. A pod decided on after it shrank cannot use that capacity."""

    async def main(cluster: CheckedCluster) -> None:
        for name in ("late", "other"):
            await cluster.add_pod(name)
        late = cluster.decide("late", "a") if not is_last else None
        await cluster.set_cpu("a", "2")
        other = cluster.decide("other", "a")
        await cluster.set_cpu("a", "1")
        late = late or cluster.decide("late", "a")
        await cluster.apply(*other)
        await cluster.apply(*late)

    broken = violations(main)

    assert any(sentence.startswith("I1: a holds 1200 of 1000 cpu") for sentence in broken) is is_last


@pytest.mark.parametrize("is_last", [False, True])
def test_late_bind_on_loan_is_judged_without_pods_of_the_lender_decided_after_it(is_last: bool) -> None:
    """The loan is half of what the lender leaves: enough for the borrower's pod, but not beside the lender's."""

    async def main(cluster: CheckedCluster) -> None:
        await cluster.write_lease("me", name="multisched-job")
        await cluster.add_node("lent", labels={"lend": "half"})
        await cluster.add_pod("late", scheduler="job-scheduler", cpu="400m")
        await cluster.add_pod("other", cpu="400m")
        late = cluster.decide("late", "lent") if not is_last else None
        other = cluster.decide("other", "lent")
        late = late or cluster.decide("late", "lent")
        await cluster.apply(*other)
        await cluster.apply(*late)

    broken = violations(main)

    assert len(broken) == is_last, broken
    assert all("stands against loans: with it, pods of job request 400 of cpu" in sentence for sentence in broken)


@pytest.mark.parametrize("is_last", [False, True])
def test_late_bind_is_judged_by_deliveries_before_later_decisions(is_last: bool) -> None:
    """One pod was not delivered when the other one was decided on. A decision after its delivery knows both."""

    async def main(cluster: CheckedCluster) -> None:
        for name in ("there", "late", "other"):
            await cluster.add_pod(name, cpu="400m")
        await cluster.bind("there", "a")
        late = cluster.decide("late", "a") if not is_last else None
        other = cluster.decide("other", "a", missed_pods="there")
        late = late or cluster.decide("late", "a")
        await cluster.apply(*other)
        await cluster.apply(*late)

    broken = violations(main)

    assert any(sentence.startswith("I1: a holds 1200 of 1000 cpu") for sentence in broken) is is_last


@pytest.mark.parametrize("has_ended", [False, True])
@pytest.mark.parametrize(
    ("is_restored", "is_delivered", "is_reported"), [(True, False, False), (True, True, True), (False, False, True)]
)
def test_deletion_from_before_a_restore_excuses_a_bind_until_the_pod_is_delivered(
    is_restored: bool, is_delivered: bool, is_reported: bool, has_ended: bool
) -> None:
    """The pod was deleted after the backup. The event is delivered after the restore, which brought the pod back."""

    async def main(cluster: CheckedCluster) -> None:
        for name in ("there", "next"):
            await cluster.add_pod(name)
        await cluster.bind("there", "a")
        delivered = cluster.deliver_all()
        if is_restored:
            cluster.bind_checker.on_restored()
        if has_ended:
            ended = cluster.server.store.collection("pods").objects["default/there"].document()
            ended = {**ended, "status": {"phase": "Succeeded"}}
            delivered.pod_delivered("default/there", msgspec.Raw(orjson.dumps(ended)))
        else:
            delivered.pod_gone("default/there")
        if is_delivered:
            cluster.deliver_all()
        cluster.bind_checker.assumed(cluster.uid("next"), "a")
        delivered.assumed(cluster.uid("next"), "a")
        await cluster.bind("next", "a")

    broken = violations(main)

    assert any(sentence.startswith("I1: a holds 1200 of 1000 cpu") for sentence in broken) is is_reported


@pytest.mark.parametrize(("phase", "count"), [("Succeeded", 0), ("Running", 1)])
def test_process_without_the_old_lease_must_wait_only_for_running_pods(phase: str, count: int) -> None:
    """Pods may have ended before the process lists."""

    async def main(cluster: CheckedCluster) -> None:
        await cluster.add_pod("first")
        await cluster.add_pod("old")
        await cluster.apply(*cluster.sent("old", "a"))
        await cluster.api.request("DELETE", f"{LEASES}/multisched-forecast")
        await cluster.write_lease("unaware")
        status = orjson.dumps({"status": {"phase": phase}})
        await cluster.api.request("PATCH", f"{PODS}/old/status", body=status, content_type=MERGE_PATCH)
        cluster.bind_checker.leases.look()
        cluster.sent("first", "a", sender="unaware")

    broken = violations(main)
    assert [sentence.split(":")[0] for sentence in broken] == ["I9"] * count


@pytest.mark.parametrize(("is_released", "count"), [(True, 0), (False, 1)])
def test_successor_need_not_wait_after_a_recreated_lease_is_released(is_released: bool, count: int) -> None:
    async def main(cluster: CheckedCluster) -> None:
        await cluster.add_pod("first")
        cluster.bind_checker.on_lease_read("another", f"{LEASES}/multisched-forecast")
        cluster.bind_checker.on_lease_read("me", f"{LEASES}/multisched-forecast")
        await cluster.write_lease("another")
        await cluster.api.request("DELETE", f"{LEASES}/multisched-forecast")
        if is_released:
            await cluster.write_lease("another")
            await cluster.write_lease("")
        await cluster.write_lease("me")
        cluster.sent("first", "a")

    broken = violations(main)
    assert [sentence.split(":")[0] for sentence in broken] == ["I9"] * count


@pytest.mark.parametrize(("begins", "count"), [(False, 0), (True, 1)])
def test_leader_that_recreates_its_lease_in_time_continues_unless_another_began(begins: bool, count: int) -> None:
    """Another process has created the lease meanwhile, and it was deleted again."""

    async def main(cluster: CheckedCluster) -> None:
        await cluster.add_pod("first")
        cluster.bind_checker.on_lease_read("another", f"{LEASES}/multisched-forecast")
        cluster.bind_checker.on_lease_read("me", f"{LEASES}/multisched-forecast")
        await cluster.api.request("DELETE", f"{LEASES}/multisched-forecast")
        if begins:
            await asyncio.sleep(10.5)
        await cluster.write_lease("another")
        await cluster.api.request("DELETE", f"{LEASES}/multisched-forecast")
        await cluster.write_lease("me")
        cluster.sent("first", "a")

    broken = violations(main)
    assert [sentence.split(":")[0] for sentence in broken] == ["I9"] * count

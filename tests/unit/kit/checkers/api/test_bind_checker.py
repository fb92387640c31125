"""Each rule at the API server's bind checker can fail: one forbidden step per rule, told from the step beside it that is allowed."""

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
"""What `multisched verify`'s judge says, in its own words, of the same binding."""
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"


class Stand:
    """A bind checker with an API server behind it, and a process `me` that leads."""

    def __init__(self, loop: SimLoop) -> None:
        self.broken: list[str] = []
        self.clock = SimClock(loop)
        self.server = ApiServer(self.clock, rbac=False)
        self.api = DirectTransport(self.server)
        policies = Policies(self.server, seed=0)
        self.bind_checker = BindChecker(self.server, loading.parse(ASKING, "test"), loop.time, self.broken, policies)

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

    def hear(self) -> DeliveredState:
        """Tells `me` of all that is there."""
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
        """Decided on and sent by `me`, who has heard of all but one."""
        delivered = self.hear()
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
        """Sent, applied and answered."""
        await self.apply(*self.sent(name, node, uid=uid))


async def _overcommit(stand: Stand) -> None:
    await stand.add_pod("second")
    await stand.bind("first", "a")
    await stand.bind("second", "a")


async def _share_a_device_twice(stand: Stand) -> None:
    await stand.add_node("gpu", gpus=1)
    await stand.write_lease("me", name="multisched-gpu")
    for name in ("one", "two"):
        annotations = {"multisched.io/gpu-milli": "600", "multisched.io/gpu-devices": "0"}
        await stand.add_pod(name, scheduler="gpu-scheduler", cpu="100m", annotations=annotations)
        await stand.bind(name, "gpu")


async def _try_another_node(stand: Stand) -> None:
    _, body = stand.sent("first", "a")
    stand.bind_checker.on_bind_answered("me", body, None)
    stand.sent("first", "b")


async def _bind_gated(stand: Stand) -> None:
    await stand.add_pod("gated", schedulingGates=[{"name": "wait"}])
    stand.sent("gated", "a")


async def _bind_foreign(stand: Stand) -> None:
    await stand.add_pod("foreign", scheduler="default-scheduler")
    stand.sent("foreign", "a")


async def _bind_outside_the_domain(stand: Stand) -> None:
    await stand.add_node("lent", {"lend": "yes"})
    await stand.add_pod("borrower", scheduler="job-scheduler", cpu="100m")
    await asyncio.sleep(1.0)
    await stand.write_lease("me")
    await stand.bind("borrower", "a")


async def _bind_without_the_lease(stand: Stand) -> None:
    stand.sent("first", "a", sender="another")


async def _bind_late(stand: Stand) -> None:
    await asyncio.sleep(10.5)
    stand.sent("first", "a")


async def _bind_early(stand: Stand) -> None:
    await asyncio.sleep(15.0)
    await stand.write_lease("successor")
    await asyncio.sleep(4.0)
    stand.sent("first", "a", sender="successor")


async def _bind_beside_another(stand: Stand) -> None:
    stand.sent("first", "a")
    await stand.add_pod("second", cpu="100m")
    await stand.write_lease("")
    stand.broken.clear()  # that it was given back too early is told elsewhere
    await stand.write_lease("successor")
    stand.sent("second", "a", sender="successor")


async def _believe_for_too_long(stand: Stand) -> None:
    """Ten seconds after the renewal nobody may bind by it, and a hundredth of a second later somebody asks."""
    stand.bind_checker.leases.believers["me"] = lambda domain: domain == "forecast" and stand.clock.monotonic() < 10.01
    await asyncio.sleep(12.0)


async def _bind_too_many(stand: Stand) -> None:
    for number in range(17):
        await stand.add_pod(f"pod-{number}", cpu="1m")
        stand.sent(f"pod-{number}", "a")


async def _preempt_without_the_lease(stand: Stand) -> None:
    stand.bind_checker.on_eviction_sent("another", f"{PODS}/first?timeout=5000ms")


async def _preempt_with_the_lease_of_others(stand: Stand) -> None:
    await stand.write_lease("another", name="multisched-gpu")
    stand.bind_checker.on_eviction_sent("another", f"{PODS}/first?timeout=5000ms")


async def _preempt_late(stand: Stand) -> None:
    await asyncio.sleep(10.5)
    stand.bind_checker.on_eviction_sent("me", f"{PODS}/first?timeout=5000ms")


async def _preempt_the_urgent(stand: Stand) -> None:
    await stand.add_pod("urgent", priorityClassName="system-node-critical")
    stand.bind_checker.on_eviction_sent("me", f"{PODS}/urgent?timeout=5000ms")


async def _release_too_early(stand: Stand) -> None:
    stand.sent("first", "a")
    await stand.write_lease("")


async def _bind_soon_after_a_deletion(stand: Stand) -> None:
    """Of a lease that the successor knew: its last holder may bind for ten seconds, and has not heard."""
    stand.bind_checker.on_lease_read("successor", f"{LEASES}/multisched-forecast")
    await stand.api.request("DELETE", f"{LEASES}/multisched-forecast")
    await stand.write_lease("successor")
    stand.sent("first", "b")
    await asyncio.sleep(7.0)
    await stand.add_pod("second", cpu="100m")
    stand.sent("second", "a", sender="successor")


async def _bind_to_another_of_the_name(stand: Stand) -> None:
    stand.hear().assumed(stand.uid("first"), "a")
    await stand.api.request("DELETE", "/api/v1/nodes/a")
    await stand.add_node("a")
    stand.hear()
    stand.sent("first", "a")


def _write_condition(stand: Stand, message: str) -> None:
    conditions = [{"type": "PodScheduled", "status": "False", "message": message}]
    body = orjson.dumps({"metadata": {"uid": stand.uid("first")}, "status": {"conditions": conditions}})
    stand.bind_checker.on_pod_status_sent("me", body)


async def _tell_the_older(stand: Stand) -> None:
    stand.hear().last_messages[stand.uid("first")] = "newer"
    _write_condition(stand, "newer")
    _write_condition(stand, "older")


async def _tell_while_binding(stand: Stand) -> None:
    stand.hear().last_messages[stand.uid("first")] = "no room"
    stand.sent("first", "a")
    _write_condition(stand, "no room")


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
        (_preempt_the_urgent, "I7: me asked default/urgent to go"),
        (_bind_beside_another, "I8: successor sent default/second to a, to which me may be binding"),
        (_believe_for_too_long, "I9: me believes that it may bind for forecast, 10.00 s after it renewed"),
        (_bind_too_many, "I10: 17 bindings of forecast on the wire"),
        (_bind_soon_after_a_deletion, "I9: successor sent a binding for default/second 3.00 s before"),
        (_bind_to_another_of_the_name, "I8: me sent default/first to a, which is another node than the one"),
        (_tell_the_older, "I3: me writes to the owner of"),
        (_tell_while_binding, "I3: me writes to the owner of"),
        (_release_too_early, "I11: me gave multisched-forecast back with 1 bindings on the wire"),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "",
)
def test_violation_is_reported_with_its_invariant(step: Callable[[Stand], Any], invariant: str) -> None:
    loop = SimLoop(seed=1)

    async def main() -> list[str]:
        stand = Stand(loop)
        await stand.add_node("a")
        await stand.add_node("b")
        await stand.add_pod("first")
        await stand.write_lease("me")
        await step(stand)
        return stand.broken

    broken = [sentence for sentence in simulate(main(), loop) if JUDGED not in sentence]

    assert len(broken) == 1
    assert broken[0].startswith(invariant)


def test_process_that_stops_trusting_its_lease_in_time_is_no_violation() -> None:
    loop = SimLoop(seed=1)

    async def main() -> list[str]:
        stand = Stand(loop)
        await stand.write_lease("me")
        stand.bind_checker.leases.believers["me"] = lambda domain: (
            domain == "forecast" and stand.clock.monotonic() < 14.0
        )
        await asyncio.sleep(4.0)
        await stand.write_lease("me")
        await asyncio.sleep(12.0)
        return stand.broken

    assert simulate(main(), loop) == []


def test_allowed_steps_are_no_violations() -> None:
    """The same node again while the outcome is unknown, another one when it no longer is, in time and within bounds."""
    loop = SimLoop(seed=1)

    async def main() -> list[str]:
        stand = Stand(loop)
        await stand.add_node("a")
        await stand.add_node("b")
        await stand.add_pod("first")
        await stand.write_lease("me")
        _, body = stand.sent("first", "a")
        stand.bind_checker.on_bind_answered("me", body, None)
        _, body = stand.sent("first", "a")
        stand.bind_checker.on_bind_answered("me", body, None)
        await asyncio.sleep(5.1)
        await stand.bind("first", "b")
        lend = orjson.dumps({"metadata": {"labels": {"lend": "yes"}}})
        await stand.api.request("PATCH", "/api/v1/nodes/a", body=lend, content_type=MERGE_PATCH)
        await stand.add_pod("borrower", scheduler="job-scheduler", cpu="100m")
        await stand.bind("borrower", "a")
        await stand.write_lease("")
        await stand.write_lease("successor")
        stand.bind_checker.on_eviction_sent("successor", f"{PODS}/first?timeout=5000ms")
        await stand.add_pod("next", cpu="100m")
        stand.sent("next", "a", sender="successor")
        return stand.broken

    assert simulate(main(), loop) == []


def complaints(scene: Callable[[Stand], Coroutine[Any, Any, None]]) -> list[str]:
    """Of what happens where there is one node, and `me` leads."""
    loop = SimLoop(seed=1)

    async def main() -> list[str]:
        stand = Stand(loop)
        await stand.add_node("a")
        await stand.write_lease("me")
        await scene(stand)
        return stand.broken

    return simulate(main(), loop)


@pytest.mark.parametrize("is_heard", [False, True])
def test_pod_resized_during_its_bind_counts_with_the_decided_size(is_heard: bool) -> None:
    """Of two that take effect the other way round than they were decided, the second grows; once heard of, it counts so."""

    async def scene(stand: Stand) -> None:
        await stand.add_pod("first", cpu="500m")
        first = stand.decide("first", "a")
        await stand.add_pod("second", cpu="400m")
        if is_heard:
            stand.hear()
            await stand.resize("second", "600m")
        second = stand.decide("second", "a")
        if not is_heard:
            await stand.resize("second", "600m")
        await stand.apply(*second)
        await stand.apply(*first)

    broken = complaints(scene)

    assert any(sentence.startswith("I1: a holds 1100 of 1000 cpu") for sentence in broken) is is_heard
    assert any(JUDGED in sentence for sentence in broken) is is_heard


@pytest.mark.parametrize("is_last", [False, True])
def test_late_bind_is_judged_without_pods_decided_after_it(is_last: bool) -> None:
    """The node was larger when the other one was decided on; whoever comes after that, and after it shrank, has no such room."""

    async def scene(stand: Stand) -> None:
        for name in ("late", "other"):
            await stand.add_pod(name)
        late = stand.decide("late", "a") if not is_last else None
        await stand.set_cpu("a", "2")
        other = stand.decide("other", "a")
        await stand.set_cpu("a", "1")
        late = late or stand.decide("late", "a")
        await stand.apply(*other)
        await stand.apply(*late)

    broken = complaints(scene)

    assert any(sentence.startswith("I1: a holds 1200 of 1000 cpu") for sentence in broken) is is_last


@pytest.mark.parametrize("is_last", [False, True])
def test_late_bind_is_judged_by_deliveries_before_later_decisions(is_last: bool) -> None:
    """Nobody told of one pod when the other was decided on; whoever comes after that, and after it was told, knows all."""

    async def scene(stand: Stand) -> None:
        for name in ("there", "late", "other"):
            await stand.add_pod(name, cpu="400m")
        await stand.bind("there", "a")
        late = stand.decide("late", "a") if not is_last else None
        other = stand.decide("other", "a", missed_pods="there")
        late = late or stand.decide("late", "a")
        await stand.apply(*other)
        await stand.apply(*late)

    broken = complaints(scene)

    assert any(sentence.startswith("I1: a holds 1200 of 1000 cpu") for sentence in broken) is is_last


@pytest.mark.parametrize("has_ended", [False, True])
@pytest.mark.parametrize(
    ("is_restored", "is_heard", "is_told"), [(True, False, False), (True, True, True), (False, False, True)]
)
def test_deletion_from_before_a_restore_excuses_a_bind_until_the_pod_is_delivered(
    is_restored: bool, is_heard: bool, is_told: bool, has_ended: bool
) -> None:
    """The pod went after the backup was made. The line that says so comes after the restore, which brought the pod back."""

    async def scene(stand: Stand) -> None:
        for name in ("there", "next"):
            await stand.add_pod(name)
        await stand.bind("there", "a")
        delivered = stand.hear()
        if is_restored:
            stand.bind_checker.on_restored()
        if has_ended:
            ended = stand.server.store.collection("pods").objects["default/there"].document()
            ended = {**ended, "status": {"phase": "Succeeded"}}
            delivered.pod_delivered("default/there", msgspec.Raw(orjson.dumps(ended)))
        else:
            delivered.pod_gone("default/there")
        if is_heard:
            stand.hear()
        stand.bind_checker.assumed(stand.uid("next"), "a")
        delivered.assumed(stand.uid("next"), "a")
        await stand.bind("next", "a")

    broken = complaints(scene)

    assert any(sentence.startswith("I1: a holds 1200 of 1000 cpu") for sentence in broken) is is_told


@pytest.mark.parametrize(("phase", "told"), [("Succeeded", 0), ("Running", 1)])
def test_process_without_the_old_lease_must_wait_only_for_running_pods(phase: str, told: int) -> None:
    """They may have ended before it lists."""

    async def scene(stand: Stand) -> None:
        await stand.add_pod("first")
        await stand.add_pod("old")
        await stand.apply(*stand.sent("old", "a"))
        await stand.api.request("DELETE", f"{LEASES}/multisched-forecast")
        await stand.write_lease("unaware")
        status = orjson.dumps({"status": {"phase": phase}})
        await stand.api.request("PATCH", f"{PODS}/old/status", body=status, content_type=MERGE_PATCH)
        stand.bind_checker.leases.look()
        stand.sent("first", "a", sender="unaware")

    broken = complaints(scene)
    assert [sentence.split(":")[0] for sentence in broken] == ["I9"] * told


@pytest.mark.parametrize(("gives_back", "told"), [(True, 0), (False, 1)])
def test_successor_need_not_wait_after_a_recreated_lease_is_released(gives_back: bool, told: int) -> None:
    async def scene(stand: Stand) -> None:
        await stand.add_pod("first")
        stand.bind_checker.on_lease_read("another", f"{LEASES}/multisched-forecast")
        stand.bind_checker.on_lease_read("me", f"{LEASES}/multisched-forecast")
        await stand.write_lease("another")
        await stand.api.request("DELETE", f"{LEASES}/multisched-forecast")
        if gives_back:
            await stand.write_lease("another")
            await stand.write_lease("")
        await stand.write_lease("me")
        stand.sent("first", "a")

    broken = complaints(scene)
    assert [sentence.split(":")[0] for sentence in broken] == ["I9"] * told


@pytest.mark.parametrize(("begins", "told"), [(False, 0), (True, 1)])
def test_leader_that_recreates_its_lease_in_time_continues_unless_another_began(begins: bool, told: int) -> None:
    """Another process has made the lease meanwhile, and it was deleted again."""

    async def scene(stand: Stand) -> None:
        await stand.add_pod("first")
        stand.bind_checker.on_lease_read("another", f"{LEASES}/multisched-forecast")
        stand.bind_checker.on_lease_read("me", f"{LEASES}/multisched-forecast")
        await stand.api.request("DELETE", f"{LEASES}/multisched-forecast")
        if begins:
            await asyncio.sleep(10.5)
        await stand.write_lease("another")
        await stand.api.request("DELETE", f"{LEASES}/multisched-forecast")
        await stand.write_lease("me")
        stand.sent("first", "a")

    broken = complaints(scene)
    assert [sentence.split(":")[0] for sentence in broken] == ["I9"] * told

"""Violations of gangs: members that could start, members outside their topology domain, and wrong statuses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import msgspec
import orjson
import pytest

from multisched.cluster.api.direct import DirectTransport
from multisched.cluster.api.server import ApiServer
from multisched.config import loading
from multisched.framework.preemption import Preemption
from multisched.model.wire import MERGE_PATCH
from multisched.testing.builders import container, node_document, pod_document
from multisched.testing.sim_loop import SimClock, SimLoop, simulate
from multisched.verify.gang_objects import GROUP_LABEL, TOPOLOGY
from multisched.verify.gangs import GangJudge
from tests.kit.checkers.api.bind_checker import BindChecker
from tests.kit.checkers.api.gang_checker import LATE_S
from tests.kit.checkers.delivered_state import DeliveredState
from tests.kit.checkers.process.preemptions import PreemptionChecker
from tests.kit.settings.setting import ASKING
from tests.kit.world.api_user import ApiUser
from tests.kit.world.definitions import POD_GROUP, install
from tests.kit.world.policies import Policies

GANG_LOOKS = 30
"""LATE_S apart: beyond any timeout of a gang."""
SUCCEEDED = {"status": {"phase": "Succeeded"}}
NODES = {"a1": ("a", "2"), "a2": ("a", "1"), "b1": ("b", "2"), "none": ("", "1")}
"""Node -> its zone, and CPUs. Each zone has less room than all nodes together."""


class CheckedCluster:
    """A cluster of two zones, with a gang whose members request one CPU each."""

    def __init__(self, loop: SimLoop) -> None:
        self.broken: list[str] = []
        self.server = ApiServer(SimClock(loop), rbac=False)
        self._api = DirectTransport(self.server)
        policies = Policies(self.server, seed=0)
        self.checker = BindChecker(
            self.server, loading.parse(ASKING, "test"), loop.time, self.broken, policies, has_gangs=True
        )

    async def build(self, minimum: int, topology: str = "") -> None:
        await install(ApiUser(self.server), POD_GROUP)
        for name, (zone, cpu) in NODES.items():
            await self.send(
                "POST", "/api/v1/nodes", node_document(name, cpu=cpu, labels={"zone": zone} if zone else {})
            )
        metadata = {"name": "g", "annotations": {TOPOLOGY: topology} if topology else {}}
        group = {"metadata": metadata, "spec": {"minMember": minimum}}
        await self.send("POST", POD_GROUP.path("default"), group)

    async def send(self, verb: str, path: str, document: dict[str, Any], kind: str = "application/json") -> None:
        answer = await self._api.request(verb, path, body=orjson.dumps(document), content_type=kind)
        assert answer.status in (200, 201), answer.body

    async def add_members(self, count: int, node: str = "") -> None:
        """Creates members, named by their number and their node."""
        for number in range(count):
            document = pod_document(
                f"m{number}{node}", container(cpu="1"), node=node, schedulerName="forecast-scheduler"
            )
            document["metadata"]["labels"] = {GROUP_LABEL: "g"}
            await self.send("POST", "/api/v1/namespaces/default/pods", document)

    async def write_status(self, status: dict[str, Any]) -> None:
        await self.send("PATCH", f"{POD_GROUP.path('default', 'g')}/status", {"status": status}, MERGE_PATCH)

    def feasible(self) -> list[str]:
        return [pod.name for pod in self.checker.unbound_feasible()]

    def faults(self) -> list[str]:
        return list(self.checker.gangs.faults())

    def delivered(self) -> DeliveredState:
        """Returns the state after all objects were delivered."""
        found = DeliveredState(self.checker.objects.reader, lambda domain: lambda node: True, {}, gangs=GangJudge())
        assert found.gangs is not None
        for group in self.server.store.collection(POD_GROUP.storage).objects.values():
            found.gangs.add("PodGroup", orjson.loads(group.raw))
        for name, stored in self.server.store.collection("nodes").objects.items():
            found.node_delivered(name, msgspec.Raw(stored.raw))
        for key, stored in self.server.store.collection("pods").objects.items():
            found.pod_delivered(key, msgspec.Raw(stored.raw))
        return found


def run_in_virtual_time(main: Callable[[CheckedCluster], Coroutine[Any, Any, None]]) -> None:
    with closing(SimLoop(seed=1)) as loop:
        simulate(main(CheckedCluster(loop)), loop)


@pytest.mark.parametrize(
    ("minimum", "topology", "could_start"),
    [
        (6, "", True),
        (7, "", False),
        (6, "zone", True),
        (3, "zone:required", True),
        (4, "zone:required", False),
        (2, "zone:required,kubernetes.io/hostname:required", True),
        (3, "zone:required, kubernetes.io/hostname:required", False),
        (1, "rack:required", False),
    ],
)
def test_gang_is_feasible_if_one_required_topology_domain_has_capacity(
    minimum: int, topology: str, could_start: bool
) -> None:
    async def main(cluster: CheckedCluster) -> None:
        await cluster.build(minimum, topology)
        await cluster.add_members(minimum)
        assert len(cluster.feasible()) == could_start, "one member stands for all"
        await cluster.send("DELETE", "/api/v1/namespaces/default/pods/m0", {})
        assert cluster.feasible() == []

    run_in_virtual_time(main)


def test_later_member_is_feasible_only_in_the_domain_of_the_others() -> None:
    async def main(cluster: CheckedCluster) -> None:
        await cluster.build(2, "zone:required")
        await cluster.add_members(2, "b1")
        await cluster.add_members(1)
        assert cluster.feasible() == []
        await cluster.send("DELETE", "/api/v1/namespaces/default/pods/m0b1?gracePeriodSeconds=0", {})
        assert cluster.feasible() == ["m0"]

    run_in_virtual_time(main)


@pytest.mark.parametrize(
    ("node", "fault"),
    [
        ("a2", ""),
        ("b1", "in another domain of zone than default/m0a1, and its gang requires one"),
        ("none", "which has no label zone, and its gang requires one domain of it"),
    ],
)
def test_node_in_another_topology_domain_is_a_fault_after_delivery_of_members(node: str, fault: str) -> None:
    async def main(cluster: CheckedCluster) -> None:
        await cluster.build(2, "zone:required")
        await cluster.add_members(1, "a1")
        await cluster.add_members(1)
        delivered = cluster.delivered()
        late = next(pod for pod in delivered.pods.values() if not pod.node)
        assert delivered.fault_of_domain(late, delivered.nodes[node]) == fault

    run_in_virtual_time(main)


def test_members_assumed_in_two_required_domains_are_a_fault() -> None:
    async def main(cluster: CheckedCluster) -> None:
        await cluster.build(2, "zone:required")
        await cluster.add_members(2)
        delivered = cluster.delivered()
        first, second = sorted(delivered.pods.values(), key=lambda pod: pod.name)
        delivered.assumed(first.uid, "b1")
        assert "another domain" in delivered.fault_of_domain(second, delivered.nodes["a1"])
        delivered.forgotten(first.uid)
        assert delivered.fault_of_domain(second, delivered.nodes["a1"]) == ""

    run_in_virtual_time(main)


def test_succeeded_member_counts_when_another_one_is_evicted() -> None:
    """The watch of running pods has delivered the member as deleted."""

    async def main(cluster: CheckedCluster) -> None:
        await cluster.build(2)
        await cluster.add_members(3, "b1")
        delivered = cluster.delivered()
        program: Any = SimpleNamespace(preemptor=SimpleNamespace(start=None))
        judge = PreemptionChecker(
            program, delivered, loading.parse(ASKING, "test"), {}, cluster.checker, is_plain=False
        )
        victim, other = (pod for pod in delivered.pods.values() if pod.name in ("m1b1", "m2b1"))
        one, both = {"b1": (victim,)}, {"b1": (victim, other)}
        await cluster.send("PATCH", "/api/v1/namespaces/default/pods/m0b1/status", SUCCEEDED, MERGE_PATCH)
        finished = cluster.server.store.collection("pods").objects["default/m0b1"]
        delivered.ended_delivered("default/m0b1", msgspec.Raw(finished.raw))
        delivered.pod_gone("default/m0b1")
        assert judge._units(Preemption(one, (), "")) == [[victim]]
        assert cluster.broken == []
        await cluster.send("DELETE", "/api/v1/namespaces/default/pods/m0b1?gracePeriodSeconds=0", {})
        delivered.ended_gone("default/m0b1")
        judge._units(Preemption(one, (), ""))
        assert cluster.broken == ["I13: default/m1b1 goes, and its gang falls below its minimum, and does not go"]
        assert judge._units(Preemption(both, (), "")) == [[victim, other]]

    run_in_virtual_time(main)


def test_status_has_the_number_of_bound_members_and_the_timeout() -> None:
    async def main(cluster: CheckedCluster) -> None:
        await cluster.build(2)
        await cluster.add_members(1)
        late = "I13: podgroup default/g does not say that it waits too long, but []"
        assert cluster.faults() == ["I4: podgroup default/g says None, and 0 have nodes", late]
        await cluster.write_status({"scheduled": 0, "conditions": [{"type": "Scheduled", "reason": "TimedOut"}]})
        assert cluster.faults() == []
        await cluster.add_members(1, "a1")
        assert cluster.faults() == ["I4: podgroup default/g says 0, and 1 have nodes"]

    run_in_virtual_time(main)


@pytest.mark.parametrize(
    ("is_faked", "is_held", "is_running", "is_late"),
    [
        (False, True, True, True),
        (True, True, True, False),
        (True, False, True, True),
        (True, True, False, True),
    ],
    ids=["true response", "false response", "found by the audit", "process has ended"],
)
def test_gang_is_not_late_while_its_process_trusts_a_false_bind_response(
    is_faked: bool, is_held: bool, is_running: bool, is_late: bool
) -> None:
    async def main(cluster: CheckedCluster) -> None:
        await cluster.build(3)
        await cluster.add_members(2, "b1")
        await cluster.add_members(1)
        (waiting,) = [pod for pod in cluster.checker.pods().values() if not pod.node]
        process = cluster.checker.delivered["process-1"] = cluster.delivered()
        cluster.checker.leases.believers["process-2"] = cluster.checker.leases.leaders["process-2"] = lambda domain: (
            True
        )
        if is_held:
            process.assumed(waiting.uid, "a1")
        if is_faked:
            cluster.checker.faked.add((waiting.uid, "a1"))
        if is_running:
            cluster.checker.leases.believers["process-1"] = lambda domain: True
        for _ in range(GANG_LOOKS):
            cluster.checker.look_at_gangs()
            await asyncio.sleep(LATE_S)
        assert [line.startswith("I13: gang default/g has 2 of 3") for line in cluster.broken] == [True] * is_late

    run_in_virtual_time(main)

"""The examples of tests/examples through the whole program: what their README promises."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import SocketStream

from multisched.testing.sim_loop import EPOCH
from tests.examples.coscheduling import GROUP, SIZE
from tests.examples.wait_for_license import LICENSE
from tests.integration.plugins.program_cluster import HEAD, ProgramCluster, in_virtual_time, one_domain, open_cluster
from tests.unit.examples.test_wait_for_license import LicenseServer, serving

EXAMPLES = Path(__file__).parents[2] / "examples"

# -- a fourth scheduler, by configuration alone ------------------------------------------------------------------------


async def somebody_leads(cluster: ProgramCluster) -> None:
    """Another process holds the lease and dies: pods queue up, at different times, until its lease has expired."""
    renewed = (EPOCH + timedelta(seconds=cluster.now_s)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {"holderIdentity": "somebody", "leaseDurationSeconds": 15, "renewTime": renewed, "acquireTime": renewed}
    await cluster.post(
        "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases", "multisched-forecast", {}, spec=spec
    )
    await cluster.node("n", cpu="32")
    for number, name in enumerate(("low", "high")):
        await cluster.priority_class(name, 100 * number)


WHOLE = {"cpu": "1", "memory": "1Gi"}
PODS: dict[str, dict[str, Any]] = {
    "low-best-effort": {"priority": "low"},
    "low-burstable": {"priority": "low", "cpu": "1"},
    "low-guaranteed-early": {"priority": "low", "limits": WHOLE},
    "high-best-effort": {"priority": "high"},
    "low-guaranteed-late": {"priority": "low", "limits": WHOLE},
    "high-burstable-early": {"priority": "high", "cpu": "1"},
    "high-guaranteed": {"priority": "high", "limits": WHOLE},
    "high-burstable-late": {"priority": "high", "cpu": "1"},
}
"""In the order in which they are created."""


def test_a_fourth_scheduler_binds_by_priority_then_qos_then_time() -> None:
    async def main() -> None:
        # One bind at a time, so that the order of decisions is the order of bindings.
        text = (EXAMPLES / "qos.yaml").read_text() + "    concurrency: {bindWorkers: 1}\n"
        async with open_cluster(text, before=somebody_leads) as cluster:
            for name, fields in PODS.items():
                await cluster.pod(name, scheduler="qos-scheduler", **fields)
                await asyncio.sleep(0.1)
            assert cluster.bound_at == {}
            await cluster.until(lambda: len(cluster.bound_at) == len(PODS), within_s=60.0)

            assert list(cluster.bound_at) == [
                "high-guaranteed",
                "high-burstable-early",
                "high-burstable-late",
                "high-best-effort",
                "low-guaranteed-early",
                "low-guaranteed-late",
                "low-burstable",
                "low-best-effort",
            ]
            await cluster.at_rest()

    in_virtual_time(main)


# -- Permit: all members of a group, or none ---------------------------------------------------------------------------

COSCHEDULING = {"name": "tests.examples.coscheduling:Coscheduling", "args": {"timeoutSeconds": 5}}
MEMBER: dict[str, Any] = {"labels": {GROUP: "g", SIZE: "3"}}


def test_group_members_are_bound_together_once_complete() -> None:
    async def main() -> None:
        async with open_cluster(one_domain(COSCHEDULING)) as cluster:
            await cluster.node("n", cpu="4")
            await cluster.pod("a", cpu="1", **MEMBER)
            await cluster.pod("b", cpu="1", **MEMBER)
            await cluster.until(lambda: len(cluster.worker().waiting) == 2)
            await cluster.pod("alone", cpu="1")
            await cluster.bound("alone", within_s=1.0)
            assert cluster.bound_at.keys() == {"alone"}

            await cluster.pod("c", cpu="1", **MEMBER)
            await cluster.bound("a", "b", "c", within_s=1.0)
            await cluster.at_rest()

    in_virtual_time(main)


GPU_DOMAIN = f"{HEAD}domains: [{{name: gpu, profile: {{plugins: {{enabled: [{COSCHEDULING}]}}}}}}]\n"
HALF: dict[str, Any] = {"annotations": {"multisched.io/gpu-milli": "500"}, "scheduler": "gpu-scheduler"}


def test_incomplete_group_releases_everything_and_completes_later() -> None:
    """Half a device each of a node's only one, two of three members: timed out, they leave row and device to a rival
    who waits for that (one who may preempt would send them away at once)."""

    async def main() -> None:
        async with open_cluster(GPU_DOMAIN) as cluster:
            await cluster.priority_class("high", 100, preemptionPolicy="Never")
            await cluster.node("n", cpu="8", extra={"nvidia.com/gpu": 1})
            for name in ("a", "b"):
                await cluster.pod(name, cpu="2", **HALF, **MEMBER)
            await cluster.until(lambda: len(cluster.worker("gpu").waiting) == 2)
            assert held(cluster) == {"a", "b"}
            began_s = cluster.now_s
            whole = {"cpu": "8", "nvidia.com/gpu": "1"}
            await cluster.pod("rival", scheduler="gpu-scheduler", limits=whole, priority="high")
            await cluster.bound("rival", within_s=10.0)

            assert 4.5 < cluster.now_s - began_s < 6.0
            assert held(cluster) == {"rival"}
            assert len(cluster.program.cache) == 1
            assert cluster.worker("gpu").counters.refused >= 3

            await cluster.node("m", cpu="8", extra={"nvidia.com/gpu": 2})
            await cluster.pod("c", cpu="2", **HALF, **MEMBER)
            await cluster.bound("a", "b", "c")
            assert {cluster.node_of(name) for name in "abc"} == {"m"}
            await cluster.at_rest()

    in_virtual_time(main)


def held(cluster: ProgramCluster) -> set[str]:
    """Names of the pods that hold anything in a ledger."""
    uids = {uid for ledger in cluster.program.cache.ledgers for uid in ledger.held()}
    return {pod.name for pod in cluster.api_checker.pods().values() if pod.uid in uids}


def test_late_member_requeues_members_that_timed_out() -> None:
    async def main() -> None:
        async with open_cluster(one_domain(COSCHEDULING)) as cluster:
            await cluster.node("n", cpu="3")
            for name in ("a", "b"):
                await cluster.pod(name, cpu="1", **MEMBER)
            await cluster.until(lambda: cluster.worker().counters.refused == 2)
            await cluster.delete("namespaces/default/pods/b")
            for name in ("c", "d"):
                await cluster.pod(name, cpu="1", **MEMBER)

            await cluster.bound("a", "c", "d", within_s=20.0)
            await cluster.at_rest()

    in_virtual_time(main)


# -- PreBind: something outside, before the bind -----------------------------------------------------------------------

LICENSED = 40
"""More pods than the adaptive limit lets bind at a time in the beginning."""


async def test_pods_wait_for_licences_without_blocking_others() -> None:
    server = LicenseServer(free=0)
    async with serving(server.handle) as address:
        plugin = {"name": "tests.examples.wait_for_license:WaitForLicense", "args": {"server": address}}
        async with open_cluster(one_domain(plugin)) as cluster:
            await cluster.node("n", cpu="64")
            names = [f"licensed-{number}" for number in range(LICENSED)]
            for name in names:
                await cluster.pod(name, cpu="1", annotations={LICENSE: "solver"})
            await cluster.until(lambda: len(server.asked) == LICENSED)
            for name in ("plain-a", "plain-b"):
                await cluster.pod(name, cpu="1")
            await cluster.bound("plain-a", "plain-b", within_s=5.0)
            assert cluster.bound_at.keys() == {"plain-a", "plain-b"}
            assert len(cluster.program.cache) == LICENSED + 2, "they keep their room while they wait"

            for _ in names:
                server.free.release()
            await cluster.bound(*names)
            await cluster.at_rest()


async def test_pod_without_a_licence_in_time_releases_its_node_and_retries() -> None:
    asked: list[bytes] = []

    async def late_once(stream: SocketStream) -> None:
        """The first request is never answered."""
        async with stream:
            asked.append(await stream.receive())
            if len(asked) > 1:
                await stream.send(b"granted\n")
            else:
                with contextlib.suppress(anyio.EndOfStream):
                    await stream.receive()

    async with serving(late_once) as address:
        args = {"server": address, "timeoutSeconds": 0.1}
        plugin = {"name": "tests.examples.wait_for_license:WaitForLicense", "args": args}
        async with open_cluster(one_domain(plugin, queue={"initialBackoff": "50ms", "maxBackoff": "100ms"})) as cluster:
            await cluster.node("n", cpu="1")
            await cluster.pod("licensed", cpu="1", annotations={LICENSE: "solver"})
            await cluster.bound("licensed")

            # On a machine that is slow just then, a later answer may come too late as well.
            assert cluster.worker().counters.refused == len(asked) - 1 >= 1
            assert set(asked) == {asked[0]}
            await cluster.at_rest()


@pytest.mark.parametrize("name", ["coscheduling.py", "qos.yaml", "wait_for_license.py"])
def test_readme_lists_every_example(name: str) -> None:
    assert f"`{name}`" in (EXAMPLES / "README.md").read_text()
    assert {path.name for path in EXAMPLES.iterdir() if path.is_file()} == {
        "README.md",
        "coscheduling.py",
        "qos.yaml",
        "wait_for_license.py",
    }

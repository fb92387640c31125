"""An API server whose resourceVersions are no numbers: all that is known of two of them is whether they are equal."""

from __future__ import annotations

import asyncio
import re

from tests.unit.shell.program_kit import CONFIGURATION, Cluster, play

_VERSION = re.compile(rb'("resourceVersion":")(\d+)(")')
_TOLD = re.compile(rb'(resourceVersion(?:":"|=))r(\d+)x')


def make_opaque(cluster: Cluster) -> None:
    cluster.transport.said = lambda text: _VERSION.sub(rb"\1r\2x\3", text)
    cluster.transport.asked = lambda text: _TOLD.sub(rb"\1\2", text)


async def prepare(cluster: Cluster) -> None:
    make_opaque(cluster)
    for name in ("a", "b"):
        await cluster.add_node(name)
    for number in range(5):
        await cluster.add_pod(f"pod-{number}")


def test_audit_with_opaque_versions_finds_no_false_difference() -> None:
    """Pods come, are bound and go while its lists are on their way."""

    async def scene(cluster: Cluster) -> None:
        cluster.transport.list_s, cluster.transport.bind_s = 0.5, 0.2
        for number in range(300):
            await cluster.add_pod(f"next-{number}", cpu="10m")
            await asyncio.sleep(0.15)
            if number >= 10:
                await cluster.delete_pod(f"next-{number - 10}")
        await cluster.settle()

        found = cluster.program.audit.statistics()
        assert found.audits >= 6
        assert (found.differences, found.failures) == (0, 0)
        assert cluster.placed == await cluster.nodes_of_pods()

    play(scene, prepare=prepare, configuration=CONFIGURATION + "client: {auditPeriod: 5s}\n")


def test_audit_with_opaque_versions_finds_a_lost_change() -> None:
    async def scene(cluster: Cluster) -> None:
        lost = b'"name":"pod-1"'
        said = cluster.transport.said
        cluster.transport.said = lambda text: b"" if lost in text and text.startswith(b'{"type"') else said(text)
        await cluster.delete_pod("pod-1")
        await cluster.settle()
        assert "pod-1" in cluster.placed
        cluster.transport.said = said
        await cluster.settle(150.0)

        assert cluster.placed == await cluster.nodes_of_pods()
        assert cluster.program.audit.statistics().lost >= 1

    play(scene, prepare=prepare)
